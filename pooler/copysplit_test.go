package pooler

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
)

// copiedIn runs COPY ... FROM STDIN.
func copiedIn(conn *pgx.Conn, sql string, data io.Reader) string {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	tag, err := conn.PgConn().CopyFrom(ctx, data, sql)
	if err != nil {
		return "error " + pgerr.Code(err) + " " + err.Error() + " " + pgerr.From(err).Where
	}
	return tag.String()
}

// bothCopy copies into the shards and into plain Postgres, and compares.
func (s *shards) bothCopy(conn *pgx.Conn, sql, data string) {
	s.t.Helper()
	want, got := copiedIn(s.plain, sql, strings.NewReader(data)), copiedIn(conn, sql, strings.NewReader(data))
	if want != got {
		s.t.Errorf("%s of %.200q\n shards: %.500s\n plain:  %.500s", sql, data, got, want)
	}
}

const emptyTables = "DELETE FROM t; DELETE FROM u; DELETE FROM w; DELETE FROM ref"

func TestCopyFromIsSplit(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	for _, c := range []struct{ sql, data string }{
		{"COPY t FROM STDIN", "1\ta\t1\n2\tb\t\\N\n3\tc\\td\t3\n4\te\\\nf\t4"},
		{"COPY t (v, k) FROM STDIN", "a\t1\nb\t2\n\\N\t3\n\\.\nignored"},
		{"COPY t (n, v, k) FROM STDIN (FORMAT csv, HEADER)", "n,v,k\n1,\"a\nb\",1\n2,\"c,\"\"d\",2\n,,3\n4,\"\",4\n"},
		{"COPY t (n, v, k) FROM STDIN (FORMAT csv, HEADER match)", "n,v,k\n1,a,1\n2,b,2\n"},
		{"COPY t (n, v, k) FROM STDIN (FORMAT csv, HEADER match)", "n,k,v\n1,1,a\n"},
		{"COPY t (k, v) FROM STDIN WITH CSV DELIMITER ';' QUOTE '''' ESCAPE '\\' NULL 'none'", "'1';'a\\'b'\r\n2;none\r\n3;'none'\r\n"},
		{"COPY t (k, v) FROM STDIN (FORMAT csv, FORCE_NULL (v), FORCE_NOT_NULL (k))", "1,\"\"\n2,\n"},
		{"COPY t (k, v) FROM STDIN (DELIMITER '|', NULL '')", " 1|a\n+2|\n-3|c\n"},
		{"COPY t (k, v) FROM STDIN (FREEZE false)", ""},
		{"COPY t (k, v) FROM STDIN WHERE k > 2", "1\ta\n2\tb\n3\tc\n4\td\n"},
		{"COPY w (name) FROM STDIN", "one\ntwo\nthr\\x65e\nfo\\165r\n\n"},
		{"COPY w (name) FROM STDIN (FORMAT csv)", "one\n\"two\"\n\"thr\"\"ee\"\n"},
		{"COPY ref (id, name, at) FROM STDIN", "1\ta\t2024-01-01\n2\tb\t\\N\n"},
		{"COPY u FROM STDIN", "1\t1\ta\n2\t1\tb\n2\t2\tc\n"},

		{"COPY t (k, v) FROM STDIN", "1\ta\n2\tb\n3\n4\tc\n"},
		{"COPY t (v, k) FROM STDIN", "a\t1\nb\t2\nc\n"},
		{"COPY t (k, v) FROM STDIN", "1\ta\n2\tb\n3\tc\textra\n"},
		{"COPY t (k, v) FROM STDIN", "1\ta\n2\tb\nx\tc\n"},
		{"COPY t (k, v) FROM STDIN", "1\ta\n2\tb\n3\tc\n2\ttwice\n"},
		{"COPY t (k, n) FROM STDIN", "1\t1\n2\t2\n3\t3\n4\t5000\n"},
		{"COPY t (k, v) FROM STDIN", "1\ta\n\\N\tb\n"},
		{"COPY t (k, v) FROM STDIN", "1\ta\n2\tb\r\n"},
		{"COPY t (k, v) FROM STDIN", "1\ta\n\\.b\n"},
		{"COPY t (k, v) FROM STDIN (FORMAT csv)", "1,a\n2,b\n3,\"b\n"},
		{"COPY t (k, v) FROM STDIN (FORMAT csv)", "1,a\n2,b\rc\n"},
		{"COPY t (k, v) FROM STDIN (FORMAT binary)", "no signature"},
		{"COPY t (nix) FROM STDIN", "1\n"},
		{"COPY t (k, k) FROM STDIN", "1\t1\n"},
		{"COPY t FROM STDIN (FORMAT nix)", "1\n"},
		{"COPY t FROM STDIN (DELIMITER 'ab')", "1\n"},
		{"COPY nix FROM STDIN", "1\n"},
		{"COPY home FROM STDIN", "1\ta\n"},
	} {
		s.both(conn, emptyTables+"; DELETE FROM home")
		s.bothCopy(conn, c.sql, c.data)
		for _, sql := range []string{
			"SELECT k, v, n FROM t ORDER BY k", "SELECT k, id, v FROM u ORDER BY k, id", `SELECT name FROM w ORDER BY name COLLATE "C"`,
			"SELECT id, name FROM ref ORDER BY id", "SELECT id, v FROM home ORDER BY id",
		} {
			s.both(conn, sql)
		}
		const where = "SELECT count(*) FROM t WHERE k IN (1, 3) "
		if a, b := s.onShard(1, where)[0][0], s.onShard(2, where)[0][0]; b != "0" {
			t.Errorf("%s: of the first shard's rows %s are there, and %s on the second", c.sql, a, b)
		}
	}
}

