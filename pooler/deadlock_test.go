package pooler

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
)

// TestDeadlockOverShards: two transactions that lock rows on two shards in opposite order; one of them fails as in Postgres,
// whichever way its statement runs, and the other goes on.
func TestDeadlockOverShards(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	simple(t, conn, "INSERT INTO t (k, v) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')")
	run := func(conn *pgx.Conn, sql string) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
			done <- err
		}()
		return done
	}
	for _, last := range []string{
		"UPDATE t SET n = 1 WHERE k = 1", "UPDATE t SET n = 1 WHERE k IN (1, 4)", "SELECT v FROM t WHERE k < 4 FOR UPDATE",
		"LOCK TABLE t IN SHARE ROW EXCLUSIVE MODE",
	} {
		a, b := s.connect(""), s.connect("")
		simple(t, a, "BEGIN")
		simple(t, a, "UPDATE t SET n = 2 WHERE k = 1")
		simple(t, b, "BEGIN")
		simple(t, b, "UPDATE t SET n = 3 WHERE k = 2")
		simple(t, b, "SELECT v FROM t WHERE k = 3")
		first := run(a, "UPDATE t SET n = 2 WHERE k = 2")
		eventually(t, "the first waits", func() bool {
			return s.onShard(2, "SELECT count(*) FROM pg_locks WHERE NOT granted")[0][0] == "1"
		})
		second := run(b, last)
		var victim, other *pgx.Conn
		var failed error
		var rest <-chan error
		select {
		case failed = <-first:
			victim, other, rest = a, b, second
		case failed = <-second:
			victim, other, rest = b, a, first
		case <-t.Context().Done():
			t.Fatal("nobody was chosen")
		}
		e := pgerr.From(failed)
		if e.Code != pgerr.DeadlockDetected || !strings.Contains(e.Detail, `shard "sh1"`) || !strings.Contains(e.Detail, `shard "sh2"`) {
			t.Fatalf("%s: %v, %s", last, failed, e.Detail)
		}
		if _, err := trySimple(victim, "SELECT 1"); pgerr.Code(err) != pgerr.InFailedSQLTransaction {
			t.Errorf("%s: the victim's transaction goes on: %v", last, err)
		}
		simple(t, victim, "ROLLBACK")
		if err := <-rest; err != nil {
			t.Errorf("%s: the other one: %v", last, err)
		}
		simple(t, other, "COMMIT")
		if got := one(t, victim, "SELECT count(*) FROM t"); got != "4" {
			t.Errorf("%s: then %s rows", last, got)
		}
		_, _ = a.Close(t.Context()), b.Close(t.Context())
	}
}

// TestCircles: what is a deadlock over shards, and what is none.
func TestCircles(t *testing.T) {
	on := func(shard string, pid uint32) shardBackend { return shardBackend{shard, pid} }
	waits := func(shard string, pid uint32, holders ...uint32) lockWait { return lockWait{on(shard, pid), holders} }
	waiters := []waiter{
		{backends: []shardBackend{on("sh1", 1), on("sh2", 1)}},
		{backends: []shardBackend{on("sh1", 2), on("sh2", 2)}},
		{backends: []shardBackend{on("sh2", 3), on("sh3", 3)}},
	}
	for _, tc := range []struct {
		name  string
		waits []lockWait
		steps int
	}{
		{"nobody waits", nil, 0},
		{"a chain", []lockWait{waits("sh1", 2, 1), waits("sh2", 3, 2)}, 0},
		{"two", []lockWait{waits("sh1", 1, 2), waits("sh2", 2, 1)}, 2},
		{"on one shard: its server's", []lockWait{waits("sh1", 1, 2), waits("sh1", 2, 1)}, 0},
		{"by others between", []lockWait{waits("sh1", 1, 9), waits("sh1", 9, 2), waits("sh2", 2, 8), waits("sh2", 8, 1)}, 4},
		{"others of the same pid elsewhere", []lockWait{waits("sh1", 1, 9), waits("sh2", 9, 2), waits("sh2", 2, 1)}, 0},
		{"three", []lockWait{waits("sh1", 1, 2), waits("sh2", 2, 3), waits("sh2", 3, 1)}, 3},
		{"one of several holders", []lockWait{waits("sh1", 1, 7, 2), waits("sh2", 2, 6, 1)}, 2},
	} {
		if got := circleOf(waiters, tc.waits); len(got) != tc.steps {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}
