package pooler

import (
	"fmt"
	"testing"

	"neki/internal/pgerr"
)

// TestHeldReplicaWaitsForOwnWrites reads on a replica that the session holds a connection to, after a write of its own.
func TestHeldReplicaWaitsForOwnWrites(t *testing.T) {
	g := startGateway(t, gatewayOptions{replicas: 2})
	simple(t, g.connect(""), "CREATE TABLE t (k int PRIMARY KEY)")
	g.awaitFunctions()
	conn := g.connect("-c __neki.target=replica -c __neki.replica_consistency=session -c __neki.replica_wait=10s")
	simple(t, conn, "BEGIN; DECLARE held CURSOR WITH HOLD FOR SELECT 1; COMMIT")
	for _, r := range g.group.Replicas {
		r.Set("recovery_min_apply_delay", "200ms")
	}
	simple(t, conn, "SET __neki.target = 'auto'")
	const look = "SELECT count(*), pg_is_in_recovery() FROM t"
	for k := range 5 {
		simple(t, conn, fmt.Sprintf("INSERT INTO t VALUES (%d)", k))
		if got := simple(t, conn, look)[0]; got[0] != fmt.Sprint(k+1) || got[1] != "t" {
			t.Errorf("after row %d: %v", k, got)
		}
	}
	var n int
	if _, err := conn.Exec(t.Context(), "INSERT INTO t VALUES (10)"); err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM t").Scan(&n); err != nil || n != 6 {
		t.Errorf("by the extended protocol: %d, %v", n, err)
	}
	for _, r := range g.group.Replicas {
		r.Set("recovery_min_apply_delay", "10min")
	}
	simple(t, conn, "SET __neki.replica_wait = '300ms'")
	simple(t, conn, "INSERT INTO t VALUES (11)")
	if _, err := trySimple(conn, look); pgerr.Code(err) != pgerr.NoEligibleReplica {
		t.Errorf("a held replica that does not catch up: %v", err)
	}
	simple(t, conn, "SET __neki.replica_consistency = 'eventual'")
	if got := simple(t, conn, look)[0]; got[0] != "6" || got[1] != "t" {
		t.Errorf("eventual: %v", got)
	}
	if got := simple(t, conn, "FETCH held")[0]; got[0] != "1" {
		t.Errorf("the cursor gives %v", got)
	}
}
