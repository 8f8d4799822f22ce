package decide

import (
	"fmt"
	"slices"

	"neki/catalog"
)

// tendCohort takes acknowledgers in and lets them go, one change at a time.
//
// In: the rule first, then Postgres (the Lead order that follows from the new rule). Out: the rule says that it is
// Leaving, Postgres is told, and when that is in force and a later commit acknowledged, so that the others have all that
// it acknowledged, it leaves the rule. How many must acknowledge is raised like an exit and lowered like an entry.
func (s *Shard) tendCohort(v *Verdict, l *Member) {
	r := s.Rule
	switch {
	case len(r.Leaving) > 0 || r.NextW > 0:
		s.settleChange(v, l)
		return
	case s.changePolicy(v):
		return
	}
	for i := range s.Members {
		m := &s.Members[i]
		in := slices.Contains(r.Cohort, m.ID)
		if m.ID == l.ID || m.Rdonly && !in && !s.Flaws.PromoteRdonly {
			continue
		}
		if in && s.shallLeave(l, m) && s.canSpare(l, m.ID) {
			r.Leaving, r.Sub = []string{m.ID}, r.Sub+1
			if s.Flaws.ShrinkWithoutBarrier {
				r.Cohort, r.Leaving = without(r.Cohort, m.ID), nil
			}
			v.do(Action{Kind: Write, Rule: &r, Term: r.Term, Why: fmt.Sprintf("%s acknowledges no more", m.ID)})
			return
		}
		if !in && s.mayJoin(l, m) {
			r.Cohort, r.Sub = slices.Concat(r.Cohort, []string{m.ID}), r.Sub+1
			if s.Flaws.GrowPostgresFirst {
				v.do(Action{Kind: Lead, Node: l.ID, Term: r.Term, Sub: r.Sub, Peers: s.peers(l.ID), Standbys: Standbys(r), Acks: Demand(r)})
			}
			v.do(Action{Kind: Write, Rule: &r, Term: r.Term, Why: fmt.Sprintf("%s may acknowledge", m.ID)})
			return
		}
	}
}

// settleChange ends a change of the cohort that Postgres has been told of, or takes it back when Postgres can't have it.
func (s *Shard) settleChange(v *Verdict, l *Member) {
	r := s.Rule
	switch {
	case s.told(l) && l.Promises.OwnSub >= r.Sub:
		for _, id := range r.Leaving {
			r.Cohort = without(r.Cohort, id)
		}
		if r.NextW > 0 {
			r.W, r.Policy = r.NextW, s.Doc.Durability
		}
		r.Leaving, r.NextW, r.Sub = nil, 0, r.Sub+1
		v.do(Action{Kind: Write, Rule: &r, Term: r.Term, Why: "in force"})
	case s.RuleAge >= s.Timing.Acker && len(r.Leaving) > 0:
		r.Leaving, r.Sub = nil, r.Sub+1
		v.do(Action{Kind: Write, Rule: &r, Term: r.Term, Why: "the others did not acknowledge in time"})
	default:
		v.Soon = s.Timing.Straggler
	}
}

// changePolicy brings the number of acknowledgements to what the shard's durability says.
func (s *Shard) changePolicy(v *Verdict) bool {
	r := s.Rule
	want := Acks(s.Doc.Durability)
	if s.Doc.Durability == "" || want == r.W && r.Policy == s.Doc.Durability {
		return false
	}
	switch {
	case want <= r.W: // the rule first: promotions rely on less before commits are worth less
		r.W, r.Policy = want, s.Doc.Durability
	case len(Ackers(r)) < want:
		v.problem("durability %s needs %d acknowledgers; there are %d", s.Doc.Durability, want, len(Ackers(r)))
		return false
	default:
		r.NextW = want
	}
	r.Sub++
	v.do(Action{Kind: Write, Rule: &r, Term: r.Term, Why: "durability " + s.Doc.Durability})
	return true
}

// shallLeave tells whether an acknowledger should be one no more.
func (s *Shard) shallLeave(l, m *Member) bool {
	if m.Rdonly || m.desired() == catalog.DesiredFenced || m.desired() == catalog.DesiredRestore || m.desired() == catalog.DesiredRemoved {
		return true
	}
	if lacks(l, m) && m.MissingFor >= s.Timing.Acker { // it can't come back without help
		return true
	}
	missing := m.MissingFor >= s.Timing.Acker || m.Known && (m.Broken || m.Empty)
	w := l.walsender(m.ID)
	return missing && (w == nil || !w.Streaming) && m.ChangedAgo >= s.Timing.Flap
}

// canSpare tells whether enough acknowledgers that stream are left without one.
func (s *Shard) canSpare(l *Member, id string) bool {
	return len(without(streamingAckers(s, l), id)) >= max(Demand(s.Rule), 1) || s.Rule.W == 0
}

// mayJoin tells whether a standby may become an acknowledger: it streams, steadily, from this leader, and near its end.
func (s *Shard) mayJoin(l, m *Member) bool {
	w := l.walsender(m.ID)
	if !s.usable(m) || !m.Streaming || m.Archive || m.Damage != "" || m.FollowTerm != s.Rule.Term || m.Source != l.ID || m.desired() != catalog.DesiredRun || m.Held {
		return false
	}
	if w == nil || !w.Streaming || uint64(w.Flush)+s.Timing.GrowLag < uint64(l.ReceiveLSN) {
		return false
	}
	if len(streamingAckers(s, l)) < Demand(s.Rule) { // commits wait for it
		return true
	}
	return m.StreamingFor >= s.Timing.Settle && m.ChangedAgo >= s.Timing.Flap
}

func without(list []string, id string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(x string) bool { return x == id })
}

func has(list []string, id string) bool { return slices.Contains(list, id) }

func equal(a, b []string) bool { return slices.Equal(a, b) }
