package pooler

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"

	admin "neki/admin_sql"
	"neki/catalog"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// ownPortal is a portal over a statement that the gateway answers. Its rows are made at the first Execute and handed out
// as row limits ask for them.
type ownPortal struct {
	plan     *plan.Plan
	text     []byte
	prepared admin.Prepared // of a statement over the neki schema
	params   []datum.Datum
	formats  formats
	ran      bool
	rows     [][]byte
	given    int
	tag      string

	// Over several shards.
	name   string
	values *plan.Values
	runs   bool    // plan is that of the prepared statement which the portal's EXECUTE runs
	spread *spread // once it runs
	asked  bool    // its columns are to be described with its rows
	rest   []byte  // rows not yet given
}

// isOwn reports whether the gateway itself answers the message, given its statement.
func (c *Session) isOwn(o *op) bool {
	switch {
	case o.typ == 'C' && o.statement, o.spread:
		return true
	case o.plan != nil && c.spreads(o.plan): // but with these values
		return o.typ == 'P' && (o.plan.Spread != nil || o.plan.Route.Kind == plan.RouteLookup)
	}
	return o.plan != nil && (o.plan.Kind == sqlparse.KindPrepare || !c.isServers(o.plan))
}

// isServers reports whether a server answers the statement: not the session, nor the neki schema.
func (c *Session) isServers(p *plan.Plan) bool {
	return (p.Route.Backend() || p.Route.Kind == plan.RouteControl) && !c.deallocates(p) && !c.runsCursor(p) && !c.answersPrepared(p) && !c.controlsOwn(p) && !c.spreads(p) && !c.everywhere(p)
}

// deallocates reports whether p is a DEALLOCATE that the session answers: servers know its statements by other names,
// and may share them with other clients.
func (c *Session) deallocates(p *plan.Plan) bool {
	if p.Kind != sqlparse.KindDeallocate {
		return false
	}
	if p.Prepared.All {
		return c.pins&plan.PinOpaque == 0
	}
	return c.knows(p.Prepared.Name)
}

func (c *Session) hasOwn(ops []op) bool {
	servers := false
	own := false
	for i := range ops {
		switch {
		case ops[i].typ == 'C' && ops[i].statement:
		case c.isOwn(&ops[i]):
			own = true
		case ops[i].err == nil, ops[i].after != nil:
			servers = true
		}
	}
	return own || !servers
}

// runMixed runs a segment in which the gateway has something to answer itself: message by message, those for a server
// in groups between.
func (c *Session) runMixed(end byte, snap *catalog.Snapshot) error {
	w := c.work
	ops := append([]op(nil), w.ops...)
	w.reply = w.reply[:0]
	if c.open && c.lease != nil && w.relay.Pending() {
		if err := c.awaitCopy(); err != nil {
			return err
		}
	}
	for i := 0; i < len(ops); {
		stop := i + 1
		var err error
		if err := c.answerDescribe(&ops[i], snap); err != nil {
			return err
		}
		if c.failed {
			c.undo(i)
			break
		}
		if ops[i].after != nil {
			w.runningAt = i
			err = c.runOps(ops[i:stop], snap)
		} else if ops[i].err == nil && !c.isOwn(&ops[i]) {
			for stop < len(ops) && ops[stop].err == nil && !c.isOwn(&ops[stop]) && c.joinsOps(ops[i:stop], &ops[stop]) {
				stop++
			}
			w.runningAt = i
			err = c.runOps(ops[i:stop], snap)
		} else {
			err = c.runOwnOp(&ops[i])
		}
		if err == nil && c.phase == phaseCopying {
			if stop == len(ops) { // the Sync behind it is ignored, as by a server
				w.ops = w.ops[:0]
				return nil
			}
			err = c.breaksCopy(&ops[stop])
		}
		if err != nil {
			return err
		}
		if c.failed {
			c.undo(stop)
			break
		}
		i = stop
	}
	w.ops = w.ops[:0]
	if err := c.answerDescribe(nil, snap); err != nil {
		return err
	}
	if err := c.sendReply(); err != nil {
		return err
	}
	switch {
	case end == 'S':
		return c.endSkipping()
	case c.failed:
		c.phase = phaseSkipping
	}
	return nil
}

