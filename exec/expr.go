package exec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"neki/internal/datum"
)

// Expr is a scalar expression over a row. It is immutable; the implementations are this package's.
type Expr interface {
	// Type gives the type of the value.
	Type() datum.Type
	// children gives the operands, and rebuild the same expression over other operands.
	children() []Expr
	rebuild(operands []Expr) Expr
	// key describes the expression itself without its operands.
	key() string
	eval(f *frame, row []datum.Datum) (datum.Datum, error)
}

// leaf is an expression without operands.
type leaf struct{}

func (leaf) children() []Expr { return nil }

// Const is a constant.
type Const struct {
	leaf
	Value datum.Datum
	Typ   datum.Type
}

// ColumnRef is position Index of the input row.
type ColumnRef struct {
	leaf
	Index int
	Typ   datum.Type
	Name  string // as written, for errors
	Pos   int32  // byte offset in the statement, for errors
}

// Param is $Index+1.
type Param struct {
	leaf
	Index int
	Typ   datum.Type
}

// Arg is a value that a correlated subquery gets from the query around it.
type Arg struct {
	leaf
	Index int
	Typ   datum.Type
}

// Func calls a builtin.
type Func struct {
	Name   string // as the user knows it
	Proc   string // pg_proc.prosrc: what it does
	Fn     Builtin
	Args   []Expr
	Typ    datum.Type
	Strict bool // NULL in, NULL out
	call   *Signature
}

// NewFunc makes a call of a builtin.
func NewFunc(name, proc string, fn Builtin, strict bool, typ datum.Type, args ...Expr) *Func {
	call := &Signature{Name: name, Proc: proc, Result: typ}
	for _, a := range args {
		call.Args = append(call.Args, a.Type())
	}
	return &Func{Name: name, Proc: proc, Fn: fn, Args: args, Typ: typ, Strict: strict, call: call}
}

// Logic is AND or OR.
type Logic struct {
	Or   bool
	Args []Expr
}

// Not is NOT.
type Not struct{ Arg Expr }

// NullTest is IS [NOT] NULL.
type NullTest struct {
	Arg    Expr
	Negate bool
}

// BoolTest is IS [NOT] TRUE (Want true), FALSE (Want false) or UNKNOWN.
type BoolTest struct {
	Arg           Expr
	Unknown, Want bool
	Negate        bool
}

// Distinct is IS [NOT] DISTINCT FROM; Equal compares two values that are not NULL.
type Distinct struct {
	Equal       *Func // over two operands
	Negate      bool
	NullIf      bool // NULLIF: the left operand, or NULL when both are equal
	Typ         datum.Type
	Left, Right Expr
}

// Case is CASE WHEN; the Else is never nil.
type Case struct {
	Whens []When
	Else  Expr
	Typ   datum.Type
}

// When is one arm of a Case.
type When struct{ Cond, Result Expr }

// Coalesce is COALESCE.
type Coalesce struct {
	Args []Expr
	Typ  datum.Type
}

// MinMax is GREATEST or LEAST.
type MinMax struct {
	Least bool
	Args  []Expr
	Typ   datum.Type
}

// ArrayTest is left op ANY (array) or, with All, left op ALL (array). Op takes the left value and an element.
type ArrayTest struct {
	Op          *Func
	All         bool
	Left, Array Expr
}

// ArrayLit is ARRAY[...].
type ArrayLit struct {
	Items []Expr
	Typ   datum.Type
}

// Subscript is array[index], or array[index:upper] when Slice; a nil bound of a slice is open.
type Subscript struct {
	Array        Expr
	Slice        bool
	Lower, Upper Expr
	Typ          datum.Type
}

// Relabel shows a value of a binary-coercible type as another.
type Relabel struct {
	Arg Expr
	Typ datum.Type
}

// CoerceIO converts by the text form.
type CoerceIO struct {
	Arg Expr
	Typ datum.Type
}

// ArrayCast converts each item of an array; Item is over a row of one column, the item.
type ArrayCast struct {
	Arg, Item Expr
	Typ       datum.Type
}

