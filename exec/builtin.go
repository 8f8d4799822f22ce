package exec

import (
	"strings"
	"time"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// Lookup finds a builtin by its pg_proc.prosrc; functions whose body is SQL go by "name/argument types".
func Lookup(proc string) (Builtin, bool) {
	for _, table := range [...]map[string]Builtin{
		mathBuiltins, floatBuiltins, numericBuiltins, textBuiltins, patternBuiltins, timeBuiltins, intervalBuiltins,
		castBuiltins, arrayBuiltins, jsonBuiltins, systemBuiltins, backendBuiltins,
	} {
		if fn, ok := table[proc]; ok {
			return fn, true
		}
	}
	if fn, ok := integerOperator(proc); ok {
		return fn, true
	}
	return comparison(proc)
}

func (c Call) session() *datum.Session { return c.run.session }

func (c Call) zone() *time.Location {
	if c.run.session.Zone == nil {
		return time.UTC
	}
	return c.run.session.Zone
}

// zoneOf gives the session's zone for timestamptz, UTC for timestamp: what wall-clock arithmetic is done in.
func (c Call) zoneOf(oid uint32) *time.Location {
	if oid == datum.TimestamptzOID {
		return c.zone()
	}
	return time.UTC
}

// comparisons by suffix: what of a three-way result is true.
var comparisons = map[string]func(int) bool{
	"eq": func(c int) bool { return c == 0 }, "ne": func(c int) bool { return c != 0 },
	"lt": func(c int) bool { return c < 0 }, "le": func(c int) bool { return c <= 0 },
	"gt": func(c int) bool { return c > 0 }, "ge": func(c int) bool { return c >= 0 },
}

// comparedTypes are the prefixes of comparison functions whose operands are kept alike. The type compared by is the
// left operand's, but numbers of mixed width go by the wider family.
var comparedTypes = map[string]uint32{
	"bool": datum.BoolOID, "bpchar": datum.BPCharOID, "date_": datum.DateOID, "interval_": datum.IntervalOID, "name": datum.TextOID,
	"numeric_": datum.NumericOID, "oid": datum.OIDOID, "pg_lsn_": datum.LSNOID, "text": datum.TextOID,
	"text_": datum.TextOID, "timestamp_": datum.TimestampOID, "uuid_": datum.UUIDOID,
	"int2": datum.Int8OID, "int24": datum.Int8OID, "int28": datum.Int8OID, "int4": datum.Int8OID,
	"int42": datum.Int8OID, "int48": datum.Int8OID, "int8": datum.Int8OID, "int82": datum.Int8OID, "int84": datum.Int8OID,
	"float4": datum.Float8OID, "float48": datum.Float8OID, "float8": datum.Float8OID, "float84": datum.Float8OID,
}

// IsEquality reports whether a builtin is the equality of values that datum.AppendKey brings to one form, so that it may
// be answered by hash.
func IsEquality(proc string) bool {
	prefix, ok := strings.CutSuffix(proc, "eq")
	if !ok {
		return proc == "nameeqtext" || proc == "texteqname"
	}
	_, ok = comparedTypes[prefix]
	return ok || prefix == "array_"
}

func comparison(proc string) (Builtin, bool) {
	for suffix, is := range comparisons {
		if prefix, ok := strings.CutSuffix(proc, suffix); ok {
			if oid, ok := comparedTypes[prefix]; ok {
				return func(_ Call, a []datum.Datum) (datum.Datum, error) {
					return datum.Bool(is(datum.Compare(oid, a[0], a[1]))), nil
				}, true
			}
			if prefix == "array_" {
				return func(c Call, a []datum.Datum) (datum.Datum, error) {
					return datum.Bool(is(datum.Compare(c.Args[0].OID, a[0], a[1]))), nil
				}, true
			}
		}
		switch proc {
		case "name" + suffix + "text", "text" + suffix + "name":
			return func(_ Call, a []datum.Datum) (datum.Datum, error) {
				return datum.Bool(is(strings.Compare(a[0].Text(), a[1].Text()))), nil
			}, true
		case "date_" + suffix + "_timestamp", "date_" + suffix + "_timestamptz", "timestamp_" + suffix + "_date",
			"timestamptz_" + suffix + "_date", "timestamp_" + suffix + "_timestamptz", "timestamptz_" + suffix + "_timestamp":
			return func(c Call, a []datum.Datum) (datum.Datum, error) {
				return datum.Bool(is(compareMixedTimes(c, a))), nil
			}, true
		}
	}
	return nil, false
}

// compareMixedTimes compares a date, timestamp or timestamptz with another of them.
func compareMixedTimes(c Call, a []datum.Datum) int {
	zoned := c.Args[0].OID == datum.TimestamptzOID || c.Args[1].OID == datum.TimestamptzOID
	at := [2]datum.Datum{}
	for i, d := range a {
		us := d.Int()
		if c.Args[i].OID == datum.DateOID {
			us = dateMicros(us)
		}
		if zoned && c.Args[i].OID != datum.TimestamptzOID {
			us = datum.ToInstant(us, c.zone())
		}
		at[i] = datum.Int(us)
	}
	return datum.Compare(datum.TimestampOID, at[0], at[1])
}

// dateMicros gives the timestamp at which a date begins; one too far away is as good as infinite here.
func dateMicros(days int64) int64 {
	switch {
	case days == datum.DatePosInfinity || days > datum.PosInfinity/datum.MicrosPerDay:
		return datum.PosInfinity
	case days == datum.DateNegInfinity:
		return datum.NegInfinity
	}
	return days * datum.MicrosPerDay
}

func errDivisionByZero() error { return pgerr.New(pgerr.DivisionByZero, "division by zero") }
