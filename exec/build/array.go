package build

import (
	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// arrayExpr builds ARRAY[...]; want is the array type a cast asks for, or 0.
func (b *builder) arrayExpr(l *level, n *sqlparse.A_ArrayExpr, want uint32) (exec.Expr, error) {
	items, offsets := make([]exec.Expr, len(n.Elements)), make([]int32, len(n.Elements))
	for i, e := range n.Elements {
		if e.GetAArrayExpr() != nil {
			return nil, unsupported(n.Location, "an array of more than one dimension")
		}
		var err error
		if items[i], err = b.expr(l, e); err != nil {
			return nil, err
		}
		offsets[i] = place(e)
		if elemOf(items[i].Type().OID) != 0 {
			return nil, unsupported(n.Location, "an array of more than one dimension")
		}
	}
	elem := elemOf(want)
	ctx := explicit
	if want == 0 {
		if len(items) == 0 {
			return nil, errAt(n.Location, pgerr.IndeterminateDatatype, "cannot determine type of empty array").
				hint("Explicitly cast to the desired type, for example ARRAY[]::integer[].")
		}
		var err error
		if elem, err = common(items, offsets, "ARRAY"); err != nil {
			return nil, err
		}
		ctx = implicit
	}
	for i := range items {
		e, err := b.coerce(items[i], datum.Of(elem), ctx, offsets[i])
		if err != nil {
			return nil, err
		}
		if e == nil {
			return nil, errAt(offsets[i], "42846", "cannot cast type %s to %s", typeName(items[i].Type().OID), typeName(elem))
		}
		items[i] = e
	}
	oid := arrayOf(elem)
	if !datum.Known(oid) {
		return nil, unsupported(n.Location, "an array of type %s", typeName(elem))
	}
	return &exec.ArrayLit{Items: items, Typ: datum.Of(oid)}, nil
}

func (b *builder) indirection(l *level, n *sqlparse.A_Indirection) (exec.Expr, error) {
	e, err := b.expr(l, n.Arg)
	if err != nil {
		return nil, err
	}
	offset := place(n.Arg)
	for _, i := range n.Indirection {
		idx := i.GetAIndices()
		if idx == nil {
			return nil, unsupported(offset, "selection of a field")
		}
		if e, err = b.subscript(l, e, idx, offset); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func (b *builder) subscript(l *level, array exec.Expr, n *sqlparse.A_Indices, offset int32) (exec.Expr, error) {
	oid := array.Type().OID
	if datum.Elem(oid) == 0 {
		if oid == datum.JSONBOID {
			return nil, unsupported(offset, "subscripting jsonb")
		}
		return nil, errAt(offset, pgerr.DatatypeMismatch, "cannot subscript type %s because it does not support subscripting",
			typeName(oid))
	}
	s := &exec.Subscript{Array: array, Slice: n.IsSlice, Typ: datum.Of(datum.Elem(oid))}
	if n.IsSlice {
		s.Typ = datum.Of(oid)
	}
	bounds := [2]*sqlparse.Node{n.Lidx, n.Uidx}
	if !n.IsSlice {
		bounds = [2]*sqlparse.Node{n.Uidx, nil}
	}
	for i, bound := range bounds {
		if bound == nil {
			continue
		}
		e, err := b.expr(l, bound)
		if err != nil {
			return nil, err
		}
		if e, err = b.must(e, datum.Int4OID, place(bound), "array subscript must have type integer"); err != nil {
			return nil, err
		}
		if i == 0 {
			s.Lower = e
		} else {
			s.Upper = e
		}
	}
	return s, nil
}
