package pooler

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"neki/internal/pgerr"
	"neki/internal/testpg"
)

// TestPidsOfClients cancels and ends sessions by the pids that clients know.
func TestPidsOfClients(t *testing.T) {
	g := startWithSchema(t, 0)
	g.awaitFunctions()
	admin, worker := g.connect(""), g.connect("")
	simple(t, admin, "CREATE ROLE alice LOGIN PASSWORD 'pw'; CREATE TABLE t (k int); INSERT INTO t VALUES (1)")
	pid := worker.PgConn().PID()
	if got := one(t, worker, "SELECT pg_backend_pid()"); got != fmt.Sprint(pid) {
		t.Errorf("the client's own pid is %s, not %d", got, pid)
	}
	done := make(chan error, 1)
	go func() {
		_, err := trySimple(worker, "SELECT pg_sleep(60)")
		done <- err
	}()
	eventually(t, "the statement runs", func() bool {
		return g.group.Primary.Text("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(60)%'") == "1"
	})
	var canceled bool
	if err := admin.QueryRow(t.Context(), "SELECT pg_cancel_backend($1)", int32(pid)).Scan(&canceled); err != nil || !canceled {
		t.Errorf("%v, %v", canceled, err)
	}
	if err := <-done; pgerr.Code(err) != pgerr.QueryCanceled {
		t.Errorf("the statement: %v", err)
	}
	alice := g.config("")
	alice.User, alice.Password = "alice", "pw"
	stranger := g.connectAs(alice)
	if _, err := trySimple(stranger, fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid)); pgerr.Code(err) != pgerr.InsufficientPrivilege {
		t.Errorf("by a stranger: %v", err)
	}
	if got := one(t, stranger, fmt.Sprintf("SELECT pg_cancel_backend(%d)", stranger.PgConn().PID()+1000)); got != "f" {
		t.Errorf("of nobody: %s", got)
	}
	if got := one(t, admin, fmt.Sprintf("SELECT pg_catalog.pg_terminate_backend(%d, 5000)", pid)); got != "t" {
		t.Errorf("got %s", got)
	}
	if _, err := trySimple(worker, "SELECT 1"); err == nil {
		t.Error("the session goes on")
	}
	real := g.group.Primary.Text("SELECT pid FROM pg_stat_activity WHERE usename = 'postgres' AND backend_type = 'client backend' LIMIT 1")
	if _, err := trySimple(stranger, "SELECT pg_cancel_backend("+real+")"); pgerr.Code(err) != pgerr.InsufficientPrivilege {
		t.Errorf("a server's pid, of a superuser: %v", err)
	}
}

// TestBlockingPids finds who blocks whom.
func TestBlockingPids(t *testing.T) {
	g := startWithSchema(t, 0)
	g.awaitFunctions()
	holder, waiter, watcher := g.connect(""), g.connect(""), g.connect("")
	simple(t, holder, "CREATE TABLE t (k int)")
	simple(t, holder, "BEGIN; LOCK TABLE t")
	done := make(chan error, 1)
	go func() {
		_, err := trySimple(waiter, "SELECT * FROM t")
		done <- err
	}()
	blocked := fmt.Sprintf("SELECT pg_isolation_test_session_is_blocked(%d, '{%d,%d}')",
		waiter.PgConn().PID(), waiter.PgConn().PID(), holder.PgConn().PID())
	eventually(t, "the waiter is seen blocked", func() bool { return one(t, watcher, blocked) == "t" })
	if got := one(t, watcher, fmt.Sprintf("SELECT pg_blocking_pids(%d)", waiter.PgConn().PID())); got != fmt.Sprintf("{%d}", holder.PgConn().PID()) {
		t.Errorf("blocked by %s", got)
	}
	simple(t, holder, "COMMIT")
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := one(t, watcher, blocked); got != "f" {
		t.Errorf("still blocked: %s", got)
	}
	if got := one(t, watcher, fmt.Sprintf("SELECT pg_blocking_pids(%d)", waiter.PgConn().PID())); got != "{}" {
		t.Errorf("blocked by %s", got)
	}
}

