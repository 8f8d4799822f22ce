package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"neki/catalog"
	"neki/cluster/pgproc"
	"neki/internal/pgerr"
)

// Config is what an agent must know.
type Config struct {
	Cluster string
	Node    string       // id of the instance
	Shard   string       // uid
	Role    catalog.Role // RoleReplica (an empty shard's first one becomes the primary) or RoleRdonly
	Cell    string
	Profile string

	Dir          string // holds PGDATA, the socket, the log and the agent's own files
	Host         string // where Postgres listens and others reach it; default 127.0.0.1
	Port         int
	Installation pgproc.Installation
	Account      pgproc.Account
	Settings     pgproc.Settings // the profile's; they come before the defaults, not before what replication needs

	ServerTLS ServerTLS // what the server shows; none: no TLS

	Listen string      // of the API; default 127.0.0.1:0
	URL    string      // of the API as others reach it; default from the listener
	TLS    *tls.Config // must ask for client certificates
	Token  string      // without TLS; on a loopback address only

	Store   catalog.Store
	Archive Archive
	// StopPostgres stops the server when Run ends; otherwise it goes on and the next agent adopts it.
	StopPostgres bool
	// StopTimeout bounds a fast stop, before an immediate one; 0 means 10 s.
	StopTimeout time.Duration
	Version     string
	Log         *slog.Logger      // nil discards
	Progress    func(step string) // called as it gets on, from any goroutine; nil does nothing
}

// Agent is one running agent.
type Agent struct {
	cfg      Config
	log      *slog.Logger
	pg       *pgproc.Instance
	memory   *memory
	health   *publisher
	tasks    chan task
	kick     chan struct{} // asks for a sample now
	phase    atomic.Pointer[phase]
	sampling atomic.Pointer[context.CancelFunc]
	probed   atomic.Pointer[error] // why the last new connection was not answered; nil = it was
	started  time.Time
	url      atomic.Pointer[string]
	listenUp chan struct{}
	once     sync.Once
	observer *observer
	attend   chan struct{} // has the runner look at what a primary may do

	exited     atomic.Bool          // no process of Postgres is left
	hung       atomic.Bool          // several new connections in a row were not answered
	replacing  atomic.Bool          // the data directory is being replaced
	work       atomic.Pointer[Work] // the long order in hand
	filled     atomic.Pointer[Work] // what the data was made of last
	damage     atomic.Pointer[string]
	archived   atomic.Pointer[archiveAnswer]
	inForce    atomic.Pointer[inForce]
	selfFenced atomic.Int64  // bootTime at which it fenced itself; 0 = not
	fencedLSN  atomic.Uint64 // of a primary that resigned; 0 = not proven
	flushing   flushing
	holders    holders
	draining   atomic.Bool // it has resigned, and what runs still may end
	quick      atomic.Bool // the leader changes: a standby looks for log often
	archiver   archiver
}

// phase is what the runner is at, when that is not simply a running server.
type phase struct {
	state  catalog.State
	reason string
}

// ErrRanTwice says that Run was called again.
var ErrRanTwice = errors.New("agent: Run was called twice")

// New checks the configuration and opens what earlier runs left.
func New(cfg Config) (*Agent, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	log = log.With("node", cfg.Node)
	pg, err := pgproc.New(pgproc.Config{
		Installation: cfg.Installation, Account: cfg.Account, Dir: cfg.Dir, Host: cfg.Host, Port: cfg.Port, Log: log,
	})
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, err
	}
	mem, err := openMemory(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("agent %s: %w", cfg.Node, err)
	}
	a := &Agent{
		cfg: cfg, log: log, pg: pg, memory: mem, health: newPublisher(), tasks: make(chan task),
		kick: make(chan struct{}, 1), attend: make(chan struct{}, 1), started: time.Now(), listenUp: make(chan struct{}),
	}
	a.observer = newObserver(a)
	return a, nil
}

