package sqlparse

import "strings"

// quoteArguments puts the names of arguments in a CALL of schema neki in quotes. Two of them, on and into, are reserved words,
// and a text that has one without quotes can't be parsed; the gateway answers these statements itself, so it may take them. It
// gives the text itself when there is nothing to quote.
func quoteArguments(text string) string {
	l := lexer{text: text}
	if !l.nextIs("call") || !l.nextIs("neki") {
		return text
	}
	var b strings.Builder
	done := 0
	for before, t := (token{}), l.next(); t.kind != tokenEnd && t.kind != tokenBad; before, t = t, l.next() {
		if before.kind == tokenIdent && t.kind == tokenOperator && text[t.start:t.end] == "=>" {
			b.WriteString(text[done:before.start] + `"` + strings.ToLower(text[before.start:before.end]) + `"`)
			done = before.end
		}
	}
	return b.String() + text[done:]
}

// nextIs reads a token and tells whether it is this word, in any case.
func (l *lexer) nextIs(word string) bool {
	t := l.next()
	return t.kind == tokenIdent && strings.EqualFold(l.text[t.start:t.end], word)
}
