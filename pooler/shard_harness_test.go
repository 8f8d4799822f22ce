package pooler

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/catalog"
	"neki/catalog/memstore"
	"neki/internal/testpg"
)

// packageTB owns servers that all tests of the package share: they end with the package.
type packageTB struct {
	testing.TB
	cleanups []func()
}

func (p *packageTB) Helper()                   {}
func (p *packageTB) Cleanup(f func())          { p.cleanups = append(p.cleanups, f) }
func (p *packageTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// shardServers are the postmasters that stand for shards, started by the first test that needs them.
type shardServers struct {
	mu      sync.Mutex
	tb      packageTB
	servers []*testpg.Server
	tests   atomic.Int64
}

var sharedServers shardServers

func TestMain(m *testing.M) {
	if text := os.Getenv(killedGatewayEnv); text != "" {
		runKilledGateway(text)
	}
	code := m.Run()
	for i := len(sharedServers.tb.cleanups) - 1; i >= 0; i-- {
		sharedServers.tb.cleanups[i]()
	}
	os.Exit(code)
}

// get gives n servers.
func (s *shardServers) get(t testing.TB, n int) []*testpg.Server {
	t.Helper()
	testpg.Installation(t) // skips where there is none
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.servers) < n {
		s.servers = append(s.servers, testpg.Start(&s.tb))
	}
	return s.servers[:n]
}

// shards is a gateway before n shards, each a database of its own on a server that tests share, and a plain database
// beside them to compare with.
type shards struct {
	*gateway
	servers []*testpg.Server
	plain   *pgx.Conn     // to a database like the shards', past the gateway
	lease   catalog.Lease // of the gateway's coordinator
}

// twoShards places t, u and w by key: 1 is on sh1, 2 on sh2; ref is on both, everything else on sh1.
const twoShards = `{
 "databases": {"DB": {"default_shard_group": "main", "schemas": {"public": {
   "tables": {
     "t": {"shard_group": "data", "shard_index": "by_k"},
     "u": {"shard_group": "data", "shard_index": "by_k"},
     "w": {"shard_group": "data", "shard_index": "by_name"}
   },
   "reference_tables": {"ref": {"shard_groups": ["data"]}}
 }}}},
 "shard_groups": [
   {"uid": "main", "key_ranges": [{"shard_uid": "sh1"}]},
   {"uid": "data", "default_shard_index": "by_k", "key_ranges": [
     {"shard_uid": "sh1", "end": "0000000000000002"}, {"shard_uid": "sh2", "start": "0000000000000002", "end": "0000000000000003"},
     {"shard_uid": "sh1", "start": "0000000000000003", "end": "0000000000000004"}, {"shard_uid": "sh2", "start": "0000000000000004"}]}
 ],
 "shard_indexes": {
   "by_k": {"type": "range", "columns": ["k"]},
   "by_name": {"type": "xxhash", "columns": ["name"]}
 },
 "authoritative_shard_group": "main"
}`

// startShards starts a gateway before n shards with a topology document, in which DB stands for the test's database.
func startShards(t testing.TB, n int, document string, o gatewayOptions) *shards {
	t.Helper()
	s := &shards{servers: sharedServers.get(t, n)}
	s.gateway = &gateway{t: t, store: memstore.New(), dbname: fmt.Sprintf("test%d", sharedServers.tests.Add(1))}
	s.createDatabases()
	log := slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s.live = catalog.NewLive(s.store, testCluster, log)
	s.putShards(s.store)
	s.setTopology(s.store, document)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.live.Run(ctx) })
	for i, server := range s.servers {
		wg.Go(func() { s.report(ctx, shardNode(i), server) })
	}
	<-s.live.Ready()
	commits := s.coordinator()
	wrapped := o.config
	o.config = func(cfg *Config) {
		cfg.Commits = commits
		cfg.SchemaChanged = func(ctx context.Context) error {
			revision, err := catalog.TouchSchema(ctx, s.store, testCluster)
			for changed := s.live.Changed(); err == nil && s.live.Snapshot().SchemaRev < revision; changed = s.live.Changed() {
				select {
				case <-changed:
				case <-ctx.Done():
					err = ctx.Err()
				}
			}
			return err
		}
		if wrapped != nil {
			wrapped(cfg)
		}
	}
	s.serve(ctx, cancel, &wg, log, o)
	return s
}

// coordinator registers one for the gateway.
func (s *shards) coordinator() *catalog.Coordinator {
	s.t.Helper()
	commits := catalog.NewCoordinator(s.store, testCluster, "gw1")
	var err error
	if s.lease, err = s.store.Lease(s.t.Context(), time.Minute); err == nil {
		err = commits.Register(s.t.Context(), s.lease)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return commits
}

func shardNode(i int) string { return fmt.Sprintf("sh%d-a", i+1) }

// createDatabases makes the test's database on every server, and one more beside the first for plain.
func (s *shards) createDatabases() {
	s.t.Helper()
	for _, server := range s.servers {
		s.createDatabase(server, s.dbname)
	}
	plain := s.dbname + "_plain"
	s.createDatabase(s.servers[0], plain)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, s.servers[0].DSNFor(testpg.Superuser, testpg.Password, plain))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close(ctx) })
	s.plain = conn
}

func (s *shards) createDatabase(server *testpg.Server, name string) {
	s.t.Helper()
	run := func(sql string) error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, server.SocketDSN())
		if err != nil {
			return err
		}
		defer conn.Close(ctx) //nolint:errcheck // the statement's error counts
		_, err = conn.Exec(ctx, sql)
		return err
	}
	if err := run("CREATE DATABASE " + name); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := run("DROP DATABASE IF EXISTS " + name + " WITH (FORCE)"); err != nil {
			s.t.Error(err)
		}
	})
}

func (s *shards) putShards(store catalog.Store) {
	s.t.Helper()
	ctx := s.t.Context()
	for i, server := range s.servers {
		uid := fmt.Sprintf("sh%d", i+1)
		shard := catalog.Shard{UID: uid, Name: uid, Primary: shardNode(i), Term: 1, Authoritative: i == 0, Ready: true}
		if _, err := catalog.PutShard(ctx, store, testCluster, shard, 0); err != nil {
			s.t.Fatal(err)
		}
		n := catalog.Node{
			ID: shardNode(i), Shard: uid, Role: catalog.RolePrimary, Cell: "az-a", Host: server.Host(), Port: server.Port(),
			Desired: catalog.DesiredRun,
		}
		if _, err := catalog.PutNode(ctx, store, testCluster, n, 0); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *shards) setTopology(store catalog.Store, document string) {
	s.t.Helper()
	document = strings.ReplaceAll(document, `"DB"`, `"`+s.dbname+`"`)
	if _, err := catalog.PutTopology(s.t.Context(), store, testCluster, catalog.TopologyDocument{Document: []byte(document)}, 0); err != nil {
		s.t.Fatal(err)
	}
}

// onShard runs SQL on a shard (counted from 1) past the gateway, and gives the last result's rows.
func (s *shards) onShard(i int, sql string) [][]string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.servers[i-1].DSNFor(testpg.Superuser, testpg.Password, s.dbname))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the rows have come
	return simple(s.t, conn, sql)
}

// everywhere runs DDL on every shard and on plain, past the gateway.
func (s *shards) everywhere(sql string) {
	s.t.Helper()
	for i := range s.servers {
		s.onShard(i+1, sql)
	}
	simple(s.t, s.plain, sql)
}
