package sqlparse

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The parser and the deparser are C: on a text they can't take they kill the process, which no recover catches. These
// tests therefore run in a child process, which writes the text at hand to a file before it tries it.

const childVariable = "SQLPARSE_CHILD"

// inChild runs the test again in a child process, and reports the text it died of. In the child it calls run.
func inChild(t *testing.T, run func(t *testing.T, try func(text string))) {
	t.Helper()
	if file := os.Getenv(childVariable); file != "" {
		run(t, func(text string) {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			tryText(t, text)
		})
		return
	}
	file := filepath.Join(t.TempDir(), "text")
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), childVariable+"="+file)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return
	}
	text, _ := os.ReadFile(file)
	t.Errorf("child: %v\n%s\ntext (%d bytes): %.500q", err, out, len(text), text)
}

// tryText does all that the package does with a text.
func tryText(t *testing.T, text string) {
	t.Helper()
	s, err := Parse(text)
	_, errShape := NewShaper(1).Shape(text)
	if _, errPrint := Fingerprint(text); err == nil && errPrint != nil {
		t.Errorf("%.200q parses, but has no fingerprint: %v", text, errPrint)
	}
	if err != nil {
		if !errors.Is(err, ErrUnparsable) {
			t.Errorf("%.200q: %v", text, err)
		}
		return
	}
	if errShape != nil {
		t.Errorf("%.200q parses, but has no shape: %v", text, errShape)
	}
	if !s.Kind.IsDML() {
		return
	}
	if _, err := Deparse(s.Tree); err != nil {
		t.Logf("%.200q: %v", text, err)
	}
}

// chains are the forms of text that nest a tree without a bound in the grammar: %s is repeated between the two ends.
var chains = []struct{ name, head, link, tail string }{
	{"plus", "select 1", "+1", ""},
	{"minus sign", "select ", "- ", "1"},
	{"operator", "select 1", "||'a'", ""},
	{"named operator", "select 1", " operator(pg_catalog.+) 1", ""},
	{"cast", "select 1", "::int", ""},
	{"subscript", "select a", "[1]", ""},
	{"field", "select (a)", ".b", ""},
	{"not", "select ", "not ", "true"},
	{"is null", "select 1", " is null", ""},
	{"isnull", "select 1", " isnull", ""},
	{"is distinct", "select 1", " is distinct from (2)", ""},
	{"between", "select a", " is null between 1 and 2", ""},
	{"collate", "select 'a'", ` collate "C"`, ""},
	{"at time zone", "select a", " at time zone 'x'", ""},
	{"in", "select a", " in (1)", ""},
	{"like any", "select a", " like any (b)", ""},
	{"ilike all", "select a", " ilike all (b)", ""},
	{"op any", "select a", " = any (b)", ""},
	{"word after a point", "select 1", "+a.or", ""},
	{"and after a point", "select 1", "+a.and", ""},
	{"join", "select 1 from a", " cross join b", ""},
	{"join with lists", "select 1 from a", " join b on c and d", ""},
	{"join using", "select 1 from a", " join b using (c, d)", ""},
	{"natural join", "select 1 from a", " natural join b", ""},
	{"right nested join", "select 1 from ", "a join ", "a"},
	{"union", "select 1", " union select 1", ""},
	{"union of lists", "select 1, 2", " union all select 1, 2", ""},
	{"union of ends", "select 1 as end", " union all select 1 as end", ""},
	{"except", "select 1", " except select 1 and 2", ""},
	{"intersect values", "values (1)", " intersect values (1)", ""},
	{"parentheses", "select ", "(", "1"},
	{"functions", "select ", "f(", "1"},
	{"arrays", "select ", "array[", "1"},
	{"array elements", "select array", "[", "1"},
	{"case", "select ", "case when a then ", "1"},
	{"case operand", "select ", "case ", "1"},
	{"case else", "select ", "case when a then b else ", "1"},
	{"case with ends", "select ", "case when a.end then 1 + ", "1"},
	{"subqueries", "select ", "(select ", "1"},
	{"subqueries in from", "select * from ", "(select * from ", "a"},
	{"exists", "select ", "exists (select ", "1"},
	{"with", "", "with a as (", "select 1"},
	{"joins in parentheses", "select * from ", "(a join ", "a"},
	{"rows", "select ", "row(", "1"},
	{"casts", "select ", "cast(", "1"},
	{"coalesce", "select ", "coalesce(a, ", "1"},
	{"grouping sets", "select 1 group by ", "rollup (", "a"},
	{"sql function", "create function f() begin atomic select 1", "+1", "; end"},
	{"view", "create view v as select 1", "+1", ""},
	{"default", "create table t (a int default 1", "+1", ")"},
	{"copy", "copy (select 1", "+1", ") to stdout"},
	{"prepare", "prepare p as select 1", "+1", ""},
	{"explain", "explain select 1", " union select 1", ""},
	{"values", "insert into t values (1", "+1", ")"},
	{"array type", "select 1::int", "[]", ""},
	{"quantified", "select a", " < all (select 1)", ""},
	{"overlaps", "select (1, 2)", " overlaps (1, 2)", ""},
	{"is json", "select a", " is json", ""},
	{"is of type", "select a", " is document", ""},
	{"semicolons", "select 1", ";select 1", ""},
	{"and", "select a", " and b", ""},
	{"or", "select a", " or b = 1", ""},
	{"list", "select a", ", b + 1", ""},
	{"in list", "select a in (1", ", 2", ")"},
	{"rows of values", "insert into t values (1, 2 + 3)", ", (1, -2)", ""},
	{"ctes", "with a as (select 1)", ", b as (select 1 union select 2)", " select 1"},
	{"when", "select case when a = 1 then 2", " when a = 1 then b + 2", " end"},
	{"tables", "select 1 from a", ", b join c on d", ""},
}

