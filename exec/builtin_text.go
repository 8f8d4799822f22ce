package exec

import (
	"crypto/md5"
	"encoding/hex"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

func text1(fn func(string) string) Builtin {
	return func(_ Call, a []datum.Datum) (datum.Datum, error) { return datum.Text(fn(a[0].Text())), nil }
}

func textInt(fn func(string) int) Builtin {
	return func(_ Call, a []datum.Datum) (datum.Datum, error) { return datum.Int(int64(fn(a[0].Text()))), nil }
}

// mapRunes folds letters one by one, as towlower and towupper do.
func mapRunes(fn func(rune) rune) func(string) string {
	return func(s string) string { return strings.Map(fn, s) }
}

// lowerRune and upperRune leave out the mappings that the C library does not have.
func lowerRune(r rune) rune {
	if r == 'İ' {
		return 'i'
	}
	return unicode.ToLower(r)
}

func upperRune(r rune) rune {
	if r == 'ı' {
		return 'I'
	}
	return unicode.ToUpper(r)
}

var textBuiltins = map[string]Builtin{
	"lower": text1(mapRunes(lowerRune)), "upper": text1(mapRunes(upperRune)),
	"textlen": textInt(utf8.RuneCountInString), "textoctetlen": textInt(func(s string) int { return len(s) }),
	"bit_length/25":  textInt(func(s string) int { return 8 * len(s) }),
	"text_reverse":   text1(reverse),
	"md5_text":       text1(func(s string) string { sum := md5.Sum([]byte(s)); return hex.EncodeToString(sum[:]) }),
	"initcap":        text1(initcap),
	"quote_ident":    text1(quoteIdent),
	"quote_literal":  text1(quoteLiteral),
	"quote_nullable": quoteNullable,
	"textcat":        func(_ Call, a []datum.Datum) (datum.Datum, error) { return bounded(a[0].Text() + a[1].Text()) },
	"text_substr":    func(_ Call, a []datum.Datum) (datum.Datum, error) { return substr(a[0].Text(), a[1].Int(), a[2].Int()) },
	"text_substr_no_len": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return substr(a[0].Text(), a[1].Int(), math.MaxInt32)
	},
	"replace_text": replaceText,
	"text_left":    func(_ Call, a []datum.Datum) (datum.Datum, error) { return left(a[0].Text(), a[1].Int()), nil },
	"text_right":   func(_ Call, a []datum.Datum) (datum.Datum, error) { return right(a[0].Text(), a[1].Int()), nil },
	"btrim": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return datum.Text(trimSet(a[0].Text(), a[1].Text(), true, true)), nil
	},
	"ltrim": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return datum.Text(trimSet(a[0].Text(), a[1].Text(), true, false)), nil
	},
	"rtrim": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return datum.Text(trimSet(a[0].Text(), a[1].Text(), false, true)), nil
	},
	"btrim1": text1(func(s string) string { return strings.Trim(s, " ") }),
	"ltrim1": text1(func(s string) string { return strings.TrimLeft(s, " ") }),
	"rtrim1": text1(func(s string) string { return strings.TrimRight(s, " ") }),
	"lpad": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return pad(a[0].Text(), a[1].Int(), a[2].Text(), true)
	},
	"rpad": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return pad(a[0].Text(), a[1].Int(), a[2].Text(), false)
	},
	"lpad/25,23": func(_ Call, a []datum.Datum) (datum.Datum, error) { return pad(a[0].Text(), a[1].Int(), " ", true) },
	"rpad/25,23": func(_ Call, a []datum.Datum) (datum.Datum, error) { return pad(a[0].Text(), a[1].Int(), " ", false) },
	"split_part": splitPart,
	"textpos": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return datum.Int(position(a[0].Text(), a[1].Text())), nil
	},
	"text_starts_with": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return datum.Bool(strings.HasPrefix(a[0].Text(), a[1].Text())), nil
	},
	"repeat":             repeat,
	"translate":          translate,
	"ascii":              ascii,
	"chr":                chr,
	"textanycat/25,2776": anyCat,
	"anytextcat/2776,25": anyCat,
	"text_concat":        concat,
	"text_concat_ws":     concatWS,
	"text_format":        format,
	"text_format_nv":     format,
}

func reverse(s string) string {
	r := []rune(s)
	for i, j := 0, len(r)-1; i < j; i, j = i+1, j-1 {
		r[i], r[j] = r[j], r[i]
	}
	return string(r)
}

func initcap(s string) string {
	begin := true
	return strings.Map(func(r rune) rune {
		letter := unicode.IsLetter(r) || unicode.IsDigit(r)
		defer func() { begin = !letter }()
		if begin {
			return upperRune(r)
		}
		return lowerRune(r)
	}, s)
}

// maxText bounds the length of a computed string; the server's bound is 1 GB.
const maxText = 64 << 20

func bounded(s string) (datum.Datum, error) {
	if len(s) > maxText {
		return datum.Null, pgerr.New(pgerr.ProgramLimitExceeded, "requested length too large")
	}
	return datum.Text(s), nil
}

