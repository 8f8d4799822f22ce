package plan

import (
	"neki/internal/datum"
	"neki/sqlparse"
)

// partial splits a query's aggregates: the shards group their rows, and the engine groups the groups.
type partial struct {
	e      *engine
	q      *query
	leg    *sqlparse.SelectStmt
	groups []column
	calls  []*sqlparse.FuncCall
	first  []int // of each call: its first column of the leg
	bad    bool
}

// aggregate rewrites a grouped query whose rows lie by key so that its leg gives groups. It reports whether it did; it has
// changed nothing else.
func (e *engine) aggregate(q *query, s *sqlparse.SelectStmt) bool {
	l := q.level
	if l == nil || l.rows.kind != byKey || !q.aggregates || q.byGroup || q.windows || q.outer || q.usesCTE || s.WithClause != nil {
		return false
	}
	p := &partial{e: e, q: q, leg: emptySelect()}
	dup := cloneSelect(s)
	p.leg.FromClause, p.leg.WhereClause = cloneSelect(s).FromClause, sqlparse.Clone(s.WhereClause)
	dup.FromClause, dup.WhereClause = nil, nil
	if !p.group(dup) || !p.named(dup) {
		return false
	}
	dup.TargetList = p.over(dup.TargetList)
	dup.HavingClause = p.one(dup.HavingClause)
	p.sorted(dup)
	if p.bad || len(dup.DistinctClause) > 0 && dup.DistinctClause[0].GetNode() != nil {
		return false
	}
	columns, ok := e.columnsOf(p.leg)
	if !ok {
		return false
	}
	for i := range columns {
		if !datum.Known(columns[i].Type.OID) {
			return false
		}
	}
	text, err := sqlparse.DeparseNode(selectNode(p.leg))
	if err != nil {
		return false
	}
	i := e.addLeg(Leg{SQL: text, Route: e.routeOf(l.rows), Columns: columns})
	for _, c := range p.groups {
		if collates(e.a.facts[c].typ) && !e.a.facts[c].bytewise {
			e.bytewise = false
		}
	}
	p.finals(dup, func(i int) uint32 { return columns[i].Type.OID })
	if p.bad {
		e.legs = e.legs[:i]
		return false
	}
	dup.FromClause = []*sqlparse.Node{rangeOf(e.legName(i), nil)}
	sqlparse.Become(s, dup)
	return true
}

func (p *partial) column(i int) *sqlparse.Node { return columnNode("c" + itoa(int64(i+1))) }

// add adds a column to the leg and gives its place.
func (p *partial) add(n *sqlparse.Node) int {
	i := len(p.leg.TargetList)
	p.leg.TargetList = append(p.leg.TargetList, target("c"+itoa(int64(i+1)), n))
	return i
}

// group takes GROUP BY, whose items must be plain columns.
func (p *partial) group(s *sqlparse.SelectStmt) bool {
	var by []*sqlparse.Node
	for _, n := range s.GroupClause {
		c := p.e.a.groupColumn(p.q.level, p.q.stmt, n)
		if n.GetGroupingSet() != nil || c == noColumn {
			return false
		}
		node := p.e.nodeOf(p.q.level, c)
		if node == nil {
			return false
		}
		p.groups = append(p.groups, c)
		i := p.add(node)
		p.leg.GroupClause = append(p.leg.GroupClause, sqlparse.Clone(node))
		by = append(by, p.column(i))
	}
	s.GroupClause = by
	return true
}

// nodeOf writes a column of a level by its item's name.
func (e *engine) nodeOf(l *level, c column) *sqlparse.Node {
	for _, it := range l.items {
		if i := int(c - it.first); i >= 0 && i < len(it.names) && it.alias != "" && it.find(it.names[i]) == c {
			return columnNode(it.alias, it.names[i])
		}
	}
	return nil
}

// named gives every target the name that it would have had.
func (p *partial) named(s *sqlparse.SelectStmt) bool {
	for _, n := range s.TargetList {
		t := n.GetResTarget()
		if _, star := starOf(t.Val); star {
			return false
		}
		if t.Name != "" {
			continue
		}
		switch v := t.Val.GetNode().(type) {
		case *sqlparse.Node_ColumnRef, *sqlparse.Node_FuncCall, *sqlparse.Node_AConst, *sqlparse.Node_CoalesceExpr:
		case *sqlparse.Node_AExpr:
			if v.AExpr.Kind != sqlparse.A_Expr_Kind_AEXPR_OP {
				return false
			}
		default:
			return false
		}
		t.Name = figureName(t.Val)
	}
	return true
}

func (p *partial) over(list []*sqlparse.Node) []*sqlparse.Node {
	holder := &sqlparse.List{Items: list}
	sqlparse.Rewrite(holder, p.replace)
	return holder.Items
}

