package sim

import (
	"slices"
	"time"

	"neki/catalog"
	"neki/cluster/decide"
)

// disk is what an agent has in its files.
type disk struct {
	Promises   decide.Promises
	FollowTerm int64
	Source     int
	Led        bool
	Standbys   []string
	Acks       int
	Hold       bool
	Peers      []string
	Restored   string
}

// node is one instance and its agent.
type node struct {
	w      *world
	host   int
	id     string
	rdonly bool
	pg     *postgres
	disk   disk
	saved  disk    // what a crash of the agent leaves: disk, but for the flaw ForgetPromises
	rate   float64 // of its clock

	up          bool // the agent
	life        int  // of the agent
	busy        bool // an order is under way
	orders      []order
	done        map[string]bool
	confirmedAt time.Duration // start of the last read that confirmed that it leads; unset = none
	selfFenced  time.Duration // since when; unset = not
	inForce     bool
	forceLife   int
	fencedLSN   int
	downAt      time.Duration
	asking      bool // a read before a start is under way
	barring     bool // a barrier is under way
}

// order is an action on its way through an agent.
type order struct {
	action decide.Action
	head   decide.Head
	reply  func(ok bool)
}

const unset = time.Duration(-1)

func newNode(w *world, i int, rdonly bool) *node {
	n := &node{w: w, host: i, id: string(rune('a' + i)), rdonly: rdonly, up: true, done: map[string]bool{}, confirmedAt: unset, selfFenced: unset}
	n.rate = 0.99 + 0.02*w.rnd.Float64()
	n.pg = &postgres{n: n, tli: 1, source: -1}
	n.disk.Source = -1
	return n
}

// begin brings the node up in a shard that is whole.
func (n *node) begin(rule catalog.Rule, leads bool) {
	n.disk.Promises.SystemID = "7"
	n.pg.signal = !leads
	if leads {
		n.disk.Promises.OwnTerm, n.disk.Promises.BarrierTerm = 1, 1
		n.disk.Led, n.disk.Standbys, n.disk.Acks = true, decide.Standbys(rule), decide.Demand(rule)
		n.pg.standbys, n.pg.acks = n.disk.Standbys, n.disk.Acks
		n.confirmedAt = 0
	} else {
		n.disk.Source, n.disk.FollowTerm, n.pg.source = 0, 1, 0
	}
	n.saved = n.disk
	n.pg.start()
	n.pg.open = leads
	n.w.after(n.w.upTo(time.Second), n.keepalive)
	n.w.after(n.w.upTo(time.Second), n.tick)
}

func (n *node) keepalive() {
	n.pg.keepalive()
	n.w.after(n.w.between(600*time.Millisecond, time.Second), n.keepalive)
}

// save puts the agent's files on disk.
func (n *node) save() {
	before, now := n.saved.Promises, n.disk.Promises
	if now.Epoch < before.Epoch || now.OwnTerm < before.OwnTerm || now.RevokedBelowTerm < before.RevokedBelowTerm {
		n.w.fail("I5", "%s takes back %+v for %+v", n.id, before, now)
	}
	if n.w.flaws.ForgetPromises {
		before.SystemID, before.OwnTerm, before.OwnSub, before.BarrierTerm = now.SystemID, now.OwnTerm, now.OwnSub, now.BarrierTerm
		n.saved = n.disk
		n.saved.Promises = before
		return
	}
	n.saved = n.disk
}

// since gives an age by the node's own clock.
func (n *node) since(t time.Duration) time.Duration {
	if t == unset {
		return decide.Never
	}
	return time.Duration(float64(n.w.now-t) * n.rate)
}

func (n *node) crashAgent(down time.Duration) {
	if !n.up {
		return
	}
	n.up = false
	n.life++
	n.busy, n.orders, n.done = false, nil, map[string]bool{}
	n.asking, n.barring, n.inForce, n.confirmedAt, n.selfFenced, n.fencedLSN = false, false, false, unset, unset, 0
	n.disk = n.saved
	n.w.say("%s: agent ends", n.id)
	n.w.after(down, func() { n.up = true; n.downAt = n.w.now; n.w.say("%s: agent is back", n.id); n.adopt() })
}

// adopt brings the configuration of a standby that runs in line with what was promised before the agent ended. That of a
// primary is looked at all the time.
func (n *node) adopt() {
	p := n.pg
	if !p.running || p.primary {
		return
	}
	life := p.life
	n.later(n.w.upTo(30*time.Millisecond), func() {
		if p.life != life || !p.running || p.primary || p.frozen {
			return
		}
		source := n.disk.Source
		if !decide.Sources(n.disk.Promises, n.disk.FollowTerm) {
			source = -1
		}
		if p.source != source {
			p.cut()
		}
		p.source = source
		p.connect()
	})
}

