package datum

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sort"
	"strings"

	"neki/internal/pgerr"
)

func invalidJSON(oid uint32) error {
	return pgerr.New(pgerr.InvalidTextRepresentation, "invalid input syntax for type %s", map[uint32]string{JSONOID: "json", JSONBOID: "json"}[oid])
}

func parseJSON(s string) (Datum, error) {
	if !json.Valid([]byte(s)) {
		return Null, invalidJSON(JSONOID)
	}
	return Text(s), nil
}

// JSON is a parsed JSON value: nil, bool, json.Number, string, []JSON or Object.
type JSON any

// Object is a JSON object in jsonb's key order: by length, then bytes, without duplicates.
type Object []Member

// Member is one key of an Object.
type Member struct {
	Key   string
	Value JSON
}

// Get gives the member of that key.
func (o Object) Get(key string) (JSON, bool) {
	for _, m := range o {
		if m.Key == key {
			return m.Value, true
		}
	}
	return nil, false
}

// maxJSONDepth bounds the nesting that is read.
const maxJSONDepth = 2000

// ParseJSON reads a JSON text as jsonb does.
func ParseJSON(s string) (JSON, error) {
	dec := json.NewDecoder(strings.NewReader(s))
	dec.UseNumber()
	v, err := readJSON(dec, 0)
	if err != nil {
		var own *pgerr.Error
		if errors.As(err, &own) {
			return nil, own
		}
		return nil, invalidJSON(JSONBOID)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, invalidJSON(JSONBOID)
	}
	return v, nil
}

func readJSON(dec *json.Decoder, depth int) (JSON, error) {
	if depth > maxJSONDepth {
		return nil, pgerr.New(pgerr.StatementTooComplex, "stack depth limit exceeded")
	}
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '[' {
			list := []JSON{}
			for dec.More() {
				v, err := readJSON(dec, depth+1)
				if err != nil {
					return nil, err
				}
				list = append(list, v)
			}
			_, err := dec.Token()
			return list, err
		}
		return readObject(dec, depth)
	case json.Number:
		d, err := parseNumeric(t.String())
		if err != nil {
			return nil, err
		}
		return json.Number(appendNumeric(nil, d.Numeric())), nil
	case string:
		if strings.IndexByte(t, 0) >= 0 {
			return nil, pgerr.New("22P05", "unsupported Unicode escape sequence").
				WithDetail("\\u0000 cannot be converted to text.")
		}
		return t, nil
	}
	return token, nil
}

func readObject(dec *json.Decoder, depth int) (JSON, error) {
	var o Object
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name, ok := key.(string)
		if !ok {
			return nil, invalidJSON(JSONBOID)
		}
		v, err := readJSON(dec, depth+1)
		if err != nil {
			return nil, err
		}
		o = append(o, Member{name, v})
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	return SortObject(o), nil
}

// SortObject brings members into jsonb's order; of equal keys the last one stays.
func SortObject(o Object) Object {
	sort.SliceStable(o, func(i, j int) bool {
		if len(o[i].Key) != len(o[j].Key) {
			return len(o[i].Key) < len(o[j].Key)
		}
		return o[i].Key < o[j].Key
	})
	out := o[:0]
	for i, m := range o {
		if i+1 < len(o) && o[i+1].Key == m.Key {
			continue
		}
		out = append(out, m)
	}
	return out
}

// AppendJSON writes a value in jsonb's output form.
func AppendJSON(dst []byte, v JSON) []byte {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...)
	case bool:
		if v {
			return append(dst, "true"...)
		}
		return append(dst, "false"...)
	case json.Number:
		return append(dst, v...)
	case string:
		return AppendJSONString(dst, v)
	case []JSON:
		dst = append(dst, '[')
		for i, item := range v {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = AppendJSON(dst, item)
		}
		return append(dst, ']')
	case Object:
		dst = append(dst, '{')
		for i, m := range v {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = AppendJSONString(dst, m.Key)
			dst = append(dst, ": "...)
			dst = AppendJSON(dst, m.Value)
		}
		return append(dst, '}')
	}
	return dst
}

// AppendJSONString quotes a string as escape_json of the server does.
func AppendJSONString(dst []byte, s string) []byte {
	const hexDigits = "0123456789abcdef"
	dst = append(dst, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\r':
			dst = append(dst, `\r`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		case c == '\b':
			dst = append(dst, `\b`...)
		case c == '\f':
			dst = append(dst, `\f`...)
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

func parseJSONB(s string) (Datum, error) {
	v, err := ParseJSON(s)
	if err != nil {
		return Null, err
	}
	return Text(string(AppendJSON(nil, v))), nil
}

func parseJSONBBinary(data []byte) (Datum, error) {
	if len(data) == 0 || data[0] != 1 {
		return Null, errBinary(JSONBOID)
	}
	return parseJSONB(string(bytes.Clone(data[1:])))
}
