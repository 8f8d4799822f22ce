package pooler

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"neki/internal/pgerr"
)

// explainText gives the lines of an EXPLAIN.
func explainText(s *shards, sql string) string {
	s.t.Helper()
	conn := s.connect("")
	return explainLines(s, simple(s.t, conn, sql))
}

func explainLines(s *shards, rows [][]string) string {
	s.t.Helper()
	var b strings.Builder
	for _, row := range rows {
		b.WriteString(row[0] + "\n")
	}
	return b.String()
}

// TestExplainOfSeveralShards: what each shard did, and how its Postgres would.
func TestExplainOfSeveralShards(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	simple(t, conn, "INSERT INTO t (k, v, n) VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3), (5, 'd', 4)")
	for _, tc := range []struct {
		sql  string
		want []string
	}{
		{"EXPLAIN (NEKI_PLAN, ANALYZE, COSTS OFF) SELECT k FROM t", []string{
			"Route: Scatter", "sh1 (sh1-a): 2 rows\n", "sh2 (sh2-a): 2 rows\n", "Actual Rows: 4", "Remote Calls: 2",
		}},
		{"EXPLAIN (NEKI_PLAN, ANALYZE, COSTS OFF) SELECT v FROM t WHERE k = 2", []string{
			"Route: EqualUnique", "Shard: sh2", "Instance: sh2-a", "Actual Rows: 1",
		}},
		{"EXPLAIN (NEKI_PLAN, ANALYZE, COSTS OFF) SELECT count(*) FROM t", []string{
			"sh1 (sh1-a): 1 rows", "sh2 (sh2-a): 1 rows", "Actual Rows: 1\n",
		}},
		{"EXPLAIN (NEKI_PLAN, ANALYZE, COSTS OFF) SELECT k FROM t ORDER BY n DESC LIMIT 1", []string{"Actual Rows: 1\n"}},
		{"EXPLAIN (NEKI_PLAN, ANALYZE, COSTS OFF) SELECT a.k FROM t a JOIN t b ON a.n = b.k", []string{"Actual Rows: 3\n", "Remote Calls: 4"}},
		{"EXPLAIN (NEKI_PLAN, NEKI_PG_PLAN, COSTS OFF) SELECT k FROM t WHERE n = 3", []string{
			"sh1 (sh1-a):\n        Seq Scan on t\n          Filter: (n = 3)", "sh2 (sh2-a):\n        Seq Scan on t",
		}},
		{"EXPLAIN (NEKI_PLAN, NEKI_PG_PLAN, ANALYZE, COSTS OFF) SELECT k FROM t WHERE n = 3", []string{
			"Seq Scan on t (actual rows=1 loops=1)", "Seq Scan on t (actual rows=0 loops=1)", "Actual Rows: 1\n",
		}},
		{"EXPLAIN (NEKI_PLAN, NEKI_PG_PLAN, COSTS OFF) DELETE FROM t", []string{"Delete on t", "Combine: counts are added up"}},
		{"EXPLAIN (NEKI_PLAN, NEKI_PG_PLAN, COSTS OFF) INSERT INTO ref (id, at) VALUES (1, now())", []string{"Insert on ref", "every copy"}},
	} {
		got := explainLines(s, simple(t, conn, tc.sql))
		for _, want := range tc.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s has no %q:\n%s", tc.sql, want, got)
			}
		}
	}
	if got := one(t, conn, "SELECT count(*) FROM t"); got != "4" {
		t.Errorf("%s rows after explaining", got)
	}
	timed := explainText(s, "EXPLAIN (NEKI_PLAN, ANALYZE) SELECT k FROM t")
	for _, want := range []string{`sh1 \(sh1-a\): 2 rows, [0-9.]+ ms`, `Actual Time: [0-9.]+ ms`, `Waited: [0-9.]+ ms`} {
		if !regexp.MustCompile(want).MatchString(timed) {
			t.Errorf("no %s in\n%s", want, timed)
		}
	}
}

