package pooler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
)

// TestPrepareOverShards: SQL's PREPARE and EXECUTE of statements whose rows lie by key, message by message as Postgres.
func TestPrepareOverShards(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	one := func(sql string) step { return step{q(sql), 1} }
	s.compareOverShards(t, copySetup, []sequence{
		{"by key", []step{
			one("PREPARE p AS SELECT k, v FROM t WHERE k = $1"), one("EXECUTE p(1)"), one("EXECUTE p('2')"), one("EXECUTE p(1 + 1)"), one("EXECUTE p(NULL)"),
			one("EXECUTE p"), one("EXECUTE p(1, 2)"), one("DEALLOCATE p"), one("EXECUTE p(1)"),
		}},
		{"over all", []step{
			one("PREPARE p(int) AS SELECT count(*), max(v) FROM t WHERE k > $1"), one("EXECUTE p(1)"), one("PREPARE q AS SELECT k FROM t ORDER BY k"), one("EXECUTE q"),
			one("PREPARE p AS SELECT k FROM t"), one("DEALLOCATE ALL"), one("EXECUTE q"),
		}},
		{"keys in an array", []step{one("PREPARE p AS SELECT k FROM t WHERE k = ANY ($1) ORDER BY k"), one("EXECUTE p('{1,3}')"), one("EXECUTE p('{1,2}')"), one("EXECUTE p(ARRAY[2,3])")}},
		{"changes", []step{
			one("PREPARE p(int, text) AS INSERT INTO t (k, v) VALUES ($1, $2)"), one("EXECUTE p(21, 'x')"), one("EXECUTE p(22, 'it''s')"), one("EXECUTE p(22, 'y')"),
			one("PREPARE u AS UPDATE t SET v = $1 WHERE k > $2"), one("EXECUTE u('z', 2)"), one("PREPARE d AS DELETE FROM t WHERE k = $1 RETURNING k, v"), one("EXECUTE d(22)"),
			one("SELECT k, v FROM t ORDER BY k"),
		}},
		{"in a transaction", []step{
			one("PREPARE p(int, text) AS INSERT INTO t (k, v) VALUES ($1, $2)"), one("BEGIN; EXECUTE p(21, 'x'); EXECUTE p(22, 'y'); ROLLBACK"), one("SELECT count(*) FROM t"),
			one("BEGIN"), one("EXECUTE p(1, 'twice')"), one("EXECUTE p(23, 'x')"), one("COMMIT"), one("SELECT count(*) FROM t"),
		}},
		{"in one string", []step{one("PREPARE p AS SELECT v FROM t WHERE k = $1; EXECUTE p(1); EXECUTE p(2)")}},
		{"errors", []step{one("PREPARE p AS SELECT nix FROM t WHERE k = $1"), one("PREPARE p(nix) AS SELECT k FROM t"), one("EXECUTE p(1)")}},
		{"prepared by the extended protocol", []step{
			{cat(parse("", "PREPARE p AS SELECT v FROM t WHERE k = $1"), bindTo("", ""), execute("", 0), syncMsg), 1}, one("EXECUTE p(2)"),
		}},
	})
	conn := s.connect("")
	simple(t, conn, "PREPARE p AS SELECT v FROM t WHERE k = $1")
	if _, err := trySimple(conn, "EXECUTE p('x')"); err == nil || !strings.Contains(err.Error(), "22P02") {
		t.Errorf("a bad value: %v", err)
	}
	for sql, number := range map[string]string{"EXPLAIN EXECUTE p(1)": "[124]", "CREATE TABLE made AS EXECUTE p(1)": "[119]"} {
		if _, err := trySimple(conn, sql); err == nil || !strings.Contains(err.Error(), number) {
			t.Errorf("%s: %v", sql, err)
		}
	}
	simple(t, conn, "SET __neki.shard = 'sh1'")
	if got, want := simple(t, conn, "PREPARE n AS SELECT count(*) FROM t; EXECUTE n"), simple(t, conn, "SELECT count(*) FROM t"); !cmp.Equal(got, want) {
		t.Errorf("on one shard: %s, not %s", got, want)
	}
	simple(t, conn, "RESET __neki.shard")
	if got, want := simple(t, conn, "EXECUTE n"), simple(t, conn, "SELECT count(*) FROM t"); !cmp.Equal(got, want) {
		t.Errorf("on all again: %s, not %s", got, want)
	}
}

