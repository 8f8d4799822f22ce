package datum

import (
	"encoding/binary"
	"math"

	"neki/internal/pgerr"
)

func errBinary(oid uint32) error {
	return pgerr.New(pgerr.InvalidBinaryRepresentation, "incorrect binary data format for type %s", Name(oid))
}

// ParseBinary reads the binary form of a value (the type's receive function).
func ParseBinary(oid uint32, data []byte) (Datum, error) {
	if size := Size(oid); size > 0 && oid != NameOID && int(size) != len(data) && Known(oid) {
		return Null, errBinary(oid)
	}
	switch oid {
	case BoolOID:
		return Bool(data[0] != 0), nil
	case Int2OID:
		return Int(int64(int16(binary.BigEndian.Uint16(data)))), nil
	case Int4OID:
		return Int(int64(int32(binary.BigEndian.Uint32(data)))), nil
	case OIDOID:
		return Int(int64(binary.BigEndian.Uint32(data))), nil
	case DateOID:
		return dateFromBinary(int64(int32(binary.BigEndian.Uint32(data))))
	case Int8OID, LSNOID:
		return Int(int64(binary.BigEndian.Uint64(data))), nil
	case TimestampOID, TimestamptzOID:
		us := int64(binary.BigEndian.Uint64(data))
		if !IsInfinite(us) && !InRange(us) {
			return Null, pgerr.New(pgerr.DatetimeFieldOverflow, "timestamp out of range")
		}
		return Int(us), nil
	case Float4OID:
		return Float(float64(math.Float32frombits(binary.BigEndian.Uint32(data)))), nil
	case Float8OID:
		return Float(math.Float64frombits(binary.BigEndian.Uint64(data))), nil
	case IntervalOID:
		return FromInterval(Interval{
			Micros: int64(binary.BigEndian.Uint64(data)), Days: int32(binary.BigEndian.Uint32(data[8:])),
			Months: int32(binary.BigEndian.Uint32(data[12:])),
		}), nil
	case NumericOID:
		return parseNumericBinary(data)
	case TextOID, VarcharOID, BPCharOID, UnknownOID:
		return parseString(string(data))
	case NameOID:
		if len(data) >= 64 {
			return Null, pgerr.New("42622", "identifier too long")
		}
		return parseString(string(data))
	case UUIDOID:
		return Text(string(data)), nil
	case JSONOID:
		return parseJSON(string(data))
	case JSONBOID:
		return parseJSONBBinary(data)
	}
	if elem := Elem(oid); elem != 0 {
		return parseArrayBinary(oid, elem, data)
	}
	return Null, unsupportedType(oid)
}

func dateFromBinary(days int64) (Datum, error) {
	if days != DatePosInfinity && days != DateNegInfinity && !DateInRange(days) {
		return Null, pgerr.New(pgerr.DatetimeFieldOverflow, "date out of range")
	}
	return Int(days), nil
}

