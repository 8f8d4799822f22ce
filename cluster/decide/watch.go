package decide

import (
	"time"

	"neki/catalog"
)

// Watch remembers since when things are as they are, for one shard and one admin. Times are of any clock that only goes
// forward; they are never compared with another process's.
type Watch struct {
	nodes     map[string]*sighting
	ruleRev   int64
	ruleAt    time.Duration
	term      int64
	termAt    time.Duration
	failovers []time.Duration // of the last five minutes
	ruleOp    string          // of the rule that began the term
	opID      string
	opAt      time.Duration
}

// sighting is what is remembered of a node. A time is that of the first look that found it so.
type sighting struct {
	known, exited, hung, streaming, missing, changed time.Duration
	selfFenced, gap                                  time.Duration
	inCohort                                         bool
	term                                             int64 // of the rule that inCohort is of; 0 = not seen in an active one yet
}

const unset = time.Duration(-1)

// See fills in the durations of a look at a time, and remembers.
func (w *Watch) See(now time.Duration, s *Shard) {
	if w.nodes == nil {
		w.nodes = map[string]*sighting{}
		w.ruleRev, w.term = -1, -1
	}
	w.seeRule(now, s)
	leader := s.member(s.Rule.Leader)
	for i := range s.Members {
		w.seeMember(now, s, leader, &s.Members[i])
	}
}

func (w *Watch) seeRule(now time.Duration, s *Shard) {
	if s.Rule.ModRev != w.ruleRev {
		w.ruleRev, w.ruleAt = s.Rule.ModRev, now
	}
	if s.Rule.Term != w.term {
		if w.term > 0 && !w.asked(&s.Rule) {
			w.failovers = append(w.failovers, now)
		}
		w.term, w.termAt, w.ruleOp = s.Rule.Term, now, s.Rule.OpID
	}
	for len(w.failovers) > 0 && now-w.failovers[0] > 5*time.Minute {
		w.failovers = w.failovers[1:]
	}
	s.RuleAge, s.TermAge, s.Failovers = now-w.ruleAt, now-w.termAt, len(w.failovers)
	s.OpAge = 0
	if s.Op != nil {
		if s.Op.ID != w.opID {
			w.opID, w.opAt = s.Op.ID, now
		}
		s.OpAge = now - w.opAt
	}
}

// asked reports whether an operator wanted the term that r begins.
func (w *Watch) asked(r *catalog.Rule) bool {
	return r.Prev != nil && r.Prev.Phase == PhaseSwitching || r.OpID != "" && r.OpID != w.ruleOp
}

func (w *Watch) seeMember(now time.Duration, s *Shard, leader, m *Member) {
	n := w.nodes[m.ID]
	if n == nil {
		n = &sighting{known: now - m.SilentBefore, exited: unset, hung: unset, streaming: unset, missing: unset, changed: unset, selfFenced: unset, gap: unset}
		w.nodes[m.ID] = n
	}
	if s.Rule.Phase == PhaseActive {
		in := inCohort(&s.Rule, m.ID) && !has(s.Rule.Leaving, m.ID)
		// Who is left out by a change of the leader has not flapped: it may come back as soon as it follows.
		if n.term == s.Rule.Term && in != n.inCohort {
			n.changed = now
		}
		n.inCohort, n.term = in, s.Rule.Term
	}
	if m.Known {
		n.known = now
	}
	m.SilentFor = now - n.known
	streams := false
	if leader != nil && leader.Known && leader.Up {
		streams = leader.sees(m)
		since(&n.streaming, streams, now)
		since(&n.missing, !streams, now)
		if m.Known {
			since(&n.gap, gap(leader, m), now)
		}
	}
	if m.Known {
		since(&n.exited, m.Exited, now)
		since(&n.hung, m.Hung, now)
		since(&n.selfFenced, m.SelfFenced, now)
	}
	m.ExitedFor, m.HungFor, m.GapFor = age(n.exited, now), age(n.hung, now), age(n.gap, now)
	m.StreamingFor, m.MissingFor = age(n.streaming, now), age(n.missing, now)
	m.SelfFencedFor = max(m.SelfFencedFor, age(n.selfFenced, now))
	m.ChangedAgo = Never
	if n.changed != unset {
		m.ChangedAgo = now - n.changed
	}
}

// since keeps the time from which something holds.
func since(at *time.Duration, holds bool, now time.Duration) {
	switch {
	case !holds:
		*at = unset
	case *at == unset:
		*at = now
	}
}

func age(at, now time.Duration) time.Duration {
	if at == unset {
		return 0
	}
	return now - at
}
