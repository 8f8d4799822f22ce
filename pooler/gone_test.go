package pooler

import (
	"context"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestClientGoneInQueue: what a client has sent is not run when it leaves while it waits for a connection.
func TestClientGoneInQueue(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(1)})
	holder := g.connect("")
	simple(t, holder, "CREATE TABLE t (k int)")
	waiter := newWireClient(t, g.config(""))
	simple(t, holder, "BEGIN")
	waiter.send(q("INSERT INTO t VALUES (1)"))
	eventually(t, "the client waits", func() bool {
		got := g.server.pools.Stats()
		return len(got) == 1 && got[0].Waiting == 1 && got[0].MaxWait >= aliveFor
	})
	_ = waiter.conn.Close()
	simple(t, holder, "COMMIT")
	eventually(t, "its session has ended", func() bool { return g.server.sessions.len() == 1 })
	if got := one(t, holder, "SELECT count(*) FROM t"); got != "0" {
		t.Errorf("%s rows were inserted", got)
	}
}

// TestClientGoneWithinSegment: a segment without a Sync is rolled back when its client leaves, and its connection serves
// others.
func TestClientGoneWithinSegment(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(1)})
	simple(t, g.connect(""), "CREATE TABLE t (k int)")
	for _, last := range [][]byte{flushMsg, msgOf('X'), cat(flushMsg, msgOf('X')), cat(parse("", "SELECT pg_sleep(600)"), bindTo("", ""), execute("", 0), flushMsg)} {
		h := newWireClient(t, g.config(""))
		h.send(parse("", "INSERT INTO t VALUES (1)"), bindTo("", ""), execute("", 0), last)
		if last[len(last)-5] == 'H' {
			eventually(t, "the row is there", func() bool {
				return g.group.Primary.Text("SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND mode = 'RowExclusiveLock'") == "1"
			})
		}
		_ = h.conn.Close()
		if got := one(t, g.connect(""), "SELECT count(*) FROM t"); got != "0" {
			t.Errorf("%s rows were committed", got)
		}
	}
}

// TestStaleConnections: those whose server process has gone while they rested are dropped, and not heard of.
func TestStaleConnections(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(10)})
	for range 5 {
		var conns []*pgx.Conn
		for range 3 {
			conn := g.connect("")
			simple(t, conn, "BEGIN")
			conns = append(conns, conn)
		}
		for _, conn := range conns {
			simple(t, conn, "COMMIT")
		}
		g.group.Primary.Exec("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = '' AND pid <> pg_backend_pid() AND client_port > 0 AND usename = 'postgres'")
		conn, err := pgx.ConnectConfig(t.Context(), g.config("-c work_mem=3MB"))
		if err != nil {
			t.Fatalf("a login after servers have gone: %v", err)
		}
		if got := one(t, conn, "SHOW work_mem"); got != "3MB" {
			t.Errorf("work_mem %s", got)
		}
		_ = conn.Close(t.Context())
	}
}

// TestDrainEndsStuckSessions: servers that do not answer hold a drain up no longer than it says.
func TestDrainEndsStuckSessions(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(10)})
	g.server.drainLimit = 100 * time.Millisecond
	var stopped []int
	for range 6 {
		conn := newWireClient(t, g.config(""))
		conn.send(q("SELECT pg_sleep(600)"))
	}
	login, err := net.Dial("tcp", g.addr) // says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer login.Close()
	eventually(t, "all run", func() bool {
		return g.group.Primary.Text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "6"
	})
	for _, pid := range strings.Fields(g.group.Primary.Text("SELECT string_agg(pid::text, ' ') FROM pg_stat_activity WHERE wait_event = 'PgSleep'")) {
		n, _ := strconv.Atoi(pid)
		stopped = append(stopped, n)
	}
	for _, pid := range append(stopped, g.group.Primary.PID()) {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
		defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	}
	g.stop()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	select {
	case <-g.done:
	case <-ctx.Done():
		t.Error("the gateway still waits for its sessions")
	}
}
