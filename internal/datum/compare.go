package datum

import (
	"cmp"
	"encoding/binary"
	"math"
	"strings"

	"github.com/cockroachdb/apd/v3"
)

// Comparable reports whether the type has an order here. json has none in Postgres; jsonb's is not built.
func Comparable(oid uint32) bool {
	switch oid {
	case JSONOID, JSONBOID, VoidOID, 0:
		return false
	}
	if elem := Elem(oid); elem != 0 {
		return Comparable(elem)
	}
	return find(oid) != nil
}

// Compare orders two decoded values of one comparable type that are not NULL, as the type's default btree class does
// (text by bytes).
func Compare(oid uint32, a, b Datum) int {
	switch oid {
	case BoolOID, Int2OID, Int4OID, Int8OID, OIDOID, DateOID, TimestampOID, TimestamptzOID:
		return cmp.Compare(int64(a.n), int64(b.n))
	case LSNOID:
		return cmp.Compare(a.n, b.n)
	case Float4OID, Float8OID:
		return CompareFloat(a.Float(), b.Float())
	case NumericOID:
		return CompareNumeric(a.Numeric(), b.Numeric())
	case IntervalOID:
		return CompareInterval(a.Interval(), b.Interval())
	case TextOID, VarcharOID, UnknownOID, NameOID, UUIDOID:
		return strings.Compare(a.Text(), b.Text())
	case BPCharOID:
		return strings.Compare(trimBlanks(a.Text()), trimBlanks(b.Text()))
	}
	if elem := Elem(oid); elem != 0 {
		return compareArrays(elem, a.Array(), b.Array())
	}
	return 0
}

// trimBlanks leaves out what a character(n) is padded with, and which counts for nothing.
func trimBlanks(s string) string { return strings.TrimRight(s, " ") }

// CompareFloat orders NaN above all else and equal to itself.
func CompareFloat(a, b float64) int {
	switch {
	case math.IsNaN(a) && math.IsNaN(b):
		return 0
	case math.IsNaN(a):
		return 1
	case math.IsNaN(b):
		return -1
	}
	return cmp.Compare(a, b)
}

// CompareInterval orders by length, a month being 30 days and a day 24 hours.
func CompareInterval(a, b Interval) int {
	aDays, aMicros := a.span()
	bDays, bMicros := b.span()
	if c := cmp.Compare(aDays, bDays); c != 0 {
		return c
	}
	return cmp.Compare(aMicros, bMicros)
}

func compareArrays(elem uint32, a, b *Array) int {
	for i := range min(len(a.Items), len(b.Items)) {
		x, y := a.Items[i], b.Items[i]
		switch {
		case x.IsNull() && y.IsNull():
			continue
		case x.IsNull():
			return 1
		case y.IsNull():
			return -1
		}
		if c := Compare(elem, x, y); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a.Items), len(b.Items))
}

// Order is how ORDER BY sorts values of a type by one key.
type Order struct {
	OID              uint32
	Desc, NullsFirst bool
}

// Compare orders two decoded values, which may be NULL.
func (o Order) Compare(a, b Datum) int {
	switch {
	case a.IsNull() && b.IsNull():
		return 0
	case a.IsNull() || b.IsNull():
		if a.IsNull() == o.NullsFirst {
			return -1
		}
		return 1
	}
	c := Compare(o.OID, a, b)
	if o.Desc {
		return -c
	}
	return c
}

// AppendKey appends bytes that are equal exactly when two decoded values of the comparable type are equal, NULLs being
// equal to each other. Keys of several columns may be joined: each is self-delimiting. All integer types share one
// form, so that int4 7 and int8 7 meet.
func AppendKey(dst []byte, oid uint32, d Datum) []byte {
	if d.IsNull() {
		return append(dst, 0)
	}
	dst = append(dst, 1)
	switch oid {
	case BoolOID, Int2OID, Int4OID, Int8OID, OIDOID, DateOID, TimestampOID, TimestamptzOID, LSNOID:
		return binary.BigEndian.AppendUint64(dst, d.n)
	case Float4OID, Float8OID:
		return binary.BigEndian.AppendUint64(dst, floatKey(d.Float()))
	case NumericOID:
		return appendNumericKey(dst, d.Numeric())
	case IntervalOID:
		days, micros := d.Interval().span()
		dst = binary.BigEndian.AppendUint64(dst, uint64(days))
		return binary.BigEndian.AppendUint64(dst, uint64(micros))
	}
	if elem := Elem(oid); elem != 0 {
		items := d.Array().Items
		dst = binary.AppendUvarint(dst, uint64(len(items)))
		for _, item := range items {
			dst = AppendKey(dst, elem, item)
		}
		return dst
	}
	s := d.Text()
	if oid == BPCharOID {
		s = trimBlanks(s)
	}
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func floatKey(f float64) uint64 {
	switch {
	case math.IsNaN(f):
		return math.Float64bits(math.NaN())
	case f == 0:
		return 0
	}
	return math.Float64bits(f)
}

// appendNumericKey writes sign, power of ten and the digits without trailing zeros.
func appendNumericKey(dst []byte, d *apd.Decimal) []byte {
	switch {
	case isNaN(d):
		return append(dst, 2)
	case d.Form == apd.Infinite:
		return append(dst, 3+byte(btoi(d.Negative)))
	case d.Coeff.Sign() == 0:
		return append(dst, 5)
	}
	text := d.Coeff.String()
	digits := strings.TrimRight(text, "0")
	dst = binary.AppendVarint(append(dst, byte(btoi(d.Negative))), int64(d.Exponent)+int64(len(text)-len(digits)))
	dst = binary.AppendUvarint(dst, uint64(len(digits)))
	return append(dst, digits...)
}
