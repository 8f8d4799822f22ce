package catalog

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/cockroachdb/apd/v3"
	"github.com/zeebo/xxh3"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// IndexType is how an Index makes a key of a value.
type IndexType uint8

// The types of indexes.
const (
	IndexXXHash IndexType = iota + 1 // XXH3-64 of the value's canonical form
	IndexModulo                      // the integer modulo a modulus, never negative
	IndexRange                       // the integer itself; negative ones come after all others
)

// String gives the name that stands in the document.
func (t IndexType) String() string {
	switch t {
	case IndexXXHash:
		return "xxhash"
	case IndexModulo:
		return "modulo"
	case IndexRange:
		return "range"
	}
	return ""
}

// Index makes a key, which a group's ranges place, of a row's value.
type Index struct {
	Name    string
	Type    IndexType
	Column  string
	Expr    string // as in the document, when the key is made of an expression over the column; else ""
	Modulus int64

	expr keyExpr // the zero keyExpr gives its argument
}

// Errors of keys that can't be. Both are about the value, not about its type.
var (
	// ErrNullKey: NULL equals nothing, and a row with it has no place.
	ErrNullKey = pgerr.New("23502", "null value in a shard key")
	// ErrNoKey: no value of the index's integer type equals the one given, such as 1.5.
	ErrNoKey = pgerr.New(pgerr.NumericValueOutOfRange, "no integer equals this value")
)

// The canonical forms of values, of which XXH3-64 is taken with seed 0. They must never change: rows are where their
// keys were when they were written. Integers of all types, and numerics that are integers and fit: the 8 bytes of the
// int8, most significant first. Other numerics: digits without trailing zeros, 'e', and the power of ten. Floats: the 8
// bytes of the float8, with one zero and one NaN. Text and varchar, labels of enums: their UTF-8 bytes; bpchar: without
// trailing blanks. Bytea and uuid: their bytes. Dates and timestamps: the 8 bytes of the microseconds since 2000-01-01.
// Booleans: a byte.

// Key gives the key of a value of a type; for a value of an enum, oid is datum.AnyEnumOID, for one of a domain that of
// its base type. Values that Postgres calls equal have one key, for types of one Family.
func (ix *Index) Key(oid uint32, d datum.Datum) (uint64, error) {
	if data, isBinary, ok := d.Wire(); ok {
		if isBinary {
			return ix.KeyBinary(oid, data)
		}
		return ix.KeyText(oid, data, nil)
	}
	if d.IsNull() {
		return 0, ErrNullKey
	}
	if ix.expr.op != exprNone {
		var err error
		if oid, d, err = ix.expr.apply(oid, d); err != nil {
			return 0, err
		}
	}
	return ix.ResultKey(oid, d)
}

// ResultKey gives the key of what the index's expression gave, or of the value when it has none.
func (ix *Index) ResultKey(oid uint32, d datum.Datum) (uint64, error) {
	if d.IsNull() {
		return 0, ErrNullKey
	}
	if ix.Type == IndexXXHash {
		return hashValue(oid, d)
	}
	switch oid {
	case datum.Int2OID, datum.Int4OID, datum.Int8OID:
		return ix.integerKey(d.Int()), nil
	case datum.NumericOID:
		if i, ok := integerOf(d.Numeric()); ok {
			return ix.integerKey(i), nil
		}
		return 0, ErrNoKey
	}
	return 0, ix.refuse(oid)
}

// CheckType tells whether the index can make keys of a type: 42804 when not.
func (ix *Index) CheckType(oid uint32) error {
	result, err := ix.expr.result(oid)
	if err != nil {
		return err
	}
	family := FamilyOf(result)
	switch {
	case family == FamilyNone:
	case ix.Type == IndexXXHash:
		return nil
	case result == datum.Int2OID || result == datum.Int4OID || result == datum.Int8OID:
		return nil
	}
	return ix.refuse(oid)
}

func (ix *Index) refuse(oid uint32) error {
	err := pgerr.New(pgerr.DatatypeMismatch, "shard index \"%s\" (%s) can't make keys of type %s", ix.Name, ix.Type, typeName(oid))
	if ix.Type == IndexXXHash {
		return err.WithHint("Key types: smallint, integer, bigint, numeric, real, double precision, text, varchar, " +
			"char, bytea, boolean, date, timestamp, timestamptz, uuid and enums.")
	}
	return err.WithHint("Key types: smallint, integer, bigint.")
}

