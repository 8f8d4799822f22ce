package plan

import (
	"slices"

	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// change is an analysed INSERT, UPDATE, DELETE or MERGE.
type change struct {
	target *item
	table  *tableShape // nil: not known
	level  *level
	rows   rows
	from   []*joined
	insert *insertion
}

// change analyses a change of rows; nil for anything else.
func (a *analysis) change(n *sqlparse.Node, parent *level, ctes map[string]*query) *change {
	switch n := n.GetNode().(type) {
	case *sqlparse.Node_InsertStmt:
		return a.insertStmt(n.InsertStmt, parent, ctes)
	case *sqlparse.Node_UpdateStmt:
		s := n.UpdateStmt
		ctes = a.with(s.WithClause, parent, ctes)
		c := a.changeOf(s.Relation, s.FromClause, s.WhereClause, s, ctes)
		a.checkKeyKept(c, s.TargetList)
		return c
	case *sqlparse.Node_DeleteStmt:
		s := n.DeleteStmt
		ctes = a.with(s.WithClause, parent, ctes)
		return a.changeOf(s.Relation, s.UsingClause, s.WhereClause, s, ctes)
	case *sqlparse.Node_MergeStmt:
		return a.mergeStmt(n.MergeStmt, parent, ctes)
	}
	return nil
}

// changeOf analyses the tables of UPDATE and DELETE: the target and what FROM or USING joins with it.
func (a *analysis) changeOf(target *sqlparse.RangeVar, from []*sqlparse.Node, where *sqlparse.Node, stmt any,
	ctes map[string]*query,
) *change {
	c := &change{level: &level{ctes: ctes, same: newClasses()}}
	c.target = a.tableItem(target, true)
	c.table = c.target.table
	all := []*joined{a.addItem(c.level, c.target, nil)}
	for _, n := range from {
		all = append(all, a.fromItem(c.level, n))
	}
	if where.GetCurrentOfExpr() != nil {
		a.fail(unplanned(numberCurrentOf, "WHERE CURRENT OF over shards"))
	}
	a.relate(c.level, all, conjuncts(where, nil))
	c.from = all
	c.level.rows = a.withSublinks(c.level, c.level.rows, stmt, nil)
	c.rows = c.level.rows
	return c
}

// checkKeyKept refuses an UPDATE that may move a row to another shard.
func (a *analysis) checkKeyKept(c *change, list []*sqlparse.Node) {
	if c.table != nil && c.table.kind == RelView {
		a.checkViewKept(c, list)
	}
	if c.table == nil || c.table.keyColumn() == nil {
		return
	}
	key := c.table.keyColumn().Name
	for _, n := range list {
		t := n.GetResTarget()
		if t.Name != key || len(t.Indirection) > 0 {
			continue
		}
		if !a.keepsKey(c, t.Val) {
			a.fail(errKeyUpdate(c.table, key))
		}
	}
}

// checkViewKept is checkKeyKept for a view's columns.
func (a *analysis) checkViewKept(c *change, list []*sqlparse.Node) {
	for _, n := range list {
		name := n.GetResTarget().GetName()
		if x := c.target.find(name); x != noColumn && a.facts[x].place != nil {
			a.fail(errKeyUpdate(c.table, name))
		}
	}
}

// keepsKey reports whether an expression gives a row the key that it has.
func (a *analysis) keepsKey(c *change, value *sqlparse.Node) bool {
	own := c.target.find(c.table.keyColumn().Name)
	if x := c.level.columnOf(value); x != noColumn {
		return c.level.same.equal(x, own)
	}
	k, ok := a.keyValue(value, a.facts[own].key)
	if !ok || k.Source == KeyLiteral { // literals of one shape differ from one execution to the next
		return false
	}
	for _, keys := range c.level.same.restrictions(own) {
		if len(keys) == 1 && keys[0] == k && !k.Array {
			return true
		}
	}
	return false
}

func errKeyUpdate(t *tableShape, key string) *pgerr.Error {
	return unplanned(numberKeyUpdate, "an UPDATE of the shard key \"%s\" of table \"%s\"", key, t.name).
		WithDetail("The row might have to move to another shard.").
		WithHint("DELETE the row and INSERT it again in one transaction.")
}

// mergeStmt analyses MERGE. It runs on one shard only, so what it inserts must belong there as well.
func (a *analysis) mergeStmt(s *sqlparse.MergeStmt, parent *level, ctes map[string]*query) *change {
	ctes = a.with(s.WithClause, parent, ctes)
	c := &change{level: &level{ctes: ctes, same: newClasses()}}
	c.target = a.tableItem(s.Relation, true)
	c.table = c.target.table
	left := a.addItem(c.level, c.target, nil)
	c.target.padded = true
	right := a.fromItem(c.level, s.SourceRelation)
	j := &joined{left: left, right: right, kind: sqlparse.JoinType_JOIN_RIGHT, on: conjuncts(s.JoinCondition, nil)}
	a.relate(c.level, []*joined{j}, nil)
	c.level.rows = a.withSublinks(c.level, c.level.rows, s, nil)
	c.rows = c.level.rows
	for _, n := range s.MergeWhenClauses {
		a.mergeWhen(c, n.GetMergeWhenClause())
	}
	if c.table != nil && c.table.keyColumn() != nil && c.rows.kind == byKey {
		c.rows.kind = scattered
	}
	return c
}

func (a *analysis) mergeWhen(c *change, w *sqlparse.MergeWhenClause) {
	switch w.CommandType { //nolint:exhaustive // DELETE and DO NOTHING move no row
	case sqlparse.CmdType_CMD_UPDATE:
		a.checkKeyKept(c, w.TargetList)
	case sqlparse.CmdType_CMD_INSERT:
		if c.table == nil || c.table.keyColumn() == nil {
			return
		}
		a.checkSequences(c, w.TargetList)
		key := c.table.keyColumn()
		at := insertPosition(c.table, w.TargetList, key.Name)
		o := &occurrence{table: c.table, anchor: noColumn, written: true}
		if at >= 0 && at < len(w.Values) {
			a.pinMerged(c, o, w.Values[at], key)
		}
		c.rows.tables = append(slices.Clone(c.rows.tables), len(a.tables))
		a.tables = append(a.tables, o)
	}
}

// pinMerged pins a row that MERGE inserts to the key that it gets: a constant, or a column that equals the target's.
func (a *analysis) pinMerged(c *change, o *occurrence, value *sqlparse.Node, key *columnShape) {
	if k, ok := a.storedKey(value, key); ok {
		o.pinTo([]KeyExpr{k})
		return
	}
	x := c.level.columnOf(value)
	if x == noColumn {
		return
	}
	for _, keys := range c.level.same.restrictions(x) {
		o.pinTo(keys)
	}
}

// insertPosition gives the place of a column among those that an INSERT names: -1 when it is left out.
func insertPosition(t *tableShape, columns []*sqlparse.Node, name string) int {
	if len(columns) == 0 {
		return t.columnIndex(name)
	}
	for i, n := range columns {
		if n.GetResTarget().Name == name {
			return i
		}
	}
	return -1
}

// insertion is what is known of an INSERT's rows.
type insertion struct {
	stmt  *sqlparse.InsertStmt
	rows  [][]*sqlparse.Node // of VALUES; nil: of a query
	keys  []KeyExpr          // of the rows
	query *query
	keyAt int  // the key's place among the columns given; -1: left out
	plain bool // every row's key is known
}

// insertStmt analyses INSERT.
func (a *analysis) insertStmt(s *sqlparse.InsertStmt, parent *level, ctes map[string]*query) *change {
	ctes = a.with(s.WithClause, parent, ctes)
	c := &change{level: &level{ctes: ctes, same: newClasses()}}
	c.target = a.tableItem(s.Relation, true)
	c.table = c.target.table
	c.rows = c.target.rows
	in := &insertion{stmt: s, keyAt: -1}
	c.insert = in
	if c.table == nil {
		return c
	}
	target := []int(nil)
	if len(c.target.rows.tables) > 0 {
		target = c.target.rows.tables
	}
	source := s.SelectStmt.GetSelectStmt()
	key := c.table.keyColumn()
	if key != nil {
		in.keyAt = insertPosition(c.table, s.Cols, key.Name)
		a.checkConflict(c, s, key)
	}
	if source != nil && len(source.ValuesLists) > 0 && simpleValues(source) {
		for _, n := range source.ValuesLists {
			in.rows = append(in.rows, n.GetList().GetItems())
		}
		a.insertValues(c, in, source, key, target)
		return c
	}
	if source == nil { // DEFAULT VALUES
		in.rows = [][]*sqlparse.Node{nil}
		in.keyAt = -1
		return c
	}
	in.query = a.query(source, parent, ctes)
	c.rows.tables = append(slices.Clone(target), in.query.rows.tables...)
	a.insertQuery(c, in, key)
	return c
}

// storedKey reads an expression as the value that a row gets for its key.
func (a *analysis) storedKey(n *sqlparse.Node, key *columnShape) (KeyExpr, bool) {
	k, ok := a.keyValue(n, key.key)
	if !ok || k.Array {
		return k, false
	}
	if k.Source != KeyConst || !k.Null {
		switch { // the column may keep another value than is given
		case k.OID == key.key, isWhole(k.OID) && integerRank(key.key) > 0, isText(k.OID) && isText(key.key):
		default:
			return k, false
		}
	}
	k.Stored, k.Typmod = true, key.storedTypmod()
	asStored := KeyExpr{OID: key.key, Typmod: k.Typmod}
	if !asStored.keepsValue() && (key.key != datum.NumericOID || !isWhole(k.OID)) {
		return k, false
	}
	if key.key == datum.VarcharOID && k.Typmod > 0 {
		k.OID = datum.VarcharOID
	}
	return k, true
}

func simpleValues(s *sqlparse.SelectStmt) bool {
	return len(s.SortClause) == 0 && s.LimitCount == nil && s.LimitOffset == nil && s.WithClause == nil
}

// insertValues finds the keys of VALUES' rows.
func (a *analysis) insertValues(c *change, in *insertion, source *sqlparse.SelectStmt, key *columnShape, target []int) {
	r := a.withSublinks(c.level, rows{}, c.insert.stmt, map[any]bool{source: true})
	r = a.withSublinks(c.level, r, source, nil)
	c.rows.tables = append(slices.Clone(target), r.tables...)
	if r.kind == scattered || r.kind == byKey {
		c.rows.kind = scattered
	}
	if key == nil || in.keyAt < 0 {
		return
	}
	in.plain = true
	for _, row := range in.rows {
		if in.keyAt >= len(row) {
			in.plain = false
			return
		}
		k, ok := a.storedKey(row[in.keyAt], key)
		in.plain = in.plain && ok
		in.keys = append(in.keys, k)
	}
	if in.plain && len(target) > 0 {
		var all []KeyExpr
		for _, k := range in.keys {
			all = addKey(all, k)
		}
		a.tables[target[0]].pinTo(all)
	}
}

// insertQuery says where the rows of INSERT ... SELECT go.
func (a *analysis) insertQuery(c *change, in *insertion, key *columnShape) {
	q := in.query
	switch {
	case c.rows.kind == oneShard:
		if !(q.rows.kind == oneShard && q.rows.shard == c.rows.shard ||
			q.rows.kind == anywhere && (q.rows.copies == nil || slices.Contains(q.rows.copies, c.rows.shard))) {
			c.rows.kind = scattered
		}
	case c.rows.kind == anywhere:
		if q.rows.kind != anywhere || !slices.Equal(common(q.rows.copies, c.rows.copies), c.rows.copies) {
			c.rows.kind = scattered
		}
	case c.rows.kind == byKey:
		stays := false
		if key != nil && in.keyAt >= 0 && in.keyAt < len(q.outs) && !q.open {
			f := q.outs[in.keyAt]
			stays = q.rows.kind == byKey && f.place != nil && (f.key == key.key || isWhole(f.key) && isWhole(key.key)) && colocated(f.place, c.table.place) && f.notNull
			if stays && len(c.target.rows.tables) > 0 && q.level != nil { // the rows are where those are that they come from
				t := a.tables[c.target.rows.tables[0]]
				a.pinLike(t, q)
			}
		}
		if !stays {
			c.rows.kind = scattered
		}
	}
}

// pinLike pins the target of INSERT ... SELECT to where its rows come from.
func (a *analysis) pinLike(t *occurrence, q *query) {
	for _, o := range q.level.rows.tables {
		if len(a.tables[o].pins) == 0 {
			return
		}
	}
	if len(q.level.rows.tables) > 0 {
		for _, keys := range a.tables[q.level.rows.tables[0]].pins {
			t.pinTo(keys)
		}
	}
}

// checkConflict refuses ON CONFLICT whose arbiter may be on another shard, and one that moves the row.
func (a *analysis) checkConflict(c *change, s *sqlparse.InsertStmt, key *columnShape) {
	on := s.OnConflictClause
	if on == nil {
		return
	}
	for _, n := range on.TargetList {
		t := n.GetResTarget()
		if t.Name != key.Name {
			continue
		}
		ref := nameParts(t.Val.GetColumnRef().GetFields())
		if len(ref) == 2 && (ref[0] == "excluded" || ref[0] == c.target.alias) && ref[1] == key.Name && a.arbiterHasKey(on, key) {
			continue
		}
		a.fail(errKeyUpdate(c.table, key.Name))
	}
}

func (a *analysis) arbiterHasKey(on *sqlparse.OnConflictClause, key *columnShape) bool {
	for _, n := range on.GetInfer().GetIndexElems() {
		if n.GetIndexElem().GetName() == key.Name {
			return true
		}
	}
	return false
}
