package decide

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"neki/catalog"
)

// quorum is the set of members that count for a promotion, and what they say.
type quorum struct {
	set  map[string]bool
	best Position
	late []string // could count soon: they run, and have not promised yet
}

// electors are the members that may have acknowledged what the next leader must have.
func (s *Shard) electors(chain []*catalog.Rule) []*Member {
	var list []*Member
	for i := range s.Members {
		m := &s.Members[i]
		in := s.Rule.AcceptLoss || s.Flaws.PromoteRdonly && m.Rdonly
		for _, r := range chain {
			in = in || slices.Contains(r.Cohort, m.ID)
		}
		if in && (!m.Rdonly || s.Flaws.PromoteRdonly) {
			list = append(list, m)
		}
	}
	return list
}

// recruits gives those that promised the term: their receivers are cut, so they acknowledge nothing below it.
func (s *Shard) recruits(chain []*catalog.Rule, term int64) quorum {
	q := quorum{set: map[string]bool{}}
	for _, m := range s.electors(chain) {
		if !s.usable(m) {
			continue
		}
		pledged := m.Promises.RevokedBelowTerm >= term && (!m.Streaming || m.FollowTerm >= term)
		p, ok := m.Position()
		switch {
		case !pledged && !s.Flaws.NoPledge, !ok || !m.Up, m.Primary && m.OwnTerm < term && !resigned(m):
			if m.Up { // one that starts, as an old primary does that was killed, would take long to say where its log ends
				q.late = append(q.late, m.ID)
			}
			continue
		}
		q.set[m.ID] = true
		if s.better(p, q.best) {
			q.best = p
		}
	}
	return q
}

// better tells whether a position is beyond another.
func (s *Shard) better(p, q Position) bool {
	if s.Flaws.LSNAlone {
		return p.LSN > q.LSN
	}
	return p.Compare(q) > 0
}

// resigned tells whether a primary acknowledges nothing any more in the term that it led.
func resigned(m *Member) bool {
	return m.Promises.ResignedTerm != 0 && m.Promises.ResignedTerm == m.OwnTerm && !m.Writable
}

// safe is Safe, unless a flaw is put in.
func (s *Shard) safe(chain []*catalog.Rule, set map[string]bool) bool {
	if s.Flaws.AnyQuorum {
		return len(set) > 0
	}
	return Safe(chain, set)
}

// reachable tells whether enough members answer for a promotion without the one named, and one of them could lead. A
// failover that could not be finished must not be begun: it would take down a leader that may still work.
func (s *Shard) reachable(chain []*catalog.Rule, without string) bool {
	set, able := map[string]bool{}, false
	for _, m := range s.electors(chain) {
		if m.ID == without || !s.usable(m) || m.Held && m.desired() != catalog.DesiredRun {
			continue
		}
		set[m.ID] = true
		able = able || s.electable(m)
	}
	return able && s.safe(chain, set)
}

// electable tells whether a member could lead.
func (s *Shard) electable(m *Member) bool {
	return (!m.Rdonly || s.Flaws.PromoteRdonly) && m.desired() == catalog.DesiredRun && !m.Stalled && !m.Busy
}

// nextTerm gives the rule with which a new leader is looked for. The rule before stays in it for as long as commits of
// its time must be looked for.
func nextTerm(r catalog.Rule, f Flaws) catalog.Rule {
	next := catalog.Rule{
		Term: r.Term + 1, Phase: PhasePromoting, Policy: r.Policy, W: r.W, OpID: r.OpID, SystemID: r.SystemID,
		Timeline: r.Timeline, SwitchLSN: r.SwitchLSN,
	}
	next.Prev = r.Prev
	if r.Phase != PhasePromoting || f.ForgetOutgoing && r.Leader != "" {
		r.Prev = nil
	}
	if r.Leader != "" {
		next.Prev = prune(&r)
	}
	next.AcceptLoss = r.AcceptLoss && r.Leader == ""
	return next
}

// prune drops from a chain the rules that demand nothing that a newer one doesn't, so that it stays short however often
// promotions fail.
func prune(r *catalog.Rule) *catalog.Rule {
	kept := *r
	seen := []*catalog.Rule{&kept}
	last := &kept
	for p := r.Prev; p != nil; p = p.Prev {
		same := slices.ContainsFunc(seen, func(q *catalog.Rule) bool {
			return q.Leader == p.Leader && q.W == p.W && slices.Equal(Ackers(*q), Ackers(*p))
		})
		if same {
			continue
		}
		link := *p
		link.Prev = nil
		last.Prev, last = &link, &link
		seen = append(seen, &link)
	}
	if last == &kept {
		kept.Prev = nil
	}
	return &kept
}

