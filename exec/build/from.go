package build

import (
	"slices"

	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// fromItem is a built part of FROM.
type fromItem struct {
	op      exec.Operator
	width   int
	ns      *namespace
	lateral *level // the boundary through which it reads what stands left of it; nil or without args: independent
}

func (f *fromItem) args() []exec.Expr {
	if f.lateral == nil {
		return nil
	}
	return f.lateral.args
}

// from builds the FROM list and leaves its namespace in the level.
func (b *builder) from(l *level, items []*sqlparse.Node) (*fromItem, error) {
	if len(items) == 0 {
		return &fromItem{op: &exec.Values{Rows: [][]exec.Expr{{}}}, ns: &namespace{}}, nil
	}
	var all *fromItem
	for _, n := range items {
		if all != nil {
			l.ns = all.ns
		}
		item, err := b.fromItem(l, n)
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = item
			continue
		}
		if all, err = b.join(l, all, item, exec.InnerJoin, nil); err != nil {
			return nil, err
		}
	}
	if len(all.args()) > 0 {
		return nil, unsupported(-1, "a LATERAL reference to an outer query here")
	}
	return all, nil
}

func (b *builder) fromItem(l *level, n *sqlparse.Node) (*fromItem, error) {
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.leave()
	switch n := n.GetNode().(type) {
	case *sqlparse.Node_RangeVar:
		return b.rangeVar(l, n.RangeVar)
	case *sqlparse.Node_RangeSubselect:
		return b.rangeSubselect(l, n.RangeSubselect)
	case *sqlparse.Node_RangeFunction:
		return b.rangeFunction(l, n.RangeFunction)
	case *sqlparse.Node_JoinExpr:
		return b.joinExpr(l, n.JoinExpr)
	}
	return nil, unsupported(-1, "this kind of FROM item (%s)", nodeName(n))
}

// named makes a one-relation item.
func named(op exec.Operator, columns []exec.Column, schema, name string, alias *sqlparse.Alias) (*fromItem, error) {
	rel := &relation{schema: schema, alias: name, table: name}
	for i, c := range columns {
		rel.columns = append(rel.columns, namedColumn{c.Name, &exec.ColumnRef{Index: i, Typ: c.Type, Name: c.Name}})
	}
	if err := rel.rename(alias); err != nil {
		return nil, err
	}
	return &fromItem{op: op, width: len(columns), ns: &namespace{relations: []*relation{rel}, columns: rel.columns}}, nil
}

// rename applies an alias with its column names.
func (r *relation) rename(alias *sqlparse.Alias) error {
	if alias == nil {
		return nil
	}
	r.schema, r.alias = "", alias.Aliasname
	names := strs(alias.Colnames)
	if len(names) > len(r.columns) {
		return errAt(-1, pgerr.InvalidColumnReference, "table \"%s\" has %d columns available but %d columns specified",
			r.alias, len(r.columns), len(names))
	}
	r.columns = slices.Clone(r.columns)
	for i, name := range names {
		r.columns[i].name = name
	}
	return nil
}

func (b *builder) rangeVar(l *level, n *sqlparse.RangeVar) (*fromItem, error) {
	if n.Schemaname == "" {
		if c := b.findCTE(l, n.Relname); c != nil {
			return named(&exec.CTEScan{CTE: c.def}, c.columns, "", n.Relname, n.Alias)
		}
	}
	source, ok := b.resolver.Resolve(n.Schemaname, n.Relname)
	if !ok {
		return nil, b.noRelation(n)
	}
	columns := source.Columns()
	used := make([]bool, len(columns))
	for i := range used {
		used[i] = true
	}
	return named(&exec.Scan{Source: source, Used: used}, columns, n.Schemaname, n.Relname, n.Alias)
}

func (b *builder) noRelation(n *sqlparse.RangeVar) error {
	full := n.Relname
	if n.Schemaname != "" {
		full = n.Schemaname + "." + n.Relname
	}
	e := errAt(n.Location, pgerr.UndefinedTable, "relation \"%s\" does not exist", full)
	if names, ok := b.resolver.(RelationNames); ok {
		if near := pgerr.Nearest(n.Relname, names.RelationNames(n.Schemaname)); near != "" {
			if n.Schemaname != "" {
				near = n.Schemaname + "." + near
			}
			return e.hint("Perhaps you meant \"%s\".", near)
		}
	}
	return e
}

