package pooler

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/internal/pgwire"
	"neki/pooler/backend"
	"neki/pooler/plan"
	"neki/settings"
)

// Cluster is the gateway's view of the cluster; *catalog.Live is one.
type Cluster interface {
	Snapshot() *catalog.Snapshot
	Changed() <-chan struct{}
}

// ProxiedListener takes connections of proxies, which tell where the client is in a PROXY protocol header, and those of
// others, which don't.
type ProxiedListener struct {
	net.Listener
	From []netip.Prefix // where the proxies are
}

// proxies reports whether a connection comes from a proxy.
func (l *ProxiedListener) proxies(nc net.Conn) bool {
	tcp, ok := nc.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return false
	}
	ip := tcp.AddrPort().Addr().Unmap()
	return slices.ContainsFunc(l.From, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// Config is what a Server needs.
type Config struct {
	ID      string // of the gateway
	Index   int    // in the high bits of virtual pids, 1 to pgwire.MaxGateway
	Cell    string
	Version string

	Listeners  []net.Listener // the Server closes them
	TLS        *tls.Config    // towards clients; nil: none
	BackendTLS *tls.Config    // towards instances; nil: none
	Auth       Auth
	System     SystemLogin // how the gateway itself logs in to instances

	Cluster    Cluster
	Parameters settings.Parameters // those of the file; SetParameters changes them
	Virtual    Virtual             // the neki schema; nil: none
	CacheBytes int64               // of the plan cache; 0 = the default
	MaxClients int                 // 0 = 10 000
	// ForwardCancel passes a cancel request on that names another gateway's session; nil: it is dropped.
	ForwardCancel func(key *pgwire.CancelKey)
	// SchemaChanged tells all gateways that DDL may have changed what plans depend on; nil: there are no others.
	SchemaChanged func(ctx context.Context) error
	// Commits decides on commits over several shards; nil: there are none under __neki.tx_mode = 'atomic'.
	Commits *catalog.Coordinator
	// SetPaused writes into the catalog whether the clients of a shard are held, and returns when Cluster shows it. nil:
	// shards can't be paused.
	SetPaused func(ctx context.Context, shard string, on bool) error
	// Held tells a primary that is about to hand over, in the term and sub-term of the rule, that this gateway sends it nothing
	// new; nil: nobody wants to know. It is bounded by ctx.
	Held func(ctx context.Context, primary *catalog.Node, term, sub int64) error
	// Reload reads the configuration file again; nil: there is none.
	Reload func(ctx context.Context) error
	Log    *slog.Logger
}

// SystemLogin is the role with which the gateway reads verifiers, functions and log positions.
type SystemLogin struct{ User, Password, Database string }

// defaultMaxClients bounds the sessions of a gateway when nobody says otherwise.
const defaultMaxClients = 10_000

// Server is a gateway.
type Server struct {
	cfg       Config
	log       *slog.Logger
	params    atomic.Pointer[settings.Parameters]
	here      atomic.Pointer[string] // the cell
	interner  *settings.Interner
	pools     *backend.Pools
	planner   *plan.Planner
	prepared  *backend.Statements
	picker    backend.Picker
	control   *control
	roles     *roles
	floors    *floors
	holds     holds
	dbs       *databases
	sequences *SequenceCache
	keys      *pgwire.KeySpace
	auth      *pgwire.Authenticator
	rules     atomic.Pointer[Auth]
	work      workPool
	metrics   *Metrics
	started   time.Time
	clock     atomic.Pointer[time.Time] // as the sweeper last saw it

	sessions   registry
	goroutines sync.WaitGroup
	cancels    sync.WaitGroup // cancel requests that are sent again; begun also when no session is left
	draining   atomic.Bool
	refusing   atomic.Bool // logins
	ending     atomic.Bool // drained for long enough: nothing is cleared up any more, all connections are closed
	drainLimit time.Duration
	tokens     atomic.Uint64 // of unnamed statements

	atCommitStep func(step string) // tests stop the gateway there; nil: nothing does
}

// mockSecret makes the gateways of a cluster show an unknown user the same salt: else two of them would tell that there is
// no such user.
func (c *Config) mockSecret() []byte {
	if c.System.Password == "" {
		return nil
	}
	return []byte(c.System.Password)
}

// nextToken gives a number that no other unnamed statement of the gateway has.
func (s *Server) nextToken() uint64 { return s.tokens.Add(1) }

// New makes a Server. Run serves with it.
func New(cfg Config) (*Server, error) {
	if cfg.MaxClients == 0 {
		cfg.MaxClients = defaultMaxClients
	}
	keys, err := pgwire.NewKeySpace(cfg.Index)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, log: cfg.Log, keys: keys, auth: pgwire.NewAuthenticator(cfg.mockSecret(), 0), started: time.Now(),
		interner: settings.NewInterner(internerBytes), prepared: backend.NewStatements(), metrics: newMetrics(),
	}
	s.drainLimit = defaultDrainLimit
	s.params.Store(&cfg.Parameters)
	s.here.Store(&cfg.Cell)
	s.clock.Store(&s.started)
	options := plan.Options{CacheBytes: cfg.CacheBytes}
	if cfg.Virtual != nil {
		options.Virtual = cfg.Virtual
	}
	if s.planner, err = plan.New(options); err != nil {
		return nil, err
	}
	s.pools = backend.NewPools(backend.Config{
		TLS: cfg.BackendTLS, Parameters: s.params.Load, Defaults: s.interner.Empty(), Log: cfg.Log,
	})
	s.picker = backend.Picker{
		Here:     s.cell,
		Load:     func(n *catalog.Node) int { return int(s.pools.Node(n.ID).Outstanding.Load()) },
		Down:     func(n *catalog.Node) string { return s.pools.Node(n.ID).Down(time.Now()) },
		Replayed: func(n *catalog.Node) catalog.LSN { return s.pools.Node(n.ID).Replayed() },
	}
	s.control = newControl(s)
	s.SetAuth(cfg.Auth)
	s.roles = newRoles(s.control, s.groupsOfRules)
	s.floors = newFloors(s)
	s.dbs = newDatabases(s)
	s.sequences = NewSequenceCache()
	s.sessions.init(cfg.MaxClients)
	return s, nil
}

