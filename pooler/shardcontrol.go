package pooler

import (
	"strings"
	"sync"

	"neki/internal/pgerr"
	"neki/pooler/plan"
	"neki/settings"
	"neki/sqlparse"
)

// control runs a transaction statement, or one that sets something for the transaction, over the shards of it.
func (c *Session) control(p *plan.Plan) (answer, error) {
	t := c.stx
	if t == nil {
		c.beginShards(p)
		return answer{tag: p.Tag}, nil
	}
	if err := c.keepSuspended(); err != nil {
		return answer{}, err
	}
	if t.implicit {
		if refused := c.controlImplicit(p); refused != nil {
			return answer{}, refused
		}
	}
	switch p.Kind {
	case sqlparse.KindCommit:
		return c.commitOwn(p)
	case sqlparse.KindRollback:
		c.rollbackShards()
		return c.endOwn(p, "ROLLBACK")
	}
	if c.status == 'E' && p.Kind != sqlparse.KindRollbackTo {
		return answer{}, errFailedTx
	}
	switch p.Kind {
	case sqlparse.KindBegin:
		return c.beginAgain(p)
	case sqlparse.KindPrepareTransaction, sqlparse.KindCommitPrepared, sqlparse.KindRollbackPrepared:
		return answer{}, pgerr.New(pgerr.NotImplemented, "not implemented: [116] %s in a transaction over several shards", p.Tag).
			WithHint("SET __neki.tx_mode = 'atomic' commits on all shards or on none.")
	}
	return c.onMembers(p)
}

// onMembers runs a statement on every member and remembers it for those to come.
func (c *Session) onMembers(p *plan.Plan) (answer, error) {
	t := c.stx
	if t.lost {
		return answer{}, errFailedTx
	}
	if p.Kind == sqlparse.KindRelease || p.Kind == sqlparse.KindRollbackTo {
		if at, _ := t.point(p.Tx.Savepoint); at < 0 {
			return answer{}, pgerr.New("3B001", "savepoint \"%s\" does not exist", p.Tx.Savepoint)
		}
	}
	if err := c.settleOpen(); err != nil {
		return answer{}, err
	}
	if err := c.execAll(t.members, p.Text()); err != nil {
		return answer{}, err
	}
	if p.Kind == sqlparse.KindRollbackTo {
		c.status, c.failed = 'T', false
	}
	if p.Kind.IsTransaction() {
		c.tx.control(c, p, nil)
	} else if p.Set != nil {
		c.followSet(p.Set)
	}
	t.note(c, p)
	return answer{tag: p.Tag}, nil
}

// execAll runs sql on all of members at once. The first error is given; its member is left in use, so that the server's
// state is the session's.
func (c *Session) execAll(members []*member, sql string) error {
	errs := eachMember(members, func(m *member, buf []byte) error {
		_, err := m.sc.Exec(sql, buf)
		return err
	})
	for i, err := range errs {
		if err == nil {
			continue
		}
		if pgerr.Code(err) == "" { // the connection is lost
			c.use(members[i])
			c.dropLease()
			return lostConnection(members[i].place.node.ID, err, false)
		}
		c.use(members[i])
		return err
	}
	return nil
}

// eachMember calls do for every member, each on a goroutine of its own, which it joins.
func eachMember(members []*member, do func(m *member, buf []byte) error) []error {
	errs := make([]error, len(members))
	if len(members) == 1 {
		errs[0] = do(members[0], make([]byte, memberBuffer))
		return errs
	}
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() { errs[i] = do(m, make([]byte, memberBuffer)) })
	}
	wg.Wait()
	return errs
}

// memberAfterMember calls do for every member in turn.
func memberAfterMember(members []*member, do func(m *member, buf []byte) error) []error {
	errs := make([]error, len(members))
	for i, m := range members {
		errs[i] = do(m, make([]byte, memberBuffer))
	}
	return errs
}

// memberBuffer is the room for answers without rows.
const memberBuffer = 1 << 10

// rollbackShards ends the transaction on all members.
func (c *Session) rollbackShards() {
	t := c.stx
	_ = c.settleOpen() // drops the connection when it fails
	c.park()
	errs := eachMember(t.members, func(m *member, buf []byte) error {
		m.sc.SetVars(m.base)
		_, err := m.sc.Exec("ROLLBACK", buf)
		return err
	})
	for i, err := range errs {
		if err != nil {
			t.members[i].sc.Broken()
		}
	}
}

// endOwn settles the session after a COMMIT or ROLLBACK on all members.
func (c *Session) endOwn(p *plan.Plan, tag string) (answer, error) {
	begin := c.stx.begin
	c.settleNotifications()
	c.status = 'I'
	c.leaveShards()
	c.tx.control(c, p, []byte(tag))
	c.failed = false
	if c.newSchema {
		c.schemaChanged()
	}
	if p.Tx != nil && p.Tx.Chain {
		c.stx, c.status = &shardTx{begin: begin}, 'T'
	}
	return answer{tag: tag}, nil
}

