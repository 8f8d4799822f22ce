package exec

import (
	"context"
	"fmt"
	"io"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// CTE is one WITH item; its pointer is its identity. Each run of the query that has it computes it at most once.
type CTE struct {
	Name  string
	Query Operator // of a recursive one: the part that does not recur
	// Recursive part and whether rows already seen are dropped (UNION); nil for an ordinary CTE.
	Recursive Operator
	Unique    bool
	Keys      []Expr // all columns, when Unique
	Columns   int
}

// With makes its CTEs known to Body.
type With struct {
	CTEs []*CTE
	Body Operator
}

// CTEScan reads a CTE.
type CTEScan struct{ CTE *CTE }

// cteState is a CTE within one frame.
type cteState struct {
	rows    [][]datum.Datum
	done    bool
	busy    bool // the recursive part is being run: rows are its last step's
	working [][]datum.Datum
	memory  account
}

func (o *With) width() int    { return o.Body.width() }
func (o *CTEScan) width() int { return o.CTE.Columns }

func (o *With) open(f *frame) (Node, error) {
	if f.ctes == nil {
		f.ctes = map[*CTE]*cteState{}
	}
	for _, c := range o.CTEs {
		f.ctes[c] = &cteState{memory: account{budget: f.env.Budget}}
	}
	return o.Body.open(f)
}

func (o *CTEScan) open(f *frame) (Node, error) {
	owner := f
	for owner != nil && owner.ctes[o.CTE] == nil {
		owner = owner.parent
	}
	if owner == nil {
		return nil, fmt.Errorf("exec: CTE %q is read outside of its query", o.CTE.Name)
	}
	return &cteNode{cte: o.CTE, state: owner.ctes[o.CTE], owner: owner, out: NewBatch(o.width())}, nil
}

type cteNode struct {
	cte   *CTE
	state *cteState
	owner *frame
	rows  [][]datum.Datum
	begun bool
	out   *Batch
}

func (n *cteNode) Next(ctx context.Context) (*Batch, error) {
	if !n.begun {
		n.begun = true
		if err := n.state.fill(ctx, n.cte, n.owner); err != nil {
			return nil, err
		}
		n.rows = n.state.rows
		if n.state.busy {
			n.rows = n.state.working
		}
	}
	if len(n.rows) == 0 {
		return nil, io.EOF
	}
	n.rows = n.out.fill(n.rows)
	return n.out, nil
}

func (n *cteNode) Close() error {
	n.rows = nil
	return nil
}

func (s *cteState) fill(ctx context.Context, c *CTE, owner *frame) error {
	if s.done || s.busy {
		return nil
	}
	rows, err := s.run(ctx, c.Query, owner)
	if err != nil {
		return err
	}
	if c.Recursive == nil {
		s.rows, s.done = rows, true
		return nil
	}
	return s.recur(ctx, c, owner, rows)
}

func (s *cteState) run(ctx context.Context, query Operator, owner *frame) ([][]datum.Datum, error) {
	node, err := query.open(owner)
	if err != nil {
		return nil, err
	}
	defer node.Close()
	return collect(ctx, node, &s.memory)
}

// maxRecursion bounds the steps of a recursive CTE that never ends: rows are bounded by memory, empty work is not.
const maxRecursion = 1 << 20

func (s *cteState) recur(ctx context.Context, c *CTE, owner *frame, rows [][]datum.Datum) error {
	s.busy = true
	defer func() { s.busy = false }()
	seen := map[string]struct{}{}
	for step := 0; ; step++ {
		if err := cancelled(owner); err != nil {
			return err
		}
		if step > maxRecursion {
			return pgerr.New(pgerr.ProgramLimitExceeded, "the recursive query %q takes more than %d steps", c.Name, maxRecursion)
		}
		if c.Unique {
			var err error
			if rows, err = s.fresh(c, owner, rows, seen); err != nil {
				return err
			}
		}
		if len(rows) == 0 {
			s.done, s.working = true, nil
			return nil
		}
		s.rows = append(s.rows, rows...)
		s.working = rows
		var err error
		if rows, err = s.run(ctx, c.Recursive, &frame{run: owner.run, parent: owner, args: owner.args}); err != nil {
			return err
		}
	}
}

// fresh gives the rows not seen before.
func (s *cteState) fresh(c *CTE, owner *frame, rows [][]datum.Datum, seen map[string]struct{}) ([][]datum.Datum, error) {
	kept := rows[:0]
	for _, row := range rows {
		key, err := appendKeys(nil, owner, c.Keys, row)
		if err != nil {
			return nil, err
		}
		if _, ok := seen[string(key)]; ok {
			continue
		}
		if err := s.memory.take(int64(len(key)) + mapEntry); err != nil {
			return nil, err
		}
		seen[string(key)] = struct{}{}
		kept = append(kept, row)
	}
	return kept, nil
}
