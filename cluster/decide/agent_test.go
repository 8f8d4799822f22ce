package decide

import (
	"testing"
	"time"

	"neki/catalog"
)

func TestAccept(t *testing.T) {
	led := Promises{Epoch: 5, OwnTerm: 3, OwnSub: 2, RevokedBelowTerm: 3}
	followed := Promises{Epoch: 5, OwnTerm: 1, RevokedBelowTerm: 3}
	cases := []struct {
		name string
		p    Promises
		kind Kind
		h    Head
		want *Promises // nil = refused
	}{
		{"no op_id", led, Lead, Head{Epoch: 5, Term: 3, Sub: 2}, nil},
		{"a deposed admin", led, Lead, Head{4, 3, 2, "o"}, nil},
		{"a term that is over", followed, Follow, Head{5, 2, 0, "o"}, nil},
		{"lead", led, Lead, Head{6, 3, 4, "o"}, &Promises{Epoch: 6, OpID: "o", OwnTerm: 3, OwnSub: 4, RevokedBelowTerm: 3}},
		{"lead, late", led, Lead, Head{5, 3, 1, "o"}, nil},
		{"lead of a node that follows", followed, Lead, Head{5, 3, 1, "o"}, nil},
		{"fence", led, Fence, Head{5, 3, 3, "o"}, &Promises{Epoch: 5, OpID: "o", OwnTerm: 3, OwnSub: 3, RevokedBelowTerm: 3, ResignedTerm: 3}},
		{
			"unfence keeps the resignation until the read",
			Promises{Epoch: 5, OwnTerm: 3, ResignedTerm: 3},
			Unfence,
			Head{5, 3, 4, "o"},
			&Promises{Epoch: 5, OpID: "o", OwnTerm: 3, OwnSub: 4, ResignedTerm: 3},
		},
		{"promote", followed, Promote, Head{5, 3, 1, "o"}, &Promises{Epoch: 5, OpID: "o", OwnTerm: 3, OwnSub: 1, RevokedBelowTerm: 3}},
		{"promote, not promised", followed, Promote, Head{5, 4, 1, "o"}, nil},
		{"promote, promised a later term", Promises{Epoch: 5, RevokedBelowTerm: 4}, Promote, Head{5, 3, 1, "o"}, nil},
		{"promote data that is being replaced", Promises{Epoch: 5, RevokedBelowTerm: 3, RewindInProgress: true}, Promote, Head{5, 3, 1, "o"}, nil},
		{"follow promises", followed, Follow, Head{5, 4, 0, "o"}, &Promises{Epoch: 5, OpID: "o", OwnTerm: 1, RevokedBelowTerm: 4}},
		{"the leader of a term doesn't follow in it", led, Follow, Head{5, 3, 9, "o"}, nil},
		{"a recruit promises later, after its cut", followed, Recruit, Head{5, 4, 0, "o"}, &Promises{Epoch: 5, OpID: "o", OwnTerm: 1, RevokedBelowTerm: 3}},
	}
	for _, c := range cases {
		got, err := Accept(c.p, c.kind, c.h, Flaws{})
		switch {
		case c.want == nil && err == nil:
			t.Errorf("%s: accepted", c.name)
		case c.want == nil && got != c.p:
			t.Errorf("%s: refused, but promises became %+v", c.name, got)
		case c.want != nil && (err != nil || got != *c.want):
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, *c.want)
		}
	}
}

func TestHowToStart(t *testing.T) {
	rule := func(leader string, term int64, phase string) *catalog.Rule {
		return &catalog.Rule{Term: term, Leader: leader, Phase: phase, Cohort: []string{"a", "b"}}
	}
	old := Self{Node: "a", HasData: true, DownFor: time.Hour}
	led := Promises{OwnTerm: 2}
	cases := []struct {
		name    string
		p       Promises
		self    Self
		rule    *catalog.Rule
		ordered bool
		want    StartAs
	}{
		{"no data", led, Self{Node: "a"}, nil, false, StartNothing},
		{"held", led, Self{Node: "a", HasData: true, Held: true}, nil, true, StartNothing},
		{"a rewind was interrupted", Promises{RewindInProgress: true}, Self{Node: "a", HasData: true, Standby: true}, nil, false, StartNothing},
		{"a standby needs no catalog", led, Self{Node: "a", HasData: true, Standby: true}, nil, false, StartStandby},
		{"a primary's data and no catalog", led, old, nil, true, StartWait},
		{"it leads", led, old, rule("a", 2, PhaseActive), false, StartPrimary},
		{"it leads, just died: another may be chosen", led, Self{Node: "a", HasData: true}, rule("a", 2, PhaseActive), false, StartWait},
		{"... by order at once", led, Self{Node: "a", HasData: true}, rule("a", 2, PhaseActive), true, StartPrimary},
		{"... alone at once", led, Self{Node: "a", HasData: true}, &catalog.Rule{Term: 2, Leader: "a", Phase: PhaseActive, Cohort: []string{"a"}}, false, StartPrimary},
		{"it was chosen and died in its promotion", led, Self{Node: "a", HasData: true}, rule("a", 2, PhasePromoting), false, StartPrimary},
		{"it was to resign", led, old, rule("a", 2, PhaseSwitching), true, StartWait},
		{"another leads", led, old, rule("b", 3, PhaseActive), true, StartStandby},
		{"a leader is looked for", led, old, rule("", 3, PhasePromoting), true, StartStandby},
		{"it leads in another term than it was told", led, old, rule("a", 3, PhaseActive), true, StartStandby},
		{"it has promised a later term, whatever the rule says", Promises{OwnTerm: 2, RevokedBelowTerm: 3}, old, rule("a", 2, PhaseActive), true, StartStandby},
	}
	for _, c := range cases {
		if got, why := HowToStart(c.p, c.self, c.rule, c.ordered, Flaws{}); got != c.want {
			t.Errorf("%s: %d (%s), want %d", c.name, got, why, c.want)
		}
	}
}

