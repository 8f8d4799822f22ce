package pooler

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"neki/internal/pgerr"
	"neki/internal/pgwire"
)

// cases are what pooling proxies were reported to get wrong, by the numbers of docs/compatibility.md. Those that are one
// client's conversation are among the sequences; those about the login's bytes are in internal/pgwire.
var cases = []struct {
	name string
	run  func(t *testing.T, b *bothWays)
}{
	{"B3 startup parameters", caseStartupParameters},
	{"B4 options", caseOptions},
	{"B5 an empty application name", caseEmptyName},
	{"B6 negotiation", caseNegotiation},
	{"B10 long names", caseLongNames},
	{"B15 errors of the server's login", caseLoginErrors},
	{"B16 the unnamed statement of each client", caseUnnamed},
	{"B19 Describe on another connection", caseDescribeElsewhere},
	{"B21 a changed table in a block", caseChangedTableInBlock},
	{"B21 a changed table", caseChangedTable},
	{"B22 a portal after Flush", casePortalAfterFlush},
	{"B29 a query and a segment in one write", caseQueryAndSegment},
	{"B32 clients that leave", caseLeave},
	{"B34 idle in a transaction", caseIdleInTransaction},
	{"B38g copy out to a slow reader", caseSlowCopyOut},
	{"B38h many small rows", caseManySmallRows},
	{"B39a a cancel with a wrong key", caseWrongCancelKey},
	{"B39b late cancels", caseLateCancels},
	{"B39c a cancel in the queue", caseCancelInQueue},
	{"B39d a cancel of an idle client", caseCancelIdle},
	{"B39e a cancel by another gateway", caseCancelElsewhere},
	{"B39f a cancel under TLS with a long key", caseCancelUnderTLS},
	{"B39g many cancels", caseManyCancels},
	{"P18 rolled back settings", caseRolledBackSettings},
	{"P19 one name for two clients' statements", caseOneName},
	{"P21 DISCARD ALL of another client", caseDiscardAll},
	{"P26 a failed copy beside a temporary table", caseFailedCopy},
	{"P27 cancels as statements end", caseCancelAtTheEnd},
	{"P29 clients that leave a transaction", caseLeaveManyTransactions},
	{"P34 a wrong password, then the right one", caseWrongPassword},
	{"P35 memory", caseMemory},
}

// TestCases runs each case with one server connection and with many.
func TestCases(t *testing.T) {
	for _, size := range poolSizes {
		t.Run(fmt.Sprintf("pool of %d", size), func(t *testing.T) {
			b := newBothWays(t, size)
			for _, tc := range cases {
				t.Run(strings.ReplaceAll(tc.name, " ", "_"), func(t *testing.T) {
					b.prepare(t)
					tc.run(t, b)
				})
			}
		})
	}
}

// wireClient is a client that sends what it likes. It logs in without pgx, which may read on in the background.
type wireClient struct {
	t    testing.TB
	conn net.Conn
	pid  uint32
	key  []byte
}

func newWireClient(t testing.TB, cfg *pgx.ConnConfig) *wireClient {
	t.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	login := pgwire.BackendLogin{User: cfg.User, Database: cfg.Database, Password: cfg.Password}
	for name, value := range cfg.RuntimeParams {
		login.Params = append(login.Params, pgwire.Pair{Name: name, Value: value})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	g, err := pgwire.Connect(ctx, conn, login)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Time{})
	return &wireClient{t: t, conn: conn, pid: g.PID, key: g.Secret}
}

// ask sends messages in one write and gives the answers up to that many ReadyForQuery; 0: those of a moment.
func (r *wireClient) ask(ready int, messages ...[]byte) string {
	r.t.Helper()
	r.send(messages...)
	return listen(r.conn, ready)
}

func (r *wireClient) send(messages ...[]byte) {
	r.t.Helper()
	if _, err := r.conn.Write(cat(messages...)); err != nil {
		r.t.Fatal(err)
	}
}

// ways gives what both ways say; they must say the same.
func (b *bothWays) ways(t *testing.T, what string, say func(cfg *pgx.ConnConfig) string) string {
	t.Helper()
	want, got := say(b.direct.Copy()), say(b.g.config(""))
	if got != want {
		t.Errorf("%s\n  gateway  %s\n  postgres %s", what, got, want)
	}
	return got
}

