package exec

import (
	"context"
	"fmt"
	"io"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// table is a Source made of Go rows.
type table struct {
	columns []Column
	rows    func(ctx context.Context, need Need) ([][]any, error)
}

// NewTable makes a Source whose rows are read anew by rows at every Open. Values are those of datum.FromGo: nil for
// NULL, string, bool, integers, floats, time.Time, time.Duration (interval), []string; other types (pg_lsn, jsonb,
// uuid) as strings in text form.
func NewTable(columns []Column, rows func(ctx context.Context) ([][]any, error)) Source {
	return NewTableFunc(columns, func(ctx context.Context, _ Need) ([][]any, error) { return rows(ctx) })
}

// NewTableFunc is NewTable with the Need passed on, for rows that depend on who asks (need.Env.Caller) or that are
// dear to make (need.Equal, need.Columns).
func NewTableFunc(columns []Column, rows func(ctx context.Context, need Need) ([][]any, error)) Source {
	return &table{columns: columns, rows: rows}
}

func (t *table) Columns() []Column { return t.columns }

func (t *table) Open(ctx context.Context, need Need) (Node, error) {
	rows, err := t.rows(ctx, need)
	if err != nil {
		return nil, err
	}
	return &tableNode{columns: t.columns, rows: rows, batch: NewBatch(len(t.columns))}, nil
}

type tableNode struct {
	columns []Column
	rows    [][]any
	batch   *Batch
}

func (n *tableNode) Next(ctx context.Context) (*Batch, error) {
	if len(n.rows) == 0 {
		return nil, io.EOF
	}
	if err := ctx.Err(); err != nil {
		return nil, pgerr.From(err)
	}
	n.batch.Reset()
	count := min(len(n.rows), batchRows)
	for _, row := range n.rows[:count] {
		if len(row) != len(n.columns) {
			return nil, fmt.Errorf("exec: a table row has %d values for %d columns", len(row), len(n.columns))
		}
		cells := n.batch.Grow()
		for i, v := range row {
			d, err := datum.FromGo(n.columns[i].Type.OID, v)
			if err != nil {
				return nil, fmt.Errorf("column %s: %w", n.columns[i].Name, err)
			}
			cells[i] = d
		}
	}
	n.rows = n.rows[count:]
	return n.batch, nil
}

func (n *tableNode) Close() error {
	n.rows = nil
	return nil
}
