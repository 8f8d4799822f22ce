package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	adminsql "neki/admin_sql"
	"neki/catalog"
	"neki/cluster/admin"
	"neki/cluster/agent"
	"neki/internal/debughttp"
	"neki/internal/pgerr"
	"neki/internal/pgwire"
	"neki/pooler"
)

// gatewayConfig is what a gateway is made from, in `neki dev` and in `neki gateway`.
type gatewayConfig struct {
	Cluster, ID, Cell string
	Listeners         []net.Listener // of clients; the gateway closes them
	HTTP, Debug       net.Listener   // nil: none
	TLS, BackendTLS   *tls.Config
	Auth              pooler.Auth
	Parameters        map[string]string // of the configuration file
	// Reload reads the parameters and the rules of authentication of the file again; nil: there is no file.
	Reload func() (map[string]string, pooler.Auth, error)
	// How the other gateways reach this one, and it them.
	RPC         rpc
	RPCListener net.Listener // nil: they can't
	RPCURL      string       // where it differs from the listener's address
	Store       catalog.Store
	Live        *catalog.Live // run and fed by the owner
	Log         *slog.Logger
}

// gateway is a pooler.Server with all that it needs around it.
type gateway struct {
	cfg     gatewayConfig
	log     *slog.Logger
	params  *parameters
	commits *catalog.Coordinator
	server  *pooler.Server
	ready   chan struct{} // closed when clients are accepted
}

const (
	gatewayLease  = 5 * time.Second
	catalogRetry  = 500 * time.Millisecond
	forwardLimit  = 5 * time.Second
	waitLogEvery  = 10 * time.Second
	readyzCatalog = "catalog"
)

func newGateway(cfg gatewayConfig) (*gateway, error) {
	params, err := newParameters(cfg)
	if err != nil {
		return nil, err
	}
	return &gateway{
		cfg: cfg, log: cfg.Log.With("gateway", cfg.ID), params: params, ready: make(chan struct{}),
		commits: catalog.NewCoordinator(cfg.Store, cfg.Cluster, cfg.ID),
	}, nil
}

// Run serves clients until ctx ends and the last of them has left. It needs the catalog to begin; from then on it goes
// on without it.
func (g *gateway) Run(ctx context.Context) error {
	defer g.closeListeners()
	login, err := g.awaitLogin(ctx)
	if err != nil {
		return err
	}
	// What clients need goes on while they drain.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var around sync.WaitGroup
	defer around.Wait()
	defer stop()
	index, err := g.register(ctx, background, &around)
	if err != nil {
		return err
	}
	registry := debughttp.NewRegistry()
	if err := g.build(ctx, index, login, registry); err != nil {
		return err
	}
	around.Go(func() { g.params.follow(background, g.server.SetParameters, g.server.SetCell) })
	around.Go(func() { g.serveCancels(background, index) })
	g.serveHTTP(background, &around, registry)
	g.servePeers(background, &around)
	close(g.ready)
	g.log.Info("serving clients", "listen", g.address(), "index", index)
	return g.server.Run(ctx)
}

func (g *gateway) closeListeners() {
	for _, l := range append(g.cfg.Listeners, g.cfg.HTTP, g.cfg.Debug, g.cfg.RPCListener) {
		if l != nil {
			_ = l.Close() // most are closed already
		}
	}
}

// awaitLogin waits for the catalog, and for the admin to have made the role with which gateways look things up.
func (g *gateway) awaitLogin(ctx context.Context) (pooler.SystemLogin, error) {
	var said time.Time
	for {
		login, err := admin.GatewayLogin(ctx, g.cfg.Store, g.cfg.Cluster)
		if err == nil {
			select {
			case <-g.cfg.Live.Ready():
				return pooler.SystemLogin{User: login.Name, Password: login.Password, Database: "postgres"}, nil
			case <-ctx.Done():
				return pooler.SystemLogin{}, ctx.Err()
			}
		}
		if ctx.Err() != nil {
			return pooler.SystemLogin{}, ctx.Err()
		}
		if time.Since(said) > waitLogEvery {
			said = time.Now()
			if errors.Is(err, catalog.ErrNotFound) {
				err = fmt.Errorf("cluster %q is not in the catalog yet; is an admin running?", g.cfg.Cluster)
			}
			g.log.Warn("waiting for the catalog", "error", err)
		}
		if !pause(ctx, catalogRetry) {
			return pooler.SystemLogin{}, ctx.Err()
		}
	}
}

