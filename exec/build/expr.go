package build

import (
	"strconv"
	"strings"

	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// expr builds an expression.
func (b *builder) expr(l *level, n *sqlparse.Node) (exec.Expr, error) {
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.leave()
	switch n := n.GetNode().(type) {
	case *sqlparse.Node_AConst:
		return b.constant(n.AConst)
	case *sqlparse.Node_ColumnRef:
		return b.columnRef(l, n.ColumnRef)
	case *sqlparse.Node_ParamRef:
		return b.param(n.ParamRef)
	case *sqlparse.Node_AExpr:
		return b.opExpr(l, n.AExpr)
	case *sqlparse.Node_BoolExpr:
		return b.boolExpr(l, n.BoolExpr)
	case *sqlparse.Node_FuncCall:
		return b.funcCall(l, n.FuncCall)
	case *sqlparse.Node_TypeCast:
		return b.typeCast(l, n.TypeCast)
	case *sqlparse.Node_NullTest:
		return b.nullTest(l, n.NullTest)
	case *sqlparse.Node_BooleanTest:
		return b.boolTest(l, n.BooleanTest)
	case *sqlparse.Node_CaseExpr:
		return b.caseExpr(l, n.CaseExpr)
	case *sqlparse.Node_CoalesceExpr:
		return b.coalesce(l, n.CoalesceExpr)
	case *sqlparse.Node_MinMaxExpr:
		return b.minMax(l, n.MinMaxExpr)
	case *sqlparse.Node_SqlvalueFunction:
		return b.valueFunction(n.SqlvalueFunction)
	case *sqlparse.Node_AArrayExpr:
		return b.arrayExpr(l, n.AArrayExpr, 0)
	case *sqlparse.Node_AIndirection:
		return b.indirection(l, n.AIndirection)
	case *sqlparse.Node_SubLink:
		return b.subLink(l, n.SubLink)
	case *sqlparse.Node_CollateClause:
		return b.collate(l, n.CollateClause)
	case *sqlparse.Node_RowExpr:
		return nil, unsupported(n.RowExpr.Location, "a row as a value")
	case *sqlparse.Node_GroupingFunc:
		return nil, unsupported(n.GroupingFunc.Location, "GROUPING")
	case *sqlparse.Node_SetToDefault:
		return nil, errAt(n.SetToDefault.Location, pgerr.SyntaxError, "DEFAULT is not allowed in this context")
	}
	return nil, unsupported(-1, "this kind of expression (%s)", nodeName(n))
}

// nodeName names a kind of node for an error: "JsonObjectAgg".
func nodeName(n *sqlparse.Node) string {
	text := n.String()
	if i := strings.IndexAny(text, ":{"); i > 0 {
		return text[:i]
	}
	return "unknown"
}

// place gives a node's byte offset, -1 when it has none.
func place(n *sqlparse.Node) int32 {
	switch n := n.GetNode().(type) {
	case *sqlparse.Node_AConst:
		return n.AConst.Location
	case *sqlparse.Node_ColumnRef:
		return n.ColumnRef.Location
	case *sqlparse.Node_ParamRef:
		return n.ParamRef.Location
	case *sqlparse.Node_AExpr:
		return leftmost(place(n.AExpr.Lexpr), n.AExpr.Location)
	case *sqlparse.Node_BoolExpr:
		if len(n.BoolExpr.Args) > 0 {
			return leftmost(place(n.BoolExpr.Args[0]), n.BoolExpr.Location)
		}
		return n.BoolExpr.Location
	case *sqlparse.Node_FuncCall:
		return n.FuncCall.Location
	case *sqlparse.Node_TypeCast:
		return leftmost(place(n.TypeCast.Arg), n.TypeCast.Location)
	case *sqlparse.Node_CaseExpr:
		return n.CaseExpr.Location
	case *sqlparse.Node_CoalesceExpr:
		return n.CoalesceExpr.Location
	case *sqlparse.Node_MinMaxExpr:
		return n.MinMaxExpr.Location
	case *sqlparse.Node_SqlvalueFunction:
		return n.SqlvalueFunction.Location
	case *sqlparse.Node_AArrayExpr:
		return n.AArrayExpr.Location
	case *sqlparse.Node_SubLink:
		return leftmost(place(n.SubLink.Testexpr), n.SubLink.Location)
	case *sqlparse.Node_NullTest:
		return leftmost(place(n.NullTest.Arg), n.NullTest.Location)
	case *sqlparse.Node_BooleanTest:
		return leftmost(place(n.BooleanTest.Arg), n.BooleanTest.Location)
	case *sqlparse.Node_AIndirection:
		return place(n.AIndirection.Arg)
	case *sqlparse.Node_CollateClause:
		return place(n.CollateClause.Arg)
	case *sqlparse.Node_RowExpr:
		return n.RowExpr.Location
	case *sqlparse.Node_NamedArgExpr:
		return n.NamedArgExpr.Location
	}
	return -1
}

func leftmost(a, b int32) int32 {
	if a < 0 {
		return b
	}
	if b < 0 {
		return a
	}
	return min(a, b)
}

func (b *builder) constant(c *sqlparse.A_Const) (exec.Expr, error) {
	if c.Isnull {
		return &exec.Const{Typ: datum.Of(datum.UnknownOID)}, nil
	}
	switch v := c.Val.(type) {
	case *sqlparse.A_Const_Ival:
		return &exec.Const{Value: datum.Int(int64(v.Ival.GetIval())), Typ: datum.Of(datum.Int4OID)}, nil
	case *sqlparse.A_Const_Boolval:
		return &exec.Const{Value: datum.Bool(v.Boolval.GetBoolval()), Typ: datum.Of(datum.BoolOID)}, nil
	case *sqlparse.A_Const_Sval:
		return &exec.Const{Value: datum.Text(v.Sval.GetSval()), Typ: datum.Of(datum.UnknownOID)}, nil
	case *sqlparse.A_Const_Fval:
		text := v.Fval.GetFval()
		if i, err := strconv.ParseInt(text, 10, 64); err == nil {
			return &exec.Const{Value: datum.Int(i), Typ: datum.Of(datum.Int8OID)}, nil
		}
		d, err := datum.ParseText(datum.NumericOID, text, nil)
		return &exec.Const{Value: d, Typ: datum.Of(datum.NumericOID)}, at(err, c.Location)
	}
	return nil, unsupported(c.Location, "a bit string")
}

func (b *builder) param(p *sqlparse.ParamRef) (exec.Expr, error) {
	i := int(p.Number) - 1
	if i < 0 || i >= 65535 {
		return nil, errAt(p.Location, pgerr.UndefinedParameter, "there is no parameter $%d", p.Number)
	}
	for len(b.params) <= i {
		b.params = append(b.params, 0)
	}
	oid := b.params[i]
	if oid == 0 {
		oid = datum.UnknownOID
	}
	if !datum.Known(oid) {
		return nil, unsupported(p.Location, "a parameter of type %s", typeName(oid))
	}
	return &exec.Param{Index: i, Typ: datum.Of(oid)}, nil
}

func (b *builder) columnRef(l *level, c *sqlparse.ColumnRef) (exec.Expr, error) {
	for _, f := range c.Fields {
		if f.GetAStar() != nil {
			return nil, unsupported(c.Location, "* here")
		}
	}
	names := strs(c.Fields)
	schema, rel, name := "", "", names[len(names)-1]
	switch len(names) {
	case 1:
	case 2:
		rel = names[0]
	case 3:
		schema, rel = names[0], names[1]
	default:
		return nil, unsupported(c.Location, "a name of %d parts", len(names))
	}
	e, known, err := l.find(schema, rel, name, c.Location)
	if err != nil {
		return nil, err
	}
	if e == nil {
		return nil, b.noColumn(l, rel, name, known, c.Location)
	}
	if ref, ok := e.(*exec.ColumnRef); ok {
		named := *ref
		named.Name, named.Pos = strings.Join(names, "."), c.Location
		if l.ns != nil && rel == "" {
			named.Name = l.ns.qualify(ref, name)
		}
		return &named, nil
	}
	return e, nil
}

// qualify gives a column's name with its relation's, as the server does in messages.
func (ns *namespace) qualify(ref *exec.ColumnRef, name string) string {
	for _, r := range ns.relations {
		for _, c := range r.columns {
			if o, ok := c.expr.(*exec.ColumnRef); ok && o.Index == ref.Index && c.name == name {
				return r.alias + "." + name
			}
		}
	}
	return name
}

func (b *builder) noColumn(l *level, rel, name string, known bool, offset int32) error {
	if rel != "" && !known {
		return missingRelation(l, rel, offset)
	}
	full := "\"" + name + "\""
	if rel != "" {
		full = rel + "." + name
	}
	if rel == "" && l.ns != nil {
		if r, _ := l.ns.relation("", name, offset); r != nil {
			return unsupported(offset, "a whole row as a value")
		}
	}
	e := errAt(offset, pgerr.UndefinedColumn, "column %s does not exist", full)
	if near := pgerr.Nearest(name, l.names()); near != "" {
		e = e.hint("Perhaps you meant to reference the column \"%s\".", near)
	}
	return e
}

func missingRelation(l *level, name string, offset int32) error {
	if l.ns != nil {
		for _, r := range l.ns.relations {
			if r.table != name {
				continue
			}
			e := errAt(offset, pgerr.UndefinedTable, "invalid reference to FROM-clause entry for table \"%s\"", name)
			if r.alias != name {
				return e.hint("Perhaps you meant to reference the table alias \"%s\".", r.alias)
			}
			return e
		}
	}
	return errAt(offset, pgerr.UndefinedTable, "missing FROM-clause entry for table \"%s\"", name)
}

func (b *builder) boolExpr(l *level, n *sqlparse.BoolExpr) (exec.Expr, error) {
	what := map[sqlparse.BoolExprType]string{
		sqlparse.BoolExprType_AND_EXPR: "AND", sqlparse.BoolExprType_OR_EXPR: "OR", sqlparse.BoolExprType_NOT_EXPR: "NOT",
	}[n.Boolop]
	args := make([]exec.Expr, len(n.Args))
	for i, a := range n.Args {
		e, err := b.expr(l, a)
		if err != nil {
			return nil, err
		}
		if args[i], err = b.boolean(e, place(a), what); err != nil {
			return nil, err
		}
	}
	if n.Boolop == sqlparse.BoolExprType_NOT_EXPR {
		return &exec.Not{Arg: args[0]}, nil
	}
	return &exec.Logic{Or: n.Boolop == sqlparse.BoolExprType_OR_EXPR, Args: args}, nil
}

func (b *builder) typeCast(l *level, n *sqlparse.TypeCast) (exec.Expr, error) {
	to, err := b.typeOf(n.TypeName)
	if err != nil {
		return nil, err
	}
	var e exec.Expr
	if a := n.Arg.GetAArrayExpr(); a != nil && elemOf(to.OID) != 0 {
		e, err = b.arrayExpr(l, a, to.OID)
	} else {
		e, err = b.expr(l, n.Arg)
	}
	if err != nil {
		return nil, err
	}
	from := e.Type().OID
	offset := place(n.Arg)
	c, err := b.coerce(e, to, explicit, offset)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, errAt(leftmost(n.Location, -1), "42846", "cannot cast type %s to %s", typeName(from), typeName(to.OID))
	}
	return c, nil
}

