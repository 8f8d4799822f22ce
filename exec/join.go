package exec

import (
	"context"
	"io"

	"neki/internal/datum"
)

// JoinKind says which rows without a partner are kept.
type JoinKind uint8

// The kinds of Join.
const (
	InnerJoin JoinKind = iota
	LeftJoin
	RightJoin
	FullJoin
)

// Join pairs rows of two inputs: those whose keys are equal (when there are keys) and for which On is true. The right
// side is kept in memory. On is over the left row's columns followed by the right row's; nil means true.
type Join struct {
	Kind                JoinKind
	Left, Right         Operator
	LeftKeys, RightKeys []Expr
	On                  Expr
}

// Lateral runs Right anew for each row of Left, which reaches it as Args. Kind is InnerJoin or LeftJoin.
type Lateral struct {
	Kind        JoinKind
	Left, Right Operator
	Args        []Expr
	On          Expr
}

func (o *Join) width() int    { return o.Left.width() + o.Right.width() }
func (o *Lateral) width() int { return o.Left.width() + o.Right.width() }

// joinNode walks the left side; for each of its rows the candidates of the right side.
type joinNode struct {
	o       *Join
	f       *frame
	left    Node
	rows    [][]datum.Datum // right side; nil until read
	matched []bool
	index   map[string][]int32
	all     []int32 // every position, when there are no keys
	mem     account
	ready   bool
	leftEnd bool
	rest    int // next unmatched right row to look at
	in      *Batch
	inAt    int
	found   []int32 // candidates of the current left row
	at      int
	hit     bool // the current left row had a partner
	buf     []byte
	out     *Batch
}

func (o *Join) open(f *frame) (Node, error) {
	left, err := o.Left.open(f)
	if err != nil {
		return nil, err
	}
	return &joinNode{o: o, f: f, left: left, out: NewBatch(o.width()), mem: account{budget: f.env.Budget}}, nil
}

func (n *joinNode) build(ctx context.Context) error {
	right, err := n.o.Right.open(n.f)
	if err != nil {
		return err
	}
	defer right.Close()
	if n.rows, err = collect(ctx, right, &n.mem); err != nil {
		return err
	}
	n.ready = true
	if n.o.Kind == RightJoin || n.o.Kind == FullJoin {
		n.matched = make([]bool, len(n.rows))
	}
	if len(n.o.RightKeys) == 0 {
		n.all = make([]int32, len(n.rows))
		for i := range n.all {
			n.all[i] = int32(i)
		}
		return n.mem.take(int64(4 * len(n.all)))
	}
	n.index = map[string][]int32{}
	for i, row := range n.rows {
		ok, err := n.keyOf(n.o.RightKeys, row)
		if err != nil {
			return err
		}
		if ok {
			n.index[string(n.buf)] = append(n.index[string(n.buf)], int32(i))
			if err := n.mem.take(int64(len(n.buf)) + mapEntry); err != nil {
				return err
			}
		}
	}
	return nil
}

// keyOf leaves the row's key in n.buf; ok is false when a part is NULL: nothing equals it.
func (n *joinNode) keyOf(keys []Expr, row []datum.Datum) (ok bool, err error) {
	n.buf = n.buf[:0]
	for _, k := range keys {
		d, err := k.eval(n.f, row)
		if err != nil || d.IsNull() {
			return false, err
		}
		n.buf = datum.AppendKey(n.buf, k.Type().OID, d)
	}
	return true, nil
}

func (n *joinNode) Next(ctx context.Context) (*Batch, error) {
	if !n.ready {
		if err := n.build(ctx); err != nil {
			return nil, err
		}
	}
	n.out.Reset()
	for n.out.Len() < batchRows {
		if n.leftEnd {
			if !n.unmatched() {
				break
			}
			continue
		}
		if n.in == nil || n.inAt >= n.in.Len() {
			if err := n.advance(ctx); err != nil {
				return nil, err
			}
			continue
		}
		if err := n.pair(); err != nil {
			return nil, err
		}
	}
	if n.out.Len() == 0 {
		return nil, io.EOF
	}
	return n.out, nil
}

