package adminsql

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"neki/sqlparse"
)

// walkNodes visits every node of a tree, parents first, and lets visit put another in its place, which sqlparse.Walk
// does not. visit gives false to leave out what is below a node.
func walkNodes(m protoreflect.Message, visit func(*sqlparse.Node) bool) {
	if n, ok := m.Interface().(*sqlparse.Node); ok && !visit(n) {
		return
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.Message() == nil:
		case field.IsList():
			for list, i := v.List(), 0; i < list.Len(); i++ {
				walkNodes(list.Get(i).Message(), visit)
			}
		default:
			walkNodes(v.Message(), visit)
		}
		return true
	})
}

// functionName gives the schema and name of a call; schema is "" when it is not qualified.
func functionName(f *sqlparse.FuncCall) (schema, name string) {
	parts := f.GetFuncname()
	if len(parts) == 0 {
		return "", ""
	}
	if len(parts) > 1 {
		schema = parts[len(parts)-2].GetString_().GetSval()
	}
	return schema, parts[len(parts)-1].GetString_().GetSval()
}

// callArguments separates the names of named arguments from the expressions.
func callArguments(f *sqlparse.FuncCall) []argument {
	args := make([]argument, len(f.GetArgs()))
	for i, n := range f.GetArgs() {
		args[i] = newArgument("", n)
	}
	return args
}

func newArgument(name string, n *sqlparse.Node) argument {
	if named := n.GetNamedArgExpr(); named != nil {
		return argument{name: named.GetName(), node: named.GetArg()}
	}
	return argument{name: name, node: n}
}

// selectList makes SELECT of the expressions, one row without FROM.
func selectList(expressions []*sqlparse.Node) *sqlparse.ParseResult {
	targets := make([]*sqlparse.Node, len(expressions))
	for i, e := range expressions {
		targets[i] = &sqlparse.Node{Node: &sqlparse.Node_ResTarget{ResTarget: &sqlparse.ResTarget{Val: e}}}
	}
	return &sqlparse.ParseResult{Stmts: []*sqlparse.RawStmt{{Stmt: &sqlparse.Node{
		Node: &sqlparse.Node_SelectStmt{SelectStmt: &sqlparse.SelectStmt{
			TargetList: targets, LimitOption: sqlparse.LimitOption_LIMIT_OPTION_DEFAULT, Op: sqlparse.SetOperation_SETOP_NONE,
		}},
	}}}}
}

// castTo wraps an expression in a cast to a built-in type, so that literals and parameters get the argument's type.
func castTo(n *sqlparse.Node, oid uint32) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_TypeCast{TypeCast: &sqlparse.TypeCast{
		Arg:      n,
		TypeName: &sqlparse.TypeName{Names: []*sqlparse.Node{stringNode("pg_catalog"), stringNode(TypeName(oid))}, Typemod: -1},
	}}}
}

func stringNode(s string) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_String_{String_: &sqlparse.String{Sval: s}}}
}

func constant(s string) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_AConst{AConst: &sqlparse.A_Const{
		Val: &sqlparse.A_Const_Sval{Sval: &sqlparse.String{Sval: s}},
	}}}
}

func cloneTree(tree *sqlparse.ParseResult) *sqlparse.ParseResult {
	return proto.Clone(tree).(*sqlparse.ParseResult)
}
