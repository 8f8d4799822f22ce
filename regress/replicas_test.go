package regress

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// What the tests about lag shorten the gateway's tiers to.
const (
	lagMin = time.Second
	lagMax = 3 * time.Second
)

// instance is one Postgres of the shard that holds the data, reached past the gateway.
type instance struct {
	node string
	port int
	conn *pgx.Conn
}

// replicasOf connects to the replicas of the authoritative shard directly, as the superuser.
func replicasOf(t *testing.T, c *devCluster) []instance {
	t.Helper()
	conn := c.mustConnect(t)
	rows, err := conn.Query(t.Context(), `SELECT n.node, n.host, n.port FROM neki.nodes n JOIN neki.shards s ON s.shard = n.shard
		WHERE s.authoritative AND n.role = 'replica' ORDER BY n.node`)
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Node, Host string
		Port       int
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil || len(found) < 2 {
		t.Fatalf("replicas: %v, %v", found, err)
	}
	var all []instance
	for _, r := range found {
		direct := c.mustConnect(t, "host="+r.Host, "port="+strconv.Itoa(r.Port), "sslmode=prefer")
		if !mustQuery[bool](t, direct, "SELECT pg_is_in_recovery()") {
			t.Fatalf("%s is not a replica", r.Node)
		}
		all = append(all, instance{r.Node, r.Port, direct})
	}
	return all
}

func (i instance) pause(t *testing.T) {
	t.Helper()
	mustExec(t, i.conn, "SELECT pg_wal_replay_pause()")
	t.Cleanup(func() { _, _ = i.conn.Exec(context.Background(), "SELECT pg_wal_replay_resume()") })
}

// shortTiers sets the thresholds of lag for one test, and waits at its end until every replica is preferred again.
func shortTiers(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	set := func(ctx context.Context, name, value string) {
		if _, err := conn.Exec(ctx, "CALL neki.set_parameter(scope => 'gateway', name => '"+name+"', value => '"+value+"')"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	set(t.Context(), "replication-lag-tolerable-min", lagMin.String())
	set(t.Context(), "replication-lag-tolerable-max", lagMax.String())
	t.Cleanup(func() {
		set(context.Background(), "replication-lag-tolerable-max", "15min")
		set(context.Background(), "replication-lag-tolerable-min", "30s")
	})
	waitEligible(t, conn)
}

// waitEligible is called in cleanups too, when the test's own context has ended.
func waitEligible(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	waitFor(t, "every replica is eligible", func() bool {
		var all bool
		err := conn.QueryRow(ctx, "SELECT bool_and(eligible AND tier = 'preferred') FROM neki.replicas").Scan(&all)
		if err != nil {
			t.Fatal(err)
		}
		return all
	})
}

// writeAlways commits small writes until the test ends, so that lag grows where replay stands still.
func writeAlways(t *testing.T, c *devCluster) {
	t.Helper()
	conn := c.mustConnect(t)
	mustExec(t, conn, "CREATE TABLE IF NOT EXISTS regress_heartbeat (n int)")
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			_, _ = conn.Exec(ctx, "INSERT INTO regress_heartbeat VALUES (1)")
			time.Sleep(20 * time.Millisecond)
		}
	})
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
}

// lagAbove waits until neki shows more lag of a node than this.
func lagAbove(t *testing.T, conn *pgx.Conn, node string, lag time.Duration) {
	t.Helper()
	waitFor(t, node+" lags", func() bool {
		return mustQuery[bool](t, conn, "SELECT coalesce(lag > $2::interval, false) FROM neki.replicas WHERE node = $1",
			node, lag.String())
	})
}

// servedBy reads n times and gives the ports that answered.
func servedBy(t *testing.T, conn *pgx.Conn, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		port := mustQuery[int](t, conn, "SELECT inet_server_port()")
		if !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	slices.Sort(ports)
	return ports
}

// refused checks that a read finds no replica and that the reasons name each one; it never reaches the primary.
func refused(t *testing.T, conn *pgx.Conn, replicas []instance) {
	t.Helper()
	_, err := conn.Exec(t.Context(), "SELECT inet_server_port()")
	e := wantState(t, err, "NK001")
	for _, r := range replicas {
		if !strings.Contains(e.Detail, r.node) {
			t.Errorf("no reason for %s: %s", r.node, e.Detail)
		}
	}
}

