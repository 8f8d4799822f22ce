package pooler

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
	"neki/settings"
)

func poolOf(n int) func(*settings.Parameters) {
	return func(p *settings.Parameters) { p.PoolCapacity, p.PoolMinConns = n, 1 }
}

// preparedSequences are conversations about SQL-level prepared statements, compared with Postgres's as sequences are.
var preparedSequences = []struct {
	name  string
	steps []step
}{
	{"prepare and execute", []step{
		{q("prepare p(int) as select $1 + 1"), 1},
		{q("execute p(1)"), 1},
		{q("  /* c */ EXECUTE \"p\" ( 2 ) ; "), 1},
		{q("execute P(3)"), 1},
		{q("execute p"), 1},
		{q("execute p(1, 2)"), 1},
		{q("execute p('x')"), 1},
		{q("execute p((select 1))"), 1},
		{q("execute nosuch(1)"), 1},
	}},
	{"all in one string", []step{
		{q("prepare p as select 1; execute p; deallocate p; prepare p as select 2; execute p; execute p; deallocate all; execute p"), 1},
		{q("prepare p as select 'ä'; execute p; select nosuch"), 1},
		{q("execute p; select 'ö', nosuch"), 1},
		{q("prepare p as select 1; select 2"), 1},
		{q("select 1; prepare p2 as select 2; execute p2; prepare p2 as select 3; select 4"), 1},
		{q("execute p2"), 1},
	}},
	{"a string is one transaction", []step{
		{q("insert into t values (10); prepare p as select 1; execute p; select 1/0"), 1},
		{q("select count(*) from t"), 1},
		{q("execute p"), 1},
		{q("prepare i as insert into t values (11)"), 1},
		{q("execute i; execute nosuch"), 1},
		{q("select count(*) from t"), 1},
	}},
	{"duplicate names", []step{
		{q("prepare p as select 1"), 1},
		{q("prepare p as select 2"), 1},
		{q("execute p"), 1},
		{q("prepare p as select 1; select 2"), 1},
		{q("prepare d as select 1; prepare d as select 2"), 1},
		{q("execute d"), 1},
		{q("prepare p as select nosuch"), 1},
	}},
	{"errors and their positions", []step{
		{q("prepare p as select nosuch"), 1},
		{q("execute p"), 1},
		{q(`prepare "ä ö ü" as select nosuch`), 1},
		{q(`prepare a_very_long_name_indeed as select nosuch from t`), 1},
		{q("prepare p as selct"), 1},
		{q("prepare p as select 1; prepare r as select nosuch"), 1},
		{q("prepare r(int) as select $1; execute r(nosuch)"), 1},
		{q("execute r(nosuch)"), 1},
		{q("select nosuch; execute r(1)"), 1},
		{q("prepare s as select 1 / 0"), 1},
		{q("prepare s(int) as select 1 / $1"), 1},
		{q("execute s(0)"), 1},
	}},
	{"quoted names", []step{
		{q(`prepare"A b"as select 'quoted'`), 1},
		{q(`execute"A b"`), 1},
		{q(`execute "a b"`), 1},
		{q(`prepare U&"d\0061t" as select 'dat'`), 1},
		{q(`execute dat`), 1},
		{q(`execute U&"d!0061t" uescape '!'`), 1},
		{q(`deallocate prepare U&"d\0061t"`), 1},
		{q(`execute dat`), 1},
		{q(`prepare "" as select 1`), 1},
	}},
	{"deallocate", []step{
		{q("deallocate nosuch"), 1},
		{q("deallocate all"), 1},
		{q("prepare p as select 1; prepare r as select 2"), 1},
		{q("deallocate p"), 1},
		{q("deallocate p"), 1},
		{q("execute p"), 1},
		{q("execute r"), 1},
		{q("deallocate prepare all"), 1},
		{q("execute r"), 1},
	}},
	{"in transactions", []step{
		{q("begin"), 1},
		{q("prepare p as select 1"), 1},
		{q("execute p"), 1},
		{q("rollback"), 1},
		{q("execute p"), 1},
		{q("begin"), 1},
		{q("select 1/0"), 1},
		{q("execute p"), 1},
		{q("prepare p as select 1"), 1},
		{q("deallocate p"), 1},
		{q("deallocate all"), 1},
		{q("rollback"), 1},
		{q("execute p"), 1},
		{q("begin"), 1},
		{q("execute nosuch"), 1},
		{q("select 1"), 1},
		{q("commit"), 1},
		{q("begin"), 1},
		{q("deallocate nosuch"), 1},
		{q("commit"), 1},
		{q("begin; prepare b as select 1; execute b; commit; execute b"), 1},
	}},
	{"discard all", []step{{q("prepare p as select 1"), 1}, {q("discard all"), 1}, {q("execute p"), 1}, {q("prepare p as select 2"), 1}, {q("execute p"), 1}}},
	{"explained and stored", []step{
		{q("prepare p(int) as select k from t where k = $1"), 1},
		{q("explain (costs off) execute p(1)"), 1},
		{q("explain (analyze, costs off, timing off, summary off) execute p(1)"), 1},
		{q("explain execute nosuch"), 1},
		{q("create temp table x as execute p(1)"), 1},
		{q("select * from x"), 1},
		{q("create temp table y(a) on commit drop as execute nosuch"), 1},
		{q("explain (costs off) create temp table y as execute p(2)"), 1},
	}},
	{"the result type changes", []step{
		{q("create temp table x as select 1 as a"), 1},
		{q("prepare p as select * from x"), 1},
		{q("execute p"), 1},
		{q("alter table x add b int"), 1},
		{q("execute p"), 1},
		{q("drop table x"), 1},
		{q("execute p"), 1},
	}},
	{"execute by the extended protocol", []step{
		{q("prepare p(int) as select $1 + 1"), 1},
		{cat(parse("", "execute p(1)"), describe('S', ""), bindTo("", ""), describe('P', ""), execute("", 0), syncMsg), 1},
		{cat(parse("s", "execute p(2)"), describe('S', "s"), syncMsg), 1},
		{cat(bindTo("", "s"), execute("", 0), syncMsg), 1},
		{cat(bindTo("", "s"), execute("", 0), syncMsg), 1},
		{q("deallocate p"), 1},
		{cat(bindTo("", "s"), execute("", 0), syncMsg), 1},
		{q("prepare p(int) as select $1 + 10"), 1},
		{cat(bindTo("", "s"), execute("", 0), syncMsg), 1},
		{cat(parse("", "execute nosuch(1)"), describe('S', ""), bindTo("", ""), execute("", 0), syncMsg), 1},
		{cat(parse("", "execute p(nosuch)"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{cat(parse("", "execute p"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{cat(parse("", "execute p(3)"), syncMsg), 1},
		{cat(bindTo("", ""), execute("", 0), syncMsg), 1},
		{cat(parse("", "explain (costs off) execute p(1)"), bindTo("", ""), execute("", 0), syncMsg), 1},
	}},
	{"prepare by the extended protocol", []step{
		{cat(parse("", "prepare p as select 1"), describe('S', ""), bindTo("", ""), describe('P', ""), execute("", 0), syncMsg), 1},
		{q("execute p"), 1},
		{cat(parse("", "prepare p as select 2"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{q("execute p"), 1},
		{cat(parse("", "deallocate p"), describe('S', ""), bindTo("", ""), execute("", 0), syncMsg), 1},
		{cat(parse("", "deallocate p"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{cat(parse("", "prepare 	r as select nosuch"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{q("execute r"), 1},
		{cat(parse("", "prepare a as select 1"), bindTo("", ""), execute("", 0), parse("", "execute a"), bindTo("", ""), execute("", 0),
			parse("", "deallocate a"), bindTo("", ""), execute("", 0), parse("", "execute a"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{cat(parse("", "insert into t values (10)"), bindTo("", ""), execute("", 0), parse("", "prepare b as select 1"), bindTo("", ""), execute("", 0),
			parse("", "prepare b as select 1"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{q("select count(*) from t"), 1},
		{q("execute b"), 1},
		{q("begin"), 1},
		{q("select 1/0"), 1},
		{cat(parse("", "execute b"), syncMsg), 1},
		{cat(parse("", "prepare c as select 1"), syncMsg), 1},
		{q("rollback"), 1},
		{cat(parse("", "deallocate all"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{q("execute b"), 1},
	}},
	{"one set of names for both protocols", []step{
		{cat(parse("s", "select $1::int + 1"), syncMsg), 1},
		{q("execute s(4)"), 1},
		{q("prepare s as select 1"), 1},
		{q("prepare p(int) as select $1 * 2"), 1},
		{cat(describe('S', "p"), bindTo("", "p", "21"), execute("", 0), syncMsg), 1},
		{cat(parse("p", "select 3"), syncMsg), 1},
		{cat(closing('S', "p"), syncMsg), 1},
		{q("execute p(1)"), 1},
		{q("deallocate s"), 1},
		{cat(bindTo("", "s", "1"), syncMsg), 1},
	}},
	{"an error forgets no statement", []step{
		{cat(parse("s", "select 1"), syncMsg), 1},
		{q("select 1/0"), 1},
		{cat(bindTo("", "s"), execute("", 0), syncMsg), 1},
		{cat(parse("r", "select 2"), bindTo("", "r"), execute("", 0), syncMsg), 1},
		{q("selct"), 1},
		{cat(bindTo("", "r"), execute("", 0), syncMsg), 1},
		{cat(parse("u", "select 3"), flushMsg), 0},
		{q("select 1/0"), 1},
		{cat(bindTo("", "u"), execute("", 0), syncMsg), 1},
	}},
	{"the server's names are nobody's", []step{
		{q("prepare p as select 'mine'"), 1},
		{q("execute neki_1"), 1},
		{q("execute neki_2"), 1},
		{q(`execute "neki-missing"`), 1},
		{q("deallocate neki_1"), 1},
		{q("prepare neki_1 as select 'theirs'"), 1},
		{q("execute p"), 1},
		{q("execute neki_1"), 1},
	}},
	{"pg_prepared_statements", []step{
		{q("select name, statement, parameter_types, from_sql from pg_prepared_statements order by name"), 1},
		{q("prepare p(int) as select $1;"), 1},
		{cat(parse("s", "select $1::text"), syncMsg), 1},
		{q("select name, statement, parameter_types, from_sql from pg_prepared_statements order by name"), 1},
		{q("execute p(1)"), 1},
		{cat(parse("", "select name from pg_catalog.pg_prepared_statements order by 1"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{cat(bindTo("", "s", "x"), execute("", 0), syncMsg), 1},
		{q("begin; select name from pg_prepared_statement() order by 1; commit"), 1},
		{q("deallocate all"), 1},
		{q("select count(*) from pg_prepared_statements"), 1},
	}},
	{"settings by execute", []step{
		{q("prepare p as select set_config('work_mem', '3MB', false)"), 1}, {q("execute p"), 1}, {q("show work_mem"), 1}, {q("begin; set work_mem = '9MB'; execute p; rollback"), 1}, {q("show work_mem"), 1},
	}},
	{"statements made unseen", []step{
		{q("do $$ begin execute 'prepare hidden as select 5'; end $$"), 1}, {q("execute hidden"), 1}, {q("deallocate hidden"), 1}, {q("execute hidden"), 1},
	}},
}

// TestPreparedSequences has the conversations with Postgres and with gateways of one and of several server connections.
// In between, another client uses the same names for other statements.
func TestPreparedSequences(t *testing.T) {
	for _, connections := range []int{1, 4} {
		t.Run(fmt.Sprint(connections), func(t *testing.T) {
			g := startGateway(t, gatewayOptions{parameters: poolOf(connections)})
			direct, err := pgx.ParseConfig(g.group.Primary.DSN())
			if err != nil {
				t.Fatal(err)
			}
			prepare := func() {
				for _, sql := range []string{"drop table if exists t", "create table t (k int primary key)", "insert into t values (1), (2)"} {
					g.group.Primary.Exec(sql)
				}
			}
			other := g.connect("")
			simple(t, other, "PREPARE p AS SELECT 'other'; PREPARE s AS SELECT 'other'; PREPARE r AS SELECT 'other'")
			for _, tc := range preparedSequences {
				t.Run(strings.ReplaceAll(tc.name, " ", "_"), func(t *testing.T) {
					prepare()
					want := converse(t, direct, tc.steps)
					prepare()
					got := converse(t, g.config(""), tc.steps)
					for i := range tc.steps {
						if got[i] != want[i] {
							t.Errorf("step %d: %q\n  gateway  %s\n  postgres %s", i+1, tc.steps[i].send, got[i], want[i])
						}
					}
					if got := simple(t, other, "EXECUTE p"); got[0][0] != "other" {
						t.Errorf("the other client's p gives %v", got)
					}
				})
			}
		})
	}
}

// TestPreparedFollowsTheClient: statements are their client's on all connections, and pin none.
func TestPreparedFollowsTheClient(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(2)})
	a, b := g.connect(""), g.connect("")
	simple(t, a, "PREPARE p(int) AS SELECT $1, pid FROM pg_stat_activity WHERE pid = pg_backend_pid()")
	simple(t, b, "PREPARE p(int) AS SELECT -$1, pid FROM pg_stat_activity WHERE pid = pg_backend_pid()")
	pids := map[string]bool{}
	for i := range 8 {
		if i == 4 {
			simple(t, b, "BEGIN") // holds a connection: a gets the other
			pids[simple(t, b, "EXECUTE p(1)")[0][1]] = true
		}
		row := simple(t, a, fmt.Sprintf("EXECUTE p(%d)", i))[0]
		pids[row[1]] = true
		if row[0] != fmt.Sprint(i) {
			t.Errorf("EXECUTE p(%d) gave %v", i, row)
		}
	}
	g.server.sessions.each(func(c *Session) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.public.pins != 0 {
			t.Errorf("a session is pinned: %v", c.public.pins.Reasons())
		}
	})
	if len(pids) < 2 {
		t.Errorf("all ran on one connection: %v", pids)
	}
	simple(t, b, "COMMIT")
	simple(t, a, "DEALLOCATE ALL")
	if got := simple(t, b, "EXECUTE p(7)")[0][0]; got != "-7" {
		t.Errorf("after the other client's DEALLOCATE ALL: %s", got)
	}
	simple(t, a, "DISCARD ALL")
	if got := simple(t, b, "EXECUTE p(7)")[0][0]; got != "-7" {
		t.Errorf("after the other client's DISCARD ALL: %s", got)
	}
	if _, err := trySimple(a, "EXECUTE p(1)"); pgerr.Code(err) != pgerr.InvalidSQLStatementName {
		t.Errorf("after DISCARD ALL: %v", err)
	}
}

// TestPreparedIsBounded prepares more than a connection keeps.
func TestPreparedIsBounded(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(1)})
	a := g.connect("")
	const n = 700
	for i := range n {
		simple(t, a, fmt.Sprintf("PREPARE p%d AS SELECT %d", i, i))
	}
	for i := 0; i < n; i += 7 {
		if got := one(t, a, fmt.Sprintf("EXECUTE p%d", i)); got != fmt.Sprint(i) {
			t.Errorf("EXECUTE p%d gave %s", i, got)
		}
	}
	_ = a.Close(t.Context())
	count := g.connect("")
	if got := one(t, count, "SELECT count(*) FROM pg_prepared_statements"); got != "0" {
		t.Errorf("another client sees %s statements", got)
	}
	eventually(t, "the connection is in its pool", func() bool {
		got := g.server.pools.Stats()
		return len(got) == 1 && got[0].Idle == 1
	})
}

// TestPreparedFollowsTheTarget: what a statement does decides where it runs.
func TestPreparedFollowsTheTarget(t *testing.T) {
	g := startGateway(t, gatewayOptions{replicas: 1})
	simple(t, g.connect(""), "CREATE TABLE t (k int)")
	g.awaitFunctions()
	conn := g.connect("-c __neki.target=auto -c __neki.replica_consistency=session -c __neki.replica_wait=10s")
	simple(t, conn, "PREPARE r AS SELECT pg_is_in_recovery(), (SELECT count(*) FROM t); PREPARE w(int) AS INSERT INTO t VALUES ($1) RETURNING pg_is_in_recovery()")
	for i := range 3 {
		if got := one(t, conn, fmt.Sprintf("EXECUTE w(%d)", i)); got != "f" {
			t.Errorf("a write ran on a standby: %s", got)
		}
		if got := simple(t, conn, "EXECUTE r")[0]; !slices.Equal(got, []string{"t", fmt.Sprint(i + 1)}) {
			t.Errorf("a read gave %v", got)
		}
	}
	if got := simple(t, conn, "EXPLAIN (NEKI_PLAN, COSTS OFF) EXECUTE w(1)"); !strings.Contains(fmt.Sprint(got), "Instance Kind: primary") {
		t.Errorf("EXPLAIN of a write: %v", got)
	}
	if got := fmt.Sprint(simple(t, conn, "EXPLAIN (NEKI_PLAN, COSTS OFF, ANALYZE, NEKI_PG_PLAN) EXECUTE r")); !strings.Contains(got, "Instance Kind: replica") ||
		!strings.Contains(got, "Seq Scan on t") {
		t.Errorf("EXPLAIN of a read: %v", got)
	}
	simple(t, conn, "SET __neki.target = 'replica'")
	if _, err := trySimple(conn, "EXECUTE w(9)"); pgerr.Code(err) != pgerr.ReadOnlySQLTransaction {
		t.Errorf("a prepared write under target replica: %v", err)
	}
	if _, err := conn.Exec(t.Context(), "EXECUTE w(9)"); pgerr.Code(err) != pgerr.ReadOnlySQLTransaction {
		t.Errorf("a prepared write under target replica, extended: %v", err)
	}
	if got := simple(t, conn, "EXECUTE r")[0]; !slices.Equal(got, []string{"t", "3"}) {
		t.Errorf("a read gave %v", got)
	}
	var standby bool
	var n int
	if err := conn.QueryRow(t.Context(), "EXECUTE r").Scan(&standby, &n); err != nil || !standby || n != 3 {
		t.Errorf("a read by the extended protocol: %v, %d, %v", standby, n, err)
	}
	simple(t, conn, "SET __neki.target = 'primary'")
	if got := one(t, conn, "EXECUTE w(4)"); got != "f" {
		t.Errorf("a write ran on a standby: %s", got)
	}
}

// TestPreparedUnderLoad has clients use the same names for statements of their own, over fewer connections.
func TestPreparedUnderLoad(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(2)})
	simple(t, g.connect(""), "CREATE TABLE t (k int)")
	var wg sync.WaitGroup
	for client := range 6 {
		conn := g.connect("")
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(client), 7))
			made := map[string]string{}
			for round := range 400 {
				name := fmt.Sprintf("p%d", random.IntN(5))
				if err := preparedRound(conn, random, made, name, fmt.Sprintf("%d-%d", client, round)); err != nil {
					t.Errorf("client %d, round %d: %v", client, round, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// preparedRound does one thing with the statement of a name and compares with what made says it gives.
func preparedRound(conn *pgx.Conn, random *rand.Rand, made map[string]string, name, value string) error {
	want, exists := made[name]
	expect := func(code string, err error) error {
		if pgerr.Code(err) != code {
			return fmt.Errorf("%s: %v, want %q", name, err, code)
		}
		return nil
	}
	missing := map[bool]string{false: pgerr.InvalidSQLStatementName}[exists]
	switch random.IntN(8) {
	case 0:
		_, err := trySimple(conn, "PREPARE "+name+" AS SELECT '"+value+"'")
		if exists {
			return expect(pgerr.DuplicatePreparedStatement, err)
		}
		made[name] = value
		return expect("", err)
	case 1:
		_, err := conn.Exec(context.Background(), "PREPARE "+name+" AS SELECT '"+value+"'", pgx.QueryExecModeExec)
		if exists {
			return expect(pgerr.DuplicatePreparedStatement, err)
		}
		made[name] = value
		return expect("", err)
	case 2:
		delete(made, name)
		_, err := trySimple(conn, "DEALLOCATE "+name)
		return expect(missing, err)
	case 3:
		_, err := trySimple(conn, "INSERT INTO t VALUES (1); SELECT 1/0; EXECUTE "+name)
		return expect(pgerr.DivisionByZero, err)
	case 4:
		var got string
		err := conn.QueryRow(context.Background(), "EXECUTE "+name, pgx.QueryExecModeExec).Scan(&got)
		if exists && err == nil && got != want {
			return fmt.Errorf("%s gave %q, want %q", name, got, want)
		}
		return expect(missing, err)
	case 5:
		rows, err := trySimple(conn, "BEGIN; INSERT INTO t VALUES (1); EXECUTE "+name)
		_, rollback := trySimple(conn, "ROLLBACK")
		if err == nil && rows[0][0] != want {
			return fmt.Errorf("%s gave %v, want %q", name, rows, want)
		}
		return cmp.Or(expect(missing, err), rollback)
	}
	rows, err := trySimple(conn, "EXECUTE "+name)
	if err == nil && rows[0][0] != want {
		return fmt.Errorf("%s gave %v, want %q", name, rows, want)
	}
	return expect(missing, err)
}

// TestPreparedSurvivesSkippedEviction has room made for statements in segments that fail before the server gets there.
func TestPreparedSurvivesSkippedEviction(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(1)})
	const n = 250 // more than a connection keeps
	var all strings.Builder
	for i := range n {
		fmt.Fprintf(&all, "PREPARE p%d AS SELECT %d; ", i, i)
	}
	steps := []step{{q(all.String()), 1}}
	for i := range n {
		steps = append(steps, step{cat(parse("", "select 1/0"), bindTo("", ""), execute("", 0),
			parse("", fmt.Sprintf("execute p%d", i)), bindTo("", ""), execute("", 0), bindTo("", fmt.Sprintf("p%d", (i+7)%n)), syncMsg), 1})
	}
	for i := range n {
		steps = append(steps, step{q(fmt.Sprintf("execute p%d", i)), 1}, step{cat(bindTo("", fmt.Sprintf("p%d", (i*3)%n)), execute("", 0), syncMsg), 1})
	}
	for i, got := range converse(t, g.config(""), steps)[n+1:] {
		if !strings.Contains(got, "D{") {
			t.Fatalf("statement %d: %s", i/2, got)
		}
	}
}

// TestParseBehindAnError: a Parse that the server skips, of a statement that it has for another client, leaves that as it is.
func TestParseBehindAnError(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(1)})
	a, b := newWireClient(t, g.config("")), newWireClient(t, g.config(""))
	a.ask(1, parse("s", "select 'shared'"), syncMsg)
	if got := b.ask(1, parse("", "selct"), parse("s", "select 'shared'"), syncMsg); !strings.Contains(got, "C42601") {
		t.Error(got)
	}
	for _, c := range []*wireClient{b, a} {
		if got := c.ask(1, closing('S', "s"), parse("s", "select 'shared'"), bindTo("", "s"), execute("", 0), syncMsg); !strings.Contains(got, "D{") {
			t.Error(got)
		}
	}
}
