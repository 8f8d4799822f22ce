package pooler

import (
	"bytes"
	"encoding/binary"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/pooler/plan"
	"neki/settings"
)

// Most of what clients send is one plain statement (plan.Plan.Plain) outside of a transaction, from a session that holds
// nothing on any server. Little of what is to be asked about a statement in general can concern such a one, and most of the
// CPU that it costs here is code that the processor has to fetch again after each system call. So it goes a short way of its
// own. The short way does nothing that the usual way would not do: whatever is not as it expects, before the statement is
// sent or when it has to be sent again, is left to the usual way as if nothing had been done; and an error finds the
// messages as that would have collected them.

// resting reports whether the session holds nothing, expects nothing and goes to primaries as statements are routed.
func (c *Session) resting() bool {
	neki := c.vars.Neki()
	return c.status == 'I' && !c.open && c.phase == phaseReady && c.copied == 0 && c.lease == nil && c.home == nil &&
		c.pins == 0 && c.stx == nil && c.sub == nil && c.claimed.pid == 0 && !c.handsOver && c.suspended == nil &&
		c.split == nil && len(c.cursors) == 0 && len(c.given.current) == 0 && len(c.work.ops) == 0 &&
		!c.work.relay.Pending() && neki.Target == settings.TargetPrimary && neki.Shard == ""
}

// plain runs what the client has sent if it is one plain statement and no more; false: it is for the usual way. The session
// is resting.
func (c *Session) plain() (done bool, err error) {
	w := c.work
	rest := w.in[w.start:w.end]
	if len(rest) < 7 {
		return false, nil
	}
	switch rest[0] {
	case 'Q':
		return c.plainQuery(rest)
	case 'P', 'B':
		return c.plainSegment(rest)
	}
	return false, nil
}

// plainQuery is plain for a Query message.
func (c *Session) plainQuery(raw []byte) (done bool, err error) {
	end := len(raw) - 1
	if uint64(binary.BigEndian.Uint32(raw[1:])) != uint64(end) || raw[end] != 0 {
		return false, nil
	}
	text := raw[5:end]
	snap := c.srv.cfg.Cluster.Snapshot()
	p := c.srv.planner.RecallPlain(&c.memo, text, snap, c.planEnv())
	if p == nil {
		return false, nil
	}
	w := c.work
	shard := p.Route.Shard
	if p.Keyed() {
		w.values.Text = text
		to, several, refused := c.target(p, &w.values, snap)
		if several || refused != nil {
			return false, nil
		}
		shard = to
	}
	c.beginPlain(p, len(text))
	c.dropUnnamed() // as a Query does
	w.text = text
	sc, err := c.connection(catalog.RolePrimary, shard, snap, 0)
	if err != nil && c.outOfDate() {
		return false, nil
	}
	if err != nil {
		w.start = w.end
		return true, c.refuseQuery(pgerr.From(err))
	}
	w.relay.Expect('Q', backend.Forward)
	w.relay.Whole = true
	sc.SetUnnamed(0)
	return c.runPlain(sc, raw)
}

// beginPlain notes that p begins, of a text of the given length.
func (c *Session) beginPlain(p *plan.Plan, length int) {
	w := c.work
	c.begun = c.srv.now()
	c.setState(stateActive, c.begun)
	c.beginStatement()
	w.sql.begin()
	w.parts = append(w.parts[:0], plan.Part{Plan: p, End: length})
	w.running, w.runningAt, w.mayBeStale = nil, 0, false
	c.note(p)
}

// runPlain sends out, for what the client has sent, and passes the answer on.
func (c *Session) runPlain(sc *backend.ServerConn, out []byte) (done bool, err error) {
	w := c.work
	at := w.start
	w.start = w.end
	w.relay.Misrouted = true
	err = w.relay.Run(sc, out, w.answers)
	if err == nil && !w.relay.Retry {
		c.segment = plainSegment{}
		w.ops, w.running = w.ops[:0], nil
		return true, c.finish(c.srv.now())
	}
	c.recollect()
	role := catalog.RolePrimary
	switch {
	case c.tryAgain(err, &role, 0):
		w.start, w.ops, w.running = at, w.ops[:0], nil
		w.relay.Begin()
		return false, nil
	case err != nil:
		return true, c.relayFailed(err)
	}
	return true, c.refuseReadOnly(true)
}

// plainSegment is a plain statement's segment of the extended protocol that is being run.
type plainSegment struct {
	at    int // in the input buffer
	first int // the index of the answer to its first message; the others follow
	named *preparedStatement
	runs  bool
}

// Messages of a plain segment behind its Bind.
const (
	describePortal = "D\x00\x00\x00\x06P\x00"
	executeHead    = "E\x00\x00\x00\x09\x00" // and the row limit
	executeSize    = len(executeHead) + 4
	syncMessage    = "S\x00\x00\x00\x04"
)

