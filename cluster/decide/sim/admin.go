package sim

import (
	"fmt"
	"strconv"
	"time"

	"neki/catalog"
	"neki/cluster/decide"
)

// admin is one of several; it leads when the store lets it, and doesn't notice at once when it doesn't any more.
type admin struct {
	w      *world
	host   int
	index  int
	up     bool
	life   int
	epoch  int64
	watch  decide.Watch
	look   int // counts looks; answers to an earlier one are void
	orders int
	out    [maxNodes]string // the order that is on its way to a node
	frozen bool
	missed []func() // what came while it was frozen
}

func newAdmin(w *world, index, host int) *admin {
	return &admin{w: w, index: index, host: host, up: true}
}

// when does something at once, or once the admin goes on; nothing when it died meanwhile.
func (a *admin) when(life int, do func()) {
	switch {
	case a.life != life || !a.up:
	case a.frozen:
		a.missed = append(a.missed, do)
	default:
		do()
	}
}

func (a *admin) after(d time.Duration, do func()) {
	life := a.life
	a.w.after(d, func() { a.when(life, do) })
}

func (a *admin) ask(do func() func()) {
	life := a.life
	a.w.store.ask(a.host, func() func() {
		reply := do()
		return func() { a.when(life, reply) }
	})
}

func (a *admin) crash(down time.Duration) {
	a.up = false
	a.life++
	a.epoch, a.watch, a.out, a.missed = 0, decide.Watch{}, [maxNodes]string{}, nil
	a.w.say("admin %d ends", a.index)
	a.w.after(down, func() { a.up = true; a.live() })
}

// live tries to lead, and keeps the lease, for ever.
func (a *admin) live() {
	life := a.life
	a.when(life, a.campaign)
	a.after(time.Second, a.live)
}

func (a *admin) campaign() {
	s := a.w.store
	if a.epoch == 0 {
		a.ask(func() func() {
			epoch := s.lead(a.index)
			return func() {
				if a.epoch == 0 && epoch != 0 {
					a.w.say("admin %d leads, epoch %d", a.index, epoch)
					a.epoch = epoch
					a.watch = decide.Watch{}
					a.begin()
				}
			}
		})
		return
	}
	epoch := a.epoch
	a.ask(func() func() {
		still := s.renew(epoch)
		return func() {
			if !still && a.epoch == epoch {
				a.w.say("admin %d leads no more", a.index)
				a.epoch = 0
			}
		}
	})
}

// begin looks: it reads the catalog and asks all agents, at once, so that either may be what is older, and decides when all
// have answered or a second has passed.
func (a *admin) begin() {
	if a.epoch == 0 {
		return
	}
	a.look++
	look := a.look
	a.after(1500*time.Millisecond, func() {
		if a.look == look {
			a.begin()
		}
	})
	if look%2 == 0 {
		a.read(look, func(c catalogue) { a.gather(look, func(members []decide.Member) { a.decide(a.put(c, members)) }) })
		return
	}
	a.gather(look, func(members []decide.Member) { a.read(look, func(c catalogue) { a.decide(a.put(c, members)) }) })
}

// catalogue is what the store says.
type catalogue struct {
	shard            decide.Shard
	desired, request [maxNodes]string
}

// read reads the catalog and goes on, if the look still counts.
func (a *admin) read(look int, then func(catalogue)) {
	a.ask(func() func() {
		s := a.w.store
		c := catalogue{desired: s.desired, request: s.request}
		c.shard = decide.Shard{Rule: s.rule(), Doc: s.doc(), Op: s.op(), Want: a.w.sched.Nodes - a.w.sched.Rdonly, Flaws: a.w.flaws, Timing: decide.DefaultTiming()}
		return func() {
			if a.look == look {
				then(c)
			}
		}
	})
}

// put puts together what was found.
func (a *admin) put(c catalogue, members []decide.Member) decide.Shard {
	c.shard.Members = members
	for i := range members {
		m := &members[i]
		m.Desired, m.Request = c.desired[i], c.request[i]
		m.Busy = m.Busy || a.out[i] != "" && slow(a.out[i])
	}
	return c.shard
}

