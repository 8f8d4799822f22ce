package plan

import (
	"slices"
	"strconv"

	"neki/catalog"
	"neki/exec/build"
	"neki/sqlparse"
)

func colocated(a, b *catalog.Table) bool { return a != nil && b != nil && catalog.Colocated(a, b) }

// outputs finds what is known of a query's columns.
func (a *analysis) outputs(q *query, l *level, s *sqlparse.SelectStmt) {
	for _, n := range s.TargetList {
		t := n.GetResTarget()
		if star, ok := starOf(t.GetVal()); ok {
			a.starOutputs(q, l, star)
			continue
		}
		name := t.Name
		if name == "" {
			name = figureName(t.Val)
		}
		f := columnFact{name: name}
		if c := a.columnUnder(l, t.Val); c != noColumn {
			f = a.output(l, c)
			f.name = name
			if t.Val.GetColumnRef() == nil { // a cast: it has the same key, but another type
				f.typ = 0
			}
		}
		q.outs = append(q.outs, f)
	}
}

// output gives the fact of a column of the level as one of its query.
func (a *analysis) output(l *level, c column) columnFact {
	f := a.facts[c]
	f.place, f.solid = nil, false
	if l.rows.kind == byKey && f.key != 0 && a.at(l, l.located, c) {
		f.place, f.solid = l.rows.place, a.together(l, c)
	}
	f.notNull = f.notNull && !a.maybePadded(l, c)
	return f
}

// together reports whether rows that agree in a column are on one shard: it has a place, and is never NULL for want of a
// partner, for such rows are on every shard.
func (a *analysis) together(l *level, c column) bool {
	return slices.ContainsFunc(l.located, func(p column) bool {
		if p != c {
			return l.same.equal(p, c) // so neither is NULL
		}
		return a.facts[p].solid && !a.maybePadded(l, p)
	})
}

// maybePadded reports whether a column may be NULL because its item is of an outer join.
func (a *analysis) maybePadded(l *level, c column) bool {
	for _, it := range l.items {
		if c >= it.first && c < it.first+column(len(it.names)) {
			return it.padded
		}
	}
	return true
}

// starOf reads * and name.*; parts are the names before the star.
func starOf(n *sqlparse.Node) (parts []string, ok bool) {
	fields := n.GetColumnRef().GetFields()
	if len(fields) == 0 || fields[len(fields)-1].GetAStar() == nil {
		return nil, false
	}
	return nameParts(fields[:len(fields)-1]), true
}

func (a *analysis) starOutputs(q *query, l *level, parts []string) {
	if len(l.merged) > 0 && len(parts) == 0 {
		q.open = true // USING moves columns to the front
		return
	}
	for _, it := range l.items {
		if len(parts) > 0 && it.alias != parts[len(parts)-1] {
			continue
		}
		if it.open {
			q.open = true
		}
		for i, name := range it.names {
			f := a.output(l, it.first+column(i))
			f.name = name
			q.outs = append(q.outs, f)
		}
	}
}

// figureName is the name of an output column without AS, as far as a query around it may use it.
func figureName(n *sqlparse.Node) string {
	switch n := n.GetNode().(type) {
	case *sqlparse.Node_ColumnRef:
		return lastName(n.ColumnRef.Fields)
	case *sqlparse.Node_FuncCall:
		return lastName(n.FuncCall.Funcname)
	case *sqlparse.Node_TypeCast:
		if name := figureName(n.TypeCast.Arg); name != "?column?" {
			return name
		}
		return lastName(n.TypeCast.TypeName.GetNames())
	case *sqlparse.Node_CoalesceExpr:
		return "coalesce"
	case *sqlparse.Node_CaseExpr:
		return "case"
	case *sqlparse.Node_AArrayExpr:
		return "array"
	case *sqlparse.Node_RowExpr:
		return "row"
	}
	return "?column?"
}

// grouping finds how a query's rows become groups, and whether each group is on one shard.
func (a *analysis) grouping(q *query, l *level, s *sqlparse.SelectStmt) {
	q.aggregates = len(s.GroupClause) > 0 || s.HavingClause != nil || hasAggregates(s)
	for _, n := range s.GroupClause {
		if c := a.groupColumn(l, s, n); c != noColumn && a.together(l, c) {
			q.byGroup = true
		}
	}
	for _, n := range s.GroupClause {
		if n.GetGroupingSet() != nil {
			q.byGroup = false
		}
	}
	q.windows = hasWindows(s)
}

