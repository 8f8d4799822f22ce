package regress

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// TestPgx is the driver test for Go: what drivers/ does in other languages, and what only a Go client shows.
func TestPgx(t *testing.T) {
	c := cluster(t)
	for name, extra := range map[string][]string{
		"tls":            nil,
		"direct tls":     {"sslnegotiation=direct"},
		"plain":          {"sslmode=disable"},
		"simple":         {"default_query_exec_mode=simple_protocol"},
		"cache describe": {"default_query_exec_mode=cache_describe"},
		"exec":           {"default_query_exec_mode=exec"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := c.mustConnect(t, extra...)
			table := pgx.Identifier{"drv_pgx_" + strings.ReplaceAll(name, " ", "_")}.Sanitize()
			mustExec(t, conn, "DROP TABLE IF EXISTS "+table)
			mustExec(t, conn, "CREATE TABLE "+table+" (id int PRIMARY KEY, v text, at timestamptz)")
			pgxStatements(t, conn, table)
			pgxTransactions(t, conn, table)
			if name != "simple" {
				pgxCopyAndBatch(t, conn, table)
			}
			mustExec(t, conn, "DROP TABLE "+table)
		})
	}
}

func mustExec(t *testing.T, conn *pgx.Conn, sql string, args ...any) pgconn.CommandTag {
	t.Helper()
	tag, err := conn.Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return tag
}

// mustQuery gives the single value of a query.
func mustQuery[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func wantState(t *testing.T, err error, sqlstate string) *pgconn.PgError {
	t.Helper()
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != sqlstate {
		t.Fatalf("got %v, want SQLSTATE %s", err, sqlstate)
	}
	return pgErr
}

func pgxStatements(t *testing.T, conn *pgx.Conn, table string) {
	t.Helper()
	now := time.Now().Truncate(time.Microsecond)
	for id := range 3 {
		tag := mustExec(t, conn, "INSERT INTO "+table+" VALUES ($1, $2, $3)", id, fmt.Sprint("v", id), now)
		if tag.String() != "INSERT 0 1" {
			t.Fatalf("tag %q", tag)
		}
	}
	for range 2 {
		if got := mustQuery[time.Time](t, conn, "SELECT at FROM "+table+" WHERE id = $1", 1); !got.Equal(now) {
			t.Fatalf("got %v, want %v", got, now)
		}
	}
	_, err := conn.Exec(t.Context(), "INSERT INTO "+table+" VALUES ($1, $2, $3)", 1, "twice", now)
	if e := wantState(t, err, "23505"); e.Detail != "Key (id)=(1) already exists." {
		t.Fatalf("detail %q", e.Detail)
	}
	_, err = conn.Exec(t.Context(), "SELECT nothing FROM "+table)
	if e := wantState(t, err, "42703"); e.Position != 8 {
		t.Fatalf("position %d", e.Position)
	}
}

func pgxTransactions(t *testing.T, conn *pgx.Conn, table string) {
	t.Helper()
	ctx := t.Context()
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "DELETE FROM "+table); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		inner := pgx.BeginFunc(ctx, tx, func(sp pgx.Tx) error {
			_, err := sp.Exec(ctx, "INSERT INTO "+table+" VALUES (0, 'twice', now())")
			return err
		})
		wantState(t, inner, "23505")
		_, err := tx.Exec(ctx, "UPDATE "+table+" SET v = $1 WHERE id = $2", "changed", 2)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := conn.Query(ctx, "SELECT v FROM "+table+" ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !slices.Equal(got, []string{"v0", "v1", "changed"}) {
		t.Fatalf("got %q, %v", got, err)
	}
}

