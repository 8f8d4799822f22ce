package sqlparse

import "strings"

// PreparedName finds the name of the prepared statement that one statement makes, runs or drops: in PREPARE, EXECUTE,
// EXPLAIN EXECUTE, CREATE TABLE ... AS EXECUTE (explained or not) and DEALLOCATE. The span holds the name as written,
// with its UESCAPE clause. ok is false when the statement names none. What the name is, Parse says.
func PreparedName(text string) (name Span, ok bool) {
	t := newTokens(text, Span{0, len(text)})
	switch t.name() {
	case "prepare", "execute":
	case "deallocate":
		if ahead := *t; ahead.follows("prepare") && ahead.isName() {
			*t = ahead
			return t.skipName(), true
		}
	case "explain":
		if !t.findExecute() {
			return Span{}, false
		}
	case "create":
		if !t.findAsExecute() {
			return Span{}, false
		}
	default:
		return Span{}, false
	}
	t.advance()
	if !t.isName() {
		return Span{}, false
	}
	return t.skipName(), true
}

// follows moves behind the next token if that is the word.
func (t *tokens) follows(word string) bool {
	t.advance()
	if t.at.kind != tokenIdent || t.name() != word {
		return false
	}
	t.advance()
	return true
}

func (t *tokens) isName() bool { return t.at.kind == tokenIdent || t.at.kind == tokenQuoted }

// skipName moves behind the name at hand, and behind the UESCAPE that belongs to one in Unicode escapes.
func (t *tokens) skipName() Span {
	s := Span{t.at.start, t.at.end}
	unicode := t.at.kind == tokenQuoted && t.text[t.at.start] != '"'
	t.advance()
	if unicode && t.at.kind == tokenIdent && strings.EqualFold(t.text[t.at.start:t.at.end], "uescape") {
		t.advance()
		s.End = t.at.end
		t.advance()
	}
	return s
}

// findExecute moves from EXPLAIN to the EXECUTE that it explains.
func (t *tokens) findExecute() bool {
	t.advance()
	if t.punct('(') {
		_, _ = t.skipParens()
	}
	for t.word() == wordAnalyze || t.word() == wordVerbose {
		t.advance()
	}
	if t.at.kind != tokenIdent {
		return false
	}
	switch t.name() {
	case "execute":
		return true
	case "create":
		return t.findAsExecute()
	}
	return false
}

// findAsExecute moves from CREATE to the EXECUTE behind AS.
func (t *tokens) findAsExecute() bool {
	for !t.done() {
		if t.punct('(') {
			_, _ = t.skipParens()
			continue
		}
		as := t.word() == wordAs
		t.advance()
		if as {
			return t.at.kind == tokenIdent && t.name() == "execute"
		}
	}
	return false
}