// quoteIdent quotes a name as format's %I does; the words that must be quoted are those the grammar reserves.
func quoteIdent(s string) string {
	safe := s != "" && (s[0] >= 'a' && s[0] <= 'z' || s[0] == '_') && !reserved[s]
	for i := range len(s) {
		c := s[i]
		safe = safe && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_')
	}
	if safe {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}

func quoteLiteral(s string) string {
	q := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.ContainsRune(s, '\\') {
		return "E" + strings.ReplaceAll(q, `\`, `\\`)
	}
	return q
}

func quoteNullable(_ Call, a []datum.Datum) (datum.Datum, error) {
	if a[0].IsNull() {
		return datum.Text("NULL"), nil
	}
	return datum.Text(quoteLiteral(a[0].Text())), nil
}

// runeOffset gives the byte offset of the n-th character, or the length.
func runeOffset(s string, n int64) int {
	at := 0
	for ; n > 0 && at < len(s); n-- {
		_, size := utf8.DecodeRuneInString(s[at:])
		at += size
	}
	return at
}

func substr(s string, start, length int64) (datum.Datum, error) {
	if length < 0 {
		return datum.Null, pgerr.New("22011", "negative substring length not allowed")
	}
	end := start + length
	start = max(start, 1)
	if end <= start {
		return datum.Text(""), nil
	}
	from := runeOffset(s, start-1)
	return datum.Text(s[from : from+runeOffset(s[from:], end-start)]), nil
}

func left(s string, n int64) datum.Datum {
	if n < 0 {
		n = max(int64(utf8.RuneCountInString(s))+n, 0)
	}
	return datum.Text(s[:runeOffset(s, n)])
}

func right(s string, n int64) datum.Datum {
	if n < 0 {
		n = -n
	} else {
		n = max(int64(utf8.RuneCountInString(s))-n, 0)
	}
	return datum.Text(s[runeOffset(s, n):])
}

// trimSet removes characters of the set from the ends.
func trimSet(s, set string, front, back bool) string {
	in := func(r rune) bool { return strings.ContainsRune(set, r) }
	if front {
		s = strings.TrimLeftFunc(s, in)
	}
	if back {
		s = strings.TrimRightFunc(s, in)
	}
	return s
}

func pad(s string, n int64, fill string, front bool) (datum.Datum, error) {
	n = max(n, 0)
	if n > maxText {
		return datum.Null, pgerr.New(pgerr.ProgramLimitExceeded, "requested length too large")
	}
	have := int64(utf8.RuneCountInString(s))
	if have >= n || fill == "" {
		return datum.Text(s[:runeOffset(s, n)]), nil
	}
	times := int((n-have)/int64(utf8.RuneCountInString(fill))) + 1
	padding := strings.Repeat(fill, times)
	padding = padding[:runeOffset(padding, n-have)]
	if front {
		return datum.Text(padding + s), nil
	}
	return datum.Text(s + padding), nil
}

func replaceText(_ Call, a []datum.Datum) (datum.Datum, error) {
	s, from, to := a[0].Text(), a[1].Text(), a[2].Text()
	if from == "" {
		return a[0], nil
	}
	if grown := strings.Count(s, from) * len(to); grown > maxText {
		return datum.Null, pgerr.New(pgerr.ProgramLimitExceeded, "requested length too large")
	}
	return datum.Text(strings.ReplaceAll(s, from, to)), nil
}

func splitPart(_ Call, a []datum.Datum) (datum.Datum, error) {
	s, sep, n := a[0].Text(), a[1].Text(), a[2].Int()
	if n == 0 {
		return datum.Null, pgerr.New(pgerr.InvalidParameterValue, "field position must not be zero")
	}
	parts := []string{s}
	switch {
	case s == "":
		return datum.Text(""), nil
	case sep != "":
		parts = strings.Split(s, sep)
	}
	if n < 0 {
		n += int64(len(parts)) + 1
	}
	if n < 1 || n > int64(len(parts)) {
		return datum.Text(""), nil
	}
	return datum.Text(parts[n-1]), nil
}

func position(s, sub string) int64 {
	at := strings.Index(s, sub)
	if at < 0 {
		return 0
	}
	return int64(utf8.RuneCountInString(s[:at])) + 1
}

func repeat(_ Call, a []datum.Datum) (datum.Datum, error) {
	s, n := a[0].Text(), max(a[1].Int(), 0)
	if int64(len(s))*n > maxText {
		return datum.Null, pgerr.New(pgerr.ProgramLimitExceeded, "requested length too large")
	}
	return datum.Text(strings.Repeat(s, int(n))), nil
}

func translate(_ Call, a []datum.Datum) (datum.Datum, error) {
	from, to := []rune(a[1].Text()), []rune(a[2].Text())
	return datum.Text(strings.Map(func(r rune) rune {
		for i, f := range from {
			if f == r {
				if i < len(to) {
					return to[i]
				}
				return -1
			}
		}
		return r
	}, a[0].Text())), nil
}

func ascii(_ Call, a []datum.Datum) (datum.Datum, error) {
	if a[0].Text() == "" {
		return datum.Int(0), nil
	}
	r, _ := utf8.DecodeRuneInString(a[0].Text())
	return datum.Int(int64(r)), nil
}

func chr(_ Call, a []datum.Datum) (datum.Datum, error) {
	n := a[0].Int()
	switch {
	case n < 0:
		return datum.Null, pgerr.New(pgerr.ProgramLimitExceeded, "character number must be positive")
	case n == 0:
		return datum.Null, pgerr.New(pgerr.ProgramLimitExceeded, "null character not permitted")
	case n > 0x10ffff:
		return datum.Null, pgerr.New(pgerr.ProgramLimitExceeded, "requested character too large for encoding: %d", n)
	case !utf8.ValidRune(rune(n)):
		return datum.Null, pgerr.New(pgerr.ProgramLimitExceeded, "requested character not valid for encoding: %d", n)
	}
	return datum.Text(string(rune(n))), nil
}

func concat(c Call, a []datum.Datum) (datum.Datum, error) {
	var b strings.Builder
	for i, d := range a {
		text, err := datum.Format(c.Args[i].OID, d, c.session())
		if err != nil {
			return datum.Null, err
		}
		b.WriteString(text)
	}
	return bounded(b.String())
}

func concatWS(c Call, a []datum.Datum) (datum.Datum, error) {
	if a[0].IsNull() {
		return datum.Null, nil
	}
	var parts []string
	for i, d := range a[1:] {
		if d.IsNull() {
			continue
		}
		text, err := datum.Format(c.Args[i+1].OID, d, c.session())
		if err != nil {
			return datum.Null, err
		}
		parts = append(parts, text)
	}
	return bounded(strings.Join(parts, a[0].Text()))
}

// format is %s, %I, %L and %% with position and without width; other specifiers are refused as by the server.
func format(c Call, a []datum.Datum) (datum.Datum, error) {
	if a[0].IsNull() {
		return datum.Null, nil
	}
	s := a[0].Text()
	var b strings.Builder
	next := 1
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		i++
		if i < len(s) && s[i] == '%' {
			b.WriteByte('%')
			continue
		}
		arg := next
		n := 0
		for i+n < len(s) && s[i+n] >= '0' && s[i+n] <= '9' && n < 5 {
			n++
		}
		switch {
		case i+n < len(s) && n > 0 && s[i+n] == '$':
			arg = atoi(s[i : i+n])
			i += n + 1
			if arg == 0 {
				return datum.Null, pgerr.New(pgerr.InvalidParameterValue,
					"format specifies argument 0, but arguments are numbered from 1")
			}
		case n > 0 || i < len(s) && (s[i] == '-' || s[i] == '*'):
			return datum.Null, pgerr.New(pgerr.FeatureNotSupported, "a width in format() is not supported")
		}
		next = arg + 1
		if i >= len(s) {
			return datum.Null, pgerr.New(pgerr.InvalidParameterValue, "unterminated format() type specifier").
				WithHint("For a single \"%%\" use \"%%%%\".")
		}
		text, err := formatOne(c, a, arg, s[i])
		if err != nil {
			return datum.Null, err
		}
		b.WriteString(text)
	}
	return bounded(b.String())
}

func atoi(s string) int {
	n := 0
	for _, c := range s {
		n = n*10 + int(c-'0')
	}
	return n
}

func formatOne(c Call, a []datum.Datum, arg int, verb byte) (string, error) {
	if verb != 's' && verb != 'I' && verb != 'L' {
		return "", pgerr.New(pgerr.InvalidParameterValue, "unrecognized format() type specifier \"%c\"", verb).
			WithHint("For a single \"%%\" use \"%%%%\".")
	}
	if arg >= len(a) {
		return "", pgerr.New(pgerr.InvalidParameterValue, "too few arguments for format()")
	}
	d := a[arg]
	if d.IsNull() {
		switch verb {
		case 'L':
			return "NULL", nil
		case 'I':
			return "", pgerr.New("22004", "null values cannot be formatted as an SQL identifier")
		}
		return "", nil
	}
	text, err := datum.Format(c.Args[arg].OID, d, c.session())
	switch verb {
	case 'I':
		text = quoteIdent(text)
	case 'L':
		text = quoteLiteral(text)
	}
	return text, err
}

// anyCat is text || anything and anything || text: the other operand is cast to text.
func anyCat(c Call, a []datum.Datum) (datum.Datum, error) {
	var b strings.Builder
	for i, d := range a {
		text, err := datum.Format(c.Args[i].OID, d, c.session())
		if err != nil {
			return datum.Null, err
		}
		if c.Args[i].OID == datum.BoolOID {
			text = map[bool]string{true: "true", false: "false"}[d.Bool()]
		}
		b.WriteString(text)
	}
	return bounded(b.String())
}
