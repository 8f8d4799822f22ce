package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"neki/catalog"
	"neki/catalog/etcdstore"
	"neki/cluster/agent"
	"neki/cluster/decide"
	"neki/internal/testpg"
)

// What every cluster of the tests has.
const (
	clusterName = "chaos"
	superuser   = "boss"
	password    = "secret"
	rpcToken    = "token of the tests"
	members     = 3 // of a shard
	gatewayName = "gw1"
)

// cluster is a whole cluster of processes.
type cluster struct {
	t       testing.TB // the test that uses it now
	dir     string
	bin     string
	began   time.Time // the clock of histories
	starter *starter
	etcd    *program
	admins  []*program
	gateway *program
	port    int // of the gateway
	shards  []string
	nodes   []*node
	links   map[string]*link
	store   *etcdstore.Store
	http    *http.Client
	wrapped string // directory of the real server programs
	disks   []func() error
	archive string            // directory of backups and WAL; "" = none are kept
	paused  []*node           // whose replay was paused
	hung    map[string]func() // whose archive hangs, and how to end that
}

// disk makes the place of a node, and gives how to remove it.
type disk func(n *node) (undo func() error, err error)

// node is an instance with its agent.
type node struct {
	id, shard string
	n         int // from 1, over all shards
	agent     *program
	port      int
	rpc       int
	dir       string
	client    *agent.Client // past the links
}

func (n *node) data() string { return filepath.Join(n.dir, "data") }

func (n *node) socketDSN(user string) string {
	return fmt.Sprintf("host=%s port=%d user=%s dbname=postgres connect_timeout=5", filepath.Join(n.dir, "run"), n.port, user)
}

// root is where clusters live: in memory when there is enough, for a test is not about the disk.
func root() string {
	if dir := os.Getenv("NEKI_CHAOS_DIR"); dir != "" {
		return dir
	}
	const enough = 6 << 30
	var st unix.Statfs_t
	if unix.Statfs("/dev/shm", &st) == nil && st.Bavail*uint64(st.Bsize) > enough {
		return "/dev/shm"
	}
	return os.TempDir()
}

// newCluster starts a cluster and waits until it is whole.
func newCluster(t testing.TB, shards int, disks ...disk) *cluster {
	t.Helper()
	return newClusterWith(t, shards, false, disks...)
}

// newClusterWith starts one that keeps backups and WAL, or does not.
func newClusterWith(t testing.TB, shards int, archive bool, disks ...disk) *cluster {
	t.Helper()
	bin := os.Getenv("NEKI_BIN")
	if bin == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("NEKI_BIN is not set: make chaos sets it")
		}
		t.Skip("needs NEKI_BIN: run make chaos")
	}
	if !filepath.IsAbs(bin) {
		bin, _ = filepath.Abs(filepath.Join("..", "..", bin))
	}
	inst, _ := testpg.Installation(t)
	sweep(root())
	dir, err := os.MkdirTemp(root(), fmt.Sprintf("%s%d-", dirPrefix, os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{
		t: t, dir: dir, bin: bin, began: time.Now(), starter: newStarter(), links: map[string]*link{}, wrapped: inst.BinDir,
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}},
	}
	if archive {
		c.archive = filepath.Join(dir, "archive")
	}
	if err := c.start(shards, disks); err != nil {
		c.dump()
		t.Fatal(errors.Join(err, c.end()))
	}
	t.Logf("%d shards of %d members in %v", shards, members, time.Since(c.began).Round(time.Millisecond))
	return c
}