func pgxCopyAndBatch(t *testing.T, conn *pgx.Conn, table string) {
	t.Helper()
	ctx := t.Context()
	const copied = 5000
	n, err := conn.CopyFrom(ctx, pgx.Identifier{strings.Trim(table, `"`)}, []string{"id", "v"},
		pgx.CopyFromSlice(copied, func(i int) ([]any, error) { return []any{1000 + i, fmt.Sprint("copied ", i)}, nil }))
	if err != nil || n != copied {
		t.Fatalf("copied %d, %v", n, err)
	}
	batch := &pgx.Batch{}
	for i := range 100 {
		batch.Queue("SELECT v FROM "+table+" WHERE id = $1", 1000+i)
	}
	results := conn.SendBatch(ctx, batch)
	for i := range 100 {
		var v string
		if err := results.QueryRow().Scan(&v); err != nil || v != fmt.Sprint("copied ", i) {
			t.Fatalf("%d: %q, %v", i, v, err)
		}
	}
	if err := results.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestTargetAtStartup gives the target in each way that a connection can.
func TestTargetAtStartup(t *testing.T) {
	c := cluster(t)
	uri := url.URL{
		Scheme: "postgres", User: url.UserPassword(c.env["PGUSER"], c.env["PGPASSWORD"]),
		Host: c.env["PGHOST"] + ":" + c.env["PGPORT"], Path: c.env["PGDATABASE"],
		RawQuery: "sslmode=disable&options=-c%20__neki.target%3DREPLICA",
	}
	byURI := func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, uri.String()) }
	with := func(extra ...string) func(context.Context) (*pgx.Conn, error) {
		return func(ctx context.Context) (*pgx.Conn, error) { return c.connect(ctx, extra...) }
	}
	for name, connect := range map[string]func(context.Context) (*pgx.Conn, error){
		"options":           with(`options='-c __neki.target=replica'`),
		"options, upper":    with(`options='-c __neki.target=REPLICA'`),
		"options, joined":   with(`options='-c__neki.target=Replica'`),
		"options, long":     with(`options='--__neki.target=replica'`),
		"startup parameter": with(`__neki.target=replica`),
		"uri":               byURI,
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			if !mustQuery[bool](t, conn, "SELECT pg_is_in_recovery()") {
				t.Error("not on a replica")
			}
			if got := conn.PgConn().ParameterStatus("in_hot_standby"); got != "on" {
				t.Errorf("in_hot_standby = %q", got)
			}
		})
	}
}

func TestStartupRefusals(t *testing.T) {
	c := cluster(t)
	for name, test := range map[string]struct{ extra, sqlstate, says string }{
		"bad value":      {`options='-c __neki.target=secondary'`, "22023", "__neki.target"},
		"unknown name":   {`options='-c __neki.taget=replica'`, "42704", "__neki.taget"},
		"wrong password": {"password=wrong", "28P01", "password authentication failed"},
		"unknown user":   {"user=regress_no_such_user", "28P01", "password authentication failed"},
		"no database":    {"dbname=regress_no_such_database", "3D000", "regress_no_such_database"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := c.connect(t.Context(), test.extra)
			if err == nil {
				conn.Close(context.Background())
				t.Fatal("connected")
			}
			if e := wantState(t, err, test.sqlstate); e.Severity != "FATAL" || !strings.Contains(e.Message, test.says) {
				t.Errorf("%s: %s", e.Severity, e.Message)
			}
		})
	}
}

func TestCancel(t *testing.T) {
	c := cluster(t)
	for _, target := range []string{"primary", "replica"} {
		t.Run(target, func(t *testing.T) {
			conn := c.mustConnect(t, "__neki.target="+target)
			done := make(chan error, 1)
			go func() {
				_, err := conn.PgConn().Exec(context.Background(), "SELECT pg_sleep(30)").ReadAll()
				done <- err
			}()
			other := c.mustConnect(t)
			waitFor(t, "the statement runs", func() bool {
				return mustQuery[int](t, other, "SELECT count(*) FROM neki.sessions WHERE pid = $1 AND state = 'active'",
					int32(conn.PgConn().PID())) == 1
			})
			wantState(t, cancelUntilDone(t, conn, done), "57014")
			if mustQuery[int](t, conn, "SELECT 1") != 1 {
				t.Error("the session did not go on")
			}
		})
	}
}

// cancelUntilDone cancels what conn runs until it has ended, and gives its error. One request need not do, for Postgres
// either: it may come before the server has read the statement.
func cancelUntilDone(t *testing.T, conn *pgx.Conn, done <-chan error) error {
	t.Helper()
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for range 10 {
		if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			return err
		case <-again.C:
		}
	}
	t.Fatal("not cancelled")
	return nil
}

// waitFor polls until the condition holds; a fresh replica or a report needs its time.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("not within 30 s: %s", what)
}

func TestVerifyFull(t *testing.T) {
	c := cluster(t)
	if _, err := os.Stat(c.env["PGSSLROOTCERT"]); err != nil {
		t.Fatal(err)
	}
	conn := c.mustConnect(t, "sslmode=verify-full")
	if got := mustQuery[string](t, conn, "SELECT current_user"); got != c.env["PGUSER"] {
		t.Errorf("current_user = %s", got)
	}
}
