package decide

import (
	"fmt"
	"time"

	"neki/catalog"
)

// Trouble is what is wrong with a shard's leader; neki's problems and events name it so.
type Trouble string

// The troubles, the one that is dealt with first at the top.
const (
	Fine                  Trouble = ""
	LeaderDown            Trouble = "LeaderDown"               // its agent says that the postmaster is gone
	LeaderUnresponsive    Trouble = "LeaderUnresponsive"       // its Postgres runs and answers no probe
	LeaderStalled         Trouble = "LeaderStalled"            // its disk doesn't answer
	LeaderSelfFenced      Trouble = "LeaderIsolatedSelfFenced" // it could not prove that it leads
	LeaderHostLost        Trouble = "LeaderHostLost"           // its agent is silent, and so it is to its acknowledgers
	LeaderUnreachable     Trouble = "LeaderUnreachable"        // its agent is silent, what its acknowledgers see is not known
	LeaderReplicatesOnly  Trouble = "LeaderUnreachableButReplicated"
	LeaderNotLeading      Trouble = "LeaderNotLeading" // it runs as a standby, or holds no data
	LeaderStarting        Trouble = "LeaderStarting"
	LeaderCannotReplicate Trouble = "LeaderCannotReplicate" // too few acknowledgers stream: commits wait
	LeaderDiskFull        Trouble = "LeaderDiskFull"
)

// assess tells what is wrong with the leader of an active rule.
func assess(s *Shard) (Trouble, string) {
	l := s.member(s.Rule.Leader)
	if l == nil {
		return LeaderHostLost, fmt.Sprintf("the leader, %s, is not a member any more", s.Rule.Leader)
	}
	t := &s.Timing
	switch {
	case !l.Known:
		return assessSilent(s, l)
	case l.Empty || l.Broken || l.SystemID != s.Doc.SystemID:
		return LeaderNotLeading, fmt.Sprintf("the leader, %s, has no usable data of the shard", l.ID)
	case l.Exited:
		return LeaderDown, fmt.Sprintf("the Postgres of the leader, %s, ended", l.ID)
	case l.Hung && l.HungFor >= t.Hung:
		return LeaderUnresponsive, fmt.Sprintf("the Postgres of the leader, %s, answers no probe for %v", l.ID, l.HungFor)
	case l.Stalled:
		return LeaderStalled, fmt.Sprintf("the disk of the leader, %s, doesn't answer", l.ID)
	case l.SelfFenced:
		return LeaderSelfFenced, fmt.Sprintf("the leader, %s, fenced itself", l.ID)
	case l.Hung || !l.Up:
		return LeaderStarting, fmt.Sprintf("the leader, %s, is not up", l.ID)
	case !l.Primary || l.OwnTerm != s.Rule.Term:
		return LeaderNotLeading, fmt.Sprintf("the leader, %s, is not a primary of term %d", l.ID, s.Rule.Term)
	case len(streamingAckers(s, l)) < Demand(s.Rule):
		return LeaderCannotReplicate, fmt.Sprintf("%d of %v stream from %s, a commit waits for %d",
			len(streamingAckers(s, l)), Standbys(s.Rule), l.ID, Demand(s.Rule))
	}
	return Fine, ""
}

// assessSilent tells what may be the matter with a leader whose agent is silent, by what its acknowledgers see.
func assessSilent(s *Shard, l *Member) (Trouble, string) {
	if l.SilentFor < s.Timing.HostLost {
		return LeaderUnreachable, fmt.Sprintf("the agent of the leader, %s, doesn't answer", l.ID)
	}
	deaf, hears := 0, 0
	for _, id := range Ackers(s.Rule) {
		m := s.member(id)
		switch {
		case m == nil || !m.Known:
		case m.Streaming && m.FollowTerm == s.Rule.Term && m.LastMsg <= s.Timing.HostLost+m.lastMsgSlack():
			hears++
		default:
			deaf++
		}
	}
	switch need := len(Ackers(s.Rule)) - s.Rule.W + 1; {
	case deaf >= need && hears == 0:
		return LeaderHostLost, fmt.Sprintf("the leader, %s, is silent for %v, and so it is to its acknowledgers", l.ID, l.SilentFor)
	case hears > 0:
		return LeaderReplicatesOnly, fmt.Sprintf("the agent of the leader, %s, is silent for %v, but the leader replicates", l.ID, l.SilentFor)
	}
	return LeaderUnreachable, fmt.Sprintf("the agent of the leader, %s, is silent for %v, and too few acknowledgers answer", l.ID, l.SilentFor)
}

// lastMsgSlack: an idle receiver hears from its primary only when it asks, after half of wal_receiver_timeout.
func (m *Member) lastMsgSlack() time.Duration { return 500 * time.Millisecond }

// urgent tells whether a trouble is answered by another leader, and now. Otherwise it may go away by itself.
func urgent(s *Shard, t Trouble) bool {
	l := s.member(s.Rule.Leader)
	switch t {
	case LeaderDown:
		return s.Failovers < s.Timing.Frequent || l.ExitedFor >= s.Timing.Restart
	case LeaderUnresponsive, LeaderHostLost, LeaderNotLeading, LeaderStalled:
		return true
	case LeaderSelfFenced:
		return l.SelfFencedFor >= s.Timing.Isolation
	case LeaderReplicatesOnly, LeaderUnreachable:
		return l.SilentFor >= s.Timing.Unreachable && !s.GatewaysReach
	case LeaderStarting:
		return s.RuleAge >= s.Timing.Restart && l.ExitedFor == 0 && l.HungFor >= s.Timing.Restart
	case Fine, LeaderCannotReplicate, LeaderDiskFull:
	}
	return false
}

// streamingAckers are the nodes of Standbys that stream from the leader, as it sees them.
func streamingAckers(s *Shard, leader *Member) []string {
	var list []string
	for _, id := range Standbys(s.Rule) {
		if w := leader.walsender(id); w != nil && w.Streaming {
			list = append(list, id)
		}
	}
	return list
}

func (m *Member) walsender(node string) *Walsender {
	for i := range m.Acknowledgers {
		if m.Acknowledgers[i].Node == node {
			return &m.Acknowledgers[i]
		}
	}
	return nil
}

// usable tells whether the member's data may count in a quorum at all.
func (s *Shard) usable(m *Member) bool { return s.intact(m) && (m.pastFloor() || s.Flaws.NoFloor) }

// intact tells whether the member holds whole data of the shard.
func (s *Shard) intact(m *Member) bool {
	return m.Known && !m.Empty && !m.Broken && m.SystemID == s.Doc.SystemID && (!m.Rdonly || s.Flaws.PromoteRdonly)
}

// desired is what is wanted of the member.
func (m *Member) desired() string {
	if m.Desired == "" {
		return catalog.DesiredRun
	}
	return m.Desired
}
