package chaos

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"
)

// The tests are named after the bugs of other cluster managers that they look for.

const shard = "sh1"

// failoverLimit is how long a failover may take before a test fails. What is promised is far less, and measured
// elsewhere: a busy machine must not fail a test of what is right.
const failoverLimit = 45 * time.Second

// insertsOf is a writing load: two clients of 50 inserts a second each, and one of every other kind.
func insertsOf(c *cluster) *clients {
	c.t.Helper()
	w := newClients(c, 20*time.Millisecond)
	w.run(2, 1, insert)
	w.run(2, 2, touch)
	w.progress(20, failoverLimit)
	return w
}

// H1: a primary's postmaster is killed while agents answer slowly. Another is promoted; nobody is initialised anew.
func TestH1NoInitdb(t *testing.T) {
	long(t)
	c := oneShard(t)
	w := insertsOf(c)
	c.freshAdmins()
	began, sysid := time.Now(), c.systemID()
	for _, n := range c.nodes {
		c.rpc(n).slow(300 * time.Millisecond)
	}
	old, term := c.leader(shard)
	c.killServer(old)
	_, term = c.laterLeader(shard, term, failoverLimit)
	t.Logf("term %d, outage %v", term, w.progress(20, failoverLimit))
	w.verify()
	for _, n := range c.nodes {
		c.rpc(n).heal()
	}
	c.mustBeWhole()
	if got := c.systemID(); got != sysid || c.countSince(began, "initialised") > 0 {
		t.Errorf("system %s became %s", sysid, got)
	}
	w.finish()
}

// H2: a primary freezes, and thaws under load when another leads. It acknowledges nothing then, and becomes a replica.
func TestH2Freeze(t *testing.T) {
	for name, freeze := range map[string]func(*cluster, *node){
		"all":        func(c *cluster, n *node) { c.freeze(n) },
		"postmaster": func(_ *cluster, n *node) { signalAll([]int{postmasterOf(n.data())}, unix.SIGSTOP) },
	} {
		t.Run(name, func(t *testing.T) {
			c := oneShard(t)
			w := insertsOf(c)
			old, term := c.leader(shard)
			d := c.direct(old)
			freeze(c, old)
			leader, term := c.laterLeader(shard, term, failoverLimit)
			t.Logf("%s leads in term %d, outage %v", leader.id, term, w.progress(20, failoverLimit))
			c.thaw(old)
			if err := d.write(1, time.Second); err == nil {
				t.Error("the thawed primary acknowledged a commit")
			}
			w.progress(50, failoverLimit)
			w.verify()
			c.mustBeWhole()
			w.finish()
		})
	}
}

// H7: a primary is cut from every other part while clients still reach it. It acknowledges nothing, whoever asks, and
// closes; another leads.
func TestH7Isolated(t *testing.T) {
	c := oneShard(t)
	w := insertsOf(c)
	old, term := c.leader(shard)
	d := c.direct(old)
	if err := d.write(1, 10*time.Second); err != nil {
		t.Fatal("before the cut:", err)
	}
	hangs := c.direct(old)
	c.isolate(old)
	answer := make(chan error, 1)
	go func() { answer <- hangs.write(2, failoverLimit) }() // waits through all that follows
	leader, term := c.laterLeader(shard, term, failoverLimit)
	if leader == old {
		t.Fatalf("%s leads on", old.id)
	}
	t.Logf("%s leads in term %d, outage %v", leader.id, term, w.progress(20, failoverLimit))
	if err := d.write(3, 2*time.Second); err == nil {
		t.Error("the isolated primary acknowledged a commit")
	}
	c.must(20*time.Second, "self-fencing of "+old.id, func() error {
		st, err := c.status(old) // past the link
		if err == nil && !st.SelfFenced {
			err = errors.New("not fenced")
		}
		return err
	})
	w.verify()
	c.rejoin(old)
	if err := <-answer; err == nil {
		t.Error("a commit that waited through the partition was acknowledged")
	}
	c.mustBeWhole()
	w.finish()
}

