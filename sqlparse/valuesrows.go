package sqlparse

// ValuesRows gives the places of the rows of an INSERT's VALUES, each with its parentheses. location is that of any part of
// the first row, in a tree of the text. nil: they can't be told.
func ValuesRows(text string, location int) []Span {
	l := lexer{text: text}
	start, depth := -1, 0
	for {
		t := l.next()
		if t.kind == tokenEnd || t.kind == tokenBad || t.start >= location {
			break
		}
		switch {
		case t.kind == tokenPunct && text[t.start] == '(':
			depth++
		case t.kind == tokenPunct && text[t.start] == ')':
			depth--
		case t.kind == tokenIdent && depth == 0 && equalFold(text[t.start:t.end], "values"):
			start = t.end
		}
	}
	if start < 0 {
		return nil
	}
	return rowsFrom(text, start)
}

func equalFold(s, lower string) bool {
	if len(s) != len(lower) {
		return false
	}
	for i := range len(s) {
		if s[i]|0x20 != lower[i] {
			return false
		}
	}
	return true
}

// rowsFrom reads rows in parentheses with commas between them.
func rowsFrom(text string, start int) []Span {
	var rows []Span
	l := lexer{text: text, pos: start}
	depth, open := 0, 0
	for {
		t := l.next()
		switch {
		case t.kind == tokenEnd || t.kind == tokenBad:
			return rows
		case t.kind == tokenPunct && text[t.start] == '(':
			if depth == 0 {
				open = t.start
			}
			depth++
		case t.kind == tokenPunct && text[t.start] == ')':
			if depth--; depth == 0 {
				rows = append(rows, Span{open, t.end})
			}
		case depth == 0 && !(t.kind == tokenPunct && text[t.start] == ','):
			return rows
		}
	}
}

// StatementEnd gives the byte offset behind the last token of a text of one statement, without semicolons and comments.
func StatementEnd(text string) int {
	l := lexer{text: text}
	end := 0
	for {
		t := l.next()
		switch {
		case t.kind == tokenEnd:
			return end
		case t.kind == tokenBad:
			return len(text)
		case t.kind == tokenPunct && text[t.start] == ';':
		default:
			end = t.end
		}
	}
}