// AppendBinary appends the binary form of a value that is not NULL (the type's send function). An undecoded value
// that is in binary form already is copied.
func AppendBinary(dst []byte, oid uint32, d Datum, session *Session) ([]byte, error) {
	if data, isBinary, ok := d.Wire(); ok {
		if isBinary {
			return append(dst, data...), nil
		}
		var err error
		if d, err = ParseText(oid, string(data), session); err != nil {
			return dst, err
		}
	}
	switch oid {
	case BoolOID:
		return append(dst, byte(d.n)), nil
	case Int2OID:
		return binary.BigEndian.AppendUint16(dst, uint16(d.n)), nil
	case Int4OID, OIDOID, DateOID:
		return binary.BigEndian.AppendUint32(dst, uint32(d.n)), nil
	case Int8OID, LSNOID, TimestampOID, TimestamptzOID:
		return binary.BigEndian.AppendUint64(dst, d.n), nil
	case Float8OID:
		if math.IsNaN(d.Float()) {
			return binary.BigEndian.AppendUint64(dst, 0x7ff8<<48), nil // C's NaN; Go's has another bit set
		}
		return binary.BigEndian.AppendUint64(dst, d.n), nil
	case Float4OID:
		return binary.BigEndian.AppendUint32(dst, math.Float32bits(float32(d.Float()))), nil
	case IntervalOID:
		iv := d.Interval()
		dst = binary.BigEndian.AppendUint64(dst, uint64(iv.Micros))
		dst = binary.BigEndian.AppendUint32(dst, uint32(iv.Days))
		return binary.BigEndian.AppendUint32(dst, uint32(iv.Months)), nil
	case NumericOID:
		return appendNumericBinary(dst, d.Numeric()), nil
	case TextOID, VarcharOID, BPCharOID, UnknownOID, NameOID, JSONOID, UUIDOID, VoidOID:
		return append(dst, d.Text()...), nil
	case JSONBOID:
		return append(append(dst, 1), d.Text()...), nil
	}
	if elem := Elem(oid); elem != 0 {
		return appendArrayBinary(dst, elem, d.Array(), session)
	}
	return dst, unsupportedType(oid)
}

func appendArrayBinary(dst []byte, elem uint32, a *Array, session *Session) ([]byte, error) {
	ndim, hasNull := uint32(1), uint32(0)
	if len(a.Items) == 0 {
		ndim = 0
	}
	for _, item := range a.Items {
		if item.IsNull() {
			hasNull = 1
		}
	}
	dst = binary.BigEndian.AppendUint32(dst, ndim)
	dst = binary.BigEndian.AppendUint32(dst, hasNull)
	dst = binary.BigEndian.AppendUint32(dst, elem)
	if ndim == 0 {
		return dst, nil
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(a.Items)))
	dst = binary.BigEndian.AppendUint32(dst, 1)
	for _, item := range a.Items {
		if item.IsNull() {
			dst = binary.BigEndian.AppendUint32(dst, math.MaxUint32)
			continue
		}
		at := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		var err error
		if dst, err = AppendBinary(dst, elem, item, session); err != nil {
			return dst, err
		}
		binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	}
	return dst, nil
}

func parseArrayBinary(oid, elem uint32, data []byte) (Datum, error) {
	if len(data) < 12 {
		return Null, errBinary(oid)
	}
	ndim, element := binary.BigEndian.Uint32(data), binary.BigEndian.Uint32(data[8:])
	data = data[12:]
	if element != elem {
		return Null, pgerr.New(pgerr.DatatypeMismatch, "binary data has array element type %d (%s) instead of expected %d (%s)",
			element, Name(element), elem, Name(elem))
	}
	a := &Array{Elem: elem}
	if ndim == 0 {
		if len(data) != 0 {
			return Null, errBinary(oid)
		}
		return FromArray(a), nil
	}
	if len(data) < 8 {
		return Null, errBinary(oid)
	}
	n, bound := binary.BigEndian.Uint32(data), binary.BigEndian.Uint32(data[4:])
	data = data[8:]
	if ndim != 1 || bound != 1 {
		return Null, pgerr.New(pgerr.FeatureNotSupported, "multidimensional arrays and array bounds are not supported")
	}
	if uint64(n)*4 > uint64(len(data)) {
		return Null, errBinary(oid)
	}
	for range n {
		if len(data) < 4 {
			return Null, errBinary(oid)
		}
		size := int32(binary.BigEndian.Uint32(data))
		data = data[4:]
		if size == -1 {
			a.Items = append(a.Items, Null)
			continue
		}
		if size < 0 || int(size) > len(data) {
			return Null, errBinary(oid)
		}
		item, err := ParseBinary(elem, data[:size])
		if err != nil {
			return Null, err
		}
		a.Items = append(a.Items, item)
		data = data[size:]
	}
	if len(data) != 0 {
		return Null, errBinary(oid)
	}
	return FromArray(a), nil
}