// flat are the chains that the grammar makes lists of: they may be long.
var flat = map[string]bool{
	"and": true, "or": true, "list": true, "in list": true, "rows of values": true, "ctes": true, "when": true, "tables": true,
}

func TestSurvivesChains(t *testing.T) {
	inChild(t, func(t *testing.T, try func(string)) {
		for _, c := range chains {
			for _, n := range []int{MaxDepth / 2, MaxDepth - 10, MaxDepth + 10, 60_000} {
				if flat[c.name] && n > 20_000 {
					n = 20_000
				}
				closing := ""
				if strings.HasSuffix(c.link, "[") {
					closing = strings.Repeat("]", n)
				} else if open := strings.Count(c.link, "(") - strings.Count(c.link, ")"); open > 0 {
					closing = strings.Repeat(")", n)
				}
				try(c.head + strings.Repeat(c.link, n) + c.tail + closing)
			}
		}
	})
}

// TestChainBound: what is deep is refused, what is a list is not.
func TestChainBound(t *testing.T) {
	for _, c := range chains {
		long := c.head + strings.Repeat(c.link, 4*MaxDepth) + c.tail
		_, err := Split(nil, long)
		switch c.name {
		case "field", "array type", "semicolons", "overlaps":
			continue // no depth, or refused by the grammar
		}
		if flat[c.name] && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if !flat[c.name] && err == nil {
			t.Errorf("%s: %d links are let through", c.name, 4*MaxDepth)
		}
	}
}

// TestSurvivesMutations throws damaged statements at the parser. SQLPARSE_ROUNDS makes it longer.
func TestSurvivesMutations(t *testing.T) {
	rounds := 3000
	if n, err := strconv.Atoi(os.Getenv("SQLPARSE_ROUNDS")); err == nil {
		rounds = n
	}
	inChild(t, func(t *testing.T, try func(string)) {
		texts := corpus(t)
		random := rand.New(rand.NewPCG(1, uint64(rounds)))
		for range rounds {
			try(mutate(random, texts))
		}
	})
}

// mutate mixes the tokens of two statements.
func mutate(random *rand.Rand, texts []string) string {
	a, b := spansOf(texts[random.IntN(len(texts))]), spansOf(texts[random.IntN(len(texts))])
	for range 1 + random.IntN(3) {
		if len(a) == 0 || len(b) == 0 {
			break
		}
		i, j := random.IntN(len(a)), random.IntN(len(b))
		switch random.IntN(4) {
		case 0:
			a[i] = b[j]
		case 1:
			a = append(a[:i:i], a[i+1:]...)
		case 2:
			a = append(a[:i:i], append([]string{b[j]}, a[i:]...)...)
		default:
			a = append(a[:i:i], append(b[:min(j, 8):j], a[i:]...)...)
		}
	}
	return strings.Join(a, " ")
}

func spansOf(text string) (words []string) {
	spans, _ := ownSpans(text)
	for _, s := range spans {
		words = append(words, s.Of(text))
	}
	return words
}

// TestDeparse: a tree written as text is the same tree again, and what the deparser is known to get wrong is refused.
func TestDeparse(t *testing.T) {
	const wrong = "(c, d) = (select"
	for _, text := range corpus(t) {
		s, err := Parse(text)
		if err != nil || !s.Kind.IsDML() {
			continue
		}
		if _, err := Deparse(s.Tree); (err != nil) != strings.Contains(text, wrong) {
			t.Errorf("%s: %v", text, err)
		}
	}
	s, err := Parse("copy t from stdin (format csv, delimiter 5)")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := Deparse(s.Tree); err == nil {
		t.Errorf("a utility statement was written: %s", text)
	}
	if text, err := DeparseNode(nil); err == nil {
		t.Errorf("nothing was written: %s", text)
	}
}
