package sqlparse

import (
	"strconv"
	"strings"
)

// constant is a constant of a tree, as text.
type constant struct {
	text string
	kind ConstKind
	cast string // the type's name, if it is cast
	ok   bool   // it is a constant at all
}

// constantOf reads a constant, through casts.
func constantOf(n *Node) constant {
	if cast := n.GetTypeCast(); cast != nil {
		c := constantOf(cast.Arg)
		if names := stringsOf(cast.GetTypeName().GetNames()); len(names) > 0 {
			c.cast = names[len(names)-1]
		}
		return c
	}
	c := n.GetAConst()
	if c == nil {
		return constant{}
	}
	if c.Isnull {
		return constant{kind: ConstNull, ok: true}
	}
	switch v := c.Val.(type) {
	case *A_Const_Ival:
		return constant{text: strconv.Itoa(int(v.Ival.GetIval())), kind: ConstInteger, ok: true}
	case *A_Const_Fval:
		return constant{text: v.Fval.GetFval(), kind: ConstFloat, ok: true}
	case *A_Const_Boolval:
		return constant{text: strconv.FormatBool(v.Boolval.GetBoolval()), kind: ConstBool, ok: true}
	case *A_Const_Sval:
		return constant{text: v.Sval.GetSval(), kind: ConstString, ok: true}
	case *A_Const_Bsval:
		return constant{text: v.Bsval.GetBsval(), kind: ConstBits, ok: true}
	}
	return constant{}
}

// boolOption reads a boolean as Postgres's options and casts do: no value means on, unknown text off.
func boolOption(s string) bool {
	switch strings.ToLower(s) {
	case "", "1", "on", "true", "t", "yes", "y", "tru", "tr", "ye":
		return true
	}
	return false
}
