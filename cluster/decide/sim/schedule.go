package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"neki/catalog"
	"neki/cluster/decide"
)

// Kind is a kind of fault.
type Kind uint8

// The faults.
const (
	KillPostgres Kind = iota
	FreezePostgres
	KillAgent
	KillHost
	Cut     // the way from host A to host B
	Isolate // host A from all
	Split   // hosts below A from the others, the catalog with B's side
	StopCatalog
	KillAdmin
	FreezeAdmin
	SlowNetwork
	PauseReplay
	LoseData
	Switchover
	Failover
	FenceNode
	ChangeDurability
	kinds
)

var kindWords = [...]string{
	"kill postgres", "freeze postgres", "kill agent", "kill host", "cut", "isolate", "split", "stop catalog", "kill admin",
	"freeze admin", "slow network", "pause replay", "lose data", "switchover", "failover", "fence node", "change durability",
}

// Fault is one thing that goes wrong, or that an operator orders.
type Fault struct {
	At   time.Duration
	Kind Kind
	A, B int
	For  time.Duration
}

// String gives the fault in one line.
func (f Fault) String() string {
	return fmt.Sprintf("%.3f %s %d %d for %.3f", f.At.Seconds(), kindWords[f.Kind], f.A, f.B, f.For.Seconds())
}

// Schedule is all that a run depends on, but for Flaws.
type Schedule struct {
	Seed                  uint64
	Nodes, Rdonly, Admins int
	W                     int
	Unkind                bool // messages are late and doubled
	Pace                  time.Duration
	Faults                []Fault
}

// String tells how to run the schedule again.
func (s Schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d nodes (%d rdonly), %d admins, w %d, unkind %t", s.Seed, s.Nodes, s.Rdonly, s.Admins, s.W, s.Unkind)
	for _, f := range s.Faults {
		b.WriteString("\n  " + f.String())
	}
	return b.String()
}

// Times of a schedule.
const (
	faultTime = 25 * time.Second
	quietTime = 31 * time.Second // after the last fault's end
)

func (s Schedule) end() time.Duration {
	last := time.Duration(0)
	for _, f := range s.Faults {
		last = max(last, f.At+f.For)
	}
	return last + quietTime
}

// Generate makes a schedule of a seed.
func Generate(seed uint64) Schedule {
	rnd := rand.New(rand.NewPCG(seed, 1))
	s := Schedule{Seed: seed, Nodes: 3, Admins: 1 + rnd.IntN(2), W: 1, Unkind: rnd.IntN(2) == 0, Pace: 600 * time.Millisecond}
	switch rnd.IntN(8) {
	case 0:
		s.Nodes = 2
	case 1:
		s.Nodes, s.Rdonly = 4, 1
	case 2:
		s.Nodes = 5
		s.W = 1 + rnd.IntN(2)
	case 3:
		s.Nodes = 4
	}
	if rnd.IntN(4) == 0 {
		s.Pace = 80 * time.Millisecond
	}
	for i := range 1 + rnd.IntN(7) {
		f := fault(rnd, s)
		if i > 0 && rnd.IntN(2) == 0 { // troubles come together
			f.At = s.Faults[i-1].At + time.Duration(rnd.Int64N(int64(3*time.Second)))
		}
		s.Faults = append(s.Faults, f)
	}
	return s
}

func fault(rnd *rand.Rand, s Schedule) Fault {
	f := Fault{At: time.Duration(rnd.Int64N(int64(faultTime))), Kind: Kind(rnd.IntN(int(kinds)))}
	f.For = time.Duration(rnd.Int64N(int64([]time.Duration{2 * time.Second, 12 * time.Second}[rnd.IntN(2)])))
	f.A, f.B = rnd.IntN(s.Nodes), rnd.IntN(s.Nodes+s.Admins+1)
	if rnd.IntN(3) > 0 { // most faults strike the one that leads, or some other that matters
		f.A = leaderNow
	}
	if f.Kind == Split {
		f.A = 1 + rnd.IntN(s.Nodes-1)
	}
	return f
}

// leaderNow stands for whoever leads when the fault strikes.
const leaderNow = -1

// Run runs a schedule; nil when no invariant broke. trace keeps a log of what happened in the failure.
func Run(s Schedule, flaws decide.Flaws, trace bool) *Failure {
	return newWorld(s, flaws, trace).run()
}