func (n *node) pgEnded() { n.downAt, n.inForce, n.fencedLSN, n.barring = n.w.now, false, 0, false }

// later does something if the agent still lives then.
func (n *node) later(d time.Duration, do func()) {
	life := n.life
	n.w.after(d, func() {
		if n.life == life && n.up {
			do()
		}
	})
}

// status is what the agent says of itself.
func (n *node) status() decide.Member {
	p, d := n.pg, &n.disk
	m := decide.Member{
		ID: n.id, Rdonly: n.rdonly, Address: n.id, Known: true, Empty: p.empty, SystemID: "7", OwnTerm: d.Promises.OwnTerm,
		Standby: p.signal, Peers: d.Peers, Standbys: d.Standbys, Acks: d.Acks, Ordered: d.Led,
		InForce: n.inForce && n.forceLife == p.life, Up: p.running && !p.frozen, Primary: p.running && p.primary, Timeline: p.tli,
		Busy: n.busy, Promises: d.Promises, Exited: !p.running, Held: d.Hold, Hung: p.running && p.frozen,
		SelfFenced: n.selfFenced != unset, Broken: d.Promises.RewindInProgress && !n.busy, FollowTerm: d.FollowTerm, Restored: d.Restored,
		ReceiveLSN: catalog.LSN(p.len()), ReplayLSN: catalog.LSN(p.replayed), Replayed: p.running && p.replayed == p.len(),
		ReplayPaused: p.paused > 0, Row: p.row(), History: p.history, FencedLSN: catalog.LSN(n.fencedLSN),
	}
	m.Writable = m.Primary && !p.fenced
	if m.Primary && n.w.sched.Seed%2 == 0 { // with one acknowledger, what a node knows of itself suffices
		m.Rows = p.rows()
	}
	if n.w.sched.W > 1 {
		m.Rows = p.rows()
	}
	if !m.Up { // it can't be asked
		m.Timeline, m.ReceiveLSN, m.ReplayLSN, m.Replayed, m.Row, m.History = 0, 0, 0, false, decide.TermRow{}, nil
	}
	if d.Source >= 0 {
		m.Source, m.SourceAt = n.w.nodes[d.Source].id, n.w.nodes[d.Source].id
	}
	if p.link != nil && !p.frozen {
		m.Streaming = true
		if l := p.link; l.closed || n.w.cuts[l.up.n.host][n.host] > 0 || !l.alive() || l.up.frozen {
			m.LastMsg = 4 * time.Second // it will be noticed at the next keepalive
		}
	}
	if n.selfFenced != unset {
		m.SelfFencedFor = n.since(n.selfFenced)
	}
	for i, l := range p.links {
		if l != nil && !l.closed {
			m.Acknowledgers = append(m.Acknowledgers, decide.Walsender{
				Node: n.w.nodes[i].id, Streaming: true, Sync: contains(p.standbys, n.w.nodes[i].id),
				Flush: catalog.LSN(l.flushed), ReplyAge: n.since(l.repliedAt),
			})
		}
	}
	return m
}

// tick is the agent's own care: starts, proofs, the barrier after a start.
func (n *node) tick() {
	n.w.after(time.Duration(float64(500*time.Millisecond)/n.rate), n.tick)
	if !n.up {
		return
	}
	p := n.pg
	switch {
	case !p.running:
		if !n.busy {
			n.start(false)
		}
	case p.primary:
		n.confirm()
		n.selfFence()
		n.verify()
		n.openAfterStart()
	}
}

// start starts Postgres as the rules say; a primary only after a read of the catalog.
func (n *node) start(ordered bool) {
	self := decide.Self{Node: n.id, HasData: !n.pg.empty, Standby: n.pg.signal, Held: n.disk.Hold, DownFor: n.since(n.downAt)}
	as, _ := decide.HowToStart(n.disk.Promises, self, nil, ordered, n.w.flaws)
	if as != decide.StartWait || n.asking {
		n.startAs(as)
		return
	}
	n.asking = true
	life := n.life
	n.later(2*time.Second, func() { n.asking = false })
	n.w.store.ask(n.host, func() func() {
		rule := n.w.store.rule()
		return func() {
			if n.life != life || !n.up || n.pg.running || n.busy && !ordered || !n.asking {
				return
			}
			n.asking = false
			self.Standby, self.HasData, self.Held = n.pg.signal, !n.pg.empty, n.disk.Hold
			as, why := decide.HowToStart(n.disk.Promises, self, &rule, ordered, n.w.flaws)
			if as != decide.StartWait {
				n.w.say("%s: starts as %d %s", n.id, as, why)
			}
			n.startAs(as)
		}
	})
}

