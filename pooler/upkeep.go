package pooler

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"io"
	"slices"
	"strconv"
	"strings"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/fanout"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// keeper keeps global secondary indexes with the rows that one statement changes: it reads what the legs return, then changes
// the lookup tables in the same transaction. Rows of the answer are kept until that is done.
//
// An entry is made before, and deleted after the row it leads to, in the order of commits: see shardTx.orderCommits. So
// whoever sees a row finds it by the index, whatever breaks in between.
type keeper struct {
	*spread
	up     *plan.Upkeep
	before map[string][][]byte // rows as they were, by shard and primary key; of UPDATE
	gone   []entry
	made   []entry
}

// entry is a row of a lookup table.
type entry struct {
	index  *plan.KeptIndex
	values [][]byte
	owner  string // the shard of the row that it leads to
	shard  string // its own
}

// upkeepBatch bounds the entries of one statement: servers take 65,535 parameters.
const upkeepBatch = 500

// runKept runs the legs and keeps the indexes.
func (s *spread) runKept(snap *catalog.Snapshot) error {
	k := &keeper{spread: s, up: s.plan.Spread.Upkeep}
	if k.up.Before != nil {
		if err := k.readBefore(); err != nil {
			return err
		}
	}
	for _, l := range s.legs {
		if err := k.runLeg(l); err != nil {
			return err
		}
	}
	if err := k.apply(k.gone, true, snap); err != nil {
		return err
	}
	return k.apply(k.made, false, snap)
}

// keptFormats gives the result formats of legs that return the columns of indexes behind the client's.
func (s *spread) keptFormats(u *plan.Upkeep) formats {
	f := make(formats, 0, u.Shown+len(u.Returned)+1)
	for i := range u.Shown {
		f = append(f, formatOf(s.formats, i))
	}
	for range u.Returned {
		f = append(f, 1)
	}
	if u.Fresh {
		f = append(f, 1)
	}
	return f
}

// readBefore locks and reads the rows that an UPDATE is about to change.
func (k *keeper) readBefore() error {
	texts, err := k.plan.LegTexts(k.up.Before, k.values)
	if err != nil {
		return err
	}
	reqs := make([]fanout.Request, len(texts))
	for i, t := range texts {
		m := k.lane(t.Shard)
		m.sc.SetUnnamed(0)
		reqs[i] = fanout.Request{Conn: m.sc, Out: k.request(t.SQL, formats{1})}
	}
	k.calls += int64(len(reqs))
	k.before = map[string][][]byte{}
	return readRows(k.ctx, fanout.StartInOrder(reqs), func(leg int, row [][]byte) error {
		k.before[k.rowKey(texts[leg].Shard, row)] = row
		return k.budget.Take(sizeOfRow(row))
	})
}

// rowKey tells a row of the owner from all others.
func (k *keeper) rowKey(shard string, row [][]byte) string {
	var b strings.Builder
	b.WriteString(shard)
	for _, at := range k.up.Key {
		b.WriteByte(0)
		b.WriteString(strconv.Itoa(len(row[at])))
		b.WriteByte(0)
		b.Write(row[at])
	}
	return b.String()
}

func sizeOfRow(row [][]byte) int64 {
	n := int64(64)
	for _, v := range row {
		n += int64(len(v)) + 24
	}
	return n
}

// runLeg runs a leg to its end.
func (k *keeper) runLeg(l *legNode) error {
	for {
		p, err := l.piece()
		if err == io.EOF {
			l.end()
			return nil
		}
		if err != nil {
			return err
		}
		if p.Kind != fanout.Rows {
			if err := l.other(p); err != nil {
				return err
			}
			continue
		}
		for rest := p.Data; len(rest) > 0; {
			var frame []byte
			frame, rest, _ = splitRows(rest, 1)
			if err := k.row(l.shards[p.Leg], frame); err != nil {
				return err
			}
		}
	}
}

// row takes one row that has changed.
func (k *keeper) row(shard string, frame []byte) error {
	values := rowTexts(frame)
	row := values[k.up.Shown:]
	if err := k.budget.Take(int64(len(frame)) + sizeOfRow(row)); err != nil {
		return err
	}
	if k.up.Shown > 0 {
		k.kept = append(k.kept, cutRow(frame, k.up.Shown))
	}
	if k.up.Fresh {
		last := len(row) - 1
		if !bytes.Equal(row[last], []byte{1}) {
			return nil
		}
		row = row[:last]
	}
	switch {
	case k.up.Removes:
		return k.note(&k.gone, shard, row, nil)
	case k.up.Before == nil:
		return k.note(&k.made, shard, row, nil)
	}
	old, known := k.before[k.rowKey(shard, row)]
	if !known {
		return pgerr.New(pgerr.SerializationFailure, "could not keep the global secondary indexes of table \"%s\": a row was changed by somebody else meanwhile", k.up.Owner.Name).
			WithHint("Run the transaction again.")
	}
	if err := k.note(&k.gone, shard, old, row); err != nil {
		return err
	}
	return k.note(&k.made, shard, row, old)
}

