package pooler

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/internal/pgwire"
	"neki/pooler/backend"
	"neki/pooler/plan"
	"neki/settings"
)

// loginLimit bounds a client's login, from its first byte to the first ReadyForQuery.
const loginLimit = time.Minute

// login makes a session of a new connection, or acts on its cancel request (then there is neither session nor error).
// A client that can't be served has been told why.
func (s *Server) login(ctx context.Context, nc net.Conn, proxied bool) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, loginLimit)
	defer cancel()
	cfg := pgwire.StartupConfig{TLS: s.cfg.TLS}
	if proxied {
		var err error
		if cfg.Peer, err = pgwire.ReadProxy(ctx, nc); err != nil {
			return nil, err
		}
	}
	st, err := pgwire.Accept(ctx, nc, cfg)
	if err != nil {
		return nil, err
	}
	if st.Kind == pgwire.KindCancel {
		s.handleCancel(st.Cancel)
		return nil, nil
	}
	c, err := s.admit(ctx, st)
	if err != nil {
		_ = st.Refuse(ctx, err)
		return nil, err
	}
	if err := c.greet(ctx, st); err != nil {
		s.sessions.remove(c)
		return nil, err
	}
	s.metrics.logins.Inc()
	return c, nil
}

// admit authenticates the client and makes its session.
func (s *Server) admit(ctx context.Context, st *pgwire.Startup) (*Session, error) {
	if s.refusing.Load() {
		return nil, errShutdown
	}
	if err := checkStartup(st); err != nil {
		return nil, err
	}
	r, err := s.roles.lookup(ctx, st.User, st.Database)
	if err != nil {
		return nil, err
	}
	secret, err := s.authenticate(ctx, st, r)
	if err != nil {
		return nil, err
	}
	if err := checkRole(r, st.Database); err != nil {
		return nil, err
	}
	c := &Session{
		srv: s, conn: pgwire.NewConn(st.Conn), user: st.User, role: r,
		protocol: st.ProtocolVersion, status: 'I',
		connected: time.Now(), addr: st.Peer.String(), tls: st.TLS,
	}
	if c.defaults, err = s.startupVars(st); err != nil {
		return nil, err
	}
	c.vars = c.defaults
	limit := r.connLimit
	if r.super {
		limit = -1
	}
	c.begun, c.now = c.connected, c.connected
	c.setState(stateIdle, c.connected) // before the sweeper sees it
	if err := s.sessions.add(c, s.keys, limit); err != nil {
		return nil, err
	}
	s.pools.Authenticated(st.User, secret)
	c.db = s.dbs.get(st.Database)
	c.planEnv() // here, on a stack that is given back
	if err := c.firstGreeting(); err != nil {
		s.sessions.remove(c)
		return nil, err
	}
	return c, nil
}

func checkStartup(st *pgwire.Startup) error {
	if v, ok := st.Param("replication"); ok && !isOff(v) {
		return pgerr.Fatal(pgerr.FeatureNotSupported, "replication connections are not supported through the gateway").
			WithHint("Connect to the instance itself; neki.nodes lists hosts and ports.")
	}
	return nil
}

// nameLimit is Postgres's NAMEDATALEN: it cuts a longer application_name.
const nameLimit = 64

func isOff(v string) bool {
	switch strings.ToLower(v) {
	case "", "off", "false", "no", "0", "f", "n":
		return true
	}
	return false
}

// startupVars makes the session's defaults of the startup packet's parameters.
func (s *Server) startupVars(st *pgwire.Startup) (*settings.Vars, error) {
	v, err := s.givenVars(st)
	if err != nil {
		return nil, err
	}
	if err := s.checkShard(settings.Default(), v.Neki()); err != nil {
		return nil, fatalOf(err)
	}
	return v, nil
}