func TestServes(t *testing.T) {
	const s = time.Second
	cases := []struct {
		name  string
		proof Proof
		want  bool
	}{
		{"confirmed", Proof{Confirmed: 2 * s, Acks: 1}, true},
		{"not lately", Proof{Confirmed: 4 * s, Acks: 1}, false},
		{"the catalog is away, an acknowledger replies", Proof{Confirmed: Never, Replies: []time.Duration{9 * s, s}, Acks: 1}, true},
		{"too few of two", Proof{Confirmed: Never, Replies: []time.Duration{9 * s, s}, Acks: 2}, false},
		{"without acknowledgements only the catalog can tell", Proof{Confirmed: 4 * s, Replies: []time.Duration{s}}, false},
	}
	for _, c := range cases {
		if got := Serves(c.proof, 3*s); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

func TestMayUnfence(t *testing.T) {
	p := Promises{OwnTerm: 2, OwnSub: 4, ResignedTerm: 2}
	h := Head{Epoch: 1, Term: 2, Sub: 4, OpID: "o"}
	cases := []struct {
		name string
		p    Promises
		rule *catalog.Rule
		want bool
	}{
		{"active again", p, &catalog.Rule{Term: 2, Sub: 4, Leader: "a", Phase: PhaseActive}, true},
		{"the catalog is away", p, nil, false},
		{"the term has changed", p, &catalog.Rule{Term: 3, Leader: "", Phase: PhasePromoting}, false},
		{"another switchover has begun", p, &catalog.Rule{Term: 2, Sub: 5, Leader: "a", Phase: PhaseSwitching}, false},
		{"what was read is older than the order", p, &catalog.Rule{Term: 2, Sub: 2, Leader: "a", Phase: PhaseActive}, false},
		{"it has promised the next term meanwhile", Promises{OwnTerm: 2, ResignedTerm: 2, RevokedBelowTerm: 3}, &catalog.Rule{Term: 2, Sub: 4, Leader: "a", Phase: PhaseActive}, false},
	}
	for _, c := range cases {
		if err := MayUnfence(c.p, "a", h, c.rule, Flaws{}); (err == nil) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestDemands(t *testing.T) {
	cases := []struct {
		name       string
		p          Promises
		ordered    bool
		selfFenced bool
		want       bool
	}{
		{"told", Promises{OwnTerm: 2, RevokedBelowTerm: 2}, true, false, true},
		{"never told", Promises{OwnTerm: 2}, false, false, false},
		{"resigned", Promises{OwnTerm: 2, ResignedTerm: 2}, true, false, false},
		{"resigned in an earlier term", Promises{OwnTerm: 2, ResignedTerm: 1}, true, false, true},
		{"promised the next term", Promises{OwnTerm: 2, RevokedBelowTerm: 3}, true, false, false},
		{"fenced itself", Promises{OwnTerm: 2}, true, true, false},
	}
	for _, c := range cases {
		if _, _, ok := Demands(c.p, c.ordered, []string{"b"}, 1, c.selfFenced); ok != c.want {
			t.Errorf("%s: %t", c.name, ok)
		}
	}
}

func TestReplaceRaisesTheFloorOnly(t *testing.T) {
	p := Replace(Promises{}, Position{2, 100}, 2)
	p = Replace(Replaced(p), Position{1, 900}, 1) // interrupted: what is left is less
	if f := p.RecruitFloor; f.Term != 2 || f.LSN != 100 || !p.RewindInProgress {
		t.Fatalf("%+v", p)
	}
	if p = Replace(p, Position{3, 5}, 3); p.RecruitFloor.Term != 3 {
		t.Fatalf("%+v", p.RecruitFloor)
	}
}

func TestWatch(t *testing.T) {
	var w Watch
	look := func(at time.Duration, known, streams bool, cohort ...string) *Member {
		s := &Shard{Rule: catalog.Rule{Term: 1, Phase: PhaseActive, Leader: "a", Cohort: cohort, ModRev: 1}}
		a := Member{ID: "a", Known: true, Up: true}
		if streams {
			a.Acknowledgers = []Walsender{{Node: "b", Streaming: true}}
		}
		s.Members = []Member{a, {ID: "b", Known: known}}
		w.See(at, s)
		return &s.Members[1]
	}
	const s = time.Second
	if b := look(0, true, true, "a", "b"); b.SilentFor != 0 || b.MissingFor != 0 || b.ChangedAgo != Never {
		t.Fatalf("at first: %+v", b)
	}
	look(2*s, false, false, "a", "b")
	if b := look(5*s, false, false, "a", "b"); b.SilentFor != 5*s || b.MissingFor != 3*s || b.StreamingFor != 0 {
		t.Fatalf("gone: silent %v, missing %v, streaming %v", b.SilentFor, b.MissingFor, b.StreamingFor)
	}
	look(6*s, true, true, "a")
	if b := look(8*s, true, true, "a"); b.SilentFor != 0 || b.StreamingFor != 2*s || b.ChangedAgo != 2*s {
		t.Fatalf("back: silent %v, streaming %v, changed %v", b.SilentFor, b.StreamingFor, b.ChangedAgo)
	}
}

// An admin that begins to lead counts the silence that it has seen before.
func TestWatchSilenceBefore(t *testing.T) {
	var w Watch
	s := Shard{Members: []Member{{ID: "a", SilentBefore: 4 * time.Second}, {ID: "b"}, {ID: "c", Known: true}}}
	w.See(0, &s)
	w.See(time.Second, &s)
	for i, want := range []time.Duration{5 * time.Second, time.Second, 0} {
		if got := s.Members[i].SilentFor; got != want {
			t.Errorf("%s is silent for %v, not %v", s.Members[i].ID, got, want)
		}
	}
}

// The old leader of a switchover comes back to the cohort at once: that it left with its term is no flapping.
func TestWatchChangeOfLeader(t *testing.T) {
	var w Watch
	look := func(at time.Duration, r catalog.Rule) time.Duration {
		s := &Shard{Rule: r, Members: []Member{{ID: "a", Known: true, Up: true}, {ID: "b", Known: true, Up: true}}}
		w.See(at, s)
		return s.Members[0].ChangedAgo
	}
	const s = time.Second
	look(0, catalog.Rule{Term: 1, Phase: PhaseActive, Leader: "a", Cohort: []string{"a", "b"}, ModRev: 1})
	look(1*s, catalog.Rule{Term: 2, Phase: PhasePromoting, Prev: &catalog.Rule{Cohort: []string{"a", "b"}}, ModRev: 2})
	if got := look(2*s, catalog.Rule{Term: 2, Sub: 1, Phase: PhaseActive, Leader: "b", Cohort: []string{"b"}, ModRev: 3}); got != Never {
		t.Errorf("left with its term %v ago", got)
	}
	if got := look(3*s, catalog.Rule{Term: 2, Sub: 2, Phase: PhaseActive, Leader: "b", Cohort: []string{"b", "a"}, ModRev: 4}); got != 0 {
		t.Errorf("joined %v ago, want just now", got)
	}
}

// Only failures count as failovers that a shard has had lately: the first term does not, nor does one that an operator
// asked for.
func TestWatchFailovers(t *testing.T) {
	rule := func(term int64, phase string, prev *catalog.Rule) catalog.Rule {
		return catalog.Rule{Term: term, Phase: phase, ModRev: term, Prev: prev}
	}
	asked := rule(2, PhasePromoting, &catalog.Rule{Phase: PhaseSwitching})
	failed := rule(2, PhasePromoting, &catalog.Rule{Phase: PhaseActive})
	for name, c := range map[string]struct {
		seen []catalog.Rule
		want int
	}{
		"bootstrap":           {[]catalog.Rule{{}, rule(1, PhaseBootstrap, nil)}, 0},
		"a new admin":         {[]catalog.Rule{failed}, 0},
		"switchover":          {[]catalog.Rule{rule(1, PhaseActive, nil), asked}, 0},
		"switchover, then it": {[]catalog.Rule{rule(1, PhaseActive, nil), asked, rule(3, PhasePromoting, &catalog.Rule{Phase: PhaseActive})}, 1},
		"failover":            {[]catalog.Rule{rule(1, PhaseActive, nil), failed}, 1},
		"forced by somebody":  {[]catalog.Rule{rule(1, PhaseActive, nil), {Term: 2, Phase: PhasePromoting, OpID: "o", ModRev: 2}}, 0},
		"after a forced one":  {[]catalog.Rule{{Term: 2, Phase: PhaseActive, OpID: "o"}, {Term: 3, Phase: PhasePromoting, OpID: "o", ModRev: 2}}, 1},
	} {
		var w Watch
		s := &Shard{}
		for i, r := range c.seen {
			s.Rule = r
			w.See(time.Duration(i)*time.Second, s)
		}
		if s.Failovers != c.want {
			t.Errorf("%s: %d failovers, want %d", name, s.Failovers, c.want)
		}
	}
}