// groupColumn gives the column that an item of GROUP BY or DISTINCT ON means: by its name, by its place in the select
// list, or by an output's name.
func (a *analysis) groupColumn(l *level, s *sqlparse.SelectStmt, n *sqlparse.Node) column {
	if c := n.GetAConst(); c != nil && c.GetIval() != nil {
		i := int(c.GetIval().GetIval())
		for j, t := range s.TargetList {
			if _, star := starOf(t.GetResTarget().GetVal()); star && j < i {
				return noColumn
			}
		}
		if i < 1 || i > len(s.TargetList) {
			return noColumn
		}
		return l.columnOf(s.TargetList[i-1].GetResTarget().Val)
	}
	if c := l.columnOf(n); c != noColumn {
		return c
	}
	if name := n.GetColumnRef(); name != nil && len(name.Fields) == 1 {
		for _, t := range s.TargetList {
			if t.GetResTarget().Name == lastName(name.Fields) {
				return l.columnOf(t.GetResTarget().Val)
			}
		}
	}
	return noColumn
}

// finished says where the rows of the whole query are, given those of its FROM.
func (q *query) finished(l *level, s *sqlparse.SelectStmt) rows {
	r := l.rows
	r.tables = slices.Clone(r.tables)
	if r.kind != byKey {
		return r
	}
	switch {
	case s.LimitCount != nil || s.LimitOffset != nil,
		q.aggregates && !q.byGroup,
		q.windows && !q.windowsByKey,
		len(s.DistinctClause) > 0 && !q.distinctByKey:
		r.kind = scattered
	}
	return r
}

// distinct finds whether rows that DISTINCT [ON] compares are on one shard, and windows likewise.
func (a *analysis) distinct(q *query, l *level, s *sqlparse.SelectStmt) {
	if len(s.DistinctClause) == 1 && s.DistinctClause[0].GetNode() == nil {
		for _, f := range q.outs {
			q.distinctByKey = q.distinctByKey || f.solid
		}
		if q.aggregates && q.byGroup {
			// the groups are whole; equal rows of different groups may be on different shards
			q.distinctByKey = q.distinctByKey && !q.open
		}
	} else {
		for _, n := range s.DistinctClause {
			if c := a.groupColumn(l, s, n); c != noColumn && a.together(l, c) {
				q.distinctByKey = true
			}
		}
	}
	q.windowsByKey = true
	for _, w := range windowsOf(s) {
		q.windowsByKey = q.windowsByKey && a.partitioned(l, s, w)
	}
}

// partitioned reports whether every partition of a window is on one shard.
func (a *analysis) partitioned(l *level, s *sqlparse.SelectStmt, w *sqlparse.WindowDef) bool {
	for range len(s.WindowClause) + 1 {
		name := firstOf(w.Name, w.Refname)
		if len(w.PartitionClause) > 0 || name == "" {
			break
		}
		for _, n := range s.WindowClause {
			if def := n.GetWindowDef(); def.Name == name && def != w {
				w = def
				break
			}
		}
		if w.Refname == "" {
			break
		}
	}
	for _, n := range w.PartitionClause {
		if c := l.columnOf(n); c != noColumn && a.together(l, c) {
			return true
		}
	}
	return false
}

// own calls visit for the nodes of a query that are its own: not those of subqueries, nor of FROM.
func own(s *sqlparse.SelectStmt, visit func(node any) bool) {
	for _, list := range [][]*sqlparse.Node{s.TargetList, {s.HavingClause}, s.SortClause, s.GroupClause, s.DistinctClause} {
		for _, n := range list {
			if n == nil {
				continue
			}
			sqlparse.Walk(n, func(node any) bool {
				if link, ok := node.(*sqlparse.SubLink); ok {
					if link.Testexpr != nil {
						sqlparse.Walk(link.Testexpr, visit)
					}
					return false
				}
				return visit(node)
			})
		}
	}
}

// hasAggregates reports whether a query calls an aggregate function, or one that may be one.
func hasAggregates(s *sqlparse.SelectStmt) bool {
	found := false
	own(s, func(node any) bool {
		if f, ok := node.(*sqlparse.FuncCall); ok && f.Over == nil && mayAggregate(f) {
			found = true
		}
		return !found
	})
	return found
}

// mayAggregate reports whether a call is one of an aggregate: of a built-in one, or of a function whose kind isn't known.
func mayAggregate(f *sqlparse.FuncCall) bool {
	parts := nameParts(f.Funcname)
	if f.AggStar || f.AggDistinct || f.AggFilter != nil || len(f.AggOrder) > 0 || f.AggWithinGroup {
		return true
	}
	if len(parts) == 2 && parts[0] != systemSchema {
		return true
	}
	known, aggregate := build.BuiltIn(parts[len(parts)-1])
	return aggregate || !known
}

func hasWindows(s *sqlparse.SelectStmt) bool { return len(windowsOf(s)) > 0 }

// windowsOf lists the windows that a query's calls are over.
func windowsOf(s *sqlparse.SelectStmt) []*sqlparse.WindowDef {
	var out []*sqlparse.WindowDef
	own(s, func(node any) bool {
		if f, ok := node.(*sqlparse.FuncCall); ok && f.Over != nil {
			out = append(out, f.Over)
		}
		return true
	})
	return out
}

func itoa(i int64) string { return strconv.FormatInt(i, 10) }