// gather asks all agents and goes on, if the look still counts.
func (a *admin) gather(look int, then func([]decide.Member)) {
	members := make([]decide.Member, len(a.w.nodes))
	left := len(a.w.nodes)
	decided := false
	conclude := func() {
		if a.look == look && !decided {
			decided = true
			then(members)
		}
	}
	a.after(700*time.Millisecond, conclude)
	life := a.life
	for i, n := range a.w.nodes {
		members[i] = decide.Member{ID: n.id, Rdonly: n.rdonly, Address: n.id}
		answered := false
		a.w.send(a.host, n.host, func() {
			if !n.up {
				return
			}
			m := n.status()
			a.w.send(n.host, a.host, func() {
				a.when(life, func() {
					if decided || answered || a.look != look {
						return
					}
					answered = true
					members[i] = m
					if left--; left == 0 {
						conclude()
					}
				})
			})
		})
	}
}

// slow tells of orders during which a node is busy.
func slow(order string) bool { return order == "rewind" || order == "rebuild" || order == "clone" }

func (a *admin) decide(shard decide.Shard) {
	a.watch.See(a.w.now, &shard)
	v := decide.Decide(shard)
	for _, p := range v.Problems {
		a.w.say("admin %d: %s", a.index, p)
	}
	pause := time.Second
	if v.Soon > 0 {
		pause = max(v.Soon, 20*time.Millisecond)
	}
	for _, action := range v.Actions {
		if action.Kind == decide.Write {
			a.write(shard, action)
			return
		}
		if action.Kind == decide.Want {
			a.want(shard, action)
			continue
		}
		a.order(shard, action)
	}
	look := a.look
	a.after(pause, func() {
		if a.look == look {
			a.begin()
		}
	})
}

func (a *admin) write(shard decide.Shard, action decide.Action) {
	t := txn{epoch: a.epoch, ruleRev: shard.Rule.ModRev, docRev: shard.Doc.ModRev, rule: action.Rule, doc: action.Doc, endOp: action.EndOp != ""}
	if shard.Op != nil {
		t.opRev = shard.Op.ModRev
	}
	look := a.look
	a.ask(func() func() {
		done := a.w.store.txn(t)
		rev := a.w.store.mod[ruleKey]
		return func() {
			switch {
			case a.look != look:
			case done && decide.GoesOn(action): // with what was seen before
				rule := *action.Rule
				rule.ModRev = rev
				shard.Rule = rule
				a.decide(shard)
			default:
				a.begin()
			}
		}
	})
}

// want writes what is wanted of a node, if that is as it was looked at.
func (a *admin) want(shard decide.Shard, action decide.Action) {
	i := a.w.node(action.Node).host
	before, epoch := shard.Members[i].Request, a.epoch
	wanted := shard.Members[i].Desired
	a.ask(func() func() {
		s := a.w.store
		if s.create[leaderKey] == epoch && s.request[i] == before && s.desired[i] == wanted {
			if s.desired[i] = action.Desired; action.Desired == catalog.DesiredRestore {
				s.asked++
				s.request[i] = fmt.Sprintf("%06d", s.asked)
			}
		}
		return func() {}
	})
}

func (a *admin) order(shard decide.Shard, action decide.Action) {
	if action.Kind == decide.Apply {
		return
	}
	// With the flaw that lets a replaced member count at once, the loss itself is to be found.
	if (action.Kind == decide.Rewind || action.Kind == decide.Rebuild) && !a.w.flaws.NoFloor && memberOf(shard.Rule, action.Node) {
		a.w.fail("I4", "%s ordered of %s, which is in the cohort %v", action, action.Node, shard.Rule.Cohort)
		return
	}
	n := a.w.node(action.Node)
	if a.out[n.host] != "" {
		return
	}
	a.orders++
	kind := action.Kind.String()
	a.out[n.host] = kind
	order := a.orders
	h := decide.Head{Epoch: a.epoch, Term: action.Term, Sub: action.Sub, OpID: strconv.Itoa(a.index) + "." + strconv.Itoa(a.life) + "." + strconv.Itoa(order)}
	ended := false
	life := a.life
	end := func() {
		if !ended {
			ended = true
			a.out[n.host] = ""
			a.begin()
		}
	}
	a.after(5*time.Second, end)
	a.w.send(a.host, n.host, func() {
		n.take(orderOf(action, h, func(bool) {
			a.w.send(n.host, a.host, func() { a.when(life, end) })
		}))
	})
}

func orderOf(action decide.Action, h decide.Head, reply func(bool)) order {
	return order{action: action, head: h, reply: reply}
}

// memberOf tells whether a node's data may be needed: it is in the cohort or, while no leader is chosen, in the one
// before.
func memberOf(r catalog.Rule, id string) bool {
	return contains(r.Cohort, id) || r.Prev != nil && r.Leader == "" && memberOf(*r.Prev, id)
}
