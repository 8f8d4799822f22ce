package decide

import (
	"fmt"

	"neki/catalog"
)

// Decide tells what to do with a shard now. It is the only function in which failover, rejoin and cohort changes are
// chosen.
func Decide(s Shard) Verdict {
	var v Verdict
	if s.Timing == (Timing{}) {
		s.Timing = DefaultTiming()
	}
	switch {
	case s.Doc.SystemID == "" || s.Rule.ModRev == 0 || s.Rule.Phase == PhaseBootstrap:
		return Provision(s)
	case s.Rule.Phase == PhasePromoting && s.Rule.Leader == "":
		elect(&s, &v)
	case s.Rule.Phase == PhasePromoting:
		promote(&s, &v)
	case s.Rule.Phase == PhaseSwitching:
		switchOver(&s, &v)
	default:
		active(&s, &v)
	}
	return v
}

// GoesOn tells whether Decide may be asked again at once after a Write that was done, with the rule that it wrote and all else
// as it was looked at: a change of the leader has no time for looks that say nothing new. What was seen then is older than
// the rule; so is, in effect, whatever an order meets that took its time.
func GoesOn(written Action) bool {
	return written.Rule != nil && written.Rule.Phase != PhaseActive && written.Doc == nil && written.EndOp == ""
}

// active looks after a shard that has a leader.
func active(s *Shard, v *Verdict) {
	trouble, why := assess(s)
	if trouble != Fine {
		v.problem("%s: %s", trouble, why)
	}
	if s.Doc.Maintenance { // look, but don't act; a promotion that was begun is finished all the same
		return
	}
	if s.operate(v, trouble) {
		return
	}
	if urgent(s, trouble) {
		failover(s, v, why, nil)
		if len(v.Actions) > 0 {
			return
		}
	}
	switch trouble {
	case LeaderDown:
		// It was not replaced, or has died too often for another to fare better.
		l := s.member(s.Rule.Leader)
		switch {
		case l.Busy:
		case l.Held && l.desired() == catalog.DesiredRun:
			v.do(Action{Kind: Release, Node: l.ID, Term: s.Rule.Term})
		case !l.Held:
			v.do(Action{Kind: Start, Node: l.ID, Term: s.Rule.Term, Sub: s.Rule.Sub})
		}
		v.Soon = s.Timing.Straggler
		return
	case LeaderUnresponsive: // it can't be replaced without its own data
		v.do(Action{Kind: Restart, Node: s.Rule.Leader, Term: s.Rule.Term, Sub: s.Rule.Sub})
		v.Soon = s.Timing.Straggler
		return
	case LeaderStalled, LeaderSelfFenced, LeaderHostLost, LeaderUnreachable, LeaderReplicatesOnly,
		LeaderNotLeading, LeaderStarting:
		v.Soon = s.Timing.Straggler
		return
	case Fine, LeaderCannotReplicate, LeaderDiskFull:
	}
	s.tend(v, s.member(s.Rule.Leader))
}

// tend repairs what is around a leader that leads: one write of the rule at a time, the orders before it.
func (s *Shard) tend(v *Verdict, l *Member) {
	s.atRisk(v)
	if l.Promises.ResignedTerm == s.Rule.Term {
		v.do(Action{Kind: Unfence, Node: l.ID, Term: s.Rule.Term, Sub: s.Rule.Sub})
		return
	}
	v.do(Action{Kind: Apply, Node: l.ID})
	s.lead(v, l)
	s.tendMembers(v, l)
	if s.tendDocument(v, l) {
		return
	}
	s.tendCohort(v, l)
}

// lead keeps slots and synchronous standbys of the leader as the rule has them.
func (s *Shard) lead(v *Verdict, l *Member) {
	peers := s.peers(l.ID)
	if s.told(l) && equal(l.Peers, peers) && l.Promises.OwnSub <= s.Rule.Sub && len(l.LostSlots) == 0 {
		return
	}
	v.do(Action{Kind: Lead, Node: l.ID, Term: s.Rule.Term, Sub: s.Rule.Sub, Peers: peers, Standbys: Standbys(s.Rule), Acks: Demand(s.Rule)})
}

