package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"neki/catalog"
	"neki/cluster/decide"
)

// Failure is a broken invariant.
type Failure struct {
	Invariant string
	Text      string
	At        time.Duration
	Schedule  Schedule
	Log       []string
}

// Error tells what broke and how to see it again.
func (f *Failure) Error() string {
	return fmt.Sprintf("%s broken at %v: %s\nschedule %s\n%s", f.Invariant, f.At, f.Text, f.Schedule, strings.Join(f.Log, "\n"))
}

// event is something that happens at a time.
type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

// before orders events by time, and those of one time by when they were made.
func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.seq < f.seq }

// agenda is a heap of events.
type agenda []event

func (a *agenda) push(e event) {
	q := append(*a, e)
	i := len(q) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&q[up]) {
			break
		}
		q[i] = q[up]
		i = up
	}
	q[i] = e
	*a = q
}

func (a *agenda) pop() event {
	q := *a
	first, last := q[0], q[len(q)-1]
	q[len(q)-1].do = nil
	q = q[:len(q)-1]
	*a = q
	if len(q) == 0 {
		return first
	}
	i := 0
	for {
		least := i*4 + 1
		if least >= len(q) {
			break
		}
		for c := least + 1; c < min(i*4+5, len(q)); c++ {
			if q[c].before(&q[least]) {
				least = c
			}
		}
		if last.before(&q[least]) {
			break
		}
		q[i] = q[least]
		i = least
	}
	q[i] = last
	return first
}

// world is one run.
type world struct {
	sched Schedule
	rnd   *rand.Rand
	flaws decide.Flaws
	now   time.Duration
	seq   uint64
	queue agenda

	nodes  []*node
	admins []*admin
	store  *store
	cuts   [][]int // from host, to host: how many faults cut the way
	slow   int     // faults that make the network slow
	end    time.Duration

	ids       uint64
	ackedLSN  int // the newest acknowledged position, and what the log must be there
	ackedHash uint64
	ackedTerm int64
	ackedAt   time.Duration
	acked     int
	failed    *Failure
	log       []string
	trace     bool
}

func newWorld(s Schedule, flaws decide.Flaws, trace bool) *world {
	w := &world{sched: s, rnd: rand.New(rand.NewPCG(s.Seed, 0x6e656b69)), flaws: flaws, trace: trace, end: s.end()}
	hosts := s.Nodes + s.Admins + 1
	w.cuts = make([][]int, hosts)
	for i := range w.cuts {
		w.cuts[i] = make([]int, hosts)
	}
	w.store = newStore(w, hosts-1)
	for i := range s.Nodes {
		w.nodes = append(w.nodes, newNode(w, i, i >= s.Nodes-s.Rdonly))
	}
	for i := range s.Admins {
		w.admins = append(w.admins, newAdmin(w, i, s.Nodes+i))
	}
	w.begin()
	return w
}

// begin sets up a shard that is whole, in term 1.
func (w *world) begin() {
	rule := catalog.Rule{Term: 1, Phase: decide.PhaseActive, Leader: w.nodes[0].id, Policy: decide.PolicySync, W: w.sched.W, Timeline: 1, SystemID: "7"}
	if w.sched.W == 0 {
		rule.Policy = decide.PolicyNone
	}
	for _, n := range w.nodes {
		if !n.rdonly {
			rule.Cohort = append(rule.Cohort, n.id)
		}
	}
	w.store.put(ruleKey, rule)
	w.store.put(docKey, catalog.Shard{
		UID: "s", Primary: rule.Leader, Term: 1, SystemID: "7", Ready: true, Durability: rule.Policy,
	})
	for i, n := range w.nodes {
		n.begin(rule, i == 0)
	}
	for _, a := range w.admins {
		w.after(w.upTo(500*time.Millisecond), a.live)
	}
	w.after(0, w.clientWrites)
	for _, f := range w.sched.Faults {
		w.at(f.At, func() { w.inject(f) })
	}
}

// run runs until the end or the first failure.
func (w *world) run() *Failure {
	for len(w.queue) > 0 && w.failed == nil {
		e := w.queue.pop()
		if e.at > w.end {
			break
		}
		w.now = e.at
		e.do()
	}
	if w.failed == nil && w.now-w.ackedAt > 5*time.Second {
		w.fail("I8", "nothing was acknowledged since %v, long after all faults; rule %+v", w.ackedAt, w.store.rule())
	}
	return w.failed
}