func (s *Server) givenVars(st *pgwire.Startup) (*settings.Vars, error) {
	v := s.interner.Empty()
	for _, p := range st.Params {
		switch p.Name {
		case "user", "database", "replication":
			continue
		case "options":
			pairs, err := settings.ParseOptions(p.Value)
			if err != nil {
				return nil, fatalOf(err)
			}
			for _, o := range pairs {
				if v, err = s.startupVar(v, o.Name, o.Value); err != nil {
					return nil, err
				}
			}
			continue
		}
		var err error
		if v, err = s.startupVar(v, p.Name, p.Value); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (s *Server) startupVar(v *settings.Vars, name, value string) (*settings.Vars, error) {
	if err := plan.CheckParameter(name, value); err != nil {
		return nil, fatalOf(err)
	}
	v, err := s.interner.Set(v, name, value)
	if err != nil {
		return nil, fatalOf(err)
	}
	return v, nil
}

func fatalOf(err error) *pgerr.Error { return pgerr.From(err).WithSeverity(pgerr.SeverityFatal) }

// firstGreeting learns what the client is told of its settings, and has a server check them: by leasing a connection
// of the client's role and applying them. While no instance can be reached, what the pool's last login said must do, so
// that operators get in.
func (c *Session) firstGreeting() error {
	snap := c.srv.cfg.Cluster.Snapshot()
	if c.primaryPaused(snap) { // whoever paused must be able to come back and resume
		if c.shown = c.srv.anyGreeting(snap, c.user, c.db.name); c.shown == nil {
			c.shown = c.srv.pools.Greet(snap.PrimaryOf(homeShard(snap)), c.user, c.db.name)
		}
		if c.shown != nil {
			c.shown = c.withAppName(c.shown)
			return nil
		}
	}
	plain := c.plainStartup()
	if plain {
		if c.shown = c.knownGreeting(snap); c.shown != nil {
			return nil
		}
		c.vars = c.srv.interner.Empty() // nothing to check: ask what the role's defaults are, for others too
	}
	c.lend()
	defer c.Park()
	sc, err := c.greetingConnection(snap)
	c.vars = c.defaults
	if err != nil {
		if !unreachable(err) && pgerr.Code(err) != pgerr.NoServingPrimary && pgerr.Code(err) != pgerr.NoEligibleReplica {
			return fatalOf(err)
		}
		if c.shown = c.srv.anyGreeting(snap, c.user, c.db.name); c.shown == nil {
			return fatalOf(err)
		}
		return nil
	}
	c.shown = sc.Params()
	if plain {
		sc.NoteGreeting()
		c.shown = c.withAppName(c.shown)
	}
	c.endActive()
	c.release()
	c.reports = nil
	return nil
}

// primaryPaused reports whether clients of the primary are held.
func (c *Session) primaryPaused(snap *catalog.Snapshot) bool {
	node := snap.PrimaryOf(homeShard(snap))
	return node != nil && c.srv.pools.Pool(node, c.user, c.db.name).Paused()
}

// greetingConnection leases a connection of the kind that the session will use.
func (c *Session) greetingConnection(snap *catalog.Snapshot) (*backend.ServerConn, error) {
	role := catalog.RolePrimary
	switch c.vars.Neki().Target {
	case settings.TargetReplica:
		role = catalog.RoleReplica
	case settings.TargetRdonly:
		role = catalog.RoleRdonly
	}
	sc, err := c.connection(role, "", snap, 0)
	if err != nil && role != catalog.RolePrimary && pgerr.Code(err) == pgerr.NoEligibleReplica {
		// The statement that needs a replica will say what is wrong; the login need not fail.
		return c.connection(catalog.RolePrimary, "", snap, 0)
	}
	return sc, err
}

// plainStartup reports whether the client's settings need no check by a server: nothing but a plain application_name
// differs from the defaults.
func (c *Session) plainStartup() bool {
	if c.vars.Len() > 1 || c.vars.Neki().Target != settings.TargetPrimary {
		return false
	}
	app, ok := c.vars.GUC("application_name")
	return isPlain(app) && (ok || c.vars.Len() == 0)
}

// knownGreeting gives what another login of the role was just told, nil when there was none.
func (c *Session) knownGreeting(snap *catalog.Snapshot) *backend.ParamSet {
	shard := snap.Shard(homeShard(snap))
	if shard == nil {
		return nil
	}
	node := snap.Node(shard.Primary)
	if node == nil {
		return nil
	}
	pool := c.srv.pools.Pool(node, c.user, c.db.name)
	known := pool.FreshGreeting(greetingFresh)
	if known == nil && pool.Full() { // a login needs no server, and should not wait for one
		known = pool.Greeting()
	}
	if known == nil {
		return nil
	}
	return c.withAppName(known)
}

func (c *Session) withAppName(s *backend.ParamSet) *backend.ParamSet {
	if app, ok := c.vars.GUC("application_name"); ok {
		return c.srv.pools.WithParameter(s, "application_name", app)
	}
	return s
}

// greetingFresh is how long what a login was told holds for others.
const greetingFresh = time.Second

func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return len(s) < nameLimit
}

// anyGreeting gives what any instance of the cluster has told the role's last login.
func (s *Server) anyGreeting(snap *catalog.Snapshot, user, database string) *backend.ParamSet {
	for i := range snap.Nodes {
		if g := s.pools.Pool(&snap.Nodes[i], user, database).Greeting(); g != nil {
			return g
		}
	}
	return nil
}

// greetingSize holds a usual greeting.
const greetingSize = 1 << 10

// greet tells the client that it is in.
func (c *Session) greet(ctx context.Context, st *pgwire.Startup) error {
	b := append(make([]byte, 0, greetingSize), st.Pending()...)
	b = append(b, 'R', 0, 0, 0, 8, 0, 0, 0, 0)
	for _, p := range c.shown.Pairs() {
		b = appendParameter(b, p)
	}
	key := c.srv.keys.AppendKey(nil, c.slot, c.generation, c.protocol)
	b = append(b, 'K')
	b = appendUint32(b, uint32(8+len(key)))
	b = appendUint32(b, c.pid)
	b = append(b, key...)
	b = appendReady(b, 'I')
	if deadline, ok := ctx.Deadline(); ok {
		_ = st.Conn.SetDeadline(deadline)
	}
	if _, err := st.Conn.Write(b); err != nil {
		return err
	}
	_ = st.Conn.SetDeadline(time.Time{})
	c.mu.Lock()
	killed := c.cause != nil
	c.mu.Unlock()
	if killed {
		return errors.New("ended while logging in")
	}
	return nil
}

func appendUint32(b []byte, v uint32) []byte {
	return append(b, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
}

// String names the session in logs.
func (c *Session) String() string { return fmt.Sprintf("session %d of %s", c.pid, c.user) }
