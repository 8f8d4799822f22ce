package pooler

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	admin "neki/admin_sql"
	"neki/catalog"
	"neki/internal/pgerr"
	"neki/settings"
)

// lateFacts are the facts of a server that is made after the schema over them.
type lateFacts struct {
	facts
	server *Server
}

func (l *lateFacts) get() facts { return facts{l.server} }

func (l *lateFacts) Sessions(ctx context.Context) ([]admin.SessionRow, error) {
	return l.get().Sessions(ctx)
}

func (l *lateFacts) Pools(ctx context.Context) ([]admin.PoolRow, error) { return l.get().Pools(ctx) }

func (l *lateFacts) Reads(node string) (int64, bool) { return l.get().Reads(node) }

func (l *lateFacts) Plans(ctx context.Context) ([]admin.PlanRow, error) { return l.get().Plans(ctx) }

func (l *lateFacts) Statements(ctx context.Context) ([]admin.StatementRow, error) {
	return l.get().Statements(ctx)
}

func (l *lateFacts) Judge(s *catalog.Snapshot, shard string) []admin.Candidate {
	return l.get().Judge(s, shard)
}

func (l *lateFacts) Choose(ctx context.Context, sess admin.Session, s *catalog.Snapshot, shard string) ([]admin.Candidate, error) {
	return l.get().Choose(ctx, sess, s, shard)
}

func (l *lateFacts) CancelQuery(ctx context.Context, pid int32) (bool, error) {
	return l.get().CancelQuery(ctx, pid)
}

func (l *lateFacts) KillSession(ctx context.Context, pid int32) (bool, error) {
	return l.get().KillSession(ctx, pid)
}
func (l *lateFacts) Reload(ctx context.Context) error              { return l.get().Reload(ctx) }
func (l *lateFacts) Pause(ctx context.Context, shard string) error { return l.get().Pause(ctx, shard) }

func (l *lateFacts) Resume(ctx context.Context, shard string) error {
	return l.get().Resume(ctx, shard)
}
func (l *lateFacts) Drain(ctx context.Context, gw string) error { return l.get().Drain(ctx, gw) }
func (l *lateFacts) FlushPlans(ctx context.Context) error       { return l.get().FlushPlans(ctx) }

// startWithSchema starts a gateway with the neki schema.
func startWithSchema(t testing.TB, replicas int) *gateway {
	t.Helper()
	return startWithSchemaAnd(t, replicas, nil)
}

func startWithSchemaAnd(t testing.TB, replicas int, parameters func(*settings.Parameters)) *gateway {
	t.Helper()
	late := &lateFacts{}
	g := startGateway(t, gatewayOptions{replicas: replicas, parameters: parameters, config: late.addSchema})
	late.server = g.server
	return g
}

// addSchema gives a gateway the neki schema; its facts are the server's, which is known when the gateway has started.
func (l *lateFacts) addSchema(cfg *Config) {
	cfg.Virtual = admin.New(admin.Inputs{
		Catalog: cfg.Cluster, Sessions: l, Pools: l, Plans: l, Statements: l,
		Metrics: prometheus.NewRegistry(), Choice: l, Controls: l,
	})
}

