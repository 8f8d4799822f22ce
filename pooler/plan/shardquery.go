package plan

import (
	"slices"
	"strings"

	"neki/sqlparse"
)

// query analyses a SELECT, VALUES or set operation. parent is the level around it that its names may mean, ctes what WITH
// around it has named.
func (a *analysis) query(s *sqlparse.SelectStmt, parent *level, ctes map[string]*query) *query {
	q := &query{stmt: s}
	a.queries[s] = q
	for name := range ctes {
		q.usesCTE = q.usesCTE || mentions(selectNode(s), name)
	}
	ctes = a.with(s.GetWithClause(), parent, ctes)
	if s.Op != sqlparse.SetOperation_SETOP_NONE {
		a.setOperation(q, s, parent, ctes)
		return q
	}
	l := &level{parent: parent, ctes: ctes, same: newClasses()}
	if parent != nil {
		l.same = parent.same.clone()
	}
	q.level, l.query = l, q
	if len(s.ValuesLists) > 0 {
		a.valuesQuery(q, l, s)
		return q
	}
	q.from = a.from(l, s.FromClause, s.WhereClause)
	a.anchor(l)
	l.rows = a.withSublinks(l, l.rows, s, nil)
	a.noteOuter(l, s)
	a.outputs(q, l, s)
	a.grouping(q, l, s)
	a.distinct(q, l, s)
	q.rows = q.finished(l, s)
	q.anchored = l.rows.kind != scattered && a.allAnchored(l.rows) && l.rows.kind != oneShard
	if a.allAnchored(l.rows) && q.rows.kind == scattered && q.anchored {
		q.rows.kind = byKey
	}
	return q
}

// with analyses the queries of WITH.
func (a *analysis) with(w *sqlparse.WithClause, parent *level, ctes map[string]*query) map[string]*query {
	if w == nil {
		return ctes
	}
	all := map[string]*query{}
	for k, v := range ctes {
		all[k] = v
	}
	for _, n := range w.Ctes {
		c := n.GetCommonTableExpr()
		var q *query
		switch {
		case c.Ctequery.GetSelectStmt() == nil:
			q = a.changeInWith(c.Ctequery, parent, all)
		case w.Recursive && mentions(c.Ctequery, c.Ctename):
			q = a.recursive(c, parent, all)
		default:
			q = a.query(c.Ctequery.GetSelectStmt(), parent, all)
		}
		named := *q
		named.outs = slices.Clone(q.outs)
		for i, name := range nameParts(c.Aliascolnames) {
			if i < len(named.outs) {
				named.outs[i].name = name
			}
		}
		all[c.Ctename] = &named
	}
	return all
}

// recursive analyses a query that names itself: it works on all of its rows at once, so they must be together.
func (a *analysis) recursive(c *sqlparse.CommonTableExpr, parent *level, ctes map[string]*query) *query {
	self := map[string]*query{}
	for k, v := range ctes {
		self[k] = v
	}
	self[c.Ctename] = &query{open: true}
	q := a.query(c.Ctequery.GetSelectStmt(), parent, self)
	if q.rows.kind == byKey {
		q.rows.kind = scattered
	}
	q.outs, q.open = nil, true
	return q
}

func mentions(n *sqlparse.Node, name string) bool {
	found := false
	sqlparse.Walk(n, func(node any) bool {
		if r, ok := node.(*sqlparse.RangeVar); ok && r.Schemaname == "" && r.Relname == name {
			found = true
		}
		return !found
	})
	return found
}

// changeInWith analyses INSERT, UPDATE or DELETE in WITH. It runs where all else of the statement runs, or not at all.
func (a *analysis) changeInWith(n *sqlparse.Node, parent *level, ctes map[string]*query) *query {
	q := &query{open: true, rows: rows{kind: scattered}}
	c := a.change(n, parent, ctes)
	if c != nil {
		a.checkChangeInWith(c)
		a.checkIndexes(c, n, false)
		q.rows.tables = c.rows.tables
		if c.rows.kind == oneShard {
			q.rows = c.rows
		}
	}
	return q
}

// checkChangeInWith refuses what even on one shard is no whole change: of a single copy of a reference table, and of a row
// with a value that is counted over all shards.
func (a *analysis) checkChangeInWith(c *change) {
	if c.table == nil {
		return
	}
	if c.ofCopies() {
		a.fail(unplanned(numberChangeInWith, "a change of reference table \"%s\" inside another statement", c.table.name).
			WithHint("Run the change by itself."))
		return
	}
	if c.insert != nil && c.table.place != nil {
		a.checkSequences(c, c.insert.stmt.Cols)
	}
}

