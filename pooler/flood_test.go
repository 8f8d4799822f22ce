package pooler

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// TestNoticesFlood: many notices pass in order, and cost no memory while the client does not read.
func TestNoticesFlood(t *testing.T) {
	const notices = 100_000
	g := startGateway(t, gatewayOptions{parameters: poolOf(1)})
	c := newWireClient(t, g.config(""))
	before := heapInUse()
	c.send(q(fmt.Sprintf("do $$ begin for i in 1..%d loop raise notice 'number %% %%', i, repeat('x', 200); end loop; end $$", notices)))
	eventually(t, "the server waits for the client", func() bool {
		return g.group.Primary.Text("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'do $$ begin%' AND wait_event = 'ClientWrite'") == "1"
	})
	if after := heapInUse(); after > before+16<<20 {
		t.Errorf("%d bytes in use, %d before", after, before)
	}
	for n := 0; ; {
		_ = c.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		typ, body, err := readFrame(c.conn)
		if err != nil {
			t.Fatal(err)
		}
		switch typ {
		case 'N':
			n++
			if !strings.Contains(string(body), fmt.Sprintf("Mnumber %d x", n)) {
				t.Fatalf("notice %d: %.80q", n, body)
			}
		case 'Z':
			if n != notices {
				t.Errorf("%d notices", n)
			}
			return
		}
	}
}

// TestSlowClientIsEnded: a client that reads nothing of its answer can be ended, and its connection serves others.
func TestSlowClientIsEnded(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(1)})
	c := newWireClient(t, g.config(""))
	_ = c.conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	c.send(q("select repeat('x', 1000) from generate_series(1, 1000000)"))
	eventually(t, "the server waits for the client", func() bool {
		return g.group.Primary.Text("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'select repeat%' AND wait_event = 'ClientWrite'") == "1"
	})
	slow := g.server.sessions.find(c.pid)
	g.server.KillSession(c.pid)
	if got := one(t, g.connect(""), "SELECT 'free'"); got != "free" {
		t.Error(got)
	}
	// The next session may have its number.
	eventually(t, "its session has ended", func() bool { return g.server.sessions.find(c.pid) != slow })
}
