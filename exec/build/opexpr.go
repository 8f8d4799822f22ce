package build

import (
	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

func (b *builder) opExpr(l *level, n *sqlparse.A_Expr) (exec.Expr, error) {
	names := strs(n.Name)
	name := ""
	if len(names) > 0 {
		name = names[len(names)-1]
	}
	switch n.Kind {
	case sqlparse.A_Expr_Kind_AEXPR_OP:
		if left, right := n.Lexpr.GetRowExpr(), n.Rexpr.GetRowExpr(); left != nil && right != nil {
			return b.rowCompare(l, name, left.Args, right.Args, n.Location)
		}
		return b.binary(l, name, n.Lexpr, n.Rexpr, n.Location)
	case sqlparse.A_Expr_Kind_AEXPR_LIKE, sqlparse.A_Expr_Kind_AEXPR_ILIKE:
		return b.binary(l, name, n.Lexpr, n.Rexpr, n.Location)
	case sqlparse.A_Expr_Kind_AEXPR_DISTINCT, sqlparse.A_Expr_Kind_AEXPR_NOT_DISTINCT, sqlparse.A_Expr_Kind_AEXPR_NULLIF:
		return b.distinct(l, n)
	case sqlparse.A_Expr_Kind_AEXPR_IN:
		return b.in(l, n, name)
	case sqlparse.A_Expr_Kind_AEXPR_OP_ANY, sqlparse.A_Expr_Kind_AEXPR_OP_ALL:
		return b.anyArray(l, n, name)
	case sqlparse.A_Expr_Kind_AEXPR_BETWEEN, sqlparse.A_Expr_Kind_AEXPR_NOT_BETWEEN,
		sqlparse.A_Expr_Kind_AEXPR_BETWEEN_SYM, sqlparse.A_Expr_Kind_AEXPR_NOT_BETWEEN_SYM:
		return b.between(l, n)
	}
	return nil, unsupported(n.Location, "SIMILAR TO")
}

func (b *builder) binary(l *level, name string, left, right *sqlparse.Node, offset int32) (exec.Expr, error) {
	var le exec.Expr
	if left != nil {
		var err error
		if le, err = b.expr(l, left); err != nil {
			return nil, err
		}
	}
	re, err := b.expr(l, right)
	if err != nil {
		return nil, err
	}
	return b.operator(name, le, re, [2]int32{place(left), place(right)}, offset)
}

// rowCompare is (a, b) = (c, d) and <>; orderings of rows are refused.
func (b *builder) rowCompare(l *level, name string, left, right []*sqlparse.Node, offset int32) (exec.Expr, error) {
	if name != "=" && name != "<>" {
		return nil, unsupported(offset, "the comparison of rows by %s", name)
	}
	if len(left) != len(right) {
		return nil, errAt(offset, pgerr.SyntaxError, "unequal number of entries in row expressions")
	}
	out := &exec.Logic{Or: name == "<>"}
	for i := range left {
		e, err := b.binary(l, name, left[i], right[i], offset)
		if err != nil {
			return nil, err
		}
		out.Args = append(out.Args, e)
	}
	return out, nil
}

// equality resolves = (or another operator) for two operands and requires a boolean builtin call.
func (b *builder) comparison(name string, left, right exec.Expr, places [2]int32, offset int32) (*exec.Func, error) {
	e, err := b.operator(name, left, right, places, offset)
	if err != nil {
		return nil, err
	}
	fn, ok := e.(*exec.Func)
	if !ok || fn.Typ.OID != datum.BoolOID {
		return nil, errAt(offset, pgerr.WrongObjectType, "op ANY/ALL (array) requires operator to yield boolean")
	}
	return fn, nil
}

func (b *builder) distinct(l *level, n *sqlparse.A_Expr) (exec.Expr, error) {
	left, err := b.expr(l, n.Lexpr)
	if err != nil {
		return nil, err
	}
	right, err := b.expr(l, n.Rexpr)
	if err != nil {
		return nil, err
	}
	nullIf := n.Kind == sqlparse.A_Expr_Kind_AEXPR_NULLIF
	eq, err := b.comparison("=", left, right, [2]int32{place(n.Lexpr), place(n.Rexpr)}, n.Location)
	if err != nil {
		return nil, err
	}
	d := &exec.Distinct{
		Equal: eq, Left: eq.Args[0], Right: eq.Args[1], NullIf: nullIf,
		Negate: n.Kind == sqlparse.A_Expr_Kind_AEXPR_NOT_DISTINCT, Typ: datum.Of(datum.BoolOID),
	}
	if nullIf {
		d.Typ = d.Left.Type()
	}
	return d, nil
}

func (b *builder) in(l *level, n *sqlparse.A_Expr, name string) (exec.Expr, error) {
	negate := name == "<>"
	items := n.Rexpr.GetList().GetItems()
	if row := n.Lexpr.GetRowExpr(); row != nil {
		return b.rowIn(l, row, items, name, n.Location)
	}
	left, err := b.expr(l, n.Lexpr)
	if err != nil {
		return nil, err
	}
	out := &exec.Logic{Or: !negate}
	var plain []exec.Expr // without columns: they make one array
	var plainAt []int32
	var rest []exec.Expr
	var restAt []int32
	for _, item := range items {
		e, err := b.expr(l, item)
		if err != nil {
			return nil, err
		}
		if hasColumn(e) {
			rest, restAt = append(rest, e), append(restAt, place(item))
		} else {
			plain, plainAt = append(plain, e), append(plainAt, place(item))
		}
	}
	if e, err := b.inArray(left, plain, plainAt, name, n); err != nil {
		return nil, err
	} else if e != nil {
		out.Args, plain, plainAt = append(out.Args, e), nil, nil
	}
	rest, restAt = append(plain, rest...), append(plainAt, restAt...)
	for i, item := range rest {
		e, err := b.operator(name, left, item, [2]int32{place(n.Lexpr), restAt[i]}, n.Location)
		if err != nil {
			return nil, err
		}
		if e, err = b.boolean(e, n.Location, "IN"); err != nil {
			return nil, err
		}
		out.Args = append(out.Args, e)
	}
	if len(out.Args) == 1 {
		return out.Args[0], nil
	}
	return out, nil
}

func hasColumn(e exec.Expr) bool {
	found := false
	exec.Walk(e, func(e exec.Expr) bool {
		if _, ok := e.(*exec.ColumnRef); ok {
			found = true
		}
		return !found
	})
	return found
}

// inArray makes left = ANY (ARRAY[items]) when there are several items and one type fits all; else nil.
func (b *builder) inArray(left exec.Expr, items []exec.Expr, places []int32, name string, n *sqlparse.A_Expr) (exec.Expr, error) {
	if len(items) < 2 {
		return nil, nil
	}
	oids := []uint32{left.Type().OID}
	for _, e := range items {
		oids = append(oids, e.Type().OID)
	}
	t, ok := commonType(oids)
	if !ok {
		return nil, nil
	}
	if t == datum.UnknownOID {
		t = datum.TextOID
	}
	if elemOf(t) != 0 || !datum.Known(arrayOf(t)) {
		return nil, nil
	}
	if err := b.coerceAll(items, places, t, "IN"); err != nil {
		return nil, err
	}
	item := &exec.ColumnRef{Typ: datum.Of(t)}
	op, err := b.comparison(name, left, item, [2]int32{place(n.Lexpr), places[0]}, n.Location)
	if err != nil {
		return nil, err
	}
	array := exec.Expr(&exec.ArrayLit{Items: items, Typ: datum.Of(arrayOf(t))})
	if array, err = b.itemsAs(array, op.Args[1].Type().OID, places[0]); err != nil {
		return nil, err
	}
	return &exec.ArrayTest{Op: op, All: name == "<>", Left: op.Args[0], Array: array}, nil
}

// itemsAs converts an array so that its items have the type that an operator takes.
func (b *builder) itemsAs(array exec.Expr, elem uint32, offset int32) (exec.Expr, error) {
	if elemOf(array.Type().OID) == elem {
		return array, nil
	}
	e, err := b.coerce(array, datum.Of(arrayOf(elem)), implicit, offset)
	if err == nil && e == nil {
		return nil, unsupported(offset, "an array of type %s here", typeName(array.Type().OID))
	}
	return e, err
}

func (b *builder) rowIn(l *level, row *sqlparse.RowExpr, items []*sqlparse.Node, name string, offset int32) (exec.Expr, error) {
	out := &exec.Logic{Or: name != "<>"}
	for _, item := range items {
		right := item.GetRowExpr()
		if right == nil {
			return nil, unsupported(offset, "a row compared with something else")
		}
		e, err := b.rowCompare(l, name, row.Args, right.Args, offset)
		if err != nil {
			return nil, err
		}
		out.Args = append(out.Args, e)
	}
	return out, nil
}

func (b *builder) anyArray(l *level, n *sqlparse.A_Expr, name string) (exec.Expr, error) {
	left, err := b.expr(l, n.Lexpr)
	if err != nil {
		return nil, err
	}
	right, err := b.expr(l, n.Rexpr)
	if err != nil {
		return nil, err
	}
	elem := uint32(datum.UnknownOID)
	if oid := right.Type().OID; oid != datum.UnknownOID {
		if elem = elemOf(oid); elem == 0 {
			return nil, errAt(n.Location, pgerr.WrongObjectType, "op ANY/ALL (array) requires array on right side")
		}
	}
	var item exec.Expr = &exec.ColumnRef{Typ: datum.Of(elem)}
	if elem == datum.UnknownOID {
		item = &exec.Const{Typ: datum.Of(datum.UnknownOID)}
	}
	op, err := b.comparison(name, left, item, [2]int32{place(n.Lexpr), place(n.Rexpr)}, n.Location)
	if err != nil {
		return nil, err
	}
	want := op.Args[1].Type().OID
	if elem == datum.UnknownOID {
		if right, err = b.coerceUnknown(right, arrayOf(want), place(n.Rexpr)); err != nil {
			return nil, err
		}
	}
	if right, err = b.itemsAs(right, want, place(n.Rexpr)); err != nil {
		return nil, err
	}
	return &exec.ArrayTest{Op: op, All: n.Kind == sqlparse.A_Expr_Kind_AEXPR_OP_ALL, Left: op.Args[0], Array: right}, nil
}

func (b *builder) between(l *level, n *sqlparse.A_Expr) (exec.Expr, error) {
	bounds := n.Rexpr.GetList().GetItems()
	if len(bounds) != 2 {
		return nil, unsupported(n.Location, "this BETWEEN")
	}
	negate := n.Kind == sqlparse.A_Expr_Kind_AEXPR_NOT_BETWEEN || n.Kind == sqlparse.A_Expr_Kind_AEXPR_NOT_BETWEEN_SYM
	low, high := ">=", "<="
	if negate {
		low, high = "<", ">"
	}
	pair := func(x, y *sqlparse.Node) (exec.Expr, error) {
		a, err := b.binary(l, low, n.Lexpr, x, n.Location)
		if err != nil {
			return nil, err
		}
		c, err := b.binary(l, high, n.Lexpr, y, n.Location)
		if err != nil {
			return nil, err
		}
		return &exec.Logic{Or: negate, Args: []exec.Expr{a, c}}, nil
	}
	first, err := pair(bounds[0], bounds[1])
	if err != nil || n.Kind == sqlparse.A_Expr_Kind_AEXPR_BETWEEN || n.Kind == sqlparse.A_Expr_Kind_AEXPR_NOT_BETWEEN {
		return first, err
	}
	second, err := pair(bounds[1], bounds[0])
	if err != nil {
		return nil, err
	}
	return &exec.Logic{Or: !negate, Args: []exec.Expr{first, second}}, nil
}
