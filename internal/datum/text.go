package datum

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"neki/internal/pgerr"
)

func invalidInput(oid uint32, s string) error {
	return pgerr.New(pgerr.InvalidTextRepresentation, "invalid input syntax for type %s: \"%s\"", Name(oid), s)
}

func unsupportedType(oid uint32) error {
	return pgerr.New(pgerr.FeatureNotSupported, "values of the type with OID %d can't be computed with here", oid)
}

// ParseText reads the text form of a value (the type's input function).
func ParseText(oid uint32, s string, session *Session) (Datum, error) {
	switch oid {
	case BoolOID:
		return parseBool(s)
	case Int2OID:
		return parseInt(s, 16, oid)
	case Int4OID:
		return parseInt(s, 32, oid)
	case Int8OID:
		return parseInt(s, 64, oid)
	case OIDOID:
		return parseOID(s)
	case Float8OID:
		return parseFloat(s, 64, oid)
	case Float4OID:
		return parseFloat(s, 32, oid)
	case NumericOID:
		return parseNumeric(s)
	case TextOID, VarcharOID, BPCharOID, UnknownOID:
		return parseString(s)
	case NameOID:
		return parseString(CutName(s))
	case DateOID:
		return parseDate(s, session)
	case TimestampOID, TimestamptzOID:
		return parseTimestamp(s, session, oid == TimestamptzOID)
	case IntervalOID:
		return parseInterval(s)
	case LSNOID:
		return parseLSN(s)
	case UUIDOID:
		return parseUUID(s)
	case JSONOID:
		return parseJSON(s)
	case JSONBOID:
		return parseJSONB(s)
	case VoidOID:
		return Text(""), nil
	}
	if elem := Elem(oid); elem != 0 {
		return parseArray(s, elem, session)
	}
	return Null, unsupportedType(oid)
}

// CutName cuts to what the type name can hold, at a character boundary.
func CutName(s string) string {
	if len(s) < 64 {
		return s
	}
	n := 63
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func parseString(s string) (Datum, error) {
	if !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
		return Null, invalidEncoding(s)
	}
	return Text(s), nil
}

func invalidEncoding(s string) error {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || r == 0 {
			return pgerr.New(pgerr.CharacterNotInRepertoire, "invalid byte sequence for encoding \"UTF8\": 0x%02x", s[i])
		}
		i += n
	}
	return nil
}

func parseBool(text string) (Datum, error) {
	s := strings.ToLower(strings.TrimSpace(text))
	prefix := func(word string) bool { return s != "" && strings.HasPrefix(word, s) }
	switch {
	case prefix("true"), prefix("yes"), s == "on", s == "1":
		return Bool(true), nil
	case prefix("false"), prefix("no"), s == "of", s == "off", s == "0":
		return Bool(false), nil
	}
	return Null, invalidInput(BoolOID, text)
}

// parseInt reads like the server: a number too large is told before what is wrong behind its digits.
func parseInt(text string, bits int, oid uint32) (Datum, error) {
	s := trimSpace(text)
	sign := 0
	if s != "" && (s[0] == '+' || s[0] == '-') {
		sign = 1
	}
	n := sign + digits(s[sign:])
	if n == sign {
		return Null, invalidInput(oid, text)
	}
	i, err := strconv.ParseInt(s[:n], 10, bits)
	if err != nil {
		return Null, pgerr.New(pgerr.NumericValueOutOfRange, "value \"%s\" is out of range for type %s", text, Name(oid))
	}
	if n < len(s) {
		return Null, invalidInput(oid, text)
	}
	return Int(i), nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// trimSpace trims what isspace of C calls a space.
func trimSpace(s string) string { return strings.Trim(s, " \t\n\v\f\r") }

func parseOID(text string) (Datum, error) {
	i, err := strconv.ParseInt(trimSpace(text), 10, 64)
	if err != nil {
		return Null, invalidInput(OIDOID, text)
	}
	if i > math.MaxUint32 || i < math.MinInt32 {
		return Null, pgerr.New(pgerr.NumericValueOutOfRange, "value \"%s\" is out of range for type oid", text)
	}
	return Int(int64(uint32(i))), nil
}

func parseFloat(text string, bits int, oid uint32) (Datum, error) {
	s := trimSpace(text)
	if strings.ContainsRune(s, '_') || len(s) > 1 && strings.ContainsAny(s, "xXpP") {
		return Null, invalidInput(oid, text)
	}
	switch strings.ToLower(s) {
	case "nan", "+nan", "-nan":
		return Float(math.NaN()), nil
	}
	f, err := strconv.ParseFloat(s, bits)
	if err != nil {
		if math.IsInf(f, 0) {
			return Null, pgerr.New(pgerr.NumericValueOutOfRange, "\"%s\" is out of range for type %s", text, Name(oid))
		}
		return Null, invalidInput(oid, text)
	}
	if f == 0 && strings.ContainsAny(mantissa(s), "123456789") {
		return Null, pgerr.New(pgerr.NumericValueOutOfRange, "\"%s\" is out of range for type %s", text, Name(oid))
	}
	return Float(f), nil
}

func mantissa(s string) string {
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		return s[:i]
	}
	return s
}