// TestOwnNotifications have the pid that the client knows; those of others keep the server's.
func TestOwnNotifications(t *testing.T) {
	g := startWithSchema(t, 0)
	cfg := g.config("")
	listener, other := g.connectAs(cfg), g.connect("")
	simple(t, listener, "LISTEN ch")
	simple(t, listener, "NOTIFY ch, 'own'")
	n, err := listener.WaitForNotification(t.Context())
	if err != nil || n.PID != listener.PgConn().PID() || n.Payload != "own" {
		t.Errorf("%+v, %v", n, err)
	}
	simple(t, other, "NOTIFY ch, 'foreign'")
	n, err = listener.WaitForNotification(t.Context())
	if err != nil || n.PID == listener.PgConn().PID() || n.Payload != "foreign" {
		t.Errorf("%+v, %v", n, err)
	}
}

// specs are for isolationtester, which knows its sessions by the pids that they were given.
var specs = map[string]string{
	"a writer waits": `
setup { CREATE TABLE account (id int PRIMARY KEY, balance int); INSERT INTO account VALUES (1, 100), (2, 100); }
teardown { DROP TABLE account; }
session one
step begin1 { BEGIN; }
step take1 { UPDATE account SET balance = balance - 10 WHERE id = 1; }
step end1 { COMMIT; }
session two
step take2 { UPDATE account SET balance = balance - 20 WHERE id = 1; }
step look2 { SELECT balance FROM account WHERE id = 1; }
permutation begin1 take1 take2 end1 look2
permutation take2 begin1 take1 end1 look2
`,
	"a deadlock is found": `
setup { CREATE TABLE door (id int); CREATE TABLE gate (id int); }
teardown { DROP TABLE door; DROP TABLE gate; }
session one
setup { BEGIN; SET deadlock_timeout = '100s'; }
step door1 { LOCK TABLE door; }
step gate1 { LOCK TABLE gate; }
step end1 { COMMIT; }
session two
setup { BEGIN; SET deadlock_timeout = '10ms'; }
step gate2 { LOCK TABLE gate; }
step door2 { LOCK TABLE door; }
step end2 { COMMIT; }
permutation door1 gate2 gate1 door2(gate1) end1 end2
`,
	"own notifications": `
session one
step listen1 { LISTEN news; }
step notify1 { NOTIFY news, 'hello'; }
step stop1 { UNLISTEN news; }
step silent1 { NOTIFY news, 'nobody hears'; }
permutation listen1 notify1 stop1 silent1
`,
}

// TestIsolationTester runs Postgres's tool directly and through the gateway, and compares.
func TestIsolationTester(t *testing.T) {
	inst, _ := testpg.Installation(t)
	tool := filepath.Join(filepath.Dir(inst.BinDir), "lib/pgxs/src/test/isolation/isolationtester")
	if _, err := os.Stat(tool); err != nil {
		t.Skipf("isolationtester is not installed: %v", err)
	}
	g := startWithSchema(t, 0)
	g.awaitFunctions()
	run := func(host, port, spec string) string {
		cmd := exec.CommandContext(t.Context(), tool, fmt.Sprintf("host=%s port=%s user=%s password=%s dbname=postgres sslmode=disable",
			host, port, testpg.Superuser, testpg.Password))
		cmd.Stdin = strings.NewReader(spec)
		cmd.WaitDelay = time.Second
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v", err)
		}
		return string(out)
	}
	host, port, _ := net.SplitHostPort(g.addr)
	for name, spec := range specs {
		direct := run(g.group.Primary.Host(), fmt.Sprint(g.group.Primary.Port()), spec)
		if through := run(host, port, spec); through != direct || !strings.Contains(direct, "step ") {
			t.Errorf("%s:\n%s\ninstead of\n%s", name, through, direct)
		}
	}
}
