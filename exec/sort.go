package exec

import (
	"context"
	"slices"

	"neki/internal/datum"
)

// SortKey is one ORDER BY item.
type SortKey struct {
	Expr             Expr
	Desc, NullsFirst bool
}

// Sort orders its input; equal rows keep their order.
type Sort struct {
	Input Operator
	Keys  []SortKey
}

func (o *Sort) width() int { return o.Input.width() }

func (o *Sort) open(f *frame) (Node, error) {
	in, err := o.Input.open(f)
	if err != nil {
		return nil, err
	}
	return &lazyNode{in: in, make: func(ctx context.Context, in Node, mem *account) ([][]datum.Datum, error) {
		rows, err := collect(ctx, in, mem)
		if err != nil {
			return nil, err
		}
		return sortRows(f, rows, o.Keys, mem)
	}, rowsNode: rowsNode{out: NewBatch(o.width()), mem: account{budget: f.env.Budget}}}, nil
}

// lazyNode reads its whole input at the first Next.
type lazyNode struct {
	rowsNode
	in   Node
	done bool
	make func(ctx context.Context, in Node, mem *account) ([][]datum.Datum, error)
}

func (n *lazyNode) Next(ctx context.Context) (*Batch, error) {
	if !n.done {
		n.done = true
		var err error
		if n.rows, err = n.make(ctx, n.in, &n.mem); err != nil {
			return nil, err
		}
	}
	return n.rowsNode.Next(ctx)
}

func (n *lazyNode) Close() error {
	_ = n.rowsNode.Close() // frees memory only
	return n.in.Close()
}

type keyedRow struct{ keys, row []datum.Datum }

// sortRows sorts rows by keys computed from each.
func sortRows(f *frame, rows [][]datum.Datum, keys []SortKey, mem *account) ([][]datum.Datum, error) {
	keyed := make([]keyedRow, len(rows))
	for i, row := range rows {
		keyed[i].row = row
		keyed[i].keys = make([]datum.Datum, len(keys))
		for j, k := range keys {
			d, err := k.Expr.eval(f, row)
			if err != nil {
				return nil, err
			}
			keyed[i].keys[j] = d
		}
		if err := mem.take(rowSize(keyed[i].keys)); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(keyed, func(a, b keyedRow) int { return compareKeys(keys, a.keys, b.keys) })
	for i := range keyed {
		rows[i] = keyed[i].row
	}
	return rows, nil
}

func compareKeys(keys []SortKey, a, b []datum.Datum) int {
	for i, k := range keys {
		if c := k.compare(a[i], b[i]); c != 0 {
			return c
		}
	}
	return 0
}

func (k *SortKey) compare(a, b datum.Datum) int {
	return datum.Order{OID: k.Expr.Type().OID, Desc: k.Desc, NullsFirst: k.NullsFirst}.Compare(a, b)
}