func (p *partial) one(n *sqlparse.Node) *sqlparse.Node {
	if n == nil {
		return nil
	}
	return p.over([]*sqlparse.Node{n})[0]
}

// sorted rewrites ORDER BY but for what names an output.
func (p *partial) sorted(s *sqlparse.SelectStmt) {
	for i, n := range s.SortClause {
		by := n.GetSortBy()
		if by.Node.GetAConst() != nil {
			continue
		}
		if ref := by.Node.GetColumnRef(); ref != nil && len(ref.Fields) == 1 {
			named := false
			for _, t := range s.TargetList {
				named = named || t.GetResTarget().Name == lastName(ref.Fields)
			}
			if named {
				continue
			}
		}
		s.SortClause[i] = p.one(n)
	}
}

// replace puts the leg's columns in the place of grouped columns and aggregates.
func (p *partial) replace(n *sqlparse.Node) *sqlparse.Node {
	switch x := n.GetNode().(type) {
	case *sqlparse.Node_ColumnRef:
		c := p.q.level.columnOf(n)
		for i, g := range p.groups {
			if c != noColumn && p.q.level.columnOf(n) == g {
				return p.column(i)
			}
		}
		p.bad = true
	case *sqlparse.Node_SubLink, *sqlparse.Node_GroupingFunc:
		p.bad = true
	case *sqlparse.Node_FuncCall:
		if mayAggregate(x.FuncCall) {
			return p.call(x.FuncCall)
		}
	}
	return nil
}

// call adds the partial aggregates of a call, and marks its place: the types of the leg's columns decide what stands there.
func (p *partial) call(f *sqlparse.FuncCall) *sqlparse.Node {
	parts := nameParts(f.Funcname)
	name := parts[len(parts)-1]
	if len(parts) > 1 && parts[0] != systemSchema || f.AggDistinct && name != "min" && name != "max" || len(f.AggOrder) > 0 ||
		f.AggWithinGroup || f.FuncVariadic || p.nested(f) {
		p.bad = true
		return nil
	}
	at := len(p.leg.TargetList)
	part := func(name string) {
		dup := sqlparse.Clone(&sqlparse.Node{Node: &sqlparse.Node_FuncCall{FuncCall: f}})
		dup.GetFuncCall().Funcname = names2(systemSchema, name)
		p.add(dup)
	}
	switch name {
	case "count", "sum", "bool_and", "bool_or", "every":
		part(name)
	case "min", "max":
		c := noColumn
		if len(f.Args) == 1 {
			c = p.q.level.columnOf(f.Args[0])
		}
		if c == noColumn || !orderedAlike(p.e.a.facts[c].typ) && !(isText(p.e.a.facts[c].typ) && p.e.a.facts[c].bytewise) {
			p.bad = true
			return nil
		}
		part(name)
	case "avg":
		part("sum")
		part("count")
	default:
		p.bad = true
		return nil
	}
	p.calls, p.first = append(p.calls, f), append(p.first, at)
	return columnNode("neki call", itoa(int64(len(p.calls)-1)))
}

// nested reports whether a call's operands hold what is not computed for a row by itself.
func (p *partial) nested(f *sqlparse.FuncCall) bool {
	found := false
	for _, n := range append(append([]*sqlparse.Node(nil), f.Args...), f.AggFilter) {
		if n == nil {
			continue
		}
		sqlparse.Walk(n, func(node any) bool {
			switch x := node.(type) {
			case *sqlparse.SubLink:
				found = true
			case *sqlparse.FuncCall:
				found = found || mayAggregate(x)
			}
			return !found
		})
	}
	return found
}

// finals puts the aggregates of aggregates in the places of the calls.
func (p *partial) finals(s *sqlparse.SelectStmt, typeOf func(int) uint32) {
	sqlparse.Rewrite(s, func(n *sqlparse.Node) *sqlparse.Node {
		ref := nameParts(n.GetColumnRef().GetFields())
		if len(ref) != 2 || ref[0] != "neki call" {
			return nil
		}
		for i := range p.calls {
			if itoa(int64(i)) == ref[1] {
				return p.final(lastName(p.calls[i].Funcname), p.first[i], typeOf)
			}
		}
		return nil
	})
}

func (p *partial) final(name string, at int, typeOf func(int) uint32) *sqlparse.Node {
	sum := func(i int) *sqlparse.Node { return callNode("sum", p.column(i)) }
	switch name {
	case "count":
		return castNode(sum(at), "int8")
	case "sum":
		switch typeOf(at) {
		case datum.Int8OID:
			return castNode(sum(at), "int8")
		case datum.NumericOID, datum.IntervalOID:
			return sum(at)
		}
		p.bad = true
	case "avg":
		if typeOf(at) == datum.Int8OID || typeOf(at) == datum.NumericOID {
			return operatorNode("/", sum(at), sum(at+1))
		}
		p.bad = true
	default:
		return callNode(name, p.column(at))
	}
	return nil
}
