package pooler

import (
	"bytes"
	"io"
	"testing"
	"time"

	"neki/settings"
)

// TestClientThatDoesNotRead: after client-write-timeout its session ends, whatever it has held, and what it gets then is the
// beginning of its answer and nothing else.
func TestClientThatDoesNotRead(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: func(p *settings.Parameters) {
		p.PoolCapacity, p.ClientWrite = 1, 300*time.Millisecond
	}})
	for _, sql := range []string{
		"select repeat('x', 1000) from generate_series(1, 1000000)",
		"copy (select repeat('x', 1000) from generate_series(1, 1000000)) to stdout",
		"begin; create temp table mine (k int); select pg_advisory_lock(5); select repeat('x', 100000) from generate_series(1, 10000)",
	} {
		c := newWireClient(t, g.config(""))
		c.send(q(sql))
		next := g.connect("")
		if got := one(t, next, "SELECT pg_try_advisory_xact_lock(5)::text"); got != "true" { // once the connection is free
			t.Errorf("%s: the lock is still held", sql)
		}
		_ = next.Close(t.Context())
		eventually(t, "its session has ended", func() bool { return g.server.sessions.find(c.pid) == nil })
		_ = c.conn.SetReadDeadline(time.Now().Add(time.Minute))
		rest, _ := io.ReadAll(c.conn) // an error, if the kernel has dropped the rest
		if len(rest) == 0 || bytes.Contains(rest, []byte("FATAL")) {
			t.Errorf("%s: of %d bytes the last are %q", sql, len(rest), rest[max(0, len(rest)-100):])
		}
	}
}
