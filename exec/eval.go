package exec

import (
	"context"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// Builtin computes a function. Arguments are decoded; for a strict function none is NULL. args may not be kept.
type Builtin func(c Call, args []datum.Datum) (datum.Datum, error)

// Call is what a builtin may know of its call: the signature, and the run.
type Call struct {
	*Signature
	run *run
}

// Signature is the static part of a call.
type Signature struct {
	Name   string
	Proc   string
	Args   []datum.Type
	Result datum.Type
}

func (e *Const) eval(*frame, []datum.Datum) (datum.Datum, error) { return e.Value, nil }

func (e *ColumnRef) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	return row[e.Index].Decode(e.Typ.OID, f.session)
}

func (e *Param) eval(f *frame, _ []datum.Datum) (datum.Datum, error) {
	return f.env.Params[e.Index].Decode(e.Typ.OID, f.session)
}

func (e *Arg) eval(f *frame, _ []datum.Datum) (datum.Datum, error) { return f.args[e.Index], nil }

func (e *Func) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	base := len(f.stack)
	for _, a := range e.Args {
		d, err := a.eval(f, row)
		if err != nil || e.Strict && d.IsNull() {
			f.stack = f.stack[:base]
			return datum.Null, err
		}
		f.stack = append(f.stack, d)
	}
	d, err := e.apply(f, f.stack[base:])
	f.stack = f.stack[:base]
	return d, err
}

// apply calls the builtin with values.
func (e *Func) apply(f *frame, args []datum.Datum) (datum.Datum, error) {
	return e.Fn(Call{e.call, f.run}, args)
}

// test calls a two-operand operator whose result is a boolean.
func (e *Func) test(f *frame, a, b datum.Datum) (datum.Datum, error) {
	if e.Strict && (a.IsNull() || b.IsNull()) {
		return datum.Null, nil
	}
	base := len(f.stack)
	f.stack = append(f.stack, a, b)
	d, err := e.apply(f, f.stack[base:])
	f.stack = f.stack[:base]
	return d, err
}

func (e *Logic) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	null := false
	for _, a := range e.Args {
		d, err := a.eval(f, row)
		if err != nil {
			return datum.Null, err
		}
		if d.IsNull() {
			null = true
		} else if d.Bool() == e.Or {
			return d, nil
		}
	}
	if null {
		return datum.Null, nil
	}
	return datum.Bool(!e.Or), nil
}

func (e *Not) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	d, err := e.Arg.eval(f, row)
	if err != nil || d.IsNull() {
		return datum.Null, err
	}
	return datum.Bool(!d.Bool()), nil
}

func (e *NullTest) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	d, err := e.Arg.eval(f, row)
	return datum.Bool(d.IsNull() != e.Negate), err
}

func (e *BoolTest) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	d, err := e.Arg.eval(f, row)
	is := d.IsNull()
	if !e.Unknown {
		is = !d.IsNull() && d.Bool() == e.Want
	}
	return datum.Bool(is != e.Negate), err
}

func (e *Distinct) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	a, err := e.Left.eval(f, row)
	if err != nil {
		return datum.Null, err
	}
	b, err := e.Right.eval(f, row)
	if err != nil {
		return datum.Null, err
	}
	equal := a.IsNull() && b.IsNull()
	if !a.IsNull() && !b.IsNull() {
		d, err := e.Equal.test(f, a, b)
		if err != nil {
			return datum.Null, err
		}
		equal = d.Bool()
	}
	if !e.NullIf {
		return datum.Bool(equal == e.Negate), nil
	}
	if equal {
		return datum.Null, nil
	}
	return a, nil
}

func (e *Case) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	for _, w := range e.Whens {
		d, err := w.Cond.eval(f, row)
		if err != nil {
			return datum.Null, err
		}
		if !d.IsNull() && d.Bool() {
			return w.Result.eval(f, row)
		}
	}
	return e.Else.eval(f, row)
}

func (e *Coalesce) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	for _, a := range e.Args {
		if d, err := a.eval(f, row); err != nil || !d.IsNull() {
			return d, err
		}
	}
	return datum.Null, nil
}

