package sqlparse

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// literalKind gives the kind of a constant, and whether it may be lifted out of a shape.
func literalKind(text string, kind tokenKind) (LiteralKind, bool) {
	switch kind {
	case tokenInteger:
		return integerKind(text)
	case tokenNumeric:
		return LiteralNumeric, true
	case tokenString:
		return LiteralString, true
	case tokenEscape:
		return LiteralEString, true
	case tokenDollar:
		return LiteralDollar, true
	case tokenBits:
		return LiteralBString, true
	case tokenHex:
		return LiteralXString, true
	}
	// U&'...' may have a UESCAPE behind it, N'...' is a cast.
	return LiteralString, false
}

// integerKind gives the type of an integer constant. The first value beyond each type stays in the shape: with a sign
// before it, it is the least value of the smaller type.
func integerKind(text string) (LiteralKind, bool) {
	v, ok := integerValue(text)
	switch {
	case !ok:
		return LiteralNumeric, true
	case v <= math.MaxInt32:
		return LiteralInt4, true
	case v <= math.MaxInt64:
		return LiteralInt8, v != math.MaxInt32+1
	}
	return LiteralNumeric, v != math.MaxInt64+1
}

// integerValue reads an integer constant in any radix; false if it is beyond uint64.
func integerValue(text string) (uint64, bool) {
	radix := uint64(10)
	if len(text) > 2 && text[0] == '0' {
		switch text[1] {
		case 'x', 'X':
			radix = 16
		case 'o', 'O':
			radix = 8
		case 'b', 'B':
			radix = 2
		}
		if radix != 10 {
			text = text[2:]
		}
	}
	v := uint64(0)
	for i := range len(text) {
		c := text[i]
		if c == '_' {
			continue
		}
		digit := hexDigit(c)
		if v > (math.MaxUint64-digit)/radix {
			return 0, false
		}
		v = v*radix + digit
	}
	return v, true
}

func hexDigit(c byte) uint64 {
	switch {
	case c <= '9':
		return uint64(c - '0')
	case c >= 'a':
		return uint64(c - 'a' + 10)
	}
	return uint64(c - 'A' + 10)
}

// AppendValue appends what the literal says: the characters of a string with its quotes, escapes and continuations
// undone, the digits of a bit string, a number in decimal without underscores. text is the statement's.
func (l Literal) AppendValue(dst []byte, text string) []byte {
	raw := text[l.Start:l.End]
	switch l.Kind {
	case LiteralInt4, LiteralInt8, LiteralNumeric:
		return appendNumber(dst, raw)
	case LiteralDollar:
		tag := strings.IndexByte(raw[1:], '$') + 2
		return append(dst, raw[tag:len(raw)-tag]...)
	case LiteralString:
		return appendQuoted(dst, raw, 1, false)
	case LiteralEString:
		return appendQuoted(dst, raw, 2, true)
	default:
		return appendQuoted(dst, raw, 2, false)
	}
}

// appendQuoted appends the content of a quoted constant, whose opening takes prefix bytes.
func appendQuoted(dst []byte, raw string, prefix int, escapes bool) []byte {
	l := lexer{text: raw, pos: prefix}
	for l.pos < len(raw) {
		switch c := raw[l.pos]; {
		case c == '\'' && l.byteAt(l.pos+1) == '\'':
			dst = append(dst, '\'')
			l.pos += 2
		case c == '\'':
			l.pos++
			next, ok := l.continuation()
			if !ok {
				return dst
			}
			l.pos = next
		case c == '\\' && escapes:
			dst = l.appendEscape(dst)
		default:
			dst = append(dst, c)
			l.pos++
		}
	}
	return dst
}

// appendEscape appends what a backslash and the characters behind it mean in E'...'. Surrogate pairs are joined; an
// escape that Postgres refuses gives the replacement character, which no key has.
func (l *lexer) appendEscape(dst []byte) []byte {
	c := l.byteAt(l.pos + 1)
	l.pos += 2
	switch c {
	case 'b':
		return append(dst, '\b')
	case 'f':
		return append(dst, '\f')
	case 'n':
		return append(dst, '\n')
	case 'r':
		return append(dst, '\r')
	case 't':
		return append(dst, '\t')
	case 'v':
		return append(dst, '\v')
	case 'x', 'X':
		if c == 'X' || !l.is(l.pos, classHex) {
			return append(dst, c)
		}
		return append(dst, byte(l.digits(classHex, 2, 16)))
	case 'u':
		return l.appendUnicode(dst, 4)
	case 'U':
		return l.appendUnicode(dst, 8)
	}
	if c >= '0' && c <= '7' {
		l.pos--
		return append(dst, byte(l.digits(classDigit, 3, 8)))
	}
	return append(dst, c)
}

// digits reads up to n digits.
func (l *lexer) digits(class uint16, n int, radix uint64) uint64 {
	v := uint64(0)
	for i := 0; i < n && l.is(l.pos, class) && hexDigit(l.text[l.pos]) < radix; i++ {
		v = v*radix + hexDigit(l.text[l.pos])
		l.pos++
	}
	return v
}

// appendUnicode appends the character of \uXXXX or \UXXXXXXXX.
func (l *lexer) appendUnicode(dst []byte, n int) []byte {
	r := rune(l.digits(classHex, n, 16))
	if r >= 0xD800 && r < 0xDC00 && l.byteAt(l.pos) == '\\' {
		at := l.pos
		l.pos += 2
		switch l.byteAt(at + 1) {
		case 'u':
			r = 0x10000 + (r-0xD800)<<10 + rune(l.digits(classHex, 4, 16)) - 0xDC00
		case 'U':
			r = 0x10000 + (r-0xD800)<<10 + rune(l.digits(classHex, 8, 16)) - 0xDC00
		default:
			l.pos = at
		}
	}
	return utf8.AppendRune(dst, r)
}

// appendNumber writes a number in decimal, which is how the parser's tree has it, but for its radix prefixes.
func appendNumber(dst []byte, raw string) []byte {
	if len(raw) > 2 && raw[0] == '0' && strings.IndexByte("xXoObB", raw[1]) >= 0 {
		if v, ok := integerValue(raw); ok {
			return strconv.AppendUint(dst, v, 10)
		}
		return append(dst, raw...) // beyond uint64: numeric_in reads the prefix too
	}
	for i := range len(raw) {
		if raw[i] != '_' {
			dst = append(dst, raw[i])
		}
	}
	return dst
}
