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

// TestInsertWhoseKeyIsASerial: where a row goes is known only once the sequence has given its key.
func TestInsertWhoseKeyIsASerial(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	s.both(conn, "DROP TABLE t")
	s.both(conn, "CREATE TABLE t (k serial PRIMARY KEY, v text)")
	s.both(conn, "INSERT INTO t (v) VALUES ('a'), ('b'), ('c')")
	s.both(conn, "INSERT INTO t (v) VALUES ('d')")
	s.both(conn, "SELECT k, v FROM t ORDER BY k")
	if got := fmt.Sprint(s.onShard(1, "SELECT k FROM t ORDER BY k")); got != "[[1] [3]]" {
		t.Errorf("shard 1 has %s", got)
	}
}

// TestInsertWhoseKeyIsComputed: a default, or a function's value, is computed first, and then says where the row goes.
func TestInsertWhoseKeyIsComputed(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	simple(t, conn, "DROP TABLE w; CREATE TABLE w (name uuid DEFAULT gen_random_uuid() PRIMARY KEY, n int)")
	for i := range 8 {
		simple(t, conn, fmt.Sprintf("INSERT INTO w (n) VALUES (%d), (%d)", 10*i, 10*i+1))
		simple(t, conn, fmt.Sprintf("INSERT INTO w VALUES (DEFAULT, %d), (gen_random_uuid(), %d)", 10*i+2, 10*i+3))
		var name string
		if err := conn.QueryRow(t.Context(), "INSERT INTO w (n) VALUES ($1) RETURNING name::text", 10*i+4).Scan(&name); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "INSERT INTO w VALUES (gen_random_uuid(), $1)", 10*i+5); err != nil {
			t.Fatal(err)
		}
	}
	rows := simple(t, conn, "SELECT name, n FROM w")
	for _, row := range rows {
		if got := fmt.Sprint(simple(t, conn, "SELECT n FROM w WHERE name = '"+row[0]+"'")); got != "[["+row[1]+"]]" {
			t.Errorf("by its key %s gives %s, want %s", row[0], got, row[1])
		}
	}
	if len(rows) != 48 {
		t.Errorf("%d rows", len(rows))
	}
	s.both(conn, "INSERT INTO t (k, v) VALUES (abs(-5), 'a'), (2 + 2, 'b')")
	s.both(conn, "SELECT k, v FROM t ORDER BY k")
	if got := fmt.Sprint(s.onShard(2, "SELECT k FROM t WHERE k IN (4, 5) ORDER BY k")); got != "[[4] [5]]" {
		t.Errorf("shard 2 has %s", got)
	}
	// With parameters whose types the client does not tell, and of which what is computed names none, or one.
	for i, sql := range []string{
		"INSERT INTO ref (id, name, at) VALUES ($1, $2, now())", "INSERT INTO ref (id, name) VALUES ($1, $2 || random())",
	} {
		r := conn.PgConn().ExecParams(t.Context(), sql, [][]byte{[]byte(fmt.Sprint(i)), []byte("x")}, nil, nil, nil).Read()
		if r.Err != nil {
			t.Errorf("%s: %v", sql, r.Err)
		}
	}
	const all = "SELECT * FROM ref ORDER BY id"
	if a, b := fmt.Sprint(s.onShard(1, all)), fmt.Sprint(s.onShard(2, all)); a != b || len(s.onShard(1, all)) != 2 {
		t.Errorf("copies differ:\n%s\n%s", a, b)
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

// TestShardsGuard: what one shard alone would answer wrongly is refused.
func TestShardsGuard(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	simple(t, conn, "INSERT INTO t (k, v) VALUES (1, 'a'), (2, 'b')")
	for sql, code := range map[string]string{
		"EXPLAIN SELECT * FROM t":           pgerr.ExplainNeedsGateway,
		"CREATE TABLE x AS SELECT * FROM t": pgerr.NotImplemented,
		"LOCK TABLE t":                      "25P01",
	} {
		if _, err := trySimple(conn, sql); pgerr.Code(err) != code {
			t.Errorf("%s: %v, want %s", sql, err, code)
		}
		_, _ = trySimple(conn, "ROLLBACK")
	}
	simple(t, conn, "VACUUM t")
	simple(t, conn, "ANALYZE t")
	simple(t, conn, "BEGIN")
	simple(t, conn, "LOCK TABLE t IN EXCLUSIVE MODE")
	for shard := 1; shard <= 2; shard++ {
		if got := s.onShard(shard, "SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND mode = 'ExclusiveLock'")[0][0]; got != "1" {
			t.Errorf("shard %d has %s locks", shard, got)
		}
	}
	simple(t, conn, "COMMIT")
	if got := one(t, conn, "SELECT count(*) FROM home"); got != "0" {
		t.Errorf("home has %s rows", got)
	}
	simple(t, conn, "COPY (SELECT * FROM home) TO STDOUT")
}

// TestShardsExtended: row limits, pipelines and descriptions over several shards.
func TestShardsExtended(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	ctx := t.Context()
	batch := &pgx.Batch{}
	for k := 1; k <= 6; k++ {
		batch.Queue("INSERT INTO t (k, v) VALUES ($1, $2)", k, fmt.Sprint("v", k))
	}
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		t.Fatal(err)
	}
	batch = &pgx.Batch{}
	batch.Queue("INSERT INTO t (k) VALUES ($1)", 7)
	batch.Queue("INSERT INTO t (k) VALUES ($1)", 2)
	if err := conn.SendBatch(ctx, batch).Close(); pgerr.Code(err) != "23505" {
		t.Errorf("a pipeline that fails on one shard: %v", err)
	}
	if got := one(t, conn, "SELECT count(*) FROM t"); got != "6" {
		t.Errorf("%s rows after it", got)
	}
	d, err := conn.Prepare(ctx, "all", "SELECT k, v FROM t WHERE k > $1 ORDER BY k")
	if err != nil || fmt.Sprint(d.ParamOIDs) != "[23]" || len(d.Fields) != 2 || d.Fields[1].Name != "v" {
		t.Errorf("described as %v, %v", d, err)
	}
	rows, _ := conn.Query(ctx, "all", 2)
	pairs, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (string, error) {
		var k int
		var v string
		err := r.Scan(&k, &v)
		return fmt.Sprint(k, v), err
	})
	if err != nil || fmt.Sprint(pairs) != "[3v3 4v4 5v5 6v6]" {
		t.Errorf("rows %v, %v", pairs, err)
	}
}