// runOps sends neighbouring messages to a server and waits for their answers.
func (c *Session) runOps(ops []op, snap *catalog.Snapshot) error {
	if err := c.sendReply(); err != nil {
		return err
	}
	w := c.work
	role, shard, failAt := c.segmentPlace(ops, snap, 'H')
	sc, err := c.connection(role, shard, snap, 0)
	if err == nil {
		err = c.readyToListen(w.parts)
	}
	if err != nil {
		c.undo(w.runningAt) // nothing of it was sent: a name that its Parse gave is free
		return c.failOwn(pgerr.From(err))
	}
	w.relay.Begin()
	w.plans, c.parsing = w.plans[:0], c.parsing[:0]
	c.work.sql.begin()
	if err := c.makeReady(sc, w.parts); err != nil {
		return c.relayFailed(err)
	}
	w.running = ops
	w.out = c.encodeSegment(w.out[:0], sc, ops, failAt)
	w.out = c.endSegment(w.out, 'H')
	c.parsed = (c.parsed || !c.open) && parseOnly(ops)
	c.open = true
	if c.status == 'T' {
		c.allowRetry(role, maxAttempts)
	}
	err = w.relay.Run(sc, w.out, w.answers)
	if err != nil {
		return c.relayFailed(err)
	}
	if w.relay.Retry {
		return c.refuseReadOnly(false)
	}
	w.running = nil
	if w.relay.CopyIn {
		c.startCopy(true)
	}
	return nil
}

// breaksCopy gives a COPY that waits for data a message that has no place in it.
func (c *Session) breaksCopy(o *op) error {
	if c.split != nil {
		return c.splitMessage(message{typ: o.typ})
	}
	if err := c.endCopy(message{typ: o.typ, raw: c.work.in[o.at:o.end]}); err != nil {
		return err
	}
	return c.awaitCopy()
}

// parseOnly reports whether messages do no more than to prepare and describe statements.
func parseOnly(ops []op) bool {
	for i := range ops {
		if o := &ops[i]; o.typ != 'P' && (o.typ != 'D' || !o.statement) || o.after != nil {
			return false
		}
	}
	return true
}

// leaveParsed ends the messages that a server had without a Sync when they did no more than to prepare and describe what now
// runs on several shards: nothing of a transaction is lost.
func (c *Session) leaveParsed() error {
	if c.lease == nil || !c.open || !c.parsed || c.status != 'I' {
		return nil
	}
	if err := c.settleOpen(); err != nil {
		return err
	}
	c.parsed, c.work.plans, c.parsing = false, c.work.plans[:0], c.parsing[:0]
	c.releaseIfFree()
	return nil
}

// failOwn answers a message with an error; the rest of the segment is skipped, and what a server did of it is undone.
func (c *Session) failOwn(err *pgerr.Error) error {
	c.failed = true
	c.countError()
	w := c.work
	w.reply = encodeError(w.reply, err)
	if sendErr := c.sendReply(); sendErr != nil {
		return sendErr
	}
	if c.open && c.lease != nil { // a failing Bind aborts the implicit transaction or the block
		w.relay.Begin()
		w.plans, w.running, c.parsing = w.plans[:0], nil, c.parsing[:0]
		w.out = c.encodeFailure(w.out[:0], c.lease, &op{err: err})
		w.relay.Replacement = nil // the client has its error
		w.out = c.endSegment(w.out, 'H')
		if err := w.relay.Run(c.lease, w.out, w.answers); err != nil {
			return c.relayFailed(err)
		}
		return nil
	}
	if err := c.abortTransaction(); err != nil {
		return c.relayFailed(err)
	}
	return nil
}

