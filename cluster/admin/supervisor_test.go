package admin_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"neki/catalog"
	"neki/catalog/etcdstore"
	"neki/catalog/etcdstore/embedded"
	"neki/catalog/memstore"
	"neki/cluster/admin"
	"neki/cluster/agent"
	"neki/cluster/pgproc"
)

// The test binary runs itself as a supervisor when this names a directory; the ports are in the other.
const (
	supervisorDir   = "NEKI_TEST_SUPERVISOR"
	supervisorPorts = "NEKI_TEST_PORTS"
)

// supervise is a whole cluster in one process, with etcd, as `neki dev` has it. It says "ready" and serves until it is
// killed.
func supervise(dir string) {
	if err := supervised(context.Background(), dir); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func supervised(ctx context.Context, dir string) error {
	inst, err := pgproc.FindInstallation(ctx, os.Getenv("NEKI_TEST_PGBIN"), 0)
	if err != nil {
		return err
	}
	account, err := pgproc.LookupAccount("")
	if err != nil {
		return err
	}
	etcd, err := embedded.Start(ctx, filepath.Join(dir, "etcd"), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	store, err := etcdstore.Open(etcdstore.Config{Endpoints: etcd.Endpoints()})
	if err != nil {
		return err
	}
	var group errgroup.Group
	for i, port := range strings.Split(os.Getenv(supervisorPorts), ",") {
		number, err := strconv.Atoi(port)
		if err != nil {
			return err
		}
		a, err := agent.New(agent.Config{
			Cluster: clusterName, Node: members[i], Shard: "sh1", Role: catalog.RoleReplica,
			Dir: filepath.Join(dir, members[i]), Port: number, Installation: inst, Account: account, Store: store,
			Token: token, Progress: func(step string) { fmt.Println(step) },
		})
		if err != nil {
			return err
		}
		group.Go(func() error { return a.Run(ctx) })
	}
	boss, err := admin.New(admin.Config{
		Cluster: clusterName, ID: "adm1", Store: store, Token: token, Superuser: super, Poll: time.Second,
		Shards: []admin.ShardSpec{{UID: "sh1", Authoritative: true}}, Progress: func(step string) { fmt.Println(step) },
	})
	if err != nil {
		return err
	}
	group.Go(func() error { return boss.Run(ctx) })
	if err := admin.WaitReady(ctx, boss.Live(), "sh1"); err != nil {
		return err
	}
	for snap := boss.Live().Snapshot(); !healthy(snap, members[0], members[1:]...); snap = boss.Live().Snapshot() {
		<-boss.Live().Changed()
	}
	fmt.Println("ready")
	return group.Wait()
}

// supervisor starts the process and waits for a line that contains until; "" doesn't wait for any but the end.
func (w *world) supervisor(until string) *exec.Cmd {
	w.t.Helper()
	ports := make([]string, len(members))
	for i, m := range members {
		ports[i] = strconv.Itoa(w.port(m))
	}
	cmd := exec.CommandContext(w.soon(), os.Args[0])
	cmd.Env = append(os.Environ(), supervisorDir+"="+w.dir, supervisorPorts+"="+strings.Join(ports, ","))
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd.Stderr = w.t.Output()
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		w.t.Log(lines.Text())
		if strings.Contains(lines.Text(), until) {
			return cmd
		}
	}
	w.t.Fatalf("the supervisor ended before %q", until)
	return nil
}

// kill ends the supervisor as kill -9 does. Nothing of it runs any more; what it started does.
func (w *world) kill(cmd *exec.Cmd) {
	w.t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		w.t.Fatal(err)
	}
	_ = cmd.Wait() // "signal: killed"
}

// kill -9 of the supervisor, while it makes the shard and when it has: the next start goes on, and adopts the servers.
func TestSupervisorKilled(t *testing.T) {
	t.Parallel() // most of it is waiting for the dead leader's lease
	w := newWorld(t, memstore.New())
	for _, m := range members {
		p, err := pgproc.New(pgproc.Config{
			Installation: w.inst, Account: w.acct, Dir: filepath.Join(w.dir, m), Port: w.port(m),
		})
		if err != nil {
			t.Fatal(err)
		}
		w.servers[m] = p
	}
	for _, at := range []string{"makes the data", "initialised", "copies"} {
		w.kill(w.supervisor(at))
	}
	first := w.supervisor("ready")
	w.must("sh1-a", "CREATE TABLE t (id int)", "")
	w.kill(first)
	pids := map[string]int{}
	for m, p := range w.servers {
		if ok, err := p.Adopt(); err != nil || !ok {
			t.Fatalf("the server of %s went with the supervisor: %v", m, err)
		}
		pids[m] = p.Running()
		p.Close()
	}
	w.must("sh1-a", "INSERT INTO t VALUES (1) RETURNING id::text", "1") // replication goes on, too
	second := w.supervisor("ready")
	for m, p := range w.servers {
		if ok, err := p.Adopt(); err != nil || !ok || p.Running() != pids[m] {
			t.Errorf("%s: server %d was not adopted: %v, %v, now %d", m, pids[m], ok, err, p.Running())
		}
	}
	w.must("sh1-a", "INSERT INTO t VALUES (2) RETURNING id::text", "2")
	w.kill(second)
}