func (b *builder) rangeSubselect(l *level, n *sqlparse.RangeSubselect) (*fromItem, error) {
	var inner *level
	if n.Lateral {
		inner = l.inner()
	} else {
		inner = l.beside()
	}
	q, err := b.query(n.Subquery.GetSelectStmt(), inner, false)
	if err != nil {
		return nil, err
	}
	item, err := named(q.op, q.columns, "", "", n.Alias)
	if err != nil {
		return nil, err
	}
	if n.Lateral {
		item.lateral = inner
	}
	return item, nil
}

func (b *builder) rangeFunction(l *level, n *sqlparse.RangeFunction) (*fromItem, error) {
	if len(n.Functions) != 1 || n.IsRowsfrom || len(n.Coldeflist) > 0 {
		return nil, unsupported(-1, "ROWS FROM or a column definition list")
	}
	node := n.Functions[0].GetList().GetItems()[0]
	call := node.GetFuncCall()
	if call == nil {
		return nil, unsupported(place(node), "this function in FROM")
	}
	inner := l.inner()
	inner.place = "functions in FROM"
	names := strs(call.Funcname)
	schema, name := "", names[len(names)-1]
	if len(names) > 1 {
		schema = names[len(names)-2]
	}
	args, err := b.arguments(inner, call, isAggregate(schema, name))
	if err != nil {
		return nil, err
	}
	c, err := b.findFunction(schema, name, call, args)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, unsupported(call.Location, "a cast in FROM")
	}
	result, exprs, err := b.bind(c, args.exprs, args.offsets, call.Location)
	if err != nil {
		return nil, err
	}
	op, columns, err := b.functionRows(c, name, result, exprs, args, n, call.Location)
	if err != nil {
		return nil, err
	}
	item, err := named(op, columns, "", name, n.Alias)
	if err == nil {
		item.lateral = inner
	}
	return item, err
}

func (b *builder) functionRows(c *candidate, name string, result datum.Type, exprs []exec.Expr, args *funcArgs,
	n *sqlparse.RangeFunction, offset int32,
) (exec.Operator, []exec.Column, error) {
	columnName := name
	if n.Alias != nil {
		columnName = n.Alias.Aliasname
	}
	columns := []exec.Column{{Name: columnName, Type: result}}
	if c.own != nil && c.own.Table != nil {
		if n.Ordinality {
			return nil, nil, unsupported(offset, "WITH ORDINALITY of this function")
		}
		return &exec.SourceScan{Make: c.own.Table, Args: ownArguments(c.own, exprs, args), Columns: len(c.own.Columns)},
			c.own.Columns, nil
	}
	fn, ok := exec.LookupSet(c.row.proc)
	if ok && datum.Known(result.OID) {
		op := &exec.FuncScan{Name: name, Fn: fn, Args: exprs, Types: []datum.Type{result}, Ordinal: n.Ordinality}
		if n.Ordinality {
			columns = append(columns, exec.Column{Name: "ordinality", Type: datum.Of(datum.Int8OID)})
		}
		return op, columns, nil
	}
	if c.row.set || c.row.kind != 'f' || n.Ordinality {
		return nil, nil, unsupported(offset, "the function %s in FROM", name)
	}
	var e exec.Expr
	var err error
	if c.own != nil {
		e, err = b.ownCall(c, name, args, &sqlparse.FuncCall{Location: offset})
	} else {
		e, err = b.call(c.row, name, result, b.fillDefaults(c, exprs, args), offset)
	}
	if err != nil {
		return nil, nil, err
	}
	return &exec.Values{Rows: [][]exec.Expr{{e}}}, columns, nil
}

