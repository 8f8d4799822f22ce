package plan

import (
	"neki/catalog"
	"neki/internal/datum"
	"neki/sqlparse"
)

// castTypes are the types that a cast of a key's value may name.
var castTypes = map[string]uint32{
	"int2": datum.Int2OID, "int4": datum.Int4OID, "int8": datum.Int8OID, "numeric": datum.NumericOID,
	"float4": datum.Float4OID, "float8": datum.Float8OID, "text": datum.TextOID, "varchar": datum.VarcharOID,
	"bool": datum.BoolOID, "uuid": datum.UUIDOID, "date": datum.DateOID, "timestamp": datum.TimestampOID,
	"timestamptz": datum.TimestamptzOID, "bytea": datum.ByteaOID,
}

// castType gives the type that a cast names, 0 when it isn't one of castTypes or may change the value.
func castType(t *sqlparse.TypeName) (oid uint32, array bool) {
	names := nameParts(t.GetNames())
	if t.GetSetof() || t.GetPctType() || len(t.GetTypmods()) > 0 || len(t.GetArrayBounds()) > 1 ||
		len(names) == 0 || len(names) > 2 || len(names) == 2 && names[0] != systemSchema {
		return 0, false
	}
	return castTypes[names[len(names)-1]], len(t.GetArrayBounds()) == 1
}

func nameParts(list []*sqlparse.Node) []string {
	var out []string
	for _, n := range list {
		out = append(out, n.GetString_().GetSval())
	}
	return out
}

// columnUnder gives the column of an expression that is one, maybe within casts that keep its value's key.
func (a *analysis) columnUnder(l *level, n *sqlparse.Node) column {
	cast := n.GetTypeCast()
	if cast == nil {
		return l.columnOf(n)
	}
	oid, array := castType(cast.TypeName)
	c := a.columnUnder(l, cast.Arg)
	if c == noColumn || array || oid == 0 {
		return noColumn
	}
	from := a.facts[c].key
	widens := oid == from || isText(oid) && isText(from) || integerRank(from) > 0 && integerRank(oid) > integerRank(from)
	if !widens {
		return noColumn
	}
	return c
}

func isText(oid uint32) bool { return oid == datum.TextOID || oid == datum.VarcharOID }

// integerRank orders the types of exact numbers by width.
func integerRank(oid uint32) int {
	switch oid {
	case datum.Int2OID:
		return 1
	case datum.Int4OID:
		return 2
	case datum.Int8OID:
		return 3
	case datum.NumericOID:
		return 4
	}
	return 0
}

// keyValue reads an expression that doesn't depend on rows as a value that a column of type key is compared with.
func (a *analysis) keyValue(n *sqlparse.Node, key uint32) (KeyExpr, bool) {
	if key == 0 {
		return KeyExpr{}, false
	}
	cast, array := uint32(0), false
	if tc := n.GetTypeCast(); tc != nil {
		if cast, array = castType(tc.TypeName); cast == 0 || catalog.FamilyOf(cast) != catalog.FamilyOf(key) {
			return KeyExpr{}, false
		}
		n = tc.Arg
	}
	k := KeyExpr{OID: key, Cast: cast != 0, Array: array}
	if cast != 0 {
		k.OID = cast
	}
	switch {
	case n.GetParamRef() != nil:
		k.Source, k.At = KeyParam, int(n.GetParamRef().Number)-1
		return k, k.At >= 0
	case n.GetAConst() != nil:
		return a.constant(k, n.GetAConst(), key)
	}
	return KeyExpr{}, false
}

// constant completes a key expression by a constant of the text.
func (a *analysis) constant(k KeyExpr, c *sqlparse.A_Const, key uint32) (KeyExpr, bool) {
	if c.Isnull {
		k.Source, k.Null = KeyConst, true
		return k, true
	}
	text, number := "", true
	switch v := c.Val.(type) {
	case *sqlparse.A_Const_Ival:
		text = itoa(int64(v.Ival.GetIval()))
		if !k.Cast {
			k.OID = datum.Int8OID
		}
	case *sqlparse.A_Const_Fval:
		text = v.Fval.GetFval()
		if integerRank(k.OID) > 0 && k.OID != datum.NumericOID && k.Cast {
			return k, false // a cast that rounds
		}
		if !k.Cast {
			k.OID = datum.NumericOID
		}
	case *sqlparse.A_Const_Sval:
		text, number = v.Sval.GetSval(), false
	case *sqlparse.A_Const_Boolval:
		k.Source, k.Const = KeyConst, "f"
		if v.Boolval.GetBoolval() {
			k.Const = "t"
		}
		return k, k.OID == datum.BoolOID
	default:
		return k, false
	}
	if number {
		switch catalog.FamilyOf(key) {
		case catalog.FamilyInteger:
		case catalog.FamilyFloat:
			k.OID = datum.Float8OID
		default:
			return k, false
		}
	}
	return a.placed(k, text, c.Location, number), true
}

