package pooler

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/settings"
)

// openTransactions counts what the gateway has left open on a shard.
func (s *shards) openTransactions(shard int) string {
	return s.onShard(shard, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
		AND pid <> pg_backend_pid() AND xact_start IS NOT NULL AND application_name <> 'neki gateway'`)[0][0]
}

// TestShardsClientGone: a client that goes away in a transaction leaves nothing on any of its shards.
func TestShardsClientGone(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	simple(t, conn, "BEGIN")
	simple(t, conn, "INSERT INTO t (k) VALUES (1)")
	simple(t, conn, "INSERT INTO t (k) VALUES (2)")
	if err := conn.PgConn().Conn().Close(); err != nil {
		t.Fatal(err)
	}
	for shard := 1; shard <= 2; shard++ {
		eventually(t, "the transaction is over", func() bool { return s.openTransactions(shard) == "0" })
		if got := s.onShard(shard, "SELECT count(*) FROM t")[0][0]; got != "0" {
			t.Errorf("shard %d has %s rows", shard, got)
		}
	}
	simple(t, s.connect(""), "INSERT INTO t (k) VALUES (1), (2)")
}

// TestShardsCancel: a cancel request ends a statement on all of its shards, and the session goes on.
func TestShardsCancel(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	simple(t, conn, "INSERT INTO t (k) VALUES (1), (2), (3), (4)")
	for _, begin := range []string{"", "BEGIN"} {
		simple(t, conn, begin)
		failed := make(chan error, 1)
		go func() {
			_, err := trySimple(conn, "SELECT k FROM t WHERE pg_sleep(60) IS NOT NULL")
			failed <- err
		}()
		for shard := 1; shard <= 2; shard++ {
			eventually(t, "it runs", func() bool { return s.openTransactions(shard) == "1" })
		}
		ctx, done := context.WithTimeout(t.Context(), 10*time.Second)
		if err := conn.PgConn().CancelRequest(ctx); err != nil {
			t.Fatal(err)
		}
		done()
		if err := <-failed; pgerr.Code(err) != pgerr.QueryCanceled {
			t.Errorf("%q: %v", begin, err)
		}
		simple(t, conn, "ROLLBACK")
		if got := one(t, conn, "SELECT count(*) FROM t"); got != "4" {
			t.Errorf("%q: %s rows after it", begin, got)
		}
	}
}

// TestShardsServerLost: a shard's connection that is lost ends the transaction, and its other shards roll back.
func TestShardsServerLost(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	simple(t, conn, "BEGIN")
	simple(t, conn, "INSERT INTO t (k) VALUES (1)")
	simple(t, conn, "INSERT INTO t (k) VALUES (2)")
	s.onShard(1, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
		AND pid <> pg_backend_pid() AND xact_start IS NOT NULL AND application_name <> 'neki gateway'`)
	if _, err := trySimple(conn, "COMMIT"); err == nil {
		t.Error("COMMIT succeeds without one of the shards")
	}
	for shard := 1; shard <= 2; shard++ {
		eventually(t, "the transaction is over", func() bool { return s.openTransactions(shard) == "0" })
		if got := s.onShard(shard, "SELECT count(*) FROM t")[0][0]; got != "0" {
			t.Errorf("shard %d has %s rows", shard, got)
		}
	}
	again := s.connect("")
	simple(t, again, "BEGIN")
	simple(t, again, "INSERT INTO t (k) VALUES (1), (2)")
	simple(t, again, "COMMIT")
}

// TestShardsTxModeSingle: the statement that would need a second shard is refused, one that reads none is not.
func TestShardsTxModeSingle(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("-c __neki.tx_mode=single")
	simple(t, conn, "BEGIN; SET LOCAL work_mem = '5MB'")
	simple(t, conn, "INSERT INTO t (k) VALUES (2)")
	if _, err := trySimple(conn, "INSERT INTO t (k) VALUES (1)"); pgerr.Code(err) != pgerr.SecondShardRefused {
		t.Errorf("a second shard: %v", err)
	}
	simple(t, conn, "ROLLBACK")
	simple(t, conn, "SET __neki.fanout = 'single'")
	if _, err := trySimple(conn, "SELECT count(*) FROM t"); pgerr.Code(err) != pgerr.FanoutExceeded {
		t.Errorf("fan-out: %v", err)
	}
	simple(t, conn, "SELECT * FROM t WHERE k = 2")
}