// opened is what a connection attempt and the queries after it give.
func (b *bothWays) opened(t *testing.T, cfg *pgx.ConnConfig, queries ...string) string {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		var pg *pgconn.PgError
		if ok := innermost(err, &pg); ok {
			return pg.Severity + " " + pg.Code + " " + pg.Message
		}
		return err.Error()
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var out []string
	for _, sql := range queries {
		out = append(out, shown(conn, sql))
	}
	return strings.Join(out, "; ")
}

func innermost(err error, to **pgconn.PgError) bool {
	for err != nil {
		if e, ok := err.(*pgconn.PgError); ok { //nolint:errorlint // the innermost of several
			*to = e
			return true
		}
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			m, ok := err.(interface{ Unwrap() []error })
			if !ok {
				return false
			}
			for _, e := range m.Unwrap() {
				if innermost(e, to) {
					return true
				}
			}
			return false
		}
		err = u.Unwrap()
	}
	return false
}

func caseStartupParameters(t *testing.T, b *bothWays) {
	params := map[string]string{"extra_float_digits": "3", "search_path": "a, b", "statement_timeout": "1s", "lock_timeout": "7s"}
	var queries []string
	for range 3 {
		for _, name := range []string{"extra_float_digits", "search_path", "statement_timeout", "lock_timeout"} {
			queries = append(queries, "SHOW "+name, "SET "+name+" TO DEFAULT", "SHOW "+name)
		}
		queries = append(queries, "SET search_path = c", "SET statement_timeout = '2s'", "SHOW search_path", "RESET ALL")
	}
	b.ways(t, "parameters", func(cfg *pgx.ConnConfig) string {
		for k, v := range params {
			cfg.RuntimeParams[k] = v
		}
		return b.opened(t, cfg, queries...)
	})
}

func caseOptions(t *testing.T, b *bothWays) {
	b.g.group.Primary.Exec("DROP ROLE IF EXISTS optional; CREATE ROLE optional")
	for _, options := range []string{
		"-c search_path=x", "-csearch_path=x", "--search-path=x", "--search_path=x", `-c search_path=b\ c `, "", " ", "-c nosuch=1", "-c role=optional",
		"-c role=nosuch", "-c work_mem=3MB -c search_path=x", "-c work_mem", "-c", "-x", "-e", "-c work_mem=-1", `-c my.own=b\\c\ d`, "--work-mem=3MB",
		"-S 4096", "search_path=x", "-c search_path=", "-c =x", "-c DateStyle=German", "-c client_encoding=latin1", "-c timezone=Nowhere/Land",
	} {
		b.ways(t, "options "+options, func(cfg *pgx.ConnConfig) string {
			cfg.RuntimeParams["options"] = options
			return b.opened(t, cfg, "SHOW search_path", "SELECT current_user", "SHOW work_mem", "SELECT current_setting('my.own', true)", "SHOW datestyle", "SHOW client_encoding")
		})
	}
}

func caseEmptyName(t *testing.T, b *bothWays) {
	b.ways(t, "no name", func(cfg *pgx.ConnConfig) string {
		cfg.RuntimeParams["application_name"] = ""
		return b.opened(t, cfg, "SHOW application_name")
	})
	cfg := b.g.config("")
	cfg.RuntimeParams["application_name"] = ""
	conn := b.g.connectAs(cfg)
	b.g.group.Primary.Set("log_statement", "all")
	defer b.g.group.Primary.Set("log_statement", "none")
	pid := one(t, conn, "SELECT pid FROM pg_stat_activity WHERE pid = pg_backend_pid()")
	eventually(t, "the connection's statements are logged", func() bool {
		simple(t, conn, "SELECT 'warm'")
		return strings.Contains(b.g.group.Primary.Log(100), "SELECT 'warm'")
	})
	for range 40 {
		simple(t, conn, "SELECT 'counted'")
	}
	counted, others := 0, 0
	eventually(t, "all statements are in the log", func() bool {
		counted, others = countStatements(b.g.group.Primary.Log(4000), pid)
		return counted >= 40
	})
	if counted != 40 || others != 0 {
		t.Errorf("%d of 40 statements and %d others on the server", counted, others)
	}
}

// countStatements counts those of the case above, and others after the first of them.
func countStatements(log, pid string) (counted, others int) {
	for _, line := range strings.Split(log, "\n") {
		switch {
		case !strings.Contains(line, "["+pid+"]"), strings.Contains(line, "pg_stat_activity"):
		case strings.Contains(line, "SELECT 'counted'"):
			counted++
		case counted > 0 && strings.Contains(line, "statement:"):
			others++
		}
	}
	return counted, others
}