// checkSequences refuses a row that leaves a column to its sequence, where the gateway can't take the value first.
func (a *analysis) checkSequences(c *change, columns []*sqlparse.Node) {
	if !c.table.place.Sharded() {
		return
	}
	for i := range c.table.columns {
		col := &c.table.columns[i]
		counts := col.Sequence != (Relation{}) || col.Identity != 0 || strings.Contains(col.Default, "nextval(")
		if counts && (len(columns) == 0 || insertPosition(c.table, columns, col.Name) < 0) {
			a.fail(unplanned(numberChangeInWith, "an INSERT inside another statement that leaves column \"%s\" to its sequence", col.Name).
				WithHint("Run the INSERT by itself, or name the column and give its value."))
		}
	}
}

// setOperation analyses UNION, INTERSECT and EXCEPT.
func (a *analysis) setOperation(q *query, s *sqlparse.SelectStmt, parent *level, ctes map[string]*query) {
	q.left, q.right = a.query(s.Larg, parent, ctes), a.query(s.Rarg, parent, ctes)
	q.open = q.left.open || q.right.open || len(q.left.outs) != len(q.right.outs)
	left, right := q.left.rows, q.right.rows
	none := &level{same: newClasses()}
	q.rows = rows{kind: scattered, tables: append(slices.Clone(left.tables), right.tables...)}
	switch {
	case left.kind == byKey && right.kind == byKey:
		if left.place.Group == right.place.Group && (s.Op == sqlparse.SetOperation_SETOP_UNION && s.All || a.sameKeyColumn(q)) {
			q.rows.kind, q.rows.place = byKey, left.place
		}
	case left.kind == anywhere && right.kind == anywhere, left.kind == oneShard, right.kind == oneShard:
		q.rows = a.combine(none, left, right, nil, nil, sqlparse.JoinType_JOIN_INNER, nil)
		if q.rows.kind == byKey {
			q.rows.kind = scattered
		}
	}
	for i, f := range q.left.outs {
		if q.open {
			break
		}
		g := q.right.outs[i]
		f.notNull = f.notNull && g.notNull
		if f.key != g.key || f.typ != g.typ {
			f.key, f.typ, f.place = 0, 0, nil
		}
		if g.place == nil || f.place == nil || !sameFunction(f, g) {
			f.place = nil
		}
		f.solid = f.solid && g.solid && f.place != nil
		q.outs = append(q.outs, f)
	}
	if q.rows.kind == byKey && (s.LimitCount != nil || s.LimitOffset != nil) {
		q.rows.kind = scattered
	}
	q.anchored = q.left.anchored && q.right.anchored
	if q.anchored && q.rows.kind == scattered {
		q.rows.kind, q.rows.place = byKey, left.place
	}
}

func sameFunction(f, g columnFact) bool { return colocated(f.place, g.place) }

// sameKeyColumn reports whether equal rows of both sides of a set operation are on one shard.
func (a *analysis) sameKeyColumn(q *query) bool {
	if q.open {
		return false
	}
	for i, f := range q.left.outs {
		g := q.right.outs[i]
		if f.solid && g.solid && f.typ == g.typ && sameFunction(f, g) {
			return true
		}
	}
	return false
}

// valuesQuery analyses VALUES.
func (a *analysis) valuesQuery(q *query, l *level, s *sqlparse.SelectStmt) {
	q.rows = a.withSublinks(l, rows{}, s, nil)
	q.anchored = a.allAnchored(q.rows)
	for i := range s.ValuesLists[0].GetList().GetItems() {
		q.outs = append(q.outs, columnFact{name: "column" + itoa(int64(i+1))})
	}
}

// withSublinks adds to rows those of the subqueries in expressions of a statement. skip is a part of it that is none
// of the level's expressions.
func (a *analysis) withSublinks(l *level, r rows, stmt any, skip map[any]bool) rows {
	sqlparse.Walk(stmt, func(node any) bool {
		if skip[node] {
			return false
		}
		switch n := node.(type) {
		case *sqlparse.SubLink:
			if n.Testexpr != nil {
				r = a.withSublinks(l, r, n.Testexpr, nil)
			}
			r = a.withSublink(l, r, n)
			return false
		case *sqlparse.RangeSubselect, *sqlparse.WithClause:
			return false
		}
		return true
	})
	return r
}