func (e *MinMax) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	best := datum.Null
	for _, a := range e.Args {
		d, err := a.eval(f, row)
		if err != nil {
			return datum.Null, err
		}
		if d.IsNull() {
			continue
		}
		if best.IsNull() || (datum.Compare(e.Typ.OID, d, best) < 0) == e.Least && datum.Compare(e.Typ.OID, d, best) != 0 {
			best = d
		}
	}
	return best, nil
}

func (e *ArrayTest) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	left, err := e.Left.eval(f, row)
	if err != nil {
		return datum.Null, err
	}
	array, err := e.Array.eval(f, row)
	if err != nil || array.IsNull() {
		return datum.Null, err
	}
	null := false
	for _, item := range array.Array().Items {
		d, err := e.Op.test(f, left, item)
		if err != nil {
			return datum.Null, err
		}
		if d.IsNull() {
			null = true
		} else if d.Bool() != e.All {
			return d, nil
		}
	}
	if null {
		return datum.Null, nil
	}
	return datum.Bool(e.All), nil
}

func (e *ArrayLit) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	a := &datum.Array{Elem: datum.Elem(e.Typ.OID), Items: make([]datum.Datum, len(e.Items))}
	for i, item := range e.Items {
		var err error
		if a.Items[i], err = item.eval(f, row); err != nil {
			return datum.Null, err
		}
	}
	return datum.FromArray(a), nil
}

func (e *Subscript) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	array, err := e.Array.eval(f, row)
	if err != nil || array.IsNull() {
		return datum.Null, err
	}
	items := array.Array().Items
	lower, upper := int64(1), int64(len(items))
	for i, bound := range []Expr{e.Lower, e.Upper} {
		if bound == nil {
			continue
		}
		d, err := bound.eval(f, row)
		if err != nil || d.IsNull() {
			return datum.Null, err
		}
		if i == 0 {
			lower = d.Int()
		} else {
			upper = d.Int()
		}
	}
	if !e.Slice {
		if lower < 1 || lower > int64(len(items)) {
			return datum.Null, nil
		}
		return items[lower-1], nil
	}
	lower, upper = max(lower, 1), min(upper, int64(len(items)))
	cut := &datum.Array{Elem: array.Array().Elem}
	if lower <= upper {
		cut.Items = items[lower-1 : upper]
	}
	return datum.FromArray(cut), nil
}

func (e *Relabel) eval(f *frame, row []datum.Datum) (datum.Datum, error) { return e.Arg.eval(f, row) }

func (e *CoerceIO) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	d, err := e.Arg.eval(f, row)
	if err != nil || d.IsNull() {
		return datum.Null, err
	}
	text, err := datum.Format(e.Arg.Type().OID, d, f.session)
	if err != nil {
		return datum.Null, err
	}
	return datum.ParseText(e.Typ.OID, text, f.session)
}

func (e *ArrayCast) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	d, err := e.Arg.eval(f, row)
	if err != nil || d.IsNull() {
		return datum.Null, err
	}
	from := d.Array()
	to := &datum.Array{Elem: datum.Elem(e.Typ.OID), Items: make([]datum.Datum, len(from.Items))}
	for i, item := range from.Items {
		if to.Items[i], err = e.Item.eval(f, []datum.Datum{item}); err != nil {
			return datum.Null, err
		}
	}
	return datum.FromArray(to), nil
}

// Evaluate computes an expression that needs no row and no subquery: constants when a query is built.
func Evaluate(e Expr, env *Env) (datum.Datum, error) {
	return e.eval(&frame{run: &run{env: env, session: env.session()}}, nil)
}

func evalAll(f *frame, exprs []Expr, row []datum.Datum) ([]datum.Datum, error) {
	out := make([]datum.Datum, len(exprs))
	for i, e := range exprs {
		var err error
		if out[i], err = e.eval(f, row); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// holds reports whether a condition is true, not false or NULL.
func holds(f *frame, cond Expr, row []datum.Datum) (bool, error) {
	d, err := cond.eval(f, row)
	return err == nil && !d.IsNull() && d.Bool(), err
}

func cancelled(f *frame) error {
	if err := f.ctx.Err(); err != nil {
		return pgerr.From(err)
	}
	return nil
}

// Context gives the run's context: for functions of a resolver.
func (c Call) Context() context.Context { return c.run.ctx }

// Env gives the run's environment.
func (c Call) Env() *Env { return c.run.env }
