package sim

import (
	"slices"
	"time"

	"neki/catalog"
	"neki/cluster/decide"
)

// take queues an order that came over the network.
func (n *node) take(o order) {
	if !n.up {
		return
	}
	n.orders = append(n.orders, o)
	n.work()
}

// work begins the next order when none is under way.
func (n *node) work() {
	if n.busy || len(n.orders) == 0 || !n.up {
		return
	}
	o := n.orders[0]
	n.orders = n.orders[1:]
	if n.done[o.head.OpID] {
		o.reply(true)
		n.work()
		return
	}
	promises, err := decide.Accept(n.disk.Promises, o.action.Kind, o.head, n.w.flaws)
	if err != nil {
		n.w.say("%s: refuses %s: %v", n.id, o.action, err)
		o.reply(false)
		n.work()
		return
	}
	if promises != n.disk.Promises {
		n.disk.Promises = promises
		n.save()
	}
	n.busy = true
	n.perform(o, func(ok bool) {
		n.busy = false
		if ok {
			n.done[o.head.OpID] = true
		}
		o.reply(ok)
		n.work()
	})
}

// perform does the steps of an order, each some time after the one before; a crash of the agent leaves it anywhere.
func (n *node) perform(o order, end func(ok bool)) {
	n.w.say("%s: %s", n.id, o.action)
	life := n.life
	ended := false
	finish := func(ok bool) {
		if n.life == life && n.up && !ended {
			ended = true
			end(ok)
		}
	}
	n.later(4*time.Second, func() { finish(false) }) // no order holds the runner for ever
	a := o.action
	switch a.Kind {
	case decide.Recruit:
		n.recruit(a, finish)
	case decide.Promote:
		n.promote(a, finish)
	case decide.Lead:
		n.lead(a, finish)
	case decide.Fence:
		n.fence(finish)
	case decide.Unfence:
		n.unfence(o.head, finish)
	case decide.Follow:
		n.follow(a, finish)
	case decide.Rewind, decide.Rebuild, decide.Clone:
		n.replace(a, finish)
	case decide.Start:
		if !n.pg.running {
			n.start(true)
		}
		finish(true)
	case decide.Hold:
		n.disk.Hold = true
		n.save()
		n.pg.kill()
		finish(true)
	case decide.Release:
		n.disk.Hold = false
		n.save()
		finish(true)
	case decide.Restart:
		n.pg.kill()
		finish(true)
	case decide.Resume:
		n.pg.paused = 0
		finish(true)
	default:
		finish(true)
	}
}

func (n *node) recruit(a decide.Action, end func(bool)) {
	p := n.pg
	pledge := func() {
		n.disk.Promises = decide.Pledge(n.disk.Promises, a.Term)
		n.save()
		end(true)
	}
	switch {
	case n.w.flaws.PledgeWithoutCut && !p.primary:
		pledge()
	case p.running && p.primary && p.fenced && n.disk.Promises.ResignedTerm > 0 && n.disk.Promises.ResignedTerm == n.disk.Promises.OwnTerm:
		pledge()
	case p.running && p.primary && n.disk.Promises.OwnTerm == a.Term:
		pledge()
	case p.running && p.primary:
		n.later(n.w.upTo(100*time.Millisecond), func() {
			p.kill()
			n.becomeStandby()
			pledge()
		})
	case n.disk.Promises.RevokedBelowTerm >= a.Term:
		end(true)
	case p.frozen: // it can't be told anything
		p.kill()
		n.becomeStandby()
		pledge()
	default:
		n.becomeStandby()
		n.later(n.w.upTo(50*time.Millisecond), func() {
			p.cut()
			n.later(n.w.upTo(20*time.Millisecond), pledge)
		})
	}
}

// becomeStandby takes the source away: conninfo is empty from the next reload or start on.
func (n *node) becomeStandby() {
	n.disk.Source, n.disk.FollowTerm = -1, 0
	n.save()
	n.pg.source = -1
	if !n.pg.running {
		n.pg.signal = true
	}
}

func (n *node) promote(a decide.Action, end func(bool)) {
	p := n.pg
	n.disk.Led, n.disk.Standbys, n.disk.Acks, n.disk.Peers = true, slices.Clone(a.Standbys), a.Acks, a.Peers
	n.disk.Source, n.disk.FollowTerm = -1, 0
	n.save()
	p.bare = p.bare && !p.running
	lead := func() {
		if n.disk.Promises.BarrierTerm == a.Term && p.open {
			end(true)
			return
		}
		n.barrier(func() { end(true) })
	}
	life := p.life
	switch {
	case !p.running || p.frozen:
		end(false)
	case p.primary:
		n.reconfigure(lead)
	case p.link != nil || p.paused > 0:
		p.source, p.paused = -1, 0
		p.cut()
		end(false)
	default:
		p.source = -1
		n.later(n.w.between(20*time.Millisecond, 150*time.Millisecond), func() {
			if p.life != life || !p.running || p.primary {
				end(false)
				return
			}
			n.configure()
			p.promote()
			n.confirmedAt, n.selfFenced = n.w.now, unset
			n.w.say("%s: leads term %d on timeline %d from %d", n.id, a.Term, p.tli, p.len())
			lead()
		})
	}
}