// note adds the entries for a row, but those that are the same for another.
func (k *keeper) note(to *[]entry, shard string, row, other [][]byte) error {
	for i := range k.up.Indexes {
		ix := &k.up.Indexes[i]
		values, err := ix.Entry(row)
		if err != nil && to == &k.made {
			return err
		}
		if values == nil {
			continue
		}
		if other != nil {
			if same, err := ix.Entry(other); err == nil && same != nil && slices.EqualFunc(values, same, bytes.Equal) {
				continue
			}
		}
		e := entry{index: ix, values: values, owner: shard}
		if e.shard, err = ix.Shard(values); err != nil {
			return err
		}
		*to = append(*to, e)
	}
	return nil
}

// cutRow keeps the first n values of a DataRow message.
func cutRow(frame []byte, n int) []byte {
	at := 7
	for range n {
		size := int32(binary.BigEndian.Uint32(frame[at:]))
		at += 4 + int(max(size, 0))
	}
	out := slices.Clone(frame[:at])
	binary.BigEndian.PutUint16(out[5:], uint16(n))
	binary.BigEndian.PutUint32(out[1:], uint32(at-1))
	return out
}

// nextKept gives the answer's rows.
func (s *spread) nextKept() (rows []byte, n int, err error) {
	for s.keptAt < len(s.kept) && len(rows) < replySize {
		rows = append(rows, s.kept[s.keptAt]...)
		s.kept[s.keptAt] = nil
		s.keptAt++
		n++
	}
	if n == 0 {
		return nil, 0, io.EOF
	}
	return rows, n, nil
}

// apply changes the lookup tables. Everybody does so in the same order, so that few have to wait for each other in a circle.
func (k *keeper) apply(entries []entry, remove bool, snap *catalog.Snapshot) error {
	slices.SortStableFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.shard, b.shard), cmp.Compare(a.index.Index.Name, b.index.Index.Name), slices.CompareFunc(a.values, b.values, bytes.Compare))
	})
	for len(entries) > 0 {
		n := 1
		for n < len(entries) && entries[n].shard == entries[0].shard {
			n++
		}
		if err := k.lease([]string{entries[0].shard}, snap); err != nil {
			return err
		}
		if err := k.applyOn(entries[:n], remove); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

// applyOn changes the lookup tables of one shard.
func (k *keeper) applyOn(entries []entry, remove bool) error {
	shard := entries[0].shard
	for i := range entries {
		k.c.stx.orderCommits(&entries[i], remove)
	}
	if !remove {
		_, err := k.send(shard, appendBatches(nil, entries, insertEntries))
		return err
	}
	count, err := k.send(shard, appendBatches(nil, entries, deleteEntries))
	if err != nil || count == int64(len(entries)) {
		return err
	}
	// An entry that is missing may be about to be committed by somebody whose row we have seen already. To make it
	// waits for that one; under an isolation level that can't see it then, the server says so (40001).
	out := appendBatches(nil, entries, claimEntries)
	_, err = k.send(shard, appendBatches(out, entries, deleteEntries))
	return err
}

// appendBatches appends the messages of statements that all entries are given to.
func appendBatches(dst []byte, entries []entry, write func(*plan.KeptIndex, int) string) []byte {
	for len(entries) > 0 {
		n := 1
		for n < len(entries) && n < upkeepBatch && entries[n].index == entries[0].index {
			n++
		}
		dst = appendEntries(dst, write(entries[0].index, n), entries[:n])
		entries = entries[n:]
	}
	return dst
}

// claimEntries writes the statement that makes n entries unless they are there.
func claimEntries(ix *plan.KeptIndex, n int) string {
	const unless = " ON CONFLICT DO NOTHING"
	return strings.TrimSuffix(insertEntries(ix, n), unless) + unless
}

// insertEntries writes the statement that makes n entries. Of an index that is not unique, an entry may be there already: its
// row is gone, or it is being filled.
func insertEntries(ix *plan.KeptIndex, n int) string {
	var b strings.Builder
	b.WriteString("INSERT INTO " + ix.Table() + " (" + quotedNames(ix.Columns) + ") VALUES ")
	at := 0
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteByte('(')
		for j := range ix.Columns {
			if j > 0 {
				b.WriteString(", ")
			}
			at++
			b.WriteString("$" + strconv.Itoa(at))
		}
		b.WriteByte(')')
	}
	if !ix.Index.Unique {
		b.WriteString(" ON CONFLICT DO NOTHING")
	}
	return b.String()
}