// Type implements Expr.
func (e *Const) Type() datum.Type     { return e.Typ }
func (e *ColumnRef) Type() datum.Type { return e.Typ }
func (e *Param) Type() datum.Type     { return e.Typ }
func (e *Arg) Type() datum.Type       { return e.Typ }
func (e *Func) Type() datum.Type      { return e.Typ }
func (e *Logic) Type() datum.Type     { return datum.Of(datum.BoolOID) }
func (e *Not) Type() datum.Type       { return datum.Of(datum.BoolOID) }
func (e *NullTest) Type() datum.Type  { return datum.Of(datum.BoolOID) }
func (e *BoolTest) Type() datum.Type  { return datum.Of(datum.BoolOID) }
func (e *Distinct) Type() datum.Type  { return e.Typ }
func (e *Case) Type() datum.Type      { return e.Typ }
func (e *Coalesce) Type() datum.Type  { return e.Typ }
func (e *MinMax) Type() datum.Type    { return e.Typ }
func (e *ArrayTest) Type() datum.Type { return datum.Of(datum.BoolOID) }
func (e *ArrayLit) Type() datum.Type  { return e.Typ }
func (e *Subscript) Type() datum.Type { return e.Typ }
func (e *Relabel) Type() datum.Type   { return e.Typ }
func (e *CoerceIO) Type() datum.Type  { return e.Typ }
func (e *ArrayCast) Type() datum.Type { return e.Typ }

func (e *Func) children() []Expr      { return e.Args }
func (e *Logic) children() []Expr     { return e.Args }
func (e *Not) children() []Expr       { return []Expr{e.Arg} }
func (e *NullTest) children() []Expr  { return []Expr{e.Arg} }
func (e *BoolTest) children() []Expr  { return []Expr{e.Arg} }
func (e *Distinct) children() []Expr  { return []Expr{e.Left, e.Right} }
func (e *Coalesce) children() []Expr  { return e.Args }
func (e *MinMax) children() []Expr    { return e.Args }
func (e *ArrayTest) children() []Expr { return []Expr{e.Left, e.Array} }
func (e *ArrayLit) children() []Expr  { return e.Items }
func (e *Relabel) children() []Expr   { return []Expr{e.Arg} }
func (e *CoerceIO) children() []Expr  { return []Expr{e.Arg} }
func (e *ArrayCast) children() []Expr { return []Expr{e.Arg} }

func (e *Case) children() []Expr {
	var out []Expr
	for _, w := range e.Whens {
		out = append(out, w.Cond, w.Result)
	}
	return append(out, e.Else)
}

func (e *Subscript) children() []Expr {
	out := []Expr{e.Array}
	if e.Lower != nil {
		out = append(out, e.Lower)
	}
	if e.Upper != nil {
		out = append(out, e.Upper)
	}
	return out
}

func (e *Const) rebuild([]Expr) Expr     { return e }
func (e *ColumnRef) rebuild([]Expr) Expr { return e }
func (e *Param) rebuild([]Expr) Expr     { return e }
func (e *Arg) rebuild([]Expr) Expr       { return e }

func (e *Func) rebuild(a []Expr) Expr      { c := *e; c.Args = a; return &c }
func (e *Logic) rebuild(a []Expr) Expr     { return &Logic{Or: e.Or, Args: a} }
func (e *Not) rebuild(a []Expr) Expr       { return &Not{a[0]} }
func (e *NullTest) rebuild(a []Expr) Expr  { return &NullTest{a[0], e.Negate} }
func (e *BoolTest) rebuild(a []Expr) Expr  { c := *e; c.Arg = a[0]; return &c }
func (e *Distinct) rebuild(a []Expr) Expr  { c := *e; c.Left, c.Right = a[0], a[1]; return &c }
func (e *Coalesce) rebuild(a []Expr) Expr  { return &Coalesce{a, e.Typ} }
func (e *MinMax) rebuild(a []Expr) Expr    { return &MinMax{e.Least, a, e.Typ} }
func (e *ArrayTest) rebuild(a []Expr) Expr { return &ArrayTest{e.Op, e.All, a[0], a[1]} }
func (e *ArrayLit) rebuild(a []Expr) Expr  { return &ArrayLit{a, e.Typ} }
func (e *Relabel) rebuild(a []Expr) Expr   { return &Relabel{a[0], e.Typ} }
func (e *CoerceIO) rebuild(a []Expr) Expr  { return &CoerceIO{a[0], e.Typ} }
func (e *ArrayCast) rebuild(a []Expr) Expr { return &ArrayCast{a[0], e.Item, e.Typ} }