func parseLSN(text string) (Datum, error) {
	hi, lo, ok := strings.Cut(text, "/")
	h, err1 := strconv.ParseUint(hi, 16, 32)
	l, err2 := strconv.ParseUint(lo, 16, 32)
	if !ok || err1 != nil || err2 != nil || len(hi) > 8 || len(lo) > 8 || strings.ContainsAny(text, "+_") {
		return Null, invalidInput(LSNOID, text)
	}
	return Int(int64(h<<32 | l)), nil
}

func parseUUID(text string) (Datum, error) {
	s := text
	if strings.HasPrefix(s, "{") && strings.HasSuffix(s, "}") {
		s = s[1 : len(s)-1]
	}
	var hexDigits []byte
	for i := 0; i < len(s); i++ {
		if s[i] == '-' && len(hexDigits) > 0 && len(hexDigits)%4 == 0 && i+1 < len(s) && s[i-1] != '-' {
			continue
		}
		hexDigits = append(hexDigits, s[i])
	}
	raw, err := hex.DecodeString(string(hexDigits))
	if err != nil || len(raw) != 16 {
		return Null, invalidInput(UUIDOID, text)
	}
	return Text(string(raw)), nil
}

// AppendText appends the text form of a value that is not NULL (the type's output function). An undecoded value that
// is in text form already is copied.
func AppendText(dst []byte, oid uint32, d Datum, session *Session) ([]byte, error) {
	if data, isBinary, ok := d.Wire(); ok {
		if !isBinary {
			return append(dst, data...), nil
		}
		var err error
		if d, err = ParseBinary(oid, data); err != nil {
			return dst, err
		}
	}
	switch oid {
	case BoolOID:
		if d.Bool() {
			return append(dst, 't'), nil
		}
		return append(dst, 'f'), nil
	case Int2OID, Int4OID, Int8OID, OIDOID:
		return strconv.AppendInt(dst, d.Int(), 10), nil
	case Float8OID:
		return appendFloat(dst, d.Float(), 64), nil
	case Float4OID:
		return appendFloat(dst, d.Float(), 32), nil
	case NumericOID:
		return appendNumeric(dst, d.Numeric()), nil
	case TextOID, VarcharOID, BPCharOID, UnknownOID, NameOID, JSONOID, JSONBOID, VoidOID:
		return append(dst, d.Text()...), nil
	case DateOID:
		return appendDate(dst, d.Int()), nil
	case TimestampOID:
		return appendTimestamp(dst, d.Int()), nil
	case TimestamptzOID:
		return appendTimestamptz(dst, d.Int(), session.zone()), nil
	case IntervalOID:
		return appendInterval(dst, d.Interval()), nil
	case LSNOID:
		return fmt.Appendf(dst, "%X/%X", uint64(d.Int())>>32, uint32(d.Int())), nil
	case UUIDOID:
		return appendUUID(dst, d.Text()), nil
	}
	if elem := Elem(oid); elem != 0 {
		return appendArray(dst, d.Array(), session)
	}
	return dst, unsupportedType(oid)
}

// Format gives the text form as a string; "" for NULL.
func Format(oid uint32, d Datum, session *Session) (string, error) {
	if d.IsNull() {
		return "", nil
	}
	b, err := AppendText(nil, oid, d, session)
	return string(b), err
}

func appendUUID(dst []byte, raw string) []byte {
	for i := range len(raw) {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = hex.AppendEncode(dst, []byte{raw[i]})
	}
	return dst
}

// appendFloat writes the shortest digits that read back the same, in the layout of the server's float output.
func appendFloat(dst []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	limit := 15 // DBL_DIG
	if bits == 32 {
		limit = 6 // FLT_DIG
	}
	sci := strconv.FormatFloat(f, 'e', -1, bits)
	exp, _ := strconv.Atoi(sci[strings.IndexByte(sci, 'e')+1:])
	if exp < -4 || exp >= limit {
		return append(dst, sci...)
	}
	return strconv.AppendFloat(dst, f, 'f', -1, bits)
}
