package pooler

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/settings"
)

// within runs something with a context of its own.
func within(limit time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return do(ctx)
}

// runners are the ways of running a statement.
var runners = map[string]func(*pgx.Conn, string) error{
	"simple":   func(conn *pgx.Conn, sql string) error { _, err := trySimple(conn, sql); return err },
	"extended": func(conn *pgx.Conn, sql string) error { return extendedExec(conn, sql, pgx.QueryExecModeExec) },
	"prepared": func(conn *pgx.Conn, sql string) error {
		return extendedExec(conn, sql, pgx.QueryExecModeCacheStatement)
	},
}

func extendedExec(conn *pgx.Conn, sql string, mode pgx.QueryExecMode) error {
	return within(20*time.Second, func(ctx context.Context) error {
		_, err := conn.Exec(ctx, sql, mode)
		return err
	})
}

// TestPrimaryRestarts: what is sent after the primary's end waits for the next one, and no client hears of it: the
// connections that rested in the pool are dropped, and a statement that they never heard is sent again.
func TestPrimaryRestarts(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	simple(t, g.connect(""), "CREATE TABLE t (k int)")
	clients := map[string]*pgx.Conn{}
	for name, run := range runners {
		clients[name] = g.connect("")
		if err := run(clients[name], "INSERT INTO t VALUES (1)"); err != nil {
			t.Fatal(err)
		}
	}
	for what, restart := range map[string]func(){
		"fast":       func() { g.group.Primary.Restart() },
		"postmaster": func() { _ = syscall.Kill(g.group.Primary.PID(), syscall.SIGKILL); g.group.Primary.Restart() },
		"all":        func() { g.group.Primary.Kill(); g.group.Primary.Restart() },
	} {
		for name, run := range runners {
			if err := run(clients[name], "SELECT 1"); err != nil { // so that its connection has just been used
				t.Fatal(err)
			}
			restart()
			if err := run(clients[name], "INSERT INTO t VALUES (1)"); err != nil {
				t.Errorf("%s, %s: %v", what, name, err)
			}
		}
	}
	if got := one(t, clients["simple"], "SELECT count(*) FROM t"); got != "12" {
		t.Errorf("%s rows, want 12", got)
	}
}

// TestStatementOnLostPrimary: a statement that a fast stop has rolled back is run again on the primary that is there next; of
// one whose server was killed nothing is known.
func TestStatementOnLostPrimary(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	simple(t, g.connect(""), "CREATE TABLE t (k int)")
	running := func(name string) (*pgx.Conn, chan error) {
		conn, done := g.connect(""), make(chan error, 1)
		go func() { done <- runners[name](conn, "INSERT INTO t SELECT 1 FROM pg_sleep(1)") }()
		eventually(t, "it runs", func() bool {
			return g.group.Primary.Text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1"
		})
		return conn, done
	}
	for name := range runners {
		_, done := running(name)
		g.group.Primary.Restart()
		if err := <-done; err != nil {
			t.Errorf("%s, fast stop: %v", name, err)
		}
		conn, done := running(name)
		g.group.Primary.Kill()
		if err := <-done; pgerr.Code(err) != pgerr.TransactionResolutionUnknown {
			t.Errorf("%s, kill: %v", name, err)
		}
		g.group.Primary.Restart()
		if err := runners[name](conn, "SELECT 1"); err != nil {
			t.Errorf("%s, the session after it: %v", name, err)
		}
	}
	if got := one(t, g.connect(""), "SELECT count(*) FROM t"); got != "3" {
		t.Errorf("%s rows, want 3", got)
	}
}

// TestTransactionOnLostPrimary: a transaction on a primary that is lost fails, clearly, until the client ends it; the
// session goes on.
func TestTransactionOnLostPrimary(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	simple(t, g.connect(""), "CREATE TABLE t (k int)")
	for what, end := range map[string]func(){
		"fast": func() { g.group.Primary.Stop() },
		"kill": func() { g.group.Primary.Kill() },
	} {
		for name, run := range runners {
			conn := g.connect("")
			simple(t, conn, "BEGIN")
			simple(t, conn, "INSERT INTO t VALUES (1)")
			end()
			err := run(conn, "INSERT INTO t VALUES (2)")
			var e *pgconn.PgError
			if !errors.As(err, &e) || e.Code != pgerr.ConnectionFailure || e.Severity != "ERROR" || e.Detail == "" || e.Hint == "" {
				t.Errorf("%s, %s: %v", what, name, err)
			}
			if got := conn.PgConn().TxStatus(); got != 'E' {
				t.Errorf("%s, %s: the client is told %c", what, name, got)
			}
			if err := run(conn, "INSERT INTO t VALUES (3)"); pgerr.Code(err) != pgerr.InFailedSQLTransaction {
				t.Errorf("%s, %s: the next statement: %v", what, name, err)
			}
			simple(t, conn, "ROLLBACK")
			g.group.Primary.Restart()
			if err := run(conn, "SELECT count(*) FROM t"); err != nil {
				t.Errorf("%s, %s: after it: %v", what, name, err)
			}
		}
	}
	if got := one(t, g.connect(""), "SELECT count(*) FROM t"); got != "0" {
		t.Errorf("%s rows, want none", got)
	}
}