// advance reads the next batch of the left side.
func (n *joinNode) advance(ctx context.Context) error {
	if err := cancelled(n.f); err != nil {
		return err
	}
	b, err := n.left.Next(ctx)
	if err == io.EOF {
		n.leftEnd = true
		return nil
	}
	if err != nil {
		return err
	}
	n.in, n.inAt = b, 0
	if b.Len() > 0 {
		return n.candidates()
	}
	return nil
}

func (n *joinNode) candidates() error {
	n.at, n.hit, n.found = 0, false, n.all
	if n.index == nil {
		return nil
	}
	ok, err := n.keyOf(n.o.LeftKeys, n.in.Row(n.inAt))
	n.found = nil
	if ok {
		n.found = n.index[string(n.buf)]
	}
	return err
}

// pair goes on with the current left row until it is done or the batch is full.
func (n *joinNode) pair() error {
	left := n.in.Row(n.inAt)
	for tries := 0; n.at < len(n.found) && n.out.Len() < batchRows; tries++ {
		if tries%4096 == 4095 {
			if err := cancelled(n.f); err != nil {
				return err
			}
		}
		i := n.found[n.at]
		n.at++
		row := n.out.Grow()
		copy(row, left)
		copy(row[len(left):], n.rows[i])
		if n.o.On != nil {
			ok, err := holds(n.f, n.o.On, row)
			if err != nil {
				return err
			}
			if !ok {
				n.out.drop()
				continue
			}
		}
		n.hit = true
		if n.matched != nil {
			n.matched[i] = true
		}
	}
	if n.at < len(n.found) {
		return nil
	}
	if !n.hit && (n.o.Kind == LeftJoin || n.o.Kind == FullJoin) {
		copy(n.out.Grow(), left)
	}
	if n.inAt++; n.inAt < n.in.Len() {
		return n.candidates()
	}
	return nil
}

// unmatched gives one right row without a partner; false when there is none left.
func (n *joinNode) unmatched() bool {
	for n.rest < len(n.matched) {
		i := n.rest
		n.rest++
		if !n.matched[i] {
			row := n.out.Grow()
			copy(row[len(row)-len(n.rows[i]):], n.rows[i])
			return true
		}
	}
	return false
}

func (n *joinNode) Close() error {
	n.rows, n.index, n.all = nil, nil, nil
	n.mem.close()
	return n.left.Close()
}

type lateralNode struct {
	o    *Lateral
	f    *frame
	left Node
	in   *Batch
	inAt int
	out  *Batch
}

func (o *Lateral) open(f *frame) (Node, error) {
	left, err := o.Left.open(f)
	if err != nil {
		return nil, err
	}
	return &lateralNode{o: o, f: f, left: left, out: NewBatch(o.width())}, nil
}

func (n *lateralNode) Next(ctx context.Context) (*Batch, error) {
	for n.in == nil || n.inAt >= n.in.Len() {
		b, err := n.left.Next(ctx)
		if err != nil {
			return nil, err
		}
		n.in, n.inAt = b, 0
	}
	n.out.Reset()
	for n.inAt < n.in.Len() && n.out.Len() < batchRows {
		if err := n.join(ctx, n.in.Row(n.inAt)); err != nil {
			return nil, err
		}
		n.inAt++
	}
	return n.out, nil
}

func (n *lateralNode) join(ctx context.Context, left []datum.Datum) error {
	if err := cancelled(n.f); err != nil {
		return err
	}
	args, err := evalAll(n.f, n.o.Args, left)
	if err != nil {
		return err
	}
	inner := &frame{run: n.f.run, parent: n.f, args: args}
	defer inner.close()
	mem := account{budget: n.f.env.Budget}
	defer mem.close()
	node, err := n.o.Right.open(inner)
	if err != nil {
		return err
	}
	defer node.Close()
	rows, err := collect(ctx, node, &mem)
	if err != nil {
		return err
	}
	hit := false
	for _, right := range rows {
		row := n.out.Grow()
		copy(row, left)
		copy(row[len(left):], right)
		if n.o.On != nil {
			ok, err := holds(n.f, n.o.On, row)
			if err != nil {
				return err
			}
			if !ok {
				n.out.drop()
				continue
			}
		}
		hit = true
	}
	if !hit && n.o.Kind == LeftJoin {
		copy(n.out.Grow(), left)
	}
	return nil
}

func (n *lateralNode) Close() error { return n.left.Close() }
