package sqlparse

import (
	"testing"

	"neki/internal/pgerr"
)

func TestBlankComments(t *testing.T) {
	for in, want := range map[string]string{
		"select 1 -- a\n, 2":             "select 1     \n, 2",
		"a/*b\nc*/d":                     "a       d",
		"'a' -- é\n 'b'":                 "'a'      \n 'b'",
		"'a' /* \n */ 'b'":               "'a'         'b'",
		"'--', \"/*\", $$--$$, 'a\n--b'": "'--', \"/*\", $$--$$, 'a\n--b'",
		"E'a\\'--b' --c":                 "E'a\\'--b'    ",
		"a\vb":                           "a b",
	} {
		if got := blankComments(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestParseSeesThroughComments: the parser linked in stumbles over comments that Postgres doesn't see.
func TestParseSeesThroughComments(t *testing.T) {
	for _, sql := range []string{
		"select a not /* x */ in (1)", "select 'a' -- x\n 'b'", "select a::timestamp with -- x\n time zone",
		"select a from t order by b nulls /* x */ first", "/* x */ select 1 /* y */ -- z", "select a not -- x\n like 'b'",
	} {
		s, err := Parse(sql)
		if err != nil {
			t.Errorf("%s: %v", sql, err)
			continue
		}
		if s.Kind != KindSelect || s.Text != sql {
			t.Errorf("%s: kind %v, text %q", sql, s.Kind, s.Text)
		}
	}
}

func TestErrorPosition(t *testing.T) {
	for sql, want := range map[string]int32{
		"select fro m x":                14,
		"select 'é' fro m x":            16,
		"select /* é */ 'é' fro m x":    24,
		"select 1 from":                 14,
		"select 'é":                     8,
		"select é 1a":                   10,
		"prepare p as selec 1":          14,
		"select 1 -- é\n from t whre a": 28,
	} {
		_, err := Parse(sql)
		if err == nil {
			t.Errorf("%s: no error", sql)
			continue
		}
		if got := pgerr.From(err).Position; got != want {
			t.Errorf("%s: position %d, want %d (%v)", sql, got, want, err)
		}
	}
}

// Arguments of the gateway's own procedures may be named by reserved words.
func TestReservedArguments(t *testing.T) {
	for sql, want := range map[string]string{
		"CALL neki.maintenance('sh1', on => false)":                                  `CALL neki.maintenance('sh1', "on" => false)`,
		"call /* x */ Neki.restore_cluster(target_time => now(), INTO => 'on => x')": `call /* x */ Neki.restore_cluster("target_time" => now(), "into" => 'on => x')`,
		"CALL neki.maintenance('sh1', \"on\" => false)":                              `CALL neki.maintenance('sh1', "on" => false)`,
	} {
		s, err := Parse(sql)
		if err != nil {
			t.Errorf("%s: %v", sql, err)
			continue
		}
		if s.Text != want {
			t.Errorf("%s: %s", sql, s.Text)
		}
	}
	for _, sql := range []string{"CALL other.p(on => 1)", "CALL neki.p(on = 1)", "SELECT neki.p(on => 1)", "CALL neki.p(on => )"} {
		if _, err := Parse(sql); err == nil {
			t.Errorf("%s: no error", sql)
		}
	}
}
