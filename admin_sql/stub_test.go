package adminsql

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"neki/internal/pgerr"
	"neki/internal/testpg"
)

// client runs psql or pg_dump against the server and gives what it printed.
func client(t *testing.T, s *testpg.Server, program, dsn string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(s.BinDir(), program), append([]string{"-d", dsn}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// run executes a script as the admin does: one simple query.
func run(t *testing.T, conn *pgx.Conn, script string) {
	t.Helper()
	if _, err := conn.PgConn().Exec(t.Context(), script).ReadAll(); err != nil {
		t.Fatalf("%v", err)
	}
}

func text1(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	var s *string
	if err := conn.QueryRow(t.Context(), sql).Scan(&s); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	if s == nil {
		return "NULL"
	}
	return *s
}

// failure gives the Postgres error that sql must end in.
func failure(ctx context.Context, t *testing.T, conn *pgx.Conn, sql string) *pgconn.PgError {
	t.Helper()
	_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	pg, ok := pgerr.From(err).Unwrap().(*pgconn.PgError)
	if err == nil || !ok && pgerr.Code(err) == "" {
		t.Fatalf("%s: no error of Postgres but %v", sql, err)
	}
	if pg == nil {
		e := pgerr.From(err)
		pg = &pgconn.PgError{Code: e.Code, Message: e.Message, Hint: e.Hint}
	}
	return pg
}

func TestStubObjects(t *testing.T) {
	server := testpg.Start(t)
	admin := server.Conn(t.Context())
	var version string
	if err := admin.QueryRow(t.Context(), StubVersionQuery).Scan(&version); err != pgx.ErrNoRows {
		t.Fatalf("version before: %q, %v", version, err)
	}
	run(t, admin, StubSQL())
	run(t, admin, StubSQL()) // again does no harm
	if got := text1(t, admin, StubVersionQuery); got != StubVersion() {
		t.Errorf("version %s, want %s", got, StubVersion())
	}
	server.Exec("CREATE ROLE app LOGIN PASSWORD 'app'")
	dsn := server.DSNFor("app", "app", "postgres")
	user, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = user.Close(context.WithoutCancel(t.Context())) })

	t.Run("columns", func(t *testing.T) { stubColumns(t, user) })
	t.Run("routines", func(t *testing.T) { stubRoutines(t, user) })
	t.Run("errors", func(t *testing.T) { stubErrors(t, user) })
	t.Run("psql", func(t *testing.T) { stubInPsql(t, server, dsn) })
	t.Run("roles", func(t *testing.T) {
		if got := text1(t, admin, `SELECT string_agg(rolname || rolcanlogin || rolsuper, ' ' ORDER BY rolname)
			FROM pg_roles WHERE rolname LIKE 'neki%'`); got != "neki_operatorfalsefalse neki_viewerfalsefalse" {
			t.Errorf("roles %s", got)
		}
		if got := text1(t, admin, "SELECT pg_has_role('neki_operator', 'neki_viewer', 'MEMBER')::text"); got != "true" {
			t.Error("neki_operator is not a member of neki_viewer")
		}
	})
	t.Run("pg_dump", func(t *testing.T) {
		server.Exec("CREATE TABLE kept (a int)")
		dump := client(t, server, "pg_dump", server.DSN())
		if !strings.Contains(dump, "CREATE TABLE public.kept") || strings.Contains(dump, "neki") {
			t.Errorf("dump has neki or lacks the table:\n%s", dump)
		}
		if dump = client(t, server, "pg_dump", server.DSN(), "--schema=neki"); strings.Contains(dump, "CREATE") {
			t.Errorf("dump of the schema:\n%s", dump)
		}
	})
}

// stubColumns compares names, types, order and comments of the views' columns with the relations' own, as an
// ordinary user sees them in information_schema.
func stubColumns(t *testing.T, user *pgx.Conn) {
	var want []string
	for _, r := range New(Inputs{}).Relations() {
		if r.Schema != SchemaName || r.Function {
			continue
		}
		for _, c := range r.Columns {
			want = append(want, r.Name+"."+c.Name+" "+udtName(c.Type)+" "+c.Comment)
		}
	}
	rows, err := user.Query(t.Context(), `SELECT table_name || '.' || column_name || ' ' || udt_name || ' ' ||
		col_description(('neki.' || quote_ident(table_name))::regclass, ordinal_position)
		FROM information_schema.columns WHERE table_schema = 'neki' ORDER BY table_name COLLATE "C", ordinal_position`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("columns (-relations +stubs):\n%s", diff)
	}
}

