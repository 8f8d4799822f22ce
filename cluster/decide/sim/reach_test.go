package sim

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"neki/catalog"
	"neki/cluster/decide"
)

// states, which nobody changes, are what a member can be found in, whatever the rule says. The log of each is whole unless it says otherwise.
var states = map[string]func(n *node, term int64){
	"as it should be": func(*node, int64) {},
	"stopped":         func(n *node, _ int64) { n.pg.kill() },
	"frozen":          func(n *node, _ int64) { n.pg.frozen = true },
	"cut off":         func(n *node, _ int64) { n.becomeStandby(); n.pg.cut() },
	"has promised the term": func(n *node, term int64) {
		n.becomeStandby()
		n.pg.cut()
		n.disk.Promises = decide.Pledge(n.disk.Promises, term)
		n.save()
	},
	"broken": func(n *node, _ int64) {
		n.pg.kill()
		n.disk.Promises.RewindInProgress = true
		n.save()
	},
	"empty": func(n *node, _ int64) {
		n.pg.kill()
		n.pg.log, n.pg.replayed, n.pg.empty, n.pg.signal = nil, 0, true, false
	},
	"held": func(n *node, _ int64) {
		n.disk.Hold = true
		n.save()
		n.pg.kill()
	},
	"primary": func(n *node, _ int64) {
		n.pg.cut()
		n.disk.Promises.OwnTerm = max(n.disk.Promises.OwnTerm, 1)
		n.save()
		n.pg.signal, n.pg.primary, n.pg.fenced = false, true, true
	},
	"resigned": func(n *node, _ int64) {
		n.pg.cut()
		n.pg.signal, n.pg.primary, n.pg.fenced = false, true, true
		n.disk.Promises.OwnTerm = max(n.disk.Promises.OwnTerm, 1)
		n.disk.Promises.ResignedTerm = n.disk.Promises.OwnTerm
		n.save()
	},
	"diverged": func(n *node, _ int64) {
		n.pg.kill()
		n.disk.Source, n.disk.FollowTerm, n.pg.source = -1, 0, -1
		n.disk.Promises.OwnTerm = max(n.disk.Promises.OwnTerm, 2)
		n.save()
		n.pg.promote() // in a term that came to nothing
		n.pg.append(entryWrite)
	},
	"replay paused":     func(n *node, _ int64) { n.pg.paused = 1 },
	"without its agent": func(n *node, _ int64) { n.crashAgent(2 * time.Second) },
}

// lost tells of the states in which a member's data are gone or will not be shown.
func lost(state string) bool { return state == "broken" || state == "empty" }

// phases are the rules that a shard can be found under; its cohort is {a, b, c}, and c is always as it should be.
var phases = map[string]func(r *catalog.Rule){
	"active":    func(*catalog.Rule) {},
	"switching": func(r *catalog.Rule) { r.Phase, r.Candidate = decide.PhaseSwitching, "b" },
	"searching": func(r *catalog.Rule) {
		prev := *r
		*r = catalog.Rule{Term: 4, Phase: decide.PhasePromoting, Policy: r.Policy, W: 1, Prev: &prev, SystemID: "7"}
	},
	"promoting": func(r *catalog.Rule) {
		prev := *r
		*r = catalog.Rule{Term: 4, Sub: 1, Phase: decide.PhasePromoting, Leader: "b", Cohort: []string{"b", "c"}, Policy: r.Policy, W: 1, Prev: &prev, SystemID: "7"}
	},
}

// start is one way in which a shard can be found, and what is wanted of b.
type start struct{ phase, a, b, goal string }

// hopeless: too little is left to be sure of every acknowledged commit. That is for an operator to decide.
func (c start) hopeless() bool {
	return lost(c.a) && lost(c.b) || c.goal == catalog.DesiredFenced && (lost(c.a) || c.a == "held" || c.a == "diverged")
}

// TestEveryGoalIsReached is I7: from every state that two members of three can be in, under every rule, with one of them
// wanted or fenced, the shard becomes whole, and the fenced one stopped, without a hand.
func TestEveryGoalIsReached(t *testing.T) {
	starts := make(chan start)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for c := range starts {
				if why := c.run(); why != "" {
					t.Errorf("%+v: %s", c, why)
				}
			}
		})
	}
	for phase := range phases {
		for a := range states {
			for b := range states {
				for _, goal := range []string{catalog.DesiredRun, catalog.DesiredFenced} {
					if c := (start{phase, a, b, goal}); !c.hopeless() {
						starts <- c
					}
				}
			}
		}
	}
	close(starts)
	workers.Wait()
}

// run lets two minutes pass and tells what is not as it should be then.
func (c start) run() string {
	w := newWorld(Schedule{Seed: 1, Nodes: 3, Admins: 1, W: 1, Pace: 600 * time.Millisecond}, decide.Flaws{}, true)
	w.after(400*time.Millisecond, func() {
		r := w.store.rule()
		r.Term = 3
		for _, n := range w.nodes { // earlier terms are known to all
			n.disk.Promises.RevokedBelowTerm, n.disk.FollowTerm = 3, 3
		}
		w.nodes[0].disk.Promises.OwnTerm, w.nodes[0].disk.Promises.BarrierTerm = 3, 3
		phases[c.phase](&r)
		if r.Leader == "b" { // chosen of those that had promised
			states["has promised the term"](w.nodes[1], r.Term)
			states["has promised the term"](w.nodes[2], r.Term)
		}
		w.store.put(ruleKey, r)
		states[c.a](w.nodes[0], r.Term)
		states[c.b](w.nodes[1], r.Term)
		w.store.desired[1] = c.goal
	})
	w.end = 120 * time.Second
	if f := w.run(); f != nil {
		return f.Error()
	}
	why := w.unfinished(c.goal)
	if why == "" {
		return ""
	}
	return why + fmt.Sprintf("; %+v\n", w.store.rule()) + strings.Join(w.log[max(0, len(w.log)-12):], "\n")
}

// unfinished tells what is not as it should be.
func (w *world) unfinished(goal string) string {
	r := w.store.rule()
	want := 3
	if goal == catalog.DesiredFenced {
		want = 2
		if b := w.nodes[1]; !b.disk.Hold || b.pg.running || contains(r.Cohort, "b") {
			return "b is not fenced"
		}
	}
	if r.Phase != decide.PhaseActive || len(r.Cohort) != want || len(r.Leaving) > 0 {
		return "the rule is not whole"
	}
	for _, id := range r.Cohort {
		n := w.node(id)
		if id == r.Leader && !n.pg.open {
			return id + " doesn't serve"
		}
		if id != r.Leader && (n.pg.link == nil || n.pg.paused == 0 && n.pg.replayed < n.pg.len()-3) {
			// what an operator has paused stays paused
			return fmt.Sprintf("%s doesn't follow: %+v", id, n.disk)
		}
	}
	return ""
}
