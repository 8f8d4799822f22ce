package pooler

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"neki/catalog"
	"neki/catalog/etcdstore"
	"neki/catalog/etcdstore/embedded"
	"neki/cluster/admin"
	"neki/cluster/agent"
	"neki/internal/testpg"
	"neki/settings"
)

// killedGatewayEnv makes the test binary a gateway that kills itself: the value is a killedGateway.
const killedGatewayEnv = "NEKI_TEST_KILLED_GATEWAY"

// killsEnv is how often a gateway is killed; each step once if it is not set.
const killsEnv = "NEKI_TEST_KILLS"

// killedGateway is what such a gateway must know.
type killedGateway struct {
	ID        string
	Endpoints []string
	Step      string // at which it kills itself
}

// runKilledGateway is the gateway's process. It never returns.
func runKilledGateway(text string) {
	var k killedGateway
	if err := json.Unmarshal([]byte(text), &k); err != nil {
		panic(err)
	}
	ctx := context.Background()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	store, err := etcdstore.Open(etcdstore.Config{Endpoints: k.Endpoints})
	if err != nil {
		panic(err)
	}
	live := catalog.NewLive(store, testCluster, log)
	go func() { _ = live.Run(ctx) }()
	commits := catalog.NewCoordinator(store, testCluster, k.ID)
	registered := make(chan struct{})
	go func() {
		_ = catalog.KeepRegistered(ctx, store, 2*time.Second, log, func(ctx context.Context, lease catalog.Lease) error {
			defer close(registered)
			return commits.Register(ctx, lease)
		})
	}()
	<-live.Ready()
	<-registered
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server, err := New(Config{
		ID: k.ID, Index: 1, Version: "test", Listeners: []net.Listener{l}, Cluster: live, Commits: commits,
		System:     SystemLogin{User: testpg.Superuser, Password: testpg.Password, Database: "postgres"},
		Parameters: settings.DefaultParameters(), Log: log,
	})
	if err != nil {
		panic(err)
	}
	server.atCommitStep = func(step string) {
		if step == k.Step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	fmt.Println(l.Addr())
	panic(server.Run(ctx))
}

// commitSteps are where a gateway is killed, and what must have become of the transaction then.
var commitSteps = []struct{ name, outcome string }{
	{"begin", "0"},
	{"prepare sh1", "0"},
	{"prepared sh1", "0"},
	{"prepare sh2", "0"},
	{"prepared sh2", "0"},
	{"decide", "0"},
	{"decided", "2"},
	{"commit sh1", "2"},
	{"committed sh1", "2"},
	{"commit sh2", "2"},
	{"committed sh2", "2"},
	{"done", "2"},
}

// killing is a cluster of two shards whose gateways get killed, and an admin's work for it.
type killing struct {
	*shards
	etcd     *embedded.Server
	resolver *admin.Resolver
}

func startKilling(t *testing.T) *killing {
	t.Helper()
	k := &killing{shards: &shards{
		gateway: &gateway{t: t, dbname: fmt.Sprintf("test%d", sharedServers.tests.Add(1))}, servers: sharedServers.get(t, 2),
	}}
	k.createDatabases()
	k.everywhere(shardSchema)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var err error
	if k.etcd, err = embedded.Start(ctx, t.TempDir(), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.etcd.Close)
	store, err := etcdstore.Open(etcdstore.Config{Endpoints: k.etcd.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	k.putShards(store)
	k.setTopology(store, twoShards)
	k.resolver = &admin.Resolver{
		Store: store, Cluster: testCluster, Shards: func() []string { return []string{"sh1", "sh2"} },
		Record: func(context.Context, catalog.Event) {},
		Ask: func(ctx context.Context, shard string, o agent.PreparedOrder) (agent.PreparedStatus, error) {
			return askPrepared(ctx, k.servers[shard[2]-'1'], k.dbname, o)
		},
	}
	k.resolve()
	return k
}

// resolve does what the leading admin does, until the test ends. A pass that a busy machine gave no time to is made again,
// as the admin makes it: what counts is that nothing is left prepared.
func (k *killing) resolve() {
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	working.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := k.resolver.Pass(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
				k.t.Errorf("the admin: %v", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	k.t.Cleanup(func() { cancel(); working.Wait() })
}

// kill runs a gateway that is killed at a step of the transaction that sql is, through it.
func (k *killing) kill(id, step, sql string) (err error) {
	k.t.Helper()
	text, _ := json.Marshal(killedGateway{ID: id, Endpoints: k.etcd.Endpoints(), Step: step})
	cmd := exec.CommandContext(k.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), killedGatewayEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		k.t.Fatal(err)
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		k.t.Fatal(err)
	}
	k.addr = strings.TrimSpace(address)
	conn := k.connect("-c __neki.tx_mode=atomic")
	defer conn.Close(context.Background()) //nolint:errcheck // its gateway is dead
	_, err = trySimple(conn, sql)
	waited := cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		k.t.Errorf("at %q the gateway ended with %v, the client with %v", step, waited, err)
	}
	return err
}

// TestAtomicGatewayKilled kills a gateway at each step of a commit: all shards end alike, and nothing is left prepared
// (P14). With NEKI_TEST_KILLS=200 it does so 200 times.
func TestAtomicGatewayKilled(t *testing.T) {
	k := startKilling(t)
	kills := len(commitSteps)
	if n, err := strconv.Atoi(os.Getenv(killsEnv)); err == nil {
		kills = n
	}
	for i := range kills {
		step := commitSteps[i%len(commitSteps)].name
		sql := fmt.Sprintf("INSERT INTO u (k, id, v) VALUES (1, %d, 'x'), (2, %d, 'x')", i, i)
		if err := k.kill(fmt.Sprintf("gw%d", i), step, sql); err == nil {
			t.Errorf("killed at %q the client was told that it is done", step)
		}
	}
	last := time.Now()
	for k.prepared() > 0 {
		if time.Since(last) > 30*time.Second {
			t.Fatal("30 s after the last kill there are prepared transactions")
		}
		<-time.After(50 * time.Millisecond)
	}
	for i := range kills {
		step := commitSteps[i%len(commitSteps)]
		rows := 0
		for shard := range k.servers {
			rows += len(k.onShard(shard+1, fmt.Sprintf("SELECT 1 FROM u WHERE id = %d", i)))
		}
		if got := fmt.Sprint(rows); got != step.outcome {
			t.Errorf("killed at %q: %s rows, want %s", step.name, got, step.outcome)
		}
	}
	eventually(t, "no decision is left", func() bool {
		view, err := catalog.ListCommits(t.Context(), k.resolver.Store, testCluster)
		return err == nil && len(view.Decisions) == 0 && len(view.Live) == 0
	})
}

// TestAtomicServerKilled: a server that is killed between its PREPARE TRANSACTION and its COMMIT PREPARED, and comes back.
func TestAtomicServerKilled(t *testing.T) {
	s, conn := startAtomic(t)
	server := s.servers[1]
	for _, step := range []string{"prepared sh2", "decided", "commit sh2"} {
		simple(t, s.connect(""), "DELETE FROM t")
		var restarted sync.WaitGroup
		var once sync.Once
		s.server.atCommitStep = func(at string) {
			if at == step {
				once.Do(func() {
					server.Kill()
					restarted.Go(server.Restart)
				})
			}
		}
		_, err := trySimple(conn, "INSERT INTO t (k) VALUES (1), (2)")
		restarted.Wait()
		if got := s.counts(); err != nil || got != "1 1" || s.prepared() != 0 {
			t.Errorf("killed at %q: %v, %s rows, %d prepared", step, err, got, s.prepared())
		}
	}
}