func (b *builder) joinExpr(l *level, n *sqlparse.JoinExpr) (*fromItem, error) {
	outside := l.ns
	left, err := b.fromItem(l, n.Larg)
	if err != nil {
		return nil, err
	}
	if len(left.args()) > 0 {
		return nil, unsupported(-1, "a LATERAL reference across a join")
	}
	l.ns = left.ns
	right, err := b.fromItem(l, n.Rarg)
	l.ns = outside
	if err != nil {
		return nil, err
	}
	kind, ok := map[sqlparse.JoinType]exec.JoinKind{
		sqlparse.JoinType_JOIN_INNER: exec.InnerJoin, sqlparse.JoinType_JOIN_LEFT: exec.LeftJoin,
		sqlparse.JoinType_JOIN_RIGHT: exec.RightJoin, sqlparse.JoinType_JOIN_FULL: exec.FullJoin,
	}[n.Jointype]
	if !ok || n.JoinUsingAlias != nil {
		return nil, unsupported(-1, "this kind of join")
	}
	if len(right.args()) > 0 && kind != exec.InnerJoin && kind != exec.LeftJoin {
		return nil, errAt(-1, pgerr.InvalidColumnReference, "invalid reference to FROM-clause entry").
			hint("The combining JOIN type must be INNER or LEFT for a LATERAL reference.")
	}
	using := strs(n.UsingClause)
	if n.IsNatural {
		using = commonNames(left.ns, right.ns)
	}
	joined, err := b.join(l, left, right, kind, &joinCond{using: using, on: n.Quals, natural: n.IsNatural})
	if err != nil || n.Alias == nil {
		return joined, err
	}
	rel := &relation{columns: joined.ns.columns}
	if err := rel.rename(n.Alias); err != nil {
		return nil, err
	}
	joined.ns = &namespace{relations: []*relation{rel}, columns: rel.columns}
	return joined, nil
}

func commonNames(left, right *namespace) []string {
	var out []string
	for _, a := range left.columns {
		if slices.ContainsFunc(right.columns, func(c namedColumn) bool { return c.name == a.name }) {
			out = append(out, a.name)
		}
	}
	return out
}

// joinCond is what a JOIN says of its rows.
type joinCond struct {
	using   []string
	natural bool
	on      *sqlparse.Node
}

// join puts two items side by side.
func (b *builder) join(l *level, left, right *fromItem, kind exec.JoinKind, cond *joinCond) (*fromItem, error) {
	shifted, err := right.ns.shift(left.width)
	if err != nil {
		return nil, err
	}
	ns := &namespace{
		relations: append(slices.Clone(left.ns.relations), shifted.relations...),
		columns:   append(slices.Clone(left.ns.columns), shifted.columns...),
	}
	if err := uniqueAliases(left.ns, shifted); err != nil {
		return nil, err
	}
	var conds []exec.Expr
	if cond != nil {
		if len(cond.using) > 0 {
			if conds, ns.columns, err = b.using(left.ns, shifted, cond.using, kind); err != nil {
				return nil, err
			}
		}
		if cond.on != nil {
			on, err := b.onCondition(l, ns, cond.on)
			if err != nil {
				return nil, err
			}
			conds = append(conds, conjuncts(on)...)
		}
	}
	out := &fromItem{width: left.width + right.width, ns: ns, lateral: left.lateral}
	if args := right.args(); len(args) > 0 {
		out.op = &exec.Lateral{Kind: kind, Left: left.op, Right: right.op, Args: args, On: conjunction(conds)}
		return out, nil
	}
	op := &exec.Join{Kind: kind, Left: left.op, Right: right.op}
	op.LeftKeys, op.RightKeys, conds, err = hashKeys(conds, left.width)
	op.On = conjunction(conds)
	out.op = op
	return out, err
}

func (b *builder) onCondition(l *level, ns *namespace, n *sqlparse.Node) (exec.Expr, error) {
	old := l.ns
	l.ns = ns
	defer func() { l.ns = old }()
	var e exec.Expr
	err := l.within("JOIN conditions", func() (err error) {
		if e, err = b.expr(l, n); err != nil {
			return err
		}
		e, err = b.boolean(e, place(n), "JOIN/ON")
		return err
	})
	return e, err
}

func (ns *namespace) shift(by int) (*namespace, error) {
	move := func(columns []namedColumn) ([]namedColumn, error) {
		out := make([]namedColumn, len(columns))
		for i, c := range columns {
			e, err := shift(c.expr, by)
			if err != nil {
				return nil, err
			}
			out[i] = namedColumn{c.name, e}
		}
		return out, nil
	}
	moved := &namespace{}
	for _, r := range ns.relations {
		columns, err := move(r.columns)
		if err != nil {
			return nil, err
		}
		moved.relations = append(moved.relations, &relation{r.schema, r.alias, r.table, columns})
	}
	var err error
	moved.columns, err = move(ns.columns)
	return moved, err
}

// shift moves an expression's column references.
func shift(e exec.Expr, by int) (exec.Expr, error) {
	return exec.Map(e, func(e exec.Expr) (exec.Expr, error) {
		if c, ok := e.(*exec.ColumnRef); ok {
			moved := *c
			moved.Index += by
			return &moved, nil
		}
		return nil, nil
	})
}