func (e *Case) rebuild(a []Expr) Expr {
	c := &Case{Typ: e.Typ, Else: a[len(a)-1]}
	for i := 0; i+1 < len(a); i += 2 {
		c.Whens = append(c.Whens, When{a[i], a[i+1]})
	}
	return c
}

func (e *Subscript) rebuild(a []Expr) Expr {
	c := *e
	c.Array, a = a[0], a[1:]
	if e.Lower != nil {
		c.Lower, a = a[0], a[1:]
	}
	if e.Upper != nil {
		c.Upper = a[0]
	}
	return &c
}

func (e *Const) key() string {
	if e.Value.IsNull() {
		return "null"
	}
	text, err := datum.Format(e.Typ.OID, e.Value, nil)
	return strconv.Quote(text) + fmt.Sprint(err)
}
func (e *ColumnRef) key() string { return "col" + strconv.Itoa(e.Index) }
func (e *Param) key() string     { return "$" + strconv.Itoa(e.Index) }
func (e *Arg) key() string       { return "arg" + strconv.Itoa(e.Index) }
func (e *Func) key() string      { return e.Proc }
func (e *Logic) key() string     { return fmt.Sprint("or", e.Or) }
func (e *Not) key() string       { return "not" }
func (e *NullTest) key() string  { return fmt.Sprint("null", e.Negate) }
func (e *BoolTest) key() string  { return fmt.Sprint("is", e.Unknown, e.Want, e.Negate) }
func (e *Distinct) key() string  { return fmt.Sprint("distinct", e.Equal.Proc, e.Negate, e.NullIf) }
func (e *Case) key() string      { return "case" }
func (e *Coalesce) key() string  { return "coalesce" }
func (e *MinMax) key() string    { return fmt.Sprint("least", e.Least) }
func (e *ArrayTest) key() string { return fmt.Sprint("any", e.Op.Proc, e.All) }
func (e *ArrayLit) key() string  { return "array" }
func (e *Subscript) key() string { return fmt.Sprint("sub", e.Slice, e.Lower != nil, e.Upper != nil) }
func (e *Relabel) key() string   { return "relabel" }
func (e *CoerceIO) key() string  { return "io" }
func (e *ArrayCast) key() string { return "items" + Key(e.Item) }

// Key describes an expression so that two expressions with equal keys compute the same.
func Key(e Expr) string {
	var b strings.Builder
	writeKey(&b, e)
	return b.String()
}

func writeKey(b *strings.Builder, e Expr) {
	fmt.Fprintf(b, "(%s:%d.%d", e.key(), e.Type().OID, e.Type().Typmod)
	for _, c := range e.children() {
		writeKey(b, c)
	}
	b.WriteByte(')')
}

// Map rebuilds an expression from the top: where replace gives an expression, that stands in its place; else the
// operands are mapped.
func Map(e Expr, replace func(Expr) (Expr, error)) (Expr, error) {
	r, err := replace(e)
	if r != nil || err != nil {
		return r, err
	}
	old := e.children()
	if len(old) == 0 {
		return e, nil
	}
	operands := make([]Expr, len(old))
	for i, c := range old {
		if operands[i], err = Map(c, replace); err != nil {
			return nil, err
		}
	}
	if slices.Equal(operands, old) {
		return e, nil
	}
	return e.rebuild(operands), nil
}

// Walk visits an expression and its operands, top down, while visit gives true.
func Walk(e Expr, visit func(Expr) bool) {
	if !visit(e) {
		return
	}
	for _, c := range e.children() {
		Walk(c, visit)
	}
}

// IsConstant reports whether an expression is free of anything that varies within a run.
func IsConstant(e Expr) bool {
	constant := true
	Walk(e, func(e Expr) bool {
		switch e := e.(type) {
		case *ColumnRef, *Subquery, *AggregateCall, *WindowCall:
			constant = false
		case *Func:
			constant = constant && e.Proc != "clock_timestamp" && e.Proc != "drandom" && !strings.HasPrefix(e.Proc, "own ")
		}
		return constant
	})
	return constant
}
