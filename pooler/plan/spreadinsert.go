package plan

import (
	"slices"

	"neki/sqlparse"
)

// spreadInsert plans an INSERT whose rows go to several shards, or whose text must change.
func (s *sharding) spreadInsert() error {
	c, in := s.change, s.change.insert
	switch {
	case in.query != nil && c.table.place.Reference && c.rows.kind != anywhere:
		return s.moveRows()
	case c.table.place.Reference:
		return s.changeCopies()
	case in.query != nil && !c.table.place.Sharded():
		return s.moveRows()
	case c.table.keyColumn() == nil:
		return unplanned(numberChangeElsewhere, "an INSERT of rows that are on other shards than table \"%s\"", c.table.name)
	case in.rows == nil:
		return s.insertSelect()
	case c.rows.kind == scattered:
		return unplanned(numberChangeElsewhere, "an INSERT whose values are read from several shards").
			WithHint("Read the values first.")
	}
	if err := s.checkArbiter(); err != nil {
		return err
	}
	if !in.plain {
		return s.errInsertKey()
	}
	leg := Leg{Route: s.routeOf(c.target.rows)}
	if len(in.rows) == 1 {
		s.reach(&Spread{Legs: []Leg{leg}, Pass: passAll, Write: true})
		return nil
	}
	spans := s.rowSpans()
	if spans == nil {
		return unplanned(numberDeparse, "this INSERT over several shards").WithDetail("The places of its rows can't be told.")
	}
	leg.Rows = &RowSplit{Index: c.table.place.Index, Group: c.table.place.Group}
	for i, span := range spans {
		leg.Rows.Rows = append(leg.Rows.Rows, RowText{Start: span.Start, End: span.End, Key: in.keys[i]})
	}
	s.reach(&Spread{Legs: []Leg{leg}, Pass: passAll, Write: true})
	return nil
}

// rowSpans finds the rows of VALUES in the statement's text.
func (s *sharding) rowSpans() []sqlparse.Span {
	first := int32(-1)
	source := s.change.insert.stmt.SelectStmt.GetSelectStmt()
	sqlparse.Walk(source.ValuesLists[0], func(node any) bool {
		if n, ok := node.(interface{ GetLocation() int32 }); ok && n.GetLocation() > 0 && (first < 0 || n.GetLocation() < first) {
			first = n.GetLocation()
		}
		return true
	})
	if first < 0 {
		return nil
	}
	spans := sqlparse.ValuesRows(s.st.Text, int(first))
	if len(spans) != len(s.change.insert.rows) {
		return nil
	}
	return spans
}

func (s *sharding) errInsertKey() error {
	key := s.change.table.keyColumn().Name
	return unplanned(numberInsertKey, "an INSERT into table \"%s\" without a plain value for its shard key", s.change.table.name).
		WithDetail("The gateway must know the value of \"%s\" of each row.", key).
		WithHint("Give it as a constant or a parameter.")
}

// checkArbiter refuses ON CONFLICT that may have to look at other shards than its row's.
func (s *sharding) checkArbiter() error {
	on, t := s.change.insert.stmt.OnConflictClause, s.change.table
	if on == nil {
		return nil
	}
	key := t.keyColumn()
	if on.Infer == nil || on.Infer.Conname != "" { // any unique index decides
		for _, unique := range t.rel.Unique {
			has := false
			for _, num := range unique {
				has = has || num == key.Num
			}
			if !has {
				return errConflict(t, key)
			}
		}
		return nil
	}
	if !s.a.arbiterHasKey(on, key) {
		return errConflict(t, key)
	}
	return nil
}

func errConflict(t *tableShape, key *columnShape) error {
	return unplanned(numberConflict, "ON CONFLICT of table \"%s\" by an index without its shard key", t.name).
		WithDetail("A conflicting row may be on another shard.").
		WithHint("Make \"%s\" part of the unique index.", key.Name)
}

