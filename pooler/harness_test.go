package pooler

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/catalog"
	"neki/catalog/memstore"
	"neki/internal/testpg"
	"neki/settings"
)

// gateway is a Server before real Postgres instances, with a catalog in memory fed by a poller in place of agents.
type gateway struct {
	t      testing.TB
	group  *testpg.Group
	server *Server
	store  *memstore.Store
	live   *catalog.Live
	addr   string
	stop   context.CancelFunc // drains
	done   chan struct{}      // closed when Run has returned
	dbname string             // "": postgres
	quiet  atomic.Bool        // nothing is reported: for tests that count allocations
}

type gatewayOptions struct {
	replicas   int
	postgres   []testpg.Option
	parameters func(*settings.Parameters)
	config     func(*Config)
}

const testCluster = "test"

func startGateway(t testing.TB, o gatewayOptions) *gateway {
	t.Helper()
	g := &gateway{t: t, group: testpg.Cluster(t, o.replicas, o.postgres...)}
	log := slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	g.store = memstore.New()
	g.live = catalog.NewLive(g.store, testCluster, log)
	g.putDocuments(g.store)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.live.Run(ctx) })
	for i, s := range g.servers() {
		wg.Go(func() { g.report(ctx, nodeName(i), s) })
	}
	<-g.live.Ready()
	g.serve(ctx, cancel, &wg, log, o)
	g.awaitReplicas(o.replicas)
	return g
}

// serve starts the Server. When the test ends, cancel ends it, and what wg counts is awaited.
func (g *gateway) serve(ctx context.Context, cancel context.CancelFunc, wg *sync.WaitGroup, log *slog.Logger, o gatewayOptions) {
	t := g.t
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.addr = l.Addr().String()
	cfg := Config{
		ID: "gw1", Index: 1, Cell: "az-a", Version: "test", Listeners: []net.Listener{l}, Cluster: g.live,
		System:     SystemLogin{User: testpg.Superuser, Password: testpg.Password, Database: "postgres"},
		Parameters: settings.DefaultParameters(), Log: log,
	}
	cfg.SetPaused = func(ctx context.Context, shard string, on bool) error {
		doc, err := catalog.UpdateShard(ctx, g.store, testCluster, shard, func(s *catalog.Shard) error { s.Paused = on; return nil })
		if err == nil {
			eventually(t, "the pause is seen", func() bool { return g.live.Snapshot().Revision >= doc.ModRev })
		}
		return err
	}
	if o.parameters != nil {
		o.parameters(&cfg.Parameters)
	}
	if o.config != nil {
		o.config(&cfg)
	}
	if g.server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	g.stop, g.done = cancel, make(chan struct{})
	go func() {
		defer close(g.done)
		if err := g.server.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		g.server.sessions.each(func(c *Session) { c.kill(errShutdown) })
		cancel()
		<-g.done
		wg.Wait()
	})
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	if os.Getenv("NEKI_TEST_LOG") != "" {
		_, _ = os.Stderr.Write(b)
	}
	return len(b), nil
}

func nodeName(i int) string { return fmt.Sprintf("sh1-%c", 'a'+i) }

func (g *gateway) servers() []*testpg.Server {
	return append([]*testpg.Server{g.group.Primary}, g.group.Replicas...)
}

func (g *gateway) putDocuments(store catalog.Store) {
	g.t.Helper()
	ctx := g.t.Context()
	shard := catalog.Shard{UID: "sh1", Name: "sh1", Primary: nodeName(0), Term: 1, Authoritative: true, Ready: true}
	if _, err := catalog.PutShard(ctx, store, testCluster, shard, 0); err != nil {
		g.t.Fatal(err)
	}
	for i, s := range g.servers() {
		n := catalog.Node{
			ID: nodeName(i), Shard: "sh1", Role: catalog.RoleReplica, Cell: []string{"az-a", "az-b", "az-c"}[i%3],
			Host: s.Host(), Port: s.Port(), Desired: catalog.DesiredRun,
		}
		if i == 0 {
			n.Role = catalog.RolePrimary
		}
		if _, err := catalog.PutNode(ctx, store, testCluster, n, 0); err != nil {
			g.t.Fatal(err)
		}
	}
}