// failover begins a new term, if it can be finished.
func failover(s *Shard, v *Verdict, why string, change func(*catalog.Rule)) {
	r := nextTerm(s.Rule, s.Flaws)
	r.Reason = why
	if change != nil {
		change(&r)
	}
	without := s.Rule.Leader
	if l := s.member(without); l != nil && l.Known && !l.Exited && !l.Hung && !l.Stalled {
		without = "" // its own data counts once it is stopped
	}
	if !r.AcceptLoss && !s.reachable(Chain(r.Prev), without) {
		v.problem("ShardStuck: %s; too few members answer to be sure of every acknowledged commit", why)
		return
	}
	v.do(Action{Kind: Write, Rule: &r, Term: r.Term, Why: why})
}

// elect looks for the leader of a term: recruit everybody, and choose the one that is furthest once they are enough.
func elect(s *Shard, v *Verdict) {
	r := s.Rule
	chain := Chain(r.Prev)
	if r.AcceptLoss {
		chain = nil
	}
	s.recruitAll(v, chain)
	q := s.recruits(chain, r.Term)
	switch {
	case !s.safe(chain, q.set):
		if s.TermAge >= s.Timing.HostLost {
			v.problem("ShardStuck: term %d has no leader; %s promised, that is too few; waits for %s",
				r.Term, names(q.set), missing(chain, q.set))
		}
		v.Soon = s.Timing.Straggler
		return
	case len(without(q.late, s.spare(chain))) > 0 && s.TermAge < s.Timing.Straggler, r.AcceptLoss && s.TermAge < s.Timing.HostLost:
		v.Soon = s.Timing.Straggler / 4
		return
	}
	x := s.choose(chain, q)
	if x == nil {
		v.problem("ShardStuck: term %d: none of %s can lead", r.Term, names(q.set))
		v.Soon = s.Timing.Straggler
		return
	}
	r.Leader, r.Cohort, r.Sub = x.ID, s.incoming(chain, q, x), r.Sub+1
	v.do(Action{Kind: Write, Rule: &r, Term: r.Term, Why: fmt.Sprintf("chosen of %s", names(q.set))})
}

// spare is a planned switchover's old leader, which has resigned: no promise is asked of it as long as the others suffice,
// which would cost the time of stopping it. "" = there is none.
func (s *Shard) spare(chain []*catalog.Rule) (spare string) {
	for _, r := range chain {
		if m := s.member(r.Leader); m != nil && resigned(m) && m.Promises.ResignedTerm == r.Term && s.reachable(chain, m.ID) {
			spare = m.ID
		}
	}
	return spare
}

// recruitAll orders the members that have not promised the term to do so.
func (s *Shard) recruitAll(v *Verdict, chain []*catalog.Rule) {
	spare := s.spare(chain)
	for _, m := range s.electors(chain) {
		if m.Known && m.Held && m.desired() == catalog.DesiredRun {
			v.do(Action{Kind: Release, Node: m.ID, Term: s.Rule.Term})
		}
		if m.Known && !m.Empty && m.ID != spare && (m.Promises.RevokedBelowTerm < s.Rule.Term || m.Primary && m.OwnTerm < s.Rule.Term && !resigned(m)) {
			v.do(Action{Kind: Recruit, Node: m.ID, Term: s.Rule.Term})
		}
	}
}

// choose gives the recruit that shall lead: one that is furthest; among equals whom the operator named, who has
// replayed all, then the first.
func (s *Shard) choose(chain []*catalog.Rule, q quorum) *Member {
	var able, furthest []*Member
	for _, m := range s.electors(chain) {
		if p, _ := m.Position(); !q.set[m.ID] || s.better(q.best, p) || m.Busy {
			continue
		}
		furthest = append(furthest, m)
		if s.electable(m) {
			able = append(able, m)
		}
	}
	if len(able) == 0 {
		able = furthest // one that is to be fenced, say: it alone has all, and hands over afterwards
	}
	if len(able) == 0 {
		return nil
	}
	slices.SortStableFunc(able, func(a, b *Member) int {
		return cmp.Or(
			-cmpBool(a.ID == s.Rule.Candidate, b.ID == s.Rule.Candidate), -cmpBool(a.Replayed, b.Replayed),
			-cmpBool(!s.lowDisk(a, s.Timing.DiskOKPercent), !s.lowDisk(b, s.Timing.DiskOKPercent)),
			cmp.Compare(a.Promises.OwnTerm, b.Promises.OwnTerm))
	})
	return able[0]
}

func cmpBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// incoming is the cohort of a new term: the leader and those recruits whose log is a beginning of its log.
func (s *Shard) incoming(chain []*catalog.Rule, q quorum, x *Member) []string {
	cohort := []string{x.ID}
	for _, m := range s.electors(chain) {
		if m.ID == x.ID || !q.set[m.ID] || m.desired() != catalog.DesiredRun {
			continue
		}
		if LineageOf(m, x, s.Rule.Term) == Behind && !m.Primary {
			cohort = append(cohort, m.ID)
		}
	}
	return cohort
}

// promote carries a chosen leader over the line.
func promote(s *Shard, v *Verdict) {
	r := s.Rule
	x := s.member(r.Leader)
	switch {
	case x != nil && x.Known && x.Held && x.desired() == catalog.DesiredRun:
		v.do(Action{Kind: Release, Node: x.ID, Term: r.Term})
		return
	case x != nil && x.Known && x.HungFor >= s.Timing.Hung && !s.reachable(Chain(&r), x.ID):
		v.do(Action{Kind: Restart, Node: x.ID, Term: r.Term})
		v.Soon = s.Timing.Straggler
		return
	case x == nil, !x.Known && x.SilentFor >= s.Timing.Promote, x.Known && !s.usable(x),
		x.Known && x.HungFor >= s.Timing.Promote, x.Known && x.Promises.RevokedBelowTerm > r.Term, x.Known && x.Held:
		failover(s, v, fmt.Sprintf("%s, chosen for term %d, is lost", r.Leader, r.Term), nil)
		return
	case !x.Known:
		v.problem("the agent of %s, chosen for term %d, doesn't answer", x.ID, r.Term)
		v.Soon = s.Timing.Straggler
		return
	case x.Promises.BarrierTerm == r.Term && x.Primary:
		s.activate(v, x)
		return
	}
	if s.alone(v, x) {
		return
	}
	s.followers(v, x)
	if wait := s.fenceWait(Chain(r.Prev)); wait > 0 {
		v.Soon = wait
		return
	}
	v.do(Action{Kind: Promote, Node: x.ID, Term: r.Term, Sub: r.Sub, Peers: s.peers(x.ID), Standbys: Standbys(r), Acks: Demand(r)})
	s.growPromoting(v, x)
	v.Soon = s.Timing.Straggler
}

// alone deals with a chosen leader whose barrier nobody can acknowledge, because no acknowledger gets to it: if the others
// can do without it, another is chosen. It tells whether that is so.
func (s *Shard) alone(v *Verdict, x *Member) bool {
	n := len(streamingAckers(s, x))
	if n >= Demand(s.Rule) || s.RuleAge < s.Timing.Acker || slices.ContainsFunc(x.Acknowledgers, func(w Walsender) bool { return w.Streaming }) {
		return false
	}
	why := fmt.Sprintf("%d of %v stream from %s, chosen for term %d, whose first commit waits for %d", n, Standbys(s.Rule), x.ID, s.Rule.Term, Demand(s.Rule))
	v.problem("%s: %s", LeaderCannotReplicate, why)
	if s.RuleAge < s.Timing.Unreachable || !s.reachable(Chain(&s.Rule), x.ID) {
		return false
	}
	failover(s, v, why, nil)
	return len(v.Actions) > 0
}

// activate ends a promotion: the barrier was acknowledged, so the new cohort has all that any before acknowledged.
func (s *Shard) activate(v *Verdict, x *Member) {
	r, doc := s.Rule, s.Doc
	h := &catalog.History{Term: r.Term, Leader: x.ID, Timeline: x.Timeline, Reason: r.Reason}
	if n := len(x.History); n > 0 {
		h.Parent, h.SwitchLSN = x.History[n-1].Timeline, x.History[n-1].LSN
	}
	r.Phase, r.Prev, r.Sub, r.Timeline, r.SwitchLSN = PhaseActive, nil, r.Sub+1, h.Timeline, h.SwitchLSN
	r.Candidate, r.AcceptLoss = "", false
	doc.Primary, doc.Term, doc.Ready = x.ID, r.Term, true
	a := Action{Kind: Write, Rule: &r, Doc: &doc, History: h, Term: r.Term, Why: "barrier acknowledged"}
	if s.Op != nil && s.Op.FromTerm < r.Term {
		a.EndOp = fmt.Sprintf("done: %s leads in term %d", x.ID, r.Term)
	}
	v.do(a)
}

