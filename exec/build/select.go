package build

import (
	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// target is one item of the select list, or an expression that only sorts (junk).
type target struct {
	expr   exec.Expr
	name   string
	offset int32
	junk   bool
}

// selection is a plain SELECT while it is built.
type selection struct {
	b        *builder
	l        *level
	stmt     *sqlparse.SelectStmt
	from     *fromItem
	targets  []target
	where    exec.Expr
	having   exec.Expr
	groups   []exec.Expr
	sort     []sortItem
	distinct []int // targets of DISTINCT ON
}

// sortItem is a sort key over a target.
type sortItem struct {
	target int
	key    exec.SortKey
}

func (b *builder) selectStmt(stmt *sqlparse.SelectStmt, l *level, keepUnknown bool) (*query, error) {
	s := &selection{b: b, l: l, stmt: stmt}
	var err error
	if s.from, err = b.from(l, stmt.FromClause); err != nil {
		return nil, err
	}
	l.ns = s.from.ns
	for _, step := range []func() error{
		s.readWindows, s.readTargets, s.readWhere, s.readHaving, s.readOrder, s.readGroups,
		func() error { return s.settleUnknown(keepUnknown) }, s.readDistinct,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return s.plan()
}

func (s *selection) readWindows() error {
	s.l.defs = map[string]*windowDef{}
	for _, n := range s.stmt.WindowClause {
		w := n.GetWindowDef()
		if s.l.defs[w.Name] != nil {
			return errAt(w.Location, "42P20", "window \"%s\" is already defined", w.Name)
		}
		s.l.defs[w.Name] = &windowDef{w}
	}
	return nil
}

func (s *selection) readTargets() error {
	s.l.windows = true
	defer func() { s.l.windows = false }()
	for _, n := range s.stmt.TargetList {
		t := n.GetResTarget()
		if ref := t.Val.GetColumnRef(); ref != nil && ref.Fields[len(ref.Fields)-1].GetAStar() != nil {
			if err := s.expandStar(ref); err != nil {
				return err
			}
			continue
		}
		e, err := s.b.expr(s.l, t.Val)
		if err != nil {
			return err
		}
		name := t.Name
		if name == "" {
			name = s.b.figureName(t.Val)
		}
		s.targets = append(s.targets, target{expr: e, name: name, offset: place(t.Val)})
	}
	return nil
}

func (s *selection) expandStar(ref *sqlparse.ColumnRef) error {
	columns := s.l.ns.columns
	switch len(ref.Fields) {
	case 1:
		if len(s.stmt.FromClause) == 0 {
			return errAt(ref.Location, pgerr.SyntaxError, "SELECT * with no tables specified is not valid")
		}
	case 2, 3:
		names := strs(ref.Fields[:len(ref.Fields)-1])
		schema := ""
		if len(names) == 2 {
			schema = names[0]
		}
		rel, err := s.l.ns.relation(schema, names[len(names)-1], ref.Location)
		if err != nil {
			return err
		}
		if rel == nil {
			return errAt(ref.Location, pgerr.UndefinedTable, "missing FROM-clause entry for table \"%s\"", names[len(names)-1])
		}
		columns = rel.columns
	default:
		return unsupported(ref.Location, "a name of more than three parts")
	}
	for _, c := range columns {
		e := c.expr
		if col, ok := e.(*exec.ColumnRef); ok {
			named := *col
			named.Name, named.Pos = s.l.ns.qualify(col, c.name), ref.Location
			e = &named
		}
		s.targets = append(s.targets, target{expr: e, name: c.name, offset: ref.Location})
	}
	return nil
}

func (s *selection) condition(n *sqlparse.Node, what, clause string) (e exec.Expr, err error) {
	err = s.l.within(clause, func() error {
		if e, err = s.b.expr(s.l, n); err != nil {
			return err
		}
		e, err = s.b.boolean(e, place(n), what)
		return err
	})
	return e, err
}

func (s *selection) readWhere() (err error) {
	if s.stmt.WhereClause != nil {
		s.where, err = s.condition(s.stmt.WhereClause, "WHERE", "WHERE")
	}
	return err
}

func (s *selection) readHaving() (err error) {
	if s.stmt.HavingClause == nil {
		return nil
	}
	e, err := s.b.expr(s.l, s.stmt.HavingClause)
	if err != nil {
		if l, ok := err.(*located); ok && l.err.Code == "42P20" {
			l.err.Message = "window functions are not allowed in HAVING"
		}
		return err
	}
	s.having, err = s.b.boolean(e, place(s.stmt.HavingClause), "HAVING")
	return err
}

// byName finds what a bare name or an ordinal in ORDER BY, GROUP BY or DISTINCT ON stands for; -1: an expression.
func (s *selection) byName(n *sqlparse.Node, clause string) (int, error) {
	if ref := n.GetColumnRef(); ref != nil && len(ref.Fields) == 1 && ref.Fields[0].GetString_() != nil {
		name := ref.Fields[0].GetString_().Sval
		if clause == "GROUP BY" { // an input column comes first
			if e, _, err := s.l.ns.find("", "", name, ref.Location); err != nil || e != nil {
				return -1, err
			}
		}
		return s.outputName(name, clause, ref.Location)
	}
	c := n.GetAConst()
	if c == nil {
		return -1, nil
	}
	if c.Isnull || c.GetIval() == nil {
		return -1, errAt(c.Location, pgerr.SyntaxError, "non-integer constant in %s", clause)
	}
	want := int(c.GetIval().GetIval())
	visible := 0
	for i, t := range s.targets {
		if t.junk {
			continue
		}
		if visible++; visible == want {
			return i, nil
		}
	}
	return -1, errAt(c.Location, pgerr.InvalidColumnReference, "%s position %d is not in select list", clause, want)
}

func (s *selection) outputName(name, clause string, offset int32) (int, error) {
	found := -1
	for i, t := range s.targets {
		if t.junk || t.name != name {
			continue
		}
		if found >= 0 && exec.Key(s.targets[found].expr) != exec.Key(t.expr) {
			return -1, errAt(offset, pgerr.AmbiguousColumn, "%s \"%s\" is ambiguous", clause, name)
		}
		if found < 0 {
			found = i
		}
	}
	return found, nil
}

// targetFor gives the target of a sort or distinct item, adding a junk one for a new expression.
func (s *selection) targetFor(n *sqlparse.Node, clause string) (int, error) {
	i, err := s.byName(n, clause)
	if err != nil {
		return 0, err
	}
	if i >= 0 {
		// literals without type are text by now
		s.targets[i].expr, err = s.b.textIfUnknown(s.targets[i].expr)
		return i, err
	}
	s.l.windows = true
	e, err := s.b.expr(s.l, n)
	s.l.windows = false
	if err != nil {
		return 0, err
	}
	if e, err = s.b.textIfUnknown(e); err != nil {
		return 0, err
	}
	for i, t := range s.targets {
		if exec.Key(t.expr) == exec.Key(e) {
			return i, nil
		}
	}
	s.targets = append(s.targets, target{expr: e, offset: place(n), junk: true})
	return len(s.targets) - 1, nil
}

func (s *selection) readOrder() error {
	for _, node := range s.stmt.SortClause {
		by := node.GetSortBy()
		i, err := s.targetFor(by.Node, "ORDER BY")
		if err != nil {
			return err
		}
		k, err := sortKey(s.targets[i].expr, by, place(by.Node))
		if err != nil {
			return err
		}
		s.sort = append(s.sort, sortItem{i, k})
	}
	return nil
}

func (s *selection) readGroups() error {
	if s.stmt.GroupDistinct {
		return unsupported(-1, "GROUP BY DISTINCT")
	}
	return s.l.within("GROUP BY", func() error {
		for _, n := range s.stmt.GroupClause {
			if err := s.readGroup(n); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *selection) readGroup(n *sqlparse.Node) error {
	if set := n.GetGroupingSet(); set != nil {
		return unsupported(set.Location, "GROUPING SETS, ROLLUP and CUBE")
	}
	if row := n.GetRowExpr(); row != nil { // GROUP BY (a, b)
		for _, a := range row.Args {
			if err := s.readGroup(a); err != nil {
				return err
			}
		}
		return nil
	}
	i, err := s.byName(n, "GROUP BY")
	if err != nil {
		return err
	}
	var e exec.Expr
	if i >= 0 {
		if s.targets[i].expr, err = s.b.textIfUnknown(s.targets[i].expr); err != nil {
			return err
		}
		e = s.targets[i].expr
		if err := noAggregate(e, "GROUP BY", s.targets[i].offset); err != nil {
			return err
		}
	} else {
		if e, err = s.b.expr(s.l, n); err != nil {
			return err
		}
		if e, err = s.b.textIfUnknown(e); err != nil {
			return err
		}
	}
	if !datum.Comparable(e.Type().OID) {
		if e.Type().OID == datum.JSONOID {
			return errAt(place(n), pgerr.UndefinedFunction, "could not identify an equality operator for type json")
		}
		return unsupported(place(n), "grouping by type %s", typeName(e.Type().OID))
	}
	s.groups = append(s.groups, e)
	return nil
}

func noAggregate(e exec.Expr, clause string, offset int32) (err error) {
	exec.Walk(e, func(e exec.Expr) bool {
		switch e.(type) {
		case *exec.AggregateCall:
			err = errAt(offset, pgerr.GroupingError, "aggregate functions are not allowed in %s", clause)
		case *exec.WindowCall:
			err = errAt(offset, "42P20", "window functions are not allowed in %s", clause)
			return false
		}
		return err == nil
	})
	return err
}

func (s *selection) settleUnknown(keep bool) error {
	for i := range s.targets {
		if keep && !s.targets[i].junk && len(s.stmt.DistinctClause) == 0 {
			continue
		}
		e, err := s.b.textIfUnknown(s.targets[i].expr)
		if err != nil {
			return err
		}
		s.targets[i].expr = e
	}
	return nil
}

func (s *selection) readDistinct() error {
	if !s.isDistinct() {
		for _, n := range s.stmt.DistinctClause {
			i, err := s.targetFor(n, "DISTINCT ON")
			if err != nil {
				return err
			}
			s.distinct = append(s.distinct, i)
			if err := orderable(s.targets[i].expr, place(n)); err != nil {
				return err
			}
		}
		return s.checkDistinctOn()
	}
	for _, t := range s.targets {
		if t.junk {
			return errAt(t.offset, pgerr.InvalidColumnReference,
				"for SELECT DISTINCT, ORDER BY expressions must appear in select list")
		}
		if !datum.Comparable(t.expr.Type().OID) {
			if t.expr.Type().OID == datum.JSONOID {
				return errAt(t.offset, pgerr.UndefinedFunction, "could not identify an equality operator for type json")
			}
			return unsupported(t.offset, "DISTINCT over type %s", typeName(t.expr.Type().OID))
		}
	}
	return nil
}

// isDistinct is plain DISTINCT: its clause is one empty node.
func (s *selection) isDistinct() bool {
	return len(s.stmt.DistinctClause) == 1 && s.stmt.DistinctClause[0].GetNode() == nil
}

// checkDistinctOn wants the leading sort keys to be among the DISTINCT ON expressions.
func (s *selection) checkDistinctOn() error {
	on := map[int]bool{}
	for _, i := range s.distinct {
		on[i] = true
	}
	seen := map[int]bool{}
	for _, item := range s.sort {
		if len(seen) == len(on) {
			break
		}
		if !on[item.target] {
			return errAt(place(s.stmt.DistinctClause[0]), pgerr.InvalidColumnReference,
				"SELECT DISTINCT ON expressions must match initial ORDER BY expressions")
		}
		seen[item.target] = true
	}
	return nil
}

// plan puts the operators together.
func (s *selection) plan() (*query, error) {
	op, width := s.from.op, s.from.width
	if s.where != nil {
		pushDown(op, s.where)
		rest, err := joinBy(op, conjuncts(s.where))
		if err != nil {
			return nil, err
		}
		if cond := conjunction(rest); cond != nil {
			op = &exec.Filter{Input: op, Cond: cond}
		}
	}
	exprs := make([]exec.Expr, len(s.targets))
	for i, t := range s.targets {
		exprs[i] = t.expr
	}
	var err error
	if s.l.hasAgg || len(s.groups) > 0 || s.having != nil {
		if op, width, exprs, err = s.group(op, exprs); err != nil {
			return nil, err
		}
	}
	if op, exprs, err = addWindows(op, width, exprs); err != nil {
		return nil, err
	}
	project := &exec.Project{Input: op, Exprs: exprs}
	q := &query{op: project, project: project}
	visible := 0
	for i, t := range s.targets {
		if !t.junk {
			visible++
			q.columns = append(q.columns, exec.Column{Name: t.name, Type: exprs[i].Type()})
			q.offsets = append(q.offsets, t.offset)
		}
	}
	s.order(q, exprs)
	if q.op, err = s.b.limit(s.stmt, s.l, q.op); err != nil {
		return nil, err
	}
	if visible < len(exprs) {
		// junk stands behind the visible targets: the select list is read first
		keys, err := keysOf(q.columns, false)
		if err != nil {
			return nil, err
		}
		q.op = &exec.Project{Input: q.op, Exprs: keys}
	}
	if q.op != exec.Operator(project) {
		q.project = nil
	}
	return q, nil
}

// order adds DISTINCT and ORDER BY over the projected targets.
func (s *selection) order(q *query, exprs []exec.Expr) {
	column := func(i int) exec.Expr { return &exec.ColumnRef{Index: i, Typ: exprs[i].Type()} }
	if s.isDistinct() {
		var keys []exec.Expr
		for i := range exprs {
			keys = append(keys, column(i))
		}
		q.op = &exec.Unique{Input: q.op, Keys: keys}
	}
	if len(s.sort) > 0 {
		var keys []exec.SortKey
		for _, item := range s.sort {
			k := item.key
			k.Expr = column(item.target)
			keys = append(keys, k)
		}
		q.op = &exec.Sort{Input: q.op, Keys: keys}
	}
	if len(s.distinct) > 0 {
		var keys []exec.Expr
		for _, i := range s.distinct {
			keys = append(keys, column(i))
		}
		q.op = &exec.Unique{Input: q.op, Keys: keys}
	}
}

// joinBy makes conditions column = column of WHERE the keys of the inner joins below, which would else pair all rows
// with all. It gives the conditions that remain.
func joinBy(op exec.Operator, conds []exec.Expr) ([]exec.Expr, error) {
	join, ok := op.(*exec.Join)
	if !ok || join.Kind != exec.InnerJoin {
		return conds, nil
	}
	width := exec.Width(join.Left)
	left, right, rest, err := hashKeys(conds, width)
	if err != nil {
		return nil, err
	}
	join.LeftKeys, join.RightKeys = append(join.LeftKeys, left...), append(join.RightKeys, right...)
	var below, here []exec.Expr
	for _, c := range rest {
		if sideOf(c, width) == leftSide {
			below = append(below, c)
		} else {
			here = append(here, c)
		}
	}
	below, err = joinBy(join.Left, below)
	return append(below, here...), err
}

// pushDown tells a scanned source of the conditions column = constant.
func pushDown(op exec.Operator, where exec.Expr) {
	scan, ok := op.(*exec.Scan)
	if !ok {
		return
	}
	for _, c := range conjuncts(where) {
		fn, ok := c.(*exec.Func)
		if !ok || !exec.IsEquality(fn.Proc) {
			continue
		}
		column, value := fn.Args[0], fn.Args[1]
		if _, ok := column.(*exec.ColumnRef); !ok {
			column, value = value, column
		}
		ref, ok := column.(*exec.ColumnRef)
		if ok && exec.IsConstant(value) && value.Type().OID == ref.Typ.OID {
			scan.Equal = append(scan.Equal, exec.ScanTest{Column: ref.Index, Value: value})
		}
	}
}