// TestCopyFromInBinary copies what COPY TO gives.
func TestCopyFromInBinary(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	var rows [][]any
	for i := range 5000 {
		rows = append(rows, []any{fmt.Sprint("v", i), int32(i), int32(i % 1000)})
	}
	for _, to := range []*pgx.Conn{conn, s.plain} {
		n, err := to.CopyFrom(t.Context(), pgx.Identifier{"t"}, []string{"v", "k", "n"}, pgx.CopyFromRows(rows))
		if err != nil || n != 5000 {
			t.Fatalf("%d rows, %v", n, err)
		}
	}
	s.both(conn, "SELECT count(*), sum(k), min(v), max(v), sum(n) FROM t")
	out := copiedOut(s.plain, "COPY (SELECT v, k FROM t ORDER BY k) TO STDOUT (FORMAT binary)")
	s.both(conn, "DELETE FROM t")
	s.bothCopy(conn, "COPY t (v, k) FROM STDIN (FORMAT binary)", strings.TrimSuffix(out, "\nCOPY 5000"))
	s.both(conn, "SELECT count(*), sum(k), min(v), max(v), sum(n) FROM t")
	if got := one(t, conn, "SELECT count(*) FROM t"); got != "5000" {
		t.Errorf("%s rows", got)
	}
	s.bothCopy(conn, "COPY t (v, k) FROM STDIN (FORMAT binary)", copyHead+"\x00\x01\x00\x00\x00\x01x")
	s.bothCopy(conn, "COPY t (v, k) FROM STDIN (FORMAT binary)", copyHead+"\x00\x02\x00\x00\x00\x01x\x00\x00\x00\x02xx\xff\xff")
	s.bothCopy(conn, "COPY t (v, k) FROM STDIN (FORMAT binary)", copyHead+"\x00\x02\x00\x00\x00\x01x\x00\x00")
	s.bothCopy(conn, "COPY t (v, k) FROM STDIN (FORMAT binary)", copyHead+"\x00\x02\x00\x00\x00\x01x\xff\xff\xff\xff\xff\xff")
	s.bothCopy(conn, "COPY t (v, k) FROM STDIN (FORMAT binary)", copyHead+"\xff\xffx")
}

