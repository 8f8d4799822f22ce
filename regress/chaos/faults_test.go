package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"neki/catalog"
	"neki/cluster/agent"
	"neki/cluster/decide"
)

// killServer kills a postmaster; its children end when they notice.
func (c *cluster) killServer(n *node) {
	c.t.Helper()
	pid := postmasterOf(n.data())
	if pid == 0 {
		c.t.Fatalf("%s: no postmaster runs", n.id)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
}

// loseHost kills the agent and every process of the server at once.
func (c *cluster) loseHost(n *node) {
	c.t.Helper()
	if err := n.agent.end(syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
	c.must(20*time.Second, "end of the servers of "+n.id, func() error {
		pids := serversIn(n.data())
		if len(pids) == 0 {
			return nil
		}
		signalAll(pids, unix.SIGKILL)
		return fmt.Errorf("%v run", pids)
	})
}

func (c *cluster) startAgent(n *node) {
	c.t.Helper()
	if err := c.starter.start(n.agent); err != nil {
		c.t.Fatal(err)
	}
}

// freeze stops every process of a server.
func (c *cluster) freeze(n *node) { signalAll(serversIn(n.data()), unix.SIGSTOP) }

func (c *cluster) thaw(n *node) { signalAll(serversIn(n.data()), unix.SIGCONT) }

// cutWAL holds replication up between a node and all others, whoever sends.
func (c *cluster) cutWAL(n *node) {
	for _, o := range c.others(n) {
		c.wal(o, n).hold(there, back)
		c.wal(n, o).hold(there, back)
	}
}

// isolate cuts a node from all other parts of the cluster. Clients still reach it, the gateway among them.
func (c *cluster) isolate(n *node) {
	c.cutWAL(n)
	c.rpc(n).hold(there, back)
	c.etcdOf(n.id).hold(there, back)
}

func (c *cluster) rejoin(n *node) {
	for _, o := range c.others(n) {
		c.wal(o, n).heal()
		c.wal(n, o).heal()
	}
	c.rpc(n).heal()
	c.etcdOf(n.id).heal()
}

// freshAdmins replaces the admins, which prefer to start a primary again where it was when they have seen others die lately.
func (c *cluster) freshAdmins() {
	c.t.Helper()
	began := time.Now()
	for _, a := range c.admins {
		if err := a.end(syscall.SIGTERM); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, a := range c.admins {
		if err := c.starter.start(a); err != nil {
			c.t.Fatal(err)
		}
	}
	c.eventSince(began, "leads from now on", failoverLimit)
	c.mustBeWhole()
}

// laterLeader waits for an active leader of a later term, and gives both.
func (c *cluster) laterLeader(shard string, after int64, limit time.Duration) (*node, int64) {
	c.t.Helper()
	var r catalog.Rule
	c.must(limit, fmt.Sprintf("active leader after term %d", after), func() error {
		var err error
		if r, err = c.rule(shard); err != nil {
			return err
		}
		if r.Term <= after || r.Phase != decide.PhaseActive {
			return fmt.Errorf("the rule is %d.%d %s, of %q", r.Term, r.Sub, r.Phase, r.Leader)
		}
		return nil
	})
	return c.node(r.Leader), r.Term
}

// mustBeWhole waits until nothing is missing any more.
func (c *cluster) mustBeWhole() {
	c.t.Helper()
	c.must(90*time.Second, "whole cluster", c.whole)
}

// direct is a superuser's session on an instance, past the gateway and past everything that closes it to clients.
type direct struct {
	conn   *pgx.Conn
	warned atomic.Bool // the wait for the acknowledgement was cut short
}

func (c *cluster) direct(n *node) *direct {
	c.t.Helper()
	cfg, err := pgx.ParseConfig(n.socketDSN("postgres"))
	if err != nil {
		c.t.Fatal(err)
	}
	d := &direct{}
	cfg.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) {
		if notice.Routine == "SyncRepWaitForLSN" {
			d.warned.Store(true)
		}
	}
	if d.conn, err = pgx.ConnectConfig(context.Background(), cfg); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = d.conn.Close(ctx)
	})
	return d
}

var errNotAcknowledged = errors.New("the commit was not acknowledged")

// write commits a row; nil says that it was acknowledged.
func (d *direct) write(key int64, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, err := d.conn.Exec(ctx, "INSERT INTO past VALUES ($1)", key)
	if err == nil && d.warned.Load() {
		err = errNotAcknowledged
	}
	return err
}

// status asks an agent.
func (c *cluster) status(n *node) (agent.Status, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return n.client.Status(ctx)
}

// eventSince waits for an event whose kind or text contains a word, recorded after a time.
func (c *cluster) eventSince(began time.Time, word string, limit time.Duration) catalog.Event {
	c.t.Helper()
	var found catalog.Event
	c.must(limit, "event with "+word, func() error {
		for _, e := range c.events(100) {
			if e.At.After(began) && (e.Kind == word || strings.Contains(e.Detail, word)) {
				found = e
				return nil
			}
		}
		return errors.New("not recorded")
	})
	return found
}

// systemID is what every member must keep for ever.
func (c *cluster) systemID() string {
	c.t.Helper()
	r, err := c.rule(c.shards[0])
	if err != nil {
		c.t.Fatal(err)
	}
	return r.SystemID
}

// countSince tells how often something happened after a time.
func (c *cluster) countSince(began time.Time, kind string) (n int) {
	for _, e := range c.events(200) {
		if e.At.After(began) && e.Kind == kind {
			n++
		}
	}
	return n
}