// told tells whether the rule's demands are proven to be in force at the leader.
func (s *Shard) told(l *Member) bool {
	return l.Ordered && l.InForce && l.Acks == Demand(s.Rule) && equal(l.Standbys, Standbys(s.Rule))
}

// tendDocument brings the shard's document in line: who leads, and whether the disk lets clients write.
func (s *Shard) tendDocument(v *Verdict, l *Member) bool {
	doc := s.Doc
	doc.Primary, doc.Term = s.Rule.Leader, s.Rule.Term
	why := "leader"
	switch {
	case s.lowDisk(l, s.Timing.DiskLowPercent):
		doc.ReadOnly, why = true, fmt.Sprintf("%d of %d bytes are free on %s", l.DiskFree, l.DiskTotal, l.ID)
		v.problem("LeaderDiskFull: %s", why)
	case doc.ReadOnly && l.DiskTotal > 0 && !s.lowDisk(l, s.Timing.DiskOKPercent):
		doc.ReadOnly, why = false, "there is space again"
	}
	if doc.Primary == s.Doc.Primary && doc.Term == s.Doc.Term && doc.ReadOnly == s.Doc.ReadOnly {
		return false
	}
	v.do(Action{Kind: Write, Doc: &doc, Why: why})
	return true
}

// lowDisk tells whether less than a part of the disk is free.
func (s *Shard) lowDisk(m *Member, percent int) bool {
	return m.DiskTotal > 0 && m.DiskFree*100 < m.DiskTotal*int64(percent)
}

// atRisk tells of a shard that would be stuck if it lost its leader now.
func (s *Shard) atRisk(v *Verdict) {
	if len(s.Rule.Cohort) > 1 && !s.reachable(Chain(&s.Rule), s.Rule.Leader) {
		v.problem("ShardAtRisk: without %s nobody could lead", s.Rule.Leader)
	}
}

// tendMembers repairs members that don't do what they should. Nothing here throws data of a member of the cohort away.
func (s *Shard) tendMembers(v *Verdict, l *Member) {
	for i := range s.Members {
		if m := &s.Members[i]; m.ID != l.ID {
			s.tendMember(v, l, m, inCohort(&s.Rule, m.ID) && !s.Flaws.RewindInCohort)
		}
	}
}

// tendMember repairs one; cohort says that it may hold what the leader still needs others to have.
func (s *Shard) tendMember(v *Verdict, l, m *Member, cohort bool) {
	switch {
	case !m.Known && m.desired() == catalog.DesiredRemoved && !cohort: // nothing is missing
	case !m.Known:
		v.problem("node %s doesn't answer", m.ID)
	case m.Busy:
		if m.desired() == catalog.DesiredRestore {
			v.problem("node %s is to be restored: %s", m.ID, m.Reason)
		}
	case m.desired() == catalog.DesiredFenced, m.desired() == catalog.DesiredRemoved:
		if !m.Held && !cohort {
			v.do(Action{Kind: Hold, Node: m.ID, Term: s.Rule.Term, Why: m.Reason})
		}
	case m.Held:
		v.do(Action{Kind: Release, Node: m.ID, Term: s.Rule.Term})
	case m.Empty:
		if has(l.Peers, m.ID) && !s.filling(m.ID) {
			v.do(s.fill(Clone, l, m))
		}
	case m.SystemID != s.Doc.SystemID:
		v.problem("node %s holds system %q, not the shard's %s", m.ID, m.SystemID, s.Doc.SystemID)
	case m.desired() == catalog.DesiredRestore:
		s.tendRestore(v, l, m, cohort)
	case m.Broken:
		s.fault(v, l, m, cohort, "its data was not replaced whole")
	case m.Damage != "" && !m.Primary:
		s.fault(v, l, m, cohort, "ReplicaCorrupt: "+m.Damage)
	case m.Primary && (m.Promises.RevokedBelowTerm < s.Rule.Term || !resigned(m)):
		v.problem("StaleLeader: node %s is a primary of term %d", m.ID, m.OwnTerm)
		v.do(Action{Kind: Recruit, Node: m.ID, Term: s.Rule.Term})
	case m.Exited && !m.Standby && m.Promises.RevokedBelowTerm < s.Rule.Term: // it comes up as a standby then
		v.do(Action{Kind: Recruit, Node: m.ID, Term: s.Rule.Term})
	case m.Hung:
		if m.HungFor >= s.Timing.Hung {
			v.do(Action{Kind: Restart, Node: m.ID, Term: s.Rule.Term})
		}
	case m.Exited && m.ExitedFor >= s.Timing.Restart:
		s.fault(v, l, m, cohort, "its Postgres does not start")
	default:
		s.tendStandby(v, l, m, cohort)
	}
}

