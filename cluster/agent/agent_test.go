package agent_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"neki/catalog"
	"neki/catalog/memstore"
	"neki/cluster/agent"
	"neki/cluster/decide"
	"neki/cluster/pgproc"
	"neki/internal/pgerr"
	"neki/internal/testpg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	cluster = "test"
	shard   = "sh1"
	token   = "shared token of the test"
)

// bench is the store and the directory of a test's agents.
type bench struct {
	t     *testing.T
	store *memstore.Store
	dir   string
	http  *http.Client
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("", "nekiagent-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, store: memstore.New(), dir: dir, http: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(func() {
		b.http.CloseIdleConnections()
		if err := errors.Join(b.store.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return b
}

// running is an agent that runs in the test's process.
type running struct {
	*agent.Client
	cfg  agent.Config
	stop context.CancelFunc
	done chan error
}

func (b *bench) config(node string, role catalog.Role) agent.Config {
	b.t.Helper()
	inst, account := testpg.Installation(b.t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		b.t.Fatal(err)
	}
	return agent.Config{
		Cluster: cluster, Node: node, Shard: shard, Role: role, Dir: filepath.Join(b.dir, node), Port: port,
		Installation: inst, Account: account, Store: b.store, Token: token, StopPostgres: true,
		Settings: pgproc.Settings{"fsync": "off"}, Progress: func(step string) { b.t.Log(step) },
	}
}

// run starts an agent; it is stopped with the test, and its server with it.
func (b *bench) run(cfg agent.Config) *running {
	b.t.Helper()
	a, err := agent.New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &running{cfg: cfg, stop: stop, done: make(chan error, 1)}
	go func() { r.done <- a.Run(ctx) }()
	url, err := a.URL(b.soon())
	if err != nil {
		b.t.Fatalf("agent %s: %v", cfg.Node, err)
	}
	r.Client = &agent.Client{URL: url, Token: token, HTTP: b.http}
	b.t.Cleanup(func() {
		r.end(b.t)
		if err := a.Instance().Kill(); err != nil {
			b.t.Error(err)
		}
		a.Instance().Close()
	})
	return r
}

// end ends the agent and waits for it.
func (r *running) end(t *testing.T) {
	r.stop()
	if err, ok := <-r.done; ok && err != nil {
		t.Errorf("agent %s: %v", r.cfg.Node, err)
	}
	select {
	case <-r.done:
	default:
		close(r.done)
	}
}

var errCut = errors.New("cut by the test")

// background runs something until the test ends.
func (b *bench) background(name string, run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	b.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			b.t.Errorf("%s: %v", name, err)
		}
	})
}

// view waits until node a's health in the Live is as wanted.
func (b *bench) view(live *catalog.Live, what string, want func(*catalog.NodeHealth) bool) {
	b.t.Helper()
	ctx := b.soon()
	for {
		changed := live.Changed()
		var h *catalog.NodeHealth
		if snap := live.Snapshot(); snap != nil {
			h = snap.Health("a")
		}
		if h != nil && want(h) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			b.t.Fatalf("no %s; last %+v", what, h)
		}
	}
}

func (b *bench) soon() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	b.t.Cleanup(cancel)
	return ctx
}

// claim writes that a node leads the shard, as the admin does before it orders initdb.
func (b *bench) claim(node string, term int64) {
	b.t.Helper()
	rule := catalog.Rule{Term: term, Phase: decide.PhaseBootstrap, Leader: node, Cohort: []string{node}}
	if _, err := catalog.PutRule(b.soon(), b.store, cluster, shard, rule, catalog.AnyRev); err != nil {
		b.t.Fatal(err)
	}
	s := catalog.Shard{UID: shard, Name: shard, Primary: node, Term: term}
	if _, err := catalog.PutShard(b.soon(), b.store, cluster, s, catalog.AnyRev); err != nil {
		b.t.Fatal(err)
	}
}

func head(op string) agent.Order { return agent.Order{Epoch: 1, Term: 1, OpID: op} }

const replicationPassword = "repl:pass"

