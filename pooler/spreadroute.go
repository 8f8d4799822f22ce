package pooler

import (
	"encoding/binary"
	"slices"
	"time"

	"neki/catalog"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// keyed reports whether p's shards depend on the values of each execution, or are more than one.
func keyed(p *plan.Plan) bool { return p.Route.Kind >= plan.RouteEqual }

// spreads reports whether p may run on several shards.
func (c *Session) spreads(p *plan.Plan) bool {
	return (p.Spread != nil || p.SpreadByText) && c.vars.Neki().Shard == ""
}

// floats reports whether p may run on whichever shard the transaction is on.
func floats(p *plan.Plan) bool {
	return p.Verdict == plan.Neutral && !keyed(p) || p.Route.Kind == plan.RouteAny && p.Verdict == plan.Read
}

// target gives the one shard that an execution of p goes to: "" is wherever the session is. several means that there are
// more, or that the gateway has to work on what they give.
func (c *Session) target(p *plan.Plan, v *plan.Values, snap *catalog.Snapshot) (shard string, several bool, refused *pgerr.Error) {
	if p.Route.Kind == plan.RouteControl {
		return c.controlTarget(p), false, nil
	}
	if !keyed(p) && p.Spread == nil || c.vars.Neki().Shard != "" {
		if refused = c.guard(p, snap); refused != nil && c.vars.Neki().Shard == "" {
			return "", false, refused
		}
		if c.stx != nil && floats(p) && c.vars.Neki().Shard == "" {
			return "", false, nil
		}
		shard, refused = plan.Destination(p, c.vars.Neki(), snap)
		return shard, false, refused
	}
	if p.Spread != nil || p.Route.Kind == plan.RouteLookup {
		return "", true, nil
	}
	w := c.work
	v.Session = c.valueSession()
	shards, err := p.Shards(w.shards[:0], v)
	if err != nil {
		return "", false, pgerr.From(err)
	}
	w.shards = shards
	switch {
	case len(shards) == 1:
		return shards[0], false, nil
	case p.SpreadByText:
		return "", true, nil
	case len(shards) == 0:
		return "", false, pgerr.New(pgerr.InternalError, "the route of a statement names no shard")
	}
	return c.oneOf(shards), false, nil
}

// valueSession gives what the texts of values depend on in the session.
func (c *Session) valueSession() *datum.Session {
	if c.reading == nil || c.readBy != c.shown {
		s := &datum.Session{Zone: time.UTC, Now: time.Now()}
		if zone, ok := c.shownParameter("TimeZone"); ok {
			if z, err := datum.ParseZone(zone); err == nil {
				s.Zone = z
			}
		}
		c.reading, c.readBy = s, c.shown
	}
	return c.reading
}

// oneOf chooses among shards that would all answer alike: one where the session is already.
func (c *Session) oneOf(shards []string) string {
	for _, s := range shards {
		if c.lease != nil && c.place.shard == s || c.stx != nil && c.stx.find(s) != nil {
			return s
		}
	}
	return shards[int(c.pid)%len(shards)]
}

// controlTarget gives the shard of a statement about the connection's state: a cursor's is where it was declared.
func (c *Session) controlTarget(p *plan.Plan) string {
	if c.stx == nil {
		return ""
	}
	if p.Cursor != nil {
		if shard := c.stx.cursors[p.Cursor.Name]; shard != "" {
			return shard
		}
	}
	if c.home != nil && !p.Kind.IsTransaction() {
		return c.homed.shard
	}
	return ""
}

// anywhere gives a shard on which p's relations are, for what needs no values: Parse and Describe.
func (c *Session) anywhere(p *plan.Plan) string {
	routes := []*plan.Route{&p.Route}
	if p.Spread != nil {
		for i := range p.Spread.Legs {
			routes = append(routes, &p.Spread.Legs[i].Route)
		}
	}
	for _, r := range routes {
		switch {
		case len(r.All) > 0:
			return c.oneOf(r.All)
		case r.Shard != "":
			return r.Shard
		case len(r.Pins) > 0 && r.Pins[0].Group != nil:
			return r.Pins[0].Group.ShardOf(0)
		}
	}
	return ""
}

// portalPlace is where a portal was bound.
type portalPlace struct {
	shard  string
	spread bool
}

// placeOps finds where each message of a segment goes.
func (c *Session) placeOps(ops []op, snap *catalog.Snapshot) {
	for i := range ops {
		o := &ops[i]
		if o.err != nil || o.plan == nil {
			continue
		}
		c.placeOp(o, snap)
	}
}

func (c *Session) placeOp(o *op, snap *catalog.Snapshot) {
	switch {
	case o.placed:
	case (o.typ == 'P' || o.typ == 'D' && o.statement) && overShards(o.plan):
		o.anywhere = true
	case o.plan.Kind == sqlparse.KindExecute && c.answersPrepared(o.plan):
		o.spread = c.liesByKey(c.statements[o.plan.Runs].plan) && (o.typ == 'B' || o.typ == 'E')
	default:
		o.to, _, o.err = c.target(o.plan, &c.work.values, snap)
	}
}

// placePortal gives a message about a portal the place where that was bound.
func (c *Session) placePortal(o *op, name []byte) {
	if o.plan == nil || !overShards(o.plan) {
		return
	}
	at := c.portalAt
	if len(name) > 0 {
		at = c.portalsAt[string(name)]
	}
	o.to, o.spread, o.placed = at.shard, at.spread, true
}

// placeBind finds the shard of a Bind's values, and remembers it for the portal.
func (c *Session) placeBind(o *op, portal []byte, f *fields) {
	if !overShards(o.plan) {
		return
	}
	v := &c.work.values
	if !readBindValues(v, f) {
		o.err = pgerr.New(pgerr.ProtocolViolation, "invalid message format")
		return
	}
	v.Text = c.textOf(o)
	v.OIDs = c.appendParamTypes(c.work.oids[:0], o)
	c.work.oids = v.OIDs
	o.to, o.spread, o.err = c.target(o.plan, v, c.srv.cfg.Cluster.Snapshot())
	o.placed = true
	at := portalPlace{shard: o.to, spread: o.spread}
	if len(portal) == 0 {
		c.portalAt = at
		return
	}
	if c.portalsAt == nil {
		c.portalsAt = make(map[string]portalPlace)
	}
	if len(c.portalsAt) < maxStatements {
		c.portalsAt[string(portal)] = at
	}
}

// textOf gives the text of the statement that a message is about, for as long as the message is read.
func (c *Session) textOf(o *op) []byte {
	if o.named != nil {
		return o.named.original().Text()
	}
	text, _ := unnamedParse(c.unnamedOf(o).parse)
	return text
}

// unnamedParse gives the text in a Parse message of the unnamed statement, and what comes after: a count of types and OIDs.
func unnamedParse(parse []byte) (text, types []byte) {
	f := fields{rest: parse[5:]}
	f.text() // the name
	text = f.text()
	return text, f.rest
}

// readBindValues reads the parameters of a Bind behind its names, without copying them; false: it is malformed.
func readBindValues(v *plan.Values, f *fields) bool {
	v.Params, v.Formats = v.Params[:0], v.Formats[:0]
	for n := f.uint16(); n > 0 && f.err == nil; n-- {
		v.Formats = append(v.Formats, int16(f.uint16()))
	}
	for n := f.uint16(); n > 0 && f.err == nil; n-- {
		size := int(f.int32())
		if size < 0 {
			v.Params = append(v.Params, nil)
			continue
		}
		value := f.take(size)
		v.Params = append(v.Params, value[:len(value):len(value)])
	}
	return f.err == nil
}

// appendParamTypes appends the parameter types that the statement's Parse named.
func (c *Session) appendParamTypes(dst []uint32, o *op) []uint32 {
	var types []byte
	if o.named != nil {
		types = o.named.original().Types()
	} else {
		_, types = unnamedParse(c.unnamedOf(o).parse)
	}
	for i := range int(binary.BigEndian.Uint16(types)) {
		dst = append(dst, binary.BigEndian.Uint32(types[2+4*i:]))
	}
	return dst
}

// several reports whether the messages of a segment go to more than one place, or are more than a server can answer.
func (c *Session) several(ops []op) bool {
	shard := ""
	var alone, other *plan.Plan
	for i := range ops {
		o := &ops[i]
		if o.spread {
			return true
		}
		switch {
		case o.plan == nil:
		case !c.standsAlone(o.plan):
			other = o.plan
		case alone != nil && alone != o.plan:
			return true
		default:
			alone = o.plan
		}
		if o.err != nil || o.to == "" {
			continue
		}
		if shard != "" && o.to != shard {
			return true
		}
		shard = o.to
	}
	return alone != nil && other != nil
}

// followCursor remembers where a cursor is.
func (t *shardTx) followCursor(p *plan.Plan, shard string) {
	if p.Kind != sqlparse.KindDeclare || p.Cursor == nil {
		return
	}
	if t.cursors == nil {
		t.cursors = make(map[string]string)
	}
	t.cursors[p.Cursor.Name] = shard
}

// severalParts reports whether the statements of a string go to more than one place.
func (c *Session) severalParts(text []byte, parts []plan.Part, snap *catalog.Snapshot) bool {
	if len(snap.Shards) == 1 {
		return false
	}
	shard := ""
	for i := range parts {
		p := parts[i].Plan
		if c.standsAlone(p) || c.spreads(p) {
			return true
		}
		c.work.values.Text = text[parts[i].Start:parts[i].End]
		to, several, err := c.target(p, &c.work.values, snap)
		if err != nil {
			continue
		}
		if several || to != "" && shard != "" && to != shard {
			return true
		}
		if to != "" {
			shard = to
		}
	}
	return false
}

// joins reports whether a statement can go to a server in one message with those before it.
func (c *Session) joins(text []byte, group []plan.Part, next plan.Part, snap *catalog.Snapshot) bool {
	if len(snap.Shards) == 1 {
		return true
	}
	return !c.severalParts(text, append(group[:len(group):len(group)], next), snap)
}

// joinsOps reports whether a message can go to a server together with those before it.
func (c *Session) joinsOps(group []op, next *op) bool {
	return !c.several(append(group[:len(group):len(group)], *next))
}

// opShard gives the shard of a message.
func (c *Session) opShard(o *op, snap *catalog.Snapshot) (string, *pgerr.Error) {
	if len(snap.Shards) > 1 && o.runs == nil {
		return o.to, nil
	}
	shard, _, err := c.target(o.plan, &c.work.values, snap)
	return shard, err
}

// anywhereOf gives a shard for messages that need none in particular, but the relations they name.
func (c *Session) anywhereOf(ops []op) string {
	for i := range ops {
		if o := &ops[i]; o.anywhere && o.plan != nil {
			return c.anywhere(o.plan)
		}
	}
	return ""
}

// mayReachOthers reports whether a segment runs a statement on the shard of its keys, outside of a transaction, to which
// messages may follow that go to other shards: there is no Sync yet.
func (c *Session) mayReachOthers(ops []op) bool {
	if c.status != 'I' || c.stx != nil || c.open && !c.parsed {
		return false
	}
	return slices.ContainsFunc(ops, func(o op) bool { return o.typ == 'E' && o.err == nil && o.plan != nil && overShards(o.plan) })
}

// joinSegment begins a transaction for a segment that goes to several places, if it is not in one. One statement alone
// sees to that itself.
func (c *Session) joinSegment(ops []op, end byte) {
	if c.leaveParsed() != nil { // the connection is lost, and with it nothing but what is parsed again
		c.open = false
	}
	if c.status != 'I' || c.open || c.stx != nil {
		return
	}
	executes, reads := 0, true
	for i := range ops {
		if o := &ops[i]; o.typ == 'E' && o.plan != nil {
			executes++
			reads = reads && o.plan.Proven()
		}
	}
	if executes < 2 && end == 'S' {
		return
	}
	c.beginImplicit()
	if reads && end == 'S' {
		c.tx.state = plan.TxReadOnly
	}
}
