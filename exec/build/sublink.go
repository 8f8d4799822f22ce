package build

import (
	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

func (b *builder) subLink(l *level, n *sqlparse.SubLink) (exec.Expr, error) {
	var left []exec.Expr
	var places []int32
	if n.Testexpr != nil {
		nodes := []*sqlparse.Node{n.Testexpr}
		if row := n.Testexpr.GetRowExpr(); row != nil {
			nodes = row.Args
		}
		for _, node := range nodes {
			e, err := b.expr(l, node)
			if err != nil {
				return nil, err
			}
			left, places = append(left, e), append(places, place(node))
		}
	}
	inner := l.inner()
	q, err := b.query(n.Subselect.GetSelectStmt(), inner, false)
	if err != nil {
		return nil, err
	}
	s := &exec.Subquery{Root: q.op, Args: inner.args, Local: inner.local, Typ: datum.Of(datum.BoolOID)}
	switch n.SubLinkType {
	case sqlparse.SubLinkType_EXISTS_SUBLINK:
		s.Kind = exec.Exists
		return s, nil
	case sqlparse.SubLinkType_EXPR_SUBLINK, sqlparse.SubLinkType_ARRAY_SUBLINK:
		if len(q.columns) != 1 {
			return nil, errAt(n.Location, pgerr.SyntaxError, "subquery must return only one column")
		}
		s.Kind, s.Typ = exec.Scalar, q.columns[0].Type
		b.subNames[n] = q.columns[0].Name
		if n.SubLinkType == sqlparse.SubLinkType_EXPR_SUBLINK {
			return s, nil
		}
		oid := arrayOf(s.Typ.OID)
		if elemOf(s.Typ.OID) != 0 || !datum.Known(oid) {
			return nil, unsupported(n.Location, "an array of type %s", typeName(s.Typ.OID))
		}
		s.Kind, s.Typ = exec.ArrayOfRows, datum.Of(oid)
		return s, nil
	case sqlparse.SubLinkType_ANY_SUBLINK:
		s.Kind = exec.AnyRow
	case sqlparse.SubLinkType_ALL_SUBLINK:
		s.Kind = exec.AllRows
	default:
		return nil, unsupported(n.Location, "this kind of subquery")
	}
	return b.compareRows(s, q, left, places, n)
}

func (b *builder) compareRows(s *exec.Subquery, q *query, left []exec.Expr, places []int32, n *sqlparse.SubLink) (exec.Expr, error) {
	name := "="
	if names := strs(n.OperName); len(names) > 0 {
		name = names[len(names)-1]
	}
	switch {
	case len(q.columns) > len(left):
		return nil, errAt(n.Location, pgerr.SyntaxError, "subquery has too many columns")
	case len(q.columns) < len(left):
		return nil, errAt(n.Location, pgerr.SyntaxError, "subquery has too few columns")
	case len(left) > 1 && (name != "=" || s.Kind == exec.AllRows):
		return nil, unsupported(n.Location, "this comparison of rows")
	}
	project := make([]exec.Expr, len(left))
	s.Keyed = len(left) == 1
	for i := range left {
		right := &exec.ColumnRef{Index: i, Typ: q.columns[i].Type}
		op, err := b.comparison(name, left[i], right, [2]int32{places[i], n.Location}, n.Location)
		if err != nil {
			return nil, err
		}
		s.Left = append(s.Left, op.Args[0])
		s.Ops = append(s.Ops, op)
		project[i] = op.Args[1] // the column, converted to what the operator takes
		s.Keyed = s.Keyed && exec.IsEquality(op.Proc) && sameForm(op.Args[0].Type().OID, op.Args[1].Type().OID)
	}
	s.Root = &exec.Project{Input: s.Root, Exprs: project}
	return s, nil
}

// sameForm reports whether equal values of two types have equal keys.
func sameForm(a, b uint32) bool {
	form := func(oid uint32) uint32 {
		switch oid {
		case datum.Int2OID, datum.Int4OID, datum.Int8OID:
			return datum.Int8OID
		case datum.VarcharOID, datum.NameOID:
			return datum.TextOID
		case datum.Float4OID:
			return datum.Float8OID
		}
		return oid
	}
	return form(a) == form(b) && datum.Comparable(a)
}