// shardSequences are conversations about rows of several shards, whose answers must be those of Postgres.
var shardSequences = []struct {
	name  string
	steps []step
}{
	{"row limits", []step{
		{q("begin"), 1},
		{cat(parse("", "select k from t order by k"), bindTo("", ""), describe('P', ""), execute("", 2), execute("", 3), execute("", 0), syncMsg), 1},
		{cat(parse("", "select k from t order by k"), bindTo("a", ""), execute("a", 2), syncMsg), 1},
		{cat(parse("", "select k from t where k = 2"), bindTo("", ""), execute("", 0), execute("a", 1), syncMsg), 1},
		{cat(execute("a", 0), closing('P', "a"), syncMsg), 1},
		{q("commit"), 1},
		{cat(parse("", "select k from t order by k"), bindTo("", ""), execute("", 1), syncMsg), 1},
		{cat(execute("", 1), syncMsg), 1},
	}},
	{"descriptions", []step{
		{cat(parse("s", "select k, v from t where k > $1 order by k"), describe('S', "s"), syncMsg), 1},
		{cat(bindTo("", "s", "4"), describe('P', ""), execute("", 0), syncMsg), 1},
		{cat(bindTo("", "s", "4"), describe('P', ""), syncMsg), 1},
		{cat(parse("", "update t set n = 1"), bindTo("", ""), describe('P', ""), execute("", 0), syncMsg), 1},
		{cat(parse("", "select v from t where k = $1"), describe('S', ""), bindTo("", "", "2"), describe('P', ""), execute("", 0), syncMsg), 1},
	}},
	{"pipelines", []step{
		{cat(parse("i", "insert into t (k) values ($1)"), bindTo("", "i", "11"), execute("", 0), bindTo("", "i", "3000000"), execute("", 0), syncMsg), 1},
		{cat(bindTo("", "i", "12"), execute("", 0), bindTo("", "i", "1"), execute("", 0), bindTo("", "i", "14"), execute("", 0), syncMsg), 1},
		{cat(bindTo("", "i", "1"), execute("", 0), syncMsg, bindTo("", "i", "15"), execute("", 0), syncMsg), 2},
		{q("select k from t order by k"), 1},
		{cat(parse("", "begin"), bindTo("", ""), execute("", 0), parse("", "delete from t where k = 1"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{cat(parse("", "delete from t where k = 2"), bindTo("", ""), execute("", 0), parse("", "rollback"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{q("select count(*) from t"), 1},
	}},
	{"one segment", []step{ // with the Parse of a statement that only its values spread
		{cat(parse("", "insert into t (k) values ($1), ($2) on conflict (k) do nothing returning k"), bindTo("", "", "71", "72"), describe('P', ""), execute("", 0), syncMsg), 1},
		{cat(parse("", "insert into t (k) values ($1), ($2)"), bindTo("", "", "74", "1"), execute("", 0), syncMsg), 1},
		{cat(parse("", "insert into t (k) values (76), (77)"), describe('S', ""), bindTo("", ""), execute("", 0), syncMsg), 1},
		{cat(parse("", "select count(*) from t where k in ($1, $2)"), bindTo("", "", "1", "2"), execute("", 0), syncMsg), 1},
		{cat(parse("", "delete from t where k in ($1, $2)"), bindTo("", "", "71", "72"), execute("", 0), syncMsg), 1},
		{cat(parse("", "select count(*) from t"), bindTo("", ""), execute("", 0), syncMsg), 1},
	}},
	{"transactions", []step{
		{q("begin; insert into t (k) values (21); insert into t (k) values (1); commit"), 1},
		{q("select 1"), 1},
		{q("commit"), 1},
		{q("begin isolation level serializable; show transaction_isolation"), 1},
		{q("select count(*) from t"), 1},
		{q("savepoint a; delete from t where k = 1; delete from t where k = 2"), 1},
		{q("rollback to b"), 1},
		{q("rollback to a; select count(*) from t"), 1},
		{q("release a; release a"), 1},
		{q("commit; commit"), 1},
		{q("start transaction read only"), 1},
		{q("insert into t (k) values (31)"), 1},
		{q("rollback and chain"), 1},
		{q("rollback"), 1},
		{q("begin; set local work_mem = '7MB'; select count(*) from t where k = 1; select count(*) from t where k = 2; show work_mem; commit; show work_mem"), 1},
		{q("insert into t (k) values (41); insert into t (k) values (1)"), 1},
		{q("select count(*) from t where k = 41"), 1},
		{q("begin; begin; select k from t where k = 1; commit"), 1},
	}},
	{"errors", []step{
		{q("select 1 / (k - 2) from t where k = 2 and v >= ''"), 1},
		{q("select nosuch from t"), 1},
		{cat(parse("", "select 1 / (k - 2) from t where v = 'b'"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{q("insert into t (k, n) values (51, 1), (3, 1)"), 1},
		{q("select count(*) from t where k = 51"), 1},
	}},
}

// TestShardSequences has the conversations with Postgres and with a gateway before two shards.
func TestShardSequences(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	direct := s.plain.Config()
	conn := s.connect("")
	for _, tc := range shardSequences {
		t.Run(strings.ReplaceAll(tc.name, " ", "_"), func(t *testing.T) {
			for _, c := range []*pgx.Conn{conn, s.plain} {
				simple(t, c, "DELETE FROM t")
				simple(t, c, "INSERT INTO t (k, v) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e'), (6, 'f')")
			}
			want := converse(t, direct, tc.steps)
			got := converse(t, s.config(""), tc.steps)
			for i := range tc.steps {
				if got[i] != want[i] {
					t.Errorf("step %d\n  shards   %s\n  postgres %s", i+1, got[i], want[i])
				}
			}
		})
	}
}
