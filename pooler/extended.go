package pooler

import (
	"bytes"
	"encoding/binary"
	"strconv"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// op is one collected message of the extended protocol.
type op struct {
	typ       byte
	statement bool // D and C: of a statement, not a portal
	at, end   int  // of the message in the input buffer
	nameAt    int  // of the statement's name in the message: where it is replaced
	nameEnd   int
	named     *preparedStatement // the named statement it is about
	unnamed   *unnamedStatement  // the unnamed one it is about, if that is kept apart
	runs      *preparedStatement // its text is an EXECUTE of this; nil also when there is none of the name
	plan      *plan.Plan         // of the statement it is about; nil when there is none
	err       *pgerr.Error       // it fails, before any server is asked
	to        string             // the shard, where there are several; "": wherever the session is
	anywhere  bool               // any shard that has the relations will do
	spread    bool               // it is about a portal over several shards
	placed    bool               // to and spread are known
	after     []byte             // a Parse whose failure comes before err
	answer    int                // the index of its answer among those expected; -1: no server was asked
	replaced  replaced
}

// replaced is what a message took the place of when it was collected: it comes back if the message is skipped because
// of an error before it.
type replaced struct {
	unnamed   int                // a Parse or Close of the unnamed statement: where in work.replaced, from 1
	statement *preparedStatement // a Close of a named one
	portal    *plan.Plan         // a Bind or Close of a portal: what its name stood for
	name      string             // of the portal
}

// unnamedStatement is a client's unnamed statement. Its Parse message is kept, because the next transaction may run on
// another connection.
type unnamedStatement struct {
	parse []byte
	plan  *plan.Plan
	token uint64 // tells it from any other client's, and from an earlier one

	// apart is it again, for the messages of a segment, in which others may follow it: if its text runs a prepared
	// statement, or the gateway answers it.
	apart   *unnamedStatement
	sent    []byte             // in place of parse, when the text runs a prepared statement
	spelled *preparedStatement // whose name sent has
}

// segmentLimit is how much of a segment is collected before it is sent without waiting for its Sync.
const segmentLimit = 256 << 10

// collect notes a message of the extended protocol. Nothing is sent before a Sync or Flush: a segment goes out in one
// write, and where it goes depends on all of it.
func (c *Session) collect(m message) error {
	w := c.work
	c.beginSegment()
	if m.typ == 'P' && len(m.body()) > 0 && m.body()[0] == 0 && usesUnnamed(w.ops) {
		// The messages collected are about the unnamed statement that this one replaces.
		if err := c.runSegment('H'); err != nil || c.phase != phaseReady {
			return err
		}
	}
	if changesNames(w.ops) { // what this one is about may depend on it
		if err := c.runSegment('H'); err != nil || c.phase == phaseSkipping {
			return err
		}
		if c.phase == phaseCopying {
			return c.copyMessage(m)
		}
		c.beginSegment()
	}
	w.ops = append(w.ops, op{typ: m.typ, at: m.at, end: m.at + len(m.raw), answer: -1})
	o := &w.ops[len(w.ops)-1]
	if err := c.read(o, m.body()); err != nil {
		o.err = err
	}
	if m.at+len(m.raw)-w.ops[0].at > segmentLimit {
		return c.runSegment('H')
	}
	return nil
}

// changesNames reports whether the last of the messages collected runs a statement that makes or drops prepared ones.
func changesNames(ops []op) bool {
	if len(ops) == 0 {
		return false
	}
	o := &ops[len(ops)-1]
	if o.typ != 'E' || o.plan == nil {
		return false
	}
	switch o.plan.Kind {
	case sqlparse.KindPrepare, sqlparse.KindDeallocate, sqlparse.KindDiscard:
		return true
	}
	return false
}

// beginSegment notes the first message that is collected.
func (c *Session) beginSegment() {
	w := c.work
	if len(w.ops) > 0 {
		return
	}
	c.begun = c.srv.now()
	c.setState(stateActive, c.begun)
	w.forgetReplaced()
	if !w.relay.Pending() && !c.open {
		c.beginStatement()
	}
}

// usesUnnamed reports whether a collected message is about an unnamed statement that was parsed before them.
func usesUnnamed(ops []op) bool {
	for i := range ops {
		o := &ops[i]
		if o.typ == 'P' && o.named == nil {
			return false
		}
		if o.named == nil && o.plan != nil && (o.typ == 'B' || o.typ == 'D' && o.statement) {
			return true
		}
	}
	return false
}

// read understands a message as far as routing needs it. The error is the one that the message itself fails with.
func (c *Session) read(o *op, body []byte) *pgerr.Error {
	f := fields{rest: body}
	switch o.typ {
	case 'P':
		return c.readParse(o, &f)
	case 'B':
		return c.readBind(o, &f)
	case 'D', 'C':
		return c.readTarget(o, &f)
	}
	name := c.name(&f)
	f.int32()
	if err := f.end(); err != nil {
		return err
	}
	o.plan = c.portalPlan(name)
	c.placePortal(o, name)
	return nil
}

// readParse plans the statement of a Parse and keeps it under its name.
func (c *Session) readParse(o *op, f *fields) *pgerr.Error {
	body := f.rest
	name, text := c.name(f), f.text()
	types := f.rest
	f.take(4 * f.uint16())
	if err := f.end(); err != nil {
		return c.errMalformed(text, err)
	}
	c.noteParamTypes(types)
	if len(name) == 0 {
		return c.readUnnamed(o, body, text)
	}
	p, err := c.planOne(text)
	if err != nil {
		return c.errMalformed(text, pgerr.From(err))
	}
	o.plan = p
	if _, ok := c.statements[string(name)]; ok {
		if c.isServers(p) {
			o.after = appendRenamed(nil, c.work.in[o.at:o.end], 5, 5+len(name), nil)
		}
		return pgerr.New(pgerr.DuplicatePreparedStatement, "prepared statement \"%s\" already exists", name)
	}
	if err := c.tooManyStatements(0); err != nil {
		return err
	}
	o.named = &preparedStatement{
		name: string(name), shared: c.srv.prepared.Intern(text, types, c.scope()), plan: p, at: c.srv.nextToken(),
	}
	c.keep(o.named)
	return nil
}

// readUnnamed plans the unnamed statement and keeps its Parse. The one before it is gone even if this one fails.
func (c *Session) readUnnamed(o *op, body, text []byte) *pgerr.Error {
	c.replaceUnnamed(o)
	p, err := c.planOne(text)
	if err != nil {
		return c.errMalformed(text, pgerr.From(err))
	}
	o.plan = p
	u := &c.unnamed
	u.parse = append(append(u.parse[:0], 'P', 0, 0, 0, 0), body...)
	binary.BigEndian.PutUint32(u.parse[1:], uint32(len(body)+4))
	u.plan, u.token, u.apart = p, c.srv.nextToken(), nil
	if p.Runs != "" || c.isOwn(o) {
		u.apart = &unnamedStatement{parse: bytes.Clone(u.parse), plan: p, token: u.token}
	}
	o.unnamed = u.apart
	return nil
}

// scope is what the meaning of a statement's text depends on when it is prepared. A server refuses to run a prepared
// statement whose columns have changed since; so no client gets one that was prepared before the last change.
func (c *Session) scope() string {
	path, _ := c.vars.GUC("search_path")
	if n := c.db.changes.Load(); n > 0 {
		path += "\x00" + strconv.FormatUint(n, 36)
	}
	return path
}

// maxStatements bounds the named statements of one client.
const maxStatements = 10_000

func (c *Session) readBind(o *op, f *fields) *pgerr.Error {
	portal := c.name(f)
	o.nameAt = 5 + len(portal) + 1
	name := c.name(f)
	o.nameEnd = o.nameAt + len(name)
	if f.err != nil {
		return f.err
	}
	if err := c.refer(o, name); err != nil {
		return err
	}
	if err := c.refuseSequenceState(o.plan); err != nil {
		return err
	}
	o.replaced.portal = c.portalPlan(portal)
	if o.replaced.portal != nil && len(portal) > 0 {
		o.replaced.name = string(portal)
	}
	c.setPortal(portal, o.plan)
	c.placeBind(o, portal, f)
	return nil
}

// refer finds the statement that an op names.
func (c *Session) refer(o *op, name []byte) *pgerr.Error {
	if len(name) == 0 {
		if c.unnamed.token == 0 {
			return pgerr.New(pgerr.InvalidSQLStatementName, "unnamed prepared statement does not exist")
		}
		o.unnamed = c.unnamed.apart
		c.unnamed.plan = c.replan(c.unnamed.plan, o)
		o.plan = c.unnamed.plan
		return nil
	}
	s, ok := c.statements[string(name)]
	if !ok {
		return noPrepared(string(name))
	}
	o.named = s
	s.plan = c.replan(s.plan, o)
	o.plan = s.plan
	return nil
}

// replan gives the plan of a statement that was prepared earlier as it would be now: functions may have become known
// since, or tables been moved. One that can't be planned any more keeps the plan it has.
func (c *Session) replan(p *plan.Plan, o *op) *plan.Plan {
	snap, env := c.srv.cfg.Cluster.Snapshot(), c.planEnv()
	if p.Fresh(snap, env) {
		return p
	}
	if fresh, err := c.srv.planner.Plan(c.sqlOf(o), snap, env); err == nil {
		return fresh
	}
	return p
}

func (c *Session) setPortal(name []byte, p *plan.Plan) {
	if len(name) == 0 {
		c.portal = p
		return
	}
	if c.portals == nil {
		c.portals = make(map[string]*plan.Plan)
	}
	if len(c.portals) < maxStatements {
		c.portals[string(name)] = p
	}
}

func (c *Session) portalPlan(name []byte) *plan.Plan {
	if len(name) == 0 {
		return c.portal
	}
	return c.portals[string(name)]
}

// readTarget reads a Describe or Close.
func (c *Session) readTarget(o *op, f *fields) *pgerr.Error {
	kind, name := f.byte(), c.name(f)
	if err := f.end(); err != nil {
		return err
	}
	switch {
	case kind == 'S' && o.typ == 'D':
		o.statement = true
		o.nameAt, o.nameEnd = 6, 6+len(name)
		return c.refer(o, name)
	case kind == 'S':
		o.statement = true
		c.closeStatement(o, name)
		return nil
	case kind == 'P':
		o.plan = c.portalPlan(name)
		c.placePortal(o, name)
		if o.typ == 'C' {
			o.replaced.portal, o.replaced.name = o.plan, string(name)
			c.dropPortal(name)
		}
		return nil
	case o.typ == 'D':
		return pgerr.New(pgerr.ProtocolViolation, "invalid DESCRIBE message subtype %d", kind)
	}
	return pgerr.New(pgerr.ProtocolViolation, "invalid CLOSE message subtype %d", kind)
}

func (c *Session) closeStatement(o *op, name []byte) {
	if len(name) == 0 {
		c.replaceUnnamed(o)
		return
	}
	o.replaced.statement = c.statements[string(name)]
	delete(c.statements, string(name))
}

// runSegment runs what was collected, up to a Sync ('S') or a Flush ('H').
func (c *Session) runSegment(end byte) error {
	w := c.work
	if len(w.ops) == 0 && !w.relay.Pending() && (end == 'H' || !c.open) {
		if end == 'H' { // nothing is held back
			return nil
		}
		w.relay.Begin()
		return c.endSkipping()
	}
	snap := c.srv.cfg.Cluster.Snapshot()
	if len(snap.Shards) > 1 {
		c.placeOps(w.ops, snap)
		if c.several(w.ops) || c.stx != nil && c.stx.implicit || end == 'H' && c.mayReachOthers(w.ops) {
			c.joinSegment(w.ops, end)
			return c.runMixed(end, snap)
		}
	}
	if c.hasOwn(w.ops) {
		return c.runMixed(end, snap)
	}
	c.parsing = c.parsing[:0]
	c.work.sql.begin()
	role, shard, failAt := c.segmentPlace(w.ops, snap, end)
	if failAt == 0 && w.ops[0].after == nil && !c.open && c.status != 'T' && !w.relay.Pending() {
		return c.failLocally(w.ops[0].err, end)
	}
	for attempt := 0; ; attempt++ {
		sc, err := c.connection(role, shard, snap, attempt)
		if err != nil && c.outOfDate() {
			for i := range w.ops {
				if o := &w.ops[i]; o.plan != nil {
					o.plan = c.replan(o.plan, o)
				}
			}
			return c.runSegment(end)
		}
		if err != nil {
			return c.failLocally(pgerr.From(err), end)
		}
		if err := c.readyToListen(w.parts); err != nil {
			return c.failLocally(pgerr.From(err), end)
		}
		if err := c.makeReady(sc, w.parts); err != nil {
			c.undo(0) // nothing of it was sent
			return c.relayFailed(err)
		}
		w.running, w.runningAt = w.ops, 0
		w.out = c.encodeSegment(w.out[:0], sc, w.ops, failAt)
		w.out = c.endSegment(w.out, end)
		if end == 'S' && !c.open {
			c.allowRetry(role, attempt)
			w.relay.Healable = w.mayBeStale && attempt == 0 && c.status == 'I'
		}
		c.parsed = (c.parsed || !c.open) && parseOnly(w.ops)
		c.open = c.open || end == 'H' // whatever comes of it
		err = w.relay.Run(sc, w.out, w.answers)
		if err == nil && w.relay.Stale {
			c.heal(sc)
			continue
		}
		if end == 'S' && !c.open && c.tryAgain(err, &role, attempt) {
			w.relay.Begin()
			w.plans, c.parsing = w.plans[:0], c.parsing[:0]
			c.work.sql.begin()
			continue
		}
		if err != nil {
			return c.relayFailed(err)
		}
		if w.relay.Retry {
			return c.refuseReadOnly(true)
		}
		w.running = nil
		return c.segmentDone(end)
	}
}

// endSegment appends the Sync or Flush.
func (c *Session) endSegment(out []byte, end byte) []byte {
	out = append(out, end, 0, 0, 0, 4)
	if end == 'S' {
		c.expect('S', backend.Forward, nil)
	}
	return out
}

// segmentDone goes on after a segment's answers.
func (c *Session) segmentDone(end byte) error {
	w := c.work
	w.ops = w.ops[:0]
	if w.relay.CopyIn {
		c.open = true
		c.startCopy(true)
		return nil
	}
	if end == 'S' {
		c.open = false
		return c.finish(c.srv.now())
	}
	c.open = true
	if c.failed {
		c.phase = phaseSkipping
	}
	c.endActive()
	return nil
}

// segmentPlace decides where the segment goes: by all its statements together, since they are one transaction. failAt is
// the op that fails without a server, or -1.
func (c *Session) segmentPlace(ops []op, snap *catalog.Snapshot, end byte) (role catalog.Role, shard string, failAt int) {
	w := c.work
	w.parts, w.executed = w.parts[:0], w.executed[:0]
	failAt = -1
	neki := c.vars.Neki()
	var placed *plan.Plan // by the op before: most segments are about one statement
	for i := range ops {
		o := &ops[i]
		c.findRun(o)
		if o.err == nil && o.plan != nil && (o.plan != placed || len(snap.Shards) > 1) {
			to, err := c.opShard(o, snap)
			switch {
			case err != nil:
				o.err = err
			case shard == "":
				shard = to
			case to != "" && to != shard:
				o.err = errSecondShard(shard, to)
			}
		}
		if o.err == nil && o.typ == 'E' && o.plan != nil {
			if _, err := plan.Access(o.plan, neki, c.txState()); err != nil {
				o.err = err
			}
			w.executed = append(w.executed, plan.Part{Plan: o.plan})
			if c.refusedReset(w.executed) >= 0 {
				o.err = errResetInTx
			}
		}
		if o.err != nil {
			failAt = i
			break
		}
		if o.plan != nil && (o.typ == 'P' || o.typ == 'B' || o.typ == 'E') {
			w.parts = append(w.parts, plan.Part{Plan: o.plan})
			if o.plan != placed {
				c.note(o.plan)
			}
		}
		placed = o.plan
	}
	c.stayHome(w.parts)
	if shard == "" && len(snap.Shards) > 1 {
		shard = c.anywhereOf(ops)
	}
	return c.segmentRole(w.parts, end), shard, failAt
}

// failLocally answers with an error although no server was asked for anything in this segment.
func (c *Session) failLocally(err *pgerr.Error, end byte) error {
	w := c.work
	c.failed = true
	c.countError()
	drops := len(w.ops) > 0 && w.ops[0].err == err && w.ops[0].replaced.unnamed > 0
	c.undo(0)
	if drops { // a Parse of the unnamed statement that fails leaves none
		c.dropUnnamed()
	}
	if abortErr := c.abortTransaction(); abortErr != nil {
		return c.relayFailed(abortErr)
	}
	w.reply = encodeError(w.reply[:0], err)
	if end == 'S' {
		return c.replyReady()
	}
	c.phase = phaseSkipping
	return c.sendReply()
}

// endSkipping takes the Sync that ends a failed segment.
func (c *Session) endSkipping() error {
	c.phase = phaseReady
	w := c.work
	if c.stx != nil && c.stx.implicit {
		return c.endImplicitSegment()
	}
	if !c.open || c.lease == nil {
		c.open = false
		return c.replyReady()
	}
	w.relay.Begin()
	w.plans = w.plans[:0]
	c.expect('S', backend.Forward, nil)
	w.out = append(w.out[:0], 'S', 0, 0, 0, 4)
	if err := w.relay.Run(c.lease, w.out, w.answers); err != nil {
		return c.relayFailed(err)
	}
	c.open = false
	return c.finish(c.srv.now())
}

// expect adds an expected answer with the plan of the statement it is about.
func (c *Session) expect(kind byte, act backend.Act, p *plan.Plan) {
	w := c.work
	i := w.relay.Expect(kind, act)
	for len(w.plans) <= i {
		w.plans = append(w.plans, nil)
	}
	w.plans[i] = p
}

// functionCall passes a FunctionCall on: what the function does is unknown, so it goes to the primary.
func (c *Session) functionCall(m message) error {
	w := c.work
	c.begun = c.srv.now()
	c.setState(stateActive, c.begun)
	if err := c.runCollected(); err != nil || c.phase == phaseSkipping {
		return err
	}
	if c.phase == phaseCopying {
		return c.copyMessage(m)
	}
	c.beginStatement()
	if t := c.vars.Neki().Target; !t.Writes() {
		return c.refuseQuery(pgerr.New(pgerr.ReadOnlySQLTransaction,
			"cannot execute a function call in a read-only transaction").
			WithDetail("The session's __neki.target is %s, and what the function does is not known.", t).
			WithHint("Call the function in a SELECT."))
	}
	snap := c.srv.cfg.Cluster.Snapshot()
	shard := ""
	if len(snap.Shards) > 1 { // a function's OID is that of the shard whose types clients know
		shard = homeShard(snap)
	}
	sc, err := c.connection(catalog.RolePrimary, shard, snap, 0)
	if err != nil {
		return c.refuseQuery(pgerr.From(err))
	}
	c.expect('F', backend.Forward, nil)
	c.pins |= plan.PinOpaque
	if err := w.relay.Run(sc, m.raw, w.answers); err != nil {
		return c.relayFailed(err)
	}
	return c.finish(c.srv.now())
}