// internerBytes bounds the settings kept for clients to come.
const internerBytes = 4 << 20

// defaultDrainLimit is how long Run waits for transactions to end once ctx is done.
const defaultDrainLimit = 30 * time.Second

// Run accepts clients until ctx is done. It then stops listening, lets clients leave by themselves for drain-wait, and each
// session end between its transactions after that, ends what is left after the drain limit, cuts off what does not end
// within killPatience, and returns when all is joined.
func (s *Server) Run(ctx context.Context) error {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var owned sync.WaitGroup
	s.applyPauses(s.cfg.Cluster.Snapshot()) // before the first client
	owned.Go(func() { s.followPauses(background) })
	owned.Go(func() { s.sweep(background) })
	owned.Go(func() { s.watchDeadlocks(background) })
	var accepting sync.WaitGroup
	logins, endLogins := context.WithCancel(background)
	defer endLogins()
	for _, l := range s.cfg.Listeners {
		accepting.Go(func() { s.accept(logins, l) })
	}
	<-ctx.Done()
	s.draining.Store(true)
	for _, l := range s.cfg.Listeners {
		_ = l.Close()
	}
	accepting.Wait() // whoever was accepted is served
	s.awaitSessions(s.params.Load().DrainWait)
	s.Drain()
	endLogins()
	if !s.awaitSessions(s.drainLimit) {
		s.endSessions()
	}
	s.goroutines.Wait()
	stop()
	owned.Wait() // who cancel statements, too
	s.cancels.Wait()
	s.dbs.close()
	s.floors.wait()
	s.roles.wait()
	s.control.close()
	s.pools.Close()
	s.planner.Close()
	return nil
}

var errShutdown = pgerr.Fatal(pgerr.AdminShutdown, "terminating connection due to administrator command").
	WithDetail("The gateway is shutting down.").
	WithHint("Connect to another gateway, or to this one once it has been started again.")

// Drain makes every session end as soon as it is outside a transaction, and refuses new ones.
func (s *Server) Drain() {
	s.draining.Store(true)
	s.refusing.Store(true)
	s.sessions.each(func(c *Session) { c.drain() })
}

// Draining reports whether the gateway is leaving service.
func (s *Server) Draining() bool { return s.draining.Load() }

// endSessions ends the sessions that are left: by cancelling what they run, then by cutting their connections.
func (s *Server) endSessions() {
	s.ending.Store(true)
	var kills sync.WaitGroup
	s.sessions.each(func(c *Session) { kills.Go(func() { c.kill(errShutdown) }) })
	s.awaitSessions(killPatience)
	s.sessions.each(func(c *Session) { c.cut() })
	kills.Wait() // a cancel request takes at most as long
}

// awaitSessions waits until all sessions have ended; false: they have not within the limit.
func (s *Server) awaitSessions(limit time.Duration) bool {
	if limit <= 0 {
		return false
	}
	done := make(chan struct{})
	go func() { // joined: Run waits for goroutines right after
		s.goroutines.Wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}

// acceptPause is how long the listener rests when the process has run out of descriptors.
const acceptPause = 50 * time.Millisecond

func (s *Server) accept(ctx context.Context, l net.Listener) {
	proxied, _ := l.(*ProxiedListener)
	for {
		nc, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
				return
			}
			s.log.Error("accept failed", "error", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
				return
			}
			continue
		}
		s.goroutines.Go(func() { s.serve(ctx, nc, proxied != nil && proxied.proxies(nc)) })
	}
}

// serve logs a client in and starts its session on a goroutine of its own: a login takes a deeper stack than a session,
// which would keep it.
func (s *Server) serve(ctx context.Context, nc net.Conn, proxied bool) {
	growLogin(0)
	c, err := s.login(ctx, nc, proxied)
	if c != nil && err == nil {
		s.goroutines.Go(c.run)
		return
	}
	_ = nc.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		s.metrics.loginFailures.Inc()
		s.log.Info("login failed", "client", nc.RemoteAddr().String(), "error", err)
	}
}

// Parameters gives the parameters now in force.
func (s *Server) Parameters() settings.Parameters { return *s.params.Load() }

// SetCell puts the gateway into another cell; for replicas that are chosen from now on.
func (s *Server) SetCell(cell string) { s.here.Store(&cell) }

func (s *Server) cell() string { return *s.here.Load() }

// SetParameters puts other parameters in force, for all sessions and pools.
func (s *Server) SetParameters(p settings.Parameters) { s.params.Store(&p) }

// lag gives the tiers of the picker.
func (s *Server) lag() backend.Lag {
	p := s.params.Load()
	return backend.Lag{Min: p.LagMin, Max: p.LagMax}
}
