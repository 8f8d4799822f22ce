package sqlparse

import (
	"errors"
	"strings"
	"unicode/utf8"

	"neki/internal/pgerr"
)

// ErrUnparsable marks, for errors.Is, a text of which neither the lexer nor the parser can say what it does: it is a
// write, for the primary, and may leave anything behind in its session.
var ErrUnparsable = errors.New("statement can't be parsed")

// unparsable is the cause of an error that is ErrUnparsable but has a message of its own.
type unparsable string

func (u unparsable) Error() string        { return string(u) }
func (u unparsable) Is(target error) bool { return target == ErrUnparsable }

func errSyntax(message string) *pgerr.Error {
	return pgerr.New(pgerr.SyntaxError, "%w", unparsable(message))
}

func errTooDeep() *pgerr.Error {
	return pgerr.New(pgerr.StatementTooComplex, "%w", unparsable("stack depth limit exceeded")).
		WithHint("The statement nests or chains more than %d operators, joins or set operations.", MaxDepth)
}

// Span is a part of a text, by byte offsets.
type Span struct{ Start, End int }

// Of gives the part's text.
func (s Span) Of(text string) string { return text[s.Start:s.End] }

// Split appends to dst where the statements of text lie, from the first token of each to the last, without white
// space, comments or semicolons around them; empty statements are left out. Semicolons in parentheses (CREATE RULE)
// and in BEGIN ATOMIC bodies don't end a statement. An error means that the whole text is unparsable.
func Split(dst []Span, text string) ([]Span, error) {
	s := splitter{lexer: lexer{text: text}}
	return s.split(dst)
}

// splitter keeps what decides whether a semicolon ends a statement, and the depth of the statement at hand.
type splitter struct {
	lexer
	bounds     depth
	start, end int // of the statement at hand; start is -1 before its first token
	body       bodyDepth
	last       word
	dot        bool // the last token was a point
}

// split is Split.
func (s *splitter) split(dst []Span) ([]Span, error) {
	if strings.IndexByte(s.text, 0) >= 0 {
		return dst, errSyntax("invalid byte sequence: 0x00")
	}
	s.start = -1
	for {
		t := s.next()
		switch t.kind {
		case tokenBad:
			return dst, errToken(s.text, t)
		case tokenEnd:
			return s.finish(dst), nil
		default:
		}
		if !s.accept(t) {
			return dst, errTooDeep()
		}
		if t.kind == tokenPunct && s.text[t.start] == ';' && s.bounds.parens() == 0 && s.body == 0 {
			dst = s.finish(dst)
			continue
		}
		if s.start < 0 {
			s.start = t.start
		}
		s.end = t.end
	}
}

// finish ends the statement at hand.
func (s *splitter) finish(dst []Span) []Span {
	if s.start >= 0 {
		dst = append(dst, Span{s.start, s.end})
	}
	s.start = -1
	s.bounds.reset()
	return dst
}

// accept counts a token; false means that the statement is too deep.
func (s *splitter) accept(t token) bool {
	w := wordNone
	if t.kind == tokenIdent && !s.dot {
		w = wordOf(s.text[t.start:t.end])
	}
	s.bounds.token(t.kind, s.text[t.start], w)
	s.body.word(w, s.last)
	s.last = w
	s.dot = t.kind == tokenPunct && s.text[t.start] == '.'
	return !s.bounds.exceeded()
}

// bodyDepth counts the BEGIN ATOMIC and CASE that wait for their END, in a function's SQL body.
type bodyDepth int

func (b *bodyDepth) word(w, last word) {
	switch {
	case w == wordAtomic && last == wordBegin:
		*b++
	case *b == 0 || last == wordAs:
	case w == wordCase:
		*b++
	case w == wordEnd:
		*b--
	}
}

// check refuses what must not reach C, in a text of any number of statements.
func check(text string) error {
	_, err := Split(nil, text)
	return err
}

// errToken tells what is wrong with a token that the lexer refuses.
func errToken(text string, t token) *pgerr.Error {
	near := text[min(t.start, len(text)):]
	what := "syntax error"
	switch {
	case near == "":
		return errSyntax("syntax error at end of input").WithPosition(position(text, len(text)))
	case strings.HasPrefix(near, "/*"):
		what = "unterminated /* comment"
	case near[0] == '\'' || strings.HasPrefix(near[1:], "'"):
		what = "unterminated quoted string"
	case strings.HasPrefix(near, `""`):
		what, near = "zero-length delimited identifier", `""`
	case near[0] == '"':
		what = "unterminated quoted identifier"
	case classes[near[0]]&classDigit != 0:
		what, near = "trailing junk after numeric literal", near[:min(t.end-t.start+1, len(near))]
	case near[0] == '$' && t.end-t.start > 1:
		what = "unterminated dollar-quoted string"
	default:
		near = near[:1]
	}
	return errSyntax(what + ` at or near "` + strings.ToValidUTF8(near, "?") + `"`).WithPosition(position(text, t.start))
}

// position gives the 1-based character position of a byte offset, as the error field P counts.
func position(text string, offset int) int32 {
	return int32(utf8.RuneCountInString(text[:offset])) + 1
}
