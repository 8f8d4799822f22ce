package datum

import (
	"strings"

	"neki/internal/pgerr"
)

func malformedArray(s, detail string) error {
	return pgerr.New(pgerr.InvalidTextRepresentation, "malformed array literal: \"%s\"", s).WithDetail("%s", detail)
}

// parseArray reads the text form of a one-dimensional array. Element texts that are quoted are never NULL.
func parseArray(text string, elem uint32, session *Session) (Datum, error) {
	s := trimSpace(text)
	if strings.HasPrefix(s, "[") {
		return Null, pgerr.New(pgerr.FeatureNotSupported, "array bounds are not supported: \"%s\"", text)
	}
	if !strings.HasPrefix(s, "{") {
		return Null, malformedArray(text, "Array value must start with \"{\" or dimension information.")
	}
	a := &Array{Elem: elem}
	s = strings.TrimLeft(s[1:], " \t\n\v\f\r")
	if strings.HasPrefix(s, "}") {
		if trimSpace(s[1:]) != "" {
			return Null, malformedArray(text, "Junk after closing right brace.")
		}
		return FromArray(a), nil
	}
	for {
		item, quoted, rest, err := arrayItem(s, text)
		if err != nil {
			return Null, err
		}
		d := Null
		if quoted || !strings.EqualFold(item, "null") {
			if d, err = ParseText(elem, item, session); err != nil {
				return Null, err
			}
		}
		a.Items = append(a.Items, d)
		if rest == "" {
			return Null, malformedArray(text, "Unexpected end of input.")
		}
		if rest[0] == ',' {
			s = rest[1:]
			continue
		}
		if trimSpace(rest[1:]) != "" {
			return Null, malformedArray(text, "Junk after closing right brace.")
		}
		return FromArray(a), nil
	}
}

// arrayItem reads one element; rest begins with the delimiter or brace after it.
func arrayItem(s, text string) (item string, quoted bool, rest string, err error) {
	s = strings.TrimLeft(s, " \t\n\v\f\r")
	var b []byte
	keep := 0 // length of b up to the last byte that is not trailing space
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			if len(b) > 0 || quoted {
				return "", false, "", malformedArray(text, "Unexpected array element.")
			}
			quoted = true
			for i++; i < len(s) && s[i] != '"'; i++ {
				if s[i] == '\\' && i+1 < len(s) {
					i++
				}
				b = append(b, s[i])
			}
			if i == len(s) {
				return "", false, "", malformedArray(text, "Unexpected end of input.")
			}
			keep = len(b)
		case c == '\\' && i+1 < len(s):
			i++
			b = append(b, s[i])
			keep = len(b)
		case c == '{':
			return "", false, "", pgerr.New(pgerr.FeatureNotSupported, "multidimensional arrays are not supported: \"%s\"", text)
		case c == ',' || c == '}':
			if keep == 0 && !quoted {
				return "", false, "", malformedArray(text, "Unexpected \""+string(c)+"\" character.")
			}
			return string(b[:keep]), quoted, s[i:], nil
		case strings.IndexByte(" \t\n\v\f\r", c) >= 0:
			if !quoted {
				b = append(b, c)
			}
		default:
			if quoted {
				return "", false, "", malformedArray(text, "Unexpected array element.")
			}
			b = append(b, c)
			keep = len(b)
		}
	}
	return "", false, "", malformedArray(text, "Unexpected end of input.")
}

func appendArray(dst []byte, a *Array, session *Session) ([]byte, error) {
	dst = append(dst, '{')
	for i, item := range a.Items {
		if i > 0 {
			dst = append(dst, ',')
		}
		if item.IsNull() {
			dst = append(dst, "NULL"...)
			continue
		}
		text, err := Format(a.Elem, item, session)
		if err != nil {
			return dst, err
		}
		dst = appendArrayItem(dst, text)
	}
	return append(dst, '}'), nil
}

func appendArrayItem(dst []byte, s string) []byte {
	if s != "" && !strings.EqualFold(s, "null") && !strings.ContainsAny(s, "{}\",\\ \t\n\v\f\r") {
		return append(dst, s...)
	}
	dst = append(dst, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			dst = append(dst, '\\')
		}
		dst = append(dst, s[i])
	}
	return append(dst, '"')
}
