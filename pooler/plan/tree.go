package plan

import (
	"neki/exec"
	"neki/sqlparse"
)

// Small makers of tree nodes.

func stringConst(s string) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_AConst{AConst: &sqlparse.A_Const{
		Val: &sqlparse.A_Const_Sval{Sval: &sqlparse.String{Sval: s}},
	}}}
}

func intConst(i int32) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_AConst{AConst: &sqlparse.A_Const{
		Val: &sqlparse.A_Const_Ival{Ival: &sqlparse.Integer{Ival: i}},
	}}}
}

func nameNode(s string) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_String_{String_: &sqlparse.String{Sval: s}}}
}

func names2(parts ...string) []*sqlparse.Node {
	out := make([]*sqlparse.Node, len(parts))
	for i, p := range parts {
		out[i] = nameNode(p)
	}
	return out
}

func columnNode(parts ...string) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_ColumnRef{ColumnRef: &sqlparse.ColumnRef{Fields: names2(parts...)}}}
}

func target(name string, val *sqlparse.Node) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_ResTarget{ResTarget: &sqlparse.ResTarget{Name: name, Val: val}}}
}

func castNode(arg *sqlparse.Node, typeName string) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_TypeCast{TypeCast: &sqlparse.TypeCast{
		Arg: arg, TypeName: &sqlparse.TypeName{Names: names2(systemSchema, typeName), Typemod: -1},
	}}}
}

func operatorNode(op string, left, right *sqlparse.Node) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_AExpr{AExpr: &sqlparse.A_Expr{
		Kind: sqlparse.A_Expr_Kind_AEXPR_OP, Name: names2(op), Lexpr: left, Rexpr: right,
	}}}
}

func callNode(name string, args ...*sqlparse.Node) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_FuncCall{FuncCall: &sqlparse.FuncCall{
		Funcname: names2(systemSchema, name), Args: args, Funcformat: sqlparse.CoercionForm_COERCE_EXPLICIT_CALL,
	}}}
}

func emptySelect() *sqlparse.SelectStmt {
	return &sqlparse.SelectStmt{
		LimitOption: sqlparse.LimitOption_LIMIT_OPTION_DEFAULT, Op: sqlparse.SetOperation_SETOP_NONE,
	}
}

func selectNode(s *sqlparse.SelectStmt) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_SelectStmt{SelectStmt: s}}
}

// queryOf makes SELECT of an expression.
func queryOf(expr *sqlparse.Node) *sqlparse.Node {
	s := emptySelect()
	s.TargetList = []*sqlparse.Node{target("", expr)}
	return selectNode(s)
}

// statementOf makes a statement for exec/build; its places are in text.
func statementOf(s *sqlparse.SelectStmt, text string) *sqlparse.Statement {
	return &sqlparse.Statement{
		Kind: sqlparse.KindSelect, Text: text,
		Tree: &sqlparse.ParseResult{Stmts: []*sqlparse.RawStmt{{Stmt: selectNode(s)}}},
	}
}

func cloneSelect(s *sqlparse.SelectStmt) *sqlparse.SelectStmt {
	return sqlparse.Clone(selectNode(s)).GetSelectStmt()
}

// namedType makes the tree of a type's name.
func namedType(t *RelTable, oid uint32) *sqlparse.TypeName {
	if typ := t.Type(oid); typ != nil {
		return &sqlparse.TypeName{Names: names2(typ.Schema, typ.Name), Typemod: -1}
	}
	return &sqlparse.TypeName{Names: names2(systemSchema, baseTypeNames[oid]), Typemod: -1}
}

// noRelations resolves none.
type noRelations struct{}

func (noRelations) Resolve(string, string) (exec.Source, bool) { return nil, false }
