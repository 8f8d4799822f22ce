package pooler

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/pooler/plan"
)

// database is one database that clients use.
type database struct {
	name      string
	functions *plan.Functions
	relations *plan.RelCatalog
	hub       *hub
	changes   atomic.Uint64 // of what there was: statements prepared before may give other columns than those prepared after

	mu    sync.Mutex
	envs  map[envKey]*plan.Env   // shared by sessions that are alike
	types map[string]*shardTypes // by shard
}

type envKey struct{ user, path string }

// maxEnvs bounds the environments kept for sessions to come.
const maxEnvs = 1000

// env gives what plans depend on for a role with a search_path.
func (d *database) env(user, path string) *plan.Env {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := envKey{user, path}
	if e := d.envs[key]; e != nil {
		return e
	}
	if d.envs == nil || len(d.envs) >= maxEnvs {
		d.envs = make(map[envKey]*plan.Env)
	}
	e := plan.NewEnv(d.name, user, path, d.functions).WithRelations(d.relations)
	d.envs[key] = e
	return e
}

// databases keeps what planning must know of each database fresh, by a goroutine for each, which close ends. It is safe
// for concurrent use.
type databases struct {
	srv    *Server
	ctx    context.Context // of the goroutines
	stop   context.CancelFunc
	joined sync.WaitGroup

	mu    sync.Mutex
	known map[string]*database
}

func newDatabases(s *Server) *databases {
	d := &databases{srv: s, known: make(map[string]*database)}
	d.ctx, d.stop = context.WithCancel(context.Background()) //nolint:forbidigo // ended by close, not by a caller
	return d
}

func (d *databases) close() {
	d.stop()
	d.joined.Wait()
	for _, db := range d.all() {
		db.hub.close()
	}
}

func (d *databases) all() []*database {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.known))
}

// get gives the database of a name that exists.
func (d *databases) get(name string) *database {
	d.mu.Lock()
	defer d.mu.Unlock()
	if db := d.known[name]; db != nil {
		return db
	}
	db := &database{name: name, hub: newHub(d.srv, name, rand.Uint64())}
	db.functions = plan.NewFunctions(func(ctx context.Context) ([]plan.Function, []plan.Relation, error) {
		return d.load(ctx, name)
	})
	db.relations = plan.NewRelCatalog(func(scan func([]byte) error) error {
		return d.loadRelations(name, scan)
	}, func() int64 { return d.srv.cfg.Cluster.Snapshot().SchemaRev })
	d.known[name] = db
	d.joined.Go(func() { db.functions.Run(d.ctx, functionsInterval, d.srv.log) })
	d.joined.Go(func() { db.relations.Run(d.ctx, functionsInterval, d.srv.log) })
	return db
}

func (d *databases) loadRelations(name string, scan func([]byte) error) error {
	return d.srv.control.query(d.ctx, name, plan.RelCatalogQuery, nil, func(rows pgx.Rows) error {
		return scan(rows.RawValues()[0])
	})
}

// functionsInterval is how often pg_proc, and relations if they are needed, are read again: what was made past this
// gateway is learned then.
const functionsInterval = 30 * time.Second

// reload reads pg_proc of every database again, and returns when that is done. A database that can't be read keeps what
// is known of it.
func (d *databases) reload(ctx context.Context) {
	for _, db := range d.all() {
		if err := db.relations.Refresh(); err != nil {
			d.srv.log.Warn("the schema of the database can't be read", "database", db.name, "error", err)
		}
		for range reloadTries {
			if err := db.functions.Refresh(ctx); err != nil {
				d.srv.log.Warn("functions of the database can't be read", "database", db.name, "error", err)
				break
			}
			if db.functions.Loaded() { // else they changed while they were read
				break
			}
		}
	}
}

// reloadTries bounds how often a reload reads functions that change all the time.
const reloadTries = 5

func (d *databases) load(ctx context.Context, name string) (funcs []plan.Function, rels []plan.Relation, err error) {
	err = d.srv.control.query(ctx, name, plan.FunctionsQuery, nil, func(rows pgx.Rows) error {
		var f plan.Function
		if err := rows.Scan(&f.Schema, &f.Name, &f.MinArgs, &f.MaxArgs, &f.Volatile); err != nil {
			return err
		}
		funcs = append(funcs, f)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	var names []string
	if d.srv.cfg.Virtual != nil {
		names = d.srv.cfg.Virtual.RelationNames()
	}
	err = d.srv.control.query(ctx, name, plan.RelationsQuery, []any{names}, func(rows pgx.Rows) error {
		var r plan.Relation
		if err := rows.Scan(&r.Schema, &r.Name); err != nil {
			return err
		}
		rels = append(rels, r)
		return nil
	})
	return funcs, rels, err
}
