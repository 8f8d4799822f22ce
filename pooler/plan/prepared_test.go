package plan

import (
	"testing"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/settings"
)

// TestRunning: a statement that runs a prepared one goes where that one would go.
func TestRunning(t *testing.T) {
	pl := newPlanner(t, Options{})
	snap, env := twoShards(), NewEnv("db", "alice", DefaultSearchPath, loaded(t))
	replica := settings.Default()
	replica.Target = settings.TargetReplica
	auto := settings.Default()
	auto.Target = settings.TargetAuto
	for _, tc := range []struct {
		text, inner string
		auto        catalog.Role
		refused     string // under target replica
		pins        Pins
	}{
		{"EXECUTE p", "SELECT * FROM t", catalog.RoleReplica, "", 0},
		{"EXECUTE p(lower('X'))", "SELECT $1", catalog.RoleReplica, "", 0},
		{"EXECUTE p(audit())", "SELECT $1", catalog.RolePrimary, "", 0},
		{"EXECUTE p(nextval('s'))", "SELECT $1", catalog.RolePrimary, "", 0},
		{"EXECUTE p", "SELECT audit()", catalog.RolePrimary, "", 0},
		{"EXECUTE p(audit())", "DELETE FROM t", catalog.RolePrimary, "cannot execute DELETE in a read-only transaction", 0},
		{
			"EXECUTE p", "SELECT pg_advisory_lock(1)", catalog.RolePrimary,
			"cannot execute pg_advisory_lock() in a read-only transaction", PinAdvisoryLock,
		},
		{"EXPLAIN EXECUTE p", "DELETE FROM t", catalog.RoleReplica, "", 0},
		{"EXPLAIN ANALYZE EXECUTE p", "SELECT * FROM t", catalog.RoleReplica, "", 0},
		{"EXPLAIN ANALYZE EXECUTE p(audit())", "SELECT * FROM t", catalog.RolePrimary, "", 0},
		{
			"EXPLAIN ANALYZE EXECUTE p", "DELETE FROM t", catalog.RolePrimary,
			"cannot execute EXPLAIN ANALYZE DELETE in a read-only transaction", 0,
		},
		{"EXPLAIN ANALYZE EXECUTE p", "SELECT setseed(1)", catalog.RolePrimary, "", PinSetSeed},
		{
			"CREATE TABLE x AS EXECUTE p", "SELECT setseed(1)", catalog.RolePrimary,
			"cannot execute CREATE TABLE AS in a read-only transaction", PinSetSeed,
		},
	} {
		p := planned(t, pl, tc.text, snap, env)
		if p.Runs != "p" {
			t.Errorf("%s: runs %q", tc.text, p.Runs)
			continue
		}
		p = p.Running(planned(t, pl, tc.inner, snap, env))
		if role, err := Access(p, auto, TxNone); err != nil || role != tc.auto {
			t.Errorf("%s of %s: %v, %v under auto, want %v", tc.text, tc.inner, role, err, tc.auto)
		}
		_, err := Access(p, replica, TxNone)
		if got := messageOf(err); got != tc.refused {
			t.Errorf("%s of %s under replica: %q, want %q", tc.text, tc.inner, got, tc.refused)
		}
		if p.Pins != tc.pins {
			t.Errorf("%s of %s: pins %v", tc.text, tc.inner, p.Pins.Reasons())
		}
	}
	if p := planned(t, pl, "CREATE TABLE x AS SELECT 1", snap, env); p.Runs != "" {
		t.Errorf("CREATE TABLE AS SELECT runs %q", p.Runs)
	}
}

func messageOf(err *pgerr.Error) string {
	if err == nil {
		return ""
	}
	return err.Message
}