// Shrink leaves out every fault without which the schedule still fails, and says how it then does.
func Shrink(s Schedule, flaws decide.Flaws) *Failure {
	for i := 0; i < len(s.Faults); {
		less := s
		less.Faults = append(append([]Fault{}, s.Faults[:i]...), s.Faults[i+1:]...)
		if Run(less, flaws, false) != nil {
			s = less
			i = 0
		} else {
			i++
		}
	}
	return Run(s, flaws, true)
}

// inject makes a fault happen.
func (w *world) inject(f Fault) {
	a := f.A
	if a == leaderNow {
		a = 0
		if l := w.store.rule().Leader; l != "" {
			a = w.node(l).host
		}
	}
	w.say("fault: %s (%d)", f, a)
	n := w.nodes[min(a, len(w.nodes)-1)]
	adm := w.admins[f.B%len(w.admins)]
	heal := func(do func()) { w.after(f.For, do) }
	switch f.Kind {
	case KillPostgres:
		n.pg.kill()
	case FreezePostgres:
		w.freeze(n, heal)
	case KillAgent:
		n.crashAgent(f.For)
	case KillHost:
		n.crashAgent(f.For)
		n.pg.kill()
	case Cut:
		w.cutWay(n.host, f.B, heal)
	case Isolate:
		for h := range w.cuts {
			w.cutWay(n.host, h, heal)
			w.cutWay(h, n.host, heal)
		}
	case Split:
		w.split(f, heal)
	case StopCatalog:
		w.store.down++
		heal(func() { w.store.down-- })
	case KillAdmin:
		if adm.up {
			adm.crash(f.For)
		}
	case FreezeAdmin:
		adm.freeze(heal)
	case SlowNetwork:
		w.slow++
		heal(func() { w.slow-- })
	case PauseReplay:
		n.pg.paused++
		heal(func() { n.pg.paused = max(n.pg.paused-1, 0) })
	case LoseData:
		w.loseData(n)
	default:
		w.operate(f, n, heal)
	}
}

// operate is what an operator orders.
func (w *world) operate(f Fault, n *node, heal func(func())) {
	switch f.Kind {
	case Switchover, Failover:
		kind := catalog.OpSwitchover
		if f.Kind == Failover {
			kind = catalog.OpFailover
		}
		if w.store.op() == nil {
			candidate := ""
			if f.A != leaderNow {
				candidate = n.id
			}
			w.ids++
			w.store.put(opKey, catalog.Operation{ID: fmt.Sprint(w.ids), Kind: kind, Candidate: candidate, FromTerm: w.store.rule().Term, Timeout: 10 * time.Second})
		}
	case FenceNode:
		w.store.desired[n.host] = catalog.DesiredFenced
		heal(func() { w.store.desired[n.host] = "" })
	case ChangeDurability:
		if w.sched.W != 1 {
			return
		}
		doc := w.store.doc()
		doc.Durability = decide.PolicySync
		w.store.put(docKey, doc)
	}
}

func (w *world) freeze(n *node, heal func(func())) {
	if !n.pg.running || n.pg.frozen {
		return
	}
	n.pg.frozen = true
	life := n.pg.life
	heal(func() {
		if n.pg.life == life {
			n.pg.frozen = false
			n.pg.release()
			n.pg.ship()
		}
	})
}

func (w *world) cutWay(from, to int, heal func(func())) {
	if from == to {
		return
	}
	w.cuts[from][to]++
	heal(func() { w.cuts[from][to]-- })
}

func (w *world) split(f Fault, heal func(func())) {
	side := func(h int) bool {
		if h < len(w.nodes) {
			return h < f.A
		}
		return (f.B>>(h-len(w.nodes)))&1 == 0
	}
	for a := range w.cuts {
		for b := range w.cuts {
			if side(a) != side(b) {
				w.cutWay(a, b, heal)
			}
		}
	}
}

// loseData empties a standby's directory: the leader still has everything.
func (w *world) loseData(n *node) {
	if n.pg.primary || w.store.rule().Phase != decide.PhaseActive || w.store.rule().Leader == n.id {
		return
	}
	n.pg.kill()
	n.pg.log, n.pg.tli, n.pg.history, n.pg.replayed, n.pg.empty, n.pg.signal = nil, 1, nil, 0, true, false
}

func (a *admin) freeze(heal func(func())) {
	if a.frozen || !a.up {
		return
	}
	a.frozen = true
	heal(func() {
		a.frozen = false
		missed := a.missed
		a.missed = nil
		life := a.life
		for _, do := range missed {
			a.when(life, do)
		}
	})
}
