package pooler

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"neki/catalog"
)

// control holds the gateway's own connections to the instances: for verifiers, functions and log positions. They carry
// no client's parameters and search only pg_catalog (CVE-2025-12819). It is safe for concurrent use.
type control struct {
	srv *Server

	mu     sync.Mutex
	pools  map[controlKey]*pgxpool.Pool
	closed bool
}

type controlKey struct{ addr, database string }

func newControl(s *Server) *control {
	return &control{srv: s, pools: make(map[controlKey]*pgxpool.Pool)}
}

// controlConns is how many connections the gateway itself uses for one instance and database.
const controlConns = 4

// controlTimeout bounds a question to an instance.
const controlTimeout = 5 * time.Second

var errNoInstance = errors.New("the instance is not known")

// pool gives the connections to an instance and database ("" = the system login's).
func (c *control) pool(n *catalog.Node, database string) (*pgxpool.Pool, error) {
	if n == nil {
		return nil, errNoInstance
	}
	if database == "" {
		database = c.srv.cfg.System.Database
	}
	key := controlKey{addr: net.JoinHostPort(n.Host, strconv.Itoa(n.Port)), database: database}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errNoInstance
	}
	if p := c.pools[key]; p != nil {
		return p, nil
	}
	cfg, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, err
	}
	cc := cfg.ConnConfig
	cc.Host, cc.Port, cc.Database = n.Host, uint16(n.Port), database
	cc.User, cc.Password = c.srv.cfg.System.User, c.srv.cfg.System.Password
	cc.TLSConfig, cc.Fallbacks = c.srv.cfg.BackendTLS, nil
	cc.ConnectTimeout = controlTimeout
	cc.RuntimeParams = map[string]string{
		"application_name": "neki gateway", "search_path": "pg_catalog", "statement_timeout": "10000",
	}
	cfg.MaxConns, cfg.MinConns = controlConns, 0
	cfg.MaxConnIdleTime = time.Minute
	p, err := pgxpool.NewWithConfig(context.Background(), cfg) //nolint:forbidigo // closed by control.close
	if err != nil {
		return nil, err
	}
	c.pools[key] = p
	return p, nil
}

// query asks an instance of the shard that holds roles and schema: the primary, else a replica that serves.
func (c *control) query(ctx context.Context, database, sql string, args []any, scan func(pgx.Rows) error) error {
	snap := c.srv.cfg.Cluster.Snapshot()
	home := homeShard(snap)
	shard := snap.Shard(home)
	if shard == nil {
		return errNoInstance
	}
	err := c.queryNode(ctx, snap.Node(shard.Primary), database, sql, args, scan)
	if err == nil || ctx.Err() != nil {
		return err
	}
	for _, n := range snap.NodesOf(home) {
		if n.ID == shard.Primary {
			continue
		}
		if h := snap.Health(n.ID); h == nil || h.State != catalog.StateServing {
			continue
		}
		if c.queryNode(ctx, n, database, sql, args, scan) == nil {
			return nil
		}
	}
	return err
}

func (c *control) queryNode(ctx context.Context, n *catalog.Node, database, sql string, args []any, scan func(pgx.Rows) error) error {
	p, err := c.pool(n, database)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	rows, err := p.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (c *control) close() {
	c.mu.Lock()
	pools := c.pools
	c.pools, c.closed = nil, true
	c.mu.Unlock()
	for _, p := range pools {
		p.Close()
	}
}
