package pooler

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
)

// shardSchema is what the tests' topology places.
const shardSchema = `CREATE TABLE t (k int PRIMARY KEY, v text, n int CHECK (n < 1000));
CREATE TABLE u (k int, id int, v text, PRIMARY KEY (k, id));
CREATE TABLE w (name text PRIMARY KEY, at timestamptz DEFAULT now());
CREATE TABLE ref (id int PRIMARY KEY, name text, at timestamptz DEFAULT now());
CREATE TABLE home (id int PRIMARY KEY, v text)`

// startTwoShards gives two shards with shardSchema, of which all is known to the gateway.
func startTwoShards(t testing.TB, o gatewayOptions) *shards {
	t.Helper()
	s := startShards(t, 2, twoShards, o)
	s.everywhere(shardSchema)
	s.learn()
	return s
}

// learn makes the gateway read what it must know of the test's database.
func (s *shards) learn() {
	s.t.Helper()
	s.learnOf("public", "home")
}

// learnOf waits until the gateway knows a table.
func (s *shards) learnOf(schema, name string) {
	s.t.Helper()
	db := s.server.dbs.get(s.dbname)
	eventually(s.t, "functions known", func() bool { return db.functions.Loaded() })
	eventually(s.t, "relations known", func() bool {
		_ = db.relations.Refresh()
		table, err := db.relations.Table()
		return err == nil && table.Rel(schema, name, nil) != nil
	})
}

func TestShardsByKey(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	for k := 1; k <= 4; k++ {
		simple(t, conn, fmt.Sprintf("INSERT INTO t (k, v) VALUES (%d, 'v%d')", k, k))
		if _, err := conn.Exec(t.Context(), "INSERT INTO u (k, id, v) VALUES ($1, $2, $3)", k, 10*k, "x"); err != nil {
			t.Fatal(err)
		}
	}
	for shard, want := range map[int]string{1: "[[1] [3]]", 2: "[[2] [4]]"} {
		for _, table := range []string{"t", "u"} {
			if got := fmt.Sprint(s.onShard(shard, "SELECT k FROM "+table+" ORDER BY k")); got != want {
				t.Errorf("%s on shard %d: %s, want %s", table, shard, got, want)
			}
		}
	}
	for k := 1; k <= 4; k++ {
		if got := one(t, conn, fmt.Sprintf("SELECT v FROM t WHERE k = %d", k)); got != fmt.Sprintf("v%d", k) {
			t.Errorf("k %d: %q", k, got)
		}
		var v string
		if err := conn.QueryRow(t.Context(), "SELECT v FROM t WHERE k = $1", k).Scan(&v); err != nil || v != fmt.Sprintf("v%d", k) {
			t.Errorf("k $1 = %d: %q, %v", k, v, err)
		}
	}
}

