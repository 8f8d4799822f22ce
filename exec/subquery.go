package exec

import (
	"fmt"
	"io"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// SubqueryKind is how a subquery's rows become a value.
type SubqueryKind uint8

// The kinds of Subquery.
const (
	Scalar      SubqueryKind = iota // the one row's one column, NULL when there is none
	Exists                          // whether there is a row
	AnyRow                          // whether Left compares true with some row
	AllRows                         // whether Left compares true with every row
	ArrayOfRows                     // the one column's values as an array
)

// Subquery is a subquery inside an expression. Args are computed in the row around it and reach the subquery as Arg;
// without any, it is run once.
type Subquery struct {
	Kind SubqueryKind
	Root Operator
	Args []Expr
	// Left is compared with the subquery's columns by Ops, one each (AnyRow and AllRows).
	Left []Expr
	Ops  []*Func
	// Keyed says that every op is the equality of the column's type, so that rows may be looked up by hash.
	Keyed bool
	// Local says that it reads CTEs of the query around it: its result holds for one activation of that only.
	Local bool
	Typ   datum.Type
}

// Type implements Expr.
func (e *Subquery) Type() datum.Type { return e.Typ }
func (e *Subquery) key() string      { return fmt.Sprintf("subquery%p", e.Root) }

func (e *Subquery) children() []Expr {
	return append(append([]Expr(nil), e.Args...), e.Left...)
}

func (e *Subquery) rebuild(a []Expr) Expr {
	c := *e
	c.Args, c.Left = a[:len(e.Args)], a[len(e.Args):]
	return &c
}

// subqueryResult is the rows of a subquery that is run once.
type subqueryResult struct {
	rows    [][]datum.Datum
	keys    map[string]struct{} // by AppendKey, when keyed; nil until the first look-up
	hasNull bool
}

func (e *Subquery) eval(f *frame, row []datum.Datum) (datum.Datum, error) {
	res, err := e.result(f, row)
	if err != nil {
		return datum.Null, err
	}
	switch e.Kind {
	case Exists:
		return datum.Bool(len(res.rows) > 0), nil
	case Scalar:
		switch len(res.rows) {
		case 0:
			return datum.Null, nil
		case 1:
			return res.rows[0][0].Decode(e.Typ.OID, f.session)
		}
		return datum.Null, pgerr.New(pgerr.CardinalityViolation, "more than one row returned by a subquery used as an expression")
	case ArrayOfRows:
		a := &datum.Array{Elem: datum.Elem(e.Typ.OID)}
		for _, r := range res.rows {
			d, err := r[0].Decode(a.Elem, f.session)
			if err != nil {
				return datum.Null, err
			}
			a.Items = append(a.Items, d)
		}
		return datum.FromArray(a), nil
	}
	return e.compare(f, row, res)
}

// result gives the rows, from memory when the subquery has no arguments.
func (e *Subquery) result(f *frame, row []datum.Datum) (*subqueryResult, error) {
	memo := f.run.memo
	if e.Local {
		if f.memo == nil {
			f.memo = map[Operator]*subqueryResult{}
		}
		memo = f.memo
	}
	if len(e.Args) == 0 {
		if res := memo[e.Root]; res != nil {
			return res, nil
		}
		rows, err := e.rows(f, nil, &f.run.memory)
		if err != nil {
			return nil, err
		}
		memo[e.Root] = &subqueryResult{rows: rows}
		return memo[e.Root], nil
	}
	args, err := evalAll(f, e.Args, row)
	if err != nil {
		return nil, err
	}
	mem := account{budget: f.env.Budget}
	defer mem.close()
	rows, err := e.rows(f, args, &mem)
	return &subqueryResult{rows: rows}, err
}

func (e *Subquery) rows(f *frame, args []datum.Datum, mem *account) ([][]datum.Datum, error) {
	inner := &frame{run: f.run, parent: f, args: args}
	defer inner.close()
	node, err := e.Root.open(inner)
	if err != nil {
		return nil, err
	}
	defer node.Close()
	if e.Kind != Exists {
		return collect(f.ctx, node, mem)
	}
	for {
		b, err := node.Next(f.ctx)
		if err == io.EOF {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if b.Len() > 0 {
			return [][]datum.Datum{nil}, nil
		}
	}
}

// compare is ANY and ALL, in three-valued logic.
func (e *Subquery) compare(f *frame, row []datum.Datum, res *subqueryResult) (datum.Datum, error) {
	all := e.Kind == AllRows
	if len(res.rows) == 0 {
		return datum.Bool(all), nil
	}
	left, err := evalAll(f, e.Left, row)
	if err != nil {
		return datum.Null, err
	}
	if e.Keyed && !all && len(e.Args) == 0 && !left[0].IsNull() {
		return e.lookUp(f, left[0], res)
	}
	null := false
	for _, r := range res.rows {
		d, err := e.compareRow(f, left, r)
		if err != nil {
			return datum.Null, err
		}
		if d.IsNull() {
			null = true
		} else if d.Bool() != all {
			return d, nil
		}
	}
	if null {
		return datum.Null, nil
	}
	return datum.Bool(all), nil
}

func (e *Subquery) compareRow(f *frame, left, row []datum.Datum) (datum.Datum, error) {
	null := false
	for i, op := range e.Ops {
		value, err := row[i].Decode(op.Args[1].Type().OID, f.session)
		if err != nil {
			return datum.Null, err
		}
		d, err := op.test(f, left[i], value)
		if err != nil {
			return datum.Null, err
		}
		if d.IsNull() {
			null = true
		} else if !d.Bool() {
			return d, nil
		}
	}
	if null {
		return datum.Null, nil
	}
	return datum.Bool(true), nil
}

func (e *Subquery) lookUp(f *frame, left datum.Datum, res *subqueryResult) (datum.Datum, error) {
	oid := e.Ops[0].Args[1].Type().OID
	if res.keys == nil {
		res.keys = make(map[string]struct{}, len(res.rows))
		for _, r := range res.rows {
			d, err := r[0].Decode(oid, f.session)
			if err != nil {
				return datum.Null, err
			}
			if d.IsNull() {
				res.hasNull = true
				continue
			}
			res.keys[string(datum.AppendKey(nil, oid, d))] = struct{}{}
		}
	}
	if _, ok := res.keys[string(datum.AppendKey(nil, e.Left[0].Type().OID, left))]; ok {
		return datum.Bool(true), nil
	}
	if res.hasNull {
		return datum.Null, nil
	}
	return datum.Bool(false), nil
}
