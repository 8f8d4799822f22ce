package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"neki/catalog"
	"neki/regress/chaos/check"
)

// sampler looks again and again at whom primaries wait for, and compares it with what etcd says.
type sampler struct {
	c       *cluster
	stop    context.CancelFunc
	all     sync.WaitGroup
	mu      sync.Mutex
	samples []check.Demand
}

const sampleEvery = 100 * time.Millisecond

// sample begins to look at every node; the test's end stops it and checks what was seen.
func (c *cluster) sample() {
	ctx, stop := context.WithCancel(context.Background())
	s := &sampler{c: c, stop: stop}
	for _, n := range c.nodes {
		s.all.Go(func() {
			for ctx.Err() == nil {
				if d, err := s.look(ctx, n); err == nil {
					s.mu.Lock()
					s.samples = append(s.samples, d)
					s.mu.Unlock()
				}
				t := time.NewTimer(sampleEvery)
				select {
				case <-ctx.Done():
				case <-t.C:
				}
				t.Stop()
			}
		})
	}
	t := c.t
	t.Cleanup(func() {
		stop()
		s.all.Wait()
		report(t, check.Demands(s.samples))
		t.Logf("%d samples of who acknowledges", len(s.samples))
		if len(s.samples) == 0 {
			t.Error("no sample")
		}
		for _, sh := range c.shards {
			rows, err := c.history(sh)
			rule, err2 := c.rule(sh)
			if err := errors.Join(err, err2); err != nil {
				t.Error(err)
			}
			report(t, check.History(rows, rule))
		}
	})
}

var errNoPrimary = errors.New("not a primary")

// look takes one sample of one node. That a walsender has the new names shows by its sync_priority.
func (s *sampler) look(ctx context.Context, n *node) (check.Demand, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	d := check.Demand{Node: n.id}
	var err error
	if d.Before, err = s.c.rule(n.shard); err != nil {
		return d, err
	}
	st, err := n.client.Status(ctx)
	if err != nil {
		return d, err
	}
	if !st.Server.Primary {
		return d, errNoPrimary
	}
	d.OwnTerm = st.Promises.OwnTerm
	conn, err := n.connect(ctx)
	if err != nil {
		return d, err
	}
	defer conn.Close(ctx) //nolint:errcheck // the queries' errors count
	var names string
	if err := conn.QueryRow(ctx, "SHOW synchronous_standby_names").Scan(&names); err != nil {
		return d, err
	}
	d.None = names == ""
	if _, err := fmt.Sscanf(names, "ANY %d", &d.Acks); err != nil && !d.None {
		return d, err
	}
	rows, err := conn.Query(ctx, "SELECT application_name FROM pg_stat_replication WHERE sync_priority > 0")
	if err != nil {
		return d, err
	}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return d, err
		}
		d.Names = append(d.Names, name)
	}
	if err := rows.Err(); err != nil {
		return d, err
	}
	d.After, err = s.c.rule(n.shard)
	return d, err
}

