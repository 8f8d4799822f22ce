package pooler

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
	"neki/settings"
)

// standby tells which server a read ran on, by its port.
const standby = "SELECT inet_server_port()"

// reads counts on which servers n reads of a session run.
func (g *gateway) reads(conn *pgx.Conn, n int) map[string]int {
	g.t.Helper()
	at := map[string]int{}
	for range n {
		at[one(g.t, conn, standby)]++
	}
	return at
}

func (g *gateway) port(replica int) string {
	_, port, _ := strings.Cut(g.group.Replicas[replica].Address(), ":")
	return port
}

// TestLocality has replicas in az-b and az-c and a gateway in az-b.
func TestLocality(t *testing.T) {
	g := startGateway(t, gatewayOptions{replicas: 2, config: func(c *Config) { c.Cell = "az-b" }})
	conn := g.connect("-c __neki.target=replica")
	if at := g.reads(conn, 20); at[g.port(0)] != 20 {
		t.Errorf("prefer: the reads ran on %v, want all on %s", at, g.port(0))
	}
	simple(t, conn, "SET __neki.replica_locality = 'off'")
	if at := g.reads(conn, 60); at[g.port(0)] == 0 || at[g.port(1)] == 0 {
		t.Errorf("off: the reads ran on %v", at)
	}
	g.group.Replicas[0].Kill()
	simple(t, conn, "SET __neki.replica_locality = 'prefer'")
	eventually(t, "reads move to the other cell", func() bool {
		rows, err := trySimple(conn, standby)
		return err == nil && rows[0][0] == g.port(1)
	})
	simple(t, conn, "SET __neki.replica_locality = 'require'")
	_, err := trySimple(conn, standby)
	if pgerr.Code(err) != pgerr.NoEligibleReplica || !strings.Contains(pgerr.From(err).Detail, "az-c") {
		t.Errorf("require: %v, %s", err, pgerr.From(err).Detail)
	}
}

// TestAffinity keeps a session on its replica until that one goes.
func TestAffinity(t *testing.T) {
	g := startGateway(t, gatewayOptions{replicas: 2})
	conn := g.connect("-c __neki.target=replica -c __neki.replica_affinity=session -c __neki.replica_locality=off")
	at := g.reads(conn, 40)
	if len(at) != 1 {
		t.Fatalf("the reads ran on %v", at)
	}
	mine := 0
	if at[g.port(1)] > 0 {
		mine = 1
	}
	g.group.Replicas[mine].Kill()
	eventually(t, "the session moves", func() bool {
		rows, err := trySimple(conn, standby)
		return err == nil && rows[0][0] == g.port(1-mine)
	})
}

// TestTiers cuts a replica off: it leaves the preferred tier, then all reads, as its lag grows or is unknown.
func TestTiers(t *testing.T) {
	g := startGateway(t, gatewayOptions{replicas: 2, parameters: func(p *settings.Parameters) {
		p.LagMin, p.LagMax = 300*time.Millisecond, 2*time.Second
	}})
	writer := g.connect("")
	simple(t, writer, "CREATE TABLE t (k int)")
	conn := g.connect("-c __neki.target=replica -c __neki.replica_locality=off")
	paused := g.group.Replicas[0]
	paused.PauseReplay()
	eventually(t, "the paused replica leaves the preferred tier", func() bool {
		simple(t, writer, "INSERT INTO t VALUES (1)")
		return g.reads(conn, 10)[g.port(1)] == 10
	})
	g.group.Replicas[1].Kill()
	eventually(t, "only the paused replica is left, and above the maximum", func() bool {
		simple(t, writer, "INSERT INTO t VALUES (1)")
		_, err := trySimple(conn, standby)
		return pgerr.Code(err) == pgerr.NoEligibleReplica && strings.Contains(pgerr.From(err).Detail, "lag")
	})
	paused.ResumeReplay()
	eventually(t, "the replica comes back", func() bool {
		rows, err := trySimple(conn, standby)
		return err == nil && rows[0][0] == g.port(0)
	})
	paused.StopWALReceiver()
	eventually(t, "its lag is unknown once nothing comes from the primary", func() bool {
		_, err := trySimple(conn, standby)
		return pgerr.Code(err) == pgerr.NoEligibleReplica && strings.Contains(pgerr.From(err).Detail, "unknown")
	})
	if got := one(t, writer, "SELECT pg_is_in_recovery()"); got != "f" {
		t.Error("the writer left the primary")
	}
}
