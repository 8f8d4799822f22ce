package backend

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/internal/pgwire"
	"neki/settings"
)

// Config is what Pools needs.
type Config struct {
	Dial       pgwire.Dial                 // nil: TCP, or a Unix socket for an address that begins with a slash
	TLS        *tls.Config                 // towards the shards; nil: plain
	Parameters func() *settings.Parameters // the gateway's parameters now in force
	Defaults   *settings.Vars              // the settings of a fresh connection: none
	Prepared   int                         // prepared statements kept on each connection
	Log        *slog.Logger
}

// Pools is every pool of a gateway. Close joins its goroutines. It is safe for concurrent use.
type Pools struct {
	cfg        Config
	ctx        context.Context // of the goroutines; ended by Close
	stop       context.CancelFunc
	goroutines sync.WaitGroup

	nodes     atomic.Pointer[map[string]*NodeStats] // copied on growth
	paramSets *paramSets

	credentialsMu sync.RWMutex
	credentials   map[string]Credential // by role: that of its last authentication

	mu     sync.RWMutex
	byKey  map[PoolKey]*Pool
	paused map[string]bool // by node
}

// NewPools makes an empty set of pools and starts its janitor.
func NewPools(cfg Config) *Pools {
	if cfg.Dial == nil {
		d := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3,
		}}
		cfg.Dial = d.DialContext
	}
	if cfg.Prepared <= 0 {
		cfg.Prepared = 200
	}
	p := &Pools{cfg: cfg, byKey: make(map[PoolKey]*Pool), credentials: make(map[string]Credential), paramSets: newParamSets(), paused: make(map[string]bool)}
	p.ctx, p.stop = context.WithCancel(context.Background()) //nolint:forbidigo // ended by Close, not by a caller
	p.goroutines.Go(p.janitor)
	return p
}

// Close closes all idle connections and waits for the goroutines; leased connections are closed as they come back.
func (p *Pools) Close() {
	p.stop()
	p.mu.Lock()
	pools := make([]*Pool, 0, len(p.byKey))
	for _, pool := range p.byKey {
		pools = append(pools, pool)
	}
	p.mu.Unlock()
	for _, pool := range pools {
		pool.close()
	}
	p.goroutines.Wait()
}

// Pool gives the pool of a key for the instance n, making it when it is new.
func (p *Pools) Pool(n *catalog.Node, user, database string) *Pool {
	key := PoolKey{Node: n.ID, User: user, Database: database}
	p.mu.RLock()
	pool := p.byKey[key]
	p.mu.RUnlock()
	if pool != nil && pool.leadsTo(n) {
		return pool
	}
	stats := p.Node(n.ID) // before the lock, which it takes
	p.mu.Lock()
	defer p.mu.Unlock()
	pool = p.byKey[key]
	if pool != nil && pool.leadsTo(n) {
		return pool
	}
	if pool != nil { // the instance moved
		p.goroutines.Go(pool.close)
	}
	pool = &Pool{
		pools: p, key: key, shard: n.Shard, host: n.Host, port: n.Port, stats: stats, paused: p.paused[n.ID], lastUsed: p.now(),
	}
	p.byKey[key] = pool
	return pool
}

// leadsTo reports whether the pool's connections are to where n is.
func (p *Pool) leadsTo(n *catalog.Node) bool { return p.host == n.Host && p.port == n.Port }

// Credential is what the gateway logs in to instances with, as a role: one of them, or nothing, for instances that trust
// the gateway's certificate.
type Credential struct {
	Keys     *pgwire.Keys // of the client's own SCRAM exchange
	Password string
	MD5      string // the role's secret, if that is of the md5 kind
}

// Authenticated notes the credential of a role's last successful authentication: with it connections of the role are
// opened from now on, for its earlier sessions too, since one of before a change of password is void. An empty one takes
// the place of none.
func (p *Pools) Authenticated(user string, c Credential) {
	p.credentialsMu.RLock()
	have := p.credentials[user]
	p.credentialsMu.RUnlock()
	if c == (Credential{}) || have.equal(c) {
		return
	}
	p.credentialsMu.Lock()
	defer p.credentialsMu.Unlock()
	p.credentials[user] = c
}