func (c *Config) check() error {
	for what, name := range map[string]string{"cluster": c.Cluster, "node": c.Node, "shard": c.Shard} {
		if !catalog.ValidName(name) {
			return pgerr.New(pgerr.InvalidParameterValue, "agent: %s %q is not a valid name", what, name)
		}
	}
	if c.Role != catalog.RoleReplica && c.Role != catalog.RoleRdonly {
		return pgerr.New(pgerr.InvalidParameterValue, "agent: role %s", c.Role).WithHint("Allowed are replica and rdonly.")
	}
	if c.Store == nil || c.Dir == "" || c.Port <= 0 {
		return pgerr.New(pgerr.InvalidParameterValue, "agent: store, directory and port are needed")
	}
	if c.Host == "" {
		c.Host = "127.0.0.1"
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.StopTimeout == 0 {
		c.StopTimeout = 10 * time.Second
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	if c.Archive.on() && c.Archive.Program == "" {
		return pgerr.New(pgerr.InvalidParameterValue, "agent: an archive needs the program that Postgres calls")
	}
	if err := c.Installation.CheckTools(); err != nil {
		return err
	}
	return CheckGuard(c.Listen, c.TLS, c.Token)
}

// CheckGuard refuses an API that anybody could call: it needs mutual TLS, or a token on a loopback address.
func CheckGuard(listen string, t *tls.Config, token string) error {
	if t != nil {
		if t.ClientAuth < tls.RequireAndVerifyClientCert {
			return pgerr.New(pgerr.InvalidParameterValue, "TLS of the API on %s doesn't ask for client certificates", listen)
		}
		return nil
	}
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return pgerr.New(pgerr.InvalidParameterValue, "address of the API: %w", err)
	}
	ip := net.ParseIP(host)
	if token == "" || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return pgerr.New(pgerr.InvalidParameterValue, "the API on %s is unguarded", listen).
			WithHint("Give certificates for mutual TLS, or listen on a loopback address with a token.")
	}
	return nil
}

// Run runs until ctx ends; it may be called once. It returns nil when ctx was ended.
func (a *Agent) Run(ctx context.Context) error {
	err := ErrRanTwice
	a.once.Do(func() { err = a.run(ctx) })
	return err
}

func (a *Agent) run(ctx context.Context) error {
	defer a.pg.Close()
	defer a.observer.disconnect()
	if err := a.pg.Prepare(); err != nil {
		return fmt.Errorf("agent %s: %w", a.cfg.Node, err)
	}
	unlock, err := lockDir(a.cfg.Dir)
	if err != nil {
		return fmt.Errorf("agent %s: %w", a.cfg.Node, err)
	}
	defer unlock()
	if _, err := a.copyCertificates(); err != nil {
		return fmt.Errorf("agent %s: %w", a.cfg.Node, err)
	}
	listener, err := a.listen()
	if err != nil {
		return fmt.Errorf("agent %s: %w", a.cfg.Node, err)
	}
	stopArchive, err := a.startArchive(ctx)
	if err != nil {
		return fmt.Errorf("agent %s: %w", a.cfg.Node, err)
	}
	defer stopArchive()
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.serve(gctx, listener) })
	group.Go(func() error { return a.sample(gctx) })
	group.Go(func() error { return a.probes(gctx) })
	group.Go(func() error { return a.guards(gctx) })
	group.Go(func() error { return a.flushes(gctx) })
	group.Go(func() error { return a.register(gctx) })
	group.Go(func() error { return a.watchArchive(gctx) })
	group.Go(func() error { return a.fillArchive(gctx) })
	group.Go(func() error { return a.renewCertificates(gctx) })
	group.Go(func() error { return a.runOrders(gctx) })
	err = group.Wait()
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return fmt.Errorf("agent %s: %w", a.cfg.Node, err)
}

// URL is where the API is reached; it waits until Run has opened it.
func (a *Agent) URL(ctx context.Context) (string, error) {
	select {
	case <-a.listenUp:
		return *a.url.Load(), nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// Instance gives the server, to look at.
func (a *Agent) Instance() *pgproc.Instance { return a.pg }

// setPhase says what the runner is at and has it reported at once; StateUnknown means nothing special.
func (a *Agent) setPhase(state catalog.State, format string, args ...any) {
	a.phase.Store(&phase{state: state, reason: fmt.Sprintf(format, args...)})
	a.sampleNow()
}

func (a *Agent) clearPhase() {
	a.phase.Store(nil)
	a.sampleNow()
}

func (a *Agent) sampleNow() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}
