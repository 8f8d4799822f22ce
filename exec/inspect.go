package exec

// Inspect visits every expression of a query, those of subqueries too. ordered says that rows are sorted, or values compared
// by their order, by the expression as a whole.
func (s *Spec) Inspect(visit func(e Expr, ordered bool)) {
	v := &inspector{visit: visit, seen: map[*CTE]bool{}}
	v.operator(s.root)
}

type inspector struct {
	visit func(Expr, bool)
	seen  map[*CTE]bool
}

func (v *inspector) exprs(list ...Expr) {
	for _, e := range list {
		v.expr(e, false)
	}
}

func (v *inspector) keys(keys []SortKey) {
	for _, k := range keys {
		v.expr(k.Expr, true)
	}
}

func (v *inspector) expr(e Expr, ordered bool) {
	if e == nil {
		return
	}
	v.visit(e, ordered)
	switch e := e.(type) {
	case *Subquery:
		v.operator(e.Root)
		for _, op := range e.Ops {
			v.visit(op, false)
		}
	case *AggregateCall:
		for _, k := range e.OrderBy {
			v.visit(k.Expr, true)
		}
	case *MinMax:
		for _, a := range e.Args {
			v.visit(a, true)
		}
	}
	v.exprs(e.children()...)
}

func (v *inspector) operator(o Operator) {
	switch o := o.(type) {
	case *Scan:
		for _, t := range o.Equal {
			v.exprs(t.Value)
		}
	case *Filter:
		v.operator(o.Input)
		v.exprs(o.Cond)
	case *Project:
		v.operator(o.Input)
		v.exprs(o.Exprs...)
	case *Values:
		for _, row := range o.Rows {
			v.exprs(row...)
		}
	case *Append:
		for _, in := range o.Inputs {
			v.operator(in)
		}
	case *Limit:
		v.operator(o.Input)
		v.exprs(o.Count, o.Offset)
	case *Sort:
		v.operator(o.Input)
		v.keys(o.Keys)
	case *Unique:
		v.operator(o.Input)
		v.exprs(o.Keys...)
	case *SetOperation:
		v.operator(o.Left)
		v.operator(o.Right)
	default:
		v.wider(o)
	}
}

// wider visits the operators that pair, group or name rows.
func (v *inspector) wider(o Operator) {
	switch o := o.(type) {
	case *Aggregate:
		v.operator(o.Input)
		v.exprs(o.Keys...)
		for _, c := range o.Calls {
			v.expr(c, false)
		}
	case *Window:
		v.operator(o.Input)
		v.exprs(o.Partition...)
		v.keys(o.OrderBy)
		for _, c := range o.Calls {
			if c.Aggregate != nil {
				v.expr(c.Aggregate, false)
			}
			v.exprs(c.Args...)
		}
	case *Join:
		v.operator(o.Left)
		v.operator(o.Right)
		v.exprs(append(append([]Expr{o.On}, o.LeftKeys...), o.RightKeys...)...)
	case *Lateral:
		v.operator(o.Left)
		v.operator(o.Right)
		v.exprs(append([]Expr{o.On}, o.Args...)...)
	case *With:
		for _, c := range o.CTEs {
			v.cte(c)
		}
		v.operator(o.Body)
	case *FuncScan:
		v.exprs(o.Args...)
	case *SourceScan:
		v.exprs(o.Args...)
	}
}

func (v *inspector) cte(c *CTE) {
	if v.seen[c] {
		return
	}
	v.seen[c] = true
	v.operator(c.Query)
	if c.Recursive != nil {
		v.operator(c.Recursive)
	}
}