func (c Credential) equal(o Credential) bool {
	if c.Keys == nil || o.Keys == nil {
		return c == o
	}
	return *c.Keys == *o.Keys
}

func (p *Pools) credentialOf(user string) Credential {
	p.credentialsMu.RLock()
	defer p.credentialsMu.RUnlock()
	return p.credentials[user]
}

// Stats gives a row for each pool, in the order of their keys.
func (p *Pools) Stats() []PoolStats {
	capacity := p.params().PoolCapacity
	p.mu.RLock()
	rows := make([]PoolStats, 0, len(p.byKey))
	for _, pool := range p.byKey {
		rows = append(rows, pool.row(capacity))
	}
	p.mu.RUnlock()
	sort.Slice(rows, func(i, j int) bool {
		a, b := rows[i].PoolKey, rows[j].PoolKey
		if a.Node != b.Node {
			return a.Node < b.Node
		}
		if a.Database != b.Database {
			return a.Database < b.Database
		}
		return a.User < b.User
	})
	return rows
}

// WithParameter gives a set with one parameter changed.
func (p *Pools) WithParameter(s *ParamSet, name, value string) *ParamSet {
	return p.paramSets.with(s, name, value)
}

// Pause holds the clients of an instance at their next statement outside a transaction; off lets them go.
func (p *Pools) Pause(node string, on bool) {
	p.mu.RLock()
	same := p.paused[node] == on
	p.mu.RUnlock()
	if same {
		return
	}
	p.mu.Lock()
	p.paused[node] = on
	var affected []*Pool
	for key, pool := range p.byKey {
		if key.Node == node {
			affected = append(affected, pool)
		}
	}
	p.mu.Unlock()
	for _, pool := range affected {
		pool.pause(on)
	}
}

// Greet asks an instance what it tells a client of the role and database at a login, without the pool: where that is
// paused, clients can still log in. nil when it can't be asked.
func (p *Pools) Greet(n *catalog.Node, user, database string) *ParamSet {
	pool := p.Pool(n, user, database)
	sc, err := p.dial(pool)
	if err != nil {
		return nil
	}
	defer p.discard(sc)
	pool.NoteGreeting(sc.params)
	return sc.params
}

// Reach logs in at an instance, as a role, and leaves it again: the error says why that can't be done.
func (p *Pools) Reach(n *catalog.Node, user, database string) error {
	ctx, cancel := context.WithTimeout(p.ctx, reachTimeout)
	defer cancel()
	sc, err := p.login(ctx, p.Pool(n, user, database))
	if err != nil {
		return err
	}
	p.discard(sc)
	return nil
}

// reachTimeout bounds Reach.
const reachTimeout = time.Second

// Retire makes every idle connection of a role go away, and the leased ones when they come back: its settings or
// privileges to log in have changed. An empty user means all roles.
func (p *Pools) Retire(user string) {
	p.Expire(func(k PoolKey) bool { return user == "" || k.User == user })
}

// Expire makes the idle connections of some pools go away, and the leased ones when they come back.
func (p *Pools) Expire(of func(PoolKey) bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for key, pool := range p.byKey {
		if of(key) {
			pool.expire()
		}
	}
}

// expire makes every connection opened before now unfit for reuse.
func (p *Pool) expire() {
	p.mu.Lock()
	p.expired = p.pools.now()
	gone := p.dropIdleLocked(always)
	p.openMoreLocked()
	p.mu.Unlock()
	p.pools.discard(gone...)
}

func (p *Pools) params() *settings.Parameters { return p.cfg.Parameters() }

func (p *Pools) now() time.Time { return time.Now() }

// loginTimeout bounds opening a connection, from dialling to the first ReadyForQuery.
const loginTimeout = 10 * time.Second

func (p *Pools) dial(pool *Pool) (*ServerConn, error) {
	ctx, cancel := context.WithTimeout(p.ctx, loginTimeout)
	defer cancel()
	return p.login(ctx, pool)
}

