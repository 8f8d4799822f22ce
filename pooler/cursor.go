package pooler

import (
	"encoding/binary"
	"io"
	"math"
	"strconv"

	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// cursor is one over rows of several shards, which the gateway has. Its rows come from the shards as FETCH asks for them; they
// are all in memory, within the statement's budget, if it can go back, outlives its transaction, or is put together by the
// engine.
type cursor struct {
	name    string
	portal  *ownPortal
	columns []byte // RowDescription
	binary  bool   // BINARY: the rows are in binary
	back    bool   // SCROLL
	hold    bool
	inTx    bool // made in the transaction that is open
	points  int  // savepoints before it
	rows    []byte
	ends    []int // of each row in rows; nil while they come as asked for
	pos     int   // rows before the next, plus one behind the last
	at      int64
}

// runsCursor reports whether the session itself runs a statement about a cursor.
func (c *Session) runsCursor(p *plan.Plan) bool {
	if p.Cursor == nil {
		return false
	}
	return c.cursors[p.Cursor.Name] != nil || p.Kind == sqlparse.KindCloseCursor && p.Cursor.All && len(c.cursors) > 0
}

// declare makes a cursor of an execution that has just been opened.
func (c *Session) declare(s *spread, outside bool) error {
	st := s.plan.Cursor
	if c.cursors[st.Name] != nil || c.stx != nil && c.stx.cursors[st.Name] != "" {
		return pgerr.New("42P03", "cursor \"%s\" already exists", st.Name)
	}
	if outside && !st.Hold {
		return pgerr.New("25P01", "DECLARE CURSOR can only be used in transaction blocks")
	}
	cur := &cursor{name: st.Name, portal: &ownPortal{spread: s}, binary: st.Binary, back: st.Scroll, hold: st.Hold, inTx: c.stx != nil}
	if c.stx != nil {
		cur.points = c.stx.savepoints()
	}
	s.portal = cur.portal
	if err := cur.open(st.Hold || st.Scroll); err != nil {
		return err
	}
	if c.cursors == nil {
		c.cursors = make(map[string]*cursor)
	}
	if len(c.cursors) >= maxStatements {
		return pgerr.New(pgerr.OutOfMemory, "too many cursors in one session")
	}
	c.cursors[st.Name] = cur
	if !s.closed {
		c.suspended = s
	}
	return nil
}

// open begins to run the query: its rows are those of now, whatever is changed before they are fetched.
func (cur *cursor) open(keep bool) error {
	s := cur.portal.spread
	var err error
	if !keep && s.plan.Spread.Spec == nil && len(s.legs) == 1 {
		cur.columns, err = s.description()
		return err
	}
	rows, err := s.all()
	if err != nil {
		return err
	}
	if cur.columns, err = s.description(); err != nil {
		return err
	}
	s.close()
	cur.rows, cur.ends = rows, make([]int, 0)
	for at := 0; at < len(rows); {
		at += int(binary.BigEndian.Uint32(rows[at+1:])) + 1
		cur.ends = append(cur.ends, at)
	}
	return nil
}

// all reads all rows into memory.
func (s *spread) all() ([]byte, error) {
	var out []byte
	for {
		rows, _, err := s.next()
		if err == io.EOF {
			return out, nil
		}
		if err == nil {
			err = s.budget.Take(int64(len(rows)))
		}
		if err != nil {
			return nil, err
		}
		out = append(out, rows...)
	}
}

// fetch runs FETCH or MOVE: give gets the rows, piece by piece.
func (c *Session) fetch(p *plan.Plan, f formats, give func(rows []byte) error) (tag string, err error) {
	cur := c.cursors[p.Cursor.Name]
	word := "FETCH "
	if p.Cursor.Move {
		word, give = "MOVE ", func([]byte) error { return nil }
	}
	formatted := func(rows []byte) error {
		rows, err := c.inFormats(rows, cur, f)
		if err != nil {
			return err
		}
		return give(rows)
	}
	var n int64
	if cur.ends == nil {
		n, err = c.fetchNext(cur, p.Cursor, formatted)
	} else {
		var rows []byte
		if rows, n, err = cur.step(p.Cursor); err == nil {
			err = formatted(rows)
		}
	}
	return word + strconv.FormatInt(n, 10), err
}

var errForwardOnly = pgerr.New(pgerr.ObjectNotInPrerequisiteState, "cursor can only scan forward").
	WithHint("Declare it with SCROLL option to enable backward scan.")

// fetchNext gives the next rows of a cursor that only goes forward.
func (c *Session) fetchNext(cur *cursor, st *sqlparse.CursorStmt, give func(rows []byte) error) (int64, error) {
	count := st.Count
	switch {
	case st.Moves == sqlparse.FetchForward && count > 0:
	case (st.Moves == sqlparse.FetchRelative || st.Moves == sqlparse.FetchAbsolute) && count > 0:
		skip := count - 1
		if st.Moves == sqlparse.FetchAbsolute {
			if skip -= cur.at; skip < 0 {
				return 0, errForwardOnly
			}
		}
		if _, err := c.take(cur, skip, func([]byte) error { return nil }); err != nil {
			return 0, err
		}
		count = 1
	default:
		return 0, errForwardOnly
	}
	return c.take(cur, count, give)
}

// take reads up to count rows of a portal.
func (c *Session) take(cur *cursor, count int64, give func(rows []byte) error) (n int64, err error) {
	p := cur.portal
	s := p.spread
	for n < count {
		rows := p.rest
		p.rest = nil
		if len(rows) == 0 {
			if s.closed {
				break
			}
			rows, _, err = s.next()
			if err == io.EOF {
				c.suspended = nil
				s.close()
				break
			}
			if err != nil {
				c.suspended = nil
				return n, s.failed(err)
			}
		}
		got := 0
		rows, p.rest, got = splitRows(rows, int(min(count-n, math.MaxInt32)))
		n += int64(got)
		cur.at += int64(got)
		if err := give(rows); err != nil {
			return n, err
		}
	}
	return n, nil
}

// step moves a cursor whose rows are in memory.
func (cur *cursor) step(st *sqlparse.CursorStmt) ([]byte, int64, error) {
	size := len(cur.ends)
	from := cur.pos
	if !cur.back && (st.Moves == sqlparse.FetchBackward || st.Count <= 0 && st.Moves != sqlparse.FetchAbsolute) {
		return nil, 0, errForwardOnly
	}
	forward := func(n int64) ([]byte, int64, error) {
		start := min(from, size)
		if n < int64(size-start) {
			cur.pos = start + int(n)
			return cur.between(start, cur.pos), n, nil
		}
		cur.pos = size
		if n > int64(size-start) || n == math.MaxInt64 {
			cur.pos = size + 1
		}
		return cur.between(start, size), int64(size - start), nil
	}
	switch st.Moves {
	case sqlparse.FetchAbsolute:
		target := st.Count
		if target < 0 {
			target += int64(size) + 1
		}
		return cur.jump(target, size)
	case sqlparse.FetchRelative:
		return cur.jump(int64(from)+st.Count, size)
	case sqlparse.FetchBackward:
		if st.Count < 0 {
			return forward(-st.Count)
		}
		return cur.backward(st.Count)
	case sqlparse.FetchForward:
	}
	switch {
	case st.Count < 0:
		return cur.backward(-st.Count)
	case st.Count == 0:
		return cur.jump(int64(from), size)
	}
	return forward(st.Count)
}

// jump goes to a row and gives it; there is none before the first and behind the last.
func (cur *cursor) jump(target int64, size int) ([]byte, int64, error) {
	if !cur.back && target <= int64(cur.pos) {
		return nil, 0, errForwardOnly
	}
	cur.pos = int(max(0, min(target, int64(size)+1)))
	if target < 1 || target > int64(size) {
		return nil, 0, nil
	}
	return cur.between(cur.pos-1, cur.pos), 1, nil
}

// backward gives the rows before the present one, the nearest first; a count of 0 gives the present one.
func (cur *cursor) backward(count int64) (out []byte, n int64, err error) {
	if count == 0 {
		return cur.jump(int64(cur.pos), len(cur.ends))
	}
	for n < count && cur.pos > 1 {
		cur.pos--
		out = append(out, cur.between(cur.pos-1, cur.pos)...)
		n++
	}
	if n < count {
		cur.pos = 0
	}
	return out, n, nil
}

// between gives the rows from start to end.
func (cur *cursor) between(start, end int) []byte {
	at := func(i int) int {
		if i == 0 {
			return 0
		}
		return cur.ends[i-1]
	}
	return cur.rows[at(start):at(end)]
}

// inFormats gives rows as the client wants them: the shards gave text, or binary.
func (c *Session) inFormats(rows []byte, cur *cursor, f formats) ([]byte, error) {
	have, cell := int16(0), datum.WireText
	if cur.binary {
		have, cell = 1, datum.WireBinary
	}
	columns := describedColumns(cur.columns)
	alike := true
	for i := range columns {
		alike = alike && formatOf(f, i) == have
	}
	if alike || len(rows) == 0 {
		return rows, nil
	}
	for i := range columns {
		if formatOf(f, i) != have && !c.readsText(columns[i].Type.OID) {
			return nil, notImplemented("[120] a cursor over shards whose column \""+columns[i].Name+"\" is asked for in another form than the shards gave it",
				"Ask for it as text, or DECLARE ... BINARY and ask for it in binary.")
		}
	}
	var out []byte
	for len(rows) > 0 {
		size := int(binary.BigEndian.Uint32(rows[1:])) + 1
		values := rowTexts(rows[:size])
		row := make([]datum.Datum, len(values))
		for i, v := range values {
			if v != nil {
				row[i] = cell(v)
			}
		}
		frame, err := encodeRow(row, columns, f, c.valueSession())
		if err != nil {
			return nil, err
		}
		out = append(out, frame...)
		rows = rows[size:]
	}
	return out, nil
}

// readsText reports whether the text of a type, as servers write it for the session, can be read here.
func (c *Session) readsText(oid uint32) bool {
	switch oid {
	case datum.DateOID, datum.TimestampOID, datum.TimestamptzOID:
		style, _ := c.shownParameter("DateStyle")
		return len(style) >= 3 && style[:3] == "ISO"
	case datum.IntervalOID:
		style, _ := c.shownParameter("IntervalStyle")
		return style == "postgres"
	}
	return datum.Known(oid)
}

// describedColumns reads a RowDescription message.
func describedColumns(message []byte) []exec.Column {
	out := describedNames(message)
	at := 7
	for i := range out {
		at += len(out[i].Name) + 1
		out[i].Type = datum.Of(binary.BigEndian.Uint32(message[at+6:]))
		at += 18
	}
	return out
}

// closeCursor is CLOSE of a cursor of the gateway's. In a transaction that goes on its rows are read to the end: a server that
// is cancelled would end the transaction.
func (c *Session) closeCursor(name string, goesOn bool) (err error) {
	s := c.cursors[name].portal.spread
	delete(c.cursors, name)
	if s.closed {
		return nil
	}
	if c.suspended == s {
		c.suspended = nil
	}
	if goesOn && !s.own {
		return s.discardRest()
	}
	s.close()
	return nil
}

// discardRest reads the rest of the answer, and gives the connections back.
func (s *spread) discardRest() error {
	for {
		_, _, err := s.next()
		if err == io.EOF {
			s.close()
			return nil
		}
		if err != nil {
			return s.failed(err)
		}
	}
}

// closeCursors closes all.
func (c *Session) closeCursors(goesOn bool) (err error) {
	for name := range c.cursors {
		if closeErr := c.closeCursor(name, goesOn); err == nil {
			err = closeErr
		}
	}
	return err
}

// endCursors closes the cursors that end with the transaction.
func (c *Session) endCursors(committed bool) {
	for name, cur := range c.cursors {
		if cur.hold && (committed || !cur.inTx) {
			cur.inTx = false
			continue
		}
		_ = c.closeCursor(name, false) // the transaction has ended: there is nothing to wait for
	}
}

// forgetCursors closes the cursors made since a savepoint, by the number of those before it.
func (c *Session) forgetCursors(points int) {
	for name, cur := range c.cursors {
		if cur.inTx && cur.points > points {
			_ = c.closeCursor(name, true) // read into memory before the savepoint was returned to
		}
	}
}

// savepoints counts those that are set.
func (t *shardTx) savepoints() int {
	n := 0
	for _, e := range t.log {
		if e.isPoint {
			n++
		}
	}
	return n
}

// runCursor answers FETCH, MOVE and CLOSE of cursors of the gateway's in the simple protocol.
func (c *Session) runCursor(p *plan.Plan) error {
	w := c.work
	if p.Kind == sqlparse.KindCloseCursor {
		if err := c.runClose(p); err != nil {
			return err
		}
		w.reply = appendComplete(w.reply, p.Tag)
		return nil
	}
	cur := c.cursors[p.Cursor.Name]
	var f formats
	if cur.binary {
		f = formats{1}
	}
	described := p.Cursor.Move
	describe := func() {
		if !described {
			w.reply = append(w.reply, cur.columns...)
		}
		described = true
	}
	tag, err := c.fetch(p, f, func(rows []byte) error {
		describe()
		w.reply = append(w.reply, rows...)
		if len(w.reply) < replySize {
			return nil
		}
		return c.sendReply()
	})
	if err != nil {
		return err
	}
	describe()
	w.reply = appendComplete(w.reply, tag)
	return nil
}

// runClose closes one cursor, or all.
func (c *Session) runClose(p *plan.Plan) error {
	if !p.Cursor.All {
		return c.closeCursor(p.Cursor.Name, true)
	}
	if err := c.closeCursors(true); err != nil || c.stx == nil {
		return err
	}
	if err := c.settleOpen(); err != nil {
		return err
	}
	if err := c.execAll(c.stx.members, "CLOSE ALL"); err != nil {
		return err
	}
	clear(c.stx.cursors)
	return nil
}

// runCursorPortal answers them in the extended protocol.
func (c *Session) runCursorPortal(p *ownPortal) error {
	if p.plan.Kind == sqlparse.KindCloseCursor {
		p.tag = p.plan.Tag
		return c.runClose(p.plan)
	}
	size := 0
	tag, err := c.fetch(p.plan, p.formats, func(rows []byte) error {
		if size += len(rows); size > spreadBudget {
			return pgerr.New(pgerr.OutOfMemory, "too many rows for one FETCH by the extended protocol").WithHint("FETCH fewer at a time.")
		}
		for len(rows) > 0 {
			n := int(binary.BigEndian.Uint32(rows[1:])) + 1
			p.rows = append(p.rows, rows[:n])
			rows = rows[n:]
		}
		return nil
	})
	p.tag = tag
	return err
}

// describeCursor gives the RowDescription of FETCH, in the formats asked for; NoData of the rest.
func (c *Session) describeCursor(p *plan.Plan, f formats) []byte {
	if p.Kind != sqlparse.KindFetch || p.Cursor.Move {
		return []byte{'n', 0, 0, 0, 4}
	}
	out := append([]byte(nil), c.cursors[p.Cursor.Name].columns...)
	at := 7
	for i := range int(binary.BigEndian.Uint16(out[5:])) {
		for out[at] != 0 {
			at++
		}
		at += 19
		binary.BigEndian.PutUint16(out[at-2:], uint16(formatOf(f, i)))
	}
	return out
}
