package plan

import (
	"math/rand/v2"
	"testing"

	"neki/sqlparse"
)

var memoTexts = []string{
	"SELECT abalance FROM pgbench_accounts WHERE aid = 12345;",
	"SELECT abalance FROM pgbench_accounts WHERE aid = $1",
	"UPDATE t SET a = a + -5, b = 'x' WHERE k IN (1, 2, 3)",
	"INSERT INTO t (a, b) VALUES (1, 'one'), (22, '')",
	"SELECT 1, 'a' 'b', E'c', 2.5, 10000000000 FROM t",
	"SELECT 'a'\n'b', 7",
	"SELECT * FROM t WHERE s LIKE 'x%' AND d > date '2020-01-01' LIMIT 10",
	"SELECT $1::int, t1.x1 FROM t1 WHERE x=1",
	"SELECT 1 /* 2 */ + 3 -- 4",
	"SELECT a FROM t WHERE b = 1 ORDER BY 1",
	"SET work_mem = '10MB'",
	"",
}

// TestTemplateAgreesWithShape changes texts at their literals and at random: one that a template takes for the same
// statement must have the same shape.
func TestTemplateAgreesWithShape(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	shaper := sqlparse.NewShaper(7)
	pieces := []string{
		"0", "7", "00", "123456789", "1234567890", "1.5", "1e5", "0x1", "1_0", "x", "'", "''", "'a'", "'a''b'", "'a\\'", "E'a'",
		" ", "\n", "\n'b'", "-", ";", "--", "/*", "*/", "$1", "\"q\"", ",", "NULL", "('a')", "\x00", "é",
	}
	matched := 0
	for _, text := range memoTexts {
		shape, err := shaper.Shape(text)
		if err != nil {
			t.Fatal(err)
		}
		tmpl := newTemplate(text, shape.Literals, false)
		if tmpl == nil {
			continue
		}
		if !tmpl.matches([]byte(text)) {
			t.Errorf("%q does not match itself", text)
		}
		hash := shape.Hash
		literals := append([]sqlparse.Literal(nil), shape.Literals...)
		for range 20000 {
			other := mutate(rng, text, literals, pieces)
			if !tmpl.matches([]byte(other)) {
				continue
			}
			matched++
			if got, err := shaper.Shape(other); err != nil || got.Hash != hash {
				t.Fatalf("%q is taken for %q: %v", other, text, err)
			}
		}
	}
	if matched < 10000 {
		t.Errorf("only %d texts matched: the test proves little", matched)
	}
}

// mutate replaces literals, or inserts a piece somewhere.
func mutate(rng *rand.Rand, text string, literals []sqlparse.Literal, pieces []string) string {
	pick := func() string { return pieces[rng.IntN(len(pieces))] }
	if len(literals) > 0 && rng.IntN(4) > 0 {
		out := text
		for i := len(literals) - 1; i >= 0; i-- {
			if rng.IntN(2) == 0 {
				out = out[:literals[i].Start] + pick() + out[literals[i].End:]
			}
		}
		return out
	}
	at := 0
	if len(text) > 0 {
		at = rng.IntN(len(text))
	}
	return text[:at] + pick() + text[at:]
}

func TestMemo(t *testing.T) {
	pl := newPlanner(t, Options{})
	env := NewEnv("db", "alice", DefaultSearchPath, nil)
	snap := twoShards()
	var m Memo
	plan := func(text string) *Plan {
		t.Helper()
		if p := pl.Recall(&m, []byte(text), snap, env); p != nil {
			return p
		}
		p, err := pl.Plan([]byte(text), snap, env)
		if err != nil {
			t.Fatal(err)
		}
		m.Keep(p, env)
		return p
	}
	first := plan("SELECT a FROM t WHERE k = 1")
	if got := pl.Recall(&m, []byte("SELECT a FROM t WHERE k = 22"), snap, env); got != first {
		t.Errorf("not recalled: %v", got)
	}
	if pl.Recall(&m, []byte("SELECT a FROM t WHERE k = 'x'"), snap, env) != nil {
		t.Error("another kind of literal is recalled")
	}
	if pl.Recall(&m, []byte("SELECT a FROM t WHERE k = 1"), snap, NewEnv("db", "alice", "other", nil)) != nil {
		t.Error("recalled under another search_path")
	}
	if n := testing.AllocsPerRun(100, func() { pl.Recall(&m, []byte("SELECT a FROM t WHERE k = 22"), snap, env) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	pl.Flush()
	if pl.Recall(&m, []byte("SELECT a FROM t WHERE k = 1"), snap, env) != nil {
		t.Error("recalled after Flush")
	}
}