func (p *Pools) login(ctx context.Context, pool *Pool) (*ServerConn, error) {
	addr := net.JoinHostPort(pool.host, strconv.Itoa(pool.port))
	nc, err := p.cfg.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, &ConnectError{Node: pool.key.Node, Err: err}
	}
	secret := p.credentialOf(pool.key.User)
	g, err := pgwire.Connect(ctx, nc, pgwire.BackendLogin{
		User: pool.key.User, Database: pool.key.Database, TLS: p.cfg.TLS,
		Keys: secret.Keys, Password: secret.Password, MD5: secret.MD5,
	})
	if err != nil {
		_ = nc.Close()
		return nil, &ConnectError{Node: pool.key.Node, Err: err}
	}
	_ = nc.SetDeadline(time.Time{})
	now := p.now()
	sc := &ServerConn{
		conn: pgwire.NewConn(g.Conn), pool: pool, addr: addr, pid: g.PID, secret: g.Secret,
		vars: p.cfg.Defaults, params: p.paramSets.intern(g.Params), prepared: preparedSet{limit: p.cfg.Prepared},
		status: 'I', opened: now, idle: now, retire: p.retireAt(now),
	}
	sc.greeting = sc.params
	return sc, nil
}

// retireAt draws the end of a connection's life: between once and twice the parameter, so that not all end at once.
func (p *Pools) retireAt(now time.Time) time.Time {
	life := p.params().PoolMaxLifetime
	if life <= 0 {
		return now.AddDate(100, 0, 0)
	}
	return now.Add(life + rand.N(life))
}

// ConnectError says that no connection to an instance could be opened.
type ConnectError struct {
	Node string
	Err  error
}

func (e *ConnectError) Error() string { return fmt.Sprintf("connect to %s: %v", e.Node, e.Err) }

// Unwrap gives the cause.
func (e *ConnectError) Unwrap() error { return e.Err }

// SQLState gives the SQLSTATE of the server's refusal, 08001 when the server was not reached.
func (e *ConnectError) SQLState() string {
	if code := pgerr.Code(e.Err); code != "" {
		return code
	}
	return pgerr.SQLClientUnableToConnect
}

// discard closes connections with a Terminate, off the caller's path.
func (p *Pools) discard(gone ...*ServerConn) {
	for _, sc := range gone {
		p.goroutines.Go(func() {
			_ = sc.conn.SetDeadline(p.now().Add(time.Second))
			_, _ = sc.conn.Write([]byte{'X', 0, 0, 0, 4})
			_ = sc.conn.Close()
		})
	}
}

// awaitCancels waits until no cancel request is on its way to sc; false when that takes too long.
func (p *Pools) awaitCancels(sc *ServerConn) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(loginTimeout)
	defer limit.Stop()
	for sc.cancels.Load() > 0 {
		select {
		case <-tick.C:
		case <-limit.C:
			return false
		case <-p.ctx.Done():
			return false
		}
	}
	return true
}

// remindInterval is the precision of the times that waits for a connection are bounded by; connections are looked over
// at each fourth.
const remindInterval = 250 * time.Millisecond

// janitor ends waits that last too long, and closes connections that are too old or idle for too long.
func (p *Pools) janitor() {
	tick := time.NewTicker(remindInterval)
	defer tick.Stop()
	for n := 1; ; n++ {
		var now time.Time
		select {
		case <-p.ctx.Done():
			return
		case now = <-tick.C:
		}
		params := p.params()
		before := time.Time{}
		if params.PoolIdle > 0 {
			before = p.now().Add(-params.PoolIdle)
		}
		p.mu.RLock()
		pools := make([]*Pool, 0, len(p.byKey))
		for _, pool := range p.byKey {
			pools = append(pools, pool)
		}
		p.mu.RUnlock()
		for _, pool := range pools {
			pool.remind(now)
			if n%4 == 0 {
				pool.retireIdle(params.PoolMinConns, before)
			}
		}
	}
}
