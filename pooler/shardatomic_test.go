package pooler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"neki/catalog"
	"neki/cluster/admin"
	"neki/cluster/agent"
	"neki/internal/pgerr"
	"neki/internal/testpg"
)

// startAtomic gives two shards and a client under __neki.tx_mode = 'atomic'.
func startAtomic(t testing.TB) (*shards, *pgx.Conn) {
	t.Helper()
	s := startTwoShards(t, gatewayOptions{})
	return s, s.connect("-c __neki.tx_mode=atomic")
}

// counts gives how many rows of t each shard has.
func (s *shards) counts() string {
	return s.onShard(1, "SELECT count(*) FROM t")[0][0] + " " + s.onShard(2, "SELECT count(*) FROM t")[0][0]
}

// prepared counts the transactions that are prepared in the test's database, on all shards.
func (s *shards) prepared() (n int) {
	for i := range s.servers {
		n += len(s.onShard(i+1, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"))
	}
	return n
}

// resolver is what the leading admin would run, without agents.
func (s *shards) resolver(record func(catalog.Event)) *admin.Resolver {
	r := &admin.Resolver{
		Store: s.store, Cluster: testCluster,
		Shards: func() []string { return []string{"sh1", "sh2"} },
		Record: func(_ context.Context, e catalog.Event) { record(e) },
	}
	r.Ask = func(ctx context.Context, shard string, o agent.PreparedOrder) (agent.PreparedStatus, error) {
		return askPrepared(ctx, s.servers[shard[2]-'1'], s.dbname, o)
	}
	return r
}

// askPrepared is the agent of a server, with an eye for one database only: tests share servers.
func askPrepared(ctx context.Context, server *testpg.Server, database string, o agent.PreparedOrder) (agent.PreparedStatus, error) {
	status, err := agent.FinishAll(ctx, o, func(ctx context.Context, database string, warned func()) (*pgx.Conn, error) {
		cfg, err := pgx.ParseConfig(server.DSNFor(testpg.Superuser, testpg.Password, database))
		if err != nil {
			return nil, err
		}
		cfg.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) { warned() }
		return pgx.ConnectConfig(ctx, cfg)
	})
	var own []agent.PreparedTransaction
	for _, t := range status.Transactions {
		if t.Database == database {
			own = append(own, t)
		}
	}
	status.Transactions = own
	return status, err
}

// TestAtomicCommit: all shards or none, whatever refuses.
func TestAtomicCommit(t *testing.T) {
	s, conn := startAtomic(t)
	run := func(want, code string, statements ...string) {
		t.Helper()
		simple(t, conn, "DELETE FROM t")
		var err error
		for _, sql := range statements {
			if _, now := trySimple(conn, sql); now != nil {
				err = now
			}
		}
		if got := pgerr.Code(err); got != code {
			t.Errorf("%q: %v, want %q", statements, err, code)
		}
		if got := string(conn.PgConn().TxStatus()); got != "I" {
			t.Errorf("after %q the session is %s", statements, got)
			simple(t, conn, "ROLLBACK")
		}
		if got := s.counts(); got != want {
			t.Errorf("%q: %s rows, want %s", statements, got, want)
		}
	}
	insert1, insert2 := "INSERT INTO t (k) VALUES (1)", "INSERT INTO t (k) VALUES (2)"
	run("1 1", "", "BEGIN", insert1, insert2, "COMMIT")
	run("1 1", "", "INSERT INTO t (k) VALUES (1), (2)")
	run("1 1", "", "BEGIN; "+insert1+"; "+insert2+"; COMMIT")
	run("1 1", "", insert1+"; "+insert2)
	run("0 0", "", "BEGIN", insert1, insert2, "ROLLBACK")
	run("1 0", "", "BEGIN", insert1, "SAVEPOINT a", insert2, "ROLLBACK TO a", "COMMIT")
	run("1 1", "", "BEGIN", "SAVEPOINT a", insert1, insert2, "RELEASE a", "COMMIT")
	run("1 1", "", "BEGIN", insert1, insert2, "COMMIT AND CHAIN", "INSERT INTO t (k) VALUES (3)", "INSERT INTO t (k) VALUES (4)", "ROLLBACK")
	run("0 0", "0A000", "BEGIN", insert1, "CREATE TEMP TABLE tmp (a int)", insert2, "COMMIT")
	run("0 0", "0A000", "BEGIN", insert1, "NOTIFY n", insert2, "COMMIT")
	run("1 1", "", "BEGIN", insert1, "SELECT pg_advisory_xact_lock(1)", insert2, "COMMIT")
	run("0 0", "0A000", "BEGIN", "SELECT pg_advisory_lock(1)", "SELECT pg_advisory_xact_lock(1)", insert1, insert2, "COMMIT")
	simple(t, conn, "SELECT pg_advisory_unlock_all()")
	run("1 1", "", "BEGIN", "SET LOCAL synchronous_commit = remote_apply", "SET LOCAL client_min_messages = error", insert1, insert2, "COMMIT")
	run("1 1", "", "SET synchronous_commit = remote_apply", insert1+"; "+insert2)
	if got := one(t, conn, "SHOW synchronous_commit"); got != "remote_apply" {
		t.Errorf("the session's setting is %s", got)
	}
	run("1 1", "", "BEGIN", insert1, insert2, "SET LOCAL ROLE pg_monitor", "COMMIT")
	if n := s.prepared(); n != 0 {
		t.Errorf("%d transactions are left prepared", n)
	}
	simple(t, conn, "INSERT INTO ref (id) VALUES (1)")
	simple(t, conn, "CREATE TABLE more (a int)")
	if n := s.prepared(); n != 0 {
		t.Errorf("%d transactions are left prepared", n)
	}
}

// TestAtomicOneWriter: a transaction that writes on one shard prepares nothing and needs no catalog.
func TestAtomicOneWriter(t *testing.T) {
	s, conn := startAtomic(t)
	s.server.atCommitStep = func(step string) { t.Errorf("step %q", step) }
	simple(t, conn, "BEGIN")
	simple(t, conn, "INSERT INTO t (k) VALUES (1)")
	simple(t, conn, "SELECT * FROM t")
	simple(t, conn, "COMMIT")
	if got := s.counts(); got != "1 0" {
		t.Errorf("%s rows", got)
	}
}

// TestAtomicFenced: a gateway that lost its place in the catalog commits nothing more, on no shard.
func TestAtomicFenced(t *testing.T) {
	s, conn := startAtomic(t)
	s.server.atCommitStep = func(step string) {
		if step == "decide" {
			s.store.ExpireLease(s.lease.ID())
		}
	}
	if _, err := trySimple(conn, "INSERT INTO t (k) VALUES (1), (2)"); pgerr.Code(err) != pgerr.SerializationFailure {
		t.Errorf("without a lease: %v", err)
	}
	if got := s.counts(); got != "0 0" || s.prepared() != 0 {
		t.Errorf("%s rows, %d prepared", got, s.prepared())
	}
}

// TestAtomicShardLost: a shard whose connection is lost once all is decided follows; before that, no shard commits.
func TestAtomicShardLost(t *testing.T) {
	s, _ := startAtomic(t)
	killed := map[string]string{
		"prepare sh2": "0 0", "prepared sh2": "", "decided": "1 1", "commit sh2": "1 1",
	}
	for step, want := range killed {
		simple(t, s.connect(""), "DELETE FROM t")
		var once sync.Once
		s.server.atCommitStep = func(at string) {
			if at == step {
				once.Do(func() { s.onShard(2, terminateClients) })
			}
		}
		conn := s.connect("-c __neki.tx_mode=atomic")
		_, err := trySimple(conn, "INSERT INTO t (k) VALUES (1), (2)")
		got := s.counts()
		if want == "" { // the end of its PREPARE TRANSACTION was known
			want = "1 1"
		}
		if got != want || (err == nil) != (want == "1 1") {
			t.Errorf("lost at %q: %s rows, want %s; %v", step, got, want, err)
		}
		if n := s.prepared(); n != 0 {
			t.Errorf("lost at %q: %d are left prepared", step, n)
		}
	}
}

// terminateClients ends the sessions of the gateway's clients on a server, and returns when they are gone.
const terminateClients = `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> 'neki gateway'`

// TestAtomicResolver: what a gateway left behind ends as was decided, and so does the catalog.
func TestAtomicResolver(t *testing.T) {
	s, _ := startAtomic(t)
	ctx := t.Context()
	var events []catalog.Event
	var mu sync.Mutex
	r := s.resolver(func(e catalog.Event) { mu.Lock(); defer mu.Unlock(); events = append(events, e) })
	commits := s.server.cfg.Commits
	leave := func(k int, shards ...int) catalog.Commit {
		t.Helper()
		commit, err := commits.Begin()
		if err != nil {
			t.Fatal(err)
		}
		for _, shard := range shards {
			s.onShard(shard, fmt.Sprintf("BEGIN; INSERT INTO t (k) VALUES (%d); PREPARE TRANSACTION '%s'", k, commit.GID))
		}
		return commit
	}
	decided, half, undecided := leave(1, 1, 2), leave(2, 1), leave(3, 1, 2)
	for _, c := range []catalog.Commit{decided, half} {
		if err := commits.Decide(ctx, c, s.dbname, []string{"sh1", "sh2"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Pass(ctx); err != nil || s.prepared() != 5 {
		t.Fatalf("while the gateway lives: %v, %d are prepared", err, s.prepared())
	}
	s.store.ExpireLease(s.lease.ID())
	if err := commits.Decide(ctx, undecided, s.dbname, nil); !errors.Is(err, catalog.ErrAborted) {
		t.Fatalf("decided after its end: %v", err)
	}
	ask, shown := r.Ask, map[string]bool{}
	r.Show = func(_ context.Context, shard, gid string) { shown[shard+" "+gid] = true }
	r.Ask = func(ctx context.Context, shard string, o agent.PreparedOrder) (agent.PreparedStatus, error) {
		if shard == "sh2" {
			return agent.PreparedStatus{}, errors.New("away")
		}
		return ask(ctx, shard, o)
	}
	if left, err := r.Pass(ctx); err == nil || !left || s.prepared() != 2 || !shown["sh2 "+decided.GID] || shown["sh1 "+decided.GID] {
		t.Errorf("while a shard is away: %t, %v, %d are prepared, shown %v", left, err, s.prepared(), shown)
	}
	r.Ask = ask
	for pass := range 3 {
		if _, err := r.Pass(ctx); err != nil {
			t.Fatal(pass, err)
		}
	}
	if got := s.counts(); got != "2 1" || s.prepared() != 0 {
		t.Errorf("%s rows, %d prepared", got, s.prepared())
	}
	if len(events) != 5 {
		t.Errorf("events: %v", events)
	}
	view, err := catalog.ListCommits(ctx, s.store, testCluster)
	if err != nil || len(view.Decisions) != 0 {
		t.Errorf("decisions are left: %v, %v", view, err)
	}
}
