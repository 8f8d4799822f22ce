package pooler

import (
	"errors"
	"strings"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// What becomes of a statement whose primary goes away under it. It is run again, on the primary that is there then, when
// it surely has done nothing and nothing of a transaction or of the session's own is left on the connection:
//
//	what the server said or did                             what it means
//	------------------------------------------------------  -----------------------------------------------------
//	closed the connection before the statement arrived      never read
//	57P01 of a server process that waited for a command     never read
//	57P01 else, and the server is being stopped or replaced rolled back, if it is a query or a change of rows
//	25006 though the session may write                      refused: the primary is being replaced, or was; a transaction that
//	                                                        has met it is lost
//	closed the connection                                   not known: 08007; a read is run again
//
// An operator's pg_terminate_backend ends the client's session, as in Postgres.

// movable reports whether the statement in hand may be run on another primary, if it has not been run.
func (c *Session) movable() bool {
	return c.status == 'I' && !c.open && c.home == nil && c.pins == 0 && c.stx == nil && len(c.work.sql.preparing) == 0 &&
		time.Since(c.begun) < c.srv.params.Load().BufferWindow
}

// readsOnly reports whether 25006 is what the client has asked for.
func (c *Session) readsOnly() bool {
	if _, own := c.vars.GUC("default_transaction_read_only"); own {
		return true
	}
	v, _ := c.lease.Greeting().Get("default_transaction_read_only") // of the role's or database's own
	return v != "off"
}

// resigns reports whether the server in use says that it takes no writes, unasked, though it was taken for a primary that does:
// it has been made read-only since the login, as a primary that hands over is, or it is a standby.
func (c *Session) resigns() bool {
	if c.place.role != catalog.RolePrimary || c.lease == nil {
		return false
	}
	if c.lease.Params().Standby() {
		return true
	}
	now, _ := c.lease.Params().Get("default_transaction_read_only")
	return now == "on" && !c.readsOnly()
}

// replacedWait is how long a sign of a change at the primary is waited for, before what it has said is taken for what it
// seems to be.
const replacedWait = 100 * time.Millisecond

// primaryAgain reports whether the statement is to be run again on the shard's primary. The lease is gone then.
func (c *Session) primaryAgain(err error) bool {
	r := c.work.relay
	if err == nil && !r.Retry || clientError(err) != nil || givenUp(err) || !c.movable() || !r.Untouched() {
		return false
	}
	node, shard := c.place.node, c.place.shard
	switch {
	case err == nil && c.readsOnly() && !c.resigns():
		return false
	case err == nil: // 25006
		if resigns := c.resigns(); !c.awaitReplaced(node, shard) && !resigns {
			if c.moves++; c.moves > maxMoves {
				return false
			}
		}
		c.putBack()
	case !c.notRun(err):
		return false
	default:
		pool := c.pool
		c.lease.Stats().NoteDown(time.Now().Add(downFor), "connection lost")
		c.dropLease()
		pool.DropDead()
	}
	c.failed = false
	return true
}

// maxMoves bounds how often a statement is run again for 25006 without another sign that the primary changes.
const maxMoves = 2

// refuseReadOnly passes the error on that was held back because the primary might have been about to be replaced.
// synced says that the whole request was answered, up to its end.
func (c *Session) refuseReadOnly(synced bool) error {
	w := c.work
	r := w.relay
	if c.resigns() {
		cause := errors.New("it hands over to another primary")
		if c.status == 'T' {
			r.Farewell = r.Farewell[:0] // the connection is closed by the gateway, which rolls back
			return c.exchangeFailed(cause, synced)
		}
		return c.refuseResigned(noServingPrimary(c.place.shard, cause))
	}
	c.Failed(r.Failed, []byte(pgerr.ReadOnlySQLTransaction), false)
	c.lease.SetStatus(r.Status)
	w.ops = w.ops[:0]
	w.reply = r.AppendFarewell(w.reply[:0])
	r.Begin()
	return c.replyReady()
}

// refuseResigned tells that no primary was found in time that takes what this one refused.
func (c *Session) refuseResigned(err error) error {
	w := c.work
	c.Failed(w.relay.Failed, []byte(pgerr.NoServingPrimary), false)
	c.lease.SetStatus(w.relay.Status)
	w.ops = w.ops[:0]
	w.reply = encodeError(w.reply[:0], pgerr.From(err))
	w.relay.Begin()
	return c.replyReady()
}

// notRun reports whether the statement that lost its connection surely has had no effect, and so may be run again.
func (c *Session) notRun(err error) bool {
	r := c.work.relay
	switch {
	case c.lease.Unheard(err):
		return true
	case len(r.Farewell) == 0:
		return c.allOf(func(p *plan.Plan) bool { return p.Kind == sqlparse.KindSelect && p.Proven() })
	case r.Field('C') != pgerr.AdminShutdown:
		return false
	case r.Field('R') == "secure_read": // the postmaster is gone, and the process was waiting for a command
		return true
	}
	return c.allOf(undoable) && c.goes(c.place)
}

// undoable reports whether a statement that did not complete has had no effect.
func undoable(p *plan.Plan) bool {
	return p.Kind.IsDML() || p.Kind == sqlparse.KindBegin || p.Kind == sqlparse.KindSet || p.Kind == sqlparse.KindShow
}

// allOf reports whether something holds of every statement of the message or segment in hand.
func (c *Session) allOf(holds func(*plan.Plan) bool) bool {
	for i := range c.work.parts {
		if p := c.work.parts[i].Plan; p != nil && !holds(p) {
			return false
		}
	}
	return len(c.work.parts) > 0
}

// goes reports whether the server that has ended a connection is itself being stopped, or is the primary no longer: then
// it was no operator's wish that the client's session end.
func (c *Session) goes(from place) bool {
	node, shard := from.node, from.shard
	primary := from.role == catalog.RolePrimary
	if primary && c.replaced(node, shard) {
		return true
	}
	err := c.srv.pools.Reach(node, c.user, c.db.name)
	return unreachable(err) || primary && c.replaced(node, shard)
}

// dismissed reports whether the server has ended the connection for a reason of the client's or an operator's, rather than
// because it goes itself. The client is told so in the server's words, and its session ends.
func (c *Session) dismissed(from place) bool {
	r := c.work.relay
	if len(r.Farewell) == 0 {
		return false
	}
	switch r.Field('C') {
	case pgerr.AdminShutdown:
		return r.Field('R') != "secure_read" && !c.goes(from)
	case "57P02", "57P04", pgerr.CannotConnectNow: // a crash, a dropped database, a start
		return false
	}
	return true
}

// passFarewell ends the session with what the server said.
func (c *Session) passFarewell() error {
	_ = c.conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.conn.Write(c.work.relay.AppendFarewell(nil))
	return &fatalError{errServerFatal}
}

var errServerFatal = pgerr.Fatal(pgerr.AdminShutdown, "the server has ended the connection")

// replaced reports whether a node is the serving primary of its shard no longer.
func (c *Session) replaced(node *catalog.Node, shard string) bool {
	snap := c.srv.cfg.Cluster.Snapshot()
	now := snap.ServingPrimary(shard)
	if now == nil || now.ID != node.ID {
		return true
	}
	h := snap.Health(node.ID)
	return h != nil && h.State != catalog.StateServing && h.State != catalog.StateUnknown && !h.Stale
}

// awaitReplaced waits a moment for the node to be replaced, and reports whether it is.
func (c *Session) awaitReplaced(node *catalog.Node, shard string) bool {
	for until := time.Now().Add(replacedWait); ; {
		changed := c.srv.cfg.Cluster.Changed()
		if c.replaced(node, shard) {
			return true
		}
		left := time.Until(until)
		if left <= 0 || c.pause(changed, left) != nil {
			return false
		}
	}
}

// relayFailed handles a failure to exchange with the server or the client.
func (c *Session) relayFailed(err error) error { return c.exchangeFailed(err, c.work.relay.SyncDue()) }

// exchangeFailed does, where syncs says that the client waits for ReadyForQuery.
func (c *Session) exchangeFailed(err error, syncs bool) error {
	if clientError(err) != nil {
		return err // giveBack clears up
	}
	w := c.work
	r := w.relay
	c.unparse(r.Answered())
	if r.Sent == 0 { // the client knows of nothing in it
		c.forgetSegment()
	} else {
		c.failedAt(r.Answered())
	}
	explicit := c.status != 'I' && (c.stx == nil || !c.stx.implicit)
	pinned, midFrame := c.pins, r.MidFrame()
	lost := c.describeLoss(err)
	dismissed := c.dismissed(c.place)
	if c.lease != nil {
		c.lease.Stats().NoteDown(time.Now().Add(downFor), "connection lost")
	}
	c.dropLease()
	c.leaveShards()
	c.tx.lost(c)
	c.status, c.open, c.phase, c.behind = 'I', false, phaseReady, nil
	w.ops = w.ops[:0]
	if dismissed {
		return c.passFarewell()
	}
	r.Begin()
	if midFrame || pinned != 0 { // the client can't go on
		if pinned != 0 {
			lost.Detail += " With it went what the session kept there: " + strings.Join(pinned.Reasons(), ", ") + "."
			lost.Hint = "Connect again."
		}
		return c.fatal(lost)
	}
	if explicit && lost.Code != pgerr.TransactionResolutionUnknown {
		c.stx, c.status = &shardTx{begin: "BEGIN", lost: true}, 'E' // until the client ends it
	}
	c.countError()
	c.failed = true
	w.reply = encodeError(w.reply[:0], lost)
	if w.inString { // which ends then
		return c.sendReply()
	}
	if !syncs {
		c.phase = phaseSkipping
		return c.sendReply()
	}
	return c.replyReady()
}

// forgetSegment takes back what the messages of the segment in hand have changed in the session.
func (c *Session) forgetSegment() {
	w := c.work
	if c.lease != nil {
		c.lease.SetUnnamed(0)
	}
	unnamed := false
	for i := range w.running {
		unnamed = unnamed || w.running[i].typ == 'P' && w.running[i].named == nil && w.running[i].err == nil
	}
	if len(w.running) > 0 {
		c.undo(w.runningAt)
	}
	w.running = nil
	if unnamed { // a Parse of it that fails leaves none
		c.dropUnnamed()
	}
}

// describeLoss gives the error of a statement whose connection was lost.
func (c *Session) describeLoss(err error) *pgerr.Error {
	r := c.work.relay
	if givenUp(err) {
		return c.describeGivenUp(pgerr.From(err))
	}
	name := ""
	if c.place.node != nil {
		name = c.place.node.ID
	}
	if len(r.Farewell) > 0 {
		err = errors.New("the server said: " + r.Field('M'))
	}
	undone := len(r.Farewell) > 0 && r.Field('C') == pgerr.AdminShutdown && r.Untouched() // so it says before a commit only
	commits := r.SyncDue() && (c.status == 'I' || c.mayCommit())
	return lostConnection(name, err, c.place.role == catalog.RolePrimary && commits && !undone)
}

// givenUp reports whether the gateway itself gave a connection up, because what its server says can't be passed on.
func givenUp(err error) bool { return pgerr.Code(err) == pgerr.NotImplemented }

// describeGivenUp gives the error of that. Only of what may have changed something, and may be committed, is the outcome unknown.
func (c *Session) describeGivenUp(why *pgerr.Error) *pgerr.Error {
	if c.status != 'I' && !c.mayCommit() || c.allOf(func(p *plan.Plan) bool { return p.Kind == sqlparse.KindSelect }) {
		return why
	}
	return pgerr.New(pgerr.TransactionResolutionUnknown, "%s", why.Message).
		WithDetail("Whether the statement took effect is not known: its answer could not be passed on. %s", why.Detail).
		WithHint("%s", why.Hint)
}

// commits reports whether a statement may end a transaction for good.
func commits(p *plan.Plan) bool {
	switch p.Kind {
	case sqlparse.KindCommit, sqlparse.KindPrepareTransaction, sqlparse.KindCommitPrepared:
		return true
	}
	return false
}

// mayCommit reports whether one of the statements in hand ends the transaction.
func (c *Session) mayCommit() bool { return c.anyOf(commits) }

// muffled reports whether the server doesn't say that it has cancelled a commit's wait, because the client wants no
// warnings.
func (c *Session) muffled() bool {
	level, _ := c.vars.GUC("client_min_messages")
	return strings.EqualFold(level, "error")
}

func lostConnection(node string, cause error, mayHaveRun bool) *pgerr.Error {
	if mayHaveRun {
		return pgerr.New(pgerr.TransactionResolutionUnknown, "the connection to %s was lost while a statement ran", node).
			WithDetail("Whether it took effect is not known: %v.", cause).
			WithHint("Look before you run it again.")
	}
	return pgerr.New(pgerr.ConnectionFailure, "the connection to %s was lost", node).
		WithDetail("The transaction, if one was open, is rolled back: %v.", cause).
		WithHint("Run the transaction again.")
}