func caseNegotiation(t *testing.T, b *bothWays) {
	for _, tc := range []struct {
		version uint32
		params  []any
		want    string
	}{
		{3<<16 | 2, nil, "R"},
		{3<<16 | 9999, nil, "vR"},
		{3 << 16, []any{"_pq_.x", "1"}, "vR"},
		{4 << 16, nil, "E"},
	} {
		conn, err := net.Dial("tcp", b.g.addr)
		if err != nil {
			t.Fatal(err)
		}
		parts := append([]any{int32(tc.version), "user", "postgres"}, tc.params...)
		if _, err := conn.Write(msgOf(0, append(parts, byte(0))...)[1:]); err != nil {
			t.Fatal(err)
		}
		got := ""
		for !strings.ContainsAny(got, "RE") {
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			typ, _, err := readFrame(conn)
			if err != nil {
				t.Fatal(err)
			}
			got += string(typ)
		}
		if got != tc.want {
			t.Errorf("version %x: %s, want %s", tc.version, got, tc.want)
		}
		_ = conn.Close()
	}
}

func caseLongNames(t *testing.T, b *bothWays) {
	for _, name := range []string{strings.Repeat("n", 63), strings.Repeat("n", 64), strings.Repeat("n", 128), strings.Repeat("n", 300), strings.Repeat("n", 62) + "ü", "no such", `a"b`, "a'b", `a\b`} {
		b.ways(t, "user "+name, func(cfg *pgx.ConnConfig) string {
			cfg.User = name
			return b.opened(t, cfg)
		})
		b.ways(t, "database "+name, func(cfg *pgx.ConnConfig) string {
			cfg.Database = name
			return b.opened(t, cfg)
		})
	}
	long := strings.Repeat("l", 63)
	b.g.group.Primary.Exec(fmt.Sprintf("DROP ROLE IF EXISTS %s; CREATE ROLE %s LOGIN PASSWORD 'x'", long, long))
	b.ways(t, "a role whose name was cut", func(cfg *pgx.ConnConfig) string {
		cfg.User, cfg.Password = long+"more", "x"
		return b.opened(t, cfg, "SELECT current_user, length(current_user::text)")
	})
}

func caseLoginErrors(t *testing.T, b *bothWays) {
	for _, sql := range []string{
		"DROP DATABASE IF EXISTS full_db", "DROP DATABASE IF EXISTS shut_db", "DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN PASSWORD 'x'; DROP ROLE IF EXISTS lonely; CREATE ROLE lonely LOGIN PASSWORD 'x' CONNECTION LIMIT 0",
		"DROP ROLE IF EXISTS outsider; CREATE ROLE outsider PASSWORD 'x'",
		"CREATE DATABASE full_db CONNECTION LIMIT 0", "CREATE DATABASE shut_db ALLOW_CONNECTIONS false",
	} {
		b.g.group.Primary.Exec(sql)
	}
	for _, tc := range []struct{ user, database string }{
		{"guest", "nope"}, {"guest", "full_db"}, {"guest", "shut_db"}, {"lonely", "postgres"}, {"outsider", "postgres"}, {"nobody", "postgres"},
	} {
		b.ways(t, tc.user+" to "+tc.database, func(cfg *pgx.ConnConfig) string {
			cfg.User, cfg.Password, cfg.Database = tc.user, "x", tc.database
			return b.opened(t, cfg)
		})
	}
}

func caseUnnamed(t *testing.T, b *bothWays) {
	one, two := newWireClient(t, b.g.config("")), newWireClient(t, b.g.config(""))
	one.ask(1, parse("", "select 'one', $1::int"), describe('S', ""), syncMsg)
	two.ask(1, parse("", "select 'two'"), syncMsg)
	if got := one.ask(1, bindTo("", "", "5"), execute("", 0), syncMsg); !strings.Contains(got, "one") {
		t.Error(got)
	}
	if got := two.ask(1, bindTo("", ""), execute("", 0), syncMsg); !strings.Contains(got, "two") {
		t.Error(got)
	}
	if got := one.ask(1, describe('S', ""), syncMsg); !strings.HasPrefix(got, "t{") {
		t.Error(got)
	}
}

// capacity changes the pool's size.
func (b *bothWays) capacity(n int) (restore func()) {
	p := b.g.server.Parameters()
	was := p.PoolCapacity
	p.PoolCapacity = n
	b.g.server.SetParameters(p)
	return func() {
		p.PoolCapacity = was
		b.g.server.SetParameters(p)
	}
}