func (s *sharding) insertSelect() error {
	c := s.change
	if err := s.checkArbiter(); err != nil {
		return err
	}
	if c.rows.kind == byKey && c.target.rows.kind == byKey {
		s.reach(&Spread{Legs: []Leg{{Route: s.routeOf(c.insert.query.rows)}}, Pass: passAll, Write: true})
		return nil
	}
	return s.moveRows()
}

// changeCopies plans a change of a reference table: the same on every copy.
func (s *sharding) changeCopies() error {
	c := s.change
	if c.rows.kind != anywhere {
		return unplanned(numberChangeOfCopies, "a change of reference table \"%s\" that depends on sharded rows", c.table.name).
			WithDetail("Every copy must change alike, and each shard has other rows.").
			WithHint("Read the rows first.")
	}
	copies := c.table.place.Copies
	for _, t := range s.a.references {
		if len(common(copies, t.place.Copies)) != len(copies) {
			return unplanned(numberChangeOfCopies, "a change of reference table \"%s\" that reads \"%s\"", c.table.name, t.name).
				WithDetail("Some shards that have a copy of the first have none of the second.")
		}
	}
	if c.insert != nil && c.insert.rows == nil || c.insert == nil {
		done, err := s.changeCopiesOnce()
		if done || err != nil {
			return err
		}
	}
	s.plan.Route = Route{Kind: RouteReference, Shard: copies[0], All: copies}
	s.plan.Spread = &Spread{
		Legs: []Leg{{Route: s.plan.Route}}, Pass: passAll, Write: true, Copies: true,
	}
	return nil
}

// evaluated plans an INSERT of rows some of whose values must be computed once: defaults that count over shards, and for
// reference tables all that is not the same on every shard. It reports whether it did.
func (s *sharding) evaluated() (bool, error) {
	c := s.change
	if c == nil || c.insert == nil || c.table == nil || c.table.kind == RelView ||
		!c.table.place.Sharded() && !c.table.place.Reference {
		return false, nil
	}
	if err := s.checkOverriding(); err != nil {
		return false, err
	}
	if c.insert.query != nil {
		return s.leftOut()
	}
	stmt, o, keys, err := s.insertOnce()
	if err != nil || stmt == nil {
		return false, err
	}
	if c.rows.kind == scattered {
		return false, nil
	}
	text, err := sqlparse.DeparseNode(&sqlparse.Node{Node: &sqlparse.Node_InsertStmt{InsertStmt: stmt}})
	if err != nil {
		return false, errDeparse(err)
	}
	leg := Leg{}
	leg.SQL, leg.Fills = o.fills(text)
	sp := &Spread{Pass: passAll, Write: true, Eval: o.eval()}
	if c.table.place.Reference {
		leg.Route = Route{Kind: RouteReference, Shard: c.table.place.Copies[0], All: c.table.place.Copies}
		sp.Copies = true
	} else {
		if err := s.checkArbiter(); err != nil && len(keys) > 1 {
			return false, err
		}
		leg.Route = Route{Kind: RouteScatter, All: c.table.place.Group.Shards}
		leg.Rows = &RowSplit{Index: c.table.place.Index, Group: c.table.place.Group}
		spans := sqlparse.ValuesRows(leg.SQL, len(leg.SQL))
		if len(spans) != len(keys) {
			return false, errDeparse(nil)
		}
		for i, span := range spans {
			leg.Rows.Rows = append(leg.Rows.Rows, RowText{Start: span.Start, End: span.End, Key: keys[i]})
		}
	}
	sp.Legs = []Leg{leg}
	s.plan.Spread = sp
	s.plan.Route = leg.Route
	return true, nil
}

func errDeparse(err error) error {
	e := unplanned(numberDeparse, "this statement over several shards")
	if err != nil {
		return e.WithDetail("%s", err.Error())
	}
	return e.WithDetail("It can't be written for them.")
}