// H8: members fail and come back in an order in which the one that lacks commits is alone for a while. It waits.
func TestH8StaleAlone(t *testing.T) {
	long(t)
	c := oneShard(t)
	w := insertsOf(c)
	began := time.Now()
	a, term := c.leader(shard)
	b, stale := c.others(a)[0], c.others(a)[1]
	c.loseHost(stale)
	w.progress(20, failoverLimit) // acknowledged by b alone
	c.loseHost(a)
	c.loseHost(b)
	c.startAgent(stale)
	c.eventSince(began, "ShardStuck", failoverLimit)
	c.must(30*time.Second, "the stale member is up", func() error {
		st, err := c.status(stale)
		if err == nil && !st.Server.Up {
			err = errors.New(st.Server.Why)
		}
		return err
	})
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if st, err := c.status(stale); err == nil && st.Server.Primary {
			t.Fatalf("%s, which lacks commits, was promoted", stale.id)
		}
	}
	c.startAgent(b)
	leader, term := c.laterLeader(shard, term, failoverLimit)
	t.Logf("%s leads in term %d", leader.id, term)
	w.progress(20, failoverLimit)
	w.verify()
	c.startAgent(a)
	c.mustBeWhole()
	w.finish()
}

// H16: a commit's wait for its acknowledgement is cancelled. The client is told that the outcome is unknown, never that
// all went well.
func TestH16Cancelled(t *testing.T) {
	c := oneShard(t)
	w := newClients(c, 20*time.Millisecond)
	leader, term := c.leader(shard)
	ctx, cancel := context.WithTimeout(t.Context(), failoverLimit)
	defer cancel()
	conn, err := c.connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the test is over
	if _, err := conn.Exec(ctx, "SET statement_timeout = 500"); err != nil {
		t.Fatal(err)
	}
	c.cutWAL(leader)
	answer := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, "INSERT INTO past VALUES (-1)")
		answer <- err
	}()
	select {
	case err := <-answer:
		t.Fatal("answered with no acknowledger, by statement_timeout perhaps:", err)
	case <-time.After(time.Second):
	}
	if err := conn.PgConn().CancelRequest(ctx); err != nil {
		t.Fatal(err)
	}
	err = <-answer
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "08007" {
		t.Errorf("a cancelled wait gave %v, want 08007", err)
	}
	c.loseHost(leader)
	c.laterLeader(shard, term, failoverLimit)
	c.rejoin(leader)
	c.startAgent(leader)
	c.mustBeWhole()
	w.finish()
}

// Parts that clients don't need die: nobody notices.
func TestNoOutage(t *testing.T) {
	for name, do := range map[string]func(c *cluster, leader *node){
		"etcd killed": func(c *cluster, _ *node) {
			if err := c.etcd.end(syscall.SIGKILL); err != nil {
				c.t.Error(err)
			}
		},
		"etcd frozen": func(c *cluster, _ *node) {
			if err := c.etcd.signal(syscall.SIGSTOP); err != nil {
				c.t.Error(err)
			}
		},
		"admins killed": func(c *cluster, _ *node) {
			for _, a := range c.admins {
				if err := a.end(syscall.SIGKILL); err != nil {
					c.t.Error(err)
				}
			}
		},
		"agents killed": func(c *cluster, _ *node) {
			for _, n := range c.nodes {
				if err := n.agent.end(syscall.SIGKILL); err != nil {
					c.t.Error(err)
				}
			}
		},
		"the leader's agent killed": func(c *cluster, leader *node) {
			if err := leader.agent.end(syscall.SIGKILL); err != nil {
				c.t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := oneShard(t)
			w := insertsOf(c)
			leader, term := c.leader(shard)
			w.progress(20, failoverLimit)
			do(c, leader)
			away := outageOfEtcd()
			for end := time.Now().Add(away); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			}
			t.Logf("away for %v: longest time without an acknowledgement %v", away, w.progress(20, failoverLimit))
			if err := c.heal(90 * time.Second); err != nil {
				t.Fatal(err)
			}
			w.finish()
			if _, after := c.leader(shard); after != term {
				t.Errorf("term %d became %d", term, after)
			}
			if len(w.states) > 0 {
				t.Errorf("clients saw errors: %v", w.states)
			}
		})
	}
}

// outageOfEtcd is how long parts stay away: a minute, or little in a short run.
func outageOfEtcd() time.Duration {
	if testing.Short() {
		return 5 * time.Second
	}
	return time.Minute
}
