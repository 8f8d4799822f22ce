package exec

import (
	"math"
	"unicode/utf8"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// intCast converts between integers by the result's range.
func intCast(c Call, a []datum.Datum) (datum.Datum, error) { return intOf(c, a[0].Int()) }

func intToNumeric(_ Call, a []datum.Datum) (datum.Datum, error) {
	return datum.NumericFromInt(a[0].Int()), nil
}

func intToFloat(_ Call, a []datum.Datum) (datum.Datum, error) {
	return datum.Float(float64(a[0].Int())), nil
}

func intToFloat4(_ Call, a []datum.Datum) (datum.Datum, error) {
	return datum.Float(float64(float32(a[0].Int()))), nil
}

func floatToInt(c Call, a []datum.Datum) (datum.Datum, error) {
	f := math.RoundToEven(a[0].Float())
	low, high, name := float64(math.MinInt64), -float64(math.MinInt64), "bigint"
	switch c.Result.OID {
	case datum.Int2OID:
		low, high, name = math.MinInt16, math.MaxInt16+1, "smallint"
	case datum.Int4OID:
		low, high, name = math.MinInt32, math.MaxInt32+1, "integer"
	}
	if math.IsNaN(f) || f < low || f >= high {
		return datum.Null, outOfRange(name)
	}
	return datum.Int(int64(f)), nil
}

func numericToInt(c Call, a []datum.Datum) (datum.Datum, error) {
	n := a[0].Numeric()
	name := datum.Name(c.Result.OID)
	if n.Form != 0 {
		what := "infinity"
		if datum.NumericSign(n) == 0 {
			what = "NaN"
		}
		return datum.Null, pgerr.New(pgerr.FeatureNotSupported, "cannot convert %s to %s", what, name)
	}
	i, ok := datum.NumericToInt(n)
	if !ok {
		return datum.Null, outOfRange(name)
	}
	return intOf(c, i)
}

func numericToFloat(c Call, a []datum.Datum) (datum.Datum, error) {
	f, err := datum.NumericToFloat(a[0].Numeric())
	if err != nil || c.Result.OID != datum.Float4OID {
		return datum.Float(f), err
	}
	text, err := datum.Format(datum.NumericOID, a[0], nil)
	if err != nil {
		return datum.Null, err
	}
	return datum.ParseText(datum.Float4OID, text, nil)
}

var castBuiltins = map[string]Builtin{
	"i2toi4": intCast, "i4toi2": intCast, "int28": intCast, "int82": intCast, "int48": intCast, "int84": intCast,
	"oidtoi8": intCast,
	"i8tooid": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		if i := a[0].Int(); i < 0 || i > math.MaxUint32 {
			return datum.Null, pgerr.New(pgerr.NumericValueOutOfRange, "OID out of range")
		}
		return a[0], nil
	},
	"int2_numeric": intToNumeric, "int4_numeric": intToNumeric, "int8_numeric": intToNumeric,
	"i2tod": intToFloat, "i4tod": intToFloat, "i8tod": intToFloat,
	"i2tof": intToFloat4, "i4tof": intToFloat4, "i8tof": intToFloat4,
	"dtoi2": floatToInt, "dtoi4": floatToInt, "dtoi8": floatToInt, "ftoi2": floatToInt, "ftoi4": floatToInt, "ftoi8": floatToInt,
	"ftod": same,
	"dtof": func(c Call, a []datum.Datum) (datum.Datum, error) {
		return floatOf(c, a[0].Float(), isInf(a[0].Float()), a[0].Float() == 0)
	},
	"float8_numeric": func(_ Call, a []datum.Datum) (datum.Datum, error) { return datum.NumericFromFloat(a[0].Float(), 15) },
	"float4_numeric": func(_ Call, a []datum.Datum) (datum.Datum, error) { return datum.NumericFromFloat(a[0].Float(), 6) },
	"numeric_int2":   numericToInt, "numeric_int4": numericToInt, "numeric_int8": numericToInt,
	"numeric_float4": numericToFloat, "numeric_float8": numericToFloat,
	"name_text": same,
	"text_name": func(_ Call, a []datum.Datum) (datum.Datum, error) { return datum.Text(datum.CutName(a[0].Text())), nil },
	"booltext": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		if a[0].Bool() {
			return datum.Text("true"), nil
		}
		return datum.Text("false"), nil
	},
	"varchar": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return fitVarchar(a[0].Text(), int(a[1].Int()), a[2].Bool())
	},
}

// fitVarchar applies varchar(n): an explicit cast cuts, any other refuses all but trailing spaces.
func fitVarchar(s string, typmod int, explicit bool) (datum.Datum, error) {
	limit := typmod - 4
	if typmod < 4 || utf8.RuneCountInString(s) <= limit {
		return datum.Text(s), nil
	}
	cut := 0
	for range limit {
		_, n := utf8.DecodeRuneInString(s[cut:])
		cut += n
	}
	if !explicit {
		for i := cut; i < len(s); i++ {
			if s[i] != ' ' {
				return datum.Null, pgerr.New("22001", "value too long for type character varying(%d)", limit)
			}
		}
	}
	return datum.Text(s[:cut]), nil
}