func caseDescribeElsewhere(t *testing.T, b *bothWays) {
	defer b.capacity(max(2, b.g.server.Parameters().PoolCapacity))()
	a, other := newWireClient(t, b.g.config("")), b.g.connect("")
	a.ask(1, parse("s", "select $1::int as x, k from t"), syncMsg)
	want := a.ask(1, describe('S', "s"), syncMsg)
	simple(t, other, "BEGIN; SELECT 1") // holds the connection that knows s
	if got := a.ask(1, describe('S', "s"), syncMsg); got != want || !strings.HasPrefix(got, "t{") {
		t.Errorf("%s, want %s", got, want)
	}
	simple(t, other, "COMMIT")
}

// caseChangedTable: Postgres refuses a statement whose result has changed since it was prepared, and takes it prepared
// anew. A statement that a client has prepared after the change is its own: what others prepared does not matter.
func caseChangedTable(t *testing.T, b *bothWays) {
	use := cat(bindTo("", "s"), describe('P', ""), execute("", 0), syncMsg)
	b.ways(t, "a changed table", func(cfg *pgx.ConnConfig) string {
		b.prepare(t)
		early := newWireClient(t, cfg)
		out := []string{early.ask(1, parse("s", "select * from t"), use)}
		b.g.group.Primary.Exec("ALTER TABLE t ADD v int")
		late := newWireClient(t, cfg)
		out = append(out, late.ask(1, parse("s", "select * from t"), use), late.ask(1, use), late.ask(1, describe('S', "s"), syncMsg))
		_ = late.conn.Close()
		out = append(out, early.ask(1, closing('S', "s"), parse("s", "select * from t"), use), early.ask(1, use))
		_ = early.conn.Close()
		return strings.Join(out, "\n")
	})
	a := newWireClient(t, b.g.config(""))
	b.prepare(t)
	a.ask(1, parse("s", "select * from t"), use)
	b.g.group.Primary.Exec("ALTER TABLE t ADD v int")
	got := a.ask(1, use)
	if !strings.Contains(got, "C0A000") && !strings.Contains(got, "D{") || strings.Contains(got, "does not exist") {
		t.Error(got)
	}
}

func caseChangedTableInBlock(t *testing.T, b *bothWays) {
	use := cat(bindTo("", "s"), describe('P', ""), execute("", 0), syncMsg)
	b.ways(t, "in a block", func(cfg *pgx.ConnConfig) string {
		b.prepare(t)
		a := newWireClient(t, cfg)
		out := []string{a.ask(1, parse("s", "select * from t"), use)}
		b.g.group.Primary.Exec("ALTER TABLE t ADD v int")
		out = append(out, a.ask(1, q("begin")), a.ask(1, use), a.ask(1, use), a.ask(1, q("rollback")))
		_ = a.conn.Close()
		return strings.Join(out, "\n")
	})
}

func casePortalAfterFlush(t *testing.T, b *bothWays) {
	defer b.capacity(max(2, b.g.server.Parameters().PoolCapacity))()
	a, other := newWireClient(t, b.g.config("")), b.g.connect("")
	if got := a.ask(0, parse("", "select g from generate_series(1, 5) g"), bindTo("", ""), describe('P', ""), flushMsg); !strings.HasPrefix(got, "1{") {
		t.Error(got)
	}
	simple(t, other, "SELECT 1")
	for _, want := range []string{"1", "3"} {
		if got := a.ask(0, execute("", 2), flushMsg); !strings.Contains(got, want) || !strings.HasSuffix(got, `s{""}`) {
			t.Error(got)
		}
		simple(t, other, "SELECT 1")
	}
	if got := a.ask(1, execute("", 2), syncMsg); !strings.Contains(got, "C{") {
		t.Error(got)
	}
}

func caseQueryAndSegment(t *testing.T, b *bothWays) {
	a := newWireClient(t, b.g.config(""))
	for i := range 1000 {
		got := a.ask(2, q(fmt.Sprintf("set work_mem = '%dkB'", 1001+2*i)), parse("", "show work_mem"), bindTo("", ""), execute("", 0), syncMsg)
		if !strings.Contains(got, fmt.Sprint(1001+2*i)) || strings.Count(got, "Z{") != 2 {
			t.Fatal(got)
		}
	}
}

