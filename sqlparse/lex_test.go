package sqlparse

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// scanSpans gives the tokens that Postgres's own scanner finds, without comments; false if it refuses the text. A
// character that no grammar rule knows counts as refused, although the scanner leaves that to the grammar.
func scanSpans(text string) ([]Span, bool) {
	result, err := pg_query.Scan(text)
	if err != nil {
		return nil, false
	}
	var spans []Span
	for _, t := range result.Tokens {
		if t.Token == pg_query.Token_SQL_COMMENT || t.Token == pg_query.Token_C_COMMENT {
			continue
		}
		span := Span{int(t.Start), int(t.End)}
		if word := span.Of(text); len(word) == 1 && word[0] < 0x80 && classes[word[0]] == 0 && !strings.Contains(",()[].;:", word) ||
			word == "$" {
			return nil, false
		}
		spans = append(spans, span)
	}
	return spans, true
}

// ownSpans gives the tokens of the own lexer; false if it refuses the text.
func ownSpans(text string) ([]Span, bool) {
	var spans []Span
	l := lexer{text: text}
	for {
		switch t := l.next(); t.kind {
		case tokenBad:
			return spans, false
		case tokenEnd:
			return spans, true
		default:
			spans = append(spans, Span{t.start, t.end})
		}
	}
}

// scannerIsOff matches what the scanner linked in reads otherwise than Postgres: it has no comments between the parts of
// a string, and gives wrong offsets for U&” and N”. (A vertical tab is white space since Postgres 17.)
var scannerIsOff = regexp.MustCompile(`(?i)'[ \t\f\r\n]*--|u&['"]|n'`)

// lexDiffers tells how the lexer reads a text otherwise than Postgres does; "" if it doesn't. A text that both refuse
// is the same, however far they came.
func lexDiffers(text string) string {
	if strings.ContainsAny(text, "\x00\v") || !utf8.ValidString(text) || scannerIsOff.MatchString(text) {
		return ""
	}
	want, wantOK := scanSpans(text)
	got, gotOK := ownSpans(text)
	if wantOK != gotOK {
		if gotOK && strings.Contains(text, `\`) {
			return "" // a wrong escape, which the lexer leaves to the parser
		}
		if gotOK {
			return "the lexer accepts what Postgres refuses"
		}
		return "the lexer refuses what Postgres accepts"
	}
	if !wantOK {
		return ""
	}
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return "token missing: " + want[i].Of(text)
		case i >= len(want):
			return "token too many: " + got[i].Of(text)
		case got[i] != want[i]:
			return "token " + got[i].Of(text) + ", want " + want[i].Of(text)
		}
	}
	return ""
}

var lexTexts = []string{
	"", " ", ";", "select 1", "a--b\nc", "a/*b/*c*/d*/e", "/* open", "/*/**/", "a-- b", "a+-1", "a +- -1", "a@-1", "a@-", "a*/*x*/b",
	"'a' 'b'", "'a'\n'b'", "'a' -- c\n 'b'", "'a'/* c */\n'b'", "'it''s'", "'open", `'a\'`, `E'a\'b'`, `e'\\'`, `E'\`, `E'a'` + "\n" + `'\'b'`,
	"U&'d\\0061'", "U&'x' UESCAPE '!'", `U&"a" b`, `u&"a"`, "N'abc'", "n 'a'", "B'101'", "b'1'\n'0'", "X'1F'", "x'1'",
	`"a"`, `"a""b"`, `""`, `"open`, "$$a$$", "$a$b$a$", "$a$b$$c$a$", "$a$open", "$1", "$1a", "$ 1", "$a", "$1$2",
	"a$b$c", "_a", "é", "a.b.c", "a . b", "a..b", "1..10", "1.5", "1.", ".5", "1e5", "1.e5", "1e", "1e+", "1e-5", "1_000", "1__0", "1_", "_1",
	"0x1F", "0x", "0xg", "0x_1", "0o17", "0o8", "0b11", "0b2", "1a", "1.5a", "1.5_0", "1_0.0_1e1_0", "123abc", "0x1.5", "1.5.5", "1.a",
	"a::b", "a:b", "a := b", "a=>b", "a>=b", "a<>b", "a!=b", "a||b", "a->>'b'", "a?b", "a?|b", "a @> b", "a~*b", "(a)[1:2]", "{", "}", "\\", "a\\b",
	"a\x01b", "a\vb", "a\fb", "a\r\nb", "--", "-", "/", "*/", "/*", "+--\n1", "@--\n1", "=/**/=", "<-", "<--", "!-", "-!-", "E 'a'", "e''", "b", "x", "b'1''0'", "x'1''0'", strings.Repeat("+", 63), strings.Repeat("!", 64), "0o78", "0b12", "0o7a",
	"U&", "u&a", "U&'", "'a'\r'b'", "'a'\f\n'b'", "'a'\n--c\n'b'", "'a'--c\n--d\n'b'", "'a'--'b'", "`a`", "#a", "%a", "^a|b&c", "$_$a$_$", "$é$a$é$", "$a b$",
	"1.5e", "1.5e+", "1e5a", ".5a", "1 .5", "a.5", "a.1e5", "0_1", "00_1", "0b_1", "0o_7", "0xAG", "9e9_9", "\ufeffselect",
}

func TestLexAgreesWithPostgres(t *testing.T) {
	for _, text := range lexTexts {
		if d := lexDiffers(text); d != "" {
			t.Errorf("%q: %s", text, d)
		}
	}
}

func FuzzLex(f *testing.F) {
	for _, text := range lexTexts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if d := lexDiffers(text); d != "" {
			t.Errorf("%q: %s", text, d)
		}
	})
}