func TestReplicaTiers(t *testing.T) {
	c := cluster(t)
	replicas := replicasOf(t, c)
	control := c.mustConnect(t)
	shortTiers(t, control)
	writeAlways(t, c)
	const anywhere = "__neki.replica_locality=off"
	prefer := c.mustConnect(t, "__neki.target=replica", anywhere)
	require := c.mustConnect(t, "__neki.target=replica", anywhere, "__neki.replica_recency=require")
	off := c.mustConnect(t, "__neki.target=replica", anywhere, "__neki.replica_recency=off")

	if got := servedBy(t, prefer, 200); len(got) != len(replicas) {
		t.Errorf("reads went to %v, want every one of %d replicas", got, len(replicas))
	}

	// The last one stays near; all others fall out of the first tier.
	near := replicas[len(replicas)-1]
	for _, r := range replicas[:len(replicas)-1] {
		r.pause(t)
		lagAbove(t, control, r.node, lagMin)
	}
	for name, conn := range map[string]*pgx.Conn{"prefer": prefer, "require": require} {
		if got := servedBy(t, conn, 50); !slices.Equal(got, []int{near.port}) {
			t.Errorf("%s: reads went to %v, want %d alone", name, got, near.port)
		}
	}
	for _, r := range replicas[:len(replicas)-1] {
		lagAbove(t, control, r.node, lagMax)
	}
	if got := servedBy(t, off, 50); !slices.Equal(got, []int{near.port}) {
		t.Errorf("off: reads went to %v beyond the maximum", got)
	}

	// The last one falls to the second tier, then out of it.
	near.pause(t)
	lagAbove(t, control, near.node, lagMin)
	refused(t, require, replicas)
	lagAbove(t, control, near.node, lagMax)
	for _, conn := range []*pgx.Conn{prefer, require, off} {
		refused(t, conn, replicas)
	}
	if mustQuery[bool](t, control, "SELECT bool_or(eligible) FROM neki.replicas WHERE node = $1", near.node) {
		t.Error("neki.replicas calls it eligible")
	}
	for _, r := range replicas {
		mustExec(t, r.conn, "SELECT pg_wal_replay_resume()")
	}
	waitEligible(t, control)
	servedBy(t, prefer, 10)
}

func TestStoppedReceiverMakesLagUnknown(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("stops a process of another user: needs root")
	}
	c := cluster(t)
	replicas := replicasOf(t, c)
	control := c.mustConnect(t)
	waitEligible(t, control)
	stopped, others := replicas[0], replicas[1:]
	receiver := mustQuery[int](t, stopped.conn, "SELECT pid FROM pg_stat_wal_receiver")
	if err := syscall.Kill(receiver, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(receiver, syscall.SIGCONT)
		waitEligible(t, control)
	})
	begin := time.Now()
	waitFor(t, "lag is unknown", func() bool {
		return mustQuery[bool](t, control, "SELECT lag IS NULL AND NOT eligible AND reason IS NOT NULL FROM neki.replicas WHERE node = $1", stopped.node)
	})
	if took := time.Since(begin); took > 8*time.Second {
		t.Errorf("lag became unknown after %s", took)
	}
	reader := c.mustConnect(t, "__neki.target=replica")
	if got := servedBy(t, reader, 50); slices.Contains(got, stopped.port) || len(got) > len(others) {
		t.Errorf("reads went to %v, the receiver of %d is stopped", got, stopped.port)
	}
}

func TestAffinityMovesWhenItsReplicaGoes(t *testing.T) {
	c := cluster(t)
	replicas := replicasOf(t, c)
	control := c.mustConnect(t)
	shortTiers(t, control)
	writeAlways(t, c)
	conn := c.mustConnect(t, "__neki.target=replica", "__neki.replica_affinity=session", "__neki.replica_locality=off")
	home := servedBy(t, conn, 50)
	if len(home) != 1 {
		t.Fatalf("with affinity reads went to %v", home)
	}
	at := slices.IndexFunc(replicas, func(r instance) bool { return r.port == home[0] })
	if at < 0 {
		t.Fatalf("served by port %d, which is no replica", home[0])
	}
	replicas[at].pause(t)
	lagAbove(t, control, replicas[at].node, lagMax)
	moved := servedBy(t, conn, 50)
	if len(moved) != 1 || moved[0] == home[0] {
		t.Errorf("reads went to %v after %d fell behind", moved, home[0])
	}
	mustExec(t, replicas[at].conn, "SELECT pg_wal_replay_resume()")
	waitEligible(t, control)
}

