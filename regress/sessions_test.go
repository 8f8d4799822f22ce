package regress

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestPreparedInSQLStaysWithItsClient leaves a statement behind and looks for it from other sessions, which may get
// the same server connection.
func TestPreparedInSQLStaysWithItsClient(t *testing.T) {
	c := cluster(t)
	for _, target := range []string{"primary", "replica"} {
		t.Run(target, func(t *testing.T) {
			for i := range 10 {
				name := fmt.Sprintf("left_behind_%d", i)
				left, err := c.connect(t.Context(), "__neki.target="+target)
				if err != nil {
					t.Fatal(err)
				}
				mustExec(t, left, "PREPARE "+name+" AS SELECT 'left behind'")
				if err := left.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				other := c.mustConnect(t, "__neki.target="+target)
				_, err = other.PgConn().Exec(t.Context(), "EXECUTE "+name).ReadAll()
				var pgErr *pgconn.PgError
				if !errors.As(err, &pgErr) || pgErr.Code != "26000" {
					t.Errorf("another client's %s: got %v, want SQLSTATE 26000", name, err)
				}
			}
		})
	}
}

// TestHeldReplicaWaitsForOwnWrites reads on a replica connection that the session holds, after a write of its own.
func TestHeldReplicaWaitsForOwnWrites(t *testing.T) {
	c := cluster(t)
	control := c.mustConnect(t)
	waitEligible(t, control)
	mustExec(t, control, "DROP TABLE IF EXISTS regress_held")
	mustExec(t, control, "CREATE TABLE regress_held (id int PRIMARY KEY)")
	for _, r := range replicasOf(t, c) {
		mustExec(t, r.conn, "ALTER SYSTEM SET recovery_min_apply_delay = '300ms'")
		mustExec(t, r.conn, "SELECT pg_reload_conf()")
		t.Cleanup(func() {
			_, _ = r.conn.Exec(context.Background(), "ALTER SYSTEM RESET recovery_min_apply_delay")
			_, _ = r.conn.Exec(context.Background(), "SELECT pg_reload_conf()")
		})
	}
	conn := c.mustConnect(t, "__neki.target=replica", "__neki.replica_consistency=session", "__neki.replica_wait=10s")
	for _, sql := range []string{"BEGIN", "DECLARE holds CURSOR WITH HOLD FOR SELECT 1", "COMMIT"} {
		mustExec(t, conn, sql)
	}
	mustExec(t, conn, "SET __neki.target = 'auto'")
	for id := range 10 {
		mustExec(t, conn, "INSERT INTO regress_held VALUES ($1)", id)
		if mustQuery[int](t, conn, "SELECT count(*) FROM regress_held WHERE id = $1", id) != 1 {
			t.Errorf("row %d: the session did not see its own write", id)
		}
	}
	mustExec(t, control, "DROP TABLE regress_held")
}