// TestCopyFromConversations: the messages of a COPY, in both protocols, in transactions and among other statements.
func TestCopyFromConversations(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	const sql = "copy t (k, v) from stdin"
	fail := msgOf('f', "no more")
	begin := cat(parse("", sql), bindTo("", ""), describe('P', ""), execute("", 0), syncMsg)
	look := q("select k, v from t order by k")
	s.compareOverShards(t, copySetup, []sequence{
		{"simple", []step{{q(sql), 0}, {cat(data("21\ta\n22"), data("\tb\n"), copyDone), 1}, {look, 1}}},
		{"the client gives up", []step{{q(sql), 0}, {cat(data("21\ta\n22\tb\n"), fail), 1}, {look, 1}}},
		{"the client gives up at once", []step{{q(sql), 0}, {fail, 1}, {look, 1}}},
		{"a bad line", []step{{q(sql), 0}, {cat(data("21\ta\n22\tb\nx\n"), copyDone), 1}, {look, 1}}},
		{"a query in the middle", []step{{q(sql), 0}, {cat(data("21\ta\n"), look), 1}, {look, 1}}},
		{"late messages", []step{{q(sql), 0}, {cat(data("1\tx\n"), copyDone, data("x"), copyDone), 1}, {look, 1}}},
		{"in a block", []step{
			{q("begin"), 1}, {q(sql), 0}, {cat(data("21\ta\n22\tb\n"), copyDone), 1}, {look, 1}, {q("rollback"), 1}, {look, 1},
		}},
		{"in a block that goes on to fail", []step{
			{q("begin; savepoint s"), 1},
			{q(sql), 0},
			{cat(data("21\ta\n2\tb\n"), copyDone), 1},
			{q("select 1"), 1},
			{q("rollback to s"), 1},
			{q(sql), 0},
			{cat(data("21\ta\n22\tb\n"), copyDone), 1},
			{q("commit"), 1},
			{look, 1},
		}},
		{"in a string", []step{
			{q("insert into t values (20, 'z'); " + sql + "; select count(*) from t; " + sql + "; select count(*) from t"), 0},
			{cat(data("21\ta\n22\tb\n"), copyDone), 0},
			{cat(data("23\ta\n"), copyDone), 1},
			{look, 1},
		}},
		{"in a string that fails", []step{
			{q("insert into t values (20, 'z'); " + sql + "; select 1"), 0}, {cat(data("21\ta\n22\tb\n1\tx\n"), copyDone), 1}, {look, 1},
		}},
		{"extended", []step{{begin, 0}, {cat(data("21\ta\n"), flushMsg, data("22\tb\n"), copyDone, syncMsg), 1}, {look, 1}}},
		{"extended that fails", []step{{begin, 0}, {cat(data("21\ta\n"), data("x\n"), copyDone, syncMsg), 1}, {look, 1}}},
		{"extended that the client gives up", []step{{begin, 0}, {cat(data("21\ta\n22\tb\n"), fail, syncMsg), 1}, {look, 1}}},
		{"extended in one write", []step{{cat(begin, data("21\ta\n22\tb\n"), copyDone, syncMsg), 1}, {look, 1}}},
		{"extended with a message behind it", []step{
			{cat(parse("", sql), bindTo("", ""), execute("", 0), parse("", "select 1"), syncMsg), 1}, {look, 1},
		}},
		{"extended in a block", []step{
			{q("begin"), 1}, {begin, 0}, {cat(data("21\ta\n22\tb\n"), copyDone, syncMsg), 1}, {look, 1}, {q("commit"), 1}, {look, 1},
		}},
		{"extended and described", []step{{cat(parse("s", sql), describe('S', "s"), syncMsg), 1}}},
	})
}

// TestCopyRefused: what can't be split is refused before the client sends data.
func TestCopyRefused(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	s.both(conn, "CREATE VIEW seen AS SELECT * FROM t")
	s.both(conn, "DROP TABLE u")
	s.both(conn, "CREATE TABLE u (k numeric(8,2) PRIMARY KEY, v text)")
	for sql, want := range map[string]string{
		"COPY t FROM '/tmp/neki-copy'":                      "[122]",
		"COPY seen FROM STDIN":                              "[122]",
		"COPY u FROM STDIN":                                 "[122]",
		"COPY t FROM STDIN (REJECT_LIMIT 3)":                "[122]",
		"COPY t (v) FROM STDIN":                             "[208]",
		"COPY ref FROM STDIN WHERE random() > 0.5":          "[206]",
		"COPY (SELECT count(*) FROM t) TO '/tmp/neki-copy'": "[123]",
	} {
		if _, err := trySimple(conn, sql); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", sql, err, want)
		}
	}
	s.both(conn, "SELECT 1")
}