func (c *cluster) start(shards int, disks []disk) error {
	if err := os.Chmod(c.dir, 0o755); err != nil {
		return err
	}
	for _, sub := range []string{"nodes", "links", "log", "conf"} {
		if err := os.Mkdir(filepath.Join(c.dir, sub), 0o755); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{"token": rpcToken, "password": password} {
		if err := os.WriteFile(filepath.Join(c.dir, "conf", name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	if err := c.startEtcd(); err != nil {
		return err
	}
	for s := range shards {
		c.shards = append(c.shards, fmt.Sprintf("sh%d", s+1))
		for m := range members {
			if err := c.addNode(c.shards[s], fmt.Sprintf("sh%d-%c", s+1, 'a'+m), disks); err != nil {
				return err
			}
		}
	}
	if err := c.linkNodes(); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := c.starter.start(n.agent); err != nil {
			return err
		}
	}
	for _, name := range []string{"adm1", "adm2"} {
		p, err := c.part("admin", name, `rpc: {listen: "127.0.0.1:0", token-file: %s}`, c.conf("token"))
		if err != nil {
			return err
		}
		p.args = append(p.args, "--superuser", superuser, "--superuser-password-file", c.conf("password"))
		c.admins = append(c.admins, p)
		if err := c.starter.start(p); err != nil {
			return err
		}
	}
	var err error
	if c.port, err = freePort(); err != nil {
		return err
	}
	c.gateway, err = c.part("gateway", gatewayName, "listen: [\"127.0.0.1:%d\"]\nrpc: {token-file: %s}", c.port, c.conf("token"))
	if err == nil {
		err = c.starter.start(c.gateway)
	}
	if err != nil {
		return err
	}
	return c.await(2*time.Minute, "a whole cluster", c.whole)
}

func (c *cluster) conf(name string) string { return filepath.Join(c.dir, "conf", name) }

func (c *cluster) startEtcd() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir := filepath.Join(c.dir, "etcd")
	c.etcd = &program{
		name: "etcd", args: []string{self, "-test.run=^$"}, env: []string{etcdDir + "=" + dir}, log: filepath.Join(c.dir, "log", "etcd"),
	}
	if err := c.starter.start(c.etcd); err != nil {
		return err
	}
	c.store, err = etcdstore.Open(etcdstore.Config{Endpoints: []string{"unix://" + c.etcdSocket()}})
	return err
}

func (c *cluster) etcdSocket() string { return filepath.Join(c.dir, "etcd", "client.sock") }

// part prepares an admin, agent or gateway, with a link to etcd of its own.
func (c *cluster) part(command, name, more string, args ...any) (*program, error) {
	socket := filepath.Join(c.dir, "links", name)
	k, err := newLink("etcd "+name, "unix", socket, c.etcdSocket())
	if err != nil {
		return nil, err
	}
	c.links[k.name] = k
	text := fmt.Sprintf("cluster: %s\nid: %s\nlog-level: info\netcd: {endpoints: [\"unix://%s\"]}\n", clusterName, name, socket) +
		fmt.Sprintf(more, args...) + "\n"
	if c.archive != "" && command != "gateway" {
		text += fmt.Sprintf("backup: {directory: %s, interval: \"0\"}\n", c.archive)
	}
	if err := os.WriteFile(c.conf(name+".yaml"), []byte(text), 0o600); err != nil {
		return nil, err
	}
	return &program{
		name: name, args: []string{c.bin, command, "--config", c.conf(name + ".yaml")}, log: filepath.Join(c.dir, "log", name),
	}, nil
}

// addNode prepares an instance. Its server programs are called through scripts that set PGHOSTADDR: every server that it
// replicates from is reached at an address of this node's own, where links listen.
func (c *cluster) addNode(shard, id string, disks []disk) (err error) {
	n := &node{id: id, shard: shard, n: len(c.nodes) + 1, dir: filepath.Join(c.dir, "nodes", id)}
	if n.port, err = freePort(); err != nil {
		return err
	}
	if n.rpc, err = freePort(); err != nil {
		return err
	}
	for _, d := range disks {
		undo, err := d(n)
		if err != nil {
			return err
		}
		c.disks = append(c.disks, undo)
	}
	bin := filepath.Join(c.dir, "conf", "bin-"+id)
	if err := c.wrap(bin, n.address()); err != nil {
		return err
	}
	k, err := newLink("rpc "+id, "tcp", "127.0.0.1:0", net.JoinHostPort("127.0.0.1", strconv.Itoa(n.rpc)))
	if err != nil {
		return err
	}
	c.links[k.name] = k
	n.agent, err = c.part("agent", id, "rpc: {listen: \"127.0.0.1:%d\", url: \"http://%s\", token-file: %s}\n"+
		"agent: {data: %s, shard: %s, role: replica, port: %d, postgres-bin: %s}",
		n.rpc, k.listen.Addr(), c.conf("token"), n.dir, shard, n.port, bin)
	n.client = &agent.Client{URL: fmt.Sprintf("http://127.0.0.1:%d", n.rpc), Token: rpcToken, HTTP: c.http}
	c.nodes = append(c.nodes, n)
	return err
}

// address is the loopback address at which the node reaches others.
func (n *node) address() string { return fmt.Sprintf("127.0.%d.1", 100+n.n) }

func (c *cluster) wrap(bin, address string) error {
	if err := os.Mkdir(bin, 0o755); err != nil {
		return err
	}
	tools, err := os.ReadDir(c.wrapped)
	if err != nil {
		return err
	}
	for _, tool := range tools {
		path, real := filepath.Join(bin, tool.Name()), filepath.Join(c.wrapped, tool.Name())
		if !slices.Contains([]string{"postgres", "pg_basebackup", "pg_rewind"}, tool.Name()) {
			if err := os.Symlink(real, path); err != nil {
				return err
			}
			continue
		}
		script := fmt.Sprintf("#!/bin/sh\nPGHOSTADDR=%s exec %s \"$@\"\n", address, real)
		if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// linkNodes makes the links by which the members of a shard replicate from each other, those that are not there yet.
func (c *cluster) linkNodes() error {
	for _, from := range c.nodes {
		for _, to := range c.nodes {
			if from == to || from.shard != to.shard || c.wal(from, to) != nil {
				continue
			}
			port := strconv.Itoa(to.port)
			k, err := newLink("wal "+from.id+" "+to.id, "tcp", net.JoinHostPort(from.address(), port), net.JoinHostPort("127.0.0.1", port))
			if err != nil {
				return err
			}
			c.links[k.name] = k
		}
	}
	return nil
}

// wal is the link by which a node receives from another, rpc the one by which an agent is called, and etcdOf the one by
// which a part reaches etcd.
func (c *cluster) wal(from, to *node) *link { return c.links["wal "+from.id+" "+to.id] }

func (c *cluster) rpc(n *node) *link { return c.links["rpc "+n.id] }

func (c *cluster) etcdOf(name string) *link { return c.links["etcd "+name] }

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func (c *cluster) node(id string) *node {
	for _, n := range c.nodes {
		if n.id == id {
			return n
		}
	}
	c.t.Fatalf("no node %q", id)
	return nil
}

func (c *cluster) membersOf(shard string) []*node {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(n *node) bool { return n.shard != shard })
}

func (c *cluster) others(n *node) []*node {
	return slices.DeleteFunc(c.membersOf(n.shard), func(o *node) bool { return o == n })
}

// rule reads a shard's rule from etcd itself.
func (c *cluster) rule(shard string) (catalog.Rule, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return catalog.GetRule(ctx, c.store, clusterName, shard)
}

// leader gives who leads a shard, and in which term.
func (c *cluster) leader(shard string) (*node, int64) {
	c.t.Helper()
	var r catalog.Rule
	c.must(10*time.Second, "a rule with a leader", func() error {
		var err error
		if r, err = c.rule(shard); err == nil && r.Leader == "" {
			err = errors.New("none is chosen")
		}
		return err
	})
	return c.node(r.Leader), r.Term
}

// whole is nil when every shard has an active leader that all others stream from, and that serves.
func (c *cluster) whole() error {
	for _, s := range c.shards {
		if err := c.shardWhole(s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return c.serves()
}

func (c *cluster) shardWhole(shard string) error {
	r, err := c.rule(shard)
	switch {
	case err != nil:
		return err
	case r.Phase != decide.PhaseActive:
		return fmt.Errorf("the rule is %d.%d %s, led by %s, cohort %v", r.Term, r.Sub, r.Phase, r.Leader, r.Cohort)
	}
	for _, n := range c.membersOf(shard) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		st, err := n.client.Status(ctx)
		cancel()
		switch {
		case err != nil:
			return err
		case n.id == r.Leader && !(st.Server.Up && st.Server.Primary && st.Writable && st.InForce):
			return fmt.Errorf("%s, which leads, doesn't serve: %s", n.id, st.Server.Why)
		case n.id != r.Leader && !(st.Server.Up && st.Server.Streaming):
			return fmt.Errorf("%s doesn't stream: %s", n.id, st.Server.Why)
		}
	}
	return nil
}

// serves is nil when a write through the gateway is acknowledged.
func (c *cluster) serves() error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // the statement's error counts
	_, err = conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS serves (at timestamptz); INSERT INTO serves VALUES (now())")
	return err
}

// connect opens a connection through the gateway.
func (c *cluster) connect(ctx context.Context) (*pgx.Conn, error) {
	return pgx.Connect(ctx, fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=%s dbname=postgres sslmode=disable connect_timeout=20",
		c.port, superuser, password))
}

// await polls until what gives nil. Time in which the whole test was stopped, as a debugger or a shell may do, does not count.
func (c *cluster) await(limit time.Duration, what string, done func() error) error {
	const nap, stopped = 50 * time.Millisecond, 30 * time.Second // longer than any look takes
	var err error
	for end := time.Now().Add(limit); ; {
		before := time.Now()
		if err = done(); err == nil {
			return nil
		}
		time.Sleep(nap)
		now := time.Now()
		if took := now.Sub(before); took > stopped {
			end = end.Add(took)
		}
		if now.After(end) {
			return fmt.Errorf("no %s within %v: %w", what, limit, err)
		}
	}
}

func (c *cluster) must(limit time.Duration, what string, done func() error) {
	c.t.Helper()
	if err := c.await(limit, what, done); err != nil {
		c.t.Fatal(err)
	}
}

// heal undoes every fault, and waits until the cluster is whole again.
func (c *cluster) heal(limit time.Duration) error {
	if err := c.undo(); err != nil {
		return err
	}
	return c.await(limit, "whole cluster after the faults", c.whole)
}

// undo opens links, and has every process run and every standby replay.
func (c *cluster) undo() error {
	for _, k := range c.links {
		k.heal()
	}
	for _, n := range c.nodes {
		signalAll(serversIn(n.data()), unix.SIGCONT)
	}
	for _, n := range c.paused {
		c.try(n, "SELECT pg_wal_replay_resume() WHERE pg_is_in_recovery()")
	}
	c.paused = nil
	for _, end := range c.hung {
		end()
	}
	c.hung = nil
	for _, p := range c.programs() {
		if err := p.signal(syscall.SIGCONT); err != nil {
			return err
		}
		if !p.running() {
			if err := c.starter.start(p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *cluster) programs() []*program {
	list := append([]*program{c.etcd, c.gateway}, c.admins...)
	for _, n := range c.nodes {
		list = append(list, n.agent)
	}
	return slices.DeleteFunc(list, func(p *program) bool { return p == nil })
}

// end ends everything and removes it.
func (c *cluster) end() error {
	var errs []error
	for _, p := range c.programs() {
		_ = p.signal(syscall.SIGCONT)
		errs = append(errs, p.end(syscall.SIGKILL))
	}
	for _, n := range c.nodes {
		for end := time.Now().Add(20 * time.Second); len(serversIn(n.data())) > 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			signalAll(serversIn(n.data()), unix.SIGKILL)
		}
	}
	if c.store != nil {
		errs = append(errs, c.store.Close())
	}
	for _, k := range c.links {
		k.close()
	}
	c.http.CloseIdleConnections()
	close(c.starter.do)
	for _, undo := range c.disks {
		errs = append(errs, undo())
	}
	if os.Getenv("NEKI_CHAOS_KEEP") != "" {
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// events are what the admins did, the newest first.
func (c *cluster) events(most int) []catalog.Event {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	list, err := catalog.ListEvents(ctx, c.store, clusterName, most)
	if err != nil {
		c.t.Log("events:", err)
	}
	return list
}

// explain tells what the cluster did lately, and what each part of it says of itself.
func (c *cluster) explain(why string) {
	c.t.Logf("%6.1fs %s; it is %s", time.Since(c.began).Seconds(), why, time.Now().UTC().Format("15:04:05.000"))
	for _, s := range c.shards {
		r, err := c.rule(s)
		c.t.Logf("rule of %s: %+v %v", s, r, err)
	}
	for _, n := range c.nodes {
		st, err := c.status(n)
		c.t.Logf("%s: %v phase %q %s; promises %+v; member %+v; server %+v; exited %v hung %v stalled %v broken %v in force %v writable %v fenced %v %v",
			n.id, err, st.Health.State, st.Health.Reason, st.Promises, st.Member, st.Server, st.Exited, st.Hung, st.Stalled, st.Broken,
			st.InForce, st.Writable, st.SelfFenced, st.FencedLSN)
	}
	for _, e := range slices.Backward(c.events(60)) {
		c.t.Logf("event %s %-6s %-10s %s", e.At.Format("15:04:05.000"), e.Node, e.Kind, e.Detail)
	}
}

// dump tells what a failed test needs.
func (c *cluster) dump() {
	c.explain("the test failed")
	for _, p := range c.programs() {
		lines := strings.Split(p.tail(400), "\n")
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, "level=INFO") })
		c.t.Logf("log of %s:\n%s", p.name, strings.Join(lines[max(0, len(lines)-12):], "\n"))
	}
	for _, n := range c.nodes {
		c.t.Logf("Postgres of %s:\n%s", n.id, tailOf(filepath.Join(n.dir, "log"), 8))
	}
}