func TestVirtualSchema(t *testing.T) {
	g := startWithSchema(t, 2)
	conn := g.connect("")
	rows := simple(t, conn, "SELECT node, state, eligible FROM neki.replicas ORDER BY 1")
	if len(rows) != 2 || rows[0][0] != "sh1-b" || rows[0][1] != "serving" || rows[0][2] != "t" {
		t.Errorf("replicas: %v", rows)
	}
	ctx := t.Context()
	var node string
	var lag time.Duration
	var port int32
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		err := conn.QueryRow(ctx, "SELECT node, lag, port FROM neki.replicas WHERE node = $1", mode, "sh1-c").Scan(&node, &lag, &port)
		if err != nil || node != "sh1-c" || int(port) != g.group.Replicas[1].Port() {
			t.Errorf("%s: %s, %s, %d, %v", mode, node, lag, port, err)
		}
	}
	batch := &pgx.Batch{}
	batch.Queue("SELECT 1")
	batch.Queue("SELECT count(*) FROM neki.sessions")
	batch.Queue("SELECT 3")
	results := conn.SendBatch(ctx, batch)
	for i := range 3 {
		var n int
		if err := results.QueryRow().Scan(&n); err != nil {
			t.Errorf("batch %d: %v", i, err)
		}
	}
	if err := results.Close(); err != nil {
		t.Error(err)
	}
	if _, err := trySimple(conn, "SELECT * FROM neki.replcas"); pgerr.Code(err) != pgerr.UndefinedTable {
		t.Errorf("a wrong name: %v", err)
	}
	simple(t, conn, "BEGIN")
	if _, err := trySimple(conn, "SELECT nosuch FROM neki.replicas"); pgerr.Code(err) != pgerr.UndefinedColumn {
		t.Errorf("a wrong column: %v", err)
	}
	if _, err := trySimple(conn, "SELECT 1"); pgerr.Code(err) != pgerr.InFailedSQLTransaction {
		t.Errorf("after an error of the gateway's own: %v", err)
	}
	simple(t, conn, "ROLLBACK")
	plans := func() string { // the text of the question must not answer it
		return one(t, conn, "SELECT count(*) FROM neki.plans WHERE query ILIKE '%AS kept' || 'plan'")
	}
	eventually(t, "the plan is kept", func() bool {
		simple(t, conn, "SELECT 1 AS keptplan")
		return plans() == "1"
	})
	simple(t, conn, "CALL neki.flush_plans()")
	if got := plans(); got != "0" {
		t.Errorf("%s plans", got)
	}
}

// TestVirtualSchemaAnswersAlone stops every Postgres.
func TestVirtualSchemaAnswersAlone(t *testing.T) {
	g := startWithSchema(t, 2)
	conn := g.connect("")
	simple(t, conn, "SELECT 1")
	for _, s := range g.servers() {
		s.Kill()
	}
	eventually(t, "the replicas are seen stopped", func() bool {
		return one(t, conn, "SELECT count(*) FROM neki.replicas WHERE state <> 'serving'") == "2"
	})
	start := time.Now()
	if rows := simple(t, conn, "SELECT node, state, reason FROM neki.replicas ORDER BY 1"); len(rows) != 2 {
		t.Errorf("%v", rows)
	}
	t.Logf("answered in %s", time.Since(start))
	again := g.connect("") // a login from what is remembered
	if got := one(t, again, "SELECT count(*) FROM neki.replicas"); got != "2" {
		t.Errorf("%s replicas", got)
	}
}

