package pooler

import (
	"bytes"
	"unicode/utf8"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// query runs a Query message.
func (c *Session) query(m message) error {
	w := c.work
	c.begun = c.srv.now()
	c.setState(stateActive, c.begun)
	if err := c.runCollected(); err != nil || c.phase == phaseSkipping {
		return err
	}
	if c.phase == phaseCopying {
		return c.copyMessage(m)
	}
	if c.stx != nil && c.stx.implicit {
		if err := c.endImplicit(); err != nil {
			return c.refuseQuery(pgerr.From(err))
		}
	}
	c.beginStatement()
	text, malformed := queryText(m.body())
	if malformed != nil {
		return c.refuseQuery(c.errMalformed(text, malformed))
	}
	c.dropUnnamed() // as a Query does
	snap := c.srv.cfg.Cluster.Snapshot()
	parts, err := c.planAll(w.parts[:0], text, snap)
	if err != nil {
		return c.refuseQuery(pgerr.From(err))
	}
	raw := m.raw
	if c.asksSequenceState(parts) {
		own, err := c.withSequenceState(text, parts)
		if err == nil && own != "" {
			text, raw = []byte(own), backend.AppendQuery(nil, own)
			parts, err = c.planAll(parts[:0], text, snap)
		}
		if err != nil {
			return c.refuseQuery(pgerr.From(err))
		}
	}
	w.parts = parts
	w.text = text
	for i := range parts {
		if parts[i].Plan.Secret {
			w.text = nil
		}
	}
	if c.oneServer(text, parts, snap) {
		return c.forwardQuery(text, raw, parts, snap)
	}
	return c.runParts(text, parts, snap)
}

// planAgain runs a string whose plans are out of date.
func (c *Session) planAgain(text, raw []byte) error {
	snap := c.srv.cfg.Cluster.Snapshot()
	parts, err := c.planAll(nil, text, snap)
	if err != nil {
		return c.refuseQuery(pgerr.From(err))
	}
	c.work.parts = parts
	if c.oneServer(text, parts, snap) {
		return c.forwardQuery(text, raw, parts, snap)
	}
	return c.runParts(text, parts, snap)
}

// oneServer reports whether one server answers the whole string.
func (c *Session) oneServer(text []byte, parts []plan.Part, snap *catalog.Snapshot) bool {
	return c.allServers(parts) && c.refusedReset(parts) < 0 &&
		(len(parts) == 1 || len(snap.Shards) == 1 || !c.severalParts(text, parts, snap))
}

// planAll plans the statements of a string; one that the session has run lately, but for its literals, at once.
func (c *Session) planAll(dst []plan.Part, text []byte, snap *catalog.Snapshot) ([]plan.Part, error) {
	env := c.planEnv()
	if p := c.srv.planner.Recall(&c.memo, text, snap, env); p != nil {
		return append(dst, plan.Part{Plan: p, End: len(text)}), nil
	}
	parts, err := c.srv.planner.PlanAll(dst, text, snap, env)
	if err == nil && len(parts) == 1 {
		c.memo.Keep(parts[0].Plan, env)
	}
	return parts, err
}

// planOne plans the statement of a Parse message.
func (c *Session) planOne(text []byte) (*plan.Plan, error) {
	env, snap := c.planEnv(), c.srv.cfg.Cluster.Snapshot()
	if p := c.srv.planner.Recall(&c.memo, text, snap, env); p != nil {
		return p, nil
	}
	p, err := c.srv.planner.Plan(text, snap, env)
	if err == nil {
		c.memo.Keep(p, env)
	}
	return p, err
}

// allServers reports whether a server alone answers all parts, with the original text.
func (c *Session) allServers(parts []plan.Part) bool {
	for i := range parts {
		if !c.isServers(parts[i].Plan) {
			return false
		}
	}
	return true
}

// beginStatement prepares the session's records for a statement or segment.
func (c *Session) beginStatement() {
	c.failed, c.moves, c.work.before = false, 0, 0
	c.tx.begin(c)
	c.work.relay.Begin()
	c.work.plans, c.parsing = c.work.plans[:0], c.parsing[:0]
}

// forwardQuery sends the client's Query raw as it is, but for names of prepared statements.
func (c *Session) forwardQuery(text, raw []byte, parts []plan.Part, snap *catalog.Snapshot) error {
	sent, refused := c.nameParts(text, parts)
	if refused != nil {
		return c.refuseQuery(refused)
	}
	if len(c.work.sql.names) > 0 {
		raw = backend.AppendQuery(nil, string(sent))
	}
	role, refused := plan.AccessAll(parts, c.vars.Neki(), c.txState())
	if refused != nil {
		return c.refuseQuery(refused)
	}
	shard, refused := c.destination(text, parts, snap)
	if refused != nil {
		return c.refuseQuery(refused)
	}
	w := c.work
	c.note(parts[0].Plan)
	c.stayHome(parts)
	for attempt := 0; ; attempt++ {
		sc, err := c.connection(role, shard, snap, attempt)
		if err != nil && c.outOfDate() {
			return c.planAgain(text, raw)
		}
		if err != nil {
			return c.refuseQuery(pgerr.From(err))
		}
		if err := c.readyToListen(parts); err != nil {
			return c.refuseQuery(pgerr.From(err))
		}
		if refused, err := c.prepareFor(sc, parts); err != nil {
			return c.relayFailed(err)
		} else if refused != nil {
			return c.refuseQuery(refused)
		}
		w.relay.Expect('Q', backend.Forward)
		c.allowRetry(role, attempt)
		sc.SetUnnamed(0)
		err = w.relay.Run(sc, raw, w.answers)
		if c.tryAgain(err, &role, attempt) {
			w.relay.Begin()
			continue
		}
		if err != nil {
			return c.relayFailed(err)
		}
		if w.relay.Retry {
			return c.refuseReadOnly(true)
		}
		if w.relay.CopyIn {
			c.startCopy(false)
			return nil
		}
		return c.finish(c.srv.now())
	}
}

// destination gives the one shard that all parts go to.
func (c *Session) destination(text []byte, parts []plan.Part, snap *catalog.Snapshot) (string, *pgerr.Error) {
	shard := ""
	for i := range parts {
		c.work.values.Text = text[parts[i].Start:parts[i].End]
		to, _, err := c.target(parts[i].Plan, &c.work.values, snap)
		if err != nil {
			return "", err
		}
		if shard == "" {
			shard = to
		} else if to != "" && to != shard {
			return "", errSecondShard(shard, to)
		}
	}
	return shard, nil
}

func errSecondShard(have, want string) *pgerr.Error {
	return pgerr.New(pgerr.NotImplemented, "not implemented: [111] one statement string or transaction on two shards").
		WithDetail("It is on shard %q already; this statement goes to %q.", have, want).
		WithHint("Send the statements one by one, outside a transaction.")
}

// refuseQuery answers a Query with an error of the gateway's own. Inside a transaction the server's is made to fail too.
func (c *Session) refuseQuery(err *pgerr.Error) error {
	c.failed = true
	c.countError()
	if abortErr := c.abortTransaction(); abortErr != nil {
		return c.relayFailed(abortErr)
	}
	w := c.work
	w.reply = encodeError(w.reply[:0], err)
	return c.replyReady()
}

// replyReady sends what is in work.reply, then ReadyForQuery, outside of any server's answer.
func (c *Session) replyReady() error {
	w := c.work
	if c.open && c.lease != nil {
		if err := c.sendReply(); err != nil {
			return err
		}
		if err := c.commitSegment(); err != nil {
			return c.relayFailed(err)
		}
	}
	c.open = false
	w.reply = c.appendParameterChanges(w.reply)
	c.endStatement()
	w.reply = append(w.reply, c.takeNotifications()...)
	w.reply = appendReady(w.reply, c.status)
	_, err := c.conn.Write(w.reply)
	w.reply = w.reply[:0]
	if err != nil {
		return err
	}
	c.settle(c.srv.now())
	return nil
}

// runParts runs a string of statements of which some are not a server's: one after the other, neighbours that a server
// answers in one message. The text before and after a group is blanked, so that error positions stay right.
func (c *Session) runParts(text []byte, parts []plan.Part, snap *catalog.Snapshot) error {
	if refused := c.checkSyntax(text, parts, snap); refused != nil {
		return c.refuseQuery(refused)
	}
	own := append([]plan.Part(nil), parts...)
	c.work.parts = c.work.parts[:0]
	return c.runRest(text, own, snap)
}

// runRest runs parts of a string one after the other, then ends it. A COPY FROM STDIN among them goes on with those behind
// it when its data has come.
func (c *Session) runRest(text []byte, own []plan.Part, snap *catalog.Snapshot) error {
	c.work.inString = true
	defer c.leaveString()
	for i := 0; i < len(own) && !c.failed; {
		n, err := c.enterString(text, own[i:], snap)
		if err != nil || c.failed {
			if err != nil {
				return err
			}
			break
		}
		if resets := c.stx == nil && c.resetsOwn(own[i].Plan); c.isServers(own[i].Plan) {
			base := c.tx.base
			err = c.runAllowed(text, own[i:i+n], snap)
			if resets && c.status == 'I' && i+n < len(own) { // what the server has done of it alone is taken back with the rest
				c.tx.base = base
			}
		} else {
			err = c.runOwn(text, own[i], snap)
		}
		if err != nil {
			return err
		}
		switch i += n; {
		case c.split != nil:
			c.split.text, c.split.rest = bytes.Clone(text), own[i:]
			return nil
		case c.phase == phaseCopying:
			c.behind = &stringRest{bytes.Clone(text), own[i:]}
			return nil
		}
	}
	c.leaveString()
	if err := c.endImplicit(); err != nil {
		c.work.reply = encodeError(c.work.reply, pgerr.From(err))
	}
	return c.replyReady()
}

func (c *Session) leaveString() {
	if c.work != nil {
		c.work.inString = false
	}
}

// runAllowed runs a group up to a statement that is refused where it stands.
func (c *Session) runAllowed(text []byte, parts []plan.Part, snap *catalog.Snapshot) error {
	at := c.refusedReset(parts)
	if at != 0 {
		if at > 0 {
			parts = parts[:at]
		}
		if err := c.runGroup(text, parts, snap); err != nil || at < 0 || c.failed {
			return err
		}
	}
	return c.failPart(errResetInTx)
}

// runGroup runs neighbouring statements of a string on a server, without passing its ReadyForQuery on.
func (c *Session) runGroup(text []byte, parts []plan.Part, snap *catalog.Snapshot) error {
	sent, refused := c.nameParts(text, parts)
	role, shard := catalog.RoleUnknown, ""
	if refused == nil {
		role, refused = plan.AccessAll(parts, c.vars.Neki(), c.txState())
	}
	if refused == nil {
		shard, refused = c.destination(text, parts, snap)
	}
	if refused != nil {
		return c.failPart(refused)
	}
	c.stayHome(parts)
	sc, err := c.connection(role, shard, snap, 0)
	if err != nil {
		return c.failPart(pgerr.From(err))
	}
	if err := c.readyToListen(parts); err != nil {
		return c.failPart(pgerr.From(err))
	}
	w := c.work
	w.before = 0 // the server has the whole text
	w.parts = append(w.parts[:0], parts...)
	w.relay.Begin()
	if refused, err := c.prepareFor(sc, parts); err != nil {
		return c.relayFailed(err)
	} else if refused != nil {
		return c.failPart(refused)
	}
	w.relay.Expect('Q', backend.Forward)
	w.relay.HoldReady = true
	sc.SetUnnamed(0)
	end := parts[len(parts)-1].End + len(sent) - len(text)
	w.out = backend.AppendQuery(w.out[:0], string(blanked(sent, parts[0].Start, end)))
	if err := w.relay.Run(sc, w.out, w.answers); err != nil {
		return c.relayFailed(err)
	}
	if w.relay.CopyIn {
		c.startCopy(false)
		return nil
	}
	c.afterReady()
	c.releaseIfFree()
	return nil
}

// blanked gives text with everything outside [start, end) replaced by one blank for each character.
func blanked(text []byte, start, end int) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < start; i++ {
		if text[i]&0xC0 != 0x80 { // not the continuation of a UTF-8 character
			out = append(out, ' ')
		}
	}
	return append(out, text[start:end]...)
}

