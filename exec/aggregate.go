package exec

import (
	"context"
	"io"
	"slices"

	"neki/internal/datum"
)

// AggregateCall is a call of an aggregate function. As an expression it only stands for its value until exec/build has
// put a column of an Aggregate in its place.
type AggregateCall struct {
	Name     string
	New      func(sig *Signature) Accumulator
	Args     []Expr
	Filter   Expr // nil: every row
	Distinct bool
	OrderBy  []SortKey
	Star     bool
	Typ      datum.Type
}

// Accumulator is the state of one aggregate over one group.
type Accumulator interface {
	Add(c Call, args []datum.Datum) error
	Value(c Call) (datum.Datum, error)
}

// Aggregate groups its input by Keys; each output row is the keys followed by the aggregates' values. Without keys
// there is exactly one group.
type Aggregate struct {
	Input Operator
	Keys  []Expr
	Calls []*AggregateCall
}

func (o *Aggregate) width() int { return len(o.Keys) + len(o.Calls) }

// Type implements Expr.
func (e *AggregateCall) Type() datum.Type { return e.Typ }

func (e *AggregateCall) children() []Expr {
	out := append([]Expr(nil), e.Args...)
	for _, k := range e.OrderBy {
		out = append(out, k.Expr)
	}
	if e.Filter != nil {
		out = append(out, e.Filter)
	}
	return out
}

func (e *AggregateCall) rebuild(a []Expr) Expr {
	c := *e
	c.Args, a = a[:len(e.Args)], a[len(e.Args):]
	c.OrderBy = slices.Clone(e.OrderBy)
	for i := range c.OrderBy {
		c.OrderBy[i].Expr = a[i]
	}
	if e.Filter != nil {
		c.Filter = a[len(a)-1]
	}
	return &c
}

func (e *AggregateCall) key() string {
	k := "agg " + e.Name
	if e.Distinct {
		k += " distinct"
	}
	for _, o := range e.OrderBy {
		k += " order"
		if o.Desc {
			k += " desc"
		}
		if o.NullsFirst {
			k += " nulls first"
		}
	}
	if e.Filter != nil {
		k += " filter"
	}
	return k
}

func (e *AggregateCall) eval(*frame, []datum.Datum) (datum.Datum, error) {
	return datum.Null, errMisplaced(e.Name)
}

func (e *AggregateCall) signature() *Signature {
	sig := &Signature{Name: e.Name, Result: e.Typ}
	for _, a := range e.Args {
		sig.Args = append(sig.Args, a.Type())
	}
	return sig
}

func (o *Aggregate) open(f *frame) (Node, error) {
	in, err := o.Input.open(f)
	if err != nil {
		return nil, err
	}
	return &lazyNode{in: in, make: func(ctx context.Context, in Node, mem *account) ([][]datum.Datum, error) {
		return o.rows(ctx, f, in, mem)
	}, rowsNode: rowsNode{out: NewBatch(o.width()), mem: account{budget: f.env.Budget}}}, nil
}

// group is one group's keys and states.
type group struct {
	keys   []datum.Datum
	states []*aggState
}

// aggState feeds one accumulator, at once or, for DISTINCT and ORDER BY, from rows kept until the end.
type aggState struct {
	call *AggregateCall
	c    Call
	acc  Accumulator
	kept [][]datum.Datum // arguments, then sort keys
}

func (o *Aggregate) newGroup(f *frame, keys []datum.Datum, mem *account) (*group, error) {
	g := &group{keys: keys}
	for _, call := range o.Calls {
		c := Call{call.signature(), f.run}
		g.states = append(g.states, &aggState{call: call, c: c, acc: call.New(c.Signature)})
	}
	return g, mem.take(rowSize(keys) + mapEntry + int64(len(o.Calls))*160)
}

