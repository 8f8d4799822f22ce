package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"neki/catalog"
	"neki/cluster/agent"
	"neki/cluster/decide"
	"neki/internal/pgerr"
)

// ShardSpec is a shard that must exist.
type ShardSpec struct {
	UID           string
	Name          string // default: the uid
	Profile       string // default: the default profile
	Durability    string // sync (default) or none
	Authoritative bool
}

// Login is a role with a password.
type Login struct{ Name, Password string }

// Config is what an admin must know.
type Config struct {
	Cluster string
	ID      string

	Store catalog.Store
	// Live is the process's view of the cluster, run and fed by its owner (agent.Feed). nil: the admin runs its own.
	Live *catalog.Live
	// HTTP and Token are for calls to agents; a nil HTTP means one of its own.
	HTTP  *http.Client
	Token string

	Listen string      // of the admin's own API; "" = none
	URL    string      // as others reach it
	TLS    *tls.Config // of the API; must ask for client certificates. Without it, Token guards, on loopback only

	Profiles []catalog.Profile // made when missing; with none at all, "default" with two replicas
	Shards   []ShardSpec       // made when missing; a shard that agents name is made, too
	// Superuser is made in each shard when it is missing. Without a name there is none.
	Superuser Login
	// Stubs is the stub schema, for each database of each shard; nil = none.
	Stubs *agent.StubSchema

	// Poll is how often a shard is looked at without an event; 0 means 5 s. Like the three after it, and Backups and
	// ReplaceAfter, it is followed from the catalog while the admin leads.
	Poll              time.Duration
	RecoveryPoll      time.Duration // how often is looked for replicas that lag or are lost; 0 means 10 s
	AcceptableLag     time.Duration // of a replica; 0 means 10 s
	SwitchoverTimeout time.Duration // for a switchover to begin; 0 means a minute
	// Patience is how long to wait for the profile's number of members before a shard is begun, or opened, with
	// fewer; 0 means 60 s.
	Patience time.Duration
	Copies   int64 // base backups at once; 0 means 2
	// Timing are the times of failover; the zero value means decide.DefaultTiming.
	Timing decide.Timing
	// Provider makes instances for new replicas and shards; nil: agents have to be started by hand.
	Provider Provider
	// Backups says when backups are taken; the agents say where they are kept. Parameters set by SQL go before it.
	Backups BackupPolicy
	// ReplaceAfter is how long a replica may be lost before another takes its place; 0 means ten minutes, less than 0 never.
	ReplaceAfter time.Duration
	// Restored makes what is in a directory a cluster that can be started, and says how; nil: its user does.
	Restored func(into string, shards []RestoredShard) (how string, err error)

	Log      *slog.Logger      // nil discards
	Progress func(step string) // called as it gets on, from any goroutine; nil does nothing
}

// Admin is one running admin.
type Admin struct {
	cfg    Config
	log    *slog.Logger
	live   *catalog.Live
	http   *http.Client
	copies *semaphore.Weighted
	hosts  hosts
	once   sync.Once
	since  time.Time
	addr   atomic.Pointer[string]
	epoch  atomic.Int64 // while it leads, else 0
	op     atomic.Int64 // numbers operations of an epoch
	events atomic.Int64 // recorded since the last trim

	metrics *metrics

	mu        sync.Mutex
	shards    map[string]ShardStatus
	recording catalog.Outage // of events
}

// ErrRanTwice says that Run was called again.
var ErrRanTwice = errors.New("admin: Run was called twice")

// New checks the configuration.
func New(cfg Config) (*Admin, error) {
	if !catalog.ValidName(cfg.Cluster) || !catalog.ValidName(cfg.ID) || cfg.Store == nil {
		return nil, pgerr.New(pgerr.InvalidParameterValue, "admin: cluster %q, id %q and a store are needed", cfg.Cluster, cfg.ID)
	}
	if cfg.Listen != "" {
		if err := agent.CheckGuard(cfg.Listen, cfg.TLS, cfg.Token); err != nil {
			return nil, fmt.Errorf("admin: %w", err)
		}
	}
	if cfg.Patience == 0 {
		cfg.Patience = time.Minute
	}
	if cfg.Copies == 0 {
		cfg.Copies = 2
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	a := &Admin{
		cfg: cfg, log: log.With("admin", cfg.ID), live: cfg.Live, http: cfg.HTTP, since: time.Now().UTC(),
		copies: semaphore.NewWeighted(cfg.Copies), shards: map[string]ShardStatus{},
	}
	a.metrics = newMetrics()
	a.recording = catalog.Outage{Log: a.log, What: "recording of events"}
	if a.http == nil {
		a.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute}}
	}
	if a.live == nil {
		a.live = catalog.NewLive(cfg.Store, cfg.Cluster, log)
	}
	return a, nil
}

