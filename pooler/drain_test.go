package pooler

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
)

// TestDrain lets a transaction end, and nobody else stay or come.
func TestDrain(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	idle, busy := g.connect(""), g.connect("")
	simple(t, busy, "CREATE TABLE t (k int); BEGIN; INSERT INTO t VALUES (1)")
	g.server.Drain()
	if err := idle.PgConn().WaitForNotification(t.Context()); pgerr.Code(err) != pgerr.AdminShutdown {
		t.Errorf("the idle session: %v", err)
	}
	if _, err := pgx.ConnectConfig(t.Context(), g.config("")); pgerr.Code(err) != pgerr.AdminShutdown {
		t.Errorf("a new session: %v", err)
	}
	simple(t, busy, "INSERT INTO t VALUES (2)")
	if _, err := trySimple(busy, "COMMIT"); err != nil && pgerr.Code(err) != pgerr.AdminShutdown {
		t.Errorf("COMMIT while draining: %v", err)
	}
	if got := g.group.Primary.Text("SELECT count(*) FROM t"); got != "2" {
		t.Errorf("%s rows were committed", got)
	}
	if _, err := trySimple(busy, "SELECT 1"); err == nil {
		t.Error("the session goes on after its transaction")
	}
}

// TestKillSession ends a session while it waits for a lock, and one that is idle.
func TestKillSession(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	holder, waiter, idle := g.connect(""), g.connect(""), g.connect("")
	simple(t, holder, "CREATE TABLE t (k int)")
	simple(t, holder, "BEGIN; LOCK TABLE t")
	done := make(chan error, 1)
	go func() {
		_, err := trySimple(waiter, "SELECT * FROM t")
		done <- err
	}()
	eventually(t, "the statement waits", func() bool {
		return g.group.Primary.Text("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1"
	})
	for _, conn := range []*pgx.Conn{waiter, idle} {
		if !g.server.KillSession(conn.PgConn().PID()) {
			t.Error("not found")
		}
	}
	if err := <-done; err == nil {
		t.Error("the statement of a killed session succeeded")
	}
	if err := idle.PgConn().WaitForNotification(t.Context()); pgerr.Code(err) != pgerr.AdminShutdown {
		t.Errorf("the idle session: %v", err)
	}
	simple(t, holder, "COMMIT")
	eventually(t, "no statement is left", func() bool {
		return g.group.Primary.Text("SELECT count(*) FROM pg_stat_activity WHERE state <> 'idle' AND query LIKE 'SELECT * FROM t%'") == "0"
	})
	if g.server.KillSession(1) {
		t.Error("a pid of nobody is found")
	}
}

// TestClientsThatLeaveInMidMessage close right behind the beginning of a message: no session stays.
func TestClientsThatLeaveInMidMessage(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	for i := range 60 {
		h, err := g.connect("").PgConn().Hijack()
		if err != nil {
			t.Fatal(err)
		}
		part := [][]byte{{'Q', 0, 0, 1, 0, 's', 'e', 'l'}, {'P', 0, 0}, q("SELECT 1")[:12]}[i%3]
		if _, err := h.Conn.Write(part); err != nil {
			t.Fatal(err)
		}
		_ = h.Conn.Close()
	}
	eventually(t, "all sessions have ended", func() bool { return g.server.sessions.len() == 0 })
}

// TestServerGoneWhileIdle kills the server under connections that were used a moment ago: a session gets an error or a
// new connection, and does not wait for ever.
func TestServerGoneWhileIdle(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	conn := g.connect("")
	simple(t, conn, "SELECT 1")
	g.group.Primary.Kill()
	if _, err := trySimple(conn, "SELECT 1"); err == nil {
		t.Error("a statement ran on a server that is gone")
	}
	g.group.Primary.Restart()
	eventually(t, "new sessions are served", func() bool {
		c, err := pgx.ConnectConfig(t.Context(), g.config(""))
		if err != nil {
			return false
		}
		defer func() { _ = c.Close(t.Context()) }()
		_, err = trySimple(c, "SELECT 1")
		return err == nil
	})
	eventually(t, "no connection counts as in use", func() bool {
		for _, p := range g.server.pools.Stats() {
			if p.Active > 0 {
				return false
			}
		}
		return true
	})
}