func udtName(oid uint32) string {
	if name := TypeName(oid); name != "text[]" {
		return name
	}
	return "_text"
}

func stubRoutines(t *testing.T, user *pgx.Conn) {
	var want []string
	for _, p := range New(Inputs{}).Procedures() {
		want = append(want, p.Name+"("+strings.NewReplacer(
			"int4 DEFAULT '1'", "integer DEFAULT 1", "int4 DEFAULT '2'", "integer DEFAULT 2", "int4 DEFAULT '0'", "integer DEFAULT 0", "jsonb DEFAULT NULL", "jsonb DEFAULT NULL::jsonb",
			"int4", "integer", "int8 DEFAULT NULL", "bigint DEFAULT NULL::bigint", "text DEFAULT NULL", "text DEFAULT NULL::text", "interval DEFAULT NULL", "interval DEFAULT NULL::interval",
			"timestamptz DEFAULT NULL", "timestamp with time zone DEFAULT NULL::timestamp with time zone",
			"text DEFAULT 'replica'", "text DEFAULT 'replica'::text", "bool DEFAULT 'false'", "boolean DEFAULT false", "bool DEFAULT 'true'", "boolean DEFAULT true").Replace(signature(p.Args))+")")
	}
	rows, err := user.Query(t.Context(), `SELECT proname || '(' ||
		replace(pg_get_function_arguments(oid), 'IN ', '') || ')' FROM pg_proc
		WHERE pronamespace = 'neki'::regnamespace AND prokind = 'p' ORDER BY proname COLLATE "C"`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("procedures (-registry +stubs):\n%s", diff)
	}
	if n := text1(t, user, `SELECT count(*)::text FROM information_schema.routines
		WHERE routine_schema = 'neki'`); n == "0" {
		t.Error("information_schema.routines hides them from an ordinary user")
	}
}

func stubErrors(t *testing.T, user *pgx.Conn) {
	run(t, user, "CREATE TEMP TABLE one AS SELECT 'sh1' AS shard; CREATE TEMP TABLE none AS SELECT 'sh1' AS shard LIMIT 0; ANALYZE one, none")
	for _, sql := range []string{
		"SELECT EXISTS (SELECT FROM neki.shards)",
		"SELECT EXISTS (SELECT FROM neki.shards WHERE shard = 'sh1')",
		"SELECT * FROM neki.shards WHERE shard IS NOT NULL AND ready",
		"SELECT * FROM one JOIN neki.shards USING (shard)",
		"SELECT * FROM one LEFT JOIN neki.shards USING (shard)",
		"SELECT * FROM neki.shards LEFT JOIN none USING (shard)",
		"SELECT * FROM one WHERE EXISTS (SELECT FROM neki.shards s WHERE s.shard = one.shard)",
		"SELECT * FROM one WHERE shard NOT IN (SELECT shard FROM neki.shards)",
		"SELECT * FROM neki.nodes JOIN neki.shards USING (shard)",
		"SELECT shard FROM neki.shards UNION SELECT shard FROM one",
		"SELECT * FROM neki.replicas",
		"SELECT count(*) FROM neki.sessions",
		"SELECT * FROM neki.replica_choice('sh1')",
		"SELECT uid FROM __neki.list_shards()",
		"CALL neki.kill_session(5)",
		"CALL neki.set_parameter(scope => 'gateway', name => 'buffer-window', value => '5s')",
		"CALL neki.reload()",
	} {
		err := failure(t.Context(), t, user, sql)
		if err.Code != pgerr.FeatureNotSupported || err.Hint != "Connect through a gateway." {
			t.Errorf("%s: %s %s HINT %s", sql, err.Code, err.Message, err.Hint)
		}
	}
	for _, probe := range []string{
		"SELECT * FROM neki.replicas LIMIT 0", "EXPLAIN SELECT * FROM neki.replicas",
		"SELECT 'neki.replicas'::regclass, has_table_privilege('neki.replicas', 'SELECT')",
	} {
		run(t, user, probe)
	}
	if err := failure(t.Context(), t, user, "DROP SCHEMA neki CASCADE"); err.Code != pgerr.InsufficientPrivilege {
		t.Errorf("DROP SCHEMA: %s %s", err.Code, err.Message)
	}
}

