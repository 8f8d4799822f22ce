package sqlparse

import (
	"errors"
	"fmt"
	"strings"

	pg_query "github.com/pganalyze/pg_query_go/v5"
	"github.com/pganalyze/pg_query_go/v5/parser"

	"neki/internal/pgerr"
)

// Parse parses and classifies one statement. Text may end in semicolons and comments; more than one statement is an
// error: cut with Split first. Every error is a *pgerr.Error that is ErrUnparsable, with the position in characters of
// text where there is one.
func Parse(text string) (*Statement, error) {
	s := splitter{lexer: lexer{text: text}}
	spans, err := s.split(nil)
	if err != nil {
		return nil, err
	}
	if len(spans) == 0 {
		return &Statement{Kind: KindEmpty, Text: text}, nil
	}
	if len(spans) > 1 {
		return nil, errSyntax("cannot insert multiple commands into a prepared statement")
	}
	plain := text
	if s.comments {
		plain = blankComments(text)
	}
	tree, err := pg_query.Parse(plain)
	if err != nil {
		if quoted := quoteArguments(text); quoted != text {
			if stmt, err := Parse(quoted); err == nil {
				return stmt, nil
			}
		}
		return nil, errParser(err, text, plain)
	}
	// The lexer and the grammar must agree on where statements end, else part of the text would go unseen.
	if len(tree.Stmts) != 1 || tree.Stmts[0].Stmt == nil {
		return nil, errSyntax("the statement can't be told from its neighbours")
	}
	return classify(text, spans[0], tree)
}

// blankComments overwrites comments with blanks. The parser linked in takes them for tokens in two places where Postgres
// doesn't: between NOT and IN and other pairs that need a look ahead, and between the parts of a string.
func blankComments(text string) string {
	blank := []byte(text)
	l := lexer{text: text}
	for {
		from := l.pos
		t := l.next()
		if t.kind == tokenBad {
			return text
		}
		blankGap(blank, text, from, t.start)
		if t.kind == tokenEnd {
			return string(blank)
		}
		if t.kind.isString() && t.kind != tokenDollar {
			blankContinuations(blank, text, t)
		}
	}
}

// blankGap overwrites the comments between two tokens. A newline in a block comment goes too: it must not make the next
// string go on with the one before.
func blankGap(blank []byte, text string, from, to int) {
	l := lexer{text: text[:to], pos: from}
	for l.pos < to {
		start := l.pos
		switch c := text[start]; {
		case c == '-':
			l.skipLine()
		case c == '/':
			l.skipComment()
		case c == '\v':
			l.pos++
		default:
			l.pos++
			continue
		}
		for i := start; i < l.pos; i++ {
			blank[i] = ' '
		}
	}
}

// blankContinuations overwrites the comments between the parts of a string constant.
func blankContinuations(blank []byte, text string, t token) {
	l := lexer{text: text[:t.end], pos: t.start + strings.IndexByte(text[t.start:], '\'') + 1}
	for l.quotedPart(t.kind) {
		next, ok := l.continuation()
		if !ok {
			return
		}
		blankGap(blank, text, l.pos, next-1)
		l.pos = next
	}
}

// errParser makes the client's error of one of the parser's. It counted characters in plain; text has comments there.
func errParser(err error, text, plain string) *pgerr.Error {
	var pe *parser.Error
	if !errors.As(err, &pe) {
		return errSyntax(fmt.Sprintf("statement can't be represented: %v", err))
	}
	e := errSyntax(pe.Message)
	switch {
	case strings.Contains(pe.Message, "not supported"), strings.Contains(pe.Message, "not implemented"),
		strings.HasPrefix(pe.Message, "current database cannot be changed"):
		e.Code = pgerr.FeatureNotSupported
	case pe.Message == "memory exhausted" || strings.HasPrefix(pe.Message, "stack depth"):
		e.Code = pgerr.StatementTooComplex
	}
	if pe.Cursorpos > 0 {
		e.Position = position(text, runeOffset(plain, pe.Cursorpos-1))
	}
	return e
}

// runeOffset gives the byte offset of the nth character, counted from zero.
func runeOffset(s string, n int) int {
	for i := range s {
		if n == 0 {
			return i
		}
		n--
	}
	return len(s)
}

// Deparse writes a tree of one query or change of rows as text. Other statements are refused: the deparser kills the
// process on some of their options, and the gateway has no need to write them. The text is parsed again and compared,
// because the deparser gets some trees wrong ((a, b) = (SELECT ...) loses b): such a tree is refused with 0A000.
func Deparse(tree *ParseResult) (string, error) {
	if len(tree.GetStmts()) != 1 {
		return "", pgerr.New(pgerr.InternalError, "a single statement can be written as text, not %d", len(tree.GetStmts()))
	}
	switch unwrap(tree.Stmts[0].GetStmt()).(type) {
	case *SelectStmt, *InsertStmt, *UpdateStmt, *DeleteStmt, *MergeStmt:
	default:
		return "", pgerr.New(pgerr.InternalError, "only a query or a change of rows can be written as text")
	}
	text, err := pg_query.Deparse(tree)
	if err != nil {
		return "", pgerr.New(pgerr.FeatureNotSupported, "statement can't be written as text: %w", err)
	}
	if err := check(text); err != nil {
		return "", pgerr.New(pgerr.FeatureNotSupported, "statement can't be written as text: %w", err)
	}
	again, err := pg_query.Parse(text)
	if err != nil || !sameTree(tree, again) {
		return "", pgerr.New(pgerr.FeatureNotSupported, "statement can't be written as text without changing it").
			WithDetail("It would become: %s", text)
	}
	return text, nil
}

// DeparseNode is Deparse for a single statement.
func DeparseNode(stmt *Node) (string, error) {
	return Deparse(&ParseResult{Stmts: []*RawStmt{{Stmt: stmt}}})
}

// Fingerprint gives the parser's fingerprint of a text: equal for statements that differ in constants only.
func Fingerprint(text string) (uint64, error) {
	if err := check(text); err != nil {
		return 0, err
	}
	plain := blankComments(text)
	f, err := pg_query.FingerprintToUInt64(plain)
	if err != nil {
		return 0, errParser(err, text, plain)
	}
	return f, nil
}
