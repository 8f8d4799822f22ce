package decide

import (
	"cmp"

	"neki/catalog"
)

// segmentBytes is the size of a file of the write-ahead log. initdb's default is used everywhere.
const segmentBytes = 16 << 20

// Archived is what the archive said of the segment that a standby needs next.
type Archived uint8

// The answers.
const (
	ArchiveNone   Archived = iota // there is no archive, or it was not asked
	ArchiveSilent                 // it doesn't answer: nothing is concluded from that
	ArchiveHas
	ArchiveLacks
)

// lacks tells whether the leader is without the WAL that a standby needs next: the segment of the first byte that it has
// not got. Which timeline a file is named for doesn't matter, for the leader's log is one line. A standby that streams
// lacks nothing; where positions are not known nothing is concluded.
func lacks(l, m *Member) bool {
	next := max(m.ReceiveLSN, m.ReplayLSN)
	if !m.Known || !m.Standby || m.Primary || l.sees(m) || next == 0 || l.OldestLSN == 0 {
		return false
	}
	return next-next%segmentBytes < l.OldestLSN
}

// sees tells whether a leader sees a member streaming. What the member itself says is not as sure: its receiver says so
// before the leader has agreed to send anything, and again each time that it is refused.
func (m *Member) sees(other *Member) bool {
	w := m.walsender(other.ID)
	return w != nil && w.Streaming
}

// gap tells whether no source at all has what the standby needs next: neither the leader nor the archive.
func gap(l, m *Member) bool {
	return lacks(l, m) && (m.Archived == ArchiveNone || m.Archived == ArchiveLacks)
}

// gapLasts tells whether a gap is sure: what was seen of leader, member and archive is of slightly different moments, and
// a segment may be on its way from one to the other.
func (s *Shard) gapLasts(m *Member) bool {
	return m.GapFor >= s.Timing.Gap && m.MissingFor >= s.Timing.Acker
}

// fromArchive tells whether a standby should read the archive: it has what the leader has no more. One that the cohort
// can spare leaves it before; one that it can't spare reads it all the same, for nothing is thrown away by that.
func (s *Shard) fromArchive(l, m *Member, cohort bool) bool {
	if !lacks(l, m) || m.MissingFor < s.Timing.Acker && !m.Archive {
		return false
	}
	if cohort && s.canSpare(l, m.ID) {
		return false
	}
	return m.Archived == ArchiveHas || m.Archive && m.Archived == ArchiveSilent
}

// tendRestore goes on with a member that is to be restored: it leaves the cohort, is made anew, follows, and is wanted
// again once it streams.
func (s *Shard) tendRestore(v *Verdict, l, m *Member, cohort bool) {
	switch {
	case m.Request == "": // an operator wrote it by hand
		v.do(Action{Kind: Want, Node: m.ID, Desired: catalog.DesiredRestore, Why: cmp.Or(m.Reason, "an operator ordered it")})
	case m.Restored < m.Request:
		s.refill(v, l, m, cohort)
	case m.Broken:
		s.fault(v, l, m, cohort, "its data was not replaced whole")
	case m.Damage != "":
		s.fault(v, l, m, cohort, "ReplicaCorrupt: "+m.Damage)
	case m.Exited && m.ExitedFor >= s.Timing.Restart:
		s.fault(v, l, m, cohort, "its Postgres does not start")
	case s.gapLasts(m):
		s.fault(v, l, m, cohort, walGap)
	case s.follows(l, m) && l.sees(m) && m.Up && !m.Archive:
		v.do(Action{Kind: Want, Node: m.ID, Desired: catalog.DesiredRun, Why: "restored"})
	default:
		s.tendStandby(v, l, m, cohort)
	}
}

const walGap = "ReplicaWALGap: no source has the WAL that it needs"

// follows tells whether a member streams from the leader, as one of its term.
func (s *Shard) follows(l, m *Member) bool {
	return m.Streaming && m.Source == l.ID && m.SourceAt == l.Address && m.FollowTerm == s.Rule.Term
}

// fault has a member restored. What is wanted of it is written first: reads leave it at once, and any admin can go on
// from there. A member of the cohort whose data still counts stays in it for as long as it can't be spared.
func (s *Shard) fault(v *Verdict, l, m *Member, cohort bool, why string) {
	v.problem("node %s needs restore: %s", m.ID, why)
	if cohort && s.usable(m) && !s.canSpare(l, m.ID) {
		v.problem("node %s stays in the cohort: nobody else acknowledges, another replica is needed first", m.ID)
		return
	}
	v.do(Action{Kind: Want, Node: m.ID, Desired: catalog.DesiredRestore, Why: why})
}

// refill makes the data of a member anew: from the newest backup, or as a copy. The leader is the last to be copied.
func (s *Shard) refill(v *Verdict, l, m *Member, cohort bool) {
	v.problem("node %s is to be restored: %s", m.ID, m.Reason)
	switch {
	case cohort:
		v.problem("node %s is still in the cohort", m.ID)
	case s.filling(m.ID):
		v.problem("node %s waits for the restore of another", m.ID)
	case has(l.Peers, m.ID):
		v.do(s.fill(Rebuild, l, m))
	}
}

// fill is the order that fills a member's data directory.
func (s *Shard) fill(kind Kind, l, m *Member) Action {
	a := Action{
		Kind: kind, Node: m.ID, Source: l.ID, Copy: s.copySource(l, m), Term: s.Rule.Term, SystemID: s.Doc.SystemID, Request: m.Request,
		Backup: m.Tries < 2, // what a backup gave did not do: copy
	}
	if kind == Rebuild {
		a.Why = m.Reason
	}
	return a
}

// filling tells whether another member is being filled: one at a time, so that the others serve. What keeps the leader busy
// may be the wait for this very member.
func (s *Shard) filling(id string) bool {
	for i := range s.Members {
		if m := &s.Members[i]; m.Busy && m.ID != id && m.ID != s.Rule.Leader {
			return true
		}
	}
	return false
}

// copySource is whom to copy when there is no backup: a replica that is near the leader's end, else the leader.
func (s *Shard) copySource(l, m *Member) string {
	best := l
	for i := range s.Members {
		c := &s.Members[i]
		if c.ID == m.ID || c.ID == l.ID || !c.Up || !s.follows(l, c) || c.Busy || c.Broken || c.Archive || c.SystemID != s.Doc.SystemID ||
			c.desired() != catalog.DesiredRun || uint64(c.ReplayLSN)+s.Timing.GrowLag < uint64(l.ReceiveLSN) {
			continue
		}
		if best == l || c.Rdonly && !best.Rdonly || c.Rdonly == best.Rdonly && c.Cell == m.Cell && best.Cell != m.Cell {
			best = c
		}
	}
	return best.ID
}
