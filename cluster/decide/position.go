package decide

import (
	"cmp"
	"slices"

	"neki/catalog"
)

// Position is how far a node's log goes: the term that its newest log belongs to, and the end of it. A log of a higher
// term holds all that was ever acknowledged in lower ones, however their LSNs compare.
type Position struct {
	Term int64
	LSN  catalog.LSN
}

// Compare orders positions by term, then LSN.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Term, q.Term), cmp.Compare(p.LSN, q.LSN))
}

// Position gives the member's. ok is false while it can't be told: a timeline whose barrier may still be in log that is
// not replayed.
//
// The newest barrier row in the log says what term the log belongs to. A timeline without its barrier was never
// acknowledged on: what is on it counts for nothing, and the node stands where that timeline began.
func (m *Member) Position() (p Position, ok bool) {
	end := max(m.ReceiveLSN, m.ReplayLSN)
	if m.ownLine() {
		return Position{m.Row.Term, end}, true
	}
	if !m.Replayed {
		return Position{}, false
	}
	rowLine := max(m.Row.Timeline, 1)
	for _, s := range m.History {
		if s.Timeline == rowLine {
			return Position{m.Row.Term, min(s.LSN, end)}, true
		}
	}
	return Position{}, false // the row's timeline is no ancestor of this one: nothing can be said
}

// ownLine tells whether the newest barrier is of the timeline that the log is on. The first timeline needs none.
func (m *Member) ownLine() bool { return m.Timeline == max(m.Row.Timeline, 1) }

// pastFloor tells whether the node has again what it may have acknowledged before its data was replaced.
func (m *Member) pastFloor() bool {
	f := m.Promises.RecruitFloor
	if f == nil {
		return true
	}
	p, ok := m.Position()
	return ok && p.Compare(Position{f.Term, f.LSN}) >= 0
}

// Lineage is how a node's log stands to a leader's.
type Lineage uint8

// The lineages.
const (
	Unsure   Lineage = iota // not enough is known yet
	Behind                  // it is a beginning of the leader's: the node can follow
	Diverged                // it left the leader's line, and can be rewound
	Alien                   // the two may share a timeline's number and differ in content: pg_rewind would not see it
)

// LineageOf tells how the member's log stands to that of the leader of a term.
func LineageOf(m, leader *Member, term int64) Lineage {
	if m.Streaming && m.FollowTerm == term {
		return Behind // the leader accepted it
	}
	end, last := max(m.ReceiveLSN, m.ReplayLSN), max(leader.ReceiveLSN, leader.ReplayLSN)
	left, on := end, false
	for _, s := range leader.History {
		if s.Timeline == m.Timeline {
			left, on = s.LSN, true
		}
	}
	switch {
	case !m.Up || m.Timeline == 0 || leader.Timeline == 0:
		return Unsure
	case m.madeLine():
		if !m.ownLine() && (on || m.Timeline == leader.Timeline) {
			return Alien
		}
	case !m.ownLine() && !m.Replayed:
		return Unsure
	}
	switch {
	case !sharesHistory(m.History, leader.History):
		return Diverged
	case foreignBarrier(m, leader) && (on || m.Timeline == leader.Timeline):
		return Alien
	case foreignBarrier(m, leader):
		return Diverged
	case m.ownLine() && m.Timeline == leader.Timeline && leader.ownLine() && m.Row.Term != leader.Row.Term:
		return Alien
	case on && end <= left, m.Timeline == leader.Timeline && end <= last:
		return Behind
	case m.Timeline == leader.Timeline:
		return Unsure // what is known of the leader may be older
	}
	return Diverged
}

// foreignBarrier tells whether the member's newest barrier may be one that the leader's log doesn't have: of a leader
// that was lost before it was acknowledged. Another may then have taken the same number for its timeline.
func foreignBarrier(m, leader *Member) bool {
	switch {
	case m.Row == (TermRow{}) || m.Row == leader.Row:
		return false
	case leader.Rows != nil:
		return !slices.Contains(leader.Rows, m.Row)
	}
	return m.Promises.OwnTerm == m.Row.Term && m.Promises.BarrierTerm < m.Row.Term
}

// madeLine tells whether the member's timeline may be one that itself made, of which no barrier is known.
func (m *Member) madeLine() bool {
	return m.Promises.OwnTerm > m.Row.Term && m.Timeline > max(m.Row.Timeline, 1)
}

// sharesHistory tells whether two histories agree on every timeline that both left.
func sharesHistory(a, b []Switch) bool {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
