package decide

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"neki/catalog"
)

// operate does what an operator asked for, while a rule is active. It tells whether that is all for now.
func (s *Shard) operate(v *Verdict, trouble Trouble) bool {
	if s.Op == nil {
		return s.leaveFenced(v, trouble)
	}
	if s.Op.FromTerm < s.Rule.Term {
		return s.endOp(v, fmt.Sprintf("done: %s leads in term %d", s.Rule.Leader, s.Rule.Term))
	}
	switch s.Op.Kind {
	case catalog.OpFailover:
		failover(s, v, "an operator ordered it", func(r *catalog.Rule) {
			r.OpID, r.Candidate, r.AcceptLoss = s.Op.ID, s.Op.Candidate, s.Op.AcceptLoss
		})
		if len(v.Actions) == 0 && s.OpAge >= s.opTimeout() {
			return s.endOp(v, "given up: too few members answer to be sure of every acknowledged commit")
		}
		return len(v.Actions) > 0
	case catalog.OpSwitchover:
		return s.beginSwitchover(v, trouble)
	}
	return s.endOp(v, fmt.Sprintf("refused: there is no operation %q", s.Op.Kind))
}

// leaveFenced moves the lead away from a leader that an operator wants fenced.
func (s *Shard) leaveFenced(v *Verdict, trouble Trouble) bool {
	l := s.member(s.Rule.Leader)
	if l == nil || l.desired() == catalog.DesiredRun || trouble != Fine {
		return false
	}
	to, why := s.candidate(l, "")
	if to == nil {
		v.problem("node %s leads and is to be %s: %s", l.ID, l.desired(), why)
		return false
	}
	s.writeSwitching(v, to.ID, "")
	return true
}

func (s *Shard) opTimeout() time.Duration { return cmp.Or(s.Op.Timeout, time.Minute) }

func (s *Shard) endOp(v *Verdict, how string) bool {
	v.do(Action{Kind: Write, EndOp: how, Why: s.Op.Kind})
	return true
}

// whyNoCandidate says what is wrong with the member that an operator named for a switchover.
func (s *Shard) whyNoCandidate(c *Member) string {
	switch {
	case c == nil:
		return "is no member of the shard"
	case c.ID == s.Rule.Leader:
		return "leads already"
	case c.Rdonly:
		return "is rdonly: it never leads"
	}
	return "can't lead: it is to be " + c.desired()
}

// beginSwitchover checks, without any effect on clients, whether a switchover can be done, and begins it.
func (s *Shard) beginSwitchover(v *Verdict, trouble Trouble) bool {
	l := s.member(s.Rule.Leader)
	if c := s.member(s.Op.Candidate); s.Op.Candidate != "" && (c == nil || c.Rdonly || c.ID == s.Rule.Leader || c.desired() != catalog.DesiredRun) {
		return s.endOp(v, fmt.Sprintf("refused: %s %s", s.Op.Candidate, s.whyNoCandidate(c)))
	}
	if trouble == Fine && l.Promises.ResignedTerm == s.Rule.Term {
		return false // an earlier one is being taken back
	}
	why := string(trouble)
	var to *Member
	if trouble == Fine {
		to, why = s.candidate(l, s.Op.Candidate)
	}
	switch {
	case to != nil:
		s.writeSwitching(v, to.ID, s.Op.ID)
		return true
	case s.OpAge >= s.opTimeout():
		return s.endOp(v, "given up: "+why)
	}
	v.problem("switchover waits: %s", why)
	v.Soon = s.Timing.Straggler
	return false
}

func (s *Shard) writeSwitching(v *Verdict, to, op string) {
	r := s.Rule
	r.Phase, r.Candidate, r.OpID, r.Sub = PhaseSwitching, to, op, r.Sub+1
	v.do(Action{Kind: Write, Rule: &r, Term: r.Term, Why: "switchover to " + to})
}

// candidate gives whom to switch to, and why there is nobody.
func (s *Shard) candidate(l *Member, wanted string) (*Member, string) {
	if len(s.Rule.Leaving) > 0 || s.Rule.NextW > 0 {
		return nil, "the cohort is being changed"
	}
	if chain := Chain(&s.Rule); !s.reachable(chain, l.ID) && !s.reachable(chain, "") {
		return nil, "too few members answer"
	}
	var able []*Member
	for _, id := range Ackers(s.Rule) {
		m := s.member(id)
		if m == nil || wanted != "" && id != wanted || !s.usable(m) || !s.electable(m) {
			continue
		}
		w := l.walsender(id)
		if m.Streaming && m.FollowTerm == s.Rule.Term && w != nil && w.Streaming && !m.ReplayPaused && !m.ReplayBlocked &&
			uint64(m.ReplayLSN)+s.Timing.GrowLag >= uint64(l.ReceiveLSN) && !s.lowDisk(m, s.Timing.DiskOKPercent) {
			able = append(able, m)
		}
	}
	if len(able) == 0 {
		return nil, "no acknowledger that could lead is near the leader"
	}
	return slices.MaxFunc(able, func(a, b *Member) int { return cmp.Compare(a.ReplayLSN, b.ReplayLSN) }), ""
}

// switchOver carries a planned switchover to the change of term: the leader resigns, the candidate gets all of its log.
func switchOver(s *Shard, v *Verdict) {
	r := s.Rule
	l, c := s.member(r.Leader), s.member(r.Candidate)
	lost := l == nil || !l.Known && l.SilentFor >= s.Timing.HostLost || l.Known && (l.Exited || !l.Primary)
	fenced := l != nil && l.Known && resigned(l) && l.Promises.ResignedTerm == r.Term && l.FencedLSN > 0
	switch {
	case lost:
		failover(s, v, fmt.Sprintf("%s was lost during a switchover", r.Leader), nil)
	case fenced && c != nil && c.Known && c.ReceiveLSN >= l.FencedLSN && c.ReplayLSN >= l.FencedLSN:
		failover(s, v, "switchover", func(next *catalog.Rule) { next.Candidate = r.Candidate })
	}
	if len(v.Actions) > 0 {
		return
	}
	limit := s.Timing.Switchover
	switch {
	case s.RuleAge >= limit:
		r.Phase, r.Candidate, r.Sub = PhaseActive, "", r.Sub+1
		a := Action{Kind: Write, Rule: &r, Term: r.Term, Why: "switchover given up"}
		if s.Op != nil {
			a.EndOp = fmt.Sprintf("given up: %s did not get all of %s's log within %v", s.Rule.Candidate, r.Leader, limit)
			if lost {
				a.EndOp = fmt.Sprintf("given up: %s was lost, and too few members answer to replace it", r.Leader)
			}
		}
		v.do(a)
	case lost:
		v.Soon = s.Timing.Straggler
	case !fenced && l.Known:
		v.do(Action{Kind: Fence, Node: l.ID, Term: r.Term, Sub: r.Sub})
		v.Soon = s.Timing.Straggler / 4
	default:
		v.Soon = s.Timing.Straggler / 20
	}
}
