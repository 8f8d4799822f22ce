package admin_test

import (
	"testing"

	"neki/catalog"
	"neki/catalog/memstore"
)

// do asks for a job and waits for its end.
func (w *world) do(live *catalog.Live, j catalog.Job) *catalog.Job {
	w.t.Helper()
	j, _, err := catalog.PutJob(w.soon(), w.store, clusterName, j)
	if err != nil {
		w.t.Fatal(err)
	}
	snap := w.until(live, j.Kind+" of "+j.Node, func(s *catalog.Snapshot) bool {
		now := s.Job(j.ID)
		return now != nil && now.State.Final()
	})
	ended := snap.Job(j.ID)
	w.t.Logf("%s of %s: %s in %v, %s%s", j.Kind, j.Node, ended.State, ended.FinishedAt.Sub(ended.StartedAt), ended.Step, ended.Error)
	return ended
}

func (w *world) doNode(live *catalog.Live, kind, node string) *catalog.Job {
	w.t.Helper()
	return w.do(live, catalog.Job{Kind: kind, Shard: "sh1", Node: node, By: "test", Args: []byte("{}")})
}

// Instances are fenced, taken back and restarted while clients write: what leads gives its lead away first, what the shard
// needs is not fenced, and nothing acknowledged is lost.
func TestNodesAreFencedAndRestarted(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	a, _, ws, end := failoverWorld(t, w)
	live, leader, replica := a.Live(), members[0], members[1]
	pid := w.pid(replica)
	if j := w.doNode(live, "restart_node", replica); j.State != catalog.JobDone || w.pid(replica) == pid {
		t.Errorf("restart of a replica: %+v, process %d, before %d", j, w.pid(replica), pid)
	}
	if j := w.doNode(live, "fence", replica); j.State != catalog.JobDone || w.pid(replica) != 0 {
		t.Errorf("fence of a replica: %+v, process %d", j, w.pid(replica))
	}
	ws.progress(20)
	if j := w.doNode(live, "unfence", replica); j.State != catalog.JobDone || w.pid(replica) == 0 {
		t.Errorf("unfence: %+v, process %d", j, w.pid(replica))
	}
	pid = w.pid(leader)
	if j := w.doNode(live, "restart_node", leader); j.State != catalog.JobDone || w.pid(leader) == pid {
		t.Errorf("restart of the primary: %+v", j)
	}
	second, _ := w.settled(live, 1)
	if second == leader {
		t.Errorf("%s was restarted and leads still", leader)
	}
	if j := w.doNode(live, "fence", second); j.State != catalog.JobDone || w.pid(second) != 0 {
		t.Errorf("fence of the primary: %+v", j)
	}
	t.Logf("longest gap %v", ws.progress(20))
	if j := w.doNode(live, "unfence", second); j.State != catalog.JobDone {
		t.Errorf("unfence: %+v", j)
	}
	w.settled(live, 2)
	end()
	for _, m := range members {
		ws.check(m)
	}
}

// pid gives the postmaster of a node, 0 when none runs.
func (w *world) pid(node string) int { return w.servers[node].Running() }

// Parameters of a profile are checked by a server before anything changes, come into force on replicas first, with a
// switchover before the primary's restart, and are taken back where a server does not start with them.
func TestProfileIsRolledOut(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	a, _, ws, end := failoverWorld(t, w)
	live := a.Live()
	alter := func(parameters string) *catalog.Job {
		t.Helper()
		return w.do(live, catalog.Job{Kind: "alter_profile", Target: "profile default", By: "test", Args: []byte(
			`{"profile": "default", "parameters": ` + parameters + `}`)})
	}
	shown := func(node, name string) string {
		t.Helper()
		got, err := w.query(node, "SELECT current_setting('"+name+"')")
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, wrong := range []string{
		`{"work_mem": "lots"}`, `{"no_such_parameter": "1"}`, `{"fsync": "off"}`, `{"max_connections": "20"}`, `{"a b": "1"}`,
	} {
		if j := alter(wrong); j.State != catalog.JobFailed || j.Code != "22023" || j.Attempts != 0 {
			t.Errorf("%s: %+v", wrong, j)
		}
	}
	if p := live.Snapshot().Profile("default"); len(p.Parameters) != 0 {
		t.Errorf("what was refused is kept: %v", p.Parameters)
	}

	// One that a reload brings into force.
	pid := w.pid(members[0])
	if j := alter(`{"work_mem": "7MB"}`); j.State != catalog.JobDone {
		t.Errorf("%+v", j)
	}
	for _, m := range members {
		w.until(live, "work_mem on "+m, func(*catalog.Snapshot) bool { return shown(m, "work_mem") == "7MB" })
	}
	if w.pid(members[0]) != pid {
		t.Error("the primary was restarted for work_mem")
	}

	// One that needs a restart of everybody.
	if j := alter(`{"max_connections": "120"}`); j.State != catalog.JobDone {
		t.Errorf("%+v", j)
	}
	leader, term := w.settled(live, 1)
	if leader == members[0] {
		t.Errorf("%s leads after its restart", leader)
	}
	for _, m := range members {
		if got := shown(m, "max_connections") + shown(m, "work_mem"); got != "1207MB" {
			t.Errorf("%s: %s", m, got)
		}
	}

	// No machine has that much: the first replica does not start, gets its old parameters back, and nothing else changed.
	if j := alter(`{"shared_buffers": "8000GB"}`); j.State != catalog.JobFailed {
		t.Errorf("%+v", j)
	}
	w.until(live, "healthy cluster", func(s *catalog.Snapshot) bool {
		var others []string
		for _, m := range members {
			if m != leader {
				others = append(others, m)
			}
		}
		return healthy(s, leader, others...)
	})
	if got := live.Snapshot().Profile("default").Parameters; got["shared_buffers"] != "" || got["max_connections"] != "120" {
		t.Errorf("parameters %v", got)
	}
	if r := live.Snapshot().Rule("sh1"); r.Leader != leader || r.Term != term {
		t.Errorf("rule %+v", r)
	}
	if j := alter(`{"work_mem": null}`); j.State != catalog.JobDone {
		t.Errorf("%+v", j)
	}
	w.until(live, "the default of work_mem", func(*catalog.Snapshot) bool { return shown(leader, "work_mem") == "4MB" })
	end()
	for _, m := range members {
		ws.check(m)
	}
}