// runOwnOp answers one message.
func (c *Session) runOwnOp(o *op) error {
	w := c.work
	if o.err != nil {
		if c.status == 'E' && o.err.Code == pgerr.DuplicatePreparedStatement {
			return c.failOwn(errFailedTx)
		}
		return c.failOwn(o.err)
	}
	empty := o.plan != nil && o.plan.Kind == sqlparse.KindEmpty && o.typ == 'B' // of which Postgres refuses this alone
	if c.status == 'E' && (!inFailed(o.plan) || empty) && !c.endsFailed(o.plan) && (o.typ == 'B' || o.typ == 'E' || o.typ == 'P') {
		c.undoOne(o)
		return c.failOwn(errFailedTx)
	}
	body := w.in[o.at+5 : o.end]
	var err error
	switch {
	case o.typ == 'P':
		w.reply = append(w.reply, '1', 0, 0, 0, 4)
	case o.typ == 'B':
		err = c.bindOwn(o, body)
	case o.typ == 'D' && o.statement:
		err = c.describeOwn(o)
	case o.typ == 'D':
		err = c.describeOwnPortal(body)
	case o.typ == 'E':
		err = c.executeOwn(body)
	case o.typ == 'C':
		if !o.statement {
			delete(c.ownPortals, string(body[1:len(body)-1]))
		}
		w.reply = append(w.reply, '3', 0, 0, 0, 4)
	}
	if err != nil {
		if o.typ == 'P' && o.named != nil {
			c.forget(o.named)
		}
		return c.failOwn(pgerr.From(err))
	}
	return nil
}

// unnamedOf gives the unnamed statement that a message is about.
func (c *Session) unnamedOf(o *op) *unnamedStatement {
	if o.unnamed != nil {
		return o.unnamed
	}
	return &c.unnamed
}

// sqlOf gives the text of the statement that a message is about, to be kept.
func (c *Session) sqlOf(o *op) []byte {
	if o.named != nil {
		return c.textOf(o)
	}
	return bytes.Clone(c.textOf(o))
}

func (c *Session) describeOwn(o *op) error {
	w := c.work
	var columns []column
	var params []uint32
	if o.plan.Route.Kind == plan.RouteVirtual {
		prepared, err := c.prepareVirtual(o.plan, c.appendParamTypes(nil, o))
		if err != nil {
			return err
		}
		params = prepared.ParamTypes()
		if prepared.Columns() != nil && o.plan.CopyOut == nil {
			columns = virtualColumns(prepared.Columns())
		}
	} else {
		columns = localColumns(o.plan)
	}
	if cursor := c.runsCursor(o.plan); cursor || o.plan.Kind == sqlparse.KindExecute {
		var row []byte
		var err error
		if cursor {
			row = c.describeCursor(o.plan, nil)
		} else if row, err = c.describeRun(o.plan, nil); err != nil {
			return err
		}
		w.reply = append(append(w.reply, 't', 0, 0, 0, 6, 0, 0), row...)
		return nil
	}
	start := len(w.reply)
	w.reply = append(w.reply, 't', 0, 0, 0, 0)
	w.reply = binary.BigEndian.AppendUint16(w.reply, uint16(len(params)))
	for _, oid := range params {
		w.reply = binary.BigEndian.AppendUint32(w.reply, oid)
	}
	w.reply = endMessage(w.reply, start)
	w.reply = appendDescription(w.reply, columns, nil)
	return nil
}

// appendDescription appends a RowDescription, or NoData.
func appendDescription(dst []byte, columns []column, f formats) []byte {
	if columns == nil {
		return append(dst, 'n', 0, 0, 0, 4)
	}
	return appendRowDescription(dst, columns, f)
}