// register keeps the gateway in the catalog and gives the index of its first registration, which is in the pids that
// clients get. The catalog counts from 0, virtual pids from 1.
func (g *gateway) register(ctx, background context.Context, around *sync.WaitGroup) (int, error) {
	self := catalog.Gateway{
		ID: g.cfg.ID, Cell: g.cfg.Cell, Address: g.address(), Version: version(), StartedAt: time.Now().UTC(),
		AdminURL: g.peerURL(),
	}
	first := make(chan int, 1)
	index := 0
	var registered atomic.Pointer[registration]
	around.Go(func() {
		_ = catalog.KeepRegistered(background, g.cfg.Store, gatewayLease, g.log, // its error is that of the context
			func(ctx context.Context, lease catalog.Lease) error {
				r, err := catalog.RegisterGateway(ctx, g.cfg.Store, lease, g.cfg.Cluster, self)
				if err != nil {
					return err
				}
				if err := g.commits.Register(ctx, lease); err != nil {
					return err
				}
				registered.Store(&registration{lease, r})
				switch given := r.Index + 1; index {
				case 0:
					index = given
					first <- index
				case given:
				default:
					g.log.Warn("registered with another index: cancel requests that reach other gateways are lost for "+
						"the sessions of this one", "index", index, "registered", given)
				}
				return nil
			})
	})
	around.Go(func() { g.announceTopology(background, &registered) })
	select {
	case i := <-first:
		return i, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// facts is the server as the neki schema sees it. The schema is made first, because the server needs it.
type facts struct {
	source
}

type source interface {
	adminsql.Sessions
	adminsql.Pools
	adminsql.Plans
	adminsql.Statements
	adminsql.ReplicaChoice
	adminsql.Gateways
	adminsql.Controls
	pooler.TopologyChecks
}

// build makes the schema and the server.
func (g *gateway) build(ctx context.Context, index int, login pooler.SystemLogin, registry *prometheus.Registry) error {
	late := &facts{}
	schema := adminsql.New(adminsql.Inputs{
		Catalog: g.cfg.Live, Sessions: late, Pools: late, Plans: late, Statements: late, Metrics: registry,
		Parameters: g.params, Events: events{store: g.cfg.Store, cluster: g.cfg.Cluster}, Choice: late, Gateways: late,
		Controls: late, Topologies: topologies{g.cfg.Store, g.cfg.Cluster, late},
		Operations: operations{g.cfg.Store, g.cfg.Cluster, g.cfg.Live},
		Documents:  documents{g.cfg.Store, g.cfg.Cluster, g.cfg.Live},
	})
	var err error
	g.server, err = pooler.New(pooler.Config{
		ID: g.cfg.ID, Index: index, Cell: g.cfg.Cell, Version: version(), Listeners: g.cfg.Listeners, TLS: g.cfg.TLS,
		BackendTLS: g.cfg.BackendTLS, Auth: g.cfg.Auth, System: login, Cluster: g.cfg.Live, Parameters: g.params.now(),
		Virtual: schema, SchemaChanged: g.schemaChanged, SetPaused: g.setPaused, Commits: g.commits, Reload: g.reload, Log: g.log,
		Held: func(ctx context.Context, primary *catalog.Node, term, sub int64) error {
			client := &agent.Client{URL: primary.AgentURL, HTTP: g.cfg.RPC.client, Token: g.cfg.RPC.token}
			return client.Held(ctx, agent.Held{Gateway: g.cfg.ID, Term: term, Sub: sub})
		},
		ForwardCancel: func(key *pgwire.CancelKey) { g.forwardCancel(ctx, key) },
	})
	if err != nil {
		return err
	}
	late.source = &sharedFacts{source: g.server.Facts(), peers: &peers{
		self: g.cfg.ID, live: g.cfg.Live, client: g.cfg.RPC.client, token: g.cfg.RPC.token, log: g.log,
	}}
	registry.MustRegister(g.server, clusterMetrics{g.cfg.Live})
	return nil
}

func (g *gateway) reload(context.Context) error {
	if g.cfg.Reload == nil {
		return nil
	}
	values, auth, err := g.cfg.Reload()
	if err != nil {
		return pgerr.New(pgerr.ConfigFileError, "configuration not reloaded: %s", pgerr.From(err).Message)
	}
	if err := g.params.setFile(values); err != nil {
		return err
	}
	g.server.SetAuth(auth)
	return nil
}

// forwardCancel passes a cancel request to the gateway whose session it names.
func (g *gateway) forwardCancel(ctx context.Context, key *pgwire.CancelKey) {
	index, _, ok := pgwire.SplitPID(key.PID)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forwardLimit)
	defer cancel()
	if g.sendCancelHere(ctx, index, key) {
		return
	}
	snap := g.cfg.Live.Snapshot()
	for i := range snap.Gateways {
		other := &snap.Gateways[i]
		if other.Index+1 != index || other.ID == g.cfg.ID || other.Address == "" ||
			other.Address == g.address() { // it would come back here
			continue
		}
		if err := pgwire.SendCancel(ctx, (&net.Dialer{}).DialContext, other.Address, key.PID, key.Secret, nil); err != nil {
			g.log.Debug("cancel request not forwarded", "to", other.ID, "error", err)
		}
		return
	}
}

// serveHTTP answers on the HTTP and debug addresses.
func (g *gateway) serveHTTP(ctx context.Context, around *sync.WaitGroup, registry *prometheus.Registry) {
	handler := debughttp.Handler(debughttp.Config{
		Title: "neki gateway " + g.cfg.ID, Metrics: registry, Log: g.log,
		Ready: []debughttp.Check{{Name: "clients", Probe: g.probeClients}, {Name: readyzCatalog, Probe: g.probeCatalog}},
	})
	g.serveOn(ctx, around, g.cfg.HTTP, handler)
	g.serveOn(ctx, around, g.cfg.Debug, debughttp.Profiles())
}

func (g *gateway) serveOn(ctx context.Context, around *sync.WaitGroup, l net.Listener, h http.Handler) {
	if l == nil {
		return
	}
	around.Go(func() {
		if err := debughttp.Serve(ctx, l, h, g.log); err != nil {
			g.log.Error("http server failed", "address", l.Addr().String(), "error", err)
		}
	})
}

// probeClients fails while the gateway leaves service.
func (g *gateway) probeClients(context.Context) error {
	if g.server.Draining() {
		return errors.New("draining")
	}
	return nil
}

// probeCatalog fails without shards; that the catalog is away for a time does no harm.
func (g *gateway) probeCatalog(context.Context) error {
	if len(g.cfg.Live.Snapshot().Shards) == 0 {
		return errors.New("no shards are known")
	}
	return nil
}

// address is where clients connect.
func (g *gateway) address() string {
	for _, l := range g.cfg.Listeners {
		if l.Addr().Network() == "tcp" {
			return reachable(l.Addr())
		}
	}
	return ""
}

// reachable is an address as other machines may use it: with this one's name where it listens on all interfaces.
func reachable(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return a.String()
	}
	name, err := os.Hostname()
	if err != nil {
		return a.String()
	}
	return net.JoinHostPort(name, strconv.Itoa(tcp.Port))
}

// pause waits; false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
