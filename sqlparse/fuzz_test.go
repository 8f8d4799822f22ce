package sqlparse

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// corpus gives the statements of the tests as seeds.
func corpus(tb testing.TB) []string {
	tb.Helper()
	texts := append([]string{
		"select 1; select 'a'; ; -- x\nselect 2", "select (1; 2)", "select 1); select 2", "begin; select 1; end;",
		"create rule r as on insert to t do also (insert into u values (1); delete from v); select 1",
		"create function f() returns int begin atomic select 1; select case when a then 1 end; end; select 2",
		"select x.end, y.case from t; select 1 as end; select 1 as case",
		"select - - 5, -(-(6)), - /* a */ 7, 2 - -8", "select 1 in (1), 2 in (1, 2, 3), 3 in (-1, 2)",
		"select a from t where b in (1, 2) and c in ('x', E'y', $$z$$)",
		"select a or b and c or not d between 1 and 2 + 3 is null",
	}, lexTexts...)
	for _, b := range benchTexts {
		texts = append(texts, b.sql)
	}
	paths, err := filepath.Glob("testdata/classify/*")
	if err != nil || len(paths) == 0 {
		tb.Fatal("no test data", err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		input, _, _ := strings.Cut(string(data), "\n----\n")
		for line := range strings.Lines(input) {
			texts = append(texts, strings.TrimSpace(line))
		}
	}
	return texts
}

// values has other constants for each kind of literal; one is taken by turns.
var values = [...][]string{
	LiteralInt4:    {"7", "0x1F", "2147483647", "1_0"},
	LiteralInt8:    {"3000000001", "9223372036854775807"},
	LiteralNumeric: {"2.75", "1e5", "99999999999999999999"},
	LiteralString:  {"'v'", "''", "'it''s'", "$z$v$z$", `E'v\n'`},
	LiteralEString: {`E'\\w'`, "'v'"},
	LiteralDollar:  {"$$v'$$", "'v'"},
	LiteralBString: {"B'11'", "b''"},
	LiteralXString: {"X'fF'", "x''"},
}

// variant writes a text of the same shape: other values for what was lifted, other blanks, other case.
func variant(text string, sh Shape) string {
	var b strings.Builder
	l := lexer{text: text}
	for n := 0; ; n++ {
		t := l.next()
		if t.kind == tokenEnd {
			return b.String()
		}
		word := text[t.start:t.end]
		if i := sh.Slot(text, t.start); i >= 0 && text[t.start] != '-' {
			choice := values[sh.Literals[i].Kind]
			word = choice[n%len(choice)]
		} else if t.kind == tokenIdent && n%2 == 0 && utf8.ValidString(word) {
			word = strings.Map(func(r rune) rune {
				if r >= 'a' && r <= 'z' {
					return r - 'a' + 'A'
				}
				return r
			}, word)
		}
		b.WriteString([...]string{" ", "/* x */", "  ", " /* a /* b */ */ "}[n%4])
		b.WriteString(word)
	}
}

// shapeLies tells how two texts of one shape differ in more than values; "" if they don't. Only texts that the parser
// understands are compared.
func shapeLies(s *Shaper, text string) string {
	sh, err := s.Shape(text)
	if err != nil {
		return ""
	}
	want := string(sh.Text)
	other := variant(text, sh)
	tree, errTree := parsePlain(text)
	if errTree == nil {
		clearLifted(tree, text, sh)
	}
	got, err := s.Shape(other)
	if err != nil {
		return "has a variant without shape: " + other + ": " + err.Error()
	}
	if string(got.Text) != want {
		return "shape " + want + ", variant " + other + " has " + string(got.Text)
	}
	otherTree, err := parsePlain(other)
	if (err == nil) != (errTree == nil) {
		return "parses, or doesn't, otherwise than its variant " + other
	}
	if err != nil {
		return ""
	}
	clearLifted(otherTree, other, got)
	if !proto.Equal(tree, otherTree) {
		return "has another tree than its variant " + other
	}
	return ""
}

// parsePlain gives the tree of a text of any number of statements, as Postgres reads it.
func parsePlain(text string) (*ParseResult, error) {
	if err := check(text); err != nil {
		return nil, err
	}
	return pg_query.Parse(blankComments(text))
}

// clearLifted removes the values of the constants that the shape doesn't hold, and all locations.
func clearLifted(tree *ParseResult, text string, sh Shape) {
	Walk(tree, func(node any) bool {
		if c, ok := node.(*A_Const); ok && sh.Slot(text, int(c.Location)) >= 0 {
			c.Val = nil
		}
		v := reflect.ValueOf(node).Elem()
		for _, name := range [...]string{"Location", "StmtLocation", "StmtLen"} {
			if f := v.FieldByName(name); f.IsValid() && f.CanInt() {
				f.SetInt(0)
			}
		}
		return true
	})
}

// splitLies tells how Split differs from the parser; "" if it doesn't, or if the parser doesn't understand the text.
func splitLies(text string) string {
	spans, err := Split(nil, text)
	if err != nil {
		return ""
	}
	for i, s := range spans {
		if s.Start < 0 || s.End > len(text) || s.Start >= s.End || i > 0 && s.Start < spans[i-1].End {
			return "spans overlap or lie outside"
		}
	}
	tree, err := parsePlain(text)
	if err != nil {
		return ""
	}
	if len(tree.Stmts) != len(spans) {
		return "the parser sees another number of statements"
	}
	for i, s := range tree.Stmts {
		end := int(s.StmtLocation + s.StmtLen)
		if s.StmtLen == 0 {
			end = len(text)
		}
		if spans[i].Start < int(s.StmtLocation) || spans[i].End > end {
			return "statement " + spans[i].Of(text) + " lies elsewhere for the parser"
		}
	}
	return ""
}

func TestCorpus(t *testing.T) {
	s := NewShaper(1)
	for _, text := range corpus(t) {
		if lie := shapeLies(s, text); lie != "" {
			t.Errorf("%s\n\t%s", text, lie)
		}
		if lie := splitLies(text); lie != "" {
			t.Errorf("%s\n\t%s", text, lie)
		}
	}
}

// FuzzShape: any bytes have a shape or an error, and Shape and Split agree on the statements.
func FuzzShape(f *testing.F) {
	for _, text := range corpus(f) {
		f.Add(text)
	}
	s := NewShaper(1)
	f.Fuzz(func(t *testing.T, text string) {
		sh, err := s.Shape(text)
		Sketch(text)
		spans, errSplit := Split(nil, text)
		if (err == nil) != (errSplit == nil) {
			t.Fatalf("Shape: %v, Split: %v", err, errSplit)
		}
		if err != nil {
			if !errors.Is(err, ErrUnparsable) || !errors.Is(errSplit, ErrUnparsable) {
				t.Fatalf("errors %v, %v", err, errSplit)
			}
			return
		}
		if sh.Statements != len(spans) {
			t.Fatalf("Shape counts %d statements, Split %d", sh.Statements, len(spans))
		}
		for i, l := range sh.Literals {
			if l.Start >= l.End || l.End > len(text) || i > 0 && l.Start < sh.Literals[i-1].End || l.Slot >= sh.Slots {
				t.Fatalf("literal %d: %+v of %d slots", i, l, sh.Slots)
			}
			l.AppendValue(nil, text)
		}
	})
}

// FuzzParse: texts of one shape differ in the lifted values only.
func FuzzParse(f *testing.F) {
	for _, text := range corpus(f) {
		f.Add(text)
	}
	s := NewShaper(1)
	f.Fuzz(func(t *testing.T, text string) {
		stmt, err := Parse(text)
		if err != nil {
			if !errors.Is(err, ErrUnparsable) {
				t.Fatalf("error %v is not ErrUnparsable", err)
			}
			return
		}
		stmt.ReadOnly(nil)
		if lie := shapeLies(s, text); lie != "" {
			t.Errorf("%s\n\t%s", text, lie)
		}
	})
}

// FuzzSplit: where the parser understands a text, Split cuts it as the parser does.
func FuzzSplit(f *testing.F) {
	for _, text := range corpus(f) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if lie := splitLies(text); lie != "" {
			t.Errorf("%s\n\t%s", text, lie)
		}
	})
}