// deleteEntries writes the statement that removes n entries.
func deleteEntries(ix *plan.KeptIndex, n int) string {
	var b strings.Builder
	b.WriteString("DELETE FROM " + ix.Table() + " WHERE ")
	at := 0
	for i := range n {
		if i > 0 {
			b.WriteString(" OR ")
		}
		for j, name := range ix.Columns {
			if j > 0 {
				b.WriteString(" AND ")
			}
			at++
			b.WriteString(sqlparse.QuoteIdent(name) + " = $" + strconv.Itoa(at))
		}
	}
	return b.String()
}

func quotedNames(names []string) string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = sqlparse.QuoteIdent(name)
	}
	return strings.Join(out, ", ")
}

// appendEntries appends the messages of a statement with the values of entries as parameters.
func appendEntries(dst []byte, sql string, entries []entry) []byte {
	v := &plan.Values{Formats: []int16{1}}
	var types []uint32
	for _, e := range entries {
		types = append(types, e.index.OIDs...)
		v.Params = append(v.Params, e.values...)
	}
	dst = appendParseOf(dst, sql, types)
	dst = (&spread{values: v}).appendBind(dst, nil)
	return append(dst, 'E', 0, 0, 0, 9, 0, 0, 0, 0, 0)
}

// send runs statements for lookup tables on a shard, and gives the number of rows that they have changed.
func (k *keeper) send(shard string, out []byte) (count int64, err error) {
	m := k.lane(shard)
	m.sc.SetUnnamed(0)
	k.calls++
	legs := fanout.Start([]fanout.Request{{Conn: m.sc, Out: append(out, 'S', 0, 0, 0, 4)}}, true)
	defer legs.Close()
	for {
		p, err := legs.Next(k.ctx)
		switch {
		case err == io.EOF:
			return count, nil
		case err != nil:
			return 0, err
		case p.Kind == fanout.Failed && p.Lost:
			return 0, lostConnection(m.place.node.ID, p.Err, false)
		case p.Kind == fanout.Failed:
			return 0, k.refusal(p.Err)
		case p.Kind == fanout.Completed:
			n, _ := strconv.ParseInt(string(p.Data[bytes.LastIndexByte(p.Data, ' ')+1:]), 10, 64)
			count += n
		}
	}
}

// refusal gives a lookup table's error as one of the index: of a duplicate, as the owner's own unique constraint would.
func (k *keeper) refusal(e *pgerr.Error) *pgerr.Error {
	e = e.WithPosition(0)
	if e.Code != pgerr.UniqueViolation {
		return e
	}
	for i := range k.up.Indexes {
		g := k.up.Indexes[i].Index
		if !g.Unique || g.Lookup != e.Table || g.Schema != e.Schema {
			continue
		}
		out := *e
		out.Message = "duplicate key value violates unique constraint \"" + g.Name + "\""
		out.Table, out.Constraint = g.Owner, g.Name
		return &out
	}
	return e
}

// orderCommits notes which of an entry's shard and its row's is to commit first.
func (t *shardTx) orderCommits(e *entry, remove bool) {
	pair := [2]string{e.shard, e.owner}
	if remove {
		pair = [2]string{e.owner, e.shard}
	}
	if pair[0] != pair[1] && !slices.Contains(t.order, pair) {
		t.order = append(t.order, pair)
	}
}

// inOrder sorts members as their shards are to commit. When that goes in a circle, one that should wait does not.
func (t *shardTx) inOrder(members []*member) []*member {
	if len(t.order) == 0 {
		return members
	}
	left := slices.Clone(members)
	out := make([]*member, 0, len(left))
	for len(left) > 0 {
		at := slices.IndexFunc(left, func(m *member) bool {
			return !slices.ContainsFunc(t.order, func(p [2]string) bool {
				return p[1] == m.place.shard && p[0] != p[1] && memberOf(left, p[0]) != nil
			})
		})
		at = max(at, 0)
		out = append(out, left[at])
		left = slices.Delete(left, at, at+1)
	}
	return out
}