// run asks for everything of a statement by the extended protocol.
func run(sql string) []byte {
	return cat(parse("", sql), describe('S', ""), bindTo("", ""), describe('P', ""), execute("", 0), syncMsg)
}

// TestExecuteOverShards: EXECUTE by the extended protocol, of statements whose rows lie by key.
func TestExecuteOverShards(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	one := func(sql string) step { return step{q(sql), 1} }
	ext := func(sql string) step { return step{run(sql), 1} }
	s.compareOverShards(t, copySetup, []sequence{
		{"by key", []step{
			one("PREPARE p AS SELECT k, v FROM t WHERE k = $1"), ext("EXECUTE p(1)"), ext("EXECUTE p('2')"), ext("EXECUTE p(1 + 1)"), ext("EXECUTE p(NULL)"),
			ext("EXECUTE p"), ext("EXECUTE p(1, 2)"), ext("DEALLOCATE p"), ext("EXECUTE p(1)"),
		}},
		{"over all", []step{
			ext("PREPARE p(int) AS SELECT count(*), max(v) FROM t WHERE k > $1"), ext("EXECUTE p(1)"), ext("PREPARE q AS SELECT k FROM t ORDER BY k"), ext("EXECUTE q"),
		}},
		{"in binary", []step{
			one("PREPARE p AS SELECT k, v FROM t WHERE k > $1 ORDER BY k"),
			{cat(parse("", "EXECUTE p(0)"), msgOf('B', "", "", 0, 0, 1, 1), describe('P', ""), execute("", 0), syncMsg), 1},
			{cat(parse("", "EXECUTE p(0)"), msgOf('B', "", "", 0, 0, 2, 1, 0), describe('P', ""), execute("", 0), syncMsg), 1},
		}},
		{"row limits", []step{
			one("PREPARE p AS SELECT k FROM t ORDER BY k"), one("BEGIN"),
			{cat(parse("", "EXECUTE p"), bindTo("c", ""), execute("c", 2), syncMsg), 1},
			{cat(execute("c", 2), syncMsg), 1},
			{cat(execute("c", 0), syncMsg), 1},
			one("COMMIT"),
		}},
		{"changes", []step{
			one("PREPARE p(int, text) AS INSERT INTO t (k, v) VALUES ($1, $2)"), ext("EXECUTE p(21, 'x')"), ext("EXECUTE p(22, 'it''s')"), ext("EXECUTE p(22, 'y')"),
			one("PREPARE u AS UPDATE t SET v = $1 WHERE k > $2"), ext("EXECUTE u('z', 2)"), one("PREPARE d AS DELETE FROM t WHERE k = $1 RETURNING k, v"), ext("EXECUTE d(22)"),
			{cat(parse("", "EXECUTE p(31, 'x')"), bindTo("c", ""), execute("c", 0), execute("c", 0), syncMsg), 1},
			one("SELECT k, v FROM t ORDER BY k"),
		}},
		{"in one segment", []step{
			one("PREPARE p(int, text) AS INSERT INTO t (k, v) VALUES ($1, $2)"),
			{cat(parse("a", "EXECUTE p(21, 'x')"), parse("b", "EXECUTE p(22, 'y')"), bindTo("", "a"), execute("", 0), bindTo("", "b"), execute("", 0), syncMsg), 1},
			{cat(parse("c", "EXECUTE p(23, 'x')"), bindTo("", "c"), execute("", 0), parse("", "SELECT 1/0"), bindTo("", ""), execute("", 0), syncMsg), 1},
			{cat(parse("", "INSERT INTO ref VALUES (77, 'x')"), bindTo("", ""), execute("", 0), parse("d", "EXECUTE p(1, 'twice')"), bindTo("", "d"), execute("", 0), syncMsg), 1},
			one("SELECT k, v FROM t ORDER BY k"), one("SELECT count(*) FROM ref WHERE id = 77"),
		}},
		{"in a block", []step{
			one("PREPARE p(int, text) AS INSERT INTO t (k, v) VALUES ($1, $2)"), one("BEGIN"), ext("EXECUTE p(21, 'x')"), ext("EXECUTE p(1, 'twice')"), ext("EXECUTE p(22, 'x')"),
			one("COMMIT"), one("SELECT count(*) FROM t"),
		}},
		{"of one that the protocol has prepared", []step{
			{cat(parse("p", "SELECT k, v FROM t WHERE k >= $1 ORDER BY k"), syncMsg), 1},
			one("EXECUTE p(2)"), ext("EXECUTE p(2)"), ext("EXECUTE p(1 + 1)"), ext("EXECUTE p(2::bigint - 1)"),
			{cat(closing('S', "p"), syncMsg), 1},
			ext("EXECUTE p(2)"),
		}},
		{"values where they have no place", []step{
			one("PREPARE p AS SELECT k, v FROM t WHERE k = $1"),
			{cat(parse("", "EXECUTE p(1)"), bindTo("", "", "1"), execute("", 0), syncMsg), 1},
			ext("EXECUTE p($1)"),
		}},
	})
}