func (c *Session) bindOwn(o *op, body []byte) error {
	f := fields{rest: body}
	portal, name := f.text(), f.text()
	b, err := readBound(&f, string(name), o.plan.Kind != sqlparse.KindExecute && (o.spread || o.plan.Route.Kind == plan.RouteVirtual))
	if err != nil {
		return err
	}
	p := &ownPortal{plan: o.plan, text: c.sqlOf(o), formats: b.results}
	p.name = string(portal)
	if o.spread && o.plan.Kind != sqlparse.KindExecute {
		p.values = &plan.Values{Text: p.text, Params: b.values, Formats: b.formats, OIDs: c.appendParamTypes(nil, o)}
	} else if o.plan.Route.Kind == plan.RouteVirtual {
		prepared, err := c.prepareVirtual(o.plan, c.appendParamTypes(nil, o))
		if err != nil {
			return err
		}
		if p.params, err = c.boundValues(prepared, string(name), b); err != nil {
			return err
		}
		p.prepared = prepared
	}
	if c.ownPortals == nil {
		c.ownPortals = make(map[string]*ownPortal)
	}
	c.ownPortals[string(portal)] = p
	c.work.reply = append(c.work.reply, '2', 0, 0, 0, 4)
	return nil
}

// bound is the end of a Bind message: values with their formats, and formats of the result.
type bound struct {
	formats, results formats
	values           [][]byte
}

func readBound(f *fields, statement string, parameters bool) (b bound, err error) {
	b.formats = readFormats(f)
	n := f.uint16()
	switch {
	case f.err != nil:
		return b, f.err
	case len(b.formats) > 1 && len(b.formats) != n:
		return b, pgerr.New(pgerr.ProtocolViolation, "bind message has %d parameter formats but %d parameters", len(b.formats), n)
	case n > 0 && !parameters:
		return b, errParameterCount(n, statement, 0)
	}
	for i := 0; i < n && f.err == nil; i++ {
		size := f.int32()
		if size == -1 {
			b.values = append(b.values, nil)
			continue
		}
		b.values = append(b.values, append([]byte{}, f.take(int(size))...))
	}
	b.results = readFormats(f)
	if err := f.end(); err != nil {
		return b, err
	}
	return b, nil
}

func readFormats(f *fields) formats {
	n := f.uint16()
	if len(f.rest) < 2*n {
		f.fail(errTooShort)
		return nil
	}
	list := make(formats, n)
	for i := range list {
		list[i] = int16(f.uint16())
	}
	return list
}

func errParameterCount(got int, statement string, want int) *pgerr.Error {
	return pgerr.New(pgerr.ProtocolViolation,
		"bind message supplies %d parameters, but prepared statement \"%s\" requires %d", got, statement, want)
}

