package exec

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"strings"

	"github.com/cockroachdb/apd/v3"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// intOf gives an integer result, refused when the result's type can't hold it.
func intOf(c Call, i int64) (datum.Datum, error) {
	switch c.Result.OID {
	case datum.Int2OID:
		if i != int64(int16(i)) {
			return datum.Null, outOfRange("smallint")
		}
	case datum.Int4OID:
		if i != int64(int32(i)) {
			return datum.Null, outOfRange("integer")
		}
	}
	return datum.Int(i), nil
}

// integerOperator finds int2pl, int48mul and the like.
func integerOperator(proc string) (Builtin, bool) {
	rest, ok := strings.CutPrefix(proc, "int")
	if !ok {
		return nil, false
	}
	name := strings.TrimLeft(rest, "248")
	if len(rest)-len(name) < 1 || len(rest)-len(name) > 2 {
		return nil, false
	}
	op, ok := integerOperators[name]
	return op, ok
}

var integerOperators = map[string]Builtin{
	"pl": func(c Call, a []datum.Datum) (datum.Datum, error) {
		x, y := a[0].Int(), a[1].Int()
		s := x + y
		if (s > x) != (y > 0) && y != 0 {
			return datum.Null, outOfRange("bigint")
		}
		return intOf(c, s)
	},
	"mi": func(c Call, a []datum.Datum) (datum.Datum, error) {
		x, y := a[0].Int(), a[1].Int()
		s := x - y
		if (s < x) != (y > 0) && y != 0 {
			return datum.Null, outOfRange("bigint")
		}
		return intOf(c, s)
	},
	"mul": func(c Call, a []datum.Datum) (datum.Datum, error) {
		x, y := a[0].Int(), a[1].Int()
		p, ok := mulInt64(x, y)
		if !ok {
			return datum.Null, outOfRange("bigint")
		}
		return intOf(c, p)
	},
	"div": func(c Call, a []datum.Datum) (datum.Datum, error) {
		x, y := a[0].Int(), a[1].Int()
		switch {
		case y == 0:
			return datum.Null, errDivisionByZero()
		case x == math.MinInt64 && y == -1:
			return datum.Null, outOfRange("bigint")
		}
		return intOf(c, x/y)
	},
	"mod": func(c Call, a []datum.Datum) (datum.Datum, error) {
		switch a[1].Int() {
		case 0:
			return datum.Null, errDivisionByZero()
		case -1:
			return datum.Int(0), nil
		}
		return datum.Int(a[0].Int() % a[1].Int()), nil
	},
	"um": func(c Call, a []datum.Datum) (datum.Datum, error) {
		if a[0].Int() == math.MinInt64 {
			return datum.Null, outOfRange("bigint")
		}
		return intOf(c, -a[0].Int())
	},
	"abs": func(c Call, a []datum.Datum) (datum.Datum, error) {
		if a[0].Int() == math.MinInt64 {
			return datum.Null, outOfRange("bigint")
		}
		return intOf(c, max(a[0].Int(), -a[0].Int()))
	},
	"up":  func(_ Call, a []datum.Datum) (datum.Datum, error) { return a[0], nil },
	"and": func(_ Call, a []datum.Datum) (datum.Datum, error) { return datum.Int(a[0].Int() & a[1].Int()), nil },
	"or":  func(_ Call, a []datum.Datum) (datum.Datum, error) { return datum.Int(a[0].Int() | a[1].Int()), nil },
	"xor": func(_ Call, a []datum.Datum) (datum.Datum, error) { return datum.Int(a[0].Int() ^ a[1].Int()), nil },
	"not": func(_ Call, a []datum.Datum) (datum.Datum, error) { return datum.Int(^a[0].Int()), nil },
	"gcd": func(c Call, a []datum.Datum) (datum.Datum, error) {
		x, y := a[0].Int(), a[1].Int()
		for y != 0 {
			if y == -1 {
				return datum.Int(1), nil
			}
			x, y = y, x%y
		}
		if x == math.MinInt64 {
			return datum.Null, outOfRange("bigint")
		}
		return intOf(c, max(x, -x))
	},
}

func mulInt64(x, y int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(max(x, -x)), uint64(max(y, -y)))
	if x == math.MinInt64 || y == math.MinInt64 {
		p := x * y
		return p, x == 0 || y == 0 || x == 1 || y == 1
	}
	negative := (x < 0) != (y < 0)
	switch {
	case hi != 0, !negative && lo > math.MaxInt64, negative && lo > 1<<63:
		return 0, false
	case negative:
		return -int64(lo), true
	}
	return int64(lo), true
}

