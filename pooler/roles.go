package pooler

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	admin "neki/admin_sql"
	"neki/internal/pgerr"
)

// role is what the gateway knows of a Postgres role. It is immutable.
type role struct {
	name      string
	exists    bool
	verifier  string
	super     bool
	canLogin  bool
	connLimit int        // -1: none
	until     *time.Time // VALID UNTIL
	viewer    bool       // member of neki_viewer
	operator  bool       // member of neki_operator
	groups    []string   // those roles that authentication rules ask for and that it is a member of

	database bool // the database asked for exists
	open     bool // and takes connections
	fetched  time.Time
	epoch    uint64
}

// memberOf reports membership of one of neki's roles.
func (r *role) memberOf(name string) bool {
	switch name {
	case admin.ViewerRole:
		return r.viewer
	case admin.OperatorRole:
		return r.operator
	}
	return name == r.name
}

// roles looks roles up, and remembers them for a moment; while no instance answers, for as long as that lasts. It is
// safe for concurrent use.
type roles struct {
	control *control
	groups  func(database string) []string // the roles whose members authentication rules are about
	epoch   atomic.Uint64

	mu     sync.Mutex
	known  map[roleKey]*role
	joined sync.WaitGroup // of look-ups in the background
}

type roleKey struct{ user, database string }

func newRoles(c *control, groups func(string) []string) *roles {
	return &roles{control: c, groups: groups, known: make(map[roleKey]*role)}
}

const (
	roleFreshFor   = time.Second      // a role changed elsewhere is noticed by new logins after this
	rightsFreshFor = 10 * time.Second // and by the neki schema after this
	maxRoles       = 20_000           // known at once
)

const roleQuery = `SELECT a.rolpassword, a.rolsuper, a.rolcanlogin, a.rolconnlimit, CASE WHEN pg_catalog.isfinite(a.rolvaliduntil) THEN a.rolvaliduntil END,
 coalesce(pg_catalog.pg_has_role(a.oid, pg_catalog.to_regrole('neki_viewer'), 'MEMBER'), false),
 coalesce(pg_catalog.pg_has_role(a.oid, pg_catalog.to_regrole('neki_operator'), 'MEMBER'), false),
 ARRAY(WITH RECURSIVE m(oid) AS (SELECT a.oid UNION SELECT am.roleid FROM pg_catalog.pg_auth_members am JOIN m ON am.member = m.oid)
  SELECT r.rolname::text FROM m JOIN pg_catalog.pg_authid r USING (oid) WHERE r.rolname = ANY ($2::text[]))
 FROM pg_catalog.pg_authid a WHERE a.rolname = $1`

const databaseQuery = `SELECT datallowconn FROM pg_catalog.pg_database WHERE datname = $1`

// invalidate makes the next look-up of every role ask an instance.
func (r *roles) invalidate() { r.epoch.Add(1) }

// lookup gives the role as of now, or as last known when no instance answers.
func (r *roles) lookup(ctx context.Context, user, database string) (*role, error) {
	key := roleKey{user, database}
	epoch := r.epoch.Load()
	r.mu.Lock()
	known := r.known[key]
	r.mu.Unlock()
	if known != nil && known.epoch == epoch && time.Since(known.fetched) < roleFreshFor {
		return known, nil
	}
	fresh, err := r.fetch(ctx, user, database)
	if err != nil {
		if known != nil {
			again := *known
			again.epoch, again.fetched = epoch, time.Now() // not to be asked for by every statement
			r.keep(key, &again)
			return &again, nil
		}
		return nil, pgerr.New(pgerr.CannotConnectNow, "no instance answers, so role %q can't be looked up", user).
			WithDetail("%v.", err).WithHint("neki.nodes shows the state of the cluster to sessions that are connected.")
	}
	fresh.epoch = epoch
	r.keep(key, fresh)
	return fresh, nil
}

func (r *roles) keep(key roleKey, found *role) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxRoles {
		clear(r.known)
	}
	r.known[key] = found
}

// remembered gives the role from memory, however old; an old one is looked up again meanwhile. One that is not known, or
// that may have changed by a statement seen here, is looked up first.
func (r *roles) remembered(ctx context.Context, user, database string) (*role, error) {
	key := roleKey{user, database}
	r.mu.Lock()
	known := r.known[key]
	if known == nil || known.epoch != r.epoch.Load() {
		r.mu.Unlock()
		return r.lookup(ctx, user, database)
	}
	stale := time.Since(known.fetched) > rightsFreshFor
	if stale {
		meanwhile := *known
		meanwhile.fetched = time.Now().Add(-roleFreshFor) // one look-up is enough, and logins make their own
		r.known[key] = &meanwhile
	}
	r.mu.Unlock()
	if stale {
		r.joined.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), controlTimeout) //nolint:forbidigo // joined by wait
			defer cancel()
			_, _ = r.lookup(ctx, user, database) // the next statement shows whether it was to be had
		})
	}
	return known, nil
}

// wait returns when no look-up runs in the background.
func (r *roles) wait() { r.joined.Wait() }

func (r *roles) fetch(ctx context.Context, user, database string) (*role, error) {
	found := &role{name: user, connLimit: -1, fetched: time.Now()}
	if !utf8.ValidString(user) { // a name cut within a character is nobody's
		return found, nil
	}
	err := r.control.query(ctx, "", roleQuery, []any{user, r.groups(database)}, func(rows pgx.Rows) error {
		var verifier *string
		found.exists = true
		if err := rows.Scan(&verifier, &found.super, &found.canLogin, &found.connLimit, &found.until,
			&found.viewer, &found.operator, &found.groups); err != nil {
			return err
		}
		if verifier != nil {
			found.verifier = *verifier
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !utf8.ValidString(database) {
		return found, nil
	}
	err = r.control.query(ctx, "", databaseQuery, []any{database}, func(rows pgx.Rows) error {
		found.database = true
		return rows.Scan(&found.open)
	})
	return found, err
}