func (n *node) startAs(as decide.StartAs) {
	p := n.pg
	switch as {
	case decide.StartStandby:
		p.signal = true
		p.source = n.disk.Source
		if !decide.Sources(n.disk.Promises, n.disk.FollowTerm) {
			p.source = -1
		}
		p.start()
	case decide.StartPrimary:
		if n.w.store.over(n.disk.Promises.OwnTerm, n.downAt) {
			n.w.fail("I2", "%s starts as primary of term %d, which was over before it ended", n.id, n.disk.Promises.OwnTerm)
		}
		n.configure()
		p.start()
	case decide.StartNothing, decide.StartWait:
	}
}

// configure puts the demands into Postgres's configuration, at a start.
func (n *node) configure() {
	names, acks, ok := decide.Demands(n.disk.Promises, n.disk.Led, n.disk.Standbys, n.disk.Acks, n.selfFenced != unset)
	n.pg.standbys, n.pg.acks, n.pg.fenced = names, acks, !ok
}

// verify repairs a configuration that did not come into effect.
func (n *node) verify() {
	p := n.pg
	names, acks, ok := decide.Demands(n.disk.Promises, n.disk.Led, n.disk.Standbys, n.disk.Acks, n.selfFenced != unset)
	if !n.busy && (p.fenced == ok || ok && (p.acks != acks || !slices.Equal(p.standbys, names))) {
		n.reconfigure(nil)
	}
}

// reconfigure does so in a running server: walsenders follow a little later.
func (n *node) reconfigure(done func()) {
	life := n.pg.life
	n.later(n.w.between(2*time.Millisecond, 40*time.Millisecond), func() {
		if n.pg.life != life || !n.pg.running || n.pg.frozen {
			return
		}
		n.configure()
		n.w.checkStandbys()
		n.pg.release()
		if done != nil {
			done()
		}
	})
}

// confirm reads the rule, linearizably.
func (n *node) confirm() {
	began, life := n.w.now, n.life
	n.w.store.ask(n.host, func() func() {
		rule := n.w.store.rule()
		return func() {
			if n.life != life || !n.up || !decide.Confirms(n.disk.Promises, n.id, &rule) {
				return
			}
			n.confirmedAt = max(n.confirmedAt, began)
			if n.selfFenced != unset && began >= n.selfFenced {
				n.selfFenced = unset
				n.w.say("%s: serves again", n.id)
				n.reconfigure(nil)
			}
		}
	})
}

// selfFence takes the primary out when nothing proves that it leads.
func (n *node) selfFence() {
	p := n.pg
	if n.selfFenced != unset || n.disk.Promises.ResignedTerm == n.disk.Promises.OwnTerm {
		return
	}
	proof := decide.Proof{Confirmed: n.since(n.confirmedAt), Acks: p.acks}
	for _, id := range p.standbys {
		if l := p.links[n.w.node(id).host]; l != nil && !l.closed && !p.fenced {
			proof.Replies = append(proof.Replies, n.since(l.repliedAt))
		}
	}
	if decide.Serves(proof, decide.DefaultTiming().Isolation) {
		return
	}
	n.selfFenced = n.w.now
	p.open = false
	n.w.say("%s: fences itself", n.id)
	n.reconfigure(nil)
}

// openAfterStart commits the barrier of a primary that is not open, and opens it when it is acknowledged.
func (n *node) openAfterStart() {
	p := n.pg
	fenced := n.selfFenced != unset || n.disk.Promises.ResignedTerm == n.disk.Promises.OwnTerm
	if p.open || p.frozen || n.barring || n.busy || fenced || n.disk.Promises.RevokedBelowTerm > n.disk.Promises.OwnTerm {
		return
	}
	n.barrier(nil)
}

// barrier commits the barrier of the node's term; acknowledged, it opens the server to clients.
func (n *node) barrier(done func()) {
	p := n.pg
	life, term := p.life, n.disk.Promises.OwnTerm
	n.barring = true
	n.later(3*time.Second, func() { n.barring = false })
	at := p.len() + 1 // of this barrier
	open := func() {
		if n.up && p.life == life && n.selfFenced == unset && n.disk.Promises.ResignedTerm != term {
			p.open = true
			n.w.acknowledge(p, p.openable(at, n.w.flaws), "it was opened to clients")
		}
	}
	if n.w.flaws.OpenBeforeBarrier {
		open()
	}
	p.commit(entryBarrier, func() {
		if !n.up || p.life != life || n.disk.Promises.OwnTerm != term || n.disk.Promises.RevokedBelowTerm > term {
			return
		}
		n.barring = false
		n.disk.Promises.BarrierTerm = term
		n.save()
		open()
		if done != nil {
			done()
		}
	})
}

// openable is what clients can read of a primary that is opened: what was there before the barrier, which is at a position,
// unless that is acknowledged already. A later barrier may still wait, and can't be seen.
func (p *postgres) openable(barrier int, f decide.Flaws) int {
	if f.OpenBeforeBarrier {
		return p.len()
	}
	return barrier
}
