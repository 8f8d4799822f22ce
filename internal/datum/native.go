package datum

import (
	"fmt"
	"time"
)

// FromGo turns a Go value into a datum of the given type: nil, bool, the integer types, float64 and float32, string
// (text types as they are; any other type by its text form), []byte, time.Time, time.Duration (interval), []string,
// []int32, []int64, fmt.Stringer (by its text). A nil pointer is NULL, other pointers are followed.
func FromGo(oid uint32, v any) (Datum, error) {
	switch v := v.(type) {
	case nil:
		return Null, nil
	case Datum:
		return v, nil
	case bool:
		return typed(oid, BoolOID, Bool(v), v)
	case int:
		return fromInteger(oid, int64(v))
	case int16:
		return fromInteger(oid, int64(v))
	case int32:
		return fromInteger(oid, int64(v))
	case int64:
		return fromInteger(oid, v)
	case uint32:
		return fromInteger(oid, int64(v))
	case uint64:
		return fromInteger(oid, int64(v))
	case float32:
		return fromFloat(oid, float64(v))
	case float64:
		return fromFloat(oid, v)
	case string:
		if isText(oid) {
			return Text(v), nil
		}
		return ParseText(oid, v, nil)
	case []byte:
		return ParseText(oid, string(v), nil)
	case time.Time:
		return fromTime(oid, v)
	case time.Duration:
		return typed(oid, IntervalOID, FromInterval(Interval{Micros: v.Microseconds()}), v)
	case Interval:
		return typed(oid, IntervalOID, FromInterval(v), v)
	case []string:
		return fromSlice(oid, v)
	case []int32:
		return fromSlice(oid, v)
	case []int64:
		return fromSlice(oid, v)
	}
	return fromOther(oid, v)
}

func fromOther(oid uint32, v any) (Datum, error) {
	switch v := v.(type) {
	case *string:
		return fromPointer(oid, v)
	case *bool:
		return fromPointer(oid, v)
	case *int32:
		return fromPointer(oid, v)
	case *int64:
		return fromPointer(oid, v)
	case *float64:
		return fromPointer(oid, v)
	case *time.Time:
		return fromPointer(oid, v)
	case *time.Duration:
		return fromPointer(oid, v)
	case fmt.Stringer:
		return ParseText(oid, v.String(), nil)
	}
	return Null, fmt.Errorf("datum: no %s can be made of a Go %T", Name(oid), v)
}

func fromPointer[T any](oid uint32, p *T) (Datum, error) {
	if p == nil {
		return Null, nil
	}
	return FromGo(oid, *p)
}

func typed(oid, want uint32, d Datum, v any) (Datum, error) {
	if oid != want {
		return Null, fmt.Errorf("datum: no %s can be made of a Go %T", Name(oid), v)
	}
	return d, nil
}

func fromInteger(oid uint32, i int64) (Datum, error) {
	switch oid {
	case Int2OID:
		if i != int64(int16(i)) {
			return Null, fmt.Errorf("datum: %d does not fit a smallint", i)
		}
	case Int4OID:
		if i != int64(int32(i)) {
			return Null, fmt.Errorf("datum: %d does not fit an integer", i)
		}
	case Int8OID, OIDOID, LSNOID:
	case NumericOID:
		return NumericFromInt(i), nil
	case Float8OID, Float4OID:
		return Float(float64(i)), nil
	default:
		return typed(oid, Int8OID, Int(i), i)
	}
	return Int(i), nil
}

func fromFloat(oid uint32, f float64) (Datum, error) {
	switch oid {
	case Float4OID:
		return Float(float64(float32(f))), nil
	case NumericOID:
		return NumericFromFloat(f, 15)
	}
	return typed(oid, Float8OID, Float(f), f)
}

// fromTime takes the zero time for "unknown": NULL.
func fromTime(oid uint32, t time.Time) (Datum, error) {
	if t.IsZero() {
		return Null, nil
	}
	switch oid {
	case TimestampOID:
		return Int(TimeToMicros(t)), nil
	case DateOID:
		days, _ := floorDiv(TimeToMicros(t), MicrosPerDay)
		return Int(days), nil
	}
	return typed(oid, TimestamptzOID, FromTime(t), t)
}

func fromSlice[T any](oid uint32, items []T) (Datum, error) {
	if items == nil {
		return Null, nil
	}
	elem := Elem(oid)
	if elem == 0 {
		return typed(oid, TextArrayOID, Null, items)
	}
	a := &Array{Elem: elem, Items: make([]Datum, len(items))}
	for i, item := range items {
		var err error
		if a.Items[i], err = FromGo(elem, item); err != nil {
			return Null, err
		}
	}
	return FromArray(a), nil
}
