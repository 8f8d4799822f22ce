package sqlparse

// PasswordOf finds the password in CREATE ROLE, ALTER ROLE and their like: its value, and where its literal begins and
// ends. start is -1 when the statement sets none.
func PasswordOf(text string) (start int, password string, end int, err error) {
	st, err := Parse(text)
	if err != nil || st.Tree == nil {
		return -1, "", 0, err
	}
	node := st.Tree.Stmts[0].Stmt
	options := node.GetCreateRoleStmt().GetOptions()
	if alter := node.GetAlterRoleStmt(); alter != nil {
		options = alter.Options
	}
	found := false
	for _, o := range options {
		if d := o.GetDefElem(); d.GetDefname() == "password" && d.GetArg().GetString_() != nil {
			password, found = d.GetArg().GetString_().GetSval(), true
		}
	}
	if !found {
		return -1, "", 0, nil
	}
	t := newTokens(text, Span{0, len(text)})
	for !t.done() {
		after := t.at.kind == tokenIdent && t.name() == "password"
		t.advance()
		if after && t.at.kind.isString() {
			return t.at.start, password, t.at.end, nil
		}
	}
	return -1, "", 0, errSyntax("the password can't be told from the rest of the statement")
}
