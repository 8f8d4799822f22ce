package datum

import (
	"math"
	"unsafe"

	"github.com/cockroachdb/apd/v3"
)

// Datum is one SQL value; the zero Datum is NULL. It is 24 bytes: numbers live in n, text as pointer and length (as in
// slog.Value), the rest behind ref.
type Datum struct {
	n   uint64
	ref any // nil: NULL; else scalar, textPtr, wireText, wireBinary, *apd.Decimal, *Interval or *Array
}

type (
	scalar     struct{}
	textPtr    *byte
	wireText   *byte
	wireBinary *byte
)

// Interval is Postgres's three-part interval.
type Interval struct {
	Months, Days int32
	Micros       int64
}

// Array is a one-dimensional array with lower bound 1, or an empty one.
type Array struct {
	Elem  uint32 // OID of the element type
	Items []Datum
}

// Null is the NULL value.
var Null = Datum{}

// Bool makes a boolean.
func Bool(b bool) Datum {
	if b {
		return Datum{1, scalar{}}
	}
	return Datum{0, scalar{}}
}

// Int makes a value of one of the types kept as an integer: int2, int4, int8, oid, date (days since 2000-01-01),
// timestamp and timestamptz (microseconds since 2000-01-01) and pg_lsn.
func Int(i int64) Datum { return Datum{uint64(i), scalar{}} }

// Float makes a float8 or float4.
func Float(f float64) Datum { return Datum{math.Float64bits(f), scalar{}} }

// Text makes a value of a type kept as a string: text, varchar, bpchar, name, unknown, json, jsonb (normalized) and
// uuid (16 bytes).
func Text(s string) Datum { return Datum{uint64(len(s)), textPtr(unsafe.StringData(s))} }

// Numeric makes a numeric; d must not be changed afterwards.
func Numeric(d *apd.Decimal) Datum { return Datum{0, d} }

// FromInterval makes an interval.
func FromInterval(iv Interval) Datum { return Datum{0, &iv} }

// FromArray makes an array; a must not be changed afterwards.
func FromArray(a *Array) Datum { return Datum{0, a} }

// WireText makes an undecoded value from its text form; s must not change while the value lives.
func WireText(s []byte) Datum { return Datum{uint64(len(s)), wireText(unsafe.SliceData(s))} }

// WireBinary makes an undecoded value from its binary form; s must not change while the value lives.
func WireBinary(s []byte) Datum { return Datum{uint64(len(s)), wireBinary(unsafe.SliceData(s))} }

// IsNull reports whether d is NULL.
func (d Datum) IsNull() bool { return d.ref == nil }

// Bool gives a boolean's value.
func (d Datum) Bool() bool { return d.n != 0 }

// Int gives the value of a type kept as an integer.
func (d Datum) Int() int64 { return int64(d.n) }

// Float gives the value of a float8 or float4.
func (d Datum) Float() float64 { return math.Float64frombits(d.n) }

// Text gives the value of a type kept as a string.
func (d Datum) Text() string {
	if p, ok := d.ref.(textPtr); ok {
		return unsafe.String((*byte)(p), int(d.n))
	}
	return ""
}

// Numeric gives a numeric's value, which must not be changed.
func (d Datum) Numeric() *apd.Decimal { return d.ref.(*apd.Decimal) }

// Interval gives an interval's value.
func (d Datum) Interval() Interval { return *d.ref.(*Interval) }

// Array gives an array's value, which must not be changed.
func (d Datum) Array() *Array { return d.ref.(*Array) }

// Wire gives the undecoded bytes of a value that came from a server, and whether it is one.
func (d Datum) Wire() (data []byte, binary, ok bool) {
	switch p := d.ref.(type) {
	case wireText:
		return unsafe.Slice((*byte)(p), int(d.n)), false, true
	case wireBinary:
		return unsafe.Slice((*byte)(p), int(d.n)), true, true
	}
	return nil, false, false
}

// Decode gives the decoded form of a value of the given type; a value that is decoded already is returned as it is.
func (d Datum) Decode(oid uint32, s *Session) (Datum, error) {
	data, binary, ok := d.Wire()
	switch {
	case !ok:
		return d, nil
	case binary:
		return ParseBinary(oid, data)
	}
	return ParseText(oid, string(data), s)
}

// Size estimates the bytes that d keeps alive, for a memory budget.
func (d Datum) Size() int64 {
	const self = 24
	switch v := d.ref.(type) {
	case textPtr, wireText, wireBinary:
		return self + int64(d.n)
	case *apd.Decimal:
		return self + 64 + int64(v.Coeff.BitLen()/8)
	case *Interval:
		return self + 16
	case *Array:
		size := int64(self + 32)
		for _, item := range v.Items {
			size += item.Size()
		}
		return size
	}
	return self
}
