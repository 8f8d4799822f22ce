package build

import (
	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
)

// coercion contexts, weakest first.
type castContext uint8

const (
	implicit castContext = iota
	assignment
	explicit
)

type pathKind uint8

const (
	noPath pathKind = iota
	byRelabel
	byFunction
	byIO
	byItems
)

// pathway finds how a value of one type becomes another (find_coercion_pathway).
func pathway(from, to uint32, ctx castContext) (pathKind, castRow) {
	if from == to {
		return byRelabel, castRow{}
	}
	if c, ok := system().casts[[2]uint32{from, to}]; ok {
		allowed := c.context == 'i' || c.context == 'a' && ctx >= assignment || ctx == explicit
		if !allowed {
			return noPath, c
		}
		switch c.method {
		case 'f':
			return byFunction, c
		case 'b':
			return byRelabel, c
		}
		return byIO, c
	}
	// as in the server, nothing becomes an oidvector or int2vector by the back door
	if fe, te := elemOf(from), elemOf(to); fe != 0 && te != 0 && to != oidVector && to != int2Vector {
		if kind, c := pathway(fe, te, ctx); kind != noPath {
			if kind == byRelabel {
				return byRelabel, c
			}
			return byItems, c
		}
	}
	if fc, _ := category(from); ctx == explicit && fc == 'S' {
		return byIO, castRow{}
	}
	if tc, _ := category(to); ctx >= assignment && tc == 'S' {
		return byIO, castRow{}
	}
	return noPath, castRow{}
}

const (
	int2Vector = 22
	oidVector  = 30
)

// canCoerce reports whether values of the given types are taken where the declared types are asked for.
func canCoerce(given, declared []uint32, ctx castContext) bool {
	generic := false
	for i, from := range given {
		to := declared[i]
		switch {
		case from == to, to == datum.AnyOID:
			continue
		case polymorphic(to):
			generic = true
			continue
		case from == datum.UnknownOID:
			continue
		}
		if kind, _ := pathway(from, to, ctx); kind == noPath {
			return false
		}
	}
	if generic {
		_, ok := bindGeneric(given, declared)
		return ok
	}
	return true
}

// generic is what the polymorphic types of one call stand for.
type generic struct {
	elem, array             uint32 // anyelement, anyarray
	compatible, compatArray uint32
}

func (g *generic) of(oid uint32) uint32 {
	switch oid {
	case datum.AnyElementOID, datum.AnyNonArrayOID:
		return g.elem
	case datum.AnyArrayOID:
		return g.array
	case datum.AnyCompatibleOID, datum.AnyCompatibleNonArrayOID:
		return g.compatible
	case datum.AnyCompatibleArrayOID:
		return g.compatArray
	}
	return oid
}

// bindGeneric finds the types that polymorphic parameters stand for; unknown arguments take what the others say, and
// text when there is none.
func bindGeneric(given, declared []uint32) (*generic, bool) {
	g := &generic{}
	var compatible []uint32
	unknown := false
	for i, to := range declared {
		from := given[i]
		if !polymorphic(to) {
			continue
		}
		if from == datum.UnknownOID {
			unknown = true
			continue
		}
		switch to {
		case datum.AnyElementOID, datum.AnyNonArrayOID:
			if g.elem != 0 && g.elem != from || to == datum.AnyNonArrayOID && elemOf(from) != 0 {
				return nil, false
			}
			g.elem = from
		case datum.AnyArrayOID:
			if elemOf(from) == 0 || g.array != 0 && g.array != from {
				return nil, false
			}
			g.array = from
		case datum.AnyCompatibleOID:
			compatible = append(compatible, from)
		case datum.AnyCompatibleNonArrayOID:
			if elemOf(from) != 0 {
				return nil, false
			}
			compatible = append(compatible, from)
		case datum.AnyCompatibleArrayOID:
			if elemOf(from) == 0 {
				return nil, false
			}
			compatible = append(compatible, elemOf(from))
		default:
			return nil, false
		}
	}
	return g.settle(compatible, unknown)
}

