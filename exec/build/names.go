package build

import "neki/sqlparse"

// figureName is FigureColname of the server: the name of an unnamed output column.
func (b *builder) figureName(n *sqlparse.Node) string {
	if name, strength := b.figure(n); strength > 0 {
		return name
	}
	return "?column?"
}

// figure gives a name and how good it is: 2 is a name, 1 one to be used when there is nothing better, 0 none.
func (b *builder) figure(n *sqlparse.Node) (string, int) {
	switch n := n.GetNode().(type) {
	case *sqlparse.Node_ColumnRef:
		name := ""
		for _, f := range n.ColumnRef.Fields {
			if s := f.GetString_(); s != nil {
				name = s.Sval
			}
		}
		return strong(name)
	case *sqlparse.Node_AIndirection:
		name := ""
		for _, i := range n.AIndirection.Indirection {
			if s := i.GetString_(); s != nil {
				name = s.Sval
			}
		}
		if name != "" {
			return name, 2
		}
		return b.figure(n.AIndirection.Arg)
	case *sqlparse.Node_FuncCall:
		names := strs(n.FuncCall.Funcname)
		return names[len(names)-1], 2
	case *sqlparse.Node_AExpr:
		if n.AExpr.Kind == sqlparse.A_Expr_Kind_AEXPR_NULLIF {
			return "nullif", 2
		}
	case *sqlparse.Node_TypeCast:
		if name, strength := b.figure(n.TypeCast.Arg); strength > 1 {
			return name, strength
		}
		if names := strs(n.TypeCast.TypeName.GetNames()); len(names) > 0 {
			return names[len(names)-1], 1
		}
	case *sqlparse.Node_CollateClause:
		return b.figure(n.CollateClause.Arg)
	case *sqlparse.Node_GroupingFunc:
		return "grouping", 2
	case *sqlparse.Node_SubLink:
		return b.figureSubLink(n.SubLink)
	case *sqlparse.Node_CaseExpr:
		if name, strength := b.figure(n.CaseExpr.Defresult); strength > 1 {
			return name, strength
		}
		return "case", 1
	case *sqlparse.Node_AArrayExpr:
		return "array", 2
	case *sqlparse.Node_RowExpr:
		return "row", 2
	case *sqlparse.Node_CoalesceExpr:
		return "coalesce", 2
	case *sqlparse.Node_MinMaxExpr:
		if n.MinMaxExpr.Op == sqlparse.MinMaxOp_IS_LEAST {
			return "least", 2
		}
		return "greatest", 2
	case *sqlparse.Node_SqlvalueFunction:
		return valueFunctions[n.SqlvalueFunction.Op].name, 2
	}
	return "", 0
}

func strong(name string) (string, int) {
	if name == "" {
		return "", 0
	}
	return name, 2
}

// figureSubLink knows that a scalar subquery has been built by the time that it is named.
func (b *builder) figureSubLink(s *sqlparse.SubLink) (string, int) {
	switch s.SubLinkType {
	case sqlparse.SubLinkType_EXISTS_SUBLINK:
		return "exists", 2
	case sqlparse.SubLinkType_ARRAY_SUBLINK:
		return "array", 2
	case sqlparse.SubLinkType_EXPR_SUBLINK:
		return b.subNames[s], 2
	}
	return "", 0
}