// tendStandby has a standby follow the leader, by whatever way its log allows.
func (s *Shard) tendStandby(v *Verdict, l, m *Member, cohort bool) {
	if s.follows(l, m) {
		if m.Archive && l.sees(m) {
			v.do(Action{Kind: Follow, Node: m.ID, Source: l.ID, Term: s.Rule.Term})
			return
		}
		// What an operator has paused stays so, and reads leave the replica by its lag; but a member that has yet to join the
		// cohort must replay to show where its log stands. A recruit resumes by itself.
		held := m.ReplayBlocked && !m.ReplayPaused || m.ReplayPaused && !cohort && !m.Rdonly
		if held && !m.Replayed && m.StreamingFor >= s.Timing.ReplayBlocked {
			v.do(Action{Kind: Resume, Node: m.ID, Term: s.Rule.Term})
		}
		return
	}
	lineage := LineageOf(m, l, s.Rule.Term)
	if s.Flaws.FollowWithoutAncestry {
		lineage = Behind
	}
	switch lineage {
	case Behind:
		s.tendBehind(v, l, m, cohort)
	case Diverged:
		if cohort {
			v.problem("ReplicaDiverged: node %s has left the leader's line; it is still in the cohort", m.ID)
			return
		}
		v.do(Action{Kind: Rewind, Node: m.ID, Source: l.ID, Term: s.Rule.Term})
	case Alien:
		s.fault(v, l, m, cohort, "timelines that can't be told apart")
	case Unsure:
		if m.Archive { // it replays, and shows where it stands once it is through
			s.tendBehind(v, l, m, cohort)
			return
		}
		v.problem("node %s: it is not known yet where its log stands", m.ID)
	}
}

// tendBehind has a member follow whose log is a beginning of the leader's: by the archive when the leader has no more what
// it needs, and not at all when nobody has it.
func (s *Shard) tendBehind(v *Verdict, l, m *Member, cohort bool) {
	archive := s.fromArchive(l, m, cohort)
	switch {
	case s.gapLasts(m) && m.desired() == catalog.DesiredRun:
		s.fault(v, l, m, cohort, walGap)
	case m.Primary || m.Source != l.ID || m.SourceAt != l.Address || m.FollowTerm != s.Rule.Term || archive && !m.Archive:
		v.do(Action{Kind: Follow, Node: m.ID, Source: l.ID, Term: s.Rule.Term, Timeline: m.Timeline, Archive: archive || m.Archive})
	case lacks(l, m) && m.Archived == ArchiveSilent && m.MissingFor >= s.Timing.Acker:
		v.problem("node %s needs WAL that the leader has no more, and the archive doesn't answer", m.ID)
	case m.Archive:
		v.problem("node %s reads the archive", m.ID)
	}
}
