package pooler

import (
	"fmt"
	"strings"
	"testing"

	"neki/internal/pgerr"
)

// TestInsertSelectMovesRows: rows of a query are inserted on the shards that they belong to.
func TestInsertSelectMovesRows(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	setup := func() {
		t.Helper()
		s.both(conn, emptyTables+"; DELETE FROM home")
		s.both(conn, "INSERT INTO t (k, v, n) VALUES (1, 'a', 10), (2, 'b', 20), (3, NULL, 3), (4, 'it''s', 4)")
		s.both(conn, "INSERT INTO u (k, id, v) VALUES (1, 1, 'a'), (2, 2, 'b')")
		s.both(conn, "INSERT INTO home (id, v) VALUES (21, 'h'), (22, 'i')")
	}
	for _, sql := range []string{
		"INSERT INTO u (k, id, v) SELECT n, k, v FROM t",
		"INSERT INTO u SELECT k + 1, 7, v FROM t",
		"INSERT INTO t (k, v) SELECT g, 'new ' || g FROM generate_series(10, 2000) g",
		"INSERT INTO t (k, v) SELECT id, v FROM home",
		"INSERT INTO t (k, v, n) SELECT id, 'const', NULL FROM home ORDER BY id DESC LIMIT 1",
		"INSERT INTO t (k, n) SELECT id, '5' FROM home",
		"INSERT INTO home (id, v) SELECT k, v FROM t",
		"INSERT INTO home (id, v) SELECT count(*)::int, max(v) FROM t",
		"INSERT INTO ref (id, name, at) SELECT k, v, '2024-01-01'::timestamptz FROM t",
		"INSERT INTO w (name) SELECT 'w' || k FROM t",
		"INSERT INTO w (name, at) SELECT v::varchar, '2020-01-01'::date FROM t WHERE v IS NOT NULL",
		"INSERT INTO t (k, v) SELECT k + 2, v FROM t ON CONFLICT (k) DO NOTHING",
		"INSERT INTO t (k, v) SELECT k + 2, 'again' FROM t ON CONFLICT (k) DO UPDATE SET v = excluded.v || t.v",
		"INSERT INTO t (k, v) SELECT 7, v FROM t ON CONFLICT (k) DO UPDATE SET v = excluded.v",
		"INSERT INTO t (k, v) SELECT k + 10, v FROM t WHERE k = 2 RETURNING k, v",
		"INSERT INTO t (k, v) SELECT k + 10, v FROM t WHERE k > 100 RETURNING k, v",
		"INSERT INTO t (k, v) SELECT k + 10, v FROM t WHERE k > 100",
		"INSERT INTO t (k, v) SELECT k + 1, v FROM t",
		"INSERT INTO t (k, n) SELECT k + 10, n * 1000 FROM t",
		"INSERT INTO t (k, v) SELECT NULL, v FROM t WHERE k > 100",
		"INSERT INTO t (k, v) SELECT 1 / (k - k), v FROM t",
		"INSERT INTO t (k, v) SELECT k + 10, v, n, 1 FROM t",
		"INSERT INTO t (k, v) TABLE home",
		"INSERT INTO u (k, id) SELECT a.k, b.k FROM t a JOIN t b ON a.k <> b.k",
		"INSERT INTO t (k, v) WITH x AS (SELECT k FROM t) SELECT k + 30, 'x' FROM x",
		"BEGIN; INSERT INTO t (k, v) SELECT k + 10, v FROM t; INSERT INTO t (k, v) SELECT k + 20, v FROM t WHERE k > 10; COMMIT",
		"BEGIN; INSERT INTO t (k, v) SELECT k + 10, v FROM t; ROLLBACK",
	} {
		setup()
		s.both(conn, sql)
		for _, look := range []string{
			"SELECT k, v, n FROM t ORDER BY k", "SELECT k, id, v FROM u ORDER BY k, id", `SELECT name, at < '2021-01-01' FROM w ORDER BY name COLLATE "C"`,
			"SELECT id, name, at FROM ref ORDER BY id", "SELECT id, v FROM home ORDER BY id",
		} {
			s.both(conn, look)
		}
		for shard, other := range []string{"k IN (2) OR k > 3", "k IN (1, 3)"} {
			if got := s.onShard(shard+1, "SELECT count(*) FROM t WHERE "+other)[0][0]; got != "0" {
				t.Errorf("%s: shard %d has %s rows of the other", sql, shard+1, got)
			}
		}
	}
	setup()
	tag, err := conn.Exec(t.Context(), "INSERT INTO t (k, v) SELECT k + $1, $2 FROM t WHERE n < $3", 40, "param", 15)
	if err != nil || tag.String() != "INSERT 0 3" {
		t.Errorf("with parameters: %s, %v", tag, err)
	}
	simple(t, s.plain, "INSERT INTO t (k, v) SELECT k + 40, 'param' FROM t WHERE n < 15")
	s.both(conn, "SELECT k, v FROM t ORDER BY k")
	for sql, want := range map[string]string{
		"WITH x AS (SELECT k FROM t) INSERT INTO t (k) SELECT k + 10 FROM x": "[208]",
		"INSERT INTO t (k) SELECT (k + 10)::numeric FROM t":                  "[208]",
		"INSERT INTO t (v) SELECT v FROM t":                                  "[208]",
	} {
		if _, err := trySimple(conn, sql); pgerr.Code(err) != pgerr.NotImplemented || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// TestInsertSelectLeavesColumnsOut: each row gets the next value of the sequence, and all copies the same time.
func TestInsertSelectLeavesColumnsOut(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	for _, sql := range []string{
		"DROP TABLE u; CREATE TABLE u (k int, id bigserial, v text, PRIMARY KEY (k, id))",
		"DROP TABLE w; CREATE TABLE w (at timestamptz DEFAULT now(), n int GENERATED ALWAYS AS IDENTITY, name text PRIMARY KEY)",
		"DROP TABLE ref; CREATE TABLE ref (id serial PRIMARY KEY, name text, at timestamptz DEFAULT now(), r float8 DEFAULT random())",
		"DROP TABLE t; CREATE TABLE t (k serial PRIMARY KEY, v text)",
		"INSERT INTO t (v) VALUES ('a'), ('b'), ('c'), ('d')",
		"INSERT INTO u (k, v) SELECT k, v FROM t ORDER BY k DESC",
		"INSERT INTO u (k, v) SELECT k, v FROM t WHERE k = 2",
		"INSERT INTO t (v) SELECT v || 'x' FROM t ORDER BY k",
		"INSERT INTO t (v) SELECT v FROM t WHERE k > 100 RETURNING k",
		"INSERT INTO u (v, k) SELECT 'g' || g, g % 7 FROM generate_series(1, 3000) g",
		"INSERT INTO w (name) SELECT v FROM t ORDER BY k",
		"INSERT INTO w (name) SELECT 'again' RETURNING n, name",
		"INSERT INTO w (name) SELECT 'nothing' WHERE false",
		"INSERT INTO ref (name, r) SELECT v, 1 FROM t ORDER BY k",
	} {
		s.both(conn, sql)
	}
	for _, sql := range []string{
		"SELECT k, v FROM t ORDER BY k", "SELECT id, k, v FROM u ORDER BY id", "SELECT n, name, at > '2024-01-01' FROM w ORDER BY n",
		"SELECT id, name, r FROM ref ORDER BY id",
	} {
		s.both(conn, sql)
	}
	if a, b := s.onShard(1, "SELECT * FROM ref ORDER BY id"), s.onShard(2, "SELECT * FROM ref ORDER BY id"); fmt.Sprint(a) != fmt.Sprint(b) || len(a) == 0 {
		t.Errorf("copies differ:\n%s\n%s", a, b)
	}
	if got := one(t, conn, "SELECT currval('u_id_seq')"); got != "3005" {
		t.Errorf("currval gives %s", got)
	}
	s.both(conn, "INSERT INTO u (k) SELECT k, v FROM t")
	simple(t, conn, "BEGIN")
	simple(t, conn, "INSERT INTO u (k, v) SELECT k, 'in transaction' FROM t")
	simple(t, conn, "COMMIT")
	if got := one(t, conn, "SELECT count(DISTINCT id) = count(*) FROM u"); got != "t" {
		t.Error("an id was given twice")
	}
	for _, sql := range []string{
		"INSERT INTO ref (name) SELECT v FROM t",
		"INSERT INTO w (n, name) OVERRIDING USER VALUE VALUES (7, 'seven')",
	} {
		if _, err := trySimple(conn, sql); pgerr.Code(err) != pgerr.NotImplemented || !strings.Contains(err.Error(), "[210]") {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// TestInsertSelectOfAKeyElsewhere: the rows of one key go to a table that is on another shard.
func TestInsertSelectOfAKeyElsewhere(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	s.both(conn, "INSERT INTO t (k, n) VALUES (1, 11), (2, 22), (3, 33), (4, 44), (5, 55), (6, 66)")
	for _, sql := range []string{
		"INSERT INTO home (id) SELECT DISTINCT a.n FROM t a WHERE a.n IS NOT NULL AND a.k = 2 ON CONFLICT (id) DO NOTHING",
		"INSERT INTO home (id) SELECT DISTINCT a.n FROM t a WHERE a.n IS NOT NULL AND a.k = 1 ON CONFLICT (id) DO NOTHING",
		"INSERT INTO home (id) SELECT a.n FROM t a WHERE a.n IS NOT NULL AND a.k = 4",
		"INSERT INTO home (id) SELECT a.n FROM t a WHERE a.k IN (5, 5, 3) ON CONFLICT (id) DO NOTHING",
		"INSERT INTO home (id) SELECT DISTINCT a.n FROM t a WHERE a.k = 6 ON CONFLICT (id) DO NOTHING RETURNING id",
		"INSERT INTO home (id) SELECT a.n + 1 FROM t a WHERE a.k = 2 AND a.k = 2",
		"SELECT id FROM home ORDER BY id",
	} {
		s.both(conn, sql)
	}
}
