package pooler

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
)

// both runs SQL on the shards and on plain Postgres, and compares: rows as text, in order, the tag, and the SQLSTATE.
func (s *shards) both(conn *pgx.Conn, sql string) {
	s.t.Helper()
	want, got := outcome(s.plain, sql), outcome(conn, sql)
	if want != got {
		s.t.Errorf("%s\n shards: %s\n plain:  %s", sql, got, want)
	}
}

func outcome(conn *pgx.Conn, sql string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		return "error " + pgerr.Code(err) + " " + err.Error()
	}
	var b strings.Builder
	for _, r := range results {
		for _, f := range r.FieldDescriptions {
			fmt.Fprintf(&b, "%s:%d ", f.Name, f.DataTypeOID)
		}
		for _, row := range r.Rows {
			for _, v := range row {
				if v == nil {
					b.WriteString("NULL,")
				} else {
					b.WriteString(string(v) + ",")
				}
			}
			b.WriteString(" ")
		}
		b.WriteString(r.CommandTag.String() + ";")
	}
	return b.String()
}

func TestP8InsertIsSplit(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	s.both(conn, "INSERT INTO t (k, v) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'it''s')")
	tag, err := conn.Exec(t.Context(), "INSERT INTO t (k, v) VALUES ($1, $2), ($3, $4)", 5, "e", 3000000000000, "f")
	if err == nil {
		t.Errorf("a key out of range gives %s", tag)
	}
	tag, err = conn.Exec(t.Context(), "INSERT INTO t (k, v) VALUES ($1, $2), ($3, $4)", 5, "e", 6, "f")
	if err != nil || tag.String() != "INSERT 0 2" {
		t.Errorf("by parameters: %q, %v", tag, err)
	}
	simple(t, s.plain, "INSERT INTO t (k, v) VALUES (5, 'e'), (6, 'f')")
	s.both(conn, "INSERT INTO t (k, v) VALUES (7, 'g'), (2, 'twice')")
	s.both(conn, "INSERT INTO t (k, n) VALUES (9, 1), (8, 5000)")
	s.both(conn, "SELECT k, v, n FROM t ORDER BY k")
	if got := fmt.Sprint(s.onShard(1, "SELECT k FROM t ORDER BY k")); got != "[[1] [3]]" {
		t.Errorf("shard 1 has %s", got)
	}
}

func TestP10ReferenceCopiesAreEqual(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	simple(t, conn, "INSERT INTO ref (id, name, at) VALUES (1, 'a', now())")
	simple(t, conn, "INSERT INTO ref (id, name) VALUES (2, 'b'), (3, md5(random()::text))")
	if tag, err := conn.Exec(t.Context(), "UPDATE ref SET name = name || 'x', at = now()"); err != nil || tag.String() != "UPDATE 3" {
		t.Errorf("an update of copies: %q, %v", tag, err)
	}
	const all = "SELECT * FROM ref ORDER BY id"
	if a, b := fmt.Sprint(s.onShard(1, all)), fmt.Sprint(s.onShard(2, all)); a != b || len(s.onShard(1, all)) != 3 {
		t.Errorf("copies differ:\n%s\n%s", a, b)
	}
	if got := one(t, conn, "SELECT count(*) FROM ref"); got != "3" {
		t.Errorf("%s rows are read", got)
	}
}

func TestShardsQueries(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	fill := "INSERT INTO t (k, v, n) VALUES (1, 'a', 10), (2, 'b', 20), (3, 'a', NULL), (4, 'c', 40), (5, 'b', 50), (6, 'a', 7)"
	s.both(conn, fill)
	s.both(conn, "INSERT INTO u (k, id, v) VALUES (1, 1, 'a'), (2, 1, 'b'), (2, 2, 'x'), (3, 1, 'c'), (6, 1, 'a')")
	for _, sql := range []string{
		"SELECT k, v FROM t ORDER BY k DESC",
		"SELECT k, v FROM t ORDER BY k LIMIT 2 OFFSET 1",
		"SELECT count(*), sum(n), min(n), max(n), avg(n) FROM t",
		"SELECT count(1), n FROM t GROUP BY n ORDER BY n",                             // P3
		"SELECT k, k, count(*) FROM t GROUP BY k ORDER BY k",                          // P3
		"SELECT v COLLATE \"C\" AS v, count(*) FROM t GROUP BY 1 HAVING count(*) > 2", // P5
		"SELECT a.k, b.k FROM t a JOIN u b ON a.v = b.v ORDER BY a.k, b.k, b.id",      // P6
		"SELECT k FROM t WHERE n = (SELECT max(n) FROM t)",                            // P6
		"SELECT t.k, u.id FROM t JOIN u USING (k) ORDER BY 1, 2",
		"SELECT DISTINCT n > 15 FROM t ORDER BY 1",
		"SELECT k FROM t WHERE k = 1 AND k = 2",
		"SELECT n FROM t ORDER BY n NULLS FIRST, k",
		"SELECT k FROM t WHERE k IN (SELECT k FROM u) ORDER BY k",
		"UPDATE t SET n = n + 1 WHERE n > 15",
		"DELETE FROM u WHERE v = 'nothing'",
		"SELECT 1/(k - 4) FROM t",
		"SELECT nosuch FROM t",
	} {
		s.both(conn, sql)
	}
}

// TestP2MinMaxOfTimestamps: the extremes of one row on each shard, byte for byte as Postgres gives them.
func TestP2MinMaxOfTimestamps(t *testing.T) {
	s := startShards(t, 2, twoShards, gatewayOptions{})
	s.everywhere(shardSchema + "; ALTER TABLE t ADD COLUMN ts timestamp")
	s.learn()
	conn := s.connect("")
	for _, sql := range []string{
		"INSERT INTO t (k, ts) VALUES (1, '2024-01-01 00:00:00.09186'), (2, '2024-01-01 00:00:00.91916')",
		"SELECT max(ts), min(ts) FROM t",
	} {
		s.both(conn, sql)
	}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
		var most, least, wantMost, wantLeast time.Time
		if err := conn.QueryRow(t.Context(), "SELECT max(ts), min(ts) FROM t", mode).Scan(&most, &least); err != nil {
			t.Fatal(err)
		}
		if err := s.plain.QueryRow(t.Context(), "SELECT max(ts), min(ts) FROM t", mode).Scan(&wantMost, &wantLeast); err != nil {
			t.Fatal(err)
		}
		if !most.Equal(wantMost) || !least.Equal(wantLeast) {
			t.Errorf("%s: %v %v, want %v %v", mode, most, least, wantMost, wantLeast)
		}
	}
}
