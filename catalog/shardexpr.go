package catalog

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// keyExpr is a deterministic expression over one column: those that give here, for every value, what the server gives,
// or an error. The zero keyExpr gives its argument.
type keyExpr struct {
	op       exprOp
	constant int64
}

type exprOp uint8

const (
	exprNone exprOp = iota
	exprLower
	exprUpper
	exprAdd
	exprSubtract
	exprMultiply
	exprDivide
	exprModulo
)

const identifier = `("(?:[^"]|"")+"|[A-Za-z_\x{80}-\x{10ffff}][\w$\x{80}-\x{10ffff}]*)`

var (
	columnPattern     = regexp.MustCompile(`^` + identifier + `$`)
	functionPattern   = regexp.MustCompile(`^(?i:pg_catalog\s*\.\s*)?([A-Za-z_]+)\s*\(\s*` + identifier + `\s*\)$`)
	arithmeticPattern = regexp.MustCompile(`^\(?\s*` + identifier + `\s*([-+*/%])\s*(\d{1,18})\s*\)?$`)
)

// parseColumn reads an entry of an index's columns: the name of a column, as it is or quoted, or an expression over one.
func parseColumn(entry string) (column string, e keyExpr, problem string) {
	entry = strings.TrimSpace(entry)
	if columnPattern.MatchString(entry) {
		if entry[0] == '"' {
			return foldIdentifier(entry), e, ""
		}
		return entry, e, ""
	}
	if m := functionPattern.FindStringSubmatch(entry); m != nil {
		switch strings.ToLower(m[1]) {
		case "lower":
			return foldIdentifier(m[2]), keyExpr{op: exprLower}, ""
		case "upper":
			return foldIdentifier(m[2]), keyExpr{op: exprUpper}, ""
		}
	}
	if m := arithmeticPattern.FindStringSubmatch(entry); m != nil && balanced(entry) {
		constant, _ := strconv.ParseInt(m[3], 10, 64) // at most 18 digits
		ops := map[string]exprOp{"+": exprAdd, "-": exprSubtract, "*": exprMultiply, "/": exprDivide, "%": exprModulo}
		e = keyExpr{op: ops[m[2]], constant: constant}
		if constant == 0 && (e.op == exprDivide || e.op == exprModulo) {
			return "", e, "divides by zero"
		}
		return foldIdentifier(m[1]), e, ""
	}
	return "", e, "is neither a column nor one of the expressions lower(column), upper(column), " +
		"column + n, column - n, column * n, column / n, column % n"
}

func balanced(s string) bool { return strings.HasPrefix(s, "(") == strings.HasSuffix(s, ")") }

// foldIdentifier gives the name that an identifier means in SQL.
func foldIdentifier(s string) string {
	if s[0] == '"' {
		return strings.ReplaceAll(s[1:len(s)-1], `""`, `"`)
	}
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

// OfText reports whether the index has an expression that depends on how the column's collation maps cases.
func (ix *Index) OfText() bool { return ix.expr.op == exprLower || ix.expr.op == exprUpper }

// result gives the type of the expression for a column's type.
func (e keyExpr) result(oid uint32) (uint32, error) {
	switch e.op {
	case exprNone:
		return oid, nil
	case exprLower, exprUpper:
		if f := FamilyOf(oid); f == FamilyText || f == FamilyBlankPadded {
			return datum.TextOID, nil
		}
	default:
		switch {
		case oid == datum.Int8OID, e.constant > math.MaxInt32 && isInteger(oid):
			return datum.Int8OID, nil
		case isInteger(oid):
			return datum.Int4OID, nil
		}
	}
	return 0, pgerr.New(pgerr.DatatypeMismatch, "the expression of a shard index can't be computed of type %s", typeName(oid))
}

func isInteger(oid uint32) bool {
	return oid == datum.Int2OID || oid == datum.Int4OID || oid == datum.Int8OID
}

// apply gives the expression's value for one that is not NULL.
func (e keyExpr) apply(oid uint32, d datum.Datum) (uint32, datum.Datum, error) {
	result, err := e.result(oid)
	if err != nil {
		return 0, datum.Null, err
	}
	if e.op == exprLower || e.op == exprUpper {
		value := d.Text()
		if oid == datum.BPCharOID {
			value = trimBlanks(value)
		}
		if value, err = e.mapCase(value); err != nil {
			return 0, datum.Null, err
		}
		return result, datum.Text(value), nil
	}
	i, ok := e.compute(d.Int())
	if result == datum.Int4OID && i != int64(int32(i)) {
		return 0, datum.Null, pgerr.New(pgerr.NumericValueOutOfRange, "integer out of range")
	}
	if !ok {
		return 0, datum.Null, pgerr.New(pgerr.NumericValueOutOfRange, "bigint out of range")
	}
	return result, datum.Int(i), nil
}

// mapCase changes ASCII letters. What becomes of others depends on the column's collation, which only its server knows.
func (e keyExpr) mapCase(s string) (string, error) {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return "", pgerr.New(pgerr.NotImplemented,
				"not implemented: [%d] lower() or upper() of a shard key that is not ASCII", NotImplementedKeyCase).
				WithDetail("What becomes of such letters depends on the collation of the column on its server.")
		}
	}
	if e.op == exprLower {
		return strings.ToLower(s), nil
	}
	return strings.ToUpper(s), nil
}

// NotImplementedKeyCase is the stable number, in errors of class NK013, of a key whose case can't be mapped here.
const NotImplementedKeyCase = 400

// compute gives column op constant as int8 does; ok is false when it does not fit.
func (e keyExpr) compute(i int64) (_ int64, ok bool) {
	c := e.constant
	switch e.op {
	case exprAdd:
		return i + c, i+c >= i // c is not negative
	case exprSubtract:
		return i - c, i-c <= i
	case exprMultiply:
		product := i * c
		return product, c == 0 || product/c == i && (i != math.MinInt64 || c == 1)
	case exprDivide:
		return i / c, true
	case exprModulo:
		return i % c, true
	}
	return i, true
}

// sameFunction reports whether two indexes give equal values equal keys.
func (ix *Index) sameFunction(other *Index) bool {
	return ix == other || ix.Type == other.Type && ix.Modulus == other.Modulus && ix.expr == other.expr
}
