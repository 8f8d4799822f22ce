package admin_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	adminsql "neki/admin_sql"
	"neki/catalog"
	"neki/catalog/memstore"
	"neki/cluster/admin"
	"neki/cluster/agent"
	"neki/cluster/decide"
	"neki/cluster/pgproc"
	"neki/internal/testpg"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(supervisorDir); dir != "" {
		supervise(dir)
		return
	}
	if text := os.Getenv(childAgent); text != "" {
		runChildAgent(text)
		return
	}
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "wal-") {
		os.Exit(walCommand(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

const (
	clusterName = "test"
	token       = "shared token of the test"
)

var super = admin.Login{Name: "boss", Password: "boss's password"}

// world is a cluster in the test's process: agents with real servers, an admin, and a view.
type world struct {
	t     *testing.T
	store catalog.Store
	dir   string
	http  *http.Client
	inst  pgproc.Installation
	acct  pgproc.Account

	progress func(step string)
	settings pgproc.Settings // of all servers
	provider admin.Provider
	pace     time.Duration // of a writer's statements; 0 = as fast as they go
	archive  agent.Archive
	timing   decide.Timing // of admins; zero = the usual one

	mu      sync.Mutex
	ports   map[string]int
	servers map[string]*pgproc.Instance
	admins  map[string]*part
	parts   map[string]*part // agents that StartInstance started
}

func newWorld(t *testing.T, store catalog.Store) *world {
	t.Helper()
	w := &world{
		t: t, store: store, http: &http.Client{Transport: &http.Transport{}}, ports: map[string]int{},
		servers: map[string]*pgproc.Instance{}, admins: map[string]*part{}, parts: map[string]*part{}, progress: func(step string) { t.Log(step) },
	}
	w.inst, w.acct = testpg.Installation(t)
	dir, err := os.MkdirTemp("", "nekiadmin-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w.dir = dir
	t.Cleanup(func() {
		for _, p := range w.servers {
			if err := p.Kill(); err != nil {
				t.Error(err)
			}
			p.Close()
		}
		w.http.CloseIdleConnections()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return w
}

// part is something that runs until it is ended.
type part struct {
	name string
	stop context.CancelFunc
	done chan error
}

func (w *world) start(name string, run func(context.Context) error) *part {
	ctx, stop := context.WithCancel(context.Background())
	p := &part{name: name, stop: stop, done: make(chan error, 1)}
	go func() { p.done <- run(ctx) }()
	w.t.Cleanup(func() { w.end(p) })
	return p
}

// end ends a part and waits for it; a second time does nothing.
func (w *world) end(p *part) {
	w.t.Helper()
	p.stop()
	select {
	case err, open := <-p.done:
		if open {
			close(p.done)
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			w.t.Errorf("%s: %v", p.name, err)
		}
	case <-time.After(30 * time.Second):
		w.t.Fatalf("%s does not end", p.name)
	}
}

func (w *world) port(node string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.ports[node]; p != 0 {
		return p
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // only its number was wanted
	w.ports[node] = l.Addr().(*net.TCPAddr).Port
	return w.ports[node]
}

// agent starts the agent of a node; its server outlives it unless stop is set.
func (w *world) agent(shard, node string, role catalog.Role, stop bool) *part {
	w.t.Helper()
	a, err := agent.New(agent.Config{
		Cluster: clusterName, Node: node, Shard: shard, Role: role, Dir: filepath.Join(w.dir, node), Port: w.port(node),
		Installation: w.inst, Account: w.acct, Store: w.store, Token: token, StopPostgres: stop,
		Settings: pgproc.Settings{"fsync": "off"}.With(w.settings), Progress: w.progress, Archive: w.archive,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.servers[node] = a.Instance()
	return w.start("agent "+node, a.Run)
}

func (w *world) admin(id string, change func(*admin.Config)) (*admin.Admin, *part) {
	w.t.Helper()
	cfg := admin.Config{
		Cluster: clusterName, ID: id, Store: w.store, HTTP: w.http, Token: token, Superuser: super,
		Stubs: &agent.StubSchema{
			SQL: adminsql.StubSQL(), Version: adminsql.StubVersion(), VersionQuery: adminsql.StubVersionQuery,
		},
		Shards: []admin.ShardSpec{{UID: "sh1", Authoritative: true}}, Poll: time.Second, RecoveryPoll: time.Second, Listen: "127.0.0.1:0", Provider: w.provider, Timing: w.timing,
		Progress: w.progress, Log: slog.New(slog.NewTextHandler(w.t.Output(), nil)),
	}
	if change != nil {
		change(&cfg)
	}
	a, err := admin.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	p := w.start("admin "+id, a.Run)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.admins[id] = p
	return a, p
}

// ready waits until the shard is; if it never is, every member's state is in the failure.
func (w *world) ready(a *admin.Admin) {
	w.t.Helper()
	err := admin.WaitReady(w.soon(), a.Live(), "sh1")
	if err == nil {
		return
	}
	if snap := a.Live().Snapshot(); snap != nil {
		for _, n := range snap.Nodes {
			st, err := (&agent.Client{URL: n.AgentURL, HTTP: w.http, Token: token}).Status(w.soon())
			w.t.Logf("%s: %+v, %v", n.ID, st, err)
		}
	}
	w.t.Fatalf("%v; %+v", err, a.Status())
}

func (w *world) soon() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	w.t.Cleanup(cancel)
	return ctx
}

// until waits until the view is as wanted.
func (w *world) until(live *catalog.Live, what string, want func(*catalog.Snapshot) bool) *catalog.Snapshot {
	w.t.Helper()
	ctx := w.soon()
	for {
		changed := live.Changed()
		if s := live.Snapshot(); s != nil && want(s) {
			return s
		}
		select {
		case <-changed:
		case <-time.After(50 * time.Millisecond): // want may ask for more than the Snapshot
		case <-ctx.Done():
			for _, n := range live.Snapshot().Nodes {
				w.t.Logf("%s: %+v", n.ID, live.Snapshot().Health(n.ID))
			}
			w.t.Fatalf("no %s", what)
		}
	}
}

func (w *world) connect(node, user, password string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return pgx.Connect(ctx, fmt.Sprintf("host=127.0.0.1 port=%d user=%s password='%s' dbname=postgres sslmode=disable",
		w.port(node), user, strings.ReplaceAll(password, "'", `\'`)))
}

// query runs one statement as the superuser over TCP and gives its one value.
func (w *world) query(node, sql string) (string, error) {
	w.t.Helper()
	conn, err := w.connect(node, super.Name, super.Password)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	defer conn.Close(ctx) //nolint:errcheck // the query's error counts
	var v string
	err = conn.QueryRow(ctx, sql).Scan(&v)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return v, err
}

func (w *world) must(node, sql, want string) {
	w.t.Helper()
	if got, err := w.query(node, sql); err != nil || got != want {
		w.t.Fatalf("%s on %s: %q, %v; want %q", sql, node, got, err, want)
	}
}

func healthy(s *catalog.Snapshot, primary string, replicas ...string) bool {
	h := s.Health(primary)
	if h == nil || h.State != catalog.StateServing || h.Role != catalog.RolePrimary {
		return false
	}
	for _, r := range replicas {
		if h := s.Health(r); h == nil || h.State != catalog.StateServing || !h.Streaming || !h.LagKnown {
			return false
		}
	}
	return true
}

// synchronous commits must be acknowledged, in time, and be on each replica soon.
func (w *world) commit(live *catalog.Live, n int) {
	w.t.Helper()
	w.must("sh1-a", fmt.Sprintf("INSERT INTO t VALUES (%d) RETURNING id::text", n), fmt.Sprint(n))
	for _, node := range []string{"sh1-b", "sh1-c"} {
		w.until(live, fmt.Sprintf("row %d on %s", n, node), func(*catalog.Snapshot) bool {
			got, err := w.query(node, "SELECT count(*)::text FROM t")
			return err == nil && got == fmt.Sprint(n)
		})
	}
}

var members = []string{"sh1-a", "sh1-b", "sh1-c"}

func (w *world) agents(stop bool) []*part {
	w.t.Helper()
	var parts []*part
	for _, n := range members {
		parts = append(parts, w.agent("sh1", n, catalog.RoleReplica, stop))
	}
	return parts
}

func TestCluster(t *testing.T) { testCluster(t, memstore.New()) }

// testCluster goes through a shard's life: made, stopped, started again, supervisor killed, receiver cut.
func testCluster(t *testing.T, store catalog.Store) {
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	began := time.Now()
	agents := w.agents(true)
	a, leading := w.admin("adm1", nil)
	live := a.Live()
	w.ready(a)
	t.Logf("ready in %v", time.Since(began))
	snap := w.until(live, "healthy cluster", func(s *catalog.Snapshot) bool { return healthy(s, members[0], members[1:]...) })
	checkProvisioned(t, w, snap)
	w.must("sh1-a", "CREATE TABLE t (id int)", "")
	w.commit(live, 1)

	// All stop, and go on where they were.
	for _, p := range append(agents, leading) {
		w.end(p)
	}
	agents = w.agents(false)
	a, leading = w.admin("adm1", nil)
	live = a.Live()
	w.until(live, "restarted cluster", func(s *catalog.Snapshot) bool { return healthy(s, members[0], members[1:]...) })
	w.commit(live, 2)

	// The supervisor dies: servers serve on, and are adopted.
	pids := map[string]int{}
	for n, p := range w.servers {
		pids[n] = p.Running()
	}
	for _, p := range append(agents, leading) {
		w.end(p)
	}
	w.must("sh1-a", "INSERT INTO t VALUES (3) RETURNING id::text", "3")
	w.agents(false)
	a, _ = w.admin("adm1", nil)
	live = a.Live()
	w.until(live, "adopted cluster", func(s *catalog.Snapshot) bool { return healthy(s, members[0], members[1:]...) })
	for n, pid := range pids {
		if got := w.servers[n].Running(); got != pid {
			t.Errorf("%s: server %d was not adopted but replaced by %d", n, pid, got)
		}
	}
	w.commit(live, 4)
	checkLag(t, w, live)
	events, err := catalog.ListEvents(w.soon(), store, clusterName, 100)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, e := range events {
		counts[e.Kind]++
	}
	if counts["initialised"] != 1 || counts["provisioned"] != 2 || counts["ready"] != 1 || counts["leader"] != 3 {
		t.Errorf("events %v", counts)
	}
}

func checkProvisioned(t *testing.T, w *world, snap *catalog.Snapshot) {
	t.Helper()
	doc, rule := snap.Shard("sh1"), snap.Rule("sh1")
	if doc.Primary != "sh1-a" || doc.Term != 1 || doc.SystemID == "" || doc.Durability != "sync" || !doc.Authoritative {
		t.Errorf("shard %+v", doc)
	}
	if rule.Phase != "active" || rule.W != 1 || fmt.Sprint(rule.Cohort) != "[sh1-a sh1-b sh1-c]" || rule.SystemID != doc.SystemID {
		t.Errorf("rule %+v", rule)
	}
	w.must("sh1-a", "SHOW synchronous_standby_names", `ANY 1 ("sh1-b","sh1-c")`)
	w.must("sh1-b", "SHOW synchronous_standby_names", pgproc.FencedStandbys)
	w.must("sh1-a", "SELECT string_agg(application_name || ' ' || sync_state, ',' ORDER BY application_name) FROM pg_stat_replication",
		"sh1-b quorum,sh1-c quorum")
	w.must("sh1-a", "SELECT string_agg(slot_name || active, ',' ORDER BY slot_name) FROM pg_replication_slots", "neki_sh1_btrue,neki_sh1_ctrue")
	w.must("sh1-b", "SELECT string_agg(rolname, ',' ORDER BY rolname) FROM pg_roles WHERE rolname LIKE 'neki%'",
		"neki_gateway,neki_operator,neki_replication,neki_viewer")
	w.must("sh1-a", "SELECT count(*)::text FROM pg_class WHERE oid = to_regclass('neki.shards')", "1")
	login, err := admin.GatewayLogin(w.soon(), w.store, clusterName)
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range members { // verifiers can be read on each
		conn, err := w.connect(node, login.Name, login.Password)
		if err != nil {
			t.Fatal(err)
		}
		var verifier string
		err = conn.QueryRow(w.soon(), "SELECT rolpassword FROM pg_authid WHERE rolname = $1", super.Name).Scan(&verifier)
		if err != nil || !strings.HasPrefix(verifier, "SCRAM-SHA-256$4096:") {
			t.Errorf("verifier on %s: %q, %v", node, verifier, err)
		}
		if err := conn.Close(w.soon()); err != nil {
			t.Error(err)
		}
	}
	if _, err := w.connect("sh1-a", pgproc.Superuser, "x"); err == nil {
		t.Error("the bootstrap superuser gets in over TCP")
	}
}

// checkLag: zero when idle, a lower bound that grows and is not known to be the lag once the receiver is cut.
func checkLag(t *testing.T, w *world, live *catalog.Live) {
	t.Helper()
	for idle := time.Now(); time.Since(idle) < 4*time.Second; {
		changed := live.Changed()
		s := live.Snapshot()
		for _, n := range members[1:] {
			if h := s.Health(n); !h.LagKnown || h.Lag > time.Second {
				t.Fatalf("idle, but lag of %s is %v, known %v (%s)", n, h.Lag, h.LagKnown, h.LagReason)
			}
		}
		<-changed
	}
	cut := w.servers["sh1-c"].DataDir()
	conf := filepath.Join(cut, "postgresql.auto.conf") // read after the agent's file
	if err := os.WriteFile(conf, []byte("primary_conninfo = ''\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.servers["sh1-c"].Reload(); err != nil {
		t.Fatal(err)
	}
	w.until(live, "unknown lag", func(s *catalog.Snapshot) bool {
		h := s.Health("sh1-c")
		return !h.LagKnown && h.LagReason != "" && !h.Streaming && h.State != catalog.StateServing
	})
	if !healthy(live.Snapshot(), "sh1-a", "sh1-b") {
		t.Error("the others are not as they were")
	}
	w.must("sh1-a", "INSERT INTO t VALUES (5) RETURNING id::text", "5") // the other one acknowledges
	if err := os.WriteFile(conf, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.servers["sh1-c"].Reload(); err != nil {
		t.Fatal(err)
	}
	w.until(live, "caught up replica", func(s *catalog.Snapshot) bool { return healthy(s, "sh1-a", "sh1-b", "sh1-c") })
}

// Provisioning that is cut off again and again, each time a step later, goes on where it was: one initdb, one copy of
// each replica that counts.
func TestInterruptedProvisioning(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	for cut := 1; cut <= 4; cut++ {
		var mu sync.Mutex
		steps, reached := 0, make(chan struct{})
		w.progress = func(step string) {
			mu.Lock()
			defer mu.Unlock()
			steps++
			if done := strings.HasSuffix(step, "primary sh1-a"); steps == cut || done && steps < cut { // it may be quick
				close(reached)
				steps = cut
			}
		}
		parts := w.agents(false)
		_, leading := w.admin("adm1", nil)
		select {
		case <-reached:
		case <-w.soon().Done():
			t.Fatalf("not %d steps", cut)
		}
		for _, p := range append(parts, leading) {
			w.end(p)
		}
	}
	w.progress = func(string) {}
	w.agents(true)
	a, _ := w.admin("adm1", nil)
	w.ready(a)
	snap := w.until(a.Live(), "healthy cluster", func(s *catalog.Snapshot) bool { return healthy(s, members[0], members[1:]...) })
	checkProvisioned(t, w, snap)
	events, err := catalog.ListEvents(w.soon(), store, clusterName, 100)
	if err != nil {
		t.Fatal(err)
	}
	initialised := 0
	for _, e := range events {
		if e.Kind == "initialised" {
			initialised++
		}
	}
	if initialised != 1 {
		t.Errorf("initialised %d times: %+v", initialised, events)
	}
}

// A replica that comes later is copied and joins the acknowledgers; an rdonly one is copied and doesn't. When the
// primary is killed one of those that may leads, and all follow it.
func TestJoinAndRestart(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	w.agent("sh1", "sh1-a", catalog.RoleReplica, true)
	w.agent("sh1", "sh1-b", catalog.RoleReplica, true)
	a, _ := w.admin("adm1", func(c *admin.Config) {
		c.Profiles = []catalog.Profile{{Name: "default", Replicas: 1, Default: true}}
	})
	live := a.Live()
	w.ready(a)
	w.agent("sh1", "sh1-c", catalog.RoleReplica, true)
	w.agent("sh1", "sh1-r", catalog.RoleRdonly, true)
	w.until(live, "joined members", func(s *catalog.Snapshot) bool {
		return healthy(s, "sh1-a", "sh1-b", "sh1-c", "sh1-r") && len(s.Rule("sh1").Cohort) == 3
	})
	w.until(live, "new acknowledger", func(*catalog.Snapshot) bool {
		got, err := w.query("sh1-a", "SHOW synchronous_standby_names")
		return err == nil && got == `ANY 1 ("sh1-b","sh1-c")`
	})
	pid := w.servers["sh1-a"].Running()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var leader string
	w.until(live, "primary again", func(s *catalog.Snapshot) bool {
		p, now := s.PrimaryOf("sh1"), w.servers["sh1-a"].Running()
		if p == nil || now == 0 || now == pid || s.Rule("sh1").Term < 2 {
			return false
		}
		leader = p.ID
		others := slices.DeleteFunc([]string{"sh1-a", "sh1-b", "sh1-c", "sh1-r"}, func(n string) bool { return n == leader })
		return healthy(s, leader, others...)
	})
	if leader == "sh1-r" {
		t.Error("an rdonly member leads")
	}
	w.must(leader, "SELECT pg_is_in_recovery()::text", "false")
}

// Of two admins one leads; when it goes the other takes over in a higher epoch.
func TestTwoAdmins(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	one, first := w.admin("adm1", nil)
	w.until(one.Live(), "leader", func(s *catalog.Snapshot) bool { return one.Leading() && len(s.Shards) == 1 })
	two, _ := w.admin("adm2", nil)
	w.until(two.Live(), "second admin", func(s *catalog.Snapshot) bool { return len(s.Admins) == 2 })
	epoch := one.Status().Epoch
	if two.Leading() {
		t.Fatal("two lead")
	}
	w.end(first)
	w.until(two.Live(), "successor", func(s *catalog.Snapshot) bool {
		return two.Leading() && len(s.Admins) == 1 && s.Admins[0].Leader
	})
	if got := two.Status().Epoch; got <= epoch {
		t.Errorf("epoch %d after %d", got, epoch)
	}
	resp, err := w.http.Get(two.Live().Snapshot().Admins[0].URL + "/healthz")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("healthz: %v, %v", resp, err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	resp, err = w.http.Get(two.Live().Snapshot().Admins[0].URL + "/v1/status")
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Fatalf("status without a token: %v, %v", resp, err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
}
