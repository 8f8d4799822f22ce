package pooler

import (
	"context"
	"testing"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/settings"
)

// What waits for a primary is bounded by number and by bytes, for each shard; one statement may always wait.
func TestHolds(t *testing.T) {
	var h holds
	for i := range maxHeld {
		if !h.enter("a", 1) {
			t.Fatalf("statement %d may not wait", i)
		}
	}
	if h.enter("a", 1) {
		t.Error("one more may wait")
	}
	if !h.enter("b", 2*maxHeldBytes) || h.enter("b", 1) {
		t.Error("a large statement of another shard")
	}
	h.leave("b", 2*maxHeldBytes)
	h.leave("a", 1)
	if !h.enter("a", 1) {
		t.Error("one that has left leaves no room")
	}
	for range maxHeld {
		h.leave("a", 1)
	}
	h.each(func(shard string, statements, bytes int) {
		t.Errorf("%d statements, %d bytes wait for %s", statements, bytes, shard)
	})
}

// TestHeldIsTold: a primary that is to hand over is told once that nothing new comes, when statements find it no more.
func TestHeldIsTold(t *testing.T) {
	words := make(chan [2]int64, 10)
	g := startGateway(t, gatewayOptions{config: func(c *Config) {
		c.Held = func(_ context.Context, primary *catalog.Node, term, sub int64) error {
			if primary.ID == nodeName(0) {
				words <- [2]int64{term, sub}
			}
			return nil
		}
	}})
	rule := catalog.Rule{Term: 1, Phase: catalog.PhaseActive, Leader: nodeName(0), Cohort: []string{nodeName(0)}}
	for _, phase := range []string{catalog.PhaseActive, catalog.PhaseSwitching, catalog.PhaseActive, catalog.PhaseSwitching} {
		rule.Phase, rule.Sub = phase, rule.Sub+1
		rev, err := catalog.PutRule(t.Context(), g.store, testCluster, "sh1", rule, rule.ModRev)
		if err != nil {
			t.Fatal(err)
		}
		rule.ModRev = rev
		if phase != catalog.PhaseSwitching {
			continue
		}
		if got := <-words; got != [2]int64{1, rule.Sub} {
			t.Errorf("told %v of 1.%d", got, rule.Sub)
		}
		if p := g.live.Snapshot().ServingPrimary("sh1"); p != nil {
			t.Errorf("%s is still asked", p.ID)
		}
	}
	select {
	case got := <-words:
		t.Errorf("told %v once more", got)
	default:
	}
}

// TestBufferWindow: what waits for a primary longer than buffer-window fails, with the cause; what finds one goes on, also
// when its agent says so before the catalog does.
func TestBufferWindow(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: func(p *settings.Parameters) { p.BufferWindow = 500 * time.Millisecond }})
	conn := g.connect("")
	simple(t, conn, "CREATE TABLE t (k int)")
	rule := catalog.Rule{Term: 1, Phase: catalog.PhaseSwitching, Leader: nodeName(0), Cohort: []string{nodeName(0)}}
	put := func() {
		t.Helper()
		rev, err := catalog.PutRule(t.Context(), g.store, testCluster, "sh1", rule, rule.ModRev)
		if err != nil {
			t.Fatal(err)
		}
		rule.ModRev = rev
		eventually(t, "the rule is known", func() bool { r := g.live.Snapshot().Rule("sh1"); return r != nil && r.ModRev == rev })
	}
	put()
	for name, run := range runners {
		if err := run(conn, "INSERT INTO t VALUES (1)"); pgerr.Code(err) != pgerr.NoServingPrimary {
			t.Errorf("%s: %v", name, err)
		}
	}
	rule.Phase = catalog.PhasePromoting // the instances of this test report term 1, and that they serve
	put()
	for name, run := range runners {
		if err := run(conn, "INSERT INTO t VALUES (1)"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	rule.Term = 2
	put()
	if err := runners["simple"](conn, "INSERT INTO t VALUES (1)"); pgerr.Code(err) != pgerr.NoServingPrimary {
		t.Errorf("a primary of an earlier term: %v", err)
	}
}
