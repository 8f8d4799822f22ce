package sqlparse

import "strings"

// tokenKind is the lexical class of a token.
type tokenKind uint8

const (
	tokenEnd      tokenKind = iota
	tokenIdent              // unquoted identifier or keyword
	tokenQuoted             // "..." or U&"..."
	tokenInteger            // decimal, 0x, 0o or 0b
	tokenNumeric            // with a point or an exponent
	tokenString             // '...', with its continuations
	tokenEscape             // E'...'
	tokenUnicode            // U&'...'
	tokenNational           // N'...'
	tokenBits               // B'...'
	tokenHex                // X'...'
	tokenDollar             // $tag$...$tag$
	tokenParam              // $1
	tokenOperator           // one or more operator characters
	tokenPunct              // , ( ) [ ] . ; :
	tokenCast               // ::
	tokenPair               // := and ..
	tokenBad                // unterminated, or what Postgres's scanner refuses
)

func (k tokenKind) isString() bool { return k >= tokenString && k <= tokenDollar }

// token is one lexical element: text[start:end].
type token struct {
	kind       tokenKind
	start, end int
}

// Character classes, a bit set for each byte.
const (
	classSpace      = 1 << iota // blank, tab, newline, carriage return, form feed, vertical tab
	classIdentStart             // letter, underscore, any byte above 127
	classIdent                  // identStart, digit, $
	classDigit
	classHex
	classOp  // may be part of an operator
	classTag // may be part of a dollar quote's tag after its first byte
	classOctal
	classBinary
)

var classes = makeClasses()

func makeClasses() (t [256]uint16) {
	for c := range 256 {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_', c >= 0x80:
			t[c] |= classIdentStart | classIdent | classTag
		case c >= '0' && c <= '9':
			t[c] |= classDigit | classHex | classIdent | classTag
		case c == '$':
			t[c] |= classIdent
		case strings.IndexByte(" \t\n\r\f\v", byte(c)) >= 0:
			t[c] |= classSpace
		case strings.IndexByte("~!@#^&|`?+-*/%<>=", byte(c)) >= 0:
			t[c] |= classOp
		}
		if c >= '0' && c <= '7' {
			t[c] |= classOctal
		}
		if c == '0' || c == '1' {
			t[c] |= classBinary
		}
		if c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' {
			t[c] |= classHex
		}
	}
	return t
}

// lexer reads tokens by the rules of Postgres's scan.l with standard_conforming_strings = on. It allocates nothing.
type lexer struct {
	text     string
	pos      int
	comments bool // it met a comment, or a vertical tab
}

// next gives the next token; at the end of the text one of kind tokenEnd. After tokenBad the position is undefined.
func (l *lexer) next() token {
	if l.is(l.pos, classSpace|classOp) && !l.skipBlank() {
		return token{tokenBad, l.pos, len(l.text)}
	}
	start := l.pos
	if start >= len(l.text) {
		return token{tokenEnd, start, start}
	}
	c := l.text[start]
	var kind tokenKind
	switch class := classes[c]; {
	case class&classIdentStart != 0:
		kind = l.identifier(c)
	case class&classDigit != 0:
		kind = l.number()
	case c == '\'':
		kind = l.quoted(tokenString, 1)
	case c == '"':
		kind = l.quotedIdent(1)
	case c == '$':
		kind = l.dollar()
	case c == '.' && l.is(start+1, classDigit):
		kind = l.number()
	case class&classOp != 0:
		kind = l.operator()
	default:
		kind = l.punct(c)
	}
	return token{kind, start, l.pos}
}

// byteAt gives the byte at i, 0 beyond the end.
func (l *lexer) byteAt(i int) byte {
	if i < len(l.text) {
		return l.text[i]
	}
	return 0
}

func (l *lexer) is(i int, class uint16) bool { return i < len(l.text) && classes[l.text[i]]&class != 0 }

// skip moves over bytes of the class.
func (l *lexer) skip(class uint16) {
	for l.pos < len(l.text) && classes[l.text[l.pos]]&class != 0 {
		l.pos++
	}
}

// skipBlank moves over white space and comments; false means an unterminated comment.
func (l *lexer) skipBlank() bool {
	for l.pos < len(l.text) {
		c := l.text[l.pos]
		switch {
		case classes[c]&classSpace != 0:
			l.comments = l.comments || c == '\v'
			l.pos++
		case c == '-' && l.byteAt(l.pos+1) == '-':
			l.comments = true
			l.skipLine()
		case c == '/' && l.byteAt(l.pos+1) == '*':
			if !l.skipComment() {
				return false
			}
		default:
			return true
		}
	}
	return true
}

