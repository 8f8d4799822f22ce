package pooler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"neki/internal/pgerr"
	"neki/settings"
)

func TestSimpleProtocol(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	conn := g.connect("")
	if got := one(t, conn, "SELECT 1"); got != "1" {
		t.Errorf("SELECT 1 gave %q", got)
	}
	simple(t, conn, "CREATE TABLE t (k int PRIMARY KEY, v text)")
	simple(t, conn, "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
	if got := one(t, conn, "SELECT count(*) FROM t"); got != "2" {
		t.Errorf("count %q", got)
	}
	if _, err := trySimple(conn, "SELECT 1/0"); pgerr.Code(err) != pgerr.DivisionByZero {
		t.Errorf("1/0: %v", err)
	}
	if _, err := trySimple(conn, "INSERT INTO t VALUES (3, 'c'); SELECT 1/0; INSERT INTO t VALUES (4, 'd')"); err == nil {
		t.Error("no error")
	}
	if got := one(t, conn, "SELECT count(*) FROM t"); got != "2" {
		t.Errorf("the implicit transaction was not rolled back: %q", got)
	}
	simple(t, conn, "BEGIN; INSERT INTO t VALUES (5, 'e')")
	simple(t, conn, "ROLLBACK")
	simple(t, conn, "BEGIN")
	if _, err := trySimple(conn, "SELECT nonsense"); err == nil {
		t.Error("no error")
	}
	if _, err := trySimple(conn, "SELECT 1"); pgerr.Code(err) != pgerr.InFailedSQLTransaction {
		t.Errorf("in a failed transaction: %v", err)
	}
	simple(t, conn, "ROLLBACK")
	if got := simple(t, conn, ""); got != nil {
		t.Errorf("empty query: %v", got)
	}
}

func TestExtendedProtocol(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	ctx := t.Context()
	conns := []*pgx.Conn{g.connect(""), g.connect(""), g.connect("")}
	for round := range 5 {
		for i, conn := range conns {
			var sum int
			if err := conn.QueryRow(ctx, "SELECT $1::int + $2::int", i, round).Scan(&sum); err != nil || sum != i+round {
				t.Fatalf("client %d round %d: %d, %v", i, round, sum, err)
			}
		}
	}
	var pgErr *pgconn.PgError
	if _, err := conns[0].Prepare(ctx, "bad", "SELECT nonsense"); !errors.As(err, &pgErr) || pgErr.Code != "42703" {
		t.Errorf("prepare of nonsense: %v", err)
	}
	if _, err := conns[0].Prepare(ctx, "bad", "SELECT 1"); err != nil {
		t.Errorf("the name of a failed Parse is not free: %v", err)
	}
	batch := &pgx.Batch{}
	for i := range 50 {
		batch.Queue("SELECT $1::int", i)
	}
	results := conns[1].SendBatch(ctx, batch)
	for i := range 50 {
		var got int
		if err := results.QueryRow().Scan(&got); err != nil || got != i {
			t.Fatalf("batch %d: %d, %v", i, got, err)
		}
	}
	if err := results.Close(); err != nil {
		t.Error(err)
	}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		var got string
		if err := conns[2].QueryRow(ctx, "SELECT $1::text || 'x'", mode, "a").Scan(&got); err != nil || got != "ax" {
			t.Errorf("%s: %q, %v", mode, got, err)
		}
	}
}