func (b *builder) nullTest(l *level, n *sqlparse.NullTest) (exec.Expr, error) {
	e, err := b.expr(l, n.Arg)
	if err != nil {
		return nil, err
	}
	if e, err = b.textIfUnknown(e); err != nil {
		return nil, err
	}
	return &exec.NullTest{Arg: e, Negate: n.Nulltesttype == sqlparse.NullTestType_IS_NOT_NULL}, nil
}

// textIfUnknown is for places where an unknown literal becomes text at last. A parameter stays undetermined.
func (b *builder) textIfUnknown(e exec.Expr) (exec.Expr, error) {
	if e.Type().OID != datum.UnknownOID {
		return e, nil
	}
	return b.coerceUnknown(e, datum.TextOID, -1)
}

func (b *builder) boolTest(l *level, n *sqlparse.BooleanTest) (exec.Expr, error) {
	e, err := b.expr(l, n.Arg)
	if err != nil {
		return nil, err
	}
	t := &exec.BoolTest{}
	what := ""
	switch n.Booltesttype {
	case sqlparse.BoolTestType_IS_TRUE:
		what, t.Want = "IS TRUE", true
	case sqlparse.BoolTestType_IS_NOT_TRUE:
		what, t.Want, t.Negate = "IS NOT TRUE", true, true
	case sqlparse.BoolTestType_IS_FALSE:
		what = "IS FALSE"
	case sqlparse.BoolTestType_IS_NOT_FALSE:
		what, t.Negate = "IS NOT FALSE", true
	case sqlparse.BoolTestType_IS_UNKNOWN:
		what, t.Unknown = "IS UNKNOWN", true
	case sqlparse.BoolTestType_IS_NOT_UNKNOWN:
		what, t.Unknown, t.Negate = "IS NOT UNKNOWN", true, true
	}
	t.Arg, err = b.boolean(e, place(n.Arg), what)
	return t, err
}