// stubInPsql runs the \d commands and the queries of psql's tab completion.
func stubInPsql(t *testing.T, server *testpg.Server, dsn string) {
	if out := client(t, server, "psql", dsn, "-X", "-c", `\df neki.*`); strings.Contains(out, "gateway_only") || strings.Contains(out, "gateway_rows") {
		t.Errorf("\\df neki.* shows what is internal:\n%s", out)
	}
	for command, want := range map[string][]string{
		`\dn`:          {"neki", "__neki"},
		`\dv neki.*`:   {"replicas", "shards", "metrics"},
		`\d neki.*`:    {`View "neki.replicas"`, "replay_lsn", "pg_lsn"},
		`\df neki.*`:   {"kill_session", "pid integer", "SETOF __neki.replica_choice", "scope text, IN name text"},
		`\df __neki.*`: {"list_shards", "SETOF __neki.list_shards"},
		`\dv+ neki.*`:  {"Every Postgres instance, primaries too"},
	} {
		out := client(t, server, "psql", dsn, "-X", "-c", command)
		for _, part := range want {
			if !strings.Contains(out, part) {
				t.Errorf("%s: no %q in\n%s", command, part, out)
			}
		}
	}
}

// TestStubReplacesOlderVersion puts a database into the state an older release left: a view with other columns and a
// procedure that is gone, an event trigger that forbids DDL, a search_path that hides pg_catalog's names, read-only by
// default. The script must bring all up to date and leave user objects alone.
func TestStubReplacesOlderVersion(t *testing.T) {
	server := testpg.Start(t)
	admin := server.Conn(t.Context())
	run(t, admin, StubSQL())
	run(t, admin, `
		ALTER EXTENSION plpgsql DROP VIEW neki.shards; DROP VIEW neki.shards;
		CREATE VIEW neki.shards AS SELECT 1 AS old; ALTER EXTENSION plpgsql ADD VIEW neki.shards;
		CREATE FUNCTION neki._gateway_only() RETURNS bool LANGUAGE sql AS 'SELECT true';
		ALTER EXTENSION plpgsql ADD FUNCTION neki._gateway_only();
		CREATE PROCEDURE neki.gone(a text[]) LANGUAGE sql AS ''; ALTER EXTENSION plpgsql ADD PROCEDURE neki.gone;
		COMMENT ON SCHEMA neki IS 'Virtual schema (stub version 0123)';
		CREATE SCHEMA trap; CREATE FUNCTION trap.format(text, text) RETURNS text LANGUAGE sql AS $$ SELECT 'DROP TABLE x' $$;
		CREATE FUNCTION trap.no() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no DDL here'; END$$;
		CREATE EVENT TRIGGER no ON ddl_command_start EXECUTE FUNCTION trap.no();
		SET search_path = trap, public;
		SET default_transaction_read_only = on`)
	if got := text1(t, admin, StubVersionQuery); got != "0123" {
		t.Fatalf("version %s", got)
	}
	run(t, admin, StubSQL())
	if got := text1(t, admin, StubVersionQuery); got != StubVersion() {
		t.Errorf("version %s, want %s", got, StubVersion())
	}
	names := text1(t, admin, `SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_catalog.pg_proc
		WHERE pronamespace = 'neki'::regnamespace`)
	if slices.Contains(strings.Fields(names), "gone") || slices.Contains(strings.Fields(names), "_gateway_only") {
		t.Errorf("procedure of the older version is still there: %s", names)
	}
	if got := text1(t, admin, `SELECT count(*)::text FROM pg_catalog.pg_attribute
		WHERE attrelid = 'neki.shards'::regclass AND attname = 'authoritative'`); got != "1" {
		t.Error("neki.shards was not replaced")
	}
	if got := text1(t, admin, "SHOW search_path"); got != "trap, public" {
		t.Errorf("search_path changed to %s", got)
	}
}

// TestStubSparesUserViews: a view of a user's on a stub must not be dropped by an upgrade.
func TestStubSparesUserViews(t *testing.T) {
	server := testpg.Start(t)
	admin := server.Conn(t.Context())
	run(t, admin, StubSQL())
	run(t, admin, "CREATE VIEW mine AS SELECT shard FROM neki.shards")
	if err := failure(t.Context(), t, admin, StubSQL()); err.Code != "2BP01" {
		t.Errorf("%s %s", err.Code, err.Message)
	}
	run(t, admin, "ROLLBACK")
	if got := text1(t, admin, StubVersionQuery); got != StubVersion() {
		t.Errorf("a failed upgrade left version %s", got)
	}
}
