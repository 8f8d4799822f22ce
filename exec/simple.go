package exec

import (
	"context"
	"io"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// Scan reads a Source.
type Scan struct {
	Source Source
	Used   []bool     // columns that are read
	Equal  []ScanTest // conditions told to the source; the query still checks them
	Limit  int64
}

// ScanTest is column = value, the value not depending on the row.
type ScanTest struct {
	Column int
	Value  Expr
}

// Filter keeps the rows for which Cond is true.
type Filter struct {
	Input Operator
	Cond  Expr
}

// Project computes each output column.
type Project struct {
	Input Operator
	Exprs []Expr
}

// Values gives rows of expressions.
type Values struct{ Rows [][]Expr }

// Append gives the rows of each input in turn (UNION ALL).
type Append struct{ Inputs []Operator }

// Limit skips Offset rows and gives at most Count; nil or NULL is no bound.
type Limit struct {
	Input         Operator
	Count, Offset Expr
}

func (o *Scan) width() int    { return len(o.Source.Columns()) }
func (o *Filter) width() int  { return o.Input.width() }
func (o *Project) width() int { return len(o.Exprs) }
func (o *Values) width() int  { return len(o.Rows[0]) }
func (o *Append) width() int  { return o.Inputs[0].width() }
func (o *Limit) width() int   { return o.Input.width() }

func (o *Scan) open(f *frame) (Node, error) {
	need := Need{Columns: o.Used, Limit: o.Limit, Env: f.env}
	for _, t := range o.Equal {
		d, err := t.Value.eval(f, nil)
		if err != nil {
			return nil, err
		}
		if !d.IsNull() {
			need.Equal = append(need.Equal, Equality{t.Column, d})
		}
	}
	return o.Source.Open(f.ctx, need)
}

type filterNode struct {
	Node
	f    *frame
	cond Expr
	out  *Batch
}

func (o *Filter) open(f *frame) (Node, error) {
	in, err := o.Input.open(f)
	if err != nil {
		return nil, err
	}
	return &filterNode{Node: in, f: f, cond: o.Cond, out: NewBatch(o.width())}, nil
}

func (n *filterNode) Next(ctx context.Context) (*Batch, error) {
	b, err := n.Node.Next(ctx)
	if err != nil {
		return nil, err
	}
	n.out.Reset()
	for i := range b.Len() {
		row := b.Row(i)
		ok, err := holds(n.f, n.cond, row)
		if err != nil {
			return nil, err
		}
		if ok {
			n.out.Append(row...)
		}
	}
	return n.out, nil
}

type projectNode struct {
	Node
	f     *frame
	exprs []Expr
	out   *Batch
}

func (o *Project) open(f *frame) (Node, error) {
	in, err := o.Input.open(f)
	if err != nil {
		return nil, err
	}
	return &projectNode{Node: in, f: f, exprs: o.Exprs, out: NewBatch(len(o.Exprs))}, nil
}

func (n *projectNode) Next(ctx context.Context) (*Batch, error) {
	b, err := n.Node.Next(ctx)
	if err != nil {
		return nil, err
	}
	n.out.Reset()
	for i := range b.Len() {
		row := b.Row(i)
		out := n.out.Grow()
		for j, e := range n.exprs {
			if c, ok := e.(*ColumnRef); ok {
				out[j] = row[c.Index] // undecoded, if it is
				continue
			}
			if out[j], err = e.eval(n.f, row); err != nil {
				return nil, err
			}
		}
	}
	return n.out, nil
}

type valuesNode struct {
	f    *frame
	rows [][]Expr
	out  *Batch
}

func (o *Values) open(f *frame) (Node, error) {
	return &valuesNode{f: f, rows: o.Rows, out: NewBatch(o.width())}, nil
}

func (n *valuesNode) Next(context.Context) (*Batch, error) {
	if len(n.rows) == 0 {
		return nil, io.EOF
	}
	n.out.Reset()
	count := min(len(n.rows), batchRows)
	for _, exprs := range n.rows[:count] {
		row := n.out.Grow()
		for i, e := range exprs {
			var err error
			if row[i], err = e.eval(n.f, nil); err != nil {
				return nil, err
			}
		}
	}
	n.rows = n.rows[count:]
	return n.out, nil
}

func (n *valuesNode) Close() error { return nil }

type appendNode struct {
	f       *frame
	inputs  []Operator
	current Node
}

func (o *Append) open(f *frame) (Node, error) { return &appendNode{f: f, inputs: o.Inputs}, nil }

func (n *appendNode) Next(ctx context.Context) (*Batch, error) {
	for {
		if n.current == nil {
			if len(n.inputs) == 0 {
				return nil, io.EOF
			}
			node, err := n.inputs[0].open(n.f)
			if err != nil {
				return nil, err
			}
			n.current, n.inputs = node, n.inputs[1:]
		}
		b, err := n.current.Next(ctx)
		if err != io.EOF {
			return b, err
		}
		if err := n.Close(); err != nil {
			return nil, err
		}
	}
}

func (n *appendNode) Close() error {
	if n.current == nil {
		return nil
	}
	err := n.current.Close()
	n.current = nil
	return err
}

type limitNode struct {
	Node
	skip, left int64 // left < 0: no bound
	out        *Batch
}

func (o *Limit) open(f *frame) (Node, error) {
	n := &limitNode{left: -1, out: NewBatch(o.width())}
	if o.Offset != nil {
		d, err := o.Offset.eval(f, nil)
		if err != nil {
			return nil, err
		}
		if !d.IsNull() {
			n.skip = d.Int()
		}
		if n.skip < 0 {
			return nil, pgerr.New("2201X", "OFFSET must not be negative")
		}
	}
	if o.Count != nil {
		d, err := o.Count.eval(f, nil)
		if err != nil {
			return nil, err
		}
		if !d.IsNull() {
			if n.left = d.Int(); n.left < 0 {
				return nil, pgerr.New("2201W", "LIMIT must not be negative")
			}
		}
	}
	var err error
	n.Node, err = o.Input.open(f)
	return n, err
}

func (n *limitNode) Next(ctx context.Context) (*Batch, error) {
	if n.left == 0 {
		return nil, io.EOF
	}
	b, err := n.Node.Next(ctx)
	if err != nil {
		return nil, err
	}
	if n.skip == 0 && (n.left < 0 || int64(b.Len()) <= n.left) {
		if n.left > 0 {
			n.left -= int64(b.Len())
		}
		return b, nil
	}
	n.out.Reset()
	for i := range b.Len() {
		switch {
		case n.skip > 0:
			n.skip--
		case n.left != 0:
			n.out.Append(b.Row(i)...)
			if n.left > 0 {
				n.left--
			}
		}
	}
	return n.out, nil
}

// rowsNode gives rows that are in memory.
type rowsNode struct {
	rows [][]datum.Datum
	out  *Batch
	mem  account
}

func (n *rowsNode) Next(context.Context) (*Batch, error) {
	if len(n.rows) == 0 {
		return nil, io.EOF
	}
	n.rows = n.out.fill(n.rows)
	return n.out, nil
}

func (n *rowsNode) Close() error {
	n.rows = nil
	n.mem.close()
	return nil
}
