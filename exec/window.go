package exec

import (
	"context"

	"neki/internal/datum"
)

// WindowCall is a call of a window function, or of an aggregate over a window. As an expression it only stands for its
// value until exec/build has put a column of a Window in its place.
type WindowCall struct {
	Name      string // of a window function; "" for an aggregate
	Aggregate *AggregateCall
	Args      []Expr
	Partition []Expr
	OrderBy   []SortKey
	Typ       datum.Type
}

// Window adds the values of calls over one window to its input's rows: the partition's rows in order, the frame being
// the default one (from the partition's start to the current row's last peer; the whole partition without ORDER BY).
type Window struct {
	Input     Operator
	Partition []Expr
	OrderBy   []SortKey
	Calls     []*WindowCall
}

// Type implements Expr.
func (e *WindowCall) Type() datum.Type { return e.Typ }

func (e *WindowCall) children() []Expr {
	out := append([]Expr(nil), e.Args...)
	out = append(out, e.Partition...)
	for _, k := range e.OrderBy {
		out = append(out, k.Expr)
	}
	if e.Aggregate != nil {
		out = append(out, e.Aggregate.children()...)
	}
	return out
}

func (e *WindowCall) rebuild(a []Expr) Expr {
	c := *e
	c.Args, a = a[:len(e.Args)], a[len(e.Args):]
	c.Partition, a = a[:len(e.Partition)], a[len(e.Partition):]
	c.OrderBy = append([]SortKey(nil), e.OrderBy...)
	for i := range c.OrderBy {
		c.OrderBy[i].Expr = a[i]
	}
	if e.Aggregate != nil {
		c.Aggregate = e.Aggregate.rebuild(a[len(e.OrderBy):]).(*AggregateCall)
	}
	return &c
}

func (e *WindowCall) key() string {
	k := "window " + e.Name
	if e.Aggregate != nil {
		k += e.Aggregate.key()
	}
	for _, o := range e.OrderBy {
		if o.Desc {
			k += " desc"
		}
		if o.NullsFirst {
			k += " nulls first"
		}
	}
	return k
}

func (e *WindowCall) eval(*frame, []datum.Datum) (datum.Datum, error) {
	return datum.Null, errMisplaced("a window function")
}

// WindowFunction reports whether a window function of that name is built.
func WindowFunction(name string) bool {
	switch name {
	case "row_number", "rank", "dense_rank", "lag", "lead", "first_value", "last_value":
		return true
	}
	return false
}

func (o *Window) width() int { return o.Input.width() + len(o.Calls) }

func (o *Window) open(f *frame) (Node, error) {
	in, err := o.Input.open(f)
	if err != nil {
		return nil, err
	}
	return &lazyNode{in: in, make: func(ctx context.Context, in Node, mem *account) ([][]datum.Datum, error) {
		return o.rows(ctx, f, in, mem)
	}, rowsNode: rowsNode{out: NewBatch(o.width()), mem: account{budget: f.env.Budget}}}, nil
}

func (o *Window) rows(ctx context.Context, f *frame, in Node, mem *account) ([][]datum.Datum, error) {
	rows, err := collect(ctx, in, mem)
	if err != nil {
		return nil, err
	}
	keys := make([]SortKey, 0, len(o.Partition)+len(o.OrderBy))
	for _, p := range o.Partition {
		keys = append(keys, SortKey{Expr: p})
	}
	keys = append(keys, o.OrderBy...)
	if rows, err = sortRows(f, rows, keys, mem); err != nil {
		return nil, err
	}
	parts, err := o.boundaries(f, rows, o.Partition)
	if err != nil {
		return nil, err
	}
	order := make([]Expr, len(o.OrderBy))
	for i, k := range o.OrderBy {
		order[i] = k.Expr
	}
	out := make([][]datum.Datum, len(rows))
	for _, p := range parts {
		if err := o.partition(f, rows[p[0]:p[1]], order, out[p[0]:p[1]], mem); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// boundaries splits sorted rows into runs with equal keys.
func (o *Window) boundaries(f *frame, rows [][]datum.Datum, keys []Expr) ([][2]int, error) {
	var runs [][2]int
	last := ""
	for i, row := range rows {
		k, err := appendKeys(nil, f, keys, row)
		if err != nil {
			return nil, err
		}
		if i > 0 && string(k) == last {
			runs[len(runs)-1][1] = i + 1
			continue
		}
		last = string(k)
		runs = append(runs, [2]int{i, i + 1})
	}
	return runs, nil
}

func (o *Window) partition(f *frame, rows [][]datum.Datum, order []Expr, out [][]datum.Datum, mem *account) error {
	peers, err := o.boundaries(f, rows, order)
	if err != nil {
		return err
	}
	for i, row := range rows {
		out[i] = append(make([]datum.Datum, 0, o.width()), row...)
	}
	for _, call := range o.Calls {
		if call.Aggregate != nil {
			err = runningAggregate(f, call, rows, peers, out)
		} else {
			err = windowValues(f, call, rows, peers, out)
		}
		if err != nil {
			return err
		}
	}
	for _, row := range out {
		if err := mem.take(rowSize(row[len(row)-len(o.Calls):])); err != nil {
			return err
		}
	}
	return nil
}

// runningAggregate gives each row the aggregate over the rows up to its last peer.
func runningAggregate(f *frame, call *WindowCall, rows [][]datum.Datum, peers [][2]int, out [][]datum.Datum) error {
	c := Call{call.Aggregate.signature(), f.run}
	s := &aggState{call: call.Aggregate, c: c, acc: call.Aggregate.New(c.Signature)}
	mem := account{budget: f.env.Budget}
	defer mem.close()
	for _, p := range peers {
		for i := p[0]; i < p[1]; i++ {
			if err := s.add(f, rows[i], &mem); err != nil {
				return err
			}
		}
		d, err := s.value(f)
		if err != nil {
			return err
		}
		for i := p[0]; i < p[1]; i++ {
			out[i] = append(out[i], d)
		}
	}
	return nil
}

func windowValues(f *frame, call *WindowCall, rows [][]datum.Datum, peers [][2]int, out [][]datum.Datum) error {
	for group, p := range peers {
		for i := p[0]; i < p[1]; i++ {
			d, err := windowValue(f, call, rows, i, p, group)
			if err != nil {
				return err
			}
			out[i] = append(out[i], d)
		}
	}
	return nil
}

func windowValue(f *frame, call *WindowCall, rows [][]datum.Datum, i int, peers [2]int, group int) (datum.Datum, error) {
	switch call.Name {
	case "row_number":
		return datum.Int(int64(i) + 1), nil
	case "rank":
		return datum.Int(int64(peers[0]) + 1), nil
	case "dense_rank":
		return datum.Int(int64(group) + 1), nil
	case "first_value":
		return call.Args[0].eval(f, rows[0])
	case "last_value":
		return call.Args[0].eval(f, rows[peers[1]-1])
	}
	offset := int64(1)
	if len(call.Args) > 1 {
		d, err := call.Args[1].eval(f, rows[i])
		if err != nil || d.IsNull() {
			return datum.Null, err
		}
		offset = d.Int()
	}
	if call.Name == "lag" {
		offset = -offset
	}
	if at := int64(i) + offset; at >= 0 && at < int64(len(rows)) {
		return call.Args[0].eval(f, rows[at])
	}
	if len(call.Args) > 2 {
		return call.Args[2].eval(f, rows[i])
	}
	return datum.Null, nil
}
