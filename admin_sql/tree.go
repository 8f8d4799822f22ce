package adminsql

import "neki/sqlparse"

// selectList makes SELECT of the expressions, one row without FROM, out of a statement's text.
func selectList(text string, expressions []*sqlparse.Node) *sqlparse.Statement {
	targets := make([]*sqlparse.Node, len(expressions))
	for i, e := range expressions {
		targets[i] = &sqlparse.Node{Node: &sqlparse.Node_ResTarget{ResTarget: &sqlparse.ResTarget{Val: e}}}
	}
	query := &sqlparse.Node{Node: &sqlparse.Node_SelectStmt{SelectStmt: &sqlparse.SelectStmt{
		TargetList: targets, LimitOption: sqlparse.LimitOption_LIMIT_OPTION_DEFAULT, Op: sqlparse.SetOperation_SETOP_NONE,
	}}}
	return &sqlparse.Statement{
		Kind: sqlparse.KindSelect, Tag: "SELECT", Text: text,
		Tree: &sqlparse.ParseResult{Stmts: []*sqlparse.RawStmt{{Stmt: query}}},
	}
}

// castTo wraps an expression in a cast to a built-in type, so that literals and parameters get the argument's type.
func castTo(n *sqlparse.Node, oid uint32) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_TypeCast{TypeCast: &sqlparse.TypeCast{
		Arg: n, Location: -1,
		TypeName: &sqlparse.TypeName{
			Names: []*sqlparse.Node{stringNode("pg_catalog"), stringNode(TypeName(oid))}, Typemod: -1, Location: -1,
		},
	}}}
}

func stringNode(s string) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_String_{String_: &sqlparse.String{Sval: s}}}
}

func nullConstant() *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_AConst{AConst: &sqlparse.A_Const{Isnull: true, Location: -1}}}
}

func constant(s string) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_AConst{AConst: &sqlparse.A_Const{
		Val: &sqlparse.A_Const_Sval{Sval: &sqlparse.String{Sval: s}}, Location: -1,
	}}}
}