// TestCopyFromIsCancelled: a cancel request ends a COPY that waits for its client, and one whose shard waits for a lock; a
// client that is gone leaves nothing.
func TestCopyFromIsCancelled(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{parameters: poolOf(2)})
	look := s.connect("")
	waiting := func(what string) {
		t.Helper()
		eventually(t, what, func() bool {
			return s.onShard(2, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY t%' AND state = 'active'")[0][0] == "1"
		})
	}
	t.Run("waiting for the client", func(t *testing.T) {
		conn := s.connect("")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, w := io.Pipe()
		done := make(chan error, 1)
		go func() {
			_, err := conn.PgConn().CopyFrom(ctx, r, "COPY t (k, v) FROM STDIN")
			done <- err
		}()
		waiting("the copy")
		if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the shards have given up", func() bool {
			return s.onShard(1, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY t%' AND state <> 'idle'")[0][0] == "0"
		})
		_ = w.Close() // the client looks at the answer only now
		select {
		case err := <-done:
			if pgerr.Code(err) != pgerr.QueryCanceled {
				t.Errorf("%v", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the COPY goes on")
		}
		s.both(conn, "SELECT 1")
	})
	t.Run("the client goes away", func(t *testing.T) {
		conn := s.connect("")
		r, w := io.Pipe()
		go func() { _, _ = conn.PgConn().CopyFrom(t.Context(), r, "COPY t (k, v) FROM STDIN") }()
		_, _ = w.Write([]byte("31\ta\n32\tb\n"))
		waiting("the copy")
		_ = conn.PgConn().Conn().Close()
		_ = w.Close()
		eventually(t, "the shards are free", func() bool {
			return s.onShard(1, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY t%' AND state <> 'idle'")[0][0] == "0"
		})
		s.both(look, "SELECT count(*) FROM t")
	})
	t.Run("a shard waits for a lock", func(t *testing.T) {
		conn := s.connect("")
		holder := s.connect("")
		simple(t, holder, "BEGIN; INSERT INTO t (k) VALUES (42)")
		done := make(chan error, 1)
		go func() {
			_, err := conn.PgConn().CopyFrom(t.Context(), strings.NewReader("41\ta\n42\tb\n"), "COPY t (k, v) FROM STDIN")
			done <- err
		}()
		eventually(t, "the lock", func() bool {
			return s.onShard(2, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY t%' AND wait_event_type = 'Lock'")[0][0] == "1"
		})
		if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			if pgerr.Code(err) != pgerr.QueryCanceled {
				t.Errorf("%v", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the COPY goes on")
		}
		simple(t, holder, "ROLLBACK")
		s.both(conn, "SELECT count(*) FROM t")
	})
}

// TestCopyFromWithDefaults: columns left out are numbered over all shards, and alike on all copies.
func TestCopyFromWithDefaults(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	s.both(conn, "DROP TABLE u")
	s.both(conn, "CREATE TABLE u (k int NOT NULL, id serial, v text, made int GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (k, id))")
	var text, csv strings.Builder
	csv.WriteString("v,k\n")
	for i := range 3000 {
		fmt.Fprintf(&text, "%d\tv%d\n", i, i)
		fmt.Fprintf(&csv, "\"v\n%d\",%d\n", i, i)
	}
	s.bothCopy(conn, "COPY u (k, v) FROM STDIN", text.String())
	s.bothCopy(conn, "COPY u (v, k) FROM STDIN (FORMAT csv, HEADER match)", csv.String())
	s.both(conn, "SELECT count(*), sum(k), count(DISTINCT id), count(DISTINCT made), min(id), bool_and(id = made) FROM u")
	for _, row := range []string{"2\n", "2\tb\tc\n"} {
		if got := copiedIn(conn, "COPY u (k, v) FROM STDIN", strings.NewReader("1\ta\n"+row)); !strings.HasPrefix(got, "error 22P04") || !strings.Contains(got, "line 2") {
			t.Errorf("%q: %s", row, got)
		}
	}
	s.bothCopy(conn, "COPY u (k, v) FROM STDIN", "1\ta\n2\tb\\.\nignored\n")
	s.both(conn, "SELECT count(*) FROM u")
	var rows [][]any
	for i := range 200 {
		rows = append(rows, []any{int32(i), fmt.Sprint("b", i)})
	}
	for _, to := range []*pgx.Conn{conn, s.plain} {
		if n, err := to.CopyFrom(t.Context(), pgx.Identifier{"u"}, []string{"k", "v"}, pgx.CopyFromRows(rows)); n != 200 || err != nil {
			t.Errorf("%d rows in binary, %v", n, err)
		}
	}
	s.both(conn, "SELECT count(*), count(DISTINCT id), count(DISTINCT made) FROM u")

	s.both(conn, "DROP TABLE t")
	s.both(conn, "CREATE TABLE t (k serial PRIMARY KEY, v text)")
	s.bothCopy(conn, "COPY t (v) FROM STDIN", "a\nb\nc\nd\n")
	s.both(conn, "SELECT k, v FROM t ORDER BY k")
	if got := fmt.Sprint(s.onShard(1, "SELECT k FROM t ORDER BY k")); got != "[[1] [3]]" {
		t.Errorf("shard 1 has %s", got)
	}

	s.bothCopy(conn, "COPY ref (id, name) FROM STDIN (FORMAT csv)", "1,a\n2,b\n3,c\n")
	const all = "SELECT * FROM ref ORDER BY id"
	if a, b := fmt.Sprint(s.onShard(1, all)), fmt.Sprint(s.onShard(2, all)); a != b || len(s.onShard(1, all)) != 3 {
		t.Errorf("copies differ:\n%s\n%s", a, b)
	}
}
