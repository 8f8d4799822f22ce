package build

import (
	"neki/exec"
	"neki/internal/pgerr"
)

// group adds the Aggregate and rewrites expressions to be over its output.
func (s *selection) group(op exec.Operator, exprs []exec.Expr) (exec.Operator, int, []exec.Expr, error) {
	g := &grouping{keys: map[string]int{}, calls: map[string]int{}}
	agg := &exec.Aggregate{Input: op}
	for _, e := range s.groups {
		if key := exec.Key(e); !g.has(key) {
			g.keys[key] = len(agg.Keys)
			agg.Keys = append(agg.Keys, e)
		}
	}
	g.agg = agg
	all := append([]exec.Expr(nil), exprs...)
	if s.having != nil {
		all = append(all, s.having)
	}
	for _, e := range all {
		g.collect(e)
	}
	for i, e := range all {
		var err error
		if all[i], err = exec.Map(e, g.replace); err != nil {
			return nil, 0, nil, err
		}
	}
	op = agg
	if s.having != nil {
		op = &exec.Filter{Input: op, Cond: all[len(all)-1]}
		all = all[:len(all)-1]
	}
	return op, len(agg.Keys) + len(agg.Calls), all, nil
}

type grouping struct {
	agg   *exec.Aggregate
	keys  map[string]int
	calls map[string]int
}

func (g *grouping) has(key string) bool {
	_, ok := g.keys[key]
	return ok
}

func (g *grouping) collect(e exec.Expr) {
	exec.Walk(e, func(e exec.Expr) bool {
		if w, ok := e.(*exec.WindowCall); ok && w.Aggregate != nil {
			// the aggregate of a window call is over the grouped rows, its operands may hold ordinary ones
			for _, a := range w.Aggregate.Args {
				g.collect(a)
			}
			for _, p := range w.Partition {
				g.collect(p)
			}
			for _, o := range w.OrderBy {
				g.collect(o.Expr)
			}
			return false
		}
		call, ok := e.(*exec.AggregateCall)
		if !ok {
			return true
		}
		if key := exec.Key(call); g.calls[key] == 0 {
			g.agg.Calls = append(g.agg.Calls, call)
			g.calls[key] = len(g.agg.Calls)
		}
		return false
	})
}

func (g *grouping) replace(e exec.Expr) (exec.Expr, error) {
	if _, ok := e.(*exec.Const); ok {
		return e, nil
	}
	if call, ok := e.(*exec.AggregateCall); ok {
		if i := g.calls[exec.Key(call)]; i > 0 {
			return &exec.ColumnRef{Index: len(g.agg.Keys) + i - 1, Typ: call.Typ}, nil
		}
	}
	if i, ok := g.keys[exec.Key(e)]; ok {
		return &exec.ColumnRef{Index: i, Typ: e.Type()}, nil
	}
	if c, ok := e.(*exec.ColumnRef); ok {
		return nil, errAt(c.Pos, pgerr.GroupingError,
			"column \"%s\" must appear in the GROUP BY clause or be used in an aggregate function", c.Name)
	}
	return nil, nil
}
