package admin_test

import (
	"slices"
	"strings"
	"testing"

	"neki/catalog"
	"neki/catalog/memstore"
)

// A replica is lost for good: after the time for it another one takes its place, and an operation and events tell of it. When the
// lost one comes back it is none of the shard's. The primary and its term stay, and clients see nothing.
func TestLostReplicaIsReplaced(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	w.provider, w.timing = w, hasty()
	a, agents, ws, end := failoverWorld(t, w)
	live, lost := a.Live(), members[2]
	if _, err := catalog.PutParameter(w.soon(), store, clusterName, "admin", "replica-replace-after", "2s"); err != nil {
		t.Fatal(err)
	}
	w.end(agents[lost])
	if err := w.servers[lost].Kill(); err != nil {
		t.Fatal(err)
	}
	var j *catalog.Job
	w.until(live, "the end of the replacement", func(s *catalog.Snapshot) bool {
		i := slices.IndexFunc(s.Jobs, func(j *catalog.Job) bool { return j.Kind == "replace_replica" })
		if i < 0 || !s.Jobs[i].State.Final() {
			return false
		}
		j = s.Jobs[i]
		return true
	})
	if j.State != catalog.JobDone || j.Node != lost || !strings.HasPrefix(j.By, "admin ") {
		t.Errorf("%+v", j)
	}
	w.until(live, "replacement", func(s *catalog.Snapshot) bool {
		return healthy(s, members[0], members[1], "sh1-d") && slices.Contains(s.Rule("sh1").Cohort, "sh1-d")
	})
	ws.progress(20)
	w.agent("sh1", lost, catalog.RoleReplica, false)
	w.until(live, lost+" free", func(s *catalog.Snapshot) bool {
		n := s.Node(lost)
		return n != nil && n.Live && n.Desired == catalog.DesiredRemoved && w.status(live, lost).Member.Hold != ""
	})
	if kinds := w.kinds(lost); !strings.Contains(kinds, "lost") {
		t.Errorf("events of %s: %s", lost, kinds)
	}
	snap := live.Snapshot()
	if r := snap.Rule("sh1"); r.Term != 1 || slices.Contains(r.Cohort, lost) {
		t.Errorf("%+v", r)
	}
	if n := len(slices.DeleteFunc(slices.Clone(snap.Jobs), func(j *catalog.Job) bool { return j.Kind != "replace_replica" })); n != 1 {
		t.Errorf("%d replacements", n)
	}
	ws.progress(20)
	end()
	ws.check("sh1-d")
}
