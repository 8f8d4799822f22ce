package regress

import (
	"context"
	"testing"
	"time"
)

// Parameters of the admins that are set by SQL are followed while they run: the lag that is acceptable, how often is looked for it,
// and how long a switchover waits.
func TestAdminFollowsParameters(t *testing.T) {
	c := cluster(t)
	conn := c.mustConnect(t)
	waitEligible(t, conn)
	replicas := replicasOf(t, c)
	for name, values := range map[string][2]string{
		"discovery-poll-interval":    {"1s", "5s"},
		"recovery-poll-interval":     {"100ms", "10s"},
		"acceptable-replication-lag": {"500ms", "10s"},
		"planned-switchover-timeout": {"1s", "1min"},
	} {
		set := func(ctx context.Context, value string) {
			if _, err := conn.Exec(ctx, "CALL neki.set_parameter('admin', '"+name+"', '"+value+"')"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		set(t.Context(), values[0])
		t.Cleanup(func() { set(context.Background(), values[1]) })
	}
	told := func(kind, node string, since time.Time) func() bool {
		return func() bool {
			return mustQuery[bool](t, conn, "SELECT count(*) > 0 FROM neki.events WHERE kind = $1 AND node = $2 AND at >= $3", kind, node, since)
		}
	}
	began := mustQuery[time.Time](t, conn, "SELECT now()")
	paused := replicas[0]
	writeAlways(t, c)
	paused.pause(t)
	waitFor(t, "an event that "+paused.node+" lags", told("lagging", paused.node, began))
	var id string
	shard := mustQuery[string](t, conn, "SELECT shard FROM neki.shards WHERE authoritative")
	err := conn.QueryRow(t.Context(), "CALL neki.switchover($1, $2)", shard, paused.node).Scan(&id)
	if err == nil {
		t.Fatalf("switchover to %s, whose replay stands, is done", paused.node)
	}
	// By the default it would have waited a minute, in the midst of which replay is resumed.
	if got := mustQuery[string](t, conn, "SELECT state || ': ' || error FROM neki.operations WHERE kind = 'switchover' ORDER BY id DESC LIMIT 1"); got !=
		"failed: given up: no acknowledger that could lead is near the leader" {
		t.Error(got)
	}
	mustExec(t, paused.conn, "SELECT pg_wal_replay_resume()")
	waitFor(t, "an event that "+paused.node+" has caught up", told("caught_up", paused.node, began))
}