func (a *analysis) withSublink(l *level, r rows, n *sqlparse.SubLink) rows {
	s := n.Subselect.GetSelectStmt()
	if s == nil {
		r.kind = scattered
		return r
	}
	around := l
	if bound := a.boundBy(l, n); bound != nil {
		around = bound
	}
	q := a.query(s, around, l.ctes)
	out := r
	out.tables = append(slices.Clone(r.tables), q.rows.tables...)
	switch {
	case r.kind == scattered:
	case len(q.rows.tables) > 0 && q.anchored:
		if !covers(q.rows.copies, r) && r.kind != anywhere {
			out.kind = scattered
		}
	case q.rows.kind == anywhere && r.kind == anywhere:
		out.copies = common(r.copies, q.rows.copies)
		if out.copies != nil && len(out.copies) == 0 {
			out.kind = scattered
		}
	case q.rows.kind == anywhere:
		if !covers(q.rows.copies, r) {
			out.kind = scattered
		}
	case q.rows.kind == oneShard && r.kind == anywhere && (r.copies == nil || slices.Contains(r.copies, q.rows.shard)):
		out.kind, out.shard = oneShard, q.rows.shard
	case q.rows.kind == oneShard && r.kind == oneShard && q.rows.shard == r.shard:
	default:
		out.kind = scattered
	}
	return out
}

// boundBy gives, for x = ANY (SELECT y ...), a level in which y's key is known to be x: rows of the subquery with
// another one have no effect.
func (a *analysis) boundBy(l *level, n *sqlparse.SubLink) *level {
	if n.SubLinkType != sqlparse.SubLinkType_ANY_SUBLINK || len(n.OperName) > 0 && !isEqual(n.OperName) {
		return nil
	}
	s := n.Subselect.GetSelectStmt()
	if s.Op != sqlparse.SetOperation_SETOP_NONE || len(s.TargetList) != 1 || s.LimitCount != nil || s.LimitOffset != nil ||
		len(s.DistinctClause) > 1 || s.GroupClause != nil || s.HavingClause != nil || s.WithClause != nil ||
		len(s.ValuesLists) > 0 || hasAggregates(s) {
		return nil
	}
	x := a.columnUnder(l, n.Testexpr)
	target := s.TargetList[0].GetResTarget().GetVal()
	if x == noColumn || target.GetColumnRef() == nil {
		return nil
	}
	return &level{parent: l, ctes: l.ctes, same: l.same, bound: &bound{x: x, target: target}}
}

// bound is a column that the single output of the query below equals.
type bound struct {
	x      column
	target *sqlparse.Node
}

// applyBound makes use of it in the query's level, when the output is a key that is never NULL.
func (a *analysis) applyBound(l *level) {
	if l.parent == nil || l.parent.bound == nil {
		return
	}
	b := l.parent.bound
	y := l.columnOf(b.target)
	if y == noColumn || !a.comparable(b.x, y) || a.facts[y].place == nil || !a.facts[y].notNull || a.maybePadded(l, y) {
		return
	}
	l.same.unite(b.x, y)
}

// noteOuter notes which queries name columns of levels around them.
func (a *analysis) noteOuter(l *level, s *sqlparse.SelectStmt) {
	if l.parent == nil {
		return
	}
	sqlparse.Walk(selectNode(s), func(node any) bool {
		switch n := node.(type) {
		case *sqlparse.SubLink:
			if n.Testexpr == nil {
				return false
			}
			return true
		case *sqlparse.RangeSubselect, *sqlparse.WithClause:
			return false
		case *sqlparse.SelectStmt:
			return n == s
		case *sqlparse.ColumnRef:
			a.noteColumn(l, n)
		}
		return true
	})
}

func (a *analysis) noteColumn(l *level, n *sqlparse.ColumnRef) {
	parts := nameParts(n.Fields)
	table, name := "", parts[len(parts)-1]
	if len(parts) > 1 {
		table = parts[len(parts)-2]
	}
	if name == "" { // a star: of the level's own
		if table == "" {
			return
		}
		name = "*"
	}
	for at := l; at != nil; at = at.parent {
		if found, known := at.lookupHere("", table, name); found != noColumn || known {
			for in := l; in != at; in = in.parent {
				if in.query != nil {
					in.query.outer = true
				}
			}
			return
		}
	}
}