// history reads the records of a shard's terms.
func (c *cluster) history(shard string) ([]catalog.History, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	one := catalog.HistoryKey(clusterName, shard, 0)
	entries, _, err := c.store.List(ctx, one[:strings.LastIndexByte(one, '/')+1])
	if err != nil {
		return nil, err
	}
	rows := make([]catalog.History, len(entries))
	for i, e := range entries {
		if err := json.Unmarshal(e.Value, &rows[i]); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// H3: a replica's link flaps while the primary is killed. etcd knows each acknowledger before Postgres does, and drops it
// after Postgres did.
func TestH3FlappingAcknowledger(t *testing.T) {
	long(t)
	c := oneShard(t)
	c.sample()
	w := insertsOf(c)
	leader, term := c.leader(shard)
	flaps := c.others(leader)[0]
	links := []*link{c.wal(flaps, leader), c.wal(flaps, c.others(leader)[1])}
	for i := range 6 {
		for _, k := range links {
			if i%2 == 0 {
				k.refuse()
			} else {
				k.heal()
			}
		}
		w.progress(10, failoverLimit)
		if i == 3 {
			c.loseHost(leader)
			_, term = c.laterLeader(shard, term, failoverLimit)
		}
	}
	c.startAgent(leader)
	w.progress(20, failoverLimit)
	c.mustBeWhole()
	w.finish()
}

// H4: all replicas are cut off. Commits wait, and go on when one is back; they never become asynchronous.
func TestH4NobodyAcknowledges(t *testing.T) {
	long(t)
	c := oneShard(t)
	c.sample()
	w := insertsOf(c)
	leader, _ := c.leader(shard)
	d := c.direct(leader)
	if err := d.write(1, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	for _, o := range c.others(leader) {
		c.wal(o, leader).refuse()
	}
	began := time.Now()
	c.eventSince(began, "LeaderCannotReplicate", failoverLimit)
	w.mu.Lock()
	before := w.acked
	w.mu.Unlock()
	if err := d.write(2, 8*time.Second); err == nil { // longer than an acknowledger may be missing
		t.Error("a commit was acknowledged without a replica")
	}
	w.mu.Lock()
	after := w.acked
	w.mu.Unlock()
	if after > before {
		t.Errorf("%d inserts were acknowledged without a replica", after-before)
	}
	c.wal(c.others(leader)[0], leader).heal()
	t.Logf("outage %v", w.progress(20, failoverLimit))
	c.wal(c.others(leader)[1], leader).heal()
	c.mustBeWhole()
	w.finish()
}

// H5: an old primary, rewound, has not caught up when the next one dies, again and again. It counts for nothing before it
// has what it had.
func TestH5RewoundAndAlone(t *testing.T) {
	long(t)
	c := oneShard(t)
	c.sample()
	w := insertsOf(c)
	for round := range rounds(3) {
		old, term := c.leader(shard)
		c.diverge(old)
		c.loseHost(old)
		next, term := c.laterLeader(shard, term, failoverLimit)
		c.rejoin(old)
		w.progress(10, failoverLimit)
		c.startAgent(old)
		c.must(failoverLimit, "rewind of "+old.id, func() error {
			st, err := c.status(old)
			if err == nil && st.Promises.RecruitFloor == nil {
				err = errors.New("no floor yet")
			}
			return err
		})
		c.loseHost(next) // the rewound one may not have streamed yet
		w.progress(10, failoverLimit)
		_, term = c.laterLeader(shard, term, failoverLimit)
		t.Logf("round %d: term %d", round, term)
		w.verify()
		c.startAgent(next)
		c.mustBeWhole()
	}
	w.finish()
}

func rounds(n int) int {
	if testing.Short() {
		return 1
	}
	return n
}

// diverge has a primary write what nobody else has: its replicas are cut, and a commit of some size waits for them.
func (c *cluster) diverge(n *node) {
	c.t.Helper()
	d := c.direct(n)
	c.cutWAL(n)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := d.conn.Exec(ctx, "INSERT INTO past SELECT -g FROM generate_series(1, 20000) g WHERE NOT EXISTS (SELECT FROM past WHERE id < 0)")
	if err == nil {
		c.t.Error("a commit was acknowledged by nobody")
	}
}

// H18, and half of H8: a replica has silently stopped following. That is said, it acknowledges nothing, and it is not
// promoted when the primary dies.
func TestH18StaleReplica(t *testing.T) {
	long(t)
	c := oneShard(t)
	c.sample()
	w := insertsOf(c)
	began := time.Now()
	leader, term := c.leader(shard)
	stale := c.others(leader)[0]
	for _, o := range c.others(stale) {
		c.wal(stale, o).refuse()
	}
	e := c.eventSince(began, stale.id, 15*time.Second)
	t.Logf("after %v: %s", e.At.Sub(began).Round(time.Millisecond), e.Detail)
	c.must(failoverLimit, "the stale replica is no acknowledger", func() error {
		r, err := c.rule(shard)
		if err == nil && slices.Contains(r.Cohort, stale.id) {
			err = fmt.Errorf("cohort %v", r.Cohort)
		}
		return err
	})
	w.progress(20, failoverLimit)
	c.loseHost(leader)
	// The other one alone has every commit, and is promoted; commits wait until somebody acknowledges.
	c.must(failoverLimit, "promotion of the fresh replica", func() error {
		r, err := c.rule(shard)
		if err == nil && (r.Term <= term || r.Leader == "") {
			err = fmt.Errorf("term %d of %q", r.Term, r.Leader)
		}
		if err == nil && r.Leader == stale.id {
			t.Fatal("the stale replica was promoted")
		}
		return err
	})
	for _, o := range c.others(stale) {
		c.wal(stale, o).heal()
	}
	c.laterLeader(shard, term, failoverLimit)
	w.progress(20, failoverLimit)
	w.verify()
	c.startAgent(leader)
	c.mustBeWhole()
	w.finish()
}

// H22: the primary and a replica die. What is left can't be sure of every commit, says so, and goes on as soon as one is
// back; nobody is told to follow itself.
func TestH22TwoOfThree(t *testing.T) {
	long(t)
	c := oneShard(t)
	c.sample()
	w := insertsOf(c)
	began := time.Now()
	leader, term := c.leader(shard)
	other, left := c.others(leader)[0], c.others(leader)[1]
	c.loseHost(leader)
	c.loseHost(other)
	e := c.eventSince(began, "ShardStuck", failoverLimit)
	if !strings.Contains(e.Detail, "too few") {
		t.Errorf("it says %q", e.Detail)
	}
	if st, err := c.status(left); err == nil && st.Member.Source != nil && st.Member.Source.Node == left.id {
		t.Errorf("%s follows itself", left.id)
	}
	c.startAgent(other)
	c.laterLeader(shard, term, failoverLimit)
	w.progress(20, failoverLimit)
	w.verify()
	c.startAgent(leader)
	c.mustBeWhole()
	w.finish()
}
