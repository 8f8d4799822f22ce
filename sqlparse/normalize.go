package sqlparse

import (
	"strconv"
	"strings"
)

// Normalize writes a text with its constants replaced by $n, numbered after its own parameters, without comments, with
// white space folded and without the semicolon at the end: what operators may be shown of a statement. Constants go
// wherever they stand, unlike in a Shape. A text that Postgres's scanner refuses gives "".
func Normalize(text string) string {
	next := maxParam(text) + 1
	var b strings.Builder
	b.Grow(len(text))
	l := lexer{text: text}
	for end := 0; ; {
		t := l.next()
		switch t.kind {
		case tokenBad:
			return ""
		case tokenEnd:
			return strings.TrimRight(b.String(), " ;")
		}
		if b.Len() > 0 && t.start > end {
			b.WriteByte(' ')
		}
		end = t.end
		switch {
		case t.kind.isString(), t.kind == tokenInteger, t.kind == tokenNumeric:
			b.WriteByte('$')
			b.WriteString(strconv.Itoa(next))
			next++
		default:
			b.WriteString(text[t.start:t.end])
		}
	}
}

// maxParam gives the highest number of a $n in a text, 0 when there is none.
func maxParam(text string) int {
	highest := 0
	for l := (lexer{text: text}); ; {
		t := l.next()
		if t.kind == tokenBad || t.kind == tokenEnd {
			return highest
		}
		if t.kind == tokenParam {
			if n, err := strconv.Atoi(text[t.start+1 : t.end]); err == nil {
				highest = max(highest, n)
			}
		}
	}
}