func (b *builder) caseExpr(l *level, n *sqlparse.CaseExpr) (exec.Expr, error) {
	var operand exec.Expr
	if n.Arg != nil {
		var err error
		if operand, err = b.expr(l, n.Arg); err != nil {
			return nil, err
		}
		if operand, err = b.textIfUnknown(operand); err != nil {
			return nil, err
		}
	}
	c := &exec.Case{}
	results, offsets := []exec.Expr{&exec.Const{Typ: datum.Of(datum.UnknownOID)}}, []int32{n.Location}
	for _, a := range n.Args {
		w := a.GetCaseWhen()
		cond, err := b.expr(l, w.Expr)
		if err != nil {
			return nil, err
		}
		if operand != nil {
			places := [2]int32{place(n.Arg), place(w.Expr)}
			if cond, err = b.operator("=", operand, cond, places, w.Location); err != nil {
				return nil, err
			}
		}
		if cond, err = b.boolean(cond, place(w.Expr), "CASE/WHEN"); err != nil {
			return nil, err
		}
		result, err := b.expr(l, w.Result)
		if err != nil {
			return nil, err
		}
		results, offsets = append(results, result), append(offsets, place(w.Result))
		c.Whens = append(c.Whens, exec.When{Cond: cond})
	}
	if n.Defresult != nil {
		var err error
		if results[0], err = b.expr(l, n.Defresult); err != nil {
			return nil, err
		}
		offsets[0] = place(n.Defresult)
	}
	oid, err := common(results, offsets, "CASE")
	if err != nil {
		return nil, err
	}
	if err := b.coerceAll(results, offsets, oid, "CASE"); err != nil {
		return nil, err
	}
	c.Typ, c.Else = resultType(oid, results), results[0]
	for i := range c.Whens {
		c.Whens[i].Result = results[i+1]
	}
	return c, nil
}