// leftOut plans an INSERT ... SELECT that leaves columns to defaults which must be computed once for all shards: of sequences
// for each row, of the time for all rows. It reports whether it did.
func (s *sharding) leftOut() (bool, error) {
	in, t := s.change.insert, s.change.table
	_, extra := s.insertColumns(in.stmt, t.place.Reference)
	if len(in.stmt.Cols) == 0 && !in.query.open {
		given := len(in.query.outs)
		extra = slices.DeleteFunc(extra, func(c *columnShape) bool { return t.columnIndex(c.Name) < given })
	}
	if len(extra) == 0 {
		return false, nil
	}
	for _, c := range extra {
		if len(in.stmt.Cols) == 0 && in.query.open || c.Sequence == (Relation{}) && s.variesDefault(c) == atAnyTime {
			return false, s.errLeftOut(c)
		}
	}
	root := s.st.Tree.Stmts[0].Stmt
	if s.shardedSequence(root) {
		return false, errNextval()
	}
	return true, s.moveRowsWith(extra, s.newOnce())
}

// checkOverriding refuses OVERRIDING USER VALUE of an identity column: each shard would count by itself.
func (s *sharding) checkOverriding() error {
	if s.change.insert.stmt.Override != sqlparse.OverridingKind_OVERRIDING_USER_VALUE {
		return nil
	}
	for i := range s.change.table.columns {
		if c := &s.change.table.columns[i]; c.Identity != 0 {
			return unplanned(numberVolatileDefault, "OVERRIDING USER VALUE of identity column \"%s\"", c.Name).
				WithDetail("Each shard would count by itself.").
				WithHint("Leave the column out.")
		}
	}
	return nil
}

func (s *sharding) errLeftOut(c *columnShape) error {
	return unplanned(numberVolatileDefault, "INSERT ... SELECT that leaves column \"%s\" of table \"%s\" to its default", c.Name, s.change.table.name).
		WithDetail("The default must be computed once for all shards: %s.", c.Default).
		WithHint("Select a value for the column, or insert by VALUES.")
}

// changeCopiesOnce plans an UPDATE or DELETE of a reference table that tells the time: once for all copies.
func (s *sharding) changeCopiesOnce() (bool, error) {
	root := s.st.Tree.Stmts[0].Stmt
	switch s.varies(root) {
	case alike:
		return false, nil
	case atAnyTime:
		return false, unplanned(numberChangeOfCopies, "a change of reference table \"%s\" that calls a volatile function", s.change.table.name).
			WithDetail("Every copy must change alike.").
			WithHint("Compute the value first, and give it as a constant or a parameter.")
	}
	o := s.newOnce()
	dup := sqlparse.Clone(root)
	sqlparse.Rewrite(dup, func(n *sqlparse.Node) *sqlparse.Node {
		if n.GetFuncCall() == nil && n.GetSqlvalueFunction() == nil {
			return nil
		}
		if n.GetFuncCall() != nil && !contains(timeFunctions, lastName(n.GetFuncCall().Funcname)) {
			return nil
		}
		if s.varies(n) == alike {
			return nil
		}
		return o.add(n, typeOfConstant(n))
	})
	if o.failed != nil || s.varies(dup) != alike {
		return false, unplanned(numberChangeOfCopies, "a change of reference table \"%s\" that depends on the time", s.change.table.name)
	}
	text, err := sqlparse.DeparseNode(dup)
	if err != nil {
		return false, errDeparse(err)
	}
	copies := s.change.table.place.Copies
	leg := Leg{Route: Route{Kind: RouteReference, Shard: copies[0], All: copies}}
	leg.SQL, leg.Fills = o.fills(text)
	s.plan.Route = leg.Route
	s.plan.Spread = &Spread{Legs: []Leg{leg}, Pass: passAll, Write: true, Copies: true, Eval: o.eval()}
	return true, nil
}