// primary provisions the first node of the shard.
func (b *bench) primary() *running {
	b.t.Helper()
	b.claim("a", 1)
	a := b.run(b.config("a", catalog.RoleReplica))
	if _, err := a.Provision(b.soon(), agent.ProvisionOrder{Order: head("init"), ReplicationPassword: replicationPassword}); err != nil {
		b.t.Fatal(err)
	}
	roles := []agent.RoleSpec{
		{Name: agent.RoleReplication, Login: true, Replication: true, Verifier: replicationPassword}, {Name: agent.RoleViewer},
	}
	if _, err := a.Apply(b.soon(), agent.ApplyOrder{Order: head("roles"), Roles: roles}); err != nil {
		b.t.Fatal(err)
	}
	return a
}

// replica provisions a copy of the primary.
func (b *bench) replica(primary *running, node string) *running {
	b.t.Helper()
	r := b.run(b.config(node, catalog.RoleReplica))
	if _, err := primary.Lead(b.soon(), agent.LeadOrder{Order: head("slot " + node), Peers: []string{node}, Acks: 1}); err != nil {
		b.t.Fatal(err)
	}
	src := &agent.Source{Node: "a", Host: "127.0.0.1", Port: primary.cfg.Port}
	o := agent.ProvisionOrder{Order: head("clone " + node), Source: src, ReplicationPassword: replicationPassword}
	if _, err := r.Provision(b.soon(), o); err != nil {
		b.t.Fatal(err)
	}
	return r
}

// until reads the agent's stream until a report is as wanted.
func (r *running) until(b *bench, what string, want func(catalog.Health) bool) catalog.Health {
	b.t.Helper()
	var last catalog.Health
	for h, err := range r.Stream(b.soon()) {
		if err != nil {
			b.t.Fatalf("no %s: %v; last report %+v", what, err, last)
		}
		if last = h; want(h) {
			return h
		}
	}
	b.t.Fatalf("no %s", what)
	return last
}

func serving(h catalog.Health) bool { return h.State == catalog.StateServing }

func (r *running) query(b *bench, sql string) (string, error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.soon(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, "host="+filepath.Join(r.cfg.Dir, "run")+" user=postgres dbname=postgres port="+port(r.cfg.Port))
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx) //nolint:errcheck // the query's error counts
	var v string
	err = conn.QueryRow(ctx, sql).Scan(&v)
	return v, err
}

func port(n int) string {
	a := net.TCPAddr{Port: n}
	return strings.TrimPrefix(a.String(), ":")
}

func (r *running) mustQuery(b *bench, sql, want string) {
	b.t.Helper()
	if got, err := r.query(b, sql); err != nil || got != want {
		b.t.Fatalf("%s on %s: %q, %v; want %q", sql, r.cfg.Node, got, err, want)
	}
}

// A primary that resigned, and is chosen again as the candidate was lost, serves like any other, and resigns anew when it is to:
// a position of its first resignation would say that it acknowledges nothing while it does.
func TestResignTwice(t *testing.T) {
	b := newBench(t)
	a := b.primary()
	lead := func(op string, term int64) agent.LeadOrder {
		return agent.LeadOrder{Order: agent.Order{Epoch: 1, Term: term, OpID: op}}
	}
	fence := func(op string, term int64) catalog.LSN {
		if _, err := a.Fence(b.soon(), agent.FenceOrder{Order: lead(op, term).Order}); err != nil {
			t.Fatal(err)
		}
		st, err := a.Status(b.soon())
		if err != nil || st.FencedLSN == 0 || st.Writable {
			t.Fatalf("fenced: %+v, %v", st, err)
		}
		return st.FencedLSN
	}
	if _, err := a.Lead(b.soon(), lead("lead", 1)); err != nil {
		t.Fatal(err)
	}
	first := fence("fence", 1)
	b.claim("a", 2)
	if _, err := a.Recruit(b.soon(), lead("recruit", 2).Order); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Promote(b.soon(), lead("promote", 2)); err != nil {
		t.Fatal(err)
	}
	a.until(b, "primary of term 2 that serves", serving)
	if st, err := a.Status(b.soon()); err != nil || !st.Writable || st.FencedLSN != 0 {
		t.Fatalf("serves again: %+v, %v", st, err)
	}
	a.mustQuery(b, "SELECT (pg_logical_emit_message(true, 'test', '') IS NOT NULL)::text", "true")
	if second := fence("fence again", 2); second <= first {
		t.Errorf("it resigned at %v, and then at %v", first, second)
	}
}