func TestOwnSettings(t *testing.T) {
	g := startWithSchema(t, 1)
	conn := g.connect("-c __neki.replica_recency=require")
	for _, step := range []struct{ sql, want string }{
		{"SHOW __neki.target", "primary"},
		{"SHOW __neki.replica_recency", "require"},
		{"SET __neki.replica_recency = OFF; SHOW __neki.replica_recency", "off"},
		{"RESET __neki.replica_recency; SHOW __neki.replica_recency", "require"},
		{"SET __neki.replica_recency TO DEFAULT; SHOW __neki.replica_recency", "require"},
		{"SELECT current_setting('__neki.replica_recency')", "require"},
		{"SELECT set_config('__neki.target', 'Auto', false)", "auto"},
		{"SHOW __neki.target", "auto"},
		{"RESET ALL; SHOW __neki.target", "primary"},
		{"SET __neki.target = 'auto'; SELECT 1", "1"},
		{"DISCARD ALL", ""},
		{"SHOW __neki.target", "primary"},
	} {
		rows := simple(t, conn, step.sql)
		if step.want != "" && (len(rows) != 1 || rows[0][0] != step.want) {
			t.Errorf("%s: %v, want %s", step.sql, rows, step.want)
		}
	}
	found := false
	for _, row := range simple(t, conn, "SHOW ALL") {
		found = found || row[0] == "__neki.target" && row[1] == "primary"
	}
	if !found {
		t.Error("SHOW ALL does not list __neki.target")
	}
	for sql, code := range map[string]string{
		"SET __neki.taget = 'replica'":                               pgerr.UndefinedObject,
		"SET neki.target = 'replica'":                                pgerr.UndefinedObject,
		"SHOW neki.target":                                           pgerr.UndefinedObject,
		"SELECT set_config('neki.target', 'replica', false)":         pgerr.UndefinedObject,
		"SELECT current_setting('neki.target')":                      pgerr.UndefinedObject,
		"SET __neki.target = 'both'":                                 pgerr.InvalidParameterValue,
		"SHOW __neki.nosuch":                                         pgerr.UndefinedObject,
		"BEGIN; SET __neki.target = 'replica'":                       pgerr.ActiveSQLTransaction,
		"SET __neki.target = 'auto'; BEGIN; RESET ALL":               pgerr.ActiveSQLTransaction,
		"SELECT current_setting('__neki.taget')":                     pgerr.UndefinedObject,
		"SELECT set_config('__neki.nosuch', 'x', false)":             pgerr.UndefinedObject,
		"SET standard_conforming_strings = off":                      pgerr.FeatureNotSupported,
		"SET client_encoding = 'SJIS'":                               pgerr.FeatureNotSupported,
		"SET __neki.target = 'replica'; SELECT nosuch":               "42703",
		"SELECT * FROM neki.replicas r JOIN pg_class c ON c.oid = 1": pgerr.NotImplemented,
	} {
		_, err := trySimple(conn, sql)
		if pgerr.Code(err) != code {
			t.Errorf("%s: %v, want %s", sql, err, code)
		}
		simple(t, conn, "ROLLBACK")
		if got := one(t, conn, "SHOW __neki.target"); got != "primary" {
			t.Errorf("after %s the target is %s", sql, got)
			simple(t, conn, "RESET __neki.target")
		}
	}
}

// TestOwnSettingsInFailedBlock: SET of a __neki setting is refused in any transaction block for what it is.
func TestOwnSettingsInFailedBlock(t *testing.T) {
	g := startWithSchema(t, 0)
	conn := g.connect("")
	simple(t, conn, "BEGIN")
	for _, step := range []struct{ sql, code string }{
		{"SELECT 1/0", pgerr.DivisionByZero},
		{"SET __neki.target = 'replica'", pgerr.ActiveSQLTransaction},
		{"RESET __neki.target", pgerr.ActiveSQLTransaction},
		{"SHOW __neki.target", pgerr.InFailedSQLTransaction},
		{"SELECT 1", pgerr.InFailedSQLTransaction},
		{"RESET ALL", pgerr.InFailedSQLTransaction},
	} {
		if _, err := trySimple(conn, step.sql); pgerr.Code(err) != step.code {
			t.Errorf("%s: %v", step.sql, err)
		}
		_, err := conn.Exec(t.Context(), step.sql, pgx.QueryExecModeExec)
		if want := step.code; pgerr.Code(err) != want && !(want == pgerr.DivisionByZero && pgerr.Code(err) == pgerr.InFailedSQLTransaction) {
			t.Errorf("extended %s: %v", step.sql, err)
		}
	}
	simple(t, conn, "ROLLBACK")
	if got := one(t, conn, "SHOW __neki.target"); got != "primary" {
		t.Errorf("target %s", got)
	}
}

