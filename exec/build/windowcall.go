package build

import (
	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// windowDef is one WINDOW clause item.
type windowDef struct{ node *sqlparse.WindowDef }

// defaultFrame is the frameOptions of a window without a frame clause: RANGE, UNBOUNDED PRECEDING to CURRENT ROW.
const defaultFrame = 0x00002 | 0x00020 | 0x00400

func (b *builder) windowFunction(l *level, n *sqlparse.FuncCall, c *candidate, args *funcArgs) (exec.Expr, error) {
	name := c.row.name
	if c.row.kind != 'w' {
		return nil, errAt(n.Location, pgerr.WrongObjectType,
			"OVER specified, but %s is not a window function nor an aggregate function", name)
	}
	result, exprs, err := b.bind(c, args.exprs, args.offsets, n.Location)
	if err != nil {
		return nil, err
	}
	if !exec.WindowFunction(name) || n.AggFilter != nil {
		return nil, unsupported(n.Location, "the window function %s", name)
	}
	return b.window(l, n, &exec.WindowCall{Name: name, Args: exprs, Typ: result})
}

// window adds partition and order to a call.
func (b *builder) window(l *level, n *sqlparse.FuncCall, call *exec.WindowCall) (exec.Expr, error) {
	if !l.windows {
		clause := l.place
		if l.inAgg {
			return nil, errAt(n.Location, pgerr.GroupingError, "aggregate function calls cannot contain window function calls")
		}
		return nil, errAt(n.Location, "42P20", "window functions are not allowed in %s", clause)
	}
	def := n.Over
	if def.Name != "" || def.Refname != "" {
		named := l.defs[def.Name+def.Refname]
		if named == nil {
			return nil, errAt(def.Location, pgerr.UndefinedObject, "window \"%s\" does not exist", def.Name+def.Refname)
		}
		if def.Name == "" && (len(def.PartitionClause) > 0 || len(def.OrderClause) > 0) {
			return nil, unsupported(def.Location, "a window that extends another")
		}
		def = named.node
	}
	if def.FrameOptions&^1 != defaultFrame&^1 || def.StartOffset != nil || def.EndOffset != nil || def.Refname != "" {
		return nil, unsupported(def.Location, "a window frame clause")
	}
	l.windows = false
	defer func() { l.windows = true }()
	for _, p := range def.PartitionClause {
		e, err := b.expr(l, p)
		if err != nil {
			return nil, err
		}
		if e, err = b.textIfUnknown(e); err != nil {
			return nil, err
		}
		if err := orderable(e, place(p)); err != nil {
			return nil, err
		}
		call.Partition = append(call.Partition, e)
	}
	for _, o := range def.OrderClause {
		s := o.GetSortBy()
		e, err := b.expr(l, s.Node)
		if err != nil {
			return nil, err
		}
		if e, err = b.textIfUnknown(e); err != nil {
			return nil, err
		}
		k, err := sortKey(e, s, place(s.Node))
		if err != nil {
			return nil, err
		}
		call.OrderBy = append(call.OrderBy, k)
	}
	return call, nil
}

// addWindows puts Window operators over op for the window calls in exprs and replaces the calls by their columns.
func addWindows(op exec.Operator, width int, exprs []exec.Expr) (exec.Operator, []exec.Expr, error) {
	type group struct {
		window *exec.Window
		base   int
	}
	groups := map[string]*group{}
	var order []*group
	for _, e := range exprs {
		exec.Walk(e, func(e exec.Expr) bool {
			call, ok := e.(*exec.WindowCall)
			if !ok {
				return true
			}
			key := windowKey(call)
			g := groups[key]
			if g == nil {
				g = &group{window: &exec.Window{Partition: call.Partition, OrderBy: call.OrderBy}}
				groups[key] = g
				order = append(order, g)
			}
			if callIndex(g.window, call) < 0 {
				g.window.Calls = append(g.window.Calls, call)
			}
			return false
		})
	}
	for _, g := range order {
		g.window.Input, g.base = op, width
		op, width = g.window, width+len(g.window.Calls)
	}
	out := make([]exec.Expr, len(exprs))
	for i, e := range exprs {
		var err error
		if out[i], err = exec.Map(e, func(e exec.Expr) (exec.Expr, error) {
			call, ok := e.(*exec.WindowCall)
			if !ok {
				return nil, nil
			}
			g := groups[windowKey(call)]
			return &exec.ColumnRef{Index: g.base + callIndex(g.window, call), Typ: call.Typ}, nil
		}); err != nil {
			return nil, nil, err
		}
	}
	return op, out, nil
}

func windowKey(c *exec.WindowCall) string {
	return exec.Key(&exec.WindowCall{Partition: c.Partition, OrderBy: c.OrderBy, Typ: datum.Of(datum.BoolOID)})
}

func callIndex(w *exec.Window, c *exec.WindowCall) int {
	for i, have := range w.Calls {
		if exec.Key(have) == exec.Key(c) {
			return i
		}
	}
	return -1
}