func TestProvisionAndLag(t *testing.T) {
	b := newBench(t)
	a := b.primary()
	replica := b.replica(a, "b")
	h := replica.until(b, "streaming replica", func(h catalog.Health) bool { return serving(h) && h.Streaming })
	if h.Role != catalog.RoleReplica || h.ReplayLSN == 0 || h.Timeline != 1 || h.Term != 1 || h.SystemID == "" {
		t.Errorf("replica's report: %+v", h)
	}
	if _, err := a.Lead(b.soon(), agent.LeadOrder{Order: head("sync"), Peers: []string{"b"}, Standbys: []string{"b"}, Acks: 1}); err != nil {
		t.Fatal(err)
	}
	a.mustQuery(b, "SHOW synchronous_standby_names", `ANY 1 ("b")`)
	a.mustQuery(b, "SELECT string_agg(slot_name || active, ',') FROM pg_replication_slots", "neki_btrue")
	a.mustQuery(b, "SELECT count(*)::text FROM pg_stat_replication WHERE application_name = 'b' AND sync_state = 'quorum'", "1")
	h = a.until(b, "usage figures", func(h catalog.Health) bool { return h.MaxConnections > 0 && h.CPU > 0 })
	if h.Role != catalog.RolePrimary || h.FlushLSN == 0 || len(h.Ring) == 0 || h.MemoryBytes < 10<<20 ||
		h.DiskFree == 0 || h.DiskTotal < h.DiskFree {
		t.Errorf("primary's report: %+v", h)
	}
	// Idle: no lag, and that for longer than the receiver's messages are apart.
	idle := time.Now()
	replica.until(b, "five idle seconds", func(h catalog.Health) bool {
		if h.Lag == nil || *h.Lag != 0 {
			t.Errorf("lag of an idle replica %v, report %+v", h.Lag, h)
			return true
		}
		return time.Since(idle) > 5*time.Second
	})
	if _, err := replica.query(b, "SELECT pg_wal_replay_pause()::text"); err != nil {
		t.Fatal(err)
	}
	a.mustQuery(b, "WITH x AS (SELECT pg_logical_emit_message(true, 'test', 'x')) SELECT 'written' FROM x", "written")
	replica.until(b, "growing lag", func(h catalog.Health) bool { return h.Lag != nil && *h.Lag > time.Second })
	a.stop() // the stream from it breaks: how far behind replay is nobody knows
	replica.until(b, "unknown lag", func(h catalog.Health) bool { return h.Lag == nil && !h.Streaming })
}