// TestPoolOfOne runs many clients over one server connection.
func TestPoolOfOne(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: func(p *settings.Parameters) { p.PoolCapacity, p.PoolMinConns = 1, 1 }})
	setup := g.connect("")
	simple(t, setup, "CREATE TABLE counter (n int); INSERT INTO counter VALUES (0)")
	var wg sync.WaitGroup
	const clients, rounds = 8, 40
	for i := range clients {
		conn := g.connect(fmt.Sprintf("-c work_mem=%dMB", i+1))
		wg.Go(func() {
			ctx := context.Background()
			for range rounds {
				tx, err := conn.Begin(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := tx.Exec(ctx, "UPDATE counter SET n = n + 1"); err != nil {
					t.Error(err)
				}
				var mem string
				if err := tx.QueryRow(ctx, "SHOW work_mem").Scan(&mem); err != nil || mem != fmt.Sprintf("%dMB", i+1) {
					t.Errorf("client %d sees work_mem %s, %v", i, mem, err)
				}
				if err := tx.Commit(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := one(t, setup, "SELECT n FROM counter"); got != fmt.Sprint(clients*rounds) {
		t.Errorf("counter %s", got)
	}
}

func TestSettingsFollowTheClient(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: func(p *settings.Parameters) { p.PoolCapacity = 1; p.PoolMinConns = 1 }})
	a, b := g.connect("-c work_mem=7MB"), g.connect("")
	original := one(t, b, "SHOW work_mem")
	for _, step := range []struct{ sql, want string }{
		{"SELECT 1", "7MB"},
		{"SET work_mem = '9MB'", "9MB"},
		{"BEGIN; SET work_mem = '10MB'; ROLLBACK", "9MB"},
		{"BEGIN; SET work_mem = '11MB'; COMMIT", "11MB"},
		{"BEGIN; SET LOCAL work_mem = '12MB'; COMMIT", "11MB"},
		{"BEGIN; SAVEPOINT s; SET work_mem = '13MB'; ROLLBACK TO s; COMMIT", "11MB"},
		{"RESET work_mem", "7MB"},
		{"SELECT set_config('work_mem', '14MB', false)", "14MB"},
		{"RESET ALL", "7MB"},
		{"SET work_mem = '15MB'", "15MB"},
		{"DISCARD ALL", "7MB"},
	} {
		simple(t, a, step.sql)
		if got := one(t, b, "SHOW work_mem"); got != original {
			t.Errorf("after %s the other client sees %s", step.sql, got)
		}
		if got := one(t, a, "SHOW work_mem"); got != step.want {
			t.Errorf("after %s: %s, want %s", step.sql, got, step.want)
		}
	}
	if _, err := trySimple(a, "SET work_mem = '20MB'; SELECT 1/0"); err == nil {
		t.Error("no error")
	}
	if got := one(t, a, "SHOW work_mem"); got != "7MB" {
		t.Errorf("a failed string left work_mem at %s", got)
	}
}

func TestParameterStatus(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	cfg := g.config("")
	cfg.RuntimeParams["application_name"] = "spec"
	cfg.RuntimeParams["TimeZone"] = "Europe/Berlin"
	conn := g.connectAs(cfg)
	for name, want := range map[string]string{
		"application_name": "spec", "TimeZone": "Europe/Berlin", "in_hot_standby": "off", "is_superuser": "on",
	} {
		if got := conn.PgConn().ParameterStatus(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	simple(t, conn, "SET TimeZone = 'Asia/Tokyo'")
	if got := conn.PgConn().ParameterStatus("TimeZone"); got != "Asia/Tokyo" {
		t.Errorf("TimeZone is %q after SET", got)
	}
	simple(t, conn, "RESET TimeZone")
	simple(t, conn, "SELECT 1")
	if got := conn.PgConn().ParameterStatus("TimeZone"); got != "Europe/Berlin" {
		t.Errorf("TimeZone is %q after RESET", got)
	}
}

func TestLoginRefusals(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	admin := g.connect("")
	simple(t, admin, "CREATE ROLE nologin PASSWORD 'x'; CREATE ROLE expired LOGIN PASSWORD 'x' VALID UNTIL '2001-01-01'")
	for _, tc := range []struct {
		name   string
		change func(*pgx.ConnConfig)
		code   string
	}{
		{"wrong password", func(c *pgx.ConnConfig) { c.Password = "no" }, "28P01"},
		{"unknown user", func(c *pgx.ConnConfig) { c.User = "nobody_here" }, "28P01"},
		{"no such database", func(c *pgx.ConnConfig) { c.Database = "nope" }, "3D000"},
		{"nologin", func(c *pgx.ConnConfig) { c.User, c.Password = "nologin", "x" }, "28000"},
		{"expired", func(c *pgx.ConnConfig) { c.User, c.Password = "expired", "x" }, "28P01"},
		{"unknown parameter", func(c *pgx.ConnConfig) { c.RuntimeParams["nosuch"] = "1" }, "42704"},
		{"setting without its underscores", func(c *pgx.ConnConfig) { c.RuntimeParams["options"] = "-c neki.target=replica" }, "42704"},
		{"unknown setting", func(c *pgx.ConnConfig) { c.RuntimeParams["options"] = "-c __neki.taget=replica" }, "42704"},
		{"bad setting", func(c *pgx.ConnConfig) { c.RuntimeParams["options"] = "-c __neki.target=both" }, "22023"},
	} {
		cfg := g.config("")
		tc.change(cfg)
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err == nil {
			_ = conn.Close(t.Context())
		}
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != tc.code {
			t.Errorf("%s: %v, want %s", tc.name, err, tc.code)
		}
	}
	if got := one(t, g.connect(""), "SELECT 1"); got != "1" {
		t.Error("a right password fails after wrong ones")
	}
}

func TestReplicaReads(t *testing.T) {
	g := startGateway(t, gatewayOptions{replicas: 2})
	primary := g.connect("")
	simple(t, primary, "CREATE TABLE t (k int)")
	for _, options := range []string{"-c __neki.target=REPLICA", "-c __neki.target=replica", "--__neki.target=Replica"} {
		conn := g.connect(options)
		if got := one(t, conn, "SELECT pg_is_in_recovery()"); got != "t" {
			t.Errorf("%s: pg_is_in_recovery() is %s", options, got)
		}
		if got := conn.PgConn().ParameterStatus("in_hot_standby"); got != "on" {
			t.Errorf("in_hot_standby is %q", got)
		}
	}
	conn := g.connect("")
	simple(t, conn, "SET __neki.target = 'Replica'")
	if got := one(t, conn, "SELECT pg_is_in_recovery()"); got != "t" {
		t.Errorf("after SET: pg_is_in_recovery() is %s", got)
	}
	before := g.group.Primary.Text("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres'")
	for _, sql := range []string{
		"INSERT INTO t VALUES (1)", "UPDATE t SET k = 1", "DELETE FROM t", "TRUNCATE t", "CREATE TABLE u (k int)",
		"SELECT * FROM t FOR UPDATE", "WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d", "SELECT nextval('s')",
		"LOCK t", "DO $$ BEGIN END $$", "VACUUM t", "COPY t FROM STDIN", "EXPLAIN ANALYZE INSERT INTO t VALUES (1)",
	} {
		if _, err := trySimple(conn, sql); pgerr.Code(err) != pgerr.ReadOnlySQLTransaction {
			t.Errorf("%s: %v, want 25006", sql, err)
		}
	}
	_ = before
	simple(t, conn, "BEGIN")
	if _, err := trySimple(conn, "SET __neki.target = 'primary'"); pgerr.Code(err) != pgerr.ActiveSQLTransaction {
		t.Errorf("SET in a transaction: %v", err)
	}
	if _, err := trySimple(conn, "SELECT 1"); pgerr.Code(err) != pgerr.InFailedSQLTransaction {
		t.Errorf("the transaction goes on after an error: %v", err)
	}
	simple(t, conn, "ROLLBACK")
	if got := one(t, conn, "SHOW __neki.target"); got != "replica" {
		t.Errorf("__neki.target is %s", got)
	}
}

// TestReadYourWrites inserts and reads at once, from replicas whose replay is held back: no row is ever missed.
// TestPreparedBeforeFunctionsAreKnown: a statement prepared while the functions of its database were being read is judged
// anew once they are known.
func TestPreparedBeforeFunctionsAreKnown(t *testing.T) {
	g := startGateway(t, gatewayOptions{replicas: 1})
	simple(t, g.connect(""), "CREATE FUNCTION five() RETURNS int LANGUAGE sql STABLE AS 'SELECT 5'")
	g.awaitFunctions()
	g.group.WaitCaughtUp()
	conn := g.connect("-c __neki.target=auto")
	g.server.dbs.get("postgres").functions.Invalidate()
	if _, err := conn.Prepare(t.Context(), "early", "SELECT pg_is_in_recovery() AND five() = 5"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the statement runs on the replica", func() bool {
		var standby bool
		if err := conn.QueryRow(t.Context(), "early").Scan(&standby); err != nil {
			t.Fatal(err)
		}
		return standby
	})
}

func TestReadYourWrites(t *testing.T) {
	g := startGateway(t, gatewayOptions{replicas: 2})
	for i, r := range g.group.Replicas {
		r.Set("recovery_min_apply_delay", fmt.Sprintf("%dms", 2+3*i))
	}
	simple(t, g.connect(""), "CREATE TABLE t (k int PRIMARY KEY)")
	g.awaitFunctions()
	const clients, rounds = 8, 1250
	var standby atomic.Int64
	var wg sync.WaitGroup
	for n := range clients {
		conn := g.connect("-c __neki.target=auto -c __neki.replica_consistency=session -c __neki.replica_wait=10s")
		wg.Go(func() {
			for i := range rounds {
				found, onStandby, err := insertAndLook(conn, n*rounds+i)
				if err != nil || !found {
					t.Errorf("client %d, row %d: found %v on a standby %v, %v", n, i, found, onStandby, err)
					return
				}
				if onStandby {
					standby.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if standby.Load() < clients*rounds*9/10 {
		t.Errorf("only %d of %d reads went to a replica", standby.Load(), clients*rounds)
	}
}

func insertAndLook(conn *pgx.Conn, k int) (found, onStandby bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err = conn.Exec(ctx, "INSERT INTO t VALUES ($1)", k); err != nil {
		return false, false, err
	}
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM t WHERE k = $1), pg_is_in_recovery()", k).Scan(&found, &onStandby)
	return found, onStandby, err
}

func TestCancel(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	conn := g.connect("")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- conn.PgConn().CancelRequest(t.Context()) }()
	if err := <-done; err != nil { // of an idle session: nothing happens
		t.Fatal(err)
	}
	if got := one(t, conn, "SELECT 1"); got != "1" {
		t.Error("an idle session was cancelled")
	}
	go func() {
		<-ctx.Done()
		done <- conn.PgConn().CancelRequest(context.Background())
	}()
	start := time.Now()
	_, err := trySimple(conn, "SELECT pg_sleep(10)")
	if pgerr.Code(err) != pgerr.QueryCanceled || time.Since(start) > 5*time.Second {
		t.Errorf("after %s: %v", time.Since(start), err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := one(t, conn, "SELECT 2"); got != "2" {
		t.Error("the session is of no use after a cancel")
	}
}

func TestCopy(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	conn := g.connect("")
	simple(t, conn, "CREATE TABLE t (k int PRIMARY KEY, v text)")
	ctx := t.Context()
	rows := make([][]any, 20000)
	for i := range rows {
		rows[i] = []any{i, fmt.Sprintf("value %d", i)}
	}
	n, err := conn.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"k", "v"}, pgx.CopyFromRows(rows))
	if err != nil || n != int64(len(rows)) {
		t.Fatalf("copied %d, %v", n, err)
	}
	if _, err := conn.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"k", "v"}, pgx.CopyFromRows(rows)); pgerr.Code(err) != "23505" {
		t.Errorf("duplicate keys: %v", err)
	}
	if got := one(t, conn, "SELECT count(*) FROM t"); got != "20000" {
		t.Errorf("%s rows", got)
	}
	other := g.connect("")
	if got := one(t, other, "SELECT count(*) FROM t"); got != "20000" {
		t.Errorf("%s rows", got)
	}
}

// TestClientGone leaves transactions and statements behind without a word.
func TestClientGone(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: func(p *settings.Parameters) { p.PoolCapacity, p.PoolMinConns = 1, 1 }})
	simple(t, g.connect(""), "CREATE TABLE t (k int)")
	leave := map[string]func(conn *pgx.Conn){
		"transaction": func(conn *pgx.Conn) { simple(t, conn, "BEGIN; INSERT INTO t VALUES (1)") },
		"statement": func(conn *pgx.Conn) {
			go func() { _, _ = trySimple(conn, "INSERT INTO t SELECT 1 FROM pg_sleep(30)") }()
			eventually(t, "the statement runs", func() bool { return g.server.pools.Stats()[0].Active == 1 })
		},
	}
	for name, f := range leave {
		conn := g.connect("")
		f(conn)
		_ = conn.PgConn().Conn().Close()
		if got := one(t, g.connect(""), "SELECT count(*) FROM t"); got != "0" {
			t.Errorf("%s: %s rows", name, got)
		}
	}
}

func TestPinnedState(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: func(p *settings.Parameters) { p.PoolCapacity = 2 }})
	a, b := g.connect(""), g.connect("")
	simple(t, a, "CREATE TEMP TABLE tmp AS SELECT 1 AS x")
	simple(t, b, "SELECT 1")
	if got := one(t, a, "SELECT x FROM tmp"); got != "1" {
		t.Errorf("temp table gave %s", got)
	}
	if _, err := trySimple(b, "SELECT x FROM tmp"); pgerr.Code(err) != pgerr.UndefinedTable {
		t.Errorf("another client sees the temp table: %v", err)
	}
	simple(t, a, "DISCARD ALL")
	if _, err := trySimple(a, "SELECT x FROM tmp"); pgerr.Code(err) != pgerr.UndefinedTable {
		t.Errorf("after DISCARD ALL: %v", err)
	}
	simple(t, a, "SELECT pg_advisory_lock(7)")
	_ = a.PgConn().Conn().Close()
	eventually(t, "the advisory lock is gone", func() bool { return one(t, b, "SELECT pg_try_advisory_lock(7)") == "t" })
}
