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