func (n *node) lead(a decide.Action, end func(bool)) {
	p := n.pg
	if !p.running || !p.primary || p.frozen {
		end(false)
		return
	}
	n.disk.Led, n.disk.Standbys, n.disk.Acks, n.disk.Peers = true, slices.Clone(a.Standbys), a.Acks, a.Peers
	n.save()
	n.inForce, p.bare = false, false
	n.reconfigure(func() {
		p.commit(entryMark, func() {
			n.inForce, n.forceLife = true, p.life
			end(true)
		})
	})
}

func (n *node) fence(end func(bool)) {
	p := n.pg
	if !p.running || !p.primary || p.frozen {
		end(false)
		return
	}
	p.open, n.inForce = false, false
	n.later(n.w.upTo(400*time.Millisecond), func() { // clients' transactions end
		n.reconfigure(func() {
			n.fencedLSN = p.len()
			end(true)
		})
	})
}

func (n *node) unfence(h decide.Head, end func(bool)) {
	began := n.w.now
	open := func() {
		if n.w.store.over(n.disk.Promises.OwnTerm, began) {
			n.w.fail("I2", "%s takes clients again in term %d, which was over before the order came", n.id, n.disk.Promises.OwnTerm)
		}
		n.disk.Promises.ResignedTerm = 0
		n.save()
		n.fencedLSN = 0
		n.reconfigure(func() { n.barrier(func() { end(true) }) })
	}
	if n.w.flaws.UnfenceFromMemory {
		open()
		return
	}
	life := n.life
	n.w.store.ask(n.host, func() func() {
		rule := n.w.store.rule()
		return func() {
			if n.life != life || !n.up || !n.busy {
				return
			}
			if err := decide.MayUnfence(n.disk.Promises, n.id, h, &rule, n.w.flaws); err != nil || !n.pg.running || !n.pg.primary {
				end(false)
				return
			}
			open()
		}
	})
}

func (n *node) follow(a decide.Action, end func(bool)) {
	p := n.pg
	source := n.w.node(a.Source).host
	if a.Timeline > 0 && p.running && !p.primary && p.tli > a.Timeline { // what was decided by is out of date
		end(false)
		return
	}
	n.disk.Source, n.disk.FollowTerm = source, a.Term
	n.save()
	if p.running && p.primary {
		p.kill()
	}
	if !p.running {
		p.signal = true
		end(true)
		return
	}
	n.later(n.w.upTo(30*time.Millisecond), func() {
		if p.source != source {
			p.cut()
		}
		p.source = source
		p.connect()
		end(true)
	})
}

// replace rewinds the node or copies its source.
func (n *node) replace(a decide.Action, end func(bool)) {
	p := n.pg
	if a.Request != "" && n.disk.Restored >= a.Request && !p.empty || a.Request == "" && p.link != nil && n.disk.FollowTerm == a.Term {
		end(false) // a late order
		return
	}
	if !n.disk.Promises.RewindInProgress && !p.empty {
		m := n.status()
		m.Row, m.Timeline, m.History, m.ReceiveLSN = p.row(), p.tli, p.history, catalog.LSN(p.len()) // from the files
		at, ok := m.Position()
		if !ok {
			at = decide.Position{Term: m.Row.Term, LSN: m.ReceiveLSN}
		}
		n.disk.Promises = decide.Replace(n.disk.Promises, at, p.tli)
	} else {
		n.disk.Promises.RewindInProgress = true
	}
	n.disk.Source, n.disk.FollowTerm = n.w.node(a.Source).host, a.Term
	n.save()
	p.kill()
	u := n.w.node(a.Source).pg
	n.later(n.w.between(300*time.Millisecond, 3*time.Second), func() {
		broken := n.w.cuts[n.host][u.n.host] > 0 || n.w.cuts[u.n.host][n.host] > 0 || !u.running || u.frozen || !u.primary
		if broken || p.running {
			end(false)
			return
		}
		p.rewindTo(u, a.Kind != decide.Rewind)
		n.disk.Promises = decide.Replaced(n.disk.Promises)
		n.disk.Restored = max(n.disk.Restored, a.Request)
		n.save()
		n.start(false)
		end(true)
	})
}