func (w *world) at(t time.Duration, do func()) {
	w.seq++
	w.queue.push(event{max(t, w.now), w.seq, do})
}

func (w *world) after(d time.Duration, do func()) { w.at(w.now+d, do) }

func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.rnd.Int64N(int64(d) + 1)) }

func (w *world) between(a, b time.Duration) time.Duration { return a + w.upTo(b-a) }

func (w *world) chance(percent int) bool { return w.rnd.IntN(100) < percent }

func (w *world) say(format string, args ...any) {
	if w.trace {
		w.log = append(w.log, fmt.Sprintf("%9.3f ", w.now.Seconds())+fmt.Sprintf(format, args...))
	}
}

func (w *world) fail(invariant, format string, args ...any) {
	if w.failed == nil {
		w.failed = &Failure{Invariant: invariant, Text: fmt.Sprintf(format, args...), At: w.now, Schedule: w.sched, Log: w.log}
	}
}

// send brings a message to another host, some time later, or not, or twice.
func (w *world) send(from, to int, do func()) {
	if w.cuts[from][to] > 0 {
		return
	}
	deliver := func() {
		if w.cuts[from][to] == 0 {
			do()
		}
	}
	w.after(w.delay(), deliver)
	if w.sched.Unkind && w.chance(2) {
		w.after(w.between(0, 8*time.Second), deliver) // a copy comes late
	}
}

// delay is how long a message takes.
func (w *world) delay() time.Duration {
	switch {
	case w.sched.Unkind && w.chance(2):
		return w.upTo(6 * time.Second)
	case w.slow > 0:
		return w.between(50*time.Millisecond, 900*time.Millisecond)
	}
	return w.between(200*time.Microsecond, 4*time.Millisecond)
}

// acknowledge notes that a client knows of all of a log up to a position: a commit was acknowledged, or could be read.
func (w *world) acknowledge(p *postgres, lsn int, what string) {
	if w.ackedLSN > 0 && (p.len() < w.ackedLSN || p.hashAt(w.ackedLSN) != w.ackedHash) {
		w.fail("I1", "%s: %s in term %d at %d, but its log lacks what was acknowledged in term %d up to %d",
			p.n.id, what, p.n.disk.Promises.OwnTerm, lsn, w.ackedTerm, w.ackedLSN)
		return
	}
	w.ackedAt = w.now
	if lsn > w.ackedLSN {
		w.ackedLSN, w.ackedHash, w.ackedTerm = lsn, p.hashAt(lsn), p.n.disk.Promises.OwnTerm
		w.acked++
	}
}

// checkStandbys checks I3 and I6 of all primaries.
func (w *world) checkStandbys() {
	rule := w.store.rule()
	for _, n := range w.nodes {
		p := n.pg
		if !p.running || !p.primary || p.fenced {
			continue
		}
		for _, id := range p.standbys {
			if w.node(id).rdonly {
				w.fail("I6", "%s waits for %s, which is rdonly", n.id, id)
			}
		}
		if n.rdonly {
			w.fail("I6", "%s leads and is rdonly", n.id)
		}
		if n.disk.Promises.OwnTerm != rule.Term || rule.Leader != n.id {
			continue
		}
		for _, id := range p.standbys {
			if !contains(decide.Ackers(rule), id) {
				w.fail("I3", "%s waits for %s, which the rule %d.%d does not name: %v", n.id, id, rule.Term, rule.Sub, rule.Cohort)
			}
		}
		if p.acks < rule.W {
			w.fail("I3", "%s waits for %d, the rule %d.%d relies on %d", n.id, p.acks, rule.Term, rule.Sub, rule.W)
		}
	}
}

func (w *world) node(id string) *node { return w.nodes[id[0]-'a'] }

func contains(list []string, id string) bool {
	for _, x := range list {
		if x == id {
			return true
		}
	}
	return false
}

// clientWrites lets a client write at every server that takes one, through a gateway or past it.
func (w *world) clientWrites() {
	for _, n := range w.nodes {
		if p := n.pg; p.running && !p.frozen && p.primary && p.open {
			p.commit(entryWrite, nil)
		}
	}
	w.after(w.between(20*time.Millisecond, w.sched.Pace), w.clientWrites)
}