func (l *lexer) skipLine() {
	for l.pos < len(l.text) && l.text[l.pos] != '\n' && l.text[l.pos] != '\r' {
		l.pos++
	}
}

// skipComment moves over a block comment; they nest. It stays before one that has no end.
func (l *lexer) skipComment() bool {
	depth, start := 0, l.pos
	l.comments = true
	for l.pos+1 < len(l.text) {
		switch {
		case l.text[l.pos] == '/' && l.text[l.pos+1] == '*':
			depth++
			l.pos += 2
		case l.text[l.pos] == '*' && l.text[l.pos+1] == '/':
			depth--
			l.pos += 2
			if depth == 0 {
				return true
			}
		default:
			l.pos++
		}
	}
	l.pos = start
	return false
}

// identifier reads an unquoted identifier, or the string that a letter and a quote begin.
func (l *lexer) identifier(c byte) tokenKind {
	switch c {
	case 'e', 'E':
		if l.byteAt(l.pos+1) == '\'' {
			return l.quoted(tokenEscape, 2)
		}
	case 'n', 'N':
		if l.byteAt(l.pos+1) == '\'' {
			return l.quoted(tokenNational, 2)
		}
	case 'b', 'B':
		if l.byteAt(l.pos+1) == '\'' {
			return l.quoted(tokenBits, 2)
		}
	case 'x', 'X':
		if l.byteAt(l.pos+1) == '\'' {
			return l.quoted(tokenHex, 2)
		}
	case 'u', 'U':
		if l.byteAt(l.pos+1) == '&' {
			switch l.byteAt(l.pos + 2) {
			case '\'':
				return l.quoted(tokenUnicode, 3)
			case '"':
				return l.quotedIdent(3)
			}
		}
	}
	l.skip(classIdent)
	return tokenIdent
}

// quoted reads a string constant whose opening takes prefix bytes, with the parts that continue it on later lines.
func (l *lexer) quoted(kind tokenKind, prefix int) tokenKind {
	l.pos += prefix
	for {
		if !l.quotedPart(kind) {
			return tokenBad
		}
		next, ok := l.continuation()
		if !ok {
			return kind
		}
		l.pos = next
	}
}

// quotedPart moves over the rest of a quoted string and its closing quote. Two quotes stand for one, but not in bit
// strings.
func (l *lexer) quotedPart(kind tokenKind) bool {
	backslash, doubled := kind == tokenEscape, kind != tokenBits && kind != tokenHex
	for l.pos < len(l.text) {
		switch c := l.text[l.pos]; {
		case c == '\'':
			if !doubled || l.byteAt(l.pos+1) != '\'' {
				l.pos++
				return true
			}
			l.pos += 2
		case c == '\\' && backslash:
			l.pos += 2
		default:
			l.pos++
		}
	}
	l.pos = len(l.text)
	return false
}

// continuation looks, after a closing quote, for white space with a newline and another quote: then the constant goes
// on after that quote. Line comments count as white space here, block comments don't.
func (l *lexer) continuation() (int, bool) {
	ahead, newline := lexer{text: l.text, pos: l.pos}, false
	for ahead.pos < len(l.text) {
		c := l.text[ahead.pos]
		switch {
		case c == '\n' || c == '\r':
			newline = true
			ahead.pos++
		case classes[c]&classSpace != 0:
			ahead.pos++
		case c == '-' && ahead.byteAt(ahead.pos+1) == '-':
			ahead.skipLine()
			l.comments = true
		case c == '\'' && newline:
			return ahead.pos + 1, true
		default:
			return 0, false
		}
	}
	return 0, false
}

// quotedIdent reads a quoted identifier whose opening takes prefix bytes. An empty one is an error.
func (l *lexer) quotedIdent(prefix int) tokenKind {
	first := l.pos + prefix
	l.pos = first
	for l.pos < len(l.text) {
		if l.text[l.pos] != '"' {
			l.pos++
			continue
		}
		if l.byteAt(l.pos+1) != '"' {
			l.pos++
			if l.pos-1 == first {
				return tokenBad
			}
			return tokenQuoted
		}
		l.pos += 2
	}
	return tokenBad
}