// sorted gives rows as text in an order of its own.
func sorted(rows [][]string) string {
	lines := make([]string, len(rows))
	for i, row := range rows {
		lines[i] = strings.Join(row, ",")
	}
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

func TestShardsScatter(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	for k := 1; k <= 4; k++ {
		simple(t, conn, fmt.Sprintf("INSERT INTO t (k, v) VALUES (%d, 'v%d')", k, k))
	}
	if got := sorted(simple(t, conn, "SELECT k, v FROM t")); got != "1,v1 2,v2 3,v3 4,v4" {
		t.Errorf("all: %s", got)
	}
	if got := sorted(simple(t, conn, "SELECT k FROM t WHERE k IN (1, 2, 3)")); got != "1 2 3" {
		t.Errorf("by keys: %s", got)
	}
	rows, err := conn.Query(t.Context(), "SELECT k FROM t WHERE v <> $1", "v3")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[int])
	slices.Sort(got)
	if err != nil || fmt.Sprint(got) != "[1 2 4]" {
		t.Errorf("by a parameter: %v, %v", got, err)
	}
	if _, err := trySimple(conn, "SELECT 1/(k - 2) FROM t"); pgerr.Code(err) != pgerr.DivisionByZero {
		t.Errorf("an error of one shard: %v", err)
	}
	tag, err := conn.Exec(t.Context(), "UPDATE t SET v = 'new'")
	if err != nil || tag.String() != "UPDATE 4" {
		t.Errorf("an update of all gives %q, %v", tag, err)
	}
	if got := sorted(simple(t, conn, "DELETE FROM t WHERE k > 2 RETURNING k, v")); got != "3,new 4,new" {
		t.Errorf("a delete gives %s", got)
	}
	if _, err := trySimple(conn, "UPDATE t SET n = k * 600"); pgerr.Code(err) != "23514" {
		t.Errorf("a constraint on one shard: %v", err)
	}
	if got := sorted(simple(t, conn, "SELECT k, n IS NULL FROM t")); got != "1,t 2,t" {
		t.Errorf("after a failure on one shard: %s", got)
	}
	simple(t, conn, "BEGIN")
	simple(t, conn, "INSERT INTO t (k, v) VALUES (6, 'six')")
	if got := sorted(simple(t, conn, "SELECT k FROM t")); got != "1 2 6" {
		t.Errorf("in the transaction: %s", got)
	}
	simple(t, conn, "ROLLBACK")
	if got := sorted(simple(t, conn, "SELECT k FROM t")); got != "1 2" {
		t.Errorf("after ROLLBACK: %s", got)
	}
}

func TestShardsTransaction(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	count := func() string {
		return s.onShard(1, "SELECT count(*) FROM t")[0][0] + " " + s.onShard(2, "SELECT count(*) FROM t")[0][0]
	}
	run := func(want string, statements ...string) {
		t.Helper()
		for _, sql := range statements {
			_, _ = trySimple(conn, sql)
		}
		if got := string(conn.PgConn().TxStatus()); got != "I" {
			t.Fatalf("after %q the session is %s", statements, got)
		}
		if got := count(); got != want {
			t.Errorf("after %q: %s rows, want %s", statements, got, want)
		}
	}
	run("1 1", "BEGIN", "INSERT INTO t (k) VALUES (1)", "INSERT INTO t (k) VALUES (2)", "COMMIT")
	run("1 1", "BEGIN", "INSERT INTO t (k) VALUES (3)", "INSERT INTO t (k) VALUES (4)", "ROLLBACK")
	run("1 1", "BEGIN", "INSERT INTO t (k) VALUES (3)", "INSERT INTO t (k) VALUES (2)", "COMMIT") // P11
	run("1 2", "BEGIN", "INSERT INTO t (k) VALUES (4)", "SAVEPOINT a", "INSERT INTO t (k) VALUES (3)", "ROLLBACK TO a", "COMMIT")
	run("1 3", "BEGIN", "SAVEPOINT a", "INSERT INTO t (k) VALUES (3)", "INSERT INTO t (k) VALUES (2)", "ROLLBACK TO a",
		"INSERT INTO t (k) VALUES (6)", "RELEASE a", "COMMIT")
	run("2 3", "BEGIN; INSERT INTO t (k) VALUES (3); COMMIT")
	run("2 3", "INSERT INTO t (k) VALUES (5); INSERT INTO t (k) VALUES (6)")
	run("2 5", "INSERT INTO t (k) VALUES (5); INSERT INTO t (k) VALUES (8)")
}

// TestP11FailureEndsAllShards: any shard's error fails the whole transaction, whose COMMIT then rolls back.
func TestP11FailureEndsAllShards(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	simple(t, conn, "BEGIN")
	simple(t, conn, "INSERT INTO t (k) VALUES (1)")
	if _, err := trySimple(conn, "INSERT INTO t (k, n) VALUES (2, 5000)"); pgerr.Code(err) != "23514" {
		t.Fatalf("the constraint: %v", err)
	}
	if _, err := trySimple(conn, "SELECT * FROM t WHERE k = 1"); pgerr.Code(err) != pgerr.InFailedSQLTransaction {
		t.Errorf("on the other shard: %v", err)
	}
	tag, err := conn.Exec(t.Context(), "COMMIT")
	if err != nil || tag.String() != "ROLLBACK" {
		t.Errorf("COMMIT gives %q, %v", tag, err)
	}
	if got := s.onShard(1, "SELECT count(*) FROM t")[0][0]; got != "0" {
		t.Errorf("%s rows are left", got)
	}
}