func (c *Session) boundValues(prepared admin.Prepared, statement string, b bound) ([]datum.Datum, error) {
	types, values := prepared.ParamTypes(), b.values
	if len(values) != len(types) {
		return nil, errParameterCount(len(values), statement, len(types))
	}
	session := c.valueSession()
	out := make([]datum.Datum, len(values))
	for i, v := range values {
		if v == nil {
			continue
		}
		var err error
		if formatOf(b.formats, i) == 1 {
			out[i], err = datum.ParseBinary(types[i], v)
		} else {
			out[i], err = datum.ParseText(types[i], string(v), session)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (c *Session) ownPortal(name []byte) (*ownPortal, error) {
	if p := c.ownPortals[string(name)]; p != nil {
		return p, nil
	}
	return nil, pgerr.New(pgerr.InvalidCursorName, "portal \"%s\" does not exist", name)
}

func (c *Session) describeOwnPortal(body []byte) error {
	p, err := c.ownPortal(body[1 : len(body)-1])
	if err != nil {
		return err
	}
	switch {
	case p.values != nil && p.plan.Kind != sqlparse.KindCopy && p.plan.Kind != sqlparse.KindDeclare:
		p.asked, c.describing = true, p
		return nil
	case c.runsCursor(p.plan):
		c.work.reply = append(c.work.reply, c.describeCursor(p.plan, p.formats)...)
		return nil
	case p.plan.Kind == sqlparse.KindExecute:
		row, err := c.describeRun(p.plan, p.formats)
		c.work.reply = append(c.work.reply, row...)
		return err
	}
	var columns []column
	if p.prepared != nil {
		if p.prepared.Columns() != nil && p.plan.CopyOut == nil {
			columns = virtualColumns(p.prepared.Columns())
		}
	} else {
		columns = localColumns(p.plan)
	}
	c.work.reply = appendDescription(c.work.reply, columns, p.formats)
	return nil
}

// executeOwn runs a portal, up to the row limit of the message.
func (c *Session) executeOwn(body []byte) error {
	name, rest, _ := bytes.Cut(body, []byte{0})
	limit := int(int32(binary.BigEndian.Uint32(rest)))
	p, err := c.ownPortal(name)
	if err != nil {
		return err
	}
	c.note(p.plan)
	if p.plan.Kind == sqlparse.KindExecute {
		if err := c.resolveRun(p); err != nil {
			return err
		}
	}
	if p.values != nil {
		return c.executeSpread(p, limit)
	}
	w := c.work
	if p.plan.CopyOut != nil { // row limits are not for COPY
		w.reply, err = c.copyVirtual(w.reply, p.prepared, p.params, p.plan.CopyOut)
		return err
	}
	if p.ran && p.tag != "" && !p.hasRows() {
		return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "portal \"%s\" cannot be run", name)
	}
	if !p.ran {
		p.ran = true
		if p.plan.Kind == sqlparse.KindPrepare {
			p.tag = p.plan.Tag
			if !c.answersPrepared(p.plan) {
				return c.executePrepare(p)
			}
			if err := c.prepareOwn(p.plan, p.text); err != nil {
				return err
			}
			w.reply = appendComplete(w.reply, p.tag)
			return nil
		}
		if c.runsCursor(p.plan) {
			err = c.runCursorPortal(p)
		} else if p.prepared != nil {
			if err = c.setConfigs(p.plan); err == nil {
				p.rows, p.tag, err = c.runVirtual(nil, p.prepared, p.params, dataRows(p.prepared.Columns(), p.formats))
			}
		} else {
			err = c.runLocalPortal(p)
		}
		if err != nil {
			return err
		}
	}
	left := len(p.rows) - p.given
	n := left
	if limit > 0 && limit < left {
		n = limit
	}
	for _, row := range p.rows[p.given : p.given+n] {
		w.reply = append(w.reply, row...)
	}
	p.given += n
	if p.plan.Kind == sqlparse.KindFetch && !p.plan.Cursor.Move { // a tag counts the rows since the last
		p.tag = "FETCH " + strconv.Itoa(n)
	}
	switch {
	case n < left:
		w.reply = append(w.reply, 's', 0, 0, 0, 4)
	case p.tag == "":
		w.reply = append(w.reply, 'I', 0, 0, 0, 4)
	case p.prepared != nil && strings.HasPrefix(p.tag, "SELECT "): // of this Execute
		w.reply = appendComplete(w.reply, "SELECT "+strconv.Itoa(n))
	default:
		w.reply = appendComplete(w.reply, p.tag)
	}
	return nil
}

// hasRows reports whether the portal's statement gives rows: those are given once, others are run once.
func (p *ownPortal) hasRows() bool {
	switch {
	case p.prepared != nil:
		return p.prepared.Columns() != nil
	case p.plan.Kind == sqlparse.KindFetch:
		return !p.plan.Cursor.Move
	}
	return localColumns(p.plan) != nil
}

func (c *Session) runLocalPortal(p *ownPortal) error {
	a, err := c.localAnswer(p.plan, p.text, c.srv.cfg.Cluster.Snapshot())
	if err != nil {
		return err
	}
	for _, row := range a.rows {
		p.rows = append(p.rows, appendTextRow(nil, row))
	}
	p.tag = a.tag
	return nil
}