// placed says where the constant's value is found in an execution: in the text, when its literal was lifted.
func (a *analysis) placed(k KeyExpr, text string, location int32, number bool) KeyExpr {
	at := -1
	if a.shape != nil {
		at = a.shape.Slot(a.text, int(location))
	}
	if at < 0 {
		k.Source, k.Const = KeyConst, text
		return k
	}
	k.Source, k.At = KeyLiteral, a.shape.Literals[at].Slot
	k.Negative = number && text != "" && text[0] == '-'
	return k
}

// isEqual reports whether an operator is Postgres's equality.
func isEqual(name []*sqlparse.Node) bool {
	parts := nameParts(name)
	return len(parts) > 0 && parts[len(parts)-1] == "=" && (len(parts) == 1 || len(parts) == 2 && parts[0] == systemSchema)
}

// restriction reads a condition that a column has one of several values.
func (a *analysis) restriction(l *level, n *sqlparse.Node) (column, []KeyExpr, bool) {
	if or := n.GetBoolExpr(); or != nil && or.Boolop == sqlparse.BoolExprType_OR_EXPR {
		return a.alternatives(l, or.Args)
	}
	e := n.GetAExpr()
	if e == nil {
		return a.booleanColumn(l, n)
	}
	switch e.Kind {
	case sqlparse.A_Expr_Kind_AEXPR_OP, sqlparse.A_Expr_Kind_AEXPR_NOT_DISTINCT:
		return a.equality(l, e)
	case sqlparse.A_Expr_Kind_AEXPR_IN:
		if !isEqual(e.Name) {
			return noColumn, nil, false
		}
		c, keys, ok := a.listed(l, e.Lexpr, e.Rexpr.GetList().GetItems())
		for i := range keys {
			keys[i].List = keys[i].Source == KeyLiteral
		}
		return c, keys, ok
	case sqlparse.A_Expr_Kind_AEXPR_OP_ANY:
		if !isEqual(e.Name) {
			return noColumn, nil, false
		}
		return a.anyOf(l, e)
	}
	return noColumn, nil, false
}

func (a *analysis) equality(l *level, e *sqlparse.A_Expr) (column, []KeyExpr, bool) {
	if !isEqual(e.Name) {
		return noColumn, nil, false
	}
	left, right := e.Lexpr, e.Rexpr
	c := a.columnUnder(l, left)
	if c == noColumn {
		c, right = a.columnUnder(l, right), left
	}
	if c == noColumn {
		return noColumn, nil, false
	}
	k, ok := a.keyValue(right, a.facts[c].key)
	if !ok || k.Array {
		return noColumn, nil, false
	}
	if e.Kind == sqlparse.A_Expr_Kind_AEXPR_NOT_DISTINCT {
		k.NullAny = true
	}
	return c, []KeyExpr{k}, true
}

// booleanColumn reads a condition that is a boolean column itself, or NOT one.
func (a *analysis) booleanColumn(l *level, n *sqlparse.Node) (column, []KeyExpr, bool) {
	value := "t"
	if not := n.GetBoolExpr(); not != nil && not.Boolop == sqlparse.BoolExprType_NOT_EXPR {
		n, value = not.Args[0], "f"
	}
	c := l.columnOf(n)
	if c == noColumn || a.facts[c].key != datum.BoolOID {
		return noColumn, nil, false
	}
	return c, []KeyExpr{{Source: KeyConst, Const: value, OID: datum.BoolOID}}, true
}

