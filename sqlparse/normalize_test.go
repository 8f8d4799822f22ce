package sqlparse

import "testing"

func TestNormalize(t *testing.T) {
	for text, want := range map[string]string{
		`SELECT "A", b FROM T WHERE x = 'secret' AND y IN (1, 2.5)  ;`: `SELECT "A", b FROM T WHERE x = $1 AND y IN ($2, $3)`,
		"select /* who: me */ 1 -- done\n  , $2":                       "select $3 , $2",
		`CALL neki.set_parameter('gateway', $$x$$, E'\n')`:             "CALL neki.set_parameter($1, $2, $3)",
		`PREPARE p AS SELECT 'x'`:                                      "PREPARE p AS SELECT $1",
		`SELECT interval '1 day', B'1', X'f', N'n', U&'u'`:             "SELECT interval $1, $2, $3, $4, $5",
		`SELECT 'open`: "",
		``:             "",
	} {
		if got := Normalize(text); got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
}