// dollar reads a parameter or a dollar-quoted string.
func (l *lexer) dollar() tokenKind {
	l.pos++
	if l.is(l.pos, classDigit) {
		l.skip(classDigit)
		return tokenParam
	}
	tagStart := l.pos
	if l.is(l.pos, classIdentStart) {
		l.skip(classTag)
	}
	if l.byteAt(l.pos) != '$' {
		return tokenBad
	}
	l.pos++
	tag := l.text[tagStart-1 : l.pos]
	at := strings.Index(l.text[l.pos:], tag)
	if at < 0 {
		return tokenBad
	}
	l.pos += at + len(tag)
	return tokenDollar
}

// punct reads what is neither word, number, string nor operator.
func (l *lexer) punct(c byte) tokenKind {
	l.pos++
	switch c {
	case ',', '(', ')', '[', ']', ';':
		return tokenPunct
	case '.':
		if l.byteAt(l.pos) == '.' {
			l.pos++
			return tokenPair
		}
		return tokenPunct
	case ':':
		switch l.byteAt(l.pos) {
		case ':':
			l.pos++
			return tokenCast
		case '=':
			l.pos++
			return tokenPair
		}
		return tokenPunct
	}
	return tokenBad
}

// nameDataLen is Postgres's NAMEDATALEN: an operator must be shorter.
const nameDataLen = 64

// operator reads an operator: as many operator characters as there are, but it ends before a comment, and it may end
// in + or - only if it has one of ~ ! @ # ^ & | ` ? %.
func (l *lexer) operator() tokenKind {
	start := l.pos
	free := false
	for l.is(l.pos, classOp) {
		c, after := l.text[l.pos], l.byteAt(l.pos+1)
		if c == '-' && after == '-' || c == '/' && after == '*' {
			break
		}
		if strings.IndexByte("~!@#^&|`?%", c) >= 0 {
			free = true
		}
		l.pos++
	}
	for !free && l.pos-start > 1 && (l.text[l.pos-1] == '+' || l.text[l.pos-1] == '-') {
		l.pos--
	}
	if l.pos-start >= nameDataLen {
		return tokenBad
	}
	return tokenOperator
}

// number reads a numeric constant. A letter right behind it is an error, as in Postgres since 15.
func (l *lexer) number() tokenKind {
	kind := tokenInteger
	if class, ok := l.radix(); ok {
		l.pos += 2
		if !l.digitRun(class, true) {
			return tokenBad
		}
	} else {
		kind = l.decimal()
	}
	if l.is(l.pos, classIdentStart) {
		return tokenBad
	}
	return kind
}

// radix reports the digit class of a 0x, 0o or 0b constant at the position.
func (l *lexer) radix() (uint16, bool) {
	if l.text[l.pos] != '0' {
		return 0, false
	}
	switch l.byteAt(l.pos + 1) {
	case 'x', 'X':
		return classHex, true
	case 'o', 'O':
		return classOctal, true
	case 'b', 'B':
		return classBinary, true
	}
	return 0, false
}

// digitRun moves over digits, each of which may have one underscore before it (the first only if leading is set).
func (l *lexer) digitRun(class uint16, leading bool) bool {
	from := l.pos
	for l.pos < len(l.text) {
		switch {
		case l.is(l.pos, class):
			l.pos++
		case l.text[l.pos] == '_' && l.is(l.pos+1, class) && (leading || l.pos > from):
			l.pos += 2
		default:
			return l.pos > from
		}
	}
	return l.pos > from
}

func (l *lexer) decimal() tokenKind {
	kind := tokenInteger
	start := l.pos
	l.digitRun(classDigit, false)
	// "1..10" is the integer 1 and "..", but "1_0..10" is not.
	if l.byteAt(l.pos) == '.' && (l.byteAt(l.pos+1) != '.' || strings.IndexByte(l.text[start:l.pos], '_') >= 0) {
		kind = tokenNumeric
		l.pos++
		l.digitRun(classDigit, false)
	}
	if c := l.byteAt(l.pos); c == 'e' || c == 'E' {
		at := l.pos
		l.pos++
		if c := l.byteAt(l.pos); c == '+' || c == '-' {
			l.pos++
		}
		if !l.digitRun(classDigit, false) {
			l.pos = at // junk, which number refuses
			return kind
		}
		kind = tokenNumeric
	}
	return kind
}
