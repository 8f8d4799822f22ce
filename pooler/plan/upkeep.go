package plan

import (
	"slices"
	"strings"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// Upkeep keeps the lookup tables of a table's global secondary indexes as its rows are changed: the legs return what was
// changed, then the lookup tables are, in the same transaction.
type Upkeep struct {
	Returned []string // the owner's columns that the legs give, in binary, behind those that the client asked for
	Shown    int      // columns that the client asked for by RETURNING
	Fresh    bool     // one more column tells whether the row was inserted; of ON CONFLICT DO UPDATE
	Indexes  []KeptIndex
	Owner    *catalog.Table
	Removes  bool // what the legs return is gone
	Before   *Leg // of UPDATE: a query of the rows as they are before, which it locks: the Returned columns, in binary
	Key      []int
}

// KeptIndex is one index that is kept.
type KeptIndex struct {
	Index   *catalog.GSI
	Columns []string // of the lookup table
	At      []int    // their places in Upkeep.Returned
	OIDs    []uint32 // of their types; 0: the server knows

	place *catalog.Table
	key   uint32 // the type of the first column, as an index has it
}

// Table gives the name of the lookup table.
func (k *KeptIndex) Table() string {
	return sqlparse.QuoteIdent(k.Index.Schema) + "." + sqlparse.QuoteIdent(k.Index.Lookup)
}

// Entry gives the lookup table's row for a row of the owner; nil when there is none, as a column is NULL.
func (k *KeptIndex) Entry(row [][]byte) ([][]byte, error) {
	out := make([][]byte, len(k.At))
	for i, at := range k.At {
		out[i] = row[at]
		if out[i] != nil || i >= len(k.Index.Columns) {
			continue
		}
		if k.Index.IgnoreNull {
			return nil, nil
		}
		return nil, pgerr.New(pgerr.NotNullViolation, "null value in column \"%s\", which global secondary index \"%s\" is over",
			k.Columns[i], k.Index.Name).
			WithDetail("The index does not leave NULLs out.").
			WithHint("\"ignore_null\": true in the topology does.")
	}
	return out, nil
}

// Shard gives the shard of an entry.
func (k *KeptIndex) Shard(entry [][]byte) (string, error) {
	if !k.place.Sharded() {
		return k.place.Shards()[0], nil
	}
	key, err := k.place.Index.KeyBinary(k.key, entry[0])
	if err != nil {
		return "", pgerr.From(err)
	}
	return k.place.Group.ShardOf(key), nil
}

// indexes gives those that a change of rows may alter.
func (s *sharding) indexes() []*catalog.GSI {
	c := s.change
	if c == nil || c.table == nil || c.table.place == nil || c.table.kind == RelView {
		return nil
	}
	return touched(c.table, s.st.Tree.Stmts[0].Stmt)
}

// touched gives the indexes of a table that a statement may alter.
func touched(t *tableShape, n *sqlparse.Node) []*catalog.GSI {
	all := t.place.GSIs
	u := n.GetUpdateStmt()
	if u == nil || t.rel != nil && t.rel.Triggers { // a trigger may change any column
		return all
	}
	var out []*catalog.GSI
	for _, g := range all {
		if setsAny(t, u.TargetList, append(slices.Clone(g.Columns), g.OwnerPrimaryKey...)) {
			out = append(out, g)
		}
	}
	return out
}

// setsAny reports whether a SET list may change one of the columns.
func setsAny(t *tableShape, list []*sqlparse.Node, columns []string) bool {
	for _, name := range columns {
		if c := t.column(name); c != nil && c.Generated {
			return true
		}
	}
	return slices.ContainsFunc(list, func(n *sqlparse.Node) bool { return slices.Contains(columns, n.GetResTarget().GetName()) })
}

// checkIndexes refuses changes of rows whose indexes can't be kept.
func (a *analysis) checkIndexes(c *change, n *sqlparse.Node, alone bool) {
	if c == nil || c.table == nil {
		return
	}
	tables := []*tableShape{c.table}
	if c.table.kind == RelView {
		tables = nil
		for _, i := range c.target.rows.tables {
			tables = append(tables, a.tables[i].table)
		}
	}
	for _, t := range tables {
		if t.place == nil || len(t.place.GSIs) == 0 || len(touched(t, n)) == 0 {
			continue
		}
		switch {
		case c.table.kind == RelView:
			a.fail(errUpkeep("a change through the view \"%s\" of table \"%s\"", c.table.name, t.name))
		case n.GetMergeStmt() != nil:
			a.fail(errUpkeep("MERGE into table \"%s\"", t.name))
		case !alone:
			a.fail(errUpkeep("a change inside another statement of table \"%s\"", t.name))
		}
	}
}

func errUpkeep(format string, args ...any) *pgerr.Error {
	return unplanned(numberUpkeep, format+", which has global secondary indexes", args...).
		WithHint("Run INSERT, UPDATE or DELETE of the table by itself.")
}

// keepIndexes plans a change of rows together with that of the indexes' lookup tables.
func (s *sharding) keepIndexes(indexes []*catalog.GSI) error {
	whole := s.single() && !s.plan.SpreadByText
	s.plan.SpreadByText = false
	if whole {
		s.plan.Spread = &Spread{Legs: []Leg{{Route: s.plan.Route}}, Pass: passAll, Write: true}
	} else if err := s.spread(); err != nil {
		return err
	}
	return s.addUpkeep(indexes)
}

// addUpkeep makes the legs of the plan's spread return what the indexes need.
func (s *sharding) addUpkeep(indexes []*catalog.GSI) error {
	t, n := s.change.table, s.st.Tree.Stmts[0].Stmt
	u := &Upkeep{Owner: t.place, Removes: n.GetDeleteStmt() != nil}
	for _, g := range indexes {
		if err := s.keepIndex(u, t, g); err != nil {
			return err
		}
	}
	var returning []*sqlparse.Node
	var err error
	switch {
	case n.GetInsertStmt() != nil:
		returning = n.GetInsertStmt().ReturningList
		err = s.keepInsert(u, n.GetInsertStmt().OnConflictClause)
	case n.GetUpdateStmt() != nil:
		returning = n.GetUpdateStmt().ReturningList
		err = s.keepUpdate(u, n.GetUpdateStmt())
	default:
		returning = n.GetDeleteStmt().GetReturningList()
	}
	if err != nil {
		return err
	}
	if u.Shown, err = s.countShown(returning); err != nil {
		return err
	}
	s.appendReturning(u, len(returning) > 0)
	s.plan.Spread.Upkeep = u
	s.plan.shardRefused = s.plan.Tag + " of a table with global secondary indexes"
	return nil
}

// keepIndex adds one index.
func (s *sharding) keepIndex(u *Upkeep, t *tableShape, g *catalog.GSI) error {
	rel := s.schema.table.Rel(g.Schema, g.Lookup, nil)
	if rel == nil {
		return pgerr.New(pgerr.UndefinedTable, "relation \"%s.%s\" does not exist", g.Schema, g.Lookup).
			WithDetail("It is the lookup table of global secondary index \"%s\".", g.Name)
	}
	if err := checkIndex(g, t.rel, rel); err != nil {
		return err
	}
	k := KeptIndex{Index: g, Columns: indexColumns(g), place: s.schema.topology.Table(g.Database, g.Schema, g.Lookup)}
	for _, name := range k.Columns {
		at := slices.Index(u.Returned, name)
		if at < 0 {
			at, u.Returned = len(u.Returned), append(u.Returned, name)
		}
		k.At = append(k.At, at)
		k.OIDs = append(k.OIDs, ownOID(rel.Column(name).Type.OID))
	}
	k.key = s.schema.table.KeyOID(rel.Column(g.Columns[0]).Type.OID)
	u.Indexes = append(u.Indexes, k)
	return nil
}

// indexColumns gives the columns of an index's lookup table.
func indexColumns(g *catalog.GSI) []string {
	out := slices.Clone(g.Columns)
	for _, name := range append(slices.Clone(g.OwnerShardKey), g.OwnerPrimaryKey...) {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// CheckIndex tells whether an index's tables, as far as they are there, are as it needs them.
func (t *RelTable) CheckIndex(g *catalog.GSI) error {
	owner, lookup := t.Rel(g.Schema, g.Owner, nil), t.Rel(g.Schema, g.Lookup, nil)
	if owner == nil || lookup == nil {
		return nil
	}
	return checkIndex(g, owner, lookup)
}

func checkIndex(g *catalog.GSI, owner, lookup *Rel) error {
	for _, name := range indexColumns(g) {
		own, theirs := owner.Column(name), lookup.Column(name)
		switch {
		case own == nil:
			return pgerr.New(pgerr.UndefinedColumn, "column \"%s\" of relation \"%s\" does not exist", name, owner.Name).
				WithDetail("Global secondary index \"%s\" is over it.", g.Name)
		case theirs == nil:
			return pgerr.New(pgerr.UndefinedColumn, "column \"%s\" of relation \"%s\" does not exist", name, lookup.Name).
				WithDetail("The lookup table of global secondary index \"%s\" has the columns of the index, the shard key and, unless it is unique, the primary key.", g.Name)
		case theirs.Type != own.Type || theirs.Collation != own.Collation:
			return pgerr.New(pgerr.DatatypeMismatch, "column \"%s\" of lookup table \"%s\" has another type than that of table \"%s\"", name, lookup.Name, owner.Name)
		}
	}
	if g.Unique && !lookup.UniqueBy(g.Columns...) {
		return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "lookup table \"%s\" has no unique constraint on (%s)", lookup.Name, strings.Join(g.Columns, ", ")).
			WithDetail("Global secondary index \"%s\" is unique.", g.Name)
	}
	return nil
}

// keepInsert looks after ON CONFLICT.
func (s *sharding) keepInsert(u *Upkeep, on *sqlparse.OnConflictClause) error {
	if on == nil {
		return nil
	}
	t := s.change.table
	unique := slices.ContainsFunc(u.Indexes, func(k KeptIndex) bool { return k.Index.Unique })
	if on.Action == sqlparse.OnConflictAction_ONCONFLICT_NOTHING {
		if unique && on.Infer == nil {
			return unplanned(numberUpkeepConflict, "ON CONFLICT DO NOTHING of table \"%s\", which has a unique global secondary index", t.name).
				WithDetail("The index does not tell which rows to leave out.").
				WithHint("Name the columns of another unique index: ON CONFLICT (...).")
		}
		return nil
	}
	var columns []string
	for _, k := range u.Indexes {
		columns = append(columns, k.Columns...)
	}
	if setsAny(t, on.TargetList, columns) || t.rel.Triggers || t.kind != RelOrdinary {
		return unplanned(numberUpkeepConflict, "ON CONFLICT DO UPDATE of table \"%s\" that may change columns of its global secondary indexes", t.name).
			WithHint("UPDATE the row, and INSERT it when there is none.")
	}
	u.Fresh = true
	return nil
}

// keepUpdate makes the query of the rows that an UPDATE is about to change.
func (s *sharding) keepUpdate(u *Upkeep, stmt *sqlparse.UpdateStmt) error {
	t := s.change.table
	if len(t.rel.PrimaryKey) == 0 || t.kind == RelOrdinary && len(t.rel.Children) > 0 {
		return unplanned(numberUpkeepUpdate, "an UPDATE of columns of a global secondary index of table \"%s\", which has no primary key over all of its rows", t.name).
			WithHint("DELETE the row and INSERT it again in one transaction, or give the table a primary key.")
	}
	for _, num := range t.rel.PrimaryKey {
		name := t.rel.ColumnNum(num).Name
		if setsAny(t, stmt.TargetList, []string{name}) {
			return unplanned(numberUpkeepUpdate, "an UPDATE of the primary key of table \"%s\", which has global secondary indexes", t.name).
				WithHint("DELETE the row and INSERT it again in one transaction.")
		}
		at := slices.Index(u.Returned, name)
		if at < 0 {
			at, u.Returned = len(u.Returned), append(u.Returned, name)
		}
		u.Key = append(u.Key, at)
	}
	text, err := sqlparse.DeparseNode(s.rowsBefore(u, sqlparse.Clone(&sqlparse.Node{Node: &sqlparse.Node_UpdateStmt{UpdateStmt: stmt}}).GetUpdateStmt()))
	if err != nil {
		return errDeparse(err)
	}
	u.Before = &Leg{SQL: text, Route: s.plan.Spread.Legs[0].Route}
	return nil
}

// rowsBefore makes a query of the rows that an UPDATE is about to change.
func (s *sharding) rowsBefore(u *Upkeep, stmt *sqlparse.UpdateStmt) *sqlparse.Node {
	alias := s.change.target.alias
	sel := &sqlparse.SelectStmt{
		LimitOption: sqlparse.LimitOption_LIMIT_OPTION_DEFAULT, Op: sqlparse.SetOperation_SETOP_NONE,
		FromClause: append([]*sqlparse.Node{{Node: &sqlparse.Node_RangeVar{RangeVar: stmt.Relation}}}, stmt.FromClause...),
		WithClause: stmt.WithClause, WhereClause: stmt.WhereClause,
		LockingClause: []*sqlparse.Node{{Node: &sqlparse.Node_LockingClause{LockingClause: &sqlparse.LockingClause{
			LockedRels: []*sqlparse.Node{{Node: &sqlparse.Node_RangeVar{RangeVar: &sqlparse.RangeVar{Relname: alias, Inh: true, Relpersistence: "p"}}}},
			Strength:   sqlparse.LockClauseStrength_LCS_FORNOKEYUPDATE, WaitPolicy: sqlparse.LockWaitPolicy_LockWaitBlock,
		}}}},
	}
	for _, name := range u.Returned {
		sel.TargetList = append(sel.TargetList, target("", columnNode(alias, name)))
	}
	return &sqlparse.Node{Node: &sqlparse.Node_SelectStmt{SelectStmt: sel}}
}

// countShown counts the columns of the client's own RETURNING.
func (s *sharding) countShown(list []*sqlparse.Node) (int, error) {
	n := 0
	for _, item := range list {
		val := item.GetResTarget().GetVal()
		ref := val.GetColumnRef()
		star := val.GetAIndirection() != nil || ref != nil && ref.Fields[len(ref.Fields)-1].GetAStar() != nil
		if !star {
			n++
			continue
		}
		if ref == nil || len(ref.Fields) > 2 {
			return 0, errReturning(s.change.table)
		}
		more, ok := s.starColumns(ref)
		if !ok {
			return 0, errReturning(s.change.table)
		}
		n += more
	}
	return n, nil
}

// starColumns counts the columns of a star.
func (s *sharding) starColumns(ref *sqlparse.ColumnRef) (n int, ok bool) {
	items := s.change.level.items
	if s.change.insert != nil {
		items = []*item{s.change.target}
	}
	for _, it := range items {
		if len(ref.Fields) == 2 && it.alias != ref.Fields[0].GetString_().GetSval() {
			continue
		}
		if it.open || len(ref.Fields) == 1 && len(s.change.level.merged) > 0 {
			return 0, false
		}
		n += len(it.names)
	}
	return n, n > 0
}

func errReturning(t *tableShape) error {
	return unplanned(numberUpkeepReturning, "this RETURNING of a change of table \"%s\", which has global secondary indexes", t.name).
		WithHint("Name the columns.")
}

// appendReturning has the legs return the columns of the indexes behind what the client asked for.
func (s *sharding) appendReturning(u *Upkeep, more bool) {
	alias := sqlparse.QuoteIdent(s.change.target.alias)
	var list []string
	for _, name := range u.Returned {
		list = append(list, alias+"."+sqlparse.QuoteIdent(name))
	}
	if u.Fresh {
		list = append(list, "("+alias+".xmax::pg_catalog.text = '0')")
	}
	suffix := "\nRETURNING "
	if more {
		suffix = "\n, "
	}
	suffix += strings.Join(list, ", ")
	sp := s.plan.Spread
	for i := range sp.Legs {
		sp.Legs[i].Suffix = suffix
	}
	if sp.Move != nil {
		sp.Move.After += suffix
	}
}