// resultType keeps a modifier that all operands share.
func resultType(oid uint32, operands []exec.Expr) datum.Type {
	t := operands[0].Type()
	for _, e := range operands {
		if e.Type() != t {
			return datum.Of(oid)
		}
	}
	return t
}

// alike builds operands and brings them to one type.
func (b *builder) alike(l *level, nodes []*sqlparse.Node, what string) ([]exec.Expr, datum.Type, error) {
	exprs, offsets := make([]exec.Expr, len(nodes)), make([]int32, len(nodes))
	for i, n := range nodes {
		var err error
		if exprs[i], err = b.expr(l, n); err != nil {
			return nil, datum.Type{}, err
		}
		offsets[i] = place(n)
	}
	oid, err := common(exprs, offsets, what)
	if err != nil {
		return nil, datum.Type{}, err
	}
	if err := b.coerceAll(exprs, offsets, oid, what); err != nil {
		return nil, datum.Type{}, err
	}
	return exprs, resultType(oid, exprs), nil
}

func (b *builder) coalesce(l *level, n *sqlparse.CoalesceExpr) (exec.Expr, error) {
	args, t, err := b.alike(l, n.Args, "COALESCE")
	return &exec.Coalesce{Args: args, Typ: t}, err
}

func (b *builder) minMax(l *level, n *sqlparse.MinMaxExpr) (exec.Expr, error) {
	least := n.Op == sqlparse.MinMaxOp_IS_LEAST
	what := "GREATEST"
	if least {
		what = "LEAST"
	}
	args, t, err := b.alike(l, n.Args, what)
	if err != nil {
		return nil, err
	}
	if !datum.Comparable(t.OID) {
		return nil, unsupported(n.Location, "%s of type %s", what, typeName(t.OID))
	}
	return &exec.MinMax{Least: least, Args: args, Typ: t}, nil
}