// TestShardsDDL: a definition is on every shard, or on none.
func TestShardsDDL(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	exists := func(sql string) string {
		return s.onShard(1, "SELECT "+sql)[0][0] + s.onShard(2, "SELECT "+sql)[0][0]
	}
	simple(t, conn, "CREATE TYPE mood AS ENUM ('ok', 'sad')")
	simple(t, conn, "ALTER TABLE t ADD COLUMN m mood")
	if got := exists("to_regtype('mood') IS NOT NULL"); got != "tt" {
		t.Errorf("the type: %s", got)
	}
	simple(t, conn, "INSERT INTO t (k, m) VALUES (1, 'ok')")
	simple(t, conn, "INSERT INTO t (k, m) VALUES (2, 'sad')")
	if got := sorted(simple(t, conn, "SELECT k, m FROM t")); got != "1,ok 2,sad" {
		t.Errorf("at once after the DDL: %s", got)
	}
	if _, err := conn.Exec(t.Context(), "CREATE TABLE v (k int)", pgx.QueryExecModeExec); err != nil {
		t.Errorf("by the extended protocol: %v", err)
	}
	if got := exists("to_regclass('v') IS NOT NULL"); got != "tt" {
		t.Errorf("the table: %s", got)
	}
	simple(t, conn, "BEGIN")
	simple(t, conn, "DROP TABLE v")
	simple(t, conn, "CREATE INDEX ON t (v)")
	simple(t, conn, "ROLLBACK")
	if got := exists("to_regclass('v') IS NOT NULL"); got != "tt" {
		t.Errorf("after ROLLBACK: %s", got)
	}
	s.onShard(2, "CREATE TABLE half (a int)")
	if _, err := trySimple(conn, "CREATE TABLE half (a int)"); pgerr.Code(err) != "42P07" {
		t.Errorf("what one shard has already: %v", err)
	}
	if got := exists("to_regclass('half') IS NOT NULL"); got != "ft" {
		t.Errorf("after one shard refused: %s", got)
	}
	simple(t, conn, "CREATE INDEX CONCURRENTLY t_v ON t (v)")
	if got := exists("to_regclass('t_v') IS NOT NULL"); got != "tt" {
		t.Errorf("the index made concurrently: %s", got)
	}
	role := s.dbname + "_role"
	simple(t, conn, "CREATE ROLE "+role+" LOGIN PASSWORD 'it''s secret'")
	t.Cleanup(func() { simple(t, s.connect(""), "DROP ROLE "+role) })
	verifier := func(shard int) string {
		return s.onShard(shard, "SELECT rolpassword FROM pg_authid WHERE rolname = '"+role+"'")[0][0]
	}
	if a, b := verifier(1), verifier(2); a != b || !strings.HasPrefix(a, "SCRAM-SHA-256$") {
		t.Errorf("verifiers differ: %s, %s", a, b)
	}
	simple(t, conn, "GRANT ALL ON t TO "+role)
	cfg := s.config("")
	cfg.User, cfg.Password = role, "it's secret"
	other := s.connectAs(cfg)
	if got := sorted(simple(t, other, "SELECT k FROM t")); got != "1 2" {
		t.Errorf("as the new role: %s", got)
	}
	simple(t, conn, "REVOKE ALL ON t FROM "+role)
	if _, err := trySimple(other, "SELECT k FROM t WHERE k = 2"); pgerr.Code(err) != pgerr.InsufficientPrivilege {
		t.Errorf("after REVOKE: %v", err)
	}
}