// TestResetAllInBlock: RESET ALL is refused within a transaction when it would change a __neki setting there.
func TestResetAllInBlock(t *testing.T) {
	g := startWithSchema(t, 0)
	conn := g.connect("")
	for _, reset := range []func() error{
		func() error { _, err := trySimple(conn, "RESET ALL"); return err },
		func() error { _, err := trySimple(conn, "SELECT 1; RESET ALL"); return err },
		func() error { _, err := conn.Exec(t.Context(), "RESET ALL", pgx.QueryExecModeExec); return err },
	} {
		simple(t, conn, "SET __neki.target = 'auto'; SET work_mem = '3MB'")
		simple(t, conn, "BEGIN")
		if err := reset(); pgerr.Code(err) != pgerr.ActiveSQLTransaction {
			t.Errorf("RESET ALL in a block: %v", err)
		}
		if _, err := trySimple(conn, "SELECT 1"); pgerr.Code(err) != pgerr.InFailedSQLTransaction {
			t.Errorf("the block goes on: %v", err)
		}
		simple(t, conn, "ROLLBACK")
		if got := one(t, conn, "SHOW __neki.target") + one(t, conn, "SHOW work_mem"); got != "auto3MB" {
			t.Errorf("after ROLLBACK: %s", got)
		}
		simple(t, conn, "BEGIN; COMMIT; RESET ALL")
		if got := one(t, conn, "SHOW __neki.target") + one(t, conn, "SHOW work_mem"); got != "primary4MB" {
			t.Errorf("after RESET ALL: %s", got)
		}
		simple(t, conn, "BEGIN; RESET ALL; COMMIT") // changes none
	}
	if tag, err := conn.Exec(t.Context(), "SET __neki.target = DEFAULT"); err != nil || tag.String() != "SET" {
		t.Errorf("SET TO DEFAULT: %s, %v", tag, err)
	}
	if tag, err := conn.Exec(t.Context(), "RESET __neki.target"); err != nil || tag.String() != "RESET" {
		t.Errorf("RESET: %s, %v", tag, err)
	}
}

// TestRightsOfTheCurrentRole: what SET ROLE and SET SESSION AUTHORIZATION make of the rights on the neki schema.
func TestRightsOfTheCurrentRole(t *testing.T) {
	g := startWithSchema(t, 0)
	conn := g.connect("")
	simple(t, conn, `CREATE ROLE neki_viewer; CREATE ROLE neki_operator IN ROLE neki_viewer;
		CREATE ROLE seer IN ROLE neki_viewer; CREATE ROLE nobody; CREATE ROLE root SUPERUSER`)
	for _, step := range []struct {
		sql           string
		view, operate bool
	}{
		{"SELECT 1", true, true},
		{"SET ROLE nobody", false, false},
		{"SET ROLE seer", true, false},
		{"SET SESSION AUTHORIZATION nobody", false, false}, // ends SET ROLE
		{"RESET SESSION AUTHORIZATION", true, true},
		{"SET ROLE neki_operator", true, true},
		{"SET ROLE root", true, true},
		{"SET ROLE nobody", false, false},
		{"RESET ROLE; GRANT neki_operator TO nobody; SET ROLE nobody", true, true},
		{"RESET ROLE; REVOKE neki_operator FROM nobody; SET ROLE nobody", false, false},
		{"RESET ROLE", true, true},
	} {
		simple(t, conn, step.sql)
		_, view := trySimple(conn, "SELECT count(*) FROM neki.shards")
		_, operate := trySimple(conn, "CALL neki.flush_plans()")
		if refused := pgerr.Code(view) == pgerr.InsufficientPrivilege; refused == step.view || view != nil && !refused {
			t.Errorf("after %s, a look: %v", step.sql, view)
		}
		if refused := pgerr.Code(operate) == pgerr.InsufficientPrivilege; refused == step.operate || operate != nil && !refused {
			t.Errorf("after %s, a procedure: %v", step.sql, operate)
		}
		if got, want := one(t, conn, "SELECT current_user"), one(t, conn, "SELECT current_user::text || ''"); got != want {
			t.Errorf("after %s: current_user %s at the gateway, %s at the server", step.sql, got, want)
		}
	}
}

func TestDeallocateOfProtocolStatement(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	conn := g.connect("")
	if _, err := conn.PgConn().Prepare(t.Context(), "mine", "SELECT 1", nil); err != nil {
		t.Fatal(err)
	}
	simple(t, conn, "DEALLOCATE mine")
	if _, err := trySimple(conn, "DEALLOCATE mine"); pgerr.Code(err) != pgerr.InvalidSQLStatementName {
		t.Errorf("a second time: %v", err)
	}
	if _, err := conn.PgConn().Prepare(t.Context(), "mine", "SELECT 2", nil); err != nil {
		t.Error(err)
	}
}