func (b *builder) collate(l *level, n *sqlparse.CollateClause) (exec.Expr, error) {
	e, err := b.expr(l, n.Arg)
	if err != nil {
		return nil, err
	}
	names := strs(n.Collname)
	if name := names[len(names)-1]; name != "C" && name != "POSIX" {
		return nil, unsupported(n.Location, "collation \"%s\"", name)
	}
	if e, err = b.textIfUnknown(e); err != nil {
		return nil, err
	}
	if cat, _ := category(e.Type().OID); cat != 'S' {
		return nil, errAt(n.Location, pgerr.DatatypeMismatch, "collations are not supported by type %s", typeName(e.Type().OID))
	}
	return e, nil
}

// valueFunctions are the parameterless functions with a syntax of their own.
var valueFunctions = map[sqlparse.SQLValueFunctionOp]struct {
	name, proc string
	oid        uint32
}{
	sqlparse.SQLValueFunctionOp_SVFOP_CURRENT_DATE:        {"current_date", "current_date", datum.DateOID},
	sqlparse.SQLValueFunctionOp_SVFOP_CURRENT_TIME:        {"current_time", "", 0},
	sqlparse.SQLValueFunctionOp_SVFOP_CURRENT_TIME_N:      {"current_time", "", 0},
	sqlparse.SQLValueFunctionOp_SVFOP_LOCALTIME:           {"localtime", "", 0},
	sqlparse.SQLValueFunctionOp_SVFOP_LOCALTIME_N:         {"localtime", "", 0},
	sqlparse.SQLValueFunctionOp_SVFOP_CURRENT_TIMESTAMP:   {"current_timestamp", "now", datum.TimestamptzOID},
	sqlparse.SQLValueFunctionOp_SVFOP_CURRENT_TIMESTAMP_N: {"current_timestamp", "now", datum.TimestamptzOID},
	sqlparse.SQLValueFunctionOp_SVFOP_LOCALTIMESTAMP:      {"localtimestamp", "localtimestamp", datum.TimestampOID},
	sqlparse.SQLValueFunctionOp_SVFOP_LOCALTIMESTAMP_N:    {"localtimestamp", "localtimestamp", datum.TimestampOID},
	sqlparse.SQLValueFunctionOp_SVFOP_CURRENT_ROLE:        {"current_role", "current_user", datum.NameOID},
	sqlparse.SQLValueFunctionOp_SVFOP_CURRENT_USER:        {"current_user", "current_user", datum.NameOID},
	sqlparse.SQLValueFunctionOp_SVFOP_USER:                {"user", "current_user", datum.NameOID},
	sqlparse.SQLValueFunctionOp_SVFOP_SESSION_USER:        {"session_user", "session_user", datum.NameOID},
	sqlparse.SQLValueFunctionOp_SVFOP_CURRENT_CATALOG:     {"current_catalog", "current_database", datum.NameOID},
	sqlparse.SQLValueFunctionOp_SVFOP_CURRENT_SCHEMA:      {"current_schema", "current_schema", datum.NameOID},
}

func (b *builder) valueFunction(n *sqlparse.SQLValueFunction) (exec.Expr, error) {
	f := valueFunctions[n.Op]
	fn, ok := exec.Lookup(f.proc)
	if !ok {
		return nil, unsupported(n.Location, "%s", f.name)
	}
	e := exec.NewFunc(f.name, f.proc, fn, false, datum.Of(f.oid))
	switch n.Op {
	case sqlparse.SQLValueFunctionOp_SVFOP_CURRENT_TIMESTAMP_N, sqlparse.SQLValueFunctionOp_SVFOP_LOCALTIMESTAMP_N:
		return b.fit(e, datum.Type{OID: f.oid, Typmod: min(n.Typmod, 6)}, explicit, n.Location)
	}
	return e, nil
}