// TestCommitOnLostPrimary: a COMMIT whose connection is lost is in doubt, whatever was said of the transaction before.
func TestCommitOnLostPrimary(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	simple(t, g.connect(""), `CREATE TABLE t (k int);
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(600); RETURN NULL; END$$;
		CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()`)
	for name, run := range runners {
		conn, done := g.connect(""), make(chan error, 1)
		simple(t, conn, "BEGIN")
		simple(t, conn, "INSERT INTO t VALUES (1)")
		go func() { done <- run(conn, "COMMIT") }()
		eventually(t, "it commits", func() bool {
			return g.group.Primary.Text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1"
		})
		g.group.Primary.Kill()
		if err := <-done; pgerr.Code(err) != pgerr.TransactionResolutionUnknown || conn.PgConn().TxStatus() != 'I' {
			t.Errorf("%s: %v, then %c", name, err, conn.PgConn().TxStatus())
		}
		g.group.Primary.Restart()
		simple(t, conn, "SELECT 1")
	}
}

// TestBackendTerminated: an operator's pg_terminate_backend ends the client's session with the server's own words.
func TestBackendTerminated(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	for name, run := range runners {
		conn, done := g.connect(""), make(chan error, 1)
		go func() { done <- run(conn, "SELECT pg_sleep(600)") }()
		eventually(t, "it ends", func() bool {
			return g.group.Primary.Text("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1"
		})
		err := <-done
		var e *pgconn.PgError
		if !errors.As(err, &e) || e.Code != pgerr.AdminShutdown || e.Severity != "FATAL" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPrimaryTurnsReadOnly: a write that a primary on its way out refuses waits for the next one; what the client itself
// made read-only is refused at once.
func TestPrimaryTurnsReadOnly(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	simple(t, g.connect(""), "CREATE TABLE t (k int)")
	rule := catalog.Rule{Term: 1, Phase: catalog.PhaseActive, Leader: nodeName(0), Cohort: []string{nodeName(0)}}
	put := func(phase string) {
		t.Helper()
		rule.Phase = phase
		rev, err := catalog.PutRule(t.Context(), g.store, testCluster, "sh1", rule, rule.ModRev)
		if err != nil {
			t.Fatal(err)
		}
		rule.ModRev = rev
		eventually(t, phase, func() bool { r := g.live.Snapshot().Rule("sh1"); return r != nil && r.Phase == phase })
	}
	for name, run := range runners {
		put(catalog.PhaseActive)
		conn, done := g.connect(""), make(chan error, 1)
		if err := run(conn, "SELECT 1"); err != nil {
			t.Fatal(err)
		}
		g.group.Primary.Set("default_transaction_read_only", "on")
		go func() { done <- run(conn, "INSERT INTO t VALUES (1)") }()
		put(catalog.PhaseSwitching)
		g.group.Primary.Set("default_transaction_read_only", "off")
		select {
		case err := <-done:
			t.Errorf("%s: it did not wait: %v", name, err)
			continue
		default:
		}
		put(catalog.PhaseActive)
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := one(t, g.connect(""), "SELECT count(*) FROM t"); got != "3" {
		t.Errorf("%s rows, want 3", got)
	}
	conn := g.connect("-c default_transaction_read_only=on")
	for name, run := range runners {
		if err := run(conn, "INSERT INTO t VALUES (1)"); pgerr.Code(err) != pgerr.ReadOnlySQLTransaction {
			t.Errorf("%s, read-only by the client: %v", name, err)
		}
		if err := run(conn, "SELECT 1"); err != nil {
			t.Errorf("%s, after it: %v", name, err)
		}
	}
}

// TestPrimaryTurnsReadOnlyUnheard: the same when the gateway hears of it from that primary alone: for as long as buffer-window a
// write is tried again, and a transaction that was begun there is lost, as with its primary.
func TestPrimaryTurnsReadOnlyUnheard(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: func(p *settings.Parameters) { poolOf(1)(p); p.BufferWindow = time.Second }})
	simple(t, g.connect(""), "CREATE TABLE t (k int)")
	for name, run := range runners {
		conn := g.connect("")
		if err := run(conn, "SELECT 1"); err != nil {
			t.Fatal(err)
		}
		g.group.Primary.Set("default_transaction_read_only", "on")
		simple(t, conn, "BEGIN")
		if err := run(conn, "INSERT INTO t VALUES (1)"); pgerr.Code(err) != pgerr.ConnectionFailure {
			t.Errorf("%s, in a transaction: %v", name, err)
		}
		if got := conn.PgConn().TxStatus(); got != 'E' {
			t.Errorf("%s: the client is told %c", name, got)
		}
		simple(t, conn, "ROLLBACK")
		g.group.Primary.Set("default_transaction_read_only", "off")
		eventually(t, "a connection that may write", func() bool { return run(conn, "INSERT INTO t VALUES (2)") == nil })
		g.group.Primary.Set("default_transaction_read_only", "on")
		if err := run(conn, "INSERT INTO t VALUES (3)"); pgerr.Code(err) != pgerr.NoServingPrimary {
			t.Errorf("%s: %v", name, err)
		}
		g.group.Primary.Set("default_transaction_read_only", "off")
		if err := run(conn, "INSERT INTO t VALUES (4)"); err != nil {
			t.Errorf("%s, after it: %v", name, err)
		}
	}
	if got := one(t, g.connect(""), "SELECT string_agg(k::text, ' ' ORDER BY k) FROM t"); got != "2 2 2 4 4 4" {
		t.Errorf("rows %s", got)
	}
}

// TestPrimaryIsAStandby: an instance that leads no longer, which the gateway has not heard of yet, gets nothing that is for a
// primary: what it would say of it is not for the client.
func TestPrimaryIsAStandby(t *testing.T) {
	g := startGateway(t, gatewayOptions{replicas: 1, parameters: func(p *settings.Parameters) { p.BufferWindow = 300 * time.Millisecond }})
	conn := g.connect("")
	simple(t, conn, "CREATE TABLE t (k int)")
	rule := catalog.Rule{Term: 2, Phase: catalog.PhaseActive, Leader: nodeName(1), Cohort: []string{nodeName(1)}}
	if _, err := catalog.PutRule(t.Context(), g.store, testCluster, "sh1", rule, 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rule is known", func() bool { p := g.live.Snapshot().PrimaryOf("sh1"); return p != nil && p.ID == nodeName(1) })
	for name, run := range runners {
		for _, sql := range []string{"INSERT INTO t VALUES (1)", "BEGIN ISOLATION LEVEL SERIALIZABLE"} {
			if err := run(conn, sql); pgerr.Code(err) != pgerr.NoServingPrimary {
				t.Errorf("%s, %s: %v", name, sql, err)
			}
		}
	}
}

// TestCommitWithoutReplica: a commit whose wait for a replica is cancelled is no success, also when the client wants to
// hear no warnings; a COMMIT can't be cancelled at all.
func TestCommitWithoutReplica(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: func(p *settings.Parameters) { p.BufferWindow = time.Second }})
	simple(t, g.connect(""), "CREATE TABLE t (k int)")
	g.group.Primary.Set("synchronous_standby_names", "nobody")
	waiting := func() string {
		return g.group.Primary.Text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	}
	for name, run := range runners {
		for _, options := range []string{"", "-c client_min_messages=error"} {
			conn, done := g.connect(options), make(chan error, 1)
			go func() { done <- run(conn, "INSERT INTO t VALUES (1)") }()
			eventually(t, "it waits", func() bool { return waiting() == "1" })
			if err := within(20*time.Second, conn.PgConn().CancelRequest); err != nil {
				t.Fatal(err)
			}
			if err := <-done; pgerr.Code(err) != pgerr.TransactionResolutionUnknown {
				t.Errorf("%s %s: %v", name, options, err)
			}
			if err := run(conn, "SELECT 1"); err != nil {
				t.Errorf("%s %s: after it: %v", name, options, err)
			}
		}
		conn, done := g.connect(""), make(chan error, 1)
		simple(t, conn, "BEGIN")
		simple(t, conn, "INSERT INTO t VALUES (2)")
		go func() { done <- run(conn, "COMMIT") }()
		eventually(t, "COMMIT waits", func() bool { return waiting() == "1" })
		if err := within(20*time.Second, conn.PgConn().CancelRequest); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it still waits", func() bool { return waiting() == "1" })
		g.group.Primary.Set("synchronous_standby_names", "")
		if err := <-done; err != nil {
			t.Errorf("%s: COMMIT: %v", name, err)
		}
		g.group.Primary.Set("synchronous_standby_names", "nobody")
	}
	g.group.Primary.Set("synchronous_standby_names", "")
	if got := one(t, g.connect(""), "SELECT count(*) FROM t"); got != "9" {
		t.Errorf("%s rows, want 9", got)
	}
}
