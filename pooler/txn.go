package pooler

import (
	"bytes"

	"neki/pooler/plan"
	"neki/settings"
	"neki/sqlparse"
)

// transaction is what a rollback takes back, and what the open transaction means for routing.
type transaction struct {
	base       *settings.Vars // the settings at its start
	savepoints []savepoint
	state      plan.TxState
	altered    bool // something was altered or dropped in it
	unlistened []*sqlparse.ChannelStmt
}

type savepoint struct {
	name       string
	vars       *settings.Vars
	unlistened int // how many UNLISTENs came before
}

// open reports whether a transaction is remembered.
func (t *transaction) open() bool { return t.base != nil }

// begin notes the settings before a statement outside of a transaction: if it fails, they hold again.
func (t *transaction) begin(c *Session) {
	if c.status == 'I' && !c.open {
		t.base = c.vars
	}
}

// lost takes the settings back: the connection of the transaction is gone.
func (t *transaction) lost(c *Session) {
	if t.base != nil {
		c.vars = t.base
	}
	c.endCursors(false)
	t.end()
}

func (t *transaction) end() {
	t.savepoints = t.savepoints[:0]
	t.base, t.state, t.altered, t.unlistened = nil, plan.TxNone, false, nil
}

// committed makes the present settings those that the next rollback returns to.
func (t *transaction) committed(c *Session) {
	t.savepoints = t.savepoints[:0]
	t.base = c.vars
	t.state, t.altered = plan.TxNone, false
	c.endCursors(true)
	if t.unlistened != nil {
		c.unlisten(t.unlistened)
		t.unlistened = nil
	}
}

// rolledBack takes the settings back, here and in what is known of the server.
func (t *transaction) rolledBack(c *Session) {
	t.savepoints = t.savepoints[:0]
	t.state, t.altered, t.unlistened = plan.TxNone, false, nil
	c.endCursors(false)
	if t.base == nil || t.base == c.vars {
		return
	}
	t.restore(c, t.base)
}

// control follows a transaction statement that the server has completed.
func (t *transaction) control(c *Session, p *plan.Plan, tag []byte) {
	switch p.Kind {
	case sqlparse.KindBegin:
		if t.base == nil { // statements before it in its string or segment are part of the transaction
			t.base = c.vars
		}
		if c.status == 'I' { // else it only warns
			t.state = plan.BeginState(p.Tx.ReadOnly != nil && *p.Tx.ReadOnly, p.Tx.Isolation)
		}
	case sqlparse.KindCommit:
		if t.altered { // what others have prepared meanwhile is of before
			c.db.changes.Add(1)
		}
		t.ended(c, p, bytes.HasPrefix(tag, []byte("ROLLBACK"))) // COMMIT of a failed transaction rolls back
	case sqlparse.KindRollback:
		t.ended(c, p, true)
	case sqlparse.KindPrepareTransaction:
		t.committed(c)
	case sqlparse.KindSavepoint:
		t.savepoints = append(t.savepoints, savepoint{name: p.Tx.Savepoint, vars: c.vars, unlistened: len(t.unlistened)})
	case sqlparse.KindRelease:
		if i := t.find(p.Tx.Savepoint); i >= 0 {
			t.savepoints = t.savepoints[:i]
		}
	case sqlparse.KindRollbackTo:
		if i := t.find(p.Tx.Savepoint); i >= 0 {
			t.savepoints = t.savepoints[:i+1]
			t.unlistened = t.unlistened[:t.savepoints[i].unlistened]
			t.restore(c, t.savepoints[i].vars)
		}
	}
}

// ended follows a COMMIT or ROLLBACK; AND CHAIN opens the next transaction with the same modes.
func (t *transaction) ended(c *Session, p *plan.Plan, back bool) {
	state := t.state
	if back {
		t.rolledBack(c)
	} else {
		t.committed(c)
	}
	if p.Tx != nil && p.Tx.Chain {
		t.state = state
	}
}

// restore takes the settings back to what they were, here and in what is known of the server.
func (t *transaction) restore(c *Session, vars *settings.Vars) {
	c.vars = vars
	if c.lease != nil {
		c.lease.SetVars(vars)
	}
}

// find gives the innermost savepoint of the name, -1 when there is none.
func (t *transaction) find(name string) int {
	for i := len(t.savepoints) - 1; i >= 0; i-- {
		if t.savepoints[i].name == name {
			return i
		}
	}
	return -1
}