// Run runs until ctx ends; it may be called once. It returns nil when ctx was ended.
func (a *Admin) Run(ctx context.Context) error {
	err := ErrRanTwice
	a.once.Do(func() { err = a.run(ctx) })
	return err
}

func (a *Admin) run(ctx context.Context) error {
	if a.cfg.HTTP == nil {
		defer a.http.CloseIdleConnections()
	}
	group, gctx := errgroup.WithContext(ctx)
	if a.cfg.Listen != "" {
		l, err := a.listen()
		if err != nil {
			return err
		}
		group.Go(func() error { return a.serve(gctx, l) })
	}
	if a.cfg.Live == nil {
		feed := &agent.Feed{Live: a.live, HTTP: a.http, Token: a.cfg.Token, Log: a.log}
		group.Go(func() error { return a.live.Run(gctx) })
		group.Go(func() error { return feed.Run(gctx) })
	}
	group.Go(func() error { return a.campaign(gctx) })
	err := group.Wait()
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return fmt.Errorf("admin %s: %w", a.cfg.ID, err)
}

// Live gives the view of the cluster that the admin works with.
func (a *Admin) Live() *catalog.Live { return a.live }

// Leading reports whether this admin leads, as far as it knows.
func (a *Admin) Leading() bool { return a.epoch.Load() != 0 }

// client calls the agent of a node.
func (a *Admin) client(n *catalog.Node) *agent.Client {
	return &agent.Client{URL: n.AgentURL, HTTP: a.http, Token: a.cfg.Token}
}

// order heads an order of the present epoch.
func (a *Admin) order(epoch, term int64, what string) agent.Order {
	return agent.Order{Epoch: epoch, Term: term, OpID: fmt.Sprintf("%s-%d-%d-%s", a.cfg.ID, epoch, a.op.Add(1), what)}
}

// record writes an event. That it can't be written must not stop what it tells of.
func (a *Admin) record(ctx context.Context, e catalog.Event) {
	e.By = "admin " + a.cfg.ID
	a.log.Info("event", "kind", e.Kind, "shard", e.Shard, "node", e.Node, "detail", e.Detail, "took", e.Duration)
	_, err := catalog.AppendEvent(ctx, a.cfg.Store, a.cfg.Cluster, e)
	a.noteRecorded(ctx, err)
	if a.events.Add(1)%trimEvery == 0 {
		if err := catalog.TrimEvents(ctx, a.cfg.Store, a.cfg.Cluster, keepEvents); err != nil && ctx.Err() == nil {
			a.log.Warn("old events not removed", "error", err)
		}
	}
}

// noteRecorded logs that events can't be recorded once when that begins, however many there are.
func (a *Admin) noteRecorded(ctx context.Context, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.recording.Worked()
	} else if ctx.Err() == nil {
		a.recording.Failed(err)
	}
}

// keepEvents is how many events the catalog holds; they are trimmed at each trimEvery more.
const (
	keepEvents = 1000
	trimEvery  = 100
)

// WaitReady waits until the named shards are ready.
func WaitReady(ctx context.Context, live *catalog.Live, shards ...string) error {
	for {
		changed := live.Changed()
		missing := ""
		if snap := live.Snapshot(); snap == nil {
			missing = "the catalog"
		} else {
			for _, uid := range shards {
				if s := snap.Shard(uid); s == nil || !s.Ready {
					missing = "shard " + uid
				}
			}
		}
		if missing == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", missing, context.Cause(ctx))
		case <-changed:
		}
	}
}