const healthQuery = `SELECT pg_is_in_recovery(),
 coalesce(pg_last_wal_receive_lsn(), '0/0')::text, coalesce(pg_last_wal_replay_lsn(), '0/0')::text,
 CASE WHEN pg_is_in_recovery() THEN '0/0' ELSE pg_current_wal_flush_lsn()::text END,
 coalesce((SELECT extract(epoch FROM clock_timestamp() - last_msg_receipt_time) FROM pg_stat_wal_receiver
   WHERE status = 'streaming'), -1)::float8`

// report stands in for an agent.
func (g *gateway) report(ctx context.Context, node string, s *testpg.Server) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.Background())
		}
	}()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for seq := uint64(1); ; seq++ {
		for g.quiet.Load() && ctx.Err() == nil {
			<-tick.C
		}
		h := catalog.Health{Node: node, Seq: seq, State: catalog.StateStopped, Term: 1}
		if conn == nil || conn.IsClosed() {
			conn, _ = pgx.Connect(ctx, s.SocketDSN())
		}
		if conn != nil {
			g.ask(ctx, conn, &h)
		}
		g.live.Report(h)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (g *gateway) ask(ctx context.Context, conn *pgx.Conn, h *catalog.Health) {
	var recovery bool
	var receive, replay, flush string
	var age float64
	if conn.QueryRow(ctx, healthQuery).Scan(&recovery, &receive, &replay, &flush, &age) != nil {
		return
	}
	h.State, h.Role = catalog.StateServing, catalog.RolePrimary
	h.ReceiveLSN, _ = catalog.ParseLSN(receive)
	h.ReplayLSN, _ = catalog.ParseLSN(replay)
	h.FlushLSN, _ = catalog.ParseLSN(flush)
	if recovery {
		h.Role, h.Streaming = catalog.RoleReplica, age >= 0
		h.LastMsgAge = time.Duration(age * float64(time.Second))
		return
	}
	h.Ring = []catalog.Sample{{LSN: h.FlushLSN}}
}

// awaitReplicas waits until the picker has n replicas to choose from.
func (g *gateway) awaitReplicas(n int) {
	g.t.Helper()
	eventually(g.t, "replicas eligible", func() bool {
		ok := 0
		for _, k := range g.server.Facts().Judge(g.live.Snapshot(), "sh1") {
			if k.Reason == "" {
				ok++
			}
		}
		return ok == n
	})
}

// awaitFunctions waits until pg_proc is known: before that every call of a function counts as a write.
func (g *gateway) awaitFunctions() {
	g.t.Helper()
	eventually(g.t, "functions known", func() bool { return g.server.dbs.get("postgres").functions.Loaded() })
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 15 s: %s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func (g *gateway) config(options string) *pgx.ConnConfig {
	g.t.Helper()
	host, port, _ := net.SplitHostPort(g.addr)
	dbname := g.dbname
	if dbname == "" {
		dbname = "postgres"
	}
	cfg, err := pgx.ParseConfig(fmt.Sprintf("host=%s port=%s user=%s password=%s dbname=%s sslmode=disable",
		host, port, testpg.Superuser, testpg.Password, dbname))
	if err != nil {
		g.t.Fatal(err)
	}
	if options != "" {
		cfg.RuntimeParams["options"] = options
	}
	return cfg
}

// connect opens a client connection through the gateway.
func (g *gateway) connect(options string) *pgx.Conn {
	g.t.Helper()
	return g.connectAs(g.config(options))
}

func (g *gateway) connectAs(cfg *pgx.ConnConfig) *pgx.Conn {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// simple runs SQL by the simple protocol and gives the last result's rows as text.
func simple(t testing.TB, conn *pgx.Conn, sql string) [][]string {
	t.Helper()
	rows, err := trySimple(conn, sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return rows
}

func trySimple(conn *pgx.Conn, sql string) ([][]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	var out [][]string
	for _, r := range results {
		out = nil
		for _, row := range r.Rows {
			texts := make([]string, len(row))
			for i, v := range row {
				texts[i] = string(v)
			}
			out = append(out, texts)
		}
	}
	return out, nil
}

// one gives the single value of a query.
func one(t testing.TB, conn *pgx.Conn, sql string) string {
	t.Helper()
	rows := simple(t, conn, sql)
	if len(rows) != 1 || len(rows[0]) != 1 {
		t.Fatalf("%s: %v", sql, rows)
	}
	return rows[0][0]
}