// ownPrepared are conversations about prepared statements that the gateway answers: it alone knows the client's pid.
var ownPrepared = []sequence{
	{"simple", []step{
		{q("PREPARE p(int) AS SELECT $1 + 1 AS n, pg_backend_pid() > 0 AS up"), 1},
		{q("EXECUTE p(1)"), 1},
		{q("EXECUTE p('2')"), 1},
		{q("EXECUTE p(1 + 2)"), 1},
		{q("EXECUTE p(NULL)"), 1},
		{q("EXECUTE p"), 1},
		{q("EXECUTE p('x')"), 1},
		{q("PREPARE p AS SELECT 1"), 1},
		{q("SELECT 1; EXECUTE p(1); SELECT 2"), 1},
		{q("DEALLOCATE p; EXECUTE p(1)"), 1},
	}},
	{"extended", []step{
		{run("PREPARE p(int) AS SELECT $1 + 1 AS n, pg_backend_pid() > 0 AS up"), 1},
		{run("EXECUTE p(1)"), 1},
		{run("EXECUTE p(1 + 2)"), 1},
		{run("EXECUTE p"), 1},
		{cat(parse("", "EXECUTE p(3)"), msgOf('B', "", "", 0, 0, 1, 1), describe('P', ""), execute("", 0), syncMsg), 1},
		{run("EXECUTE p($1)"), 1},
		{cat(parse("", "insert into t values (10)"), bindTo("", ""), execute("", 0), parse("e", "EXECUTE p(1 + 1)"), bindTo("", "e"), execute("", 0),
			parse("", "select 1/0"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{q("select count(*) from t"), 1},
		{run("DEALLOCATE p"), 1},
		{run("EXECUTE p(1)"), 1},
	}},
	{"by the protocol", []step{
		{cat(parse("p", "SELECT $1::int + 1 AS n, pg_backend_pid() > 0 AS up"), syncMsg), 1},
		{q("EXECUTE p(1)"), 1},
		{run("EXECUTE p(2)"), 1},
		{cat(bindTo("", "p", "3"), execute("", 0), syncMsg), 1},
	}},
	{"in blocks", []step{
		{q("BEGIN; PREPARE p AS SELECT pg_backend_pid() > 0 AS up; EXECUTE p"), 1},
		{q("SELECT 1/0"), 1},
		{q("EXECUTE p"), 1},
		{run("EXECUTE p"), 1},
		{q("ROLLBACK"), 1},
		{q("EXECUTE p"), 1},
		{q("DISCARD ALL"), 1},
		{q("EXECUTE p"), 1},
	}},
	{"beside a copy", []step{
		{q("PREPARE p AS SELECT pg_backend_pid() > 0 AS up"), 1},
		{cat(besideCopy, syncMsg, data("20\n"), flushMsg, data("21\n"), copyDone, syncMsg), 1},
		{q("select count(*) from t"), 1},
		{cat(besideCopy, syncMsg, data("x\n"), data("22\n"), copyDone, syncMsg), 1},
		{q("select count(*) from t"), 1},
		{cat(besideCopy, flushMsg, data("23\n"), copyDone, parse("", "EXECUTE p"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{q("select count(*) from t"), 1},
		{cat(besideCopy, flushMsg, data("23\n"), copyDone, parse("", "EXECUTE p"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{q("select count(*) from t"), 1},
		{cat(besideCopy, flushMsg, data("24\n"), msgOf('f', "no more"), syncMsg), 1},
		{q("select count(*) from t"), 1},
		{cat(parse("", "copy t from stdin"), bindTo("", ""), execute("", 0), parse("", "EXECUTE p"), bindTo("", ""), execute("", 0), syncMsg), 1},
	}},
}

// besideCopy is an EXECUTE of what the gateway answers, and a COPY behind it.
var besideCopy = cat(parse("", "EXECUTE p"), bindTo("", ""), execute("", 0), parse("", "copy t from stdin"), bindTo("", ""), execute("", 0))

// TestPreparedOfTheGateway: PREPARE and EXECUTE of what the gateway answers, message by message as Postgres.
func TestPreparedOfTheGateway(t *testing.T) {
	for _, size := range poolSizes {
		t.Run(fmt.Sprintf("pool of %d", size), func(t *testing.T) {
			b := newBothWaysOf(t, startWithSchemaAnd(t, 0, poolOf(size)))
			for _, tc := range ownPrepared {
				t.Run(strings.ReplaceAll(tc.name, " ", "_"), func(t *testing.T) { b.compare(t, tc.steps) })
			}
			conn := b.g.connect("")
			simple(t, conn, "PREPARE p(text) AS SELECT name FROM neki.settings WHERE name = $1 ORDER BY 1")
			if got := one(t, conn, "EXECUTE p('__neki.' || 'target')"); got != "__neki.target" {
				t.Errorf("a relation of the schema: %q", got)
			}
			rows, _ := conn.Query(t.Context(), "EXECUTE p('__neki.shard')", pgx.QueryExecModeDescribeExec)
			if got, err := pgx.CollectOneRow(rows, pgx.RowTo[string]); err != nil || got != "__neki.shard" {
				t.Errorf("by the extended protocol: %q, %v", got, err)
			}
			if _, err := trySimple(conn, "PREPARE q AS SELECT nosuch FROM neki.settings"); pgerr.Code(err) != pgerr.UndefinedColumn || pgerr.From(err).Position != 21 {
				t.Errorf("an unknown column: %v at %d", err, pgerr.From(err).Position)
			}
			if _, err := conn.Prepare(t.Context(), "s", "SHOW __neki.target"); err != nil {
				t.Error(err)
			}
			if got := one(t, conn, "EXECUTE s"); got != "primary" {
				t.Errorf("SHOW: %q", got)
			}
			if _, err := conn.Prepare(t.Context(), "b", "BEGIN"); err != nil {
				t.Error(err)
			}
			for sql, number := range map[string]string{"EXECUTE b": "[114]", "EXPLAIN EXECUTE p('x')": "[113]", "CREATE TABLE made AS EXECUTE p('x')": "[113]"} {
				if _, err := trySimple(conn, sql); err == nil || !strings.Contains(err.Error(), number) {
					t.Errorf("%s: %v", sql, err)
				}
			}
		})
	}
}
