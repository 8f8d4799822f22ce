package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"neki/catalog"
)

// fault is something that goes wrong, until heal undoes it.
type fault struct {
	name string
	do   func(c *cluster, n *node, rng *rand.Rand)
}

// faults are drawn from; n is the node that is struck, the leader more often than not.
var faults = []fault{
	{"postmaster killed", func(_ *cluster, n *node, _ *rand.Rand) { signalAll(nonzero(postmasterOf(n.data())), unix.SIGKILL) }},
	{"postmaster killed", func(_ *cluster, n *node, _ *rand.Rand) { signalAll(nonzero(postmasterOf(n.data())), unix.SIGKILL) }},
	{"server killed", func(_ *cluster, n *node, _ *rand.Rand) { signalAll(serversIn(n.data()), unix.SIGKILL) }},
	{"host lost", func(c *cluster, n *node, _ *rand.Rand) { c.loseHost(n) }},
	{"host lost", func(c *cluster, n *node, _ *rand.Rand) { c.loseHost(n) }},
	{"server frozen", func(c *cluster, n *node, _ *rand.Rand) { c.freeze(n) }},
	{"postmaster frozen", func(_ *cluster, n *node, _ *rand.Rand) { signalAll(nonzero(postmasterOf(n.data())), unix.SIGSTOP) }},
	{"agent killed", func(_ *cluster, n *node, _ *rand.Rand) { _ = n.agent.end(syscall.SIGKILL) }},
	{"agent frozen", func(_ *cluster, n *node, _ *rand.Rand) { _ = n.agent.signal(syscall.SIGSTOP) }},
	{"host frozen", func(c *cluster, n *node, _ *rand.Rand) { _ = n.agent.signal(syscall.SIGSTOP); c.freeze(n) }},
	{"admin killed", func(c *cluster, _ *node, rng *rand.Rand) { _ = c.admins[rng.IntN(len(c.admins))].end(syscall.SIGKILL) }},
	{"admin frozen", func(c *cluster, _ *node, rng *rand.Rand) {
		_ = c.admins[rng.IntN(len(c.admins))].signal(syscall.SIGSTOP)
	}},
	{"etcd killed", func(c *cluster, _ *node, _ *rand.Rand) { _ = c.etcd.end(syscall.SIGKILL) }},
	{"etcd frozen", func(c *cluster, _ *node, _ *rand.Rand) { _ = c.etcd.signal(syscall.SIGSTOP) }},
	{"isolated", func(c *cluster, n *node, _ *rand.Rand) { c.isolate(n) }},
	{"isolated", func(c *cluster, n *node, _ *rand.Rand) { c.isolate(n) }},
	{"link to the agent", func(c *cluster, n *node, rng *rand.Rand) { harm(c.rpc(n), rng) }},
	{"links of replication", func(c *cluster, n *node, rng *rand.Rand) {
		for _, o := range c.others(n) {
			if rng.IntN(3) > 0 {
				harm(c.wal(n, o), rng)
			}
			if rng.IntN(3) > 0 {
				harm(c.wal(o, n), rng)
			}
		}
	}},
	{"link to etcd", func(c *cluster, n *node, rng *rand.Rand) { harm(c.etcdOf(n.id), rng) }},
	{"link of an admin to etcd", func(c *cluster, _ *node, rng *rand.Rand) {
		harm(c.etcdOf(c.admins[rng.IntN(len(c.admins))].name), rng)
	}},
	{"link of the gateway to etcd", func(c *cluster, _ *node, rng *rand.Rand) { harm(c.etcdOf(gatewayName), rng) }},
	{"replay paused", func(c *cluster, n *node, _ *rand.Rand) {
		for _, o := range c.others(n) {
			c.try(o, "SELECT pg_wal_replay_pause()")
			c.paused = append(c.paused, o)
		}
	}},
	{"archive hangs", func(c *cluster, n *node, _ *rand.Rand) { c.hangArchive(n) }},
	{"log of a replica lost", func(c *cluster, n *node, _ *rand.Rand) { c.loseLog(n) }},
	{"diverged", func(c *cluster, n *node, _ *rand.Rand) {
		c.cutWAL(n)
		c.try(n, "SET statement_timeout = 100; BEGIN; CREATE TEMP TABLE x ON COMMIT DROP AS SELECT FROM generate_series(1, 1000); "+
			"SELECT pg_logical_emit_message(false, 'chaos', repeat('x', 100000)); ROLLBACK")
		signalAll(nonzero(postmasterOf(n.data())), unix.SIGKILL)
	}},
	{"switchover", func(c *cluster, n *node, _ *rand.Rand) { c.order(n.shard, catalog.OpSwitchover) }},
	{"failover", func(c *cluster, n *node, _ *rand.Rand) { c.order(n.shard, catalog.OpFailover) }},
}