// plainSegment is plain for the messages P B D E S or B D E S, D being left out or not, of which the Parse is that of the
// last unnamed statement again and all name the unnamed portal.
func (c *Session) plainSegment(raw []byte) (done bool, err error) {
	parse := 0
	if raw[0] == 'P' {
		u := &c.unnamed
		if parse = len(u.parse); u.token == 0 || len(raw) <= parse || !bytes.Equal(raw[:parse], u.parse) ||
			!c.srv.planner.Keeps(&c.memo, u.plan, c.planEnv()) {
			return false, nil
		}
	}
	bind, named, nameEnd := c.plainBind(raw[parse:])
	if bind == nil || named != nil && parse > 0 {
		return false, nil
	}
	describes, ok := plainTail(raw[parse+len(bind):])
	if !ok {
		return false, nil
	}
	p := c.unnamed.plan
	if named != nil {
		p = named.plan
	}
	snap := c.srv.cfg.Cluster.Snapshot()
	if !p.Plain() || !p.Fresh(snap, c.planEnv()) {
		return false, nil
	}
	shard := p.Route.Shard
	if p.Keyed() {
		if shard = c.plainShard(p, named, bind[nameEnd+1:]); shard == "" {
			return false, nil
		}
	}
	c.beginPlain(p, 0)
	sc, err := c.connection(catalog.RolePrimary, shard, snap, 0)
	w := c.work
	if err != nil && c.outOfDate() {
		return false, nil
	}
	if err != nil {
		w.start = w.end
		return true, c.failLocally(pgerr.From(err), 'S')
	}
	if sc.Translates() && (c.ownTypes || !p.PlainResult()) {
		return false, nil
	}
	if named != nil {
		if known, since := sc.PreparedSince(named.shared, named.at); !known || !since {
			return false, nil
		}
	}
	if parse > 0 {
		c.srv.planner.Reuse(p)
		c.unnamed.token = c.srv.nextToken()
	}
	return c.runPlain(sc, c.encodePlain(sc, raw, parse, describes, named, nameEnd))
}

// plainBind gives the Bind that b begins with, if it binds a statement to the unnamed portal, that statement if it is a named
// one, and where its name ends; nil: it is none for the short way.
func (c *Session) plainBind(b []byte) (bind []byte, named *preparedStatement, nameEnd int) {
	const nameAt = 6
	if len(b) < nameAt+1 || b[0] != 'B' || b[5] != 0 {
		return nil, nil, 0
	}
	size := uint64(binary.BigEndian.Uint32(b[1:])) + 1
	if size < nameAt+1 || size > uint64(len(b)) {
		return nil, nil, 0
	}
	bind = b[:size]
	if bind[nameAt] == 0 {
		if u := &c.unnamed; u.token == 0 || u.apart != nil || u.sent != nil {
			return nil, nil, 0
		}
		return bind, nil, nameAt
	}
	n := bytes.IndexByte(bind[nameAt:], 0)
	if n < 0 {
		return nil, nil, 0
	}
	named = c.statements[string(bind[nameAt:nameAt+n])]
	if named == nil || named.sql != nil || named.written != nil {
		return nil, nil, 0
	}
	return bind, named, nameAt + n
}

// plainTail reports whether b is an Execute of the unnamed portal and a Sync, with a Describe of that before them or not.
func plainTail(b []byte) (describes, ok bool) {
	if describes = bytes.HasPrefix(b, []byte(describePortal)); describes {
		b = b[len(describePortal):]
	}
	return describes, len(b) == executeSize+len(syncMessage) && string(b[:len(executeHead)]) == executeHead &&
		string(b[executeSize:]) == syncMessage
}

// plainShard gives the one shard that the values of a Bind route to; "" when that is not so simple. values is what follows
// the names in the message.
func (c *Session) plainShard(p *plan.Plan, named *preparedStatement, values []byte) string {
	o := &c.work.bound
	*o = op{typ: 'B', named: named, plan: p}
	c.placeBind(o, nil, &fields{rest: values})
	if o.err != nil || o.spread {
		return ""
	}
	return o.to
}

// encodePlain gives the messages of a plain segment as sc must get them, and expects their answers.
func (c *Session) encodePlain(sc *backend.ServerConn, raw []byte, parse int, describes bool, named *preparedStatement, nameEnd int) []byte {
	w := c.work
	r := w.relay
	out := raw
	first := 0
	switch {
	case parse > 0:
		r.Expect('P', backend.Forward)
		sc.SetUnnamed(c.unnamed.token)
	case named != nil:
		out = appendRenamed(w.out[:0], raw[:1+binary.BigEndian.Uint32(raw[1:])], 6, nameEnd, named.shared.Name())
		out = append(out, raw[1+binary.BigEndian.Uint32(raw[1:]):]...)
		w.out = out
	case sc.Unnamed() != c.unnamed.token:
		sc.SetUnnamed(c.unnamed.token)
		r.Expect('P', backend.Swallow)
		out = append(append(w.out[:0], c.unnamed.parse...), raw...)
		w.out, first = out, 1
	}
	r.Expect('B', backend.Forward)
	if describes {
		r.Expect('D', backend.Forward)
	}
	r.Expect('E', backend.Forward)
	r.Expect('S', backend.Forward)
	r.Whole = first == 0
	c.segment = plainSegment{at: w.start, first: first, named: named, runs: true}
	return out
}

// recollect makes of the messages of a plain segment that runs what collect would have made of them: something has failed.
func (c *Session) recollect() {
	s := c.segment
	if !s.runs {
		return
	}
	c.segment = plainSegment{}
	w := c.work
	w.ops, w.used = w.ops[:0], true
	for at := s.at; w.in[at] != 'S'; {
		end := at + 1 + int(binary.BigEndian.Uint32(w.in[at+1:]))
		o := op{typ: w.in[at], at: at, end: end, plan: w.parts[0].Plan, answer: s.first + len(w.ops)}
		if o.typ == 'B' {
			o.named = s.named
		}
		w.ops = append(w.ops, o)
		at = end
	}
	w.running, w.runningAt = w.ops, 0
}
