package datum

import (
	"strconv"

	"github.com/jackc/pgx/v5/pgtype"
)

// Type is a type's OID and modifier (-1: none).
type Type struct {
	OID    uint32
	Typmod int32
}

// Of makes a type without modifier.
func Of(oid uint32) Type { return Type{OID: oid, Typmod: -1} }

// OIDs of the types that are decoded, and of pseudo-types that the engine meets.
const (
	BoolOID        uint32 = pgtype.BoolOID
	ByteaOID       uint32 = pgtype.ByteaOID
	CharOID        uint32 = pgtype.QCharOID
	NameOID        uint32 = pgtype.NameOID
	Int8OID        uint32 = pgtype.Int8OID
	Int2OID        uint32 = pgtype.Int2OID
	Int4OID        uint32 = pgtype.Int4OID
	TextOID        uint32 = pgtype.TextOID
	OIDOID         uint32 = pgtype.OIDOID
	JSONOID        uint32 = pgtype.JSONOID
	JSONBOID       uint32 = pgtype.JSONBOID
	Float4OID      uint32 = pgtype.Float4OID
	Float8OID      uint32 = pgtype.Float8OID
	UnknownOID     uint32 = pgtype.UnknownOID
	BPCharOID      uint32 = pgtype.BPCharOID
	VarcharOID     uint32 = pgtype.VarcharOID
	DateOID        uint32 = pgtype.DateOID
	TimeOID        uint32 = pgtype.TimeOID
	TimestampOID   uint32 = pgtype.TimestampOID
	TimestamptzOID uint32 = pgtype.TimestamptzOID
	IntervalOID    uint32 = pgtype.IntervalOID
	NumericOID     uint32 = pgtype.NumericOID
	UUIDOID        uint32 = pgtype.UUIDOID
	RecordOID      uint32 = pgtype.RecordOID
	LSNOID         uint32 = 3220
	VoidOID        uint32 = 2278

	AnyOID                     uint32 = 2276
	AnyArrayOID                uint32 = 2277
	AnyElementOID              uint32 = 2283
	AnyNonArrayOID             uint32 = 2776
	AnyEnumOID                 uint32 = 3500
	AnyRangeOID                uint32 = 3831
	AnyMultirangeOID           uint32 = 4537
	AnyCompatibleOID           uint32 = 5077
	AnyCompatibleArrayOID      uint32 = 5078
	AnyCompatibleNonArrayOID   uint32 = 5079
	AnyCompatibleRangeOID      uint32 = 5080
	AnyCompatibleMultirangeOID uint32 = 4538

	BoolArrayOID        uint32 = pgtype.BoolArrayOID
	NameArrayOID        uint32 = pgtype.NameArrayOID
	Int2ArrayOID        uint32 = pgtype.Int2ArrayOID
	Int4ArrayOID        uint32 = pgtype.Int4ArrayOID
	TextArrayOID        uint32 = pgtype.TextArrayOID
	VarcharArrayOID     uint32 = pgtype.VarcharArrayOID
	Int8ArrayOID        uint32 = pgtype.Int8ArrayOID
	Float4ArrayOID      uint32 = pgtype.Float4ArrayOID
	Float8ArrayOID      uint32 = pgtype.Float8ArrayOID
	OIDArrayOID         uint32 = pgtype.OIDArrayOID
	TimestampArrayOID   uint32 = pgtype.TimestampArrayOID
	DateArrayOID        uint32 = pgtype.DateArrayOID
	TimestamptzArrayOID uint32 = pgtype.TimestamptzArrayOID
	IntervalArrayOID    uint32 = pgtype.IntervalArrayOID
	NumericArrayOID     uint32 = pgtype.NumericArrayOID
	UUIDArrayOID        uint32 = pgtype.UUIDArrayOID
	JSONBArrayOID       uint32 = pgtype.JSONBArrayOID
	LSNArrayOID         uint32 = 3221
)

// typeInfo is one row of the table of decoded types.
type typeInfo struct {
	oid, array uint32
	name       string // as format_type gives it
	size       int16  // as pg_type.typlen, for RowDescription
}

var types = [...]typeInfo{
	{BoolOID, BoolArrayOID, "boolean", 1},
	{NameOID, NameArrayOID, "name", 64},
	{Int8OID, Int8ArrayOID, "bigint", 8},
	{Int2OID, Int2ArrayOID, "smallint", 2},
	{Int4OID, Int4ArrayOID, "integer", 4},
	{TextOID, TextArrayOID, "text", -1},
	{OIDOID, OIDArrayOID, "oid", 4},
	{JSONOID, 0, "json", -1},
	{JSONBOID, JSONBArrayOID, "jsonb", -1},
	{Float4OID, Float4ArrayOID, "real", 4},
	{Float8OID, Float8ArrayOID, "double precision", 8},
	{UnknownOID, 0, "unknown", -2},
	{VarcharOID, VarcharArrayOID, "character varying", -1},
	{BPCharOID, pgtype.BPCharArrayOID, "character", -1},
	{DateOID, DateArrayOID, "date", 4},
	{TimestampOID, TimestampArrayOID, "timestamp without time zone", 8},
	{TimestamptzOID, TimestamptzArrayOID, "timestamp with time zone", 8},
	{IntervalOID, IntervalArrayOID, "interval", 16},
	{NumericOID, NumericArrayOID, "numeric", -1},
	{UUIDOID, UUIDArrayOID, "uuid", 16},
	{LSNOID, LSNArrayOID, "pg_lsn", 8},
	{VoidOID, 0, "void", 4},
}

func find(oid uint32) *typeInfo {
	for i := range types {
		if types[i].oid == oid {
			return &types[i]
		}
	}
	return nil
}

// Known reports whether values of the type can be decoded.
func Known(oid uint32) bool { return find(oid) != nil || Elem(oid) != 0 }

// Elem gives the element type of a decoded array type, 0 for any other type.
func Elem(oid uint32) uint32 {
	for i := range types {
		if types[i].array == oid && oid != 0 {
			return types[i].oid
		}
	}
	return 0
}

// ArrayOf gives the array type of a decoded type, 0 when it has none here.
func ArrayOf(oid uint32) uint32 {
	if t := find(oid); t != nil {
		return t.array
	}
	return 0
}

// Name gives the type's name as format_type does; "???" for one that is not decoded here.
func Name(oid uint32) string {
	if t := find(oid); t != nil {
		return t.name
	}
	if e := Elem(oid); e != 0 {
		return Name(e) + "[]"
	}
	return "???"
}

// Size gives pg_type.typlen, as RowDescription wants it.
func Size(oid uint32) int16 {
	if t := find(oid); t != nil {
		return t.size
	}
	return -1
}

// String gives the type's name with its modifier.
func (t Type) String() string {
	if t.Typmod >= 0 {
		switch t.OID {
		case VarcharOID:
			return "character varying(" + strconv.Itoa(int(t.Typmod-4)) + ")"
		case BPCharOID:
			return "character(" + strconv.Itoa(int(t.Typmod-4)) + ")"
		case NumericOID:
			precision, scale := NumericTypmod(t.Typmod)
			return "numeric(" + strconv.Itoa(int(precision)) + "," + strconv.Itoa(int(scale)) + ")"
		}
	}
	return Name(t.OID)
}

// isText reports whether the type's values are plain character strings.
func isText(oid uint32) bool {
	return oid == TextOID || oid == VarcharOID || oid == NameOID || oid == UnknownOID
}