func TestOrdersRefused(t *testing.T) {
	b := newBench(t)
	a := b.primary()
	cases := []struct {
		name string
		do   func() error
	}{
		{"second initdb of another system", func() error {
			_, err := a.Provision(b.soon(), agent.ProvisionOrder{Order: head("x1"), SystemID: "1", ReplicationPassword: "p"})
			return err
		}},
		{"no operation id", func() error { _, err := a.Reload(b.soon(), agent.Order{Epoch: 9, Term: 1}); return err }},
		{"lower term", func() error { _, err := a.Reload(b.soon(), agent.Order{Epoch: 1, OpID: "x2"}); return err }},
		{"follow by a primary", func() error {
			_, err := a.Follow(b.soon(), agent.FollowOrder{Order: head("x3"), Source: agent.Source{Node: "z"}})
			return err
		}},
	}
	for _, c := range cases {
		if err := c.do(); pgerr.From(err) == nil || pgerr.From(err).Code == pgerr.InternalError {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := a.Reload(b.soon(), agent.Order{Epoch: 5, Term: 1, OpID: "of a later epoch"}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Reload(b.soon(), agent.Order{Epoch: 4, Term: 1, OpID: "of an earlier one"}); err == nil {
		t.Error("an order of a lower epoch was obeyed")
	}
	stranger := agent.Client{URL: a.URL, HTTP: b.http, Token: "wrong"}
	if _, err := stranger.Status(b.soon()); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("a stranger's call: %v", err)
	}
	s, err := a.Status(b.soon())
	if err != nil || s.Promises.Epoch != 5 || s.Promises.OwnTerm != 1 {
		t.Errorf("status %+v, %v", s, err)
	}
}

// An agent that is dropped without stopping its server, as by kill -9 of the supervisor, is followed by one that adopts
// it; a postmaster that is killed is started again in its role, if the catalog confirms that.
func TestAdoptAndRestart(t *testing.T) {
	b := newBench(t)
	b.claim("a", 1)
	cfg := b.config("a", catalog.RoleReplica)
	cfg.StopPostgres = false
	a := b.run(cfg)
	if _, err := a.Provision(b.soon(), agent.ProvisionOrder{Order: head("init"), ReplicationPassword: replicationPassword}); err != nil {
		t.Fatal(err)
	}
	before, err := a.Status(b.soon())
	if err != nil {
		t.Fatal(err)
	}
	a.end(t)
	if err := unix.Kill(before.PID, 0); err != nil {
		t.Fatalf("the server went with its agent: %v", err)
	}
	a = b.run(cfg)
	a.until(b, "adopted server", serving)
	after, err := a.Status(b.soon())
	if err != nil || after.PID != before.PID || after.Promises != before.Promises {
		t.Fatalf("before %+v, after %+v, %v", before, after, err)
	}
	if err := unix.Kill(after.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	a.until(b, "restarted primary", func(h catalog.Health) bool {
		s, err := a.Status(b.soon())
		return err == nil && s.PID != 0 && s.PID != before.PID && serving(h) && h.Role == catalog.RolePrimary
	})
	// Another leads now: the same crash makes a standby of it.
	b.claim("z", 2)
	if s, err := a.Status(b.soon()); err != nil {
		t.Fatal(err)
	} else if err := unix.Kill(s.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	a.until(b, "standby", func(h catalog.Health) bool { return h.Role == catalog.RoleReplica && h.ReplayLSN > 0 })
	if _, err := a.query(b, "CREATE TABLE t ()"); err == nil || !strings.Contains(err.Error(), "25006") {
		t.Errorf("a write on a deposed primary: %v", err)
	}
}

// Without the catalog a former primary waits, and starts once the catalog is back and confirms it.
func TestRestartWaitsForCatalog(t *testing.T) {
	b := newBench(t)
	a := b.primary()
	a.until(b, "primary", serving)
	b.store.Interrupt(errCut)
	s, err := a.Status(b.soon())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(s.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	a.until(b, "waiting", func(h catalog.Health) bool {
		return h.State == catalog.StateStarting && strings.Contains(h.Reason, "catalog")
	})
	b.store.Interrupt(nil)
	a.until(b, "primary again", func(h catalog.Health) bool { return serving(h) && h.Role == catalog.RolePrimary })
}

// A frozen postmaster leaves old sessions working; only a new connection shows it.
func TestFrozenPostmaster(t *testing.T) {
	b := newBench(t)
	a := b.primary()
	a.until(b, "primary", serving)
	s, err := a.Status(b.soon())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(s.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	a.until(b, "unreachable", func(h catalog.Health) bool {
		return h.State == catalog.StateUnreachable && strings.Contains(h.Reason, "new connections")
	})
	if err := unix.Kill(s.PID, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	a.until(b, "serving again", serving)
}

func TestStopHolds(t *testing.T) {
	b := newBench(t)
	a := b.primary()
	if _, err := a.Stop(b.soon(), agent.StopOrder{Order: head("stop"), Reason: "fenced by the test"}); err != nil {
		t.Fatal(err)
	}
	a.until(b, "fenced", func(h catalog.Health) bool { return h.State == catalog.StateFenced && h.Reason == "fenced by the test" })
	a.end(t)
	a = b.run(a.cfg)
	a.until(b, "still fenced", func(h catalog.Health) bool { return h.State == catalog.StateFenced })
	if s, err := a.Status(b.soon()); err != nil || s.PID != 0 {
		t.Fatalf("status %+v, %v", s, err)
	}
	if _, err := a.Start(b.soon(), head("start")); err != nil {
		t.Fatal(err)
	}
	a.until(b, "serving", serving)
}

func TestStubs(t *testing.T) {
	b := newBench(t)
	a := b.primary()
	a.mustQuery(b, "SELECT count(*)::text FROM pg_namespace WHERE nspname = 'neki'", "0")
	stubs := func(version, more string) *agent.StubSchema {
		return &agent.StubSchema{
			SQL: "BEGIN; CREATE SCHEMA IF NOT EXISTS neki; CREATE OR REPLACE VIEW neki.shards AS SELECT NULL::text AS shard;" +
				more + "COMMENT ON SCHEMA neki IS '" + version + "'; COMMIT",
			Version: version, VersionQuery: "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = 'neki'",
		}
	}
	o := agent.ApplyOrder{Order: head("stubs"), Stubs: stubs("1", "")}
	r, err := a.Apply(b.soon(), o)
	if err != nil || len(r.Done) != 2 { // postgres and template1
		t.Fatalf("%+v, %v", r, err)
	}
	o.OpID = "again"
	if r, err := a.Apply(b.soon(), o); err != nil || len(r.Done) != 0 {
		t.Fatalf("a second time: %+v, %v", r, err)
	}
	o.OpID, o.Stubs = "changed", stubs("2", "COMMENT ON VIEW neki.shards IS 'new';")
	if r, err := a.Apply(b.soon(), o); err != nil || len(r.Done) != 2 {
		t.Fatalf("changed text: %+v, %v", r, err)
	}
	o.OpID, o.Stubs = "broken", stubs("3", "CREATE TABLE neki.half (); SELECT 1/0;")
	if _, err := a.Apply(b.soon(), o); err == nil {
		t.Fatal("a broken text was accepted")
	}
	a.mustQuery(b, "SELECT count(*)::text FROM pg_class WHERE relname = 'half'", "0")
	a.mustQuery(b, "SELECT obj_description('neki.shards'::regclass)", "new")
}

func TestNames(t *testing.T) {
	for id, want := range map[string]string{"sh1-b": "neki_sh1_b", "a": "neki_a"} {
		if got := agent.SlotName(id); got != want {
			t.Errorf("%s: %s", id, got)
		}
	}
	seen := map[string]string{}
	for _, id := range []string{"a-b", "a_b", "a.b", "A-b", strings.Repeat("x", 63), strings.Repeat("x", 62) + "y"} {
		name := agent.SlotName(id)
		if other, ok := seen[name]; ok || len(name) > 63 {
			t.Errorf("slot %s for %s and %s", name, id, other)
		}
		seen[name] = id
	}
	for _, c := range []struct {
		nodes []string
		acks  int
		want  string
	}{
		{nil, 0, ""},
		{[]string{"b"}, 0, ""},
		{nil, 1, pgproc.FencedStandbys},
		{[]string{"b", "c"}, 1, `ANY 1 ("b","c")`},
		{[]string{"b"}, 2, pgproc.FencedStandbys},
	} {
		if got := agent.StandbyNames(c.nodes, c.acks); got != c.want {
			t.Errorf("%v, %d: %s", c.nodes, c.acks, got)
		}
	}
}

func TestUnguardedAPI(t *testing.T) {
	for _, c := range []struct {
		listen, token string
		ok            bool
	}{{"127.0.0.1:0", "x", true}, {"127.0.0.1:0", "", false}, {"0.0.0.0:1", "x", false}, {"[::1]:0", "x", true}} {
		if err := agent.CheckGuard(c.listen, nil, c.token); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