var mathBuiltins = map[string]Builtin{
	"to_hex32":        toHex,
	"to_hex64":        toHex,
	"drandom":         func(Call, []datum.Datum) (datum.Datum, error) { return datum.Float(rand.Float64()), nil },
	"dpi":             func(Call, []datum.Datum) (datum.Datum, error) { return datum.Float(math.Pi), nil },
	"oidlarger":       func(_ Call, a []datum.Datum) (datum.Datum, error) { return datum.Int(max(a[0].Int(), a[1].Int())), nil },
	"bool_int4":       func(_ Call, a []datum.Datum) (datum.Datum, error) { return datum.Int(a[0].Int()), nil },
	"int4_bool":       func(_ Call, a []datum.Datum) (datum.Datum, error) { return datum.Bool(a[0].Int() != 0), nil },
	"pg_lsn_mi":       lsnDifference,
	"pg_lsn_mii":      func(_ Call, a []datum.Datum) (datum.Datum, error) { return lsnMove(a[0], a[1], -1) },
	"pg_lsn_pli":      func(_ Call, a []datum.Datum) (datum.Datum, error) { return lsnMove(a[0], a[1], 1) },
	"pg_wal_lsn_diff": lsnDifference,
}

func toHex(c Call, a []datum.Datum) (datum.Datum, error) {
	u := uint64(a[0].Int())
	if c.Args[0].OID == datum.Int4OID {
		u = uint64(uint32(u))
	}
	const digits = "0123456789abcdef"
	var b []byte
	for {
		b = append([]byte{digits[u&15]}, b...)
		if u >>= 4; u == 0 {
			return datum.Text(string(b)), nil
		}
	}
}

func lsnNumeric(d datum.Datum) *apd.Decimal {
	n := &apd.Decimal{}
	n.Coeff.SetUint64(uint64(d.Int()))
	return n
}

func lsnDifference(_ Call, a []datum.Datum) (datum.Datum, error) {
	return datum.NumericSub(lsnNumeric(a[0]), lsnNumeric(a[1]))
}

func lsnMove(lsn, by datum.Datum, sign int) (datum.Datum, error) {
	if by.Numeric().Form != apd.Finite {
		if by.Numeric().Form == apd.NaN {
			what := "add NaN to"
			if sign < 0 {
				what = "subtract NaN from"
			}
			return datum.Null, pgerr.New(pgerr.FeatureNotSupported, "cannot %s pg_lsn", what)
		}
		return datum.Null, pgerr.New(pgerr.InvalidParameterValue, "pg_lsn out of range")
	}
	if sign < 0 {
		by = datum.NumericNeg(by.Numeric())
	}
	sum, err := datum.NumericAdd(lsnNumeric(lsn), by.Numeric())
	if err != nil {
		return datum.Null, err
	}
	whole, err := datum.NumericRound(sum.Numeric(), 0)
	if err != nil {
		return datum.Null, err
	}
	if n := whole.Numeric(); n.Negative || !n.Coeff.MathBigInt().IsUint64() {
		return datum.Null, pgerr.New(pgerr.InvalidParameterValue, "pg_lsn out of range")
	}
	return datum.Int(int64(whole.Numeric().Coeff.MathBigInt().Uint64())), nil
}

// floatOf gives a float result, rounded to float4 when that is the result's type, with the server's range checks.
func floatOf(c Call, f float64, infinite, zero bool) (datum.Datum, error) {
	if c.Result.OID == datum.Float4OID {
		f = float64(float32(f))
	}
	switch {
	case math.IsInf(f, 0) && !infinite:
		return datum.Null, errFloatOverflow
	case f == 0 && !zero:
		return datum.Null, errFloatUnderflow
	}
	return datum.Float(f), nil
}

func isInf(f float64) bool { return math.IsInf(f, 0) }

func floatAdd(c Call, a []datum.Datum) (datum.Datum, error) {
	x, y := a[0].Float(), a[1].Float()
	return floatOf(c, x+y, isInf(x) || isInf(y), true)
}

func floatSub(c Call, a []datum.Datum) (datum.Datum, error) {
	x, y := a[0].Float(), a[1].Float()
	return floatOf(c, x-y, isInf(x) || isInf(y), true)
}

func floatMul(c Call, a []datum.Datum) (datum.Datum, error) {
	x, y := a[0].Float(), a[1].Float()
	return floatOf(c, x*y, isInf(x) || isInf(y), x == 0 || y == 0)
}