func (a *analysis) listed(l *level, left *sqlparse.Node, items []*sqlparse.Node) (column, []KeyExpr, bool) {
	c := a.columnUnder(l, left)
	if c == noColumn {
		return noColumn, nil, false
	}
	var keys []KeyExpr
	for _, n := range items {
		k, ok := a.keyValue(n, a.facts[c].key)
		if !ok || k.Array {
			return noColumn, nil, false
		}
		keys = addKey(keys, k)
	}
	return c, keys, true
}

func addKey(keys []KeyExpr, k KeyExpr) []KeyExpr {
	for _, have := range keys {
		if have == k {
			return keys
		}
	}
	return append(keys, k)
}

// anyOf reads column = ANY (array).
func (a *analysis) anyOf(l *level, e *sqlparse.A_Expr) (column, []KeyExpr, bool) {
	right := e.Rexpr
	if list := right.GetAArrayExpr(); list != nil {
		return a.listed(l, e.Lexpr, list.Elements)
	}
	c := a.columnUnder(l, e.Lexpr)
	if c == noColumn {
		return noColumn, nil, false
	}
	k, ok := a.keyValue(right, a.facts[c].key)
	if !ok || k.Cast && !k.Array || k.Source == KeyConst && !k.Null {
		return noColumn, nil, false
	}
	k.Array = true
	return c, []KeyExpr{k}, true
}

// alternatives reads an OR whose every branch restricts the same column.
func (a *analysis) alternatives(l *level, args []*sqlparse.Node) (column, []KeyExpr, bool) {
	found := noColumn
	var keys []KeyExpr
	for _, n := range args {
		c, more, ok := a.branch(l, n)
		if !ok || found != noColumn && c != found {
			return noColumn, nil, false
		}
		found = c
		for _, k := range more {
			keys = addKey(keys, k)
		}
	}
	return found, keys, found != noColumn
}

// branch reads one branch of an OR: the first of its conditions that restricts a column with a place.
func (a *analysis) branch(l *level, n *sqlparse.Node) (column, []KeyExpr, bool) {
	for _, cond := range conjuncts(n, nil) {
		if c, keys, ok := a.restriction(l, cond); ok && a.facts[c].place != nil {
			return c, keys, true
		}
	}
	return noColumn, nil, false
}

// conjuncts splits a condition at its ANDs.
func conjuncts(n *sqlparse.Node, dst []*sqlparse.Node) []*sqlparse.Node {
	if n == nil || n.GetNode() == nil {
		return dst
	}
	if and := n.GetBoolExpr(); and != nil && and.Boolop == sqlparse.BoolExprType_AND_EXPR {
		for _, arg := range and.Args {
			dst = conjuncts(arg, dst)
		}
		return dst
	}
	e := n.GetAExpr()
	if e == nil || e.Kind != sqlparse.A_Expr_Kind_AEXPR_OP && e.Kind != sqlparse.A_Expr_Kind_AEXPR_IN {
		return append(dst, n)
	}
	return rowConjuncts(n, e, dst)
}

// rowConjuncts splits a comparison of rows: (a, b) = (1, 2), and takes each column of (a, b) IN ((1, 2), (3, 4)).
func rowConjuncts(n *sqlparse.Node, e *sqlparse.A_Expr, dst []*sqlparse.Node) []*sqlparse.Node {
	left := e.Lexpr.GetRowExpr()
	if left == nil || !isEqual(e.Name) {
		return append(dst, n)
	}
	for i, col := range left.Args {
		part := &sqlparse.A_Expr{Kind: e.Kind, Name: e.Name, Lexpr: col}
		if e.Kind == sqlparse.A_Expr_Kind_AEXPR_OP {
			right := e.Rexpr.GetRowExpr()
			if right == nil || len(right.Args) != len(left.Args) {
				return append(dst, n)
			}
			part.Rexpr = right.Args[i]
		} else {
			list := &sqlparse.List{}
			for _, row := range e.Rexpr.GetList().GetItems() {
				args := row.GetRowExpr().GetArgs()
				if len(args) != len(left.Args) {
					return append(dst, n)
				}
				list.Items = append(list.Items, args[i])
			}
			part.Rexpr = &sqlparse.Node{Node: &sqlparse.Node_List{List: list}}
		}
		dst = append(dst, &sqlparse.Node{Node: &sqlparse.Node_AExpr{AExpr: part}})
	}
	return dst
}