// caseLeave: whatever a client was in the middle of is undone, and its connection serves others.
func caseLeave(t *testing.T, b *bothWays) {
	for _, how := range []string{"terminate", "close", "reset", "in a result", "in a failed block", "in a copy"} {
		a := newWireClient(t, b.g.config(""))
		a.ask(1, q("begin; insert into t values (10)"))
		switch how {
		case "terminate":
			a.send(msgOf('X'))
		case "in a result":
			a.send(q("select repeat('x', 1000) from generate_series(1, 1000000)"))
			_, _ = io.ReadFull(a.conn, make([]byte, 100_000))
		case "in a failed block":
			a.ask(1, q("select 1/0"))
		case "in a copy":
			a.ask(0, q("copy t from stdin"))
			a.send(data("11\n"))
		}
		if how != "close" {
			_ = a.conn.(*net.TCPConn).SetLinger(0)
		}
		_ = a.conn.Close()
		other := b.g.connect("")
		eventually(t, "nothing is left of a client that left by "+how, func() bool {
			return b.g.group.Primary.Text("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%' OR state = 'active' AND pid <> pg_backend_pid() AND application_name = ''") == "0"
		})
		if got := one(t, other, "SELECT count(*) FROM t"); got != "2" {
			t.Errorf("after %s: %s rows", how, got)
		}
		_ = other.Close(t.Context())
	}
}

func caseRolledBackSettings(t *testing.T, b *bothWays) {
	b.ways(t, "settings", func(cfg *pgx.ConnConfig) string {
		return b.opened(t, cfg, "SET work_mem = '1MB'", "BEGIN", "SET work_mem = '2MB'", "SAVEPOINT s", "SET work_mem = '3MB'", "ROLLBACK TO s", "SHOW work_mem",
			"RELEASE s", "SET LOCAL work_mem = '5MB'", "SHOW work_mem", "ROLLBACK", "SHOW work_mem", "BEGIN; SET work_mem = '6MB'; SELECT 1/0", "SHOW work_mem", "COMMIT", "SHOW work_mem",
			"BEGIN; SET work_mem = '7MB'; COMMIT", "SHOW work_mem", "SET work_mem = '8MB'; SELECT 1/0", "SHOW work_mem")
	})
	if got := one(t, b.g.connect(""), "SHOW work_mem"); got != "4MB" {
		t.Errorf("another client sees %s", got)
	}
}

func caseOneName(t *testing.T, b *bothWays) {
	for i := range 2 {
		conn := b.g.connect("")
		simple(t, conn, fmt.Sprintf("PREPARE dumpfunc AS SELECT %d", i))
		if got := one(t, conn, "EXECUTE dumpfunc"); got != fmt.Sprint(i) {
			t.Errorf("client %d: %s", i, got)
		}
		defer func() { _ = conn.Close(context.Background()) }()
	}
}

func caseDiscardAll(t *testing.T, b *bothWays) {
	a := newWireClient(t, b.g.config(""))
	a.ask(1, parse("s", "select 'mine'"), syncMsg)
	cfg := b.g.config("")
	cfg.RuntimeParams["work_mem"] = "3MB"
	other := b.g.connectAs(cfg)
	simple(t, other, "SET work_mem = '5MB'")
	simple(t, other, "DISCARD ALL")
	if got := one(t, other, "SHOW work_mem"); got != "3MB" {
		t.Errorf("work_mem after DISCARD ALL: %s", got)
	}
	if got := a.ask(1, bindTo("", "s"), execute("", 0), syncMsg); !strings.Contains(got, "mine") {
		t.Error(got)
	}
	simple(t, other, "BEGIN")
	if _, err := trySimple(other, "DISCARD ALL"); pgerr.Code(err) != pgerr.ActiveSQLTransaction {
		t.Errorf("in a block: %v", err)
	}
	simple(t, other, "ROLLBACK")
}

func caseWrongPassword(t *testing.T, b *bothWays) {
	for range 3 {
		for _, password := range []string{"wrong", b.g.config("").Password} {
			b.ways(t, "password "+password, func(cfg *pgx.ConnConfig) string {
				cfg.Password = password
				return b.opened(t, cfg, "SELECT 1")
			})
		}
	}
}

// readFrame reads one message.
func readFrame(conn io.Reader) (typ byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return 0, nil, err
	}
	size := int(head[1])<<24 | int(head[2])<<16 | int(head[3])<<8 | int(head[4])
	body = make([]byte, max(0, size-4))
	_, err = io.ReadFull(conn, body)
	return head[0], body, err
}