// TestExplainOfChanges: ANALYZE runs the change, once, in the transaction that it stands in.
func TestExplainOfChanges(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	analyze := func(sql string, wants ...string) {
		t.Helper()
		got := explainLines(s, simple(t, conn, "EXPLAIN (NEKI_PLAN, ANALYZE, COSTS OFF) "+sql))
		for _, want := range wants {
			if !strings.Contains(got, want) {
				t.Errorf("%s has no %q:\n%s", sql, want, got)
			}
		}
	}
	rows := func(want string) {
		t.Helper()
		if got := fmt.Sprint(s.onShard(1, "SELECT k, n FROM t ORDER BY k"), s.onShard(2, "SELECT k, n FROM t ORDER BY k")); got != want {
			t.Errorf("rows are %s, want %s", got, want)
		}
	}
	analyze("INSERT INTO t (k, n) VALUES (1, 1), (2, 2), (3, 3)", "sh1 (sh1-a): 0 rows, INSERT 0 2", "sh2 (sh2-a): 0 rows, INSERT 0 1")
	rows("[[1 1] [3 3]] [[2 2]]")
	analyze("UPDATE t SET n = n + 1 RETURNING k", "sh1 (sh1-a): 2 rows, UPDATE 2", "Actual Rows: 3\n")
	rows("[[1 2] [3 4]] [[2 3]]")
	got := explainText(s, "EXPLAIN (NEKI_PLAN, NEKI_PG_PLAN, ANALYZE, COSTS OFF) UPDATE t SET n = n + 1")
	if !strings.Contains(got, "Update on t") || !strings.Contains(got, "UPDATE 2") {
		t.Errorf("both:\n%s", got)
	}
	rows("[[1 3] [3 5]] [[2 4]]")
	analyze("INSERT INTO t (k, n) SELECT k + 3, n FROM t WHERE k < 3", "Legs Read:", "sh2 (sh2-a): 0 rows, INSERT 0 2", "Remote Calls: 3")
	rows("[[1 3] [3 5]] [[2 4] [4 3] [5 4]]")

	simple(t, conn, "BEGIN")
	analyze("UPDATE t SET n = 0 WHERE k = 2", "Shard: sh2")
	analyze("DELETE FROM t", "DELETE 2", "DELETE 3")
	simple(t, conn, "ROLLBACK")
	rows("[[1 3] [3 5]] [[2 4] [4 3] [5 4]]")
	if _, err := trySimple(conn, "EXPLAIN (NEKI_PLAN, ANALYZE) UPDATE t SET n = k * 600"); pgerr.Code(err) != "23514" {
		t.Errorf("a constraint: %v", err)
	}
	rows("[[1 3] [3 5]] [[2 4] [4 3] [5 4]]")
	simple(t, conn, "BEGIN")
	if _, err := trySimple(conn, "EXPLAIN (NEKI_PLAN, ANALYZE) SELECT 1 / (k - 4) FROM t"); pgerr.Code(err) != pgerr.DivisionByZero {
		t.Errorf("an error of one shard: %v", err)
	}
	if _, err := trySimple(conn, "SELECT 1"); pgerr.Code(err) != pgerr.InFailedSQLTransaction {
		t.Errorf("after it: %v", err)
	}
	simple(t, conn, "ROLLBACK")
}

// TestExplainFormats: the documents of several shards can be read by machines, by both protocols.
func TestExplainFormats(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	var text string
	if err := conn.QueryRow(t.Context(), "EXPLAIN (NEKI_PLAN, ANALYZE, NEKI_PG_PLAN, FORMAT JSON) SELECT k, v FROM t ORDER BY k").Scan(&text); err != nil {
		t.Fatal(err)
	}
	var doc []struct {
		RemoteCalls int `json:"Remote Calls"`
		Legs        []struct {
			Calls []struct {
				Shard, Node string
				Rows        *int     `json:"Actual Rows"`
				Time        *float64 `json:"Actual Time"`
			}
			Plans []struct {
				Shard string
				Plan  []string `json:"Postgres Plan"`
			} `json:"Postgres Plans"`
		}
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil || len(doc) != 1 || len(doc[0].Legs) != 1 {
		t.Fatalf("%v:\n%s", err, text)
	}
	leg := doc[0].Legs[0]
	if doc[0].RemoteCalls != 2 || len(leg.Calls) != 2 || len(leg.Plans) != 2 || leg.Calls[0].Rows == nil || leg.Calls[0].Time == nil ||
		len(leg.Plans[0].Plan) == 0 {
		t.Errorf("the document has not all:\n%s", text)
	}
	for format, want := range map[string]string{
		"YAML": "      Calls:\n        - Shard: \"sh1\"\n          Node: \"sh1-a\"\n          Actual Rows: 0\n",
		"XML":  "<Node>sh1-a</Node>",
	} {
		if got := explainText(s, "EXPLAIN (NEKI_PLAN, ANALYZE, COSTS OFF, FORMAT "+format+") SELECT k FROM t WHERE k < 2"); !strings.Contains(got, want) {
			t.Errorf("%s has no %s:\n%s", format, want, got)
		}
	}
}
