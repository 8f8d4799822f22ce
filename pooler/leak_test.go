package pooler

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
)

// sessionKinds are the kinds of state that a session can have in its server connection: what makes it and what shows it.
var sessionKinds = []struct{ name, make, show string }{
	{"setting", "SET work_mem = '7MB'", "SHOW work_mem"},
	{"setting by set_config", "SELECT pg_catalog.set_config('search_path', '', false)", "SHOW search_path"},
	{"setting in a block", "DO $$ BEGIN PERFORM set_config('work_mem', '9MB', false); END $$", "SHOW work_mem"},
	{"setting in a transaction", "BEGIN; SET work_mem = '7MB'; SET LOCAL statement_timeout = '77s'", "SELECT current_setting('work_mem') || current_setting('statement_timeout')"},
	{"setting in a failed transaction", "BEGIN; SET work_mem = '7MB'; SELECT 1/0", "SHOW work_mem"},
	{"setting in a savepoint", "BEGIN; SET work_mem = '5MB'; SAVEPOINT s; SET work_mem = '6MB'; ROLLBACK TO s", "SHOW work_mem"},
	{"read-only default", "SET default_transaction_read_only = on", "SHOW default_transaction_read_only"},
	{"characteristics", "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SHOW default_transaction_isolation"},
	{"time zone", "SET TIME ZONE 'Asia/Tokyo'", "SHOW timezone"},
	{"custom setting", "SET my.own = 'x'", "SELECT coalesce(nullif(current_setting('my.own', true), ''), 'none')"},
	{"role", "SET ROLE leaker", "SELECT current_user"},
	{"session authorization", "SET SESSION AUTHORIZATION leaker", "SELECT session_user || ' ' || current_user"},
	{"both", "SET SESSION AUTHORIZATION leaker; SET ROLE leaker", "SELECT session_user || ' ' || current_user"},
	{"role in a block", "DO $$ BEGIN EXECUTE 'SET ROLE leaker'; END $$", "SELECT current_user"},
	{"temp table", "CREATE TEMP TABLE mine AS SELECT 1", "SELECT count(*) FROM mine"},
	{"temp table in a block", "DO $$ BEGIN CREATE TEMP TABLE mine AS SELECT 1; END $$", "SELECT count(*) FROM mine"},
	{"temp table by SELECT INTO", "SELECT 1 AS a INTO TEMP mine", "SELECT count(*) FROM mine"},
	{"temp view", "CREATE TEMP VIEW mine AS SELECT 1", "SELECT count(*) FROM mine"},
	{"temp sequence", "CREATE TEMP SEQUENCE mine", "SELECT count(*) FROM mine"},
	{"temp function", "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'", "SELECT to_regprocedure('pg_temp.f()') IS NULL"},
	{"advisory lock", "SELECT pg_advisory_lock(7)", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"},
	{"advisory lock, shared and tried", "SELECT pg_catalog.pg_try_advisory_lock_shared(1, 2)", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"},
	{"advisory lock in a block", "DO $$ BEGIN PERFORM pg_advisory_lock(9); END $$", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"},
	{"advisory lock in a failed statement", "SELECT pg_advisory_lock(8), 1/(k-1) FROM leak", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"},
	{"advisory lock in a failed string", "SELECT 1; SELECT pg_advisory_lock(8), 1/(k-1) FROM leak", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"},
	{"advisory lock before a syntax error", "DO $$ BEGIN PERFORM pg_advisory_lock(9); EXECUTE 'selct'; END $$", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"},
	{"held cursor", "BEGIN; DECLARE held CURSOR WITH HOLD FOR SELECT generate_series(1, 3); COMMIT", "SELECT count(*) FROM pg_cursors WHERE name = 'held'"},
	{"listening", "LISTEN leaks", "SELECT count(*) FROM pg_listening_channels()"},
	{"prepared", "PREPARE mine AS SELECT 'mine'", "EXECUTE mine"},
	{"prepared in a block", "DO $$ BEGIN EXECUTE 'PREPARE mine AS SELECT 1'; END $$", "EXECUTE mine"},
	{"prepared as listed", "PREPARE mine AS SELECT 'mine'", "SELECT count(*) FROM pg_prepared_statements"},
	{"prepared in a block, as listed", "DO $$ BEGIN EXECUTE 'PREPARE mine AS SELECT 1'; END $$", "SELECT count(*) FROM pg_prepared_statements"},
	{"random numbers", "SELECT setseed(0.25)", "SELECT random() FROM leak"},
	{"random numbers by SET", "SET seed = 0.25", "SELECT random() FROM leak"},
	{"random numbers in a failed statement", "SELECT setseed(0.25), 1/(k-1) FROM leak", "SELECT random() FROM leak"},
	{"random numbers in a block", "DO $$ BEGIN PERFORM setseed(0.25); END $$", "SELECT random() FROM leak"},
	{"current value of a sequence", "SELECT nextval('leak_seq')", "SELECT currval('leak_seq') > 0"},
	{"last value of a sequence", "INSERT INTO leak_serial DEFAULT VALUES", "SELECT lastval() > 0"},
	{"large object", "BEGIN; SELECT lo_open(leak_lo(), 131072)", "SELECT lo_close(0)"},
	{"uncommitted row", "BEGIN; INSERT INTO leak VALUES (2)", "SELECT count(*) FROM leak"},
	{"constraints", "BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO leak_child VALUES (99)", "SELECT count(*) FROM leak_child"},
	{"library", "LOAD 'auto_explain'", "SELECT count(*) FROM pg_settings WHERE name = 'auto_explain.log_format'"},
}

const leakSetup = `CREATE ROLE leaker SUPERUSER; CREATE TABLE leak (k int PRIMARY KEY); INSERT INTO leak VALUES (1);
CREATE SEQUENCE leak_seq; CREATE TABLE leak_serial (k serial);
CREATE TABLE leak_child (k int REFERENCES leak DEFERRABLE);
CREATE FUNCTION leak_lo() RETURNS oid LANGUAGE sql AS 'SELECT min(oid) FROM pg_largeobject_metadata'; SELECT lo_create(0)`

// shown gives what a query says, or its SQLSTATE.
func shown(conn *pgx.Conn, sql string) string {
	rows, err := trySimple(conn, sql)
	switch {
	case pgerr.Code(err) != "":
		return pgerr.Code(err)
	case err != nil:
		return err.Error()
	case len(rows) == 0:
		return "none"
	}
	return strings.Join(rows[0], ",")
}

// TestStateStaysWithItsClient: of each kind, another client sees nothing while the first is there or after it has left,
// in peace or not, and the first keeps its own. What is to be seen is what Postgres shows.
func TestStateStaysWithItsClient(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(1)})
	g.group.Primary.Exec(leakSetup)
	simple(t, g.connect(""), "SELECT 1")
	g.awaitFunctions()
	direct := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), g.group.Primary.DSN())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	leave := map[string]func(*pgx.Conn){
		"terminate": func(conn *pgx.Conn) { _ = conn.Close(t.Context()) },
		"reset":     func(conn *pgx.Conn) { _ = conn.PgConn().Conn().Close() },
	}
	capacity := func(n int) {
		p := g.server.Parameters()
		p.PoolCapacity = n
		g.server.SetParameters(p)
	}
	for _, k := range sessionKinds {
		t.Run(strings.ReplaceAll(k.name, " ", "_"), func(t *testing.T) {
			model := direct()
			_, _ = trySimple(model, k.make)
			own, others := shown(model, k.show), shown(direct(), k.show)
			_ = model.Close(t.Context())
			leaks := func(got string) bool {
				if strings.HasPrefix(k.name, "random") {
					return got == own
				}
				return got != others
			}
			for _, size := range poolSizes {
				capacity(size)
				for how, f := range leave {
					a := g.connect("")
					_, _ = trySimple(a, k.make)
					f(a)
					b := g.connect("")
					if got := shown(b, k.show); leaks(got) {
						t.Errorf("pool of %d: after the first left by %s, another client sees %q; it is %q and %q", size, how, got, own, others)
					}
					_ = b.Close(t.Context())
				}
			}
			a, b := g.connect(""), g.connect("")
			_, _ = trySimple(a, k.make)
			if strings.Contains(k.name, "value of a sequence") { // kept from the first question on
				_ = shown(a, k.show)
			}
			if got := shown(b, k.show); leaks(got) {
				t.Errorf("another client sees %q; it is %q and %q", got, own, others)
			}
			if got := shown(a, k.show); got != own {
				t.Errorf("the client itself sees %q, want %q", got, own)
			}
			_ = a.Close(t.Context())
			_ = b.Close(t.Context())
		})
	}
}

// TestCurrentValueIsOnesOwn: what another client drew on the connection isn't shown to one that has used it since, but drew
// nothing; what the client itself drew is.
func TestCurrentValueIsOnesOwn(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(1)})
	g.group.Primary.Exec("CREATE SEQUENCE s; CREATE TABLE t (k int)")
	simple(t, g.connect(""), "SELECT 1")
	g.awaitFunctions()
	a, b := g.connect(""), g.connect("")
	simple(t, a, "SELECT nextval('s')")
	for _, sql := range []string{"SELECT 1", "SHOW work_mem", "SELECT count(*) FROM t", "BEGIN; SELECT 2; COMMIT", "SET work_mem = '1MB'"} {
		simple(t, b, sql)
	}
	if got := shown(b, "SELECT currval('s')"); got != "55000" {
		t.Errorf("a client that drew nothing sees %q", got)
	}
	_ = b.Close(t.Context())
	b = g.connect("")
	simple(t, b, "SELECT nextval('s')")
	simple(t, b, "SELECT 1")
	if got := shown(b, "SELECT currval('s')"); got != "2" {
		t.Errorf("a client that drew 2 sees %q", got)
	}
}
