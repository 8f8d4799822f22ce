package admin_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"neki/catalog"
	"neki/catalog/memstore"
	"neki/cluster/admin"
	"neki/cluster/pgproc"
)

// fewSegments has servers keep no more WAL than they must, also for slots.
var fewSegments = pgproc.Settings{
	"wal_keep_size": "0", "min_wal_size": "32MB", "max_wal_size": "32MB", "max_slot_wal_keep_size": "32MB", "checkpoint_timeout": "1h",
}

// fillLog writes segments of WAL on a node, and has it forget those that it may.
func (w *world) fillLog(node string, segments int) {
	w.t.Helper()
	for range segments {
		w.exec(node, "SELECT pg_logical_emit_message(true, 'fill', repeat('x', 1000000)), pg_switch_wal()")
	}
	w.exec(node, "CHECKPOINT")
	w.exec(node, "CHECKPOINT")
}

// exec runs a command that gives no rows.
func (w *world) exec(node, sql string) {
	w.t.Helper()
	conn, err := w.connect(node, super.Name, super.Password)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx := w.soon()
	defer conn.Close(ctx) //nolint:errcheck // the command's error counts
	if _, err := conn.Exec(ctx, sql); err != nil {
		w.t.Fatalf("%s on %s: %v", sql, node, err)
	}
}

// kinds lists the kinds of the events of a node, the oldest first.
func (w *world) kinds(node string) string {
	w.t.Helper()
	events, err := catalog.ListEvents(w.soon(), w.store, clusterName, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	var list []string
	for _, e := range slices.Backward(events) {
		if e.Node == node {
			list = append(list, e.Kind)
		}
	}
	return strings.Join(list, " ")
}

// whole waits until a node that was restored is wanted and serves again, and acknowledges.
func (w *world) whole(a *admin.Admin, node string) {
	w.t.Helper()
	w.until(a.Live(), node+" whole again", func(s *catalog.Snapshot) bool {
		n, r := s.Node(node), s.Rule("sh1")
		return n.Request != "" && n.Desired == catalog.DesiredRun && healthy(s, r.Leader, node) && strings.Contains(strings.Join(r.Cohort, " "), node)
	})
}

// H11, H12 without backups: a replica was away while the primary wrote more than a slot may keep. Its slot is lost, then nobody has the
// WAL that it needs: reads leave it, it leaves the cohort, is copied anew, from the other replica, and joins. The primary and its term
// stay, and clients see nothing.
func TestGapIsRestoredByCopy(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	w.settings = fewSegments
	a, agents, ws, end := failoverWorld(t, w)
	away := members[2]
	w.end(agents[away])
	if err := w.servers[away].Kill(); err != nil {
		t.Fatal(err)
	}
	w.fillLog(members[0], 6)
	w.must(members[0], "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'neki_sh1_c'", "lost")
	w.agent("sh1", away, catalog.RoleReplica, false)
	w.until(a.Live(), "restore of "+away, func(s *catalog.Snapshot) bool { return s.Node(away).Desired == catalog.DesiredRestore })
	w.whole(a, away)
	ws.progress(20)
	end()
	for _, m := range members {
		ws.check(m)
	}
	if r := a.Live().Snapshot().Rule("sh1"); r.Term != 1 || r.Leader != members[0] {
		t.Errorf("%s leads in term %d", r.Leader, r.Term)
	}
	if kinds := w.kinds(away); !strings.Contains(kinds, "fenced down rebuild restored") {
		t.Errorf("events of %s: %s", away, kinds)
	}
	w.must(away, "SELECT count(*)::text FROM pg_stat_wal_receiver WHERE sender_port = "+portText(w, members[0]), "1")
}

func portText(w *world, node string) string { return strconv.Itoa(w.port(node)) }