// commitOwn is COMMIT. That of a failed transaction rolls back.
func (c *Session) commitOwn(p *plan.Plan) (answer, error) {
	if c.status == 'E' || c.stx.lost {
		c.rollbackShards()
		return c.endOwn(p, "ROLLBACK")
	}
	if err := c.commitShards(); err != nil {
		c.status, c.failed = 'I', true
		c.leaveShards()
		c.tx.rolledBack(c)
		return answer{}, err
	}
	return c.endOwn(p, "COMMIT")
}

// beginAgain is BEGIN in a transaction. One that the gateway began for a string becomes the client's.
func (c *Session) beginAgain(p *plan.Plan) (answer, error) {
	if c.stx.implicit {
		if len(c.stx.members) == 0 {
			c.stx.begin = beginText(p.Tx)
		} else if modes := strings.TrimPrefix(beginText(p.Tx), "BEGIN"); modes != "" {
			if err := c.execAll(c.stx.members, "SET TRANSACTION"+modes); err != nil {
				return answer{}, err
			}
		}
		c.stx.implicit = false
		c.tx.control(c, p, nil)
		return answer{tag: p.Tag}, nil
	}
	c.notice(pgerr.New(pgerr.ActiveSQLTransaction, "there is already a transaction in progress").
		WithSeverity(pgerr.SeverityWarning))
	return answer{tag: p.Tag}, nil
}

// endOutside ends a statement over shards that has given err: outside of any transaction, its own one ends with it. The
// statement's error counts before that of the end.
func (c *Session) endOutside(err error, outside bool) error {
	if err != nil {
		c.failed = true
	}
	if !outside {
		return err
	}
	if endErr := c.endImplicit(); err == nil {
		return endErr
	}
	return err
}

// endImplicit ends a transaction that the gateway began: all shards of it commit, or none.
func (c *Session) endImplicit() error {
	if c.stx == nil || !c.stx.implicit {
		return nil
	}
	var err error
	if c.failed || c.status == 'E' || c.stx.lost {
		c.rollbackShards()
	} else if err = c.commitShards(); err != nil {
		c.failed = true
	}
	c.settleNotifications()
	c.status = 'I'
	c.leaveShards()
	if c.tx.altered { // what others have prepared meanwhile is of before
		c.db.changes.Add(1)
	}
	if c.failed {
		c.tx.rolledBack(c)
	} else {
		c.tx.committed(c)
	}
	if c.newSchema {
		c.schemaChanged()
	}
	return err
}

// beginImplicit begins a transaction for what the client has sent without one of its own.
func (c *Session) beginImplicit() {
	c.stx = &shardTx{implicit: true, begin: "BEGIN"}
	c.tx.state = plan.TxReadWrite
	c.status = 'T'
}

// commitShards commits on all members, as __neki.tx_mode says.
func (c *Session) commitShards() error {
	t := c.stx
	if err := c.settleOpen(); err != nil {
		return err
	}
	var writers, readers []*member
	for _, m := range t.members {
		if m.wrote {
			writers = append(writers, m)
		} else {
			readers = append(readers, m)
		}
	}
	writers = t.inOrder(writers)
	c.park()
	if len(writers) > 1 {
		// What a COMMIT could still refuse, it refuses now, while all can be rolled back.
		if err := c.execAll(writers, "SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
			c.rollbackShards()
			return err
		}
		if t.atomic || c.vars.Neki().TxMode == settings.TxAtomic {
			return c.commitAtomic(writers, readers)
		}
	}
	if err := c.execAll(readers, "COMMIT"); err != nil {
		c.rollbackShards()
		return err
	}
	c.park()
	return c.commitEach(writers)
}

// commitEach commits on one member after the other. When one fails before any has committed, all are rolled back.
func (c *Session) commitEach(writers []*member) error {
	var done []string
	buf := make([]byte, memberBuffer)
	for i, m := range writers {
		_, err := m.sc.Exec("COMMIT", buf)
		if err == nil {
			done = append(done, m.place.shard)
			continue
		}
		for _, left := range writers[i:] {
			left.sc.SetVars(left.base)
		}
		return partlyCommitted(err, m, done, writers[i+1:])
	}
	return nil
}

// partlyCommitted says what a COMMIT that failed on a member has left. The members after it are rolled back.
func partlyCommitted(err error, m *member, done []string, undone []*member) error {
	unknown := pgerr.Code(err) == ""
	if len(done) == 0 && !unknown {
		return err
	}
	var rolledBack []string
	for _, u := range undone {
		rolledBack = append(rolledBack, u.place.shard)
	}
	detail := "It is committed on: " + list(done) + "; rolled back on: " + list(rolledBack) + "."
	if unknown {
		return pgerr.New(pgerr.TransactionResolutionUnknown, "the connection to shard \"%s\" was lost while the transaction was committed", m.place.shard).
			WithDetail("Whether it is committed there is not known: %v. %s", err, detail).
			WithHint("Look before you run it again. Under __neki.tx_mode = 'atomic' all shards end alike.")
	}
	return pgerr.New(pgerr.TransactionResolutionUnknown, "the transaction is committed on some shards only: shard \"%s\" refused: %s", m.place.shard, pgerr.From(err).Message).
		WithDetail("%s", detail).
		WithHint("Under __neki.tx_mode = 'atomic' all shards end alike.")
}

func list(shards []string) string {
	if len(shards) == 0 {
		return "none"
	}
	return strings.Join(shards, ", ")
}