// runOwn runs one statement of a string that the gateway answers.
func (c *Session) runOwn(text []byte, part plan.Part, snap *catalog.Snapshot) error {
	w := c.work
	w.before = int32(utf8.RuneCount(text[:part.Start]))
	c.note(part.Plan)
	if c.status == 'E' && !inFailed(part.Plan) && !c.endsFailed(part.Plan) {
		return c.failPart(errFailedTx)
	}
	if c.runsCursor(part.Plan) && part.Plan.Kind != sqlparse.KindDeclare {
		if err := c.runCursor(part.Plan); err != nil {
			return c.failPart(pgerr.From(err))
		}
		return c.sendReply()
	}
	if c.answersPrepared(part.Plan) {
		return c.runPrepared(text, part, snap)
	}
	if c.spreads(part.Plan) {
		return c.spreadSimple(text, part, snap)
	}
	var err error
	if part.Plan.Route.Kind == plan.RouteVirtual {
		w.reply, err = c.virtual(w.reply, part.Plan, nil)
	} else {
		w.reply, err = c.local(w.reply, part.Plan, text[part.Start:part.End], snap)
	}
	if err != nil {
		return c.failPart(pgerr.From(err))
	}
	return c.sendReply()
}

var errFailedTx = pgerr.New(pgerr.InFailedSQLTransaction,
	"current transaction is aborted, commands ignored until end of transaction block")