func (g *generic) settle(compatible []uint32, unknown bool) (*generic, bool) {
	if g.array != 0 {
		e := elemOf(g.array)
		if g.elem != 0 && g.elem != e {
			return nil, false
		}
		g.elem = e
	}
	if g.elem == 0 && unknown && len(compatible) == 0 {
		g.elem = datum.TextOID
	}
	if g.elem != 0 && g.array == 0 {
		g.array = arrayOf(g.elem)
	}
	if len(compatible) > 0 {
		t, ok := commonType(compatible)
		if !ok {
			return nil, false
		}
		for _, c := range compatible {
			if !canCoerce([]uint32{c}, []uint32{t}, implicit) {
				return nil, false
			}
		}
		g.compatible = t
	} else if unknown {
		g.compatible = datum.TextOID
	}
	g.compatArray = arrayOf(g.compatible)
	return g, true
}

// commonType is select_common_type without the error; unknown types give way.
func commonType(oids []uint32) (uint32, bool) {
	chosen := oids[0]
	ccat, cpref := category(chosen)
	for _, oid := range oids[1:] {
		if oid == datum.UnknownOID || oid == chosen {
			continue
		}
		cat, pref := category(oid)
		switch {
		case chosen == datum.UnknownOID:
		case cat != ccat:
			return 0, false
		case !cpref && canCoerce([]uint32{chosen}, []uint32{oid}, implicit) && !canCoerce([]uint32{oid}, []uint32{chosen}, implicit):
		default:
			continue
		}
		chosen, ccat, cpref = oid, cat, pref
	}
	return chosen, true
}

// common gives the common type of expressions, text when none says more. what names the construct in the error.
func common(exprs []exec.Expr, offsets []int32, what string) (uint32, error) {
	oids := make([]uint32, len(exprs))
	for i, e := range exprs {
		oids[i] = e.Type().OID
	}
	t := oids[0]
	for i := range oids {
		merged, ok := commonType(append([]uint32{t}, oids[i]))
		if !ok {
			return 0, errAt(offsets[i], pgerr.DatatypeMismatch, "%s types %s and %s cannot be matched", what,
				typeName(t), typeName(oids[i]))
		}
		t = merged
	}
	if t == datum.UnknownOID {
		t = datum.TextOID
	}
	return t, nil
}

// coerceAll brings expressions to one type, which common chose.
func (b *builder) coerceAll(exprs []exec.Expr, offsets []int32, oid uint32, what string) error {
	for i, e := range exprs {
		c, err := b.coerce(e, datum.Of(oid), implicit, offsets[i])
		if err != nil {
			return err
		}
		if c == nil {
			return errAt(offsets[i], "42846", "%s could not convert type %s to %s", what, typeName(e.Type().OID), typeName(oid))
		}
		exprs[i] = c
	}
	return nil
}

// sessionBound are the types whose input may depend on the time zone or the current time, so that their literals must
// be read anew by each run.
func sessionBound(oid uint32) bool {
	if e := datum.Elem(oid); e != 0 {
		oid = e
	}
	return oid == datum.DateOID || oid == datum.TimestampOID || oid == datum.TimestamptzOID
}

// coerce converts an expression; nil without error when there is no way in that context.
func (b *builder) coerce(e exec.Expr, to datum.Type, ctx castContext, offset int32) (exec.Expr, error) {
	out, err := b.coerceType(e, to.OID, ctx, offset)
	if err != nil || out == nil || to.Typmod < 0 || to.Typmod == e.Type().Typmod && to.OID == e.Type().OID {
		return out, err
	}
	return b.fit(out, to, ctx, offset)
}