func floatDiv(c Call, a []datum.Datum) (datum.Datum, error) {
	x, y := a[0].Float(), a[1].Float()
	if y == 0 && !math.IsNaN(x) {
		return datum.Null, errDivisionByZero()
	}
	return floatOf(c, x/y, isInf(x), x == 0 || isInf(y))
}

func float1(fn func(float64) float64) Builtin {
	return func(_ Call, a []datum.Datum) (datum.Datum, error) { return datum.Float(fn(a[0].Float())), nil }
}

func same(_ Call, a []datum.Datum) (datum.Datum, error) { return a[0], nil }

var floatBuiltins = map[string]Builtin{
	"float4pl": floatAdd, "float48pl": floatAdd, "float84pl": floatAdd, "float8pl": floatAdd,
	"float4mi": floatSub, "float48mi": floatSub, "float84mi": floatSub, "float8mi": floatSub,
	"float4mul": floatMul, "float48mul": floatMul, "float84mul": floatMul, "float8mul": floatMul,
	"float4div": floatDiv, "float48div": floatDiv, "float84div": floatDiv, "float8div": floatDiv,
	"float4um": float1(func(f float64) float64 { return -f }), "float8um": float1(func(f float64) float64 { return -f }),
	"float4up": same, "float8up": same, "float4abs": float1(math.Abs), "float8abs": float1(math.Abs),
	"dceil": float1(math.Ceil), "dfloor": float1(math.Floor), "dround": float1(math.RoundToEven), "dtrunc": float1(math.Trunc),
	"dsign": float1(func(f float64) float64 {
		switch {
		case f > 0:
			return 1
		case f < 0:
			return -1
		}
		return f
	}),
	"dsqrt": func(c Call, a []datum.Datum) (datum.Datum, error) {
		if a[0].Float() < 0 {
			return datum.Null, pgerr.New("2201F", "cannot take square root of a negative number")
		}
		return datum.Float(math.Sqrt(a[0].Float())), nil
	},
}

func numeric2(fn func(a, b *apd.Decimal) (datum.Datum, error)) Builtin {
	return func(_ Call, a []datum.Datum) (datum.Datum, error) { return fn(a[0].Numeric(), a[1].Numeric()) }
}

func numeric1(fn func(a *apd.Decimal) (datum.Datum, error)) Builtin {
	return func(_ Call, a []datum.Datum) (datum.Datum, error) { return fn(a[0].Numeric()) }
}

var numericBuiltins = map[string]Builtin{
	"numeric_add": numeric2(datum.NumericAdd), "numeric_sub": numeric2(datum.NumericSub),
	"numeric_mul": numeric2(datum.NumericMul), "numeric_div": numeric2(datum.NumericDiv),
	"numeric_mod": numeric2(datum.NumericMod), "numeric_div_trunc": numeric2(datum.NumericQuotient),
	"numeric_uminus": numeric1(func(a *apd.Decimal) (datum.Datum, error) { return datum.NumericNeg(a), nil }),
	"numeric_uplus":  same,
	"numeric_abs": numeric1(func(a *apd.Decimal) (datum.Datum, error) {
		if datum.NumericSign(a) < 0 {
			return datum.NumericNeg(a), nil
		}
		return datum.Numeric(a), nil
	}),
	"numeric_sign": numeric1(func(a *apd.Decimal) (datum.Datum, error) {
		if a.Form == apd.NaN {
			return datum.Numeric(a), nil
		}
		return datum.NumericFromInt(int64(datum.NumericSign(a))), nil
	}),
	"numeric_ceil": numeric1(datum.NumericCeil), "numeric_floor": numeric1(datum.NumericFloor),
	"numeric_sqrt": numeric1(datum.NumericSqrt),
	"numeric_round": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return datum.NumericRound(a[0].Numeric(), displayScale(a[1]))
	},
	"numeric_trunc": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return datum.NumericTrunc(a[0].Numeric(), displayScale(a[1]))
	},
	"round/1700": numeric1(func(a *apd.Decimal) (datum.Datum, error) { return datum.NumericRound(a, 0) }),
	"trunc/1700": numeric1(func(a *apd.Decimal) (datum.Datum, error) { return datum.NumericTrunc(a, 0) }),
	"numeric": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return datum.NumericFit(a[0].Numeric(), int32(a[1].Int()))
	},
}

// displayScale bounds the second argument of round and trunc as the server does.
func displayScale(d datum.Datum) int32 { return int32(min(max(d.Int(), -2000), 2000)) }
