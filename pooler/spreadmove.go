package pooler

import (
	"io"
	"slices"
	"strconv"
	"strings"

	"neki/catalog"
	"neki/exec"
	"neki/internal/pgerr"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// moveBatch is how many bytes of rows one INSERT has, when there may be several.
const moveBatch = 1 << 20

// mover makes INSERTs of the rows of a query.
type mover struct {
	*spread
	move    *plan.MoveRows
	columns []exec.Column
	types   []string // their names
	texts   []*shardRows
	rows    int
	waiting [][]byte // DataRow messages that lack the columns which the INSERT leaves out
	took    int64    // of the budget, for them
}

// shardRows is what one shard gets: texts of rows, in batches.
type shardRows struct {
	shard   string
	batches []*strings.Builder
}

// moveRows runs the query of an INSERT ... SELECT, and makes legs that insert its rows, which are in memory meanwhile, within
// the statement's budget.
func (s *spread) moveRows(snap *catalog.Snapshot) error {
	m := &mover{spread: s, move: s.plan.Spread.Move}
	query := &spread{
		c: s.c, plan: m.move.Query, values: s.values, budget: s.budget, role: s.role, session: s.session, ctx: s.ctx,
		measured: s.measured.ofQuery(), cancel: func() {}, unwatch: func() {},
	}
	defer query.close()
	if err := query.prepare(snap); err != nil {
		return err
	}
	if err := m.read(query); err != nil {
		return err
	}
	query.close() // its connections are free for the sequences
	if err := m.complete(snap); err != nil {
		return err
	}
	if m.rows == 0 {
		m.none()
	}
	return m.makeLegs(snap)
}

// read reads the query's rows.
func (m *mover) read(query *spread) error {
	for {
		rows, _, err := query.next()
		if err != nil && err != io.EOF {
			return err
		}
		if m.columns == nil {
			if err := m.describe(query); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		for len(rows) > 0 {
			var row []byte
			row, rows, _ = splitRows(rows, 1)
			if err := m.take(row); err != nil {
				return err
			}
		}
	}
}

// take gives a row to its shards, or keeps it until it can be completed.
func (m *mover) take(row []byte) error {
	if len(m.move.Left) == 0 {
		return m.add(rowTexts(row))
	}
	if err := m.budget.Take(int64(len(row))); err != nil {
		return err
	}
	m.took += int64(len(row))
	m.waiting = append(m.waiting, row)
	return nil
}

// complete gives the rows that were kept to their shards, with the values of the columns that are left out.
func (m *mover) complete(snap *catalog.Snapshot) error {
	given := make([][]int64, len(m.move.Left))
	for i, l := range m.move.Left {
		if l.Sequence == (plan.Relation{}) || len(m.waiting) == 0 {
			continue
		}
		values, err := m.takeSequence(l.Sequence, l.Shard, len(m.waiting), snap)
		if err != nil {
			return err
		}
		given[i] = values
		m.c.given.gave(SequenceName{m.c.db.name, l.Sequence.Schema, l.Sequence.Name}, values[len(values)-1])
	}
	for i, row := range m.waiting {
		values := rowTexts(row)
		for j, l := range m.move.Left {
			if given[j] != nil {
				values = append(values, strconv.AppendInt(nil, given[j][i], 10))
			} else {
				values = append(values, m.values.Eval[l.Eval])
			}
		}
		if err := m.add(values); err != nil {
			return err
		}
	}
	m.budget.Give(m.took)
	m.waiting = nil
	return nil
}

// describe finds the types of the query's columns.
func (m *mover) describe(query *spread) error {
	d, err := query.description()
	if err != nil {
		return err
	}
	m.columns = describedColumns(d)
	table, err := m.c.planEnv().Relations().Table()
	if err != nil {
		return err
	}
	for i, c := range m.columns {
		name := plan.TypeName(table, c.Type.OID)
		if name == "" {
			return notImplemented("[208] INSERT ... SELECT over shards of column \""+c.Name+"\", whose type the gateway can't name", "Cast it to text, or to another type.")
		}
		if i < len(m.move.Untyped) && m.move.Untyped[i] {
			name = ""
		}
		m.types = append(m.types, name)
	}
	for _, l := range m.move.Left {
		m.types = append(m.types, l.Type)
	}
	if m.move.Index != nil && m.move.Key.At < len(m.columns) {
		return m.move.CheckKey(m.columns[m.move.Key.At].Type.OID)
	}
	return nil
}

// add gives a row to its shards.
func (m *mover) add(values [][]byte) error {
	m.rows++
	shards := m.move.Shards
	if m.move.Index != nil {
		if m.move.Key.At >= len(values) {
			return pgerr.New(pgerr.NotNullViolation, "null value in column \"%s\", the shard key", m.move.Index.Column)
		}
		shard, err := m.move.Shard(values[m.move.Key.At], m.session)
		if err != nil {
			return err
		}
		shards = []string{shard}
	}
	text := m.text(values)
	for _, shard := range shards {
		if err := m.budget.Take(int64(len(text))); err != nil {
			return err
		}
		at := slices.IndexFunc(m.texts, func(r *shardRows) bool { return r.shard == shard })
		if at < 0 {
			m.texts, at = append(m.texts, &shardRows{shard: shard}), len(m.texts)
		}
		m.texts[at].add(text, m.move.Whole)
	}
	return nil
}

func (r *shardRows) add(text string, whole bool) {
	n := len(r.batches)
	if n == 0 || !whole && r.batches[n-1].Len() > moveBatch {
		r.batches = append(r.batches, &strings.Builder{})
		n++
	}
	if b := r.batches[n-1]; b.Len() > 0 {
		b.WriteString(", " + text)
	} else {
		b.WriteString("VALUES " + text)
	}
}

// text writes a row of VALUES.
func (m *mover) text(values [][]byte) string {
	var b strings.Builder
	b.WriteByte('(')
	for i, v := range values {
		if i > 0 {
			b.WriteString(", ")
		}
		if v == nil {
			b.WriteString("NULL")
		} else {
			b.WriteString(sqlparse.QuoteLiteral(string(v)))
		}
		if m.types[i] != "" {
			b.WriteString("::" + m.types[i])
		}
	}
	b.WriteByte(')')
	return b.String()
}

// none makes one INSERT of no rows, for its description and tag.
func (m *mover) none() {
	list := strings.TrimSuffix(strings.TrimPrefix(m.text(make([][]byte, len(m.types))), "("), ")")
	b := &strings.Builder{}
	b.WriteString("SELECT " + list + " WHERE false")
	m.texts = []*shardRows{{shard: m.move.Shards[0], batches: []*strings.Builder{b}}}
}

// makeLegs makes a leg of each batch.
func (m *mover) makeLegs(snap *catalog.Snapshot) error {
	s := m.spread
	slices.SortFunc(m.texts, func(a, b *shardRows) int { return strings.Compare(a.shard, b.shard) })
	var shards []string
	for i := 0; ; i++ {
		l := &legNode{spread: s, index: i, leg: &s.plan.Spread.Legs[0]}
		for _, r := range m.texts {
			if i < len(r.batches) {
				l.shards = append(l.shards, r.shard)
				l.texts = append(l.texts, m.move.Before+r.batches[i].String()+m.move.After)
			}
		}
		if len(l.shards) == 0 {
			break
		}
		s.legs = append(s.legs, l)
		shards = append(shards, l.shards...)
	}
	slices.Sort(shards)
	if err := s.lease(slices.Compact(shards), snap); err != nil {
		return err
	}
	return s.learnTypes()
}
