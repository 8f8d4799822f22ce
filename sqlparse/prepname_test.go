package sqlparse

import "testing"

func TestPreparedName(t *testing.T) {
	for text, want := range map[string]string{
		"PREPARE p AS SELECT 1":                             "p",
		"prepare P(int) as select $1":                       "P",
		"prepare/**/p/*x*/as select 1":                      "p",
		"-- prepare x\n PREPARE -- y\n \"a b\" AS SELECT 1": `"a b"`,
		`PREPARE"p"AS SELECT 1`:                             `"p"`,
		`PREPARE "a""b" AS SELECT 1`:                        `"a""b"`,
		`PREPARE U&"d\0061t" AS SELECT 1`:                   `U&"d\0061t"`,
		`PREPARE U&"d!0061t" uescape '!' AS SELECT 1`:       `U&"d!0061t" uescape '!'`,
		`EXECUTE u&"d!0061t" /* c */ UESCAPE '!' (1)`:       `u&"d!0061t" /* c */ UESCAPE '!'`,
		`EXECUTE "uescape" (1)`:                             `"uescape"`,
		"execute p":                                         "p",
		"EXECUTE p(1, 'execute q');":                        "p",
		"EXECUTE execute":                                   "execute",
		"PREPARE prepare AS SELECT 1":                       "prepare",
		"DEALLOCATE p":                                      "p",
		"DEALLOCATE PREPARE p":                              "p",
		"DEALLOCATE PREPARE":                                "PREPARE",
		"DEALLOCATE PREPARE prepare":                        "prepare",
		`DEALLOCATE "prepare"`:                              `"prepare"`,
		"DEALLOCATE ALL":                                    "ALL", // told by Parse
		"EXPLAIN EXECUTE p(1)":                              "p",
		"EXPLAIN ANALYZE VERBOSE EXECUTE p":                 "p",
		"EXPLAIN (ANALYZE, COSTS off) EXECUTE p":            "p",
		"EXPLAIN CREATE TABLE t AS EXECUTE p":               "p",
		"EXPLAIN SELECT 1 AS execute":                       "",
		"CREATE TABLE t AS EXECUTE p(1)":                    "p",
		"CREATE TEMP TABLE t (a, b) WITH (fillfactor = 50) ON COMMIT DROP AS EXECUTE p WITH NO DATA": "p",
		"CREATE TABLE execute AS EXECUTE /**/ execute":                                               "execute",
		"CREATE TABLE t AS SELECT 1 AS execute":                                                      "",
		"CREATE TABLE t (a int)":                                                                     "",
		"CREATE VIEW v AS SELECT 1":                                                                  "",
		"SELECT 1":                                                                                   "",
		"":                                                                                           "",
		"PREPARE":                                                                                    "",
		"EXECUTE 'p'":                                                                                "",
		"PREPARE TRANSACTION 'x'":                                                                    "TRANSACTION", // told by Parse
	} {
		span, ok := PreparedName(text)
		if ok != (want != "") || span.Of(text) != want {
			t.Errorf("%s: %q, %v, want %q", text, span.Of(text), ok, want)
		}
	}
}

// TestPreparedNameAgreesWithParse: where the tree names a prepared statement, its name is found in the text.
func TestPreparedNameAgreesWithParse(t *testing.T) {
	for _, text := range corpus(t) {
		s, err := Parse(text)
		if err != nil || s.Prepared == nil || s.Prepared.All {
			continue
		}
		span, ok := PreparedName(text)
		if !ok {
			t.Errorf("%s: no name, Parse says %q", text, s.Prepared.Name)
			continue
		}
		again, err := Parse(text[:span.Start] + ` "re named" ` + text[span.End:])
		if err != nil || again.Prepared == nil || again.Prepared.Name != "re named" {
			t.Errorf("%s: renamed: %v", text, err)
		}
	}
}

func TestPrepareWithUnicodeEscape(t *testing.T) {
	s, err := Parse(`PREPARE U&"d!0061t" UESCAPE '!' (int) AS SELECT $1`)
	if err != nil {
		t.Fatal(err)
	}
	if s.Prepared.Name != "dat" || s.Prepared.Query.Text != "SELECT $1" || len(s.Prepared.Types) != 1 {
		t.Errorf("%+v", s.Prepared)
	}
}
