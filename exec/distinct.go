package exec

import (
	"context"
	"io"

	"neki/internal/datum"
)

// Unique keeps the first of the rows that agree in all Keys.
type Unique struct {
	Input Operator
	Keys  []Expr
}

func (o *Unique) width() int { return o.Input.width() }

type uniqueNode struct {
	Node
	f    *frame
	keys []Expr
	seen map[string]struct{}
	mem  account
	buf  []byte
	out  *Batch
}

func (o *Unique) open(f *frame) (Node, error) {
	in, err := o.Input.open(f)
	if err != nil {
		return nil, err
	}
	return &uniqueNode{
		Node: in, f: f, keys: o.Keys, seen: map[string]struct{}{}, out: NewBatch(o.width()),
		mem: account{budget: f.env.Budget},
	}, nil
}

func (n *uniqueNode) Next(ctx context.Context) (*Batch, error) {
	b, err := n.Node.Next(ctx)
	if err != nil {
		return nil, err
	}
	n.out.Reset()
	for i := range b.Len() {
		row := b.Row(i)
		if n.buf, err = appendKeys(n.buf[:0], n.f, n.keys, row); err != nil {
			return nil, err
		}
		if _, ok := n.seen[string(n.buf)]; ok {
			continue
		}
		if err := n.mem.take(int64(len(n.buf)) + mapEntry); err != nil {
			return nil, err
		}
		n.seen[string(n.buf)] = struct{}{}
		n.out.Append(row...)
	}
	return n.out, nil
}

func (n *uniqueNode) Close() error {
	n.seen = nil
	n.mem.close()
	return n.Node.Close()
}

// mapEntry is about what an entry of a map with string keys costs besides the key's bytes.
const mapEntry = 48

func appendKeys(dst []byte, f *frame, keys []Expr, row []datum.Datum) ([]byte, error) {
	for _, k := range keys {
		d, err := k.eval(f, row)
		if err != nil {
			return dst, err
		}
		dst = datum.AppendKey(dst, k.Type().OID, d)
	}
	return dst, nil
}

// SetOperation is INTERSECT or EXCEPT, with or without ALL.
type SetOperation struct {
	Left, Right Operator
	Except, All bool
	Keys        []Expr // the columns of either side
}

func (o *SetOperation) width() int { return o.Left.width() }

func (o *SetOperation) open(f *frame) (Node, error) {
	left, err := o.Left.open(f)
	if err != nil {
		return nil, err
	}
	return &lazyNode{in: left, make: func(ctx context.Context, in Node, mem *account) ([][]datum.Datum, error) {
		return o.rows(ctx, f, in, mem)
	}, rowsNode: rowsNode{out: NewBatch(o.width()), mem: account{budget: f.env.Budget}}}, nil
}

func (o *SetOperation) rows(ctx context.Context, f *frame, left Node, mem *account) ([][]datum.Datum, error) {
	counts, err := o.count(ctx, f, mem)
	if err != nil {
		return nil, err
	}
	var rows [][]datum.Datum
	var buf []byte
	for {
		b, err := left.Next(ctx)
		if err == io.EOF {
			return rows, nil
		}
		if err != nil {
			return nil, err
		}
		for i := range b.Len() {
			row := b.Row(i)
			if buf, err = appendKeys(buf[:0], f, o.Keys, row); err != nil {
				return nil, err
			}
			if !o.keep(counts, buf) {
				continue
			}
			row = append([]datum.Datum(nil), row...)
			if err := mem.take(rowSize(row)); err != nil {
				return nil, err
			}
			rows = append(rows, row)
		}
	}
}

func (o *SetOperation) count(ctx context.Context, f *frame, mem *account) (map[string]int, error) {
	right, err := o.Right.open(f)
	if err != nil {
		return nil, err
	}
	defer right.Close()
	counts := map[string]int{}
	var buf []byte
	for {
		b, err := right.Next(ctx)
		if err == io.EOF {
			return counts, nil
		}
		if err != nil {
			return nil, err
		}
		for i := range b.Len() {
			if buf, err = appendKeys(buf[:0], f, o.Keys, b.Row(i)); err != nil {
				return nil, err
			}
			if counts[string(buf)]++; counts[string(buf)] == 1 {
				if err := mem.take(int64(len(buf)) + mapEntry); err != nil {
					return nil, err
				}
			}
		}
	}
}

// keep says whether a row of the left side is given. counts is used up (ALL), or remembers what was given: a count of
// -1 means that it was.
func (o *SetOperation) keep(counts map[string]int, key []byte) bool {
	n := counts[string(key)]
	switch {
	case o.All && o.Except:
		if n > 0 {
			counts[string(key)]--
			return false
		}
		return true
	case o.All:
		if n > 0 {
			counts[string(key)]--
			return true
		}
		return false
	case n < 0, (n > 0) == o.Except:
		return false
	}
	counts[string(key)] = -1
	return true
}
