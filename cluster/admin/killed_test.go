package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"neki/catalog"
	"neki/catalog/etcdstore"
	"neki/cluster/admin"
	"neki/cluster/agent"
	"neki/cluster/backup"
	"neki/cluster/pgproc"
)

// The test binary runs itself as an agent when this holds a childConfig.
const childAgent = "NEKI_TEST_AGENT"

type childConfig struct {
	Node, Dir, BinDir, Program, Archive string
	Port                                int
	Etcd                                []string
}

// runChildAgent is one agent in a process of its own, which a test can kill.
func runChildAgent(text string) {
	if err := childAgentRuns(context.Background(), text); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func childAgentRuns(ctx context.Context, text string) error {
	var c childConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	inst, err := pgproc.FindInstallation(ctx, c.BinDir, 0)
	if err != nil {
		return err
	}
	account, err := pgproc.LookupAccount("")
	if err != nil {
		return err
	}
	store, err := etcdstore.Open(etcdstore.Config{Endpoints: c.Etcd})
	if err != nil {
		return err
	}
	archive, err := backup.NewDirStore(c.Archive)
	if err != nil {
		return err
	}
	a, err := agent.New(agent.Config{
		Cluster: clusterName, Node: c.Node, Shard: "sh1", Role: catalog.RoleReplica, Dir: c.Dir, Port: c.Port, Installation: inst, Account: account,
		Store: store, Token: token, Settings: pgproc.Settings{"fsync": "off"}, Archive: agent.Archive{Store: archive, Program: c.Program},
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// children is a Provider whose instances are processes.
type children struct {
	w      *world
	config childConfig

	mu    sync.Mutex
	of    map[string]*exec.Cmd
	ended bool
}

// StartInstance starts an agent's process unless it runs.
func (c *children) StartInstance(_ context.Context, in admin.Instance) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[in.ID] != nil || c.ended {
		return nil
	}
	cfg := c.config
	cfg.Node, cfg.Dir, cfg.Port = in.ID, filepath.Join(c.w.dir, in.ID), c.w.port(in.ID)
	p, err := pgproc.New(pgproc.Config{Installation: c.w.inst, Account: c.w.acct, Dir: cfg.Dir, Port: cfg.Port})
	if err != nil {
		return err
	}
	if old := c.w.servers[in.ID]; old != nil {
		old.Close()
	}
	c.w.servers[in.ID] = p // so that the end of the test kills what it started
	text, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childAgent+"="+string(text))
	cmd.Stdout, cmd.Stderr = c.w.t.Output(), c.w.t.Output()
	if err := cmd.Start(); err != nil {
		return err
	}
	c.of[in.ID] = cmd
	return nil
}

// RemoveInstance is not asked for here.
func (c *children) RemoveInstance(_ context.Context, node string) error {
	return fmt.Errorf("nobody removes %s", node)
}

// kill ends an agent as kill -9 does, and starts it again.
func (c *children) kill(node string, again bool) {
	c.w.t.Helper()
	c.mu.Lock()
	cmd := c.of[node]
	delete(c.of, node)
	c.ended = c.ended || !again
	c.mu.Unlock()
	if cmd == nil {
		return
	}
	if err := cmd.Process.Kill(); err != nil {
		c.w.t.Error(err)
	}
	_ = cmd.Wait() // "signal: killed"
	if again {
		if err := c.StartInstance(c.w.t.Context(), admin.Instance{ID: node}); err != nil {
			c.w.t.Error(err)
		}
	}
}

// The agent of a replica that is being added is killed in each phase: the operation goes on and ends in one replica that serves and
// acknowledges. The primary and its term stay, and clients see nothing.
func TestAddReplicaSurvivesKills(t *testing.T) {
	etcd := &etcdPart{t: t, dir: filepath.Join(t.TempDir(), "etcd")}
	etcd.start()
	t.Cleanup(func() { etcd.Close() })
	store, err := etcdstore.Open(etcdstore.Config{Endpoints: etcd.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	provider := &children{w: w, of: map[string]*exec.Cmd{}}
	w.provider, w.pace = provider, 5*time.Millisecond
	dir := w.withArchive()
	provider.config = childConfig{BinDir: w.inst.BinDir, Program: w.archive.Program, Archive: dir, Etcd: etcd.Endpoints()}
	t.Cleanup(func() { provider.kill("sh1-d", false) })
	a, _, ws, end := failoverWorld(t, w)
	live := a.Live()
	w.exec(members[0], "CREATE TABLE bulk AS SELECT i, repeat('x', 800) AS pad FROM generate_series(1, 15000) AS i")
	if j := w.do(live, catalog.Job{Kind: "backup", Shard: "sh1", By: "test", Args: []byte(`{"kind": "manual"}`)}); j.State != catalog.JobDone {
		t.Fatalf("%+v", j)
	}
	j, _, err := catalog.PutJob(w.soon(), store, clusterName, catalog.Job{Kind: "add_replica", Shard: "sh1", By: "test", Args: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	for _, phase := range []struct {
		name string
		is   func(*agent.Status) bool
	}{
		{"registered", func(*agent.Status) bool { return true }},
		{"restoring", func(st *agent.Status) bool { return st.Work != nil && st.Work.Done > 0 }},
		{"restored", func(st *agent.Status) bool { return !st.Empty }},
		{"up", func(st *agent.Status) bool { return st.Server.Up }},
	} {
		ended := false
		w.until(live, "phase "+phase.name, func(s *catalog.Snapshot) bool {
			now := s.Job(j.ID)
			ended = now != nil && now.State.Final()
			n := s.Node("sh1-d")
			if n == nil || ended {
				return ended
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			st, err := (&agent.Client{URL: n.AgentURL, HTTP: w.http, Token: token}).Status(ctx)
			return err == nil && phase.is(&st)
		})
		if ended {
			t.Fatalf("the operation ended before the phase %q", phase.name)
		}
		t.Logf("kill in phase %q", phase.name)
		provider.kill("sh1-d", true)
	}
	w.until(live, "the end of the operation", func(s *catalog.Snapshot) bool { now := s.Job(j.ID); return now != nil && now.State.Final() })
	snap := w.until(live, "replica", func(s *catalog.Snapshot) bool { return healthy(s, members[0], append(members[1:], "sh1-d")...) })
	if now := snap.Job(j.ID); now.State != catalog.JobDone || !strings.HasPrefix(now.Step, "sh1-d is a replica of shard sh1") {
		t.Errorf("%+v", now)
	}
	if r := snap.Rule("sh1"); len(snap.Nodes) != len(members)+1 || strings.Join(r.Cohort, " ") != "sh1-a sh1-b sh1-c sh1-d" || r.Term != 1 {
		t.Errorf("%d nodes, rule %+v", len(snap.Nodes), r)
	}
	ws.progress(20)
	end()
	ws.check("sh1-d")
	if n := ws.errors.Load(); n != 0 {
		t.Errorf("writers met %d errors", n)
	}
}