func typeName(oid uint32) string {
	switch oid {
	case datum.AnyEnumOID:
		return "enum"
	case datum.BPCharOID:
		return "character"
	case datum.ByteaOID:
		return "bytea"
	}
	return datum.Name(oid)
}

func (ix *Index) integerKey(i int64) uint64 {
	if ix.Type == IndexModulo {
		i %= ix.Modulus
		if i < 0 {
			i += ix.Modulus
		}
	}
	return uint64(i)
}

// Family is a set of types whose values may be equal across types, and then have one key.
type Family uint8

// The families. Enums are each their own: FamilyEnum says no more than that it is one.
const (
	FamilyNone Family = iota // no key can be made
	FamilyInteger
	FamilyFloat
	FamilyText
	FamilyBlankPadded // bpchar, to which varchar compares with its trailing blanks ignored, and text without
	FamilyBytes
	FamilyBool
	FamilyTimestamp // dates too
	FamilyTimestamptz
	FamilyUUID
	FamilyEnum
)

// FamilyOf gives the family of a type.
func FamilyOf(oid uint32) Family {
	switch oid {
	case datum.Int2OID, datum.Int4OID, datum.Int8OID, datum.NumericOID:
		return FamilyInteger
	case datum.Float4OID, datum.Float8OID:
		return FamilyFloat
	case datum.TextOID, datum.VarcharOID:
		return FamilyText
	case datum.BPCharOID:
		return FamilyBlankPadded
	case datum.ByteaOID:
		return FamilyBytes
	case datum.BoolOID:
		return FamilyBool
	case datum.DateOID, datum.TimestampOID:
		return FamilyTimestamp
	case datum.TimestamptzOID:
		return FamilyTimestamptz
	case datum.UUIDOID:
		return FamilyUUID
	case datum.AnyEnumOID:
		return FamilyEnum
	}
	return FamilyNone
}

func hashValue(oid uint32, d datum.Datum) (uint64, error) {
	switch oid {
	case datum.Int2OID, datum.Int4OID, datum.Int8OID, datum.TimestampOID, datum.TimestamptzOID:
		return hashInt(d.Int()), nil
	case datum.DateOID:
		return hashInt(dateMicros(d.Int())), nil
	case datum.NumericOID:
		return hashNumeric(d.Numeric()), nil
	case datum.Float4OID, datum.Float8OID:
		return hashFloat(d.Float()), nil
	case datum.TextOID, datum.VarcharOID, datum.ByteaOID, datum.UUIDOID, datum.AnyEnumOID:
		return xxh3.HashString(d.Text()), nil
	case datum.BPCharOID:
		return xxh3.HashString(trimBlanks(d.Text())), nil
	case datum.BoolOID:
		return hashBool(d.Bool()), nil
	}
	return 0, (&Index{Name: "xxhash", Type: IndexXXHash}).refuse(oid)
}

func hashInt(i int64) uint64 {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(i))
	return xxh3.Hash(b[:])
}

func hashBool(v bool) uint64 {
	if v {
		return xxh3.HashString("\x01")
	}
	return xxh3.HashString("\x00")
}

const canonicalNaN = 0x7ff8 << 48

func hashFloat(f float64) uint64 {
	switch {
	case math.IsNaN(f):
		return hashInt(canonicalNaN)
	case f == 0: // -0 too
		return hashInt(0)
	}
	return hashInt(int64(math.Float64bits(f)))
}

// dateMicros gives the start of the day as timestamp does. Days that no timestamp reaches wrap around: they need equal
// none.
func dateMicros(days int64) int64 {
	switch days {
	case datum.DatePosInfinity:
		return datum.PosInfinity
	case datum.DateNegInfinity:
		return datum.NegInfinity
	}
	return days * datum.MicrosPerDay
}

func hashNumeric(d *apd.Decimal) uint64 {
	if i, ok := integerOf(d); ok {
		return hashInt(i)
	}
	switch d.Form {
	case apd.NaN, apd.NaNSignaling:
		return xxh3.HashString("NaN")
	case apd.Infinite:
		if d.Negative {
			return xxh3.HashString("-Infinity")
		}
		return xxh3.HashString("Infinity")
	}
	digits, exponent := reduced(d)
	return xxh3.HashString(digits + "e" + itoa(exponent))
}

func trimBlanks(s string) string {
	for s != "" && s[len(s)-1] == ' ' {
		s = s[:len(s)-1]
	}
	return s
}

// text gives the bytes as a string without copying them; it must not outlive them.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
