package admin

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"neki/catalog"
	"neki/cluster/decide"
)

// lateAnswer is how long an agent that was silent before is waited for, once all others have answered.
const lateAnswer = 100 * time.Millisecond

// asker remembers which agents of a shard don't answer.
type asker struct {
	mu     sync.Mutex
	open   map[string]bool // asked, and the answer is still out
	silent map[string]bool // there was no answer when it was last asked
}

// askAll asks every agent. One that was silent before, behind a link that swallows everything perhaps, holds up nothing:
// the steps of a failover, which must go on without it, would each wait for it. If its answer comes after all, the loop
// looks again.
func (s *shardLoop) askAll(ctx context.Context, nodes []*catalog.Node) []decide.Member {
	type answer struct {
		i int
		m decide.Member
	}
	list := make([]decide.Member, len(nodes))
	answers := make(chan answer, len(nodes))
	prompt, slow := map[int]bool{}, map[int]bool{}
	var over atomic.Bool
	defer over.Store(true)
	for i, n := range nodes {
		list[i] = memberOf(n)
		begun, silent := s.ask.begin(n.ID)
		if !begun {
			continue
		}
		if silent {
			slow[i] = true
		} else {
			prompt[i] = true
		}
		s.jobs.Go(func() {
			m := s.l.a.ask(ctx, n)
			s.ask.end(n.ID, m.Known)
			answers <- answer{i, m}
			if over.Load() && m.Known {
				s.nudge()
			}
		})
	}
	var late <-chan time.Time
	for len(prompt)+len(slow) > 0 {
		if len(prompt) == 0 && late == nil {
			t := time.NewTimer(lateAnswer)
			defer t.Stop()
			late = t.C
		}
		select {
		case one := <-answers:
			list[one.i] = one.m
			delete(prompt, one.i)
			delete(slow, one.i)
		case <-late:
			return list
		}
	}
	return list
}

// begin notes that a node is asked, unless it still is; silent tells whether it did not answer before.
func (a *asker) begin(node string) (begun, silent bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[node] {
		return false, true
	}
	if a.open == nil {
		a.open, a.silent = map[string]bool{}, map[string]bool{}
	}
	a.open[node] = true
	return true, a.silent[node]
}

func (a *asker) end(node string, answered bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, node)
	a.silent[node] = !answered
}

// memberOf is what is known of a member without its agent.
func memberOf(n *catalog.Node) decide.Member {
	return decide.Member{
		ID: n.ID, Rdonly: n.Role == catalog.RoleRdonly, Cell: n.Cell, Desired: n.Desired, Reason: n.Reason, Address: addressOf(n.Host, n.Port),
		Request: n.Request, Tries: n.Tries,
	}
}

// ask asks one agent what it is and does.
func (a *Admin) ask(ctx context.Context, n *catalog.Node) decide.Member {
	m := memberOf(n)
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	st, err := a.client(n).Status(ctx)
	if err != nil || st.Node != n.ID {
		return m
	}
	m.Known, m.Empty, m.SystemID, m.Standby = true, st.Empty, st.SystemID, st.Standby
	m.OwnTerm, m.Seed = st.Promises.OwnTerm, st.Seed
	if src := st.Member.Source; src != nil {
		m.Source, m.SourceAt = src.Node, addressOf(src.Host, src.Port)
	}
	m.Peers, m.Standbys, m.Acks, m.Ordered = st.Member.Peers, st.Member.Standbys, st.Member.Acks, st.Member.Led
	m.Promises, m.InForce, m.Exited, m.Hung, m.Broken = st.Promises, st.InForce, st.Exited, st.Hung, st.Broken
	m.Held, m.Writable, m.FencedLSN = st.Member.Hold != "", st.Writable, st.FencedLSN
	m.SelfFenced, m.SelfFencedFor = st.SelfFenced, st.SelfFencedFor
	m.Stalled = st.Stalled
	m.DiskFree, m.DiskTotal = st.Health.DiskFree, st.Health.DiskTotal
	if st.Member.Source != nil {
		m.FollowTerm, m.Archive = st.Member.Term, st.Member.Archive
	}
	m.Busy, m.Restored, m.Damage, m.Archived = st.Work != nil, st.Member.Restored, st.Damage, st.Archived
	o := st.Server
	m.Up, m.Primary, m.Streaming, m.LastMsg, m.Timeline = o.Up, o.Primary, o.Streaming, o.LastMsg, o.Timeline
	m.ReceiveLSN, m.ReplayLSN, m.Replayed, m.ReplayPaused = o.ReceiveLSN, o.ReplayLSN, o.Replayed, o.ReplayPaused
	m.Row, m.History, m.Acknowledgers, m.OldestLSN, m.LostSlots = o.Row, o.History, o.Acknowledgers, o.OldestLSN, o.LostSlots
	return m
}