func uniqueAliases(left, right *namespace) error {
	for _, r := range right.relations {
		for _, o := range left.relations {
			if r.alias == o.alias && r.alias != "" && (r.schema == o.schema || r.schema == "" || o.schema == "") {
				return errAt(-1, pgerr.DuplicateAlias, "table name \"%s\" specified more than once", r.alias)
			}
		}
	}
	return nil
}

// using gives the equalities of USING and the columns after it: merged ones first.
func (b *builder) using(left, right *namespace, names []string, kind exec.JoinKind) ([]exec.Expr, []namedColumn, error) {
	var conds []exec.Expr
	var merged []namedColumn
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return nil, nil, errAt(-1, "42701", "column name \"%s\" appears more than once in USING clause", name)
		}
		le, err := usingColumn(left, name, "left")
		if err != nil {
			return nil, nil, err
		}
		re, err := usingColumn(right, name, "right")
		if err != nil {
			return nil, nil, err
		}
		eq, err := b.operator("=", le, re, [2]int32{-1, -1}, -1)
		if err != nil {
			return nil, nil, err
		}
		conds = append(conds, eq)
		both := []exec.Expr{le, re}
		oid, err := common(both, []int32{-1, -1}, "JOIN/USING")
		if err != nil {
			return nil, nil, err
		}
		if err := b.coerceAll(both, []int32{-1, -1}, oid, "JOIN/USING"); err != nil {
			return nil, nil, err
		}
		e := both[0]
		switch kind {
		case exec.RightJoin:
			e = both[1]
		case exec.FullJoin:
			e = &exec.Coalesce{Args: both, Typ: resultType(oid, both)}
		}
		merged = append(merged, namedColumn{name, e})
	}
	for _, c := range append(slices.Clone(left.columns), right.columns...) {
		if !slices.Contains(names, c.name) {
			merged = append(merged, c)
		}
	}
	return conds, merged, nil
}

func usingColumn(ns *namespace, name, side string) (exec.Expr, error) {
	e, _, err := ns.find("", "", name, -1)
	if err != nil {
		return nil, errAt(-1, pgerr.AmbiguousColumn, "common column name \"%s\" appears more than once in %s table", name, side)
	}
	if e == nil {
		return nil, errAt(-1, pgerr.UndefinedColumn, "column \"%s\" specified in USING clause does not exist in %s table", name, side)
	}
	return e, nil
}

func conjuncts(e exec.Expr) []exec.Expr {
	if and, ok := e.(*exec.Logic); ok && !and.Or {
		var out []exec.Expr
		for _, a := range and.Args {
			out = append(out, conjuncts(a)...)
		}
		return out
	}
	return []exec.Expr{e}
}

func conjunction(conds []exec.Expr) exec.Expr {
	switch len(conds) {
	case 0:
		return nil
	case 1:
		return conds[0]
	}
	return &exec.Logic{Args: conds}
}

// hashKeys takes the conditions out that say left expression = right expression.
func hashKeys(conds []exec.Expr, width int) (left, right, rest []exec.Expr, err error) {
	for _, c := range conds {
		fn, ok := c.(*exec.Func)
		if !ok || !exec.IsEquality(fn.Proc) || !sameForm(fn.Args[0].Type().OID, fn.Args[1].Type().OID) {
			rest = append(rest, c)
			continue
		}
		a, b := sideOf(fn.Args[0], width), sideOf(fn.Args[1], width)
		l, r := fn.Args[0], fn.Args[1]
		if a == rightSide && b == leftSide {
			l, r = r, l
		} else if a != leftSide || b != rightSide {
			rest = append(rest, c)
			continue
		}
		if r, err = shift(r, -width); err != nil {
			return nil, nil, nil, err
		}
		left, right = append(left, l), append(right, r)
	}
	return left, right, rest, nil
}

const (
	noSide = iota
	leftSide
	rightSide
	bothSides
)

// sideOf tells which input's columns an expression reads.
func sideOf(e exec.Expr, width int) int {
	side := noSide
	exec.Walk(e, func(e exec.Expr) bool {
		if c, ok := e.(*exec.ColumnRef); ok {
			if c.Index < width {
				side |= leftSide
			} else {
				side |= rightSide
			}
		}
		return true
	})
	return side
}