func nonzero(pid int) []int {
	if pid == 0 {
		return nil
	}
	return []int{pid}
}

// harm does one of what links can suffer.
func harm(k *link, rng *rand.Rand) {
	switch rng.IntN(6) {
	case 0:
		k.hold(there, back)
	case 1:
		k.hold(there)
	case 2:
		k.hold(back)
	case 3:
		k.slow(time.Duration(20+rng.IntN(300)) * time.Millisecond)
	case 4:
		k.refuse()
	case 5:
		k.reset()
	}
}

// try runs a statement on an instance that may not answer.
func (c *cluster) try(n *node, text string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if conn, err := n.connect(ctx); err == nil {
		_, _ = conn.Exec(ctx, text)
		_ = conn.Close(ctx)
	}
}

// order asks for an operation, as CALL neki.switchover does.
func (c *cluster) order(shard, kind string) {
	r, err := c.rule(shard)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	o := catalog.Operation{ID: fmt.Sprint("chaos", time.Now().UnixNano()), Kind: kind, FromTerm: r.Term, Timeout: 20 * time.Second}
	_, _ = catalog.PutOperation(ctx, c.store, clusterName, shard, o) // another one may be under way
}

// victim draws a node: the leader in two of three cases.
func (c *cluster) victim(rng *rand.Rand) *node {
	shard := c.shards[rng.IntN(len(c.shards))]
	list := c.membersOf(shard)
	n := list[rng.IntN(len(list))]
	if r, err := c.rule(shard); err == nil && r.Leader != "" && rng.IntN(3) > 0 {
		n = c.node(r.Leader)
	}
	return n
}

// torture lets faults happen for a while. After each it heals, waits until clients get on, and looks for lost rows.
func torture(c *cluster, w *clients, seed uint64, length time.Duration) {
	c.t.Helper()
	rng := rand.New(rand.NewPCG(seed, 0))
	counts, rounds, worst := map[string]int{}, 0, time.Duration(0)
	began := time.Now()
	for time.Since(began) < length && !c.t.Failed() {
		for range 1 + rng.IntN(3)/2 {
			f, n := faults[rng.IntN(len(faults))], c.victim(rng)
			c.t.Logf("%6.1fs %s: %s", time.Since(began).Seconds(), n.id, f.name)
			f.do(c, n, rng)
			counts[f.name]++
			pause(time.Duration(rng.IntN(1000)) * time.Millisecond)
		}
		pause(time.Duration(rng.IntN(3000)) * time.Millisecond)
		c.restore()
		worst = max(worst, w.progress(10, 90*time.Second))
		w.verify()
		rounds++
	}
	c.t.Logf("seed %d: %d rounds in %v, %v; longest time without an acknowledgement %v", seed, rounds, time.Since(began).Round(time.Second),
		counts, worst.Round(time.Millisecond))
}

func pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	<-t.C
}

// restore undoes faults, without waiting for what comes of it.
func (c *cluster) restore() {
	c.t.Helper()
	if err := c.undo(); err != nil {
		c.t.Fatal(err)
	}
}

// setting reads a number from the environment.
func setting(t testing.TB, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestTorture breaks everything at random: NEKI_CHAOS_SEED, NEKI_CHAOS_SECONDS, NEKI_CHAOS_SHARDS. Of several shards each has some
// of the acknowledged rows and registers; lists and accounts are on one each, as their transactions are judged by what one
// server promises. Only a cluster of several keeps backups, and can lose the log of a replica.
func TestTorture(t *testing.T) {
	seconds := uint64(120)
	if testing.Short() {
		seconds = 20
	}
	seed := setting(t, "NEKI_CHAOS_SEED", uint64(time.Now().UnixNano()))
	t.Logf("NEKI_CHAOS_SEED=%d", seed)
	var c *cluster
	if shards := setting(t, "NEKI_CHAOS_SHARDS", 1); shards == 1 {
		c = oneShard(t)
	} else {
		c = newClusterWith(t, int(shards), true)
		t.Cleanup(func() {
			if t.Failed() {
				c.dump()
			}
			if err := c.end(); err != nil {
				t.Error(err)
			}
		})
	}
	c.sample()
	w := newClients(c, 20*time.Millisecond)
	w.run(2*len(c.shards), seed, insert)
	w.run(3, seed+1, touch)
	w.run(3, seed+2, appendLists)
	w.run(2, seed+3, bank)
	before := c.terms()
	torture(c, w, seed, time.Duration(setting(t, "NEKI_CHAOS_SECONDS", seconds))*time.Second)
	c.mustBeWhole()
	t.Logf("%d terms", c.terms()-before)
	w.finish()
}

// terms is the sum of the shards' terms.
func (c *cluster) terms() (sum int64) {
	for _, s := range c.shards {
		_, term := c.leader(s)
		sum += term
	}
	return sum
}