// failPart answers a statement of a string with an error; the rest of the string is not run.
func (c *Session) failPart(err *pgerr.Error) error {
	c.failed = true
	c.countError()
	if abortErr := c.abortTransaction(); abortErr != nil {
		return c.relayFailed(abortErr)
	}
	w := c.work
	if err.Position > 0 && w.before > 0 {
		err = err.WithPosition(err.Position + w.before)
	}
	w.reply = encodeError(w.reply, err)
	return c.sendReply()
}

// sendReply sends what is in work.reply.
func (c *Session) sendReply() error {
	w := c.work
	if len(w.reply) == 0 {
		return nil
	}
	_, err := c.conn.Write(w.reply)
	w.reply = w.reply[:0]
	return err
}

// abortTransaction makes the server's open transaction fail, because a statement of the gateway's own in it has. A
// segment that has no Sync yet ends with it.
func (c *Session) abortTransaction() error {
	if c.lease != nil && c.open {
		return c.abortSegment()
	}
	if c.lease == nil && c.stx == nil {
		c.open = false
	}
	if c.status != 'T' || c.lease == nil {
		if c.stx != nil && c.status == 'T' {
			c.status = 'E'
		}
		return nil
	}
	_, err := c.lease.Exec("neki_abort", c.work.answers) // a syntax error
	if pgerr.Code(err) == "" {
		return err
	}
	c.status = c.lease.Status()
	return nil
}

// abortSegment has the server end the open segment with an error of which the client hears nothing.
func (c *Session) abortSegment() error {
	w := c.work
	w.relay.Begin()
	w.relay.Muted, w.relay.HoldReady = true, true
	w.plans, c.parsing = w.plans[:0], c.parsing[:0]
	c.expect('B', backend.Forward, nil)
	w.out = c.endSegment(backend.AppendFailure(w.out[:0]), 'S')
	err := w.relay.Run(c.lease, w.out, w.answers)
	w.relay.Muted = false
	if err == nil {
		c.afterReady()
	}
	return err
}

// commitSegment has the server end the open segment as a Sync does, when a statement of the gateway's own ends it.
func (c *Session) commitSegment() error {
	w := c.work
	w.relay.Begin()
	w.relay.HoldReady = true
	w.plans, c.parsing = w.plans[:0], c.parsing[:0]
	w.out = c.endSegment(w.out[:0], 'S')
	err := w.relay.Run(c.lease, w.out, w.answers)
	if err == nil {
		c.afterReady()
	}
	return err
}