func TestExplainNekiPlan(t *testing.T) {
	g := startWithSchema(t, 2)
	conn := g.connect("-c __neki.target=auto")
	simple(t, g.connect(""), "CREATE TABLE t (k int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 10)")
	g.awaitFunctions()
	g.group.WaitCaughtUp()
	for _, tc := range []struct{ sql, want string }{
		{"EXPLAIN (NEKI_PLAN) SELECT * FROM t", "sh1-b"},
		{"EXPLAIN (NEKI_PLAN) INSERT INTO t VALUES (11)", "sh1-a"},
		{"EXPLAIN (NEKI_PLAN, ANALYZE, COSTS OFF) SELECT * FROM t", "Rows: 10"},
		{"EXPLAIN (NEKI_PLAN, NEKI_PG_PLAN, COSTS OFF) SELECT * FROM t", "Seq Scan on t"},
		{"EXPLAIN (NEKI_PLAN, FORMAT JSON) SELECT * FROM t", "\"Route\""},
		{"EXPLAIN SELECT * FROM t", "Seq Scan on t"},
	} {
		var text string
		for _, row := range simple(t, conn, tc.sql) {
			text += row[0] + "\n"
		}
		if !strings.Contains(text, tc.want) {
			t.Errorf("%s: no %q in\n%s", tc.sql, tc.want, text)
		}
	}
	if _, err := trySimple(conn, "EXPLAIN (NEKI_PLAN, ANALYZE) SELECT 1/0 FROM t"); pgerr.Code(err) != pgerr.DivisionByZero {
		t.Errorf("an error of the shard: %v", err)
	}
	// Right after a write the choice waits as the read would.
	simple(t, conn, "SET __neki.replica_consistency = 'session'; SET __neki.replica_wait = '20s'")
	for range 20 {
		simple(t, conn, "UPDATE t SET k = k + 100")
		rows := simple(t, conn, "EXPLAIN (NEKI_PLAN) SELECT * FROM t")
		for _, row := range rows {
			if strings.Contains(row[0], "Refused") {
				t.Fatalf("refused: %v", rows)
			}
		}
	}
}

// TestShardSettingIsChecked: a shard that does not exist is refused by SET, set_config and the startup packet.
func TestShardSettingIsChecked(t *testing.T) {
	g := startWithSchema(t, 1)
	conn := g.connect("")
	for _, sql := range []string{"SET __neki.shard = 'nope'", "SELECT set_config('__neki.shard', 'nope', false)"} {
		_, err := trySimple(conn, sql)
		e := pgerr.From(err)
		if e.Code != pgerr.InvalidParameterValue || e.Hint != "Available values: sh1." {
			t.Errorf("%s: %v, HINT %q", sql, err, e.Hint)
		}
	}
	if got := one(t, conn, "SHOW __neki.shard"); got != "" {
		t.Errorf("__neki.shard is %q", got)
	}
	if got := one(t, conn, "SET __neki.shard = 'sh1'; SHOW __neki.shard"); got != "sh1" {
		t.Errorf("__neki.shard is %q", got)
	}
	if got := one(t, conn, "SET __neki.shard = ''; SHOW __neki.shard"); got != "" {
		t.Errorf("__neki.shard is %q", got)
	}
	_, err := pgx.ConnectConfig(t.Context(), g.config("-c __neki.shard=nope"))
	if pgerr.Code(err) != pgerr.InvalidParameterValue {
		t.Errorf("startup: %v", err)
	}
}

// TestNobodyWaits: max_wait is of those who wait now, so it is NULL when nobody does.
func TestNobodyWaits(t *testing.T) {
	g := startWithSchema(t, 1)
	conn := g.connect("")
	simple(t, conn, "SELECT 1")
	rows := simple(t, conn, "SELECT waiting, max_wait IS NULL FROM neki.pools WHERE node = 'sh1-a' AND \"user\" = current_user")
	if len(rows) != 1 || rows[0][0] != "0" || rows[0][1] != "t" {
		t.Errorf("waiting, max_wait IS NULL: %v", rows)
	}
}