func (o *Aggregate) rows(ctx context.Context, f *frame, in Node, mem *account) ([][]datum.Datum, error) {
	groups, err := o.groups(ctx, f, in, mem)
	if err != nil {
		return nil, err
	}
	if len(o.Keys) == 0 && len(groups) == 0 {
		g, err := o.newGroup(f, nil, mem)
		if err != nil {
			return nil, err
		}
		groups = append(groups, g)
	}
	rows := make([][]datum.Datum, len(groups))
	for i, g := range groups {
		row := append(make([]datum.Datum, 0, o.width()), g.keys...)
		for _, s := range g.states {
			d, err := s.value(f)
			if err != nil {
				return nil, err
			}
			row = append(row, d)
		}
		if err := mem.take(rowSize(row)); err != nil {
			return nil, err
		}
		rows[i] = row
	}
	return rows, nil
}

func (o *Aggregate) groups(ctx context.Context, f *frame, in Node, mem *account) ([]*group, error) {
	var ordered []*group
	byKey := map[string]*group{}
	var buf []byte
	for {
		b, err := in.Next(ctx)
		if err == io.EOF {
			return ordered, nil
		}
		if err != nil {
			return nil, err
		}
		for i := range b.Len() {
			row := b.Row(i)
			if buf, err = appendKeys(buf[:0], f, o.Keys, row); err != nil {
				return nil, err
			}
			g := byKey[string(buf)]
			if g == nil {
				keys, err := evalAll(f, o.Keys, row)
				if err != nil {
					return nil, err
				}
				if g, err = o.newGroup(f, keys, mem); err != nil {
					return nil, err
				}
				byKey[string(buf)] = g
				ordered = append(ordered, g)
			}
			for _, s := range g.states {
				if err := s.add(f, row, mem); err != nil {
					return nil, err
				}
			}
		}
	}
}

func (s *aggState) add(f *frame, row []datum.Datum, mem *account) error {
	if s.call.Filter != nil {
		if ok, err := holds(f, s.call.Filter, row); err != nil || !ok {
			return err
		}
	}
	if s.call.Distinct || len(s.call.OrderBy) > 0 {
		return s.keep(f, row, mem)
	}
	base := len(f.stack)
	for _, a := range s.call.Args {
		d, err := a.eval(f, row)
		if err != nil {
			return err
		}
		f.stack = append(f.stack, d)
	}
	args := f.stack[base:]
	if grower, ok := s.acc.(grows); ok {
		if err := mem.take(grower.growth(args)); err != nil {
			return err
		}
	}
	err := s.acc.Add(s.c, args)
	f.stack = f.stack[:base]
	return err
}

// grows is implemented by accumulators that keep their input.
type grows interface {
	growth(args []datum.Datum) int64
}

func (s *aggState) keep(f *frame, row []datum.Datum, mem *account) error {
	kept := make([]datum.Datum, 0, len(s.call.Args)+len(s.call.OrderBy))
	for _, a := range s.call.Args {
		d, err := a.eval(f, row)
		if err != nil {
			return err
		}
		kept = append(kept, d)
	}
	for _, k := range s.call.OrderBy {
		d, err := k.Expr.eval(f, row)
		if err != nil {
			return err
		}
		kept = append(kept, d)
	}
	s.kept = append(s.kept, kept)
	return mem.take(rowSize(kept))
}

func (s *aggState) value(f *frame) (datum.Datum, error) {
	n := len(s.call.Args)
	slices.SortStableFunc(s.kept, func(a, b []datum.Datum) int {
		if c := compareKeys(s.call.OrderBy, a[n:], b[n:]); c != 0 {
			return c
		}
		return s.compareArgs(a, b)
	})
	for i, kept := range s.kept {
		if s.call.Distinct && i > 0 && s.compareArgs(kept, s.kept[i-1]) == 0 {
			continue
		}
		if err := s.acc.Add(s.c, kept[:n]); err != nil {
			return datum.Null, err
		}
	}
	return s.acc.Value(s.c)
}

// compareArgs orders the arguments of a DISTINCT aggregate; without DISTINCT equal rows keep their order.
func (s *aggState) compareArgs(a, b []datum.Datum) int {
	if !s.call.Distinct {
		return 0
	}
	for i, arg := range s.call.Args {
		k := SortKey{Expr: arg}
		if c := k.compare(a[i], b[i]); c != 0 {
			return c
		}
	}
	return 0
}