// followers points the recruits, and members that came late, at the chosen leader. As long as it lacks acknowledgers for
// its barrier, those that must be rewound or copied for that are, too, if they are not in the new cohort: the chosen
// leader has all that they acknowledged.
func (s *Shard) followers(v *Verdict, x *Member) {
	lacking := x.Primary && len(streamingAckers(s, x)) < Demand(s.Rule)
	for i := range s.Members {
		m := &s.Members[i]
		if m.ID == x.ID || !m.Known || m.Held || m.Busy || m.desired() != catalog.DesiredRun && m.desired() != catalog.DesiredRestore ||
			m.Promises.RevokedBelowTerm > s.Rule.Term {
			continue
		}
		switch {
		case lacking && !slices.Contains(s.Rule.Cohort, m.ID):
			s.tendMember(v, x, m, false)
		case m.desired() == catalog.DesiredRestore:
		case m.Empty || m.Broken || m.Primary || m.SystemID != s.Doc.SystemID:
		case m.FollowTerm == s.Rule.Term && m.Source == x.ID && m.SourceAt == x.Address:
		case LineageOf(m, x, s.Rule.Term) == Behind || s.Flaws.FollowWithoutAncestry:
			v.do(Action{Kind: Follow, Node: m.ID, Source: x.ID, Term: s.Rule.Term, Timeline: m.Timeline})
		}
	}
}

// growPromoting takes a standby that streams from the chosen leader into the cohort while too few can acknowledge the
// barrier.
func (s *Shard) growPromoting(v *Verdict, x *Member) {
	r := s.Rule
	if len(streamingAckers(s, x)) >= Demand(r) {
		return
	}
	var grown []string
	for i := range s.Members {
		m := &s.Members[i]
		// One that was rewound for this may be short of its floor until it has the barrier: it counts for nothing before.
		if w := x.walsender(m.ID); !slices.Contains(r.Cohort, m.ID) && s.intact(m) && !m.Rdonly && w != nil && w.Streaming &&
			m.FollowTerm == r.Term && m.desired() == catalog.DesiredRun {
			grown = append(grown, m.ID)
		}
	}
	if len(grown) == 0 {
		return
	}
	r.Cohort, r.Sub = slices.Concat(r.Cohort, grown), r.Sub+1
	v.do(Action{Kind: Write, Rule: &r, Term: r.Term, Why: fmt.Sprintf("%v stream from %s", grown, x.ID)})
}

// fenceWait is how long a promotion waits for old leaders that may still think that they lead: they can't get a commit
// acknowledged, but they could answer reads.
func (s *Shard) fenceWait(chain []*catalog.Rule) (wait time.Duration) {
	for _, r := range chain {
		m := s.member(r.Leader)
		if m == nil || r.Leader == s.Rule.Leader {
			continue
		}
		fenced := m.Known && (m.Exited || m.Empty || m.Promises.RevokedBelowTerm >= s.Rule.Term || resigned(m) || !m.Primary)
		if limit := s.Timing.Isolation + s.Timing.Isolation/20; !fenced && s.TermAge < limit {
			wait = max(wait, limit-s.TermAge)
		}
	}
	return wait
}

// peers are the members that need a slot at a leader: all others but those that are to leave the shard, and are stopped.
func (s *Shard) peers(leader string) []string {
	list := make([]string, 0, len(s.Members))
	for i := range s.Members {
		m := &s.Members[i]
		if m.ID != leader && (m.desired() != catalog.DesiredRemoved || inCohort(&s.Rule, m.ID) || m.Known && !m.Held) {
			list = append(list, m.ID)
		}
	}
	return list
}

func names(set map[string]bool) string {
	list := make([]string, 0, len(set))
	for id := range set {
		list = append(list, id)
	}
	slices.Sort(list)
	return fmt.Sprint(list)
}

// missing tells which members could make a set of recruits suffice.
func missing(chain []*catalog.Rule, set map[string]bool) string {
	var list []string
	for _, r := range chain {
		for _, id := range r.Cohort {
			if !set[id] && !slices.Contains(list, id) {
				list = append(list, id)
			}
		}
	}
	slices.Sort(list)
	return fmt.Sprint(list)
}
