package catalog

import (
	"encoding/binary"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/apd/v3"
	"github.com/zeebo/xxh3"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// KeyText gives the key of a value in its text form, as the type's input function reads it; the session gives the time
// zone of timestamptz. Integers, strings and uuids in their usual form cost no allocation.
func (ix *Index) KeyText(oid uint32, value []byte, s *datum.Session) (uint64, error) {
	if ix.expr.op == exprNone && ix.Type == IndexXXHash {
		switch oid {
		case datum.TextOID, datum.VarcharOID, datum.AnyEnumOID:
			return xxh3.Hash(value), nil
		case datum.BPCharOID:
			return xxh3.HashString(trimBlanks(text(value))), nil
		case datum.UUIDOID:
			var id [16]byte
			if plainUUID(&id, value) {
				return xxh3.Hash(id[:]), nil
			}
		}
	}
	switch oid {
	case datum.Int2OID, datum.Int4OID, datum.Int8OID:
		if i, ok := plainInteger(value, oid); ok {
			return ix.Key(oid, datum.Int(i))
		}
	}
	d, err := parseKey(oid, string(value), s)
	if err != nil {
		return 0, err
	}
	return ix.Key(oid, d)
}

// KeyBinary gives the key of a value in its binary form. Integers, strings and uuids cost no allocation.
func (ix *Index) KeyBinary(oid uint32, value []byte) (uint64, error) {
	plain := ix.expr.op == exprNone && ix.Type == IndexXXHash
	switch oid {
	case datum.Int2OID:
		if len(value) == 2 {
			return ix.Key(oid, datum.Int(int64(int16(binary.BigEndian.Uint16(value)))))
		}
	case datum.Int4OID:
		if len(value) == 4 {
			return ix.Key(oid, datum.Int(int64(int32(binary.BigEndian.Uint32(value)))))
		}
	case datum.Int8OID:
		if len(value) == 8 {
			return ix.Key(oid, datum.Int(int64(binary.BigEndian.Uint64(value))))
		}
	case datum.TextOID, datum.VarcharOID, datum.ByteaOID, datum.AnyEnumOID, datum.BPCharOID:
		if plain {
			if oid == datum.BPCharOID {
				return xxh3.HashString(trimBlanks(text(value))), nil
			}
			return xxh3.Hash(value), nil
		}
		return ix.Key(oid, datum.Text(string(value)))
	case datum.UUIDOID:
		if plain && len(value) == 16 {
			return xxh3.Hash(value), nil
		}
	}
	d, err := datum.ParseBinary(oid, value)
	if err != nil {
		return 0, err
	}
	return ix.Key(oid, d)
}

// parseKey reads a text form by the type's input function. What it would read by the clock has no key here.
func parseKey(oid uint32, value string, s *datum.Session) (datum.Datum, error) {
	switch oid {
	case datum.BPCharOID, datum.AnyEnumOID:
		return datum.Text(value), nil
	case datum.ByteaOID:
		raw, ok := parseBytea(value)
		if !ok {
			return datum.Null, pgerr.New(pgerr.InvalidTextRepresentation, "invalid input syntax for type bytea")
		}
		return datum.Text(raw), nil
	case datum.DateOID, datum.TimestampOID, datum.TimestamptzOID:
		switch strings.ToLower(strings.TrimSpace(value)) {
		case "now", "today", "tomorrow", "yesterday", "allballs":
			return datum.Null, pgerr.New(pgerr.FeatureNotSupported, "a shard key can't be \"%s\", which depends on the clock", value).
				WithHint("Give the date itself.")
		}
	}
	d, err := datum.ParseText(oid, value, s)
	if err == nil && s == nil && oid == datum.TimestamptzOID {
		return d, needsNoZone(d, value)
	}
	return d, err
}

// needsNoZone tells whether a timestamptz reads the same in every time zone, as those do that servers write.
func needsNoZone(d datum.Datum, value string) error {
	elsewhere, err := datum.ParseText(datum.TimestamptzOID, value, &datum.Session{Zone: time.FixedZone("", 3600)})
	if err == nil && elsewhere.Int() != d.Int() {
		err = pgerr.New(pgerr.FeatureNotSupported, "the shard key \"%s\" depends on the time zone", value)
	}
	return err
}

// plainInteger reads what int2, int4 and int8 write; anything else is for their input functions.
func plainInteger(value []byte, oid uint32) (int64, bool) {
	digits := value
	if len(value) > 0 && value[0] == '-' {
		digits = value[1:]
	}
	if len(digits) == 0 || len(digits) > 18 {
		return 0, false
	}
	var i int64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		i = i*10 + int64(c-'0')
	}
	if len(digits) < len(value) {
		i = -i
	}
	switch oid {
	case datum.Int2OID:
		return i, i == int64(int16(i))
	case datum.Int4OID:
		return i, i == int64(int32(i))
	}
	return i, true
}

