package regress

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The leak hunt: how many clients share how large a pool, for how long unless NEKI_LEAK_HUNT says.
const (
	huntClients = 64
	huntPool    = "4"
	shortHunt   = 8 * time.Second
)

// TestLeakHunt has many clients with state of every kind take turns on few connections. Each knows what it has set and
// checks that it sees exactly that.
func TestLeakHunt(t *testing.T) {
	lasts := shortHunt
	if text := os.Getenv("NEKI_LEAK_HUNT"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	c := cluster(t)
	control := c.mustConnect(t)
	for i := range huntRoles {
		mustExec(t, control, fmt.Sprintf("DROP ROLE IF EXISTS hunt_%d", i))
		mustExec(t, control, fmt.Sprintf("CREATE ROLE hunt_%d", i))
	}
	mustExec(t, control, "CALL neki.set_parameter(scope => 'gateway', name => 'pool-capacity', value => '"+huntPool+"')")
	t.Cleanup(func() {
		_, _ = control.Exec(context.Background(), "CALL neki.set_parameter(scope => 'gateway', name => 'pool-capacity', value => '20')")
		for i := range huntRoles {
			_, _ = control.Exec(context.Background(), fmt.Sprintf("DROP ROLE hunt_%d", i))
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var clients sync.WaitGroup
	var checks counter
	for i := range huntClients {
		clients.Go(func() {
			for ctx.Err() == nil && !t.Failed() {
				if err := c.hunt(t.Context(), ctx, i, &checks); err != nil {
					t.Errorf("client %d: %v", i, err)
				}
			}
		})
	}
	clients.Wait()
	t.Logf("%d checks in %s", checks.sum(), lasts)
	if checks.sum() < huntClients {
		t.Errorf("only %d checks were made", checks.sum())
	}
}

// counter counts from many goroutines.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add() { c.mu.Lock(); c.n++; c.mu.Unlock() }

func (c *counter) sum() int { c.mu.Lock(); defer c.mu.Unlock(); return c.n }

const huntRoles = 4

// prey is one client's state as it must see it.
type prey struct {
	conn     *pgx.Conn
	id       int
	settings map[string]string // of those that it may have changed; its defaults else
	prepared map[string]string // name to answer
	zone     string            // TimeZone at the start
}

// huntDefaults are what a new session has.
var huntDefaults = map[string]string{
	"work_mem": "4MB", "DateStyle": "ISO, MDY", "search_path": `"$user", public`, "role": "none", "TimeZone": "",
	"extra_float_digits": "1", "statement_timeout": "0", "hunt.mine": "", "application_name": "",
}

var huntValues = map[string][]string{
	"work_mem": {"5MB", "6MB", "7MB"}, "DateStyle": {"German, DMY", "SQL, YMD"}, "search_path": {"pg_catalog", "a, b"},
	"TimeZone": {"Asia/Tokyo", "America/Lima"}, "extra_float_digits": {"0", "2"}, "statement_timeout": {"1min", "2min"},
	"hunt.mine": {"x", "y", "z"}, "application_name": {"one", "two"},
}

// hunt is one session of a client: random changes, each followed by a look at everything. life ends it between steps.
func (c *devCluster) hunt(ctx, life context.Context, id int, checks *counter) error {
	conn, err := c.connect(ctx, "sslmode=disable", "default_query_exec_mode=exec")
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	p := &prey{conn: conn, id: id, settings: map[string]string{}, prepared: map[string]string{}}
	if err := conn.QueryRow(ctx, "SHOW TimeZone").Scan(&p.zone); err != nil {
		return err
	}
	steps := []func(context.Context) error{p.set, p.set, p.setLocal, p.rolledBack, p.takeRole, p.prepare, p.transaction, p.resetAll}
	if id%8 == 0 { // a few hold connections for a while
		steps = append(steps, p.pinned)
	}
	for range 5 + rand.IntN(20) {
		if life.Err() != nil {
			return nil
		}
		if err := steps[rand.IntN(len(steps))](ctx); err != nil {
			return err
		}
		if err := p.look(ctx); err != nil {
			return err
		}
		checks.add()
	}
	if rand.IntN(3) == 0 {
		return reset(conn.PgConn())
	}
	return nil
}

func pick[T any](from []T) T { return from[rand.IntN(len(from))] }

func (p *prey) choose() (name, value string) {
	var names []string
	for n := range huntValues {
		names = append(names, n)
	}
	name = pick(names)
	return name, pick(huntValues[name])
}

func (p *prey) run(ctx context.Context, sql string) error {
	if _, err := p.conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

func (p *prey) set(ctx context.Context) error {
	name, value := p.choose()
	if name == "search_path" {
		p.settings[name] = value
		return p.run(ctx, "SET search_path = "+value)
	}
	p.settings[name] = value
	if rand.IntN(2) == 0 {
		return p.run(ctx, "SELECT set_config('"+name+"', '"+value+"', false)")
	}
	return p.run(ctx, "SET "+name+" = '"+value+"'")
}

func (p *prey) setLocal(ctx context.Context) error {
	name, value := p.choose()
	return p.runAll(ctx, "BEGIN", "SELECT set_config('"+name+"', '"+value+"', true)", pick([]string{"COMMIT", "ROLLBACK"}))
}

func (p *prey) rolledBack(ctx context.Context) error {
	name, value := p.choose()
	return p.runAll(ctx, "BEGIN", "SELECT set_config('"+name+"', '"+value+"', false)", "ROLLBACK")
}

func (p *prey) runAll(ctx context.Context, sqls ...string) error {
	for _, sql := range sqls {
		if err := p.run(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

func (p *prey) takeRole(ctx context.Context) error {
	if rand.IntN(2) == 0 {
		delete(p.settings, "role")
		return p.run(ctx, "RESET ROLE")
	}
	role := fmt.Sprintf("hunt_%d", rand.IntN(huntRoles))
	p.settings["role"] = role
	return p.run(ctx, "SET ROLE "+role)
}

func (p *prey) prepare(ctx context.Context) error {
	name := fmt.Sprintf("s%d", rand.IntN(4)) // the same names as all others
	if _, ok := p.prepared[name]; ok {
		delete(p.prepared, name)
		return p.run(ctx, "DEALLOCATE "+name)
	}
	p.prepared[name] = fmt.Sprintf("%d/%d", p.id, rand.Int())
	return p.run(ctx, "PREPARE "+name+" AS SELECT '"+p.prepared[name]+"'::text")
}

func (p *prey) transaction(ctx context.Context) error {
	want := rand.IntN(1000)
	if err := p.runAll(ctx, "BEGIN", fmt.Sprintf("DECLARE c CURSOR FOR SELECT %d", want)); err != nil {
		return err
	}
	var got int
	if err := p.conn.QueryRow(ctx, "FETCH 1 FROM c").Scan(&got); err != nil || got != want {
		return fmt.Errorf("the cursor gave %d, want %d: %w", got, want, err)
	}
	return p.run(ctx, pick([]string{"COMMIT", "ROLLBACK"}))
}

func (p *prey) resetAll(ctx context.Context) error {
	if rand.IntN(2) == 0 {
		clear(p.prepared)
		clear(p.settings)
		return p.run(ctx, "DISCARD ALL")
	}
	role, has := p.settings["role"]
	clear(p.settings)
	if has { // RESET ALL leaves the role
		p.settings["role"] = role
	}
	return p.run(ctx, "RESET ALL")
}

// pinned makes what stays in a connection, looks at it, and takes it away.
func (p *prey) pinned(ctx context.Context) error {
	delete(p.settings, "role")
	name := fmt.Sprintf("hunt_mine_%d", rand.IntN(3))
	lock := 1000 + p.id
	if err := p.runAll(ctx, "RESET ROLE", "CREATE TEMP TABLE "+name+" AS SELECT "+fmt.Sprint(p.id)+" AS id",
		fmt.Sprintf("SELECT pg_advisory_lock(%d)", lock)); err != nil {
		return err
	}
	var id, locks int
	if err := p.conn.QueryRow(ctx, "SELECT id, (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = "+
		fmt.Sprint(lock)+" AND pid = pg_backend_pid()) FROM pg_temp."+name).Scan(&id, &locks); err != nil {
		return err
	}
	if id != p.id || locks != 1 {
		return fmt.Errorf("the temporary table holds %d, the lock is held %d times", id, locks)
	}
	clear(p.prepared)
	clear(p.settings)
	return p.run(ctx, "DISCARD ALL")
}

// look compares all that the session has with what it should have.
func (p *prey) look(ctx context.Context) error {
	for name, value := range huntDefaults {
		if own, ok := p.settings[name]; ok {
			value = own
		}
		if name == "TimeZone" && value == "" {
			value = p.zone
		}
		var got string
		if err := p.conn.QueryRow(ctx, "SELECT coalesce(current_setting('"+name+"', true), '')").Scan(&got); err != nil {
			return err
		}
		if got != value {
			return fmt.Errorf("%s is %q, want %q", name, got, value)
		}
	}
	for i := range 4 {
		name := fmt.Sprintf("s%d", i)
		var got string
		err := p.conn.QueryRow(ctx, "EXECUTE "+name).Scan(&got)
		want, has := p.prepared[name]
		var pgErr *pgconn.PgError
		switch {
		case !has && errors.As(err, &pgErr) && pgErr.Code == "26000":
		case err != nil || got != want:
			return fmt.Errorf("prepared %s gave %q, want %q: %w", name, got, want, err)
		}
	}
	var temps int
	if err := p.conn.QueryRow(ctx, "SELECT count(*) FROM pg_class WHERE relname LIKE 'hunt_mine%' AND pg_table_is_visible(oid)").Scan(&temps); err != nil || temps != 0 {
		return fmt.Errorf("%d temporary tables of others: %w", temps, err)
	}
	return nil
}