// TestReadYourWrites writes and then reads on a replica, ten thousand times, while replay is delayed.
func TestReadYourWrites(t *testing.T) {
	pairs, sessions := 10_000, 16
	if testing.Short() {
		pairs = 500
	}
	c := cluster(t)
	control := c.mustConnect(t)
	waitEligible(t, control)
	for _, r := range replicasOf(t, c) {
		mustExec(t, r.conn, "ALTER SYSTEM SET recovery_min_apply_delay = '15ms'")
		mustExec(t, r.conn, "SELECT pg_reload_conf()")
		t.Cleanup(func() {
			_, _ = r.conn.Exec(context.Background(), "ALTER SYSTEM RESET recovery_min_apply_delay")
			_, _ = r.conn.Exec(context.Background(), "SELECT pg_reload_conf()")
		})
	}
	mustExec(t, control, "DROP TABLE IF EXISTS regress_ryw")
	mustExec(t, control, "CREATE TABLE regress_ryw (id int PRIMARY KEY)")
	var missed, onPrimary atomic.Int64
	var workers sync.WaitGroup
	errs := make(chan error, sessions)
	for w := range sessions {
		conn := c.mustConnect(t, "__neki.target=auto", "__neki.replica_consistency=session", "__neki.replica_wait=10s")
		workers.Go(func() {
			for id := w; id < pairs; id += sessions {
				if _, err := conn.Exec(t.Context(), "INSERT INTO regress_ryw VALUES ($1)", id); err != nil {
					errs <- fmt.Errorf("insert %d: %w", id, err)
					return
				}
				var found int
				var replica bool
				err := conn.QueryRow(t.Context(), "SELECT count(*), pg_is_in_recovery() FROM regress_ryw WHERE id = $1", id).Scan(&found, &replica)
				if err != nil {
					errs <- fmt.Errorf("read %d: %w", id, err)
					return
				}
				if found != 1 {
					missed.Add(1)
				}
				if !replica {
					onPrimary.Add(1)
				}
			}
		})
	}
	workers.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if missed.Load() > 0 || onPrimary.Load() > 0 {
		t.Errorf("of %d pairs %d missed their write, %d were read on the primary", pairs, missed.Load(), onPrimary.Load())
	}
	mustExec(t, control, "DROP TABLE regress_ryw")
}

// TestNekiAnswersWithoutPostgres freezes every Postgres of the cluster and asks how they are.
func TestNekiAnswersWithoutPostgres(t *testing.T) {
	c := cluster(t)
	if c.dir == "" || os.Getuid() != 0 {
		t.Skip("freezes every Postgres: needs root and a cluster of its own")
	}
	conn := c.mustConnect(t)
	waitEligible(t, conn)
	frozen := postgresBelow(c.dir)
	if len(frozen) == 0 {
		t.Fatal("found no Postgres")
	}
	thaw := func() {
		for _, pid := range frozen {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
	t.Cleanup(func() {
		thaw()
		waitEligible(t, conn)
	})
	for _, pid := range frozen {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}
	noticed, fastest := false, time.Hour
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && !noticed; time.Sleep(200 * time.Millisecond) {
		begin := time.Now()
		rows, err := conn.Query(t.Context(), "SELECT node, state, reason FROM neki.replicas ORDER BY 1")
		if err != nil {
			t.Fatal(err)
		}
		type row struct {
			Node, State string
			Reason      *string
		}
		got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
		if err != nil || len(got) == 0 {
			t.Fatalf("%v, %v", got, err)
		}
		fastest = min(fastest, time.Since(begin))
		noticed = !slices.ContainsFunc(got, func(r row) bool { return r.Reason == nil })
	}
	if fastest > 100*time.Millisecond { // others may want the machine, but not each time
		t.Errorf("the fastest answer took %s", fastest)
	}
	if !noticed {
		t.Error("after 10 s it still calls some replica well")
	}
}

// postgresBelow gives every process whose working directory is below dir: postmasters and their children.
func postgresBelow(dir string) []int {
	var pids []int
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		cwd, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(cwd, dir+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