// plainUUID reads the form that uuid writes: 8-4-4-4-12.
func plainUUID(id *[16]byte, value []byte) bool {
	const length = 36
	if len(value) != length || value[8] != '-' || value[13] != '-' || value[18] != '-' || value[23] != '-' {
		return false
	}
	n := 0 // digits seen: at most 32, for four of the bytes are no digits
	for _, c := range value {
		digit, ok := hexDigit(c)
		switch {
		case ok:
			id[n/2] = id[n/2]<<4 | digit
			n++
		case c != '-':
			return false
		}
	}
	return n == 2*len(id)
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// parseBytea reads both of bytea's text forms, hex and escape.
func parseBytea(s string) (string, bool) {
	if strings.HasPrefix(s, `\x`) {
		return parseHexBytea(s[2:])
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] != '\\':
			out = append(out, s[i])
		case i+1 < len(s) && s[i+1] == '\\':
			out = append(out, '\\')
			i++
		case i+3 < len(s):
			code, err := strconv.ParseUint(s[i+1:i+4], 8, 8)
			if err != nil {
				return "", false
			}
			out = append(out, byte(code))
			i += 3
		default:
			return "", false
		}
	}
	return string(out), true
}

// parseHexBytea reads pairs of digits, with white space between pairs.
func parseHexBytea(s string) (string, bool) {
	out := make([]byte, 0, len(s)/2)
	for s != "" {
		if strings.IndexByte(" \n\t\r", s[0]) >= 0 {
			s = s[1:]
			continue
		}
		if len(s) < 2 {
			return "", false
		}
		b, err := strconv.ParseUint(s[:2], 16, 8)
		if err != nil || s[0] == '+' || s[0] == '-' {
			return "", false
		}
		out, s = append(out, byte(b)), s[2:]
	}
	return string(out), true
}

// integerOf gives a numeric's value when it is one of int8's.
func integerOf(d *apd.Decimal) (int64, bool) {
	if d.Form != apd.Finite {
		return 0, false
	}
	if d.Coeff.Sign() == 0 {
		return 0, true
	}
	if d.Exponent < 0 && d.NumDigits()+int64(d.Exponent) <= 0 {
		return 0, false // below 1
	}
	digits, exponent := reduced(d)
	const most = 19
	if exponent < 0 || len(digits)+exponent > most+1 {
		return 0, false
	}
	i, err := strconv.ParseInt(digits+strings.Repeat("0", exponent), 10, 64)
	return i, err == nil
}

// reduced gives a finite numeric's digits, with a minus sign, without trailing zeros, and their power of ten.
func reduced(d *apd.Decimal) (digits string, exponent int) {
	all := d.Coeff.String()
	digits = strings.TrimRight(all, "0")
	exponent = int(d.Exponent) + len(all) - len(digits)
	if d.Negative {
		digits = "-" + digits
	}
	return digits, exponent
}

func itoa(i int) string { return strconv.Itoa(i) }