// TestShardsSumsHold: transfers between rows of two shards by many clients, some of which fail, keep the sum.
func TestShardsSumsHold(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{parameters: func(p *settings.Parameters) { p.PoolCapacity = 4 }})
	simple(t, s.connect(""), "INSERT INTO t (k, n) VALUES (1, 500), (2, 500)")
	const clients, rounds = 8, 10
	var wg sync.WaitGroup
	for i := range clients {
		conn := s.connect("")
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			for round := range rounds {
				tx, err := conn.Begin(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				_, err = tx.Exec(ctx, "UPDATE t SET n = n - $2 WHERE k = $1", 1, i)
				if err == nil {
					_, err = tx.Exec(ctx, "UPDATE t SET n = n + $2 WHERE k = $1", 2, i)
				}
				if err == nil && round%5 == 4 {
					_, err = tx.Exec(ctx, "SELECT 1 / (k - 2) FROM t WHERE k = 2")
				}
				if round%5 == 4 || err != nil {
					_ = tx.Rollback(ctx)
					_, err = conn.Exec(ctx, "UPDATE t SET n = n + CASE k WHEN 1 THEN 1 ELSE -1 END")
				} else {
					err = tx.Commit(ctx)
				}
				if code := pgerr.Code(err); err != nil && code != "23514" && code != "25P02" {
					t.Errorf("client %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := one(t, s.connect(""), "SELECT sum(n) FROM t"); got != "1000" {
		t.Errorf("the sum is %s", got)
	}
}

// TestShardsReadAgain: a read over several shards whose connections prove to be dead, before any of its answer has left, is run
// again; in a transaction it is not.
func TestShardsReadAgain(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	simple(t, conn, "INSERT INTO t (k) VALUES (1), (2), (3), (4)")
	cut := func() {
		t.Helper()
		for shard := 1; shard <= 2; shard++ {
			s.onShard(shard, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
				AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND application_name <> 'neki gateway'`)
		}
	}
	for name, run := range runners {
		for _, sql := range []string{"SELECT count(*) FROM t", "SELECT k FROM t ORDER BY k"} {
			if err := run(conn, sql); err != nil { // so that its connections rest in the pools
				t.Fatal(err)
			}
			cut()
			if err := run(conn, sql); err != nil {
				t.Errorf("%s, %s: %v", name, sql, err)
			}
		}
		open := s.connect("")
		simple(t, open, "BEGIN")
		simple(t, open, "SELECT count(*) FROM t")
		cut()
		if err := run(open, "SELECT count(*) FROM t"); err == nil {
			t.Errorf("%s: a transaction has not lost what was cut", name)
		}
	}
}

// TestShardsLowDisk: a write that goes to several shards is refused when the disk of one of them is low, a read is not.
func TestShardsLowDisk(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	low := func(on bool) {
		t.Helper()
		if _, err := catalog.UpdateShard(t.Context(), s.store, testCluster, "sh2", func(s *catalog.Shard) error { s.ReadOnly = on; return nil }); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the gateway knows", func() bool { return s.live.Snapshot().ReadOnly == on })
	}
	low(true)
	for name, run := range runners {
		for sql, code := range map[string]string{
			"INSERT INTO t (k) VALUES (1), (2), (3), (4)": pgerr.ShardReadOnly, "UPDATE t SET n = 1": pgerr.ShardReadOnly, "SELECT count(*) FROM t": "",
		} {
			if err := run(conn, sql); pgerr.Code(err) != code {
				t.Errorf("%s, %s: %v, want %q", name, sql, err, code)
			}
		}
	}
	low(false)
	simple(t, conn, "INSERT INTO t (k) VALUES (1), (2), (3), (4)")
}

// TestShardsHeldAndMoved: a statement that waits for a primary while the data topology changes goes where its rows are then.
func TestShardsHeldAndMoved(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	leader := s.live.Snapshot().PrimaryOf("sh1").ID
	rule := catalog.Rule{Term: 1, Leader: leader, Cohort: []string{leader}}
	put := func(phase string) {
		t.Helper()
		rule.Phase = phase
		rev, err := catalog.PutRule(t.Context(), s.store, testCluster, "sh1", rule, rule.ModRev)
		if err != nil {
			t.Fatal(err)
		}
		rule.ModRev = rev
		eventually(t, phase, func() bool { r := s.live.Snapshot().Rule("sh1"); return r != nil && r.ModRev == rev })
	}
	original := string(s.live.Snapshot().TopologyDocument.Document)
	moved := strings.Replace(original, `"shard_uid":"sh1","end":"0000000000000002"`, `"shard_uid":"sh2","end":"0000000000000002"`, 1)
	if moved == original {
		t.Fatal("nothing is moved in", original)
	}
	place := func(document string) {
		t.Helper()
		rev, err := catalog.PutTopology(t.Context(), s.store, testCluster, catalog.TopologyDocument{Document: []byte(document)}, catalog.AnyRev)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the topology is known", func() bool { return s.live.Snapshot().TopologyDocument.Revision == rev })
	}
	held := func() (n int) {
		s.server.holds.each(func(_ string, statements, _ int) { n += statements })
		return n
	}
	s.onShard(2, "INSERT INTO t (k, n) VALUES (1, 0)") // as if it had been moved there
	conn := s.connect("")
	for name, run := range runners {
		put(catalog.PhaseSwitching)
		done := make(chan error, 1)
		go func() { done <- run(conn, "UPDATE t SET n = n + 1 WHERE k = 1") }()
		eventually(t, "it waits for the primary of sh1", func() bool { return held() == 1 })
		place(moved)
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := s.onShard(2, "SELECT n FROM t WHERE k = 1")[0][0]; got != "1" {
			t.Errorf("%s: the row on sh2 has %s", name, got)
		}
		s.onShard(2, "UPDATE t SET n = 0")
		put(catalog.PhaseActive)
		place(original)
	}
}