func (b *builder) coerceType(e exec.Expr, to uint32, ctx castContext, offset int32) (exec.Expr, error) {
	from := e.Type().OID
	if from == to || to == datum.AnyOID {
		return e, nil
	}
	if from == datum.UnknownOID {
		return b.coerceUnknown(e, to, offset)
	}
	kind, c := pathway(from, to, ctx)
	if kind == noPath {
		return nil, nil
	}
	if !datum.Known(to) || !datum.Known(from) {
		return nil, unsupported(offset, "a cast from %s to %s", typeName(from), typeName(to))
	}
	switch kind {
	case byRelabel:
		return &exec.Relabel{Arg: e, Typ: datum.Of(to)}, nil
	case byIO:
		return &exec.CoerceIO{Arg: e, Typ: datum.Of(to)}, nil
	case byItems:
		item, err := b.coerceType(&exec.ColumnRef{Typ: datum.Of(elemOf(from))}, elemOf(to), ctx, offset)
		if err != nil || item == nil {
			return item, err
		}
		return &exec.ArrayCast{Arg: e, Item: item, Typ: datum.Of(to)}, nil
	}
	fn, ok := exec.Lookup(c.proc)
	if !ok {
		return nil, unsupported(offset, "a cast from %s to %s", typeName(from), typeName(to))
	}
	return exec.NewFunc(typeName(to), c.proc, fn, true, datum.Of(to), e), nil
}

// coerceUnknown gives a literal or parameter of unknown type a type.
func (b *builder) coerceUnknown(e exec.Expr, to uint32, offset int32) (exec.Expr, error) {
	if !datum.Known(to) {
		return nil, unsupported(offset, "a value of type %s", typeName(to))
	}
	switch e := e.(type) {
	case *exec.Param:
		return b.typeParam(e, to, offset)
	case *exec.Const:
		if e.Value.IsNull() {
			return &exec.Const{Typ: datum.Of(to)}, nil
		}
		d, err := datum.ParseText(to, e.Value.Text(), nil)
		if err != nil {
			return nil, at(err, offset)
		}
		if sessionBound(to) {
			return &exec.CoerceIO{Arg: &exec.Const{Value: e.Value, Typ: datum.Of(datum.TextOID)}, Typ: datum.Of(to)}, nil
		}
		return &exec.Const{Value: d, Typ: datum.Of(to)}, nil
	}
	return &exec.CoerceIO{Arg: e, Typ: datum.Of(to)}, nil
}

func (b *builder) typeParam(p *exec.Param, to uint32, offset int32) (exec.Expr, error) {
	known := b.params[p.Index]
	switch {
	case known == 0 || known == datum.UnknownOID:
		b.params[p.Index] = to
	case known != to:
		e := errAt(offset, "42P08", "inconsistent types deduced for parameter $%d", p.Index+1)
		e.err = e.err.WithDetail("%s versus %s", typeName(known), typeName(to))
		return nil, e
	}
	return &exec.Param{Index: p.Index, Typ: datum.Of(to)}, nil
}

// fit applies a type's modifier: rounds or cuts, or refuses.
func (b *builder) fit(e exec.Expr, to datum.Type, ctx castContext, offset int32) (exec.Expr, error) {
	typmod := &exec.Const{Value: datum.Int(int64(to.Typmod)), Typ: datum.Of(datum.Int4OID)}
	cast := &exec.Const{Value: datum.Bool(ctx == explicit), Typ: datum.Of(datum.BoolOID)}
	proc := ""
	switch to.OID {
	case datum.VarcharOID:
		proc = "varchar"
	case datum.NumericOID:
		proc = "numeric"
	case datum.TimestampOID:
		proc = "timestamp_scale"
	case datum.TimestamptzOID:
		proc = "timestamptz_scale"
	default:
		return nil, unsupported(offset, "a modifier of type %s", typeName(to.OID))
	}
	fn, _ := exec.Lookup(proc)
	return exec.NewFunc(typeName(to.OID), proc, fn, true, to, e, typmod, cast), nil
}

// must is coerce for places that need the type: 42804 (or the given error) when there is no way.
func (b *builder) must(e exec.Expr, oid uint32, offset int32, format string, args ...any) (exec.Expr, error) {
	c, err := b.coerce(e, datum.Of(oid), assignment, offset)
	if err == nil && c == nil {
		return nil, errAt(offset, pgerr.DatatypeMismatch, format, args...)
	}
	return c, err
}

// boolean coerces a condition.
func (b *builder) boolean(e exec.Expr, offset int32, what string) (exec.Expr, error) {
	return b.must(e, datum.BoolOID, offset, "argument of %s must be type boolean, not type %s", what, typeName(e.Type().OID))
}
