package backend

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/settings"
)

// PoolKey names a pool: connections are shared by the clients of one role and database on one instance.
type PoolKey struct{ Node, User, Database string }

// Pool holds the connections for one key. Sessions get them in the order they asked. It is safe for concurrent use.
type Pool struct {
	pools *Pools
	key   PoolKey
	shard string // of the instance
	host  string
	port  int
	stats *NodeStats

	mu       sync.Mutex
	idle     []*ServerConn // the most recently used last
	open     int           // idle, leased and being opened
	opening  int
	greeting *ParamSet // of the last login
	greeted  time.Time
	waiters  waitList
	closed   bool
	paused   bool
	lastUsed time.Time
	expired  time.Time // connections opened before are not reused
}

// Waiter is what a session that waits for a connection tells and hears.
type Waiter interface {
	// Ticket gives the session's place holder, the same at each wait.
	Ticket() *Ticket
	// Queued tells that the wait begins: from now on the ticket's Interrupt ends it. The error ends it at once.
	Queued() error
	// InterruptCause says why Interrupt was called.
	InterruptCause() error
	// Waiting is called once the wait has lasted long, with the place in the queue (1 is next) and whether the pool is
	// paused.
	Waiting(place int, paused bool)
}

// noticeAfter is how long a session waits before it is told so.
const noticeAfter = 5 * time.Second

// Ticket holds a session's place in the queue of a pool. A session has one and uses it for every wait, so that waiting
// costs no allocation; what else could end a wait (time, a cancel request, the pool's end) comes by the same channel.
type Ticket struct {
	pool atomic.Pointer[Pool] // of the present or the last wait
	got  chan grant           // room for one notice and the end of the wait

	// Of the wait, under the pool's mu.
	want       *settings.Vars
	since      time.Time
	noticed    bool
	next, prev *Ticket
}

// NewTicket makes a ticket.
func NewTicket() *Ticket { return &Ticket{got: make(chan grant, 2)} }

// Waited gives how long the holder's present or last wait has lasted by now. Only the holder calls it.
func (t *Ticket) Waited(now time.Time) time.Duration { return now.Sub(t.since) }

// Paused gives the shard of the pool that the ticket waits at, and whether that is paused.
func (t *Ticket) Paused() (shard string, paused bool) {
	p := t.pool.Load()
	if p == nil {
		return "", false
	}
	return p.shard, p.Paused()
}

// Interrupt ends the wait, if there is one. Anybody may call it.
func (t *Ticket) Interrupt() {
	if p := t.pool.Load(); p != nil {
		p.end(t, errInterrupted)
	}
}

var errInterrupted = errors.New("the wait for a connection was interrupted")

// grant is how a wait ends, or a notice that it lasts.
type grant struct {
	sc     *ServerConn
	err    error
	place  int  // not 0: a notice
	paused bool // of a notice
}

// waitList is a FIFO queue that waiters can leave.
type waitList struct {
	first, last *Ticket
	n           int
}

func (l *waitList) push(w *Ticket) {
	if w.prev = l.last; l.last != nil {
		l.last.next = w
	} else {
		l.first = w
	}
	l.last = w
	l.n++
}

// remove takes w out; false when it is not there any more.
func (l *waitList) remove(w *Ticket) bool {
	if w.prev == nil && l.first != w {
		return false
	}
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.last = w.prev
	}
	w.prev, w.next = nil, nil
	l.n--
	return true
}

// Serves reports whether the pool is the one for the instance n, of the role and database it was made for.
func (p *Pool) Serves(n *catalog.Node) bool { return p.key.Node == n.ID && p.leadsTo(n) }

// Key gives the pool's key.
func (p *Pool) Key() PoolKey { return p.key }

// matchDepth is how many idle connections are looked at for one with equal settings.
const matchDepth = 8

// Greeting gives what the instance reported at the pool's last login, nil before the first.
func (p *Pool) Greeting() *ParamSet {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.greeting
}

// Paused reports whether the pool's clients are held.
func (p *Pool) Paused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused
}

// Shard gives the uid of the shard that the instance belongs to.
func (p *Pool) Shard() string { return p.shard }

// NoteGreeting notes what a connection with no client's settings on it says now.
func (p *Pool) NoteGreeting(g *ParamSet) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.greeting, p.greeted = g, p.pools.now()
}

// Full reports whether every connection that the pool may have is in use.
func (p *Pool) Full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle) == 0 && p.open >= p.pools.params().PoolCapacity
}

// FreshGreeting gives Greeting if that login was within the given time.
func (p *Pool) FreshGreeting(within time.Duration) *ParamSet {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.greeting == nil || p.pools.now().Sub(p.greeted) > within {
		return nil
	}
	return p.greeting
}

// Acquire leases a connection, best one whose settings equal want; the caller applies any difference. It waits in
// turn when all are in use, up to the parameter pool-max-wait-time. now is about the present time.
func (p *Pool) Acquire(want *settings.Vars, w Waiter, now time.Time) (*ServerConn, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errPoolClosed(p.key)
	}
	p.lastUsed = now
	if !p.paused && p.waiters.n == 0 {
		if sc := p.takeIdleLocked(want, now); sc != nil {
			p.mu.Unlock()
			return sc, nil
		}
	}
	t := w.Ticket()
	t.pool.Store(p)
	t.want, t.since, t.noticed = want, p.pools.now(), false
	p.waiters.push(t)
	p.openMoreLocked()
	p.mu.Unlock()
	return p.wait(t, w)
}

// takeIdleLocked takes an idle connection that is fit for use, nil when there is none.
func (p *Pool) takeIdleLocked(want *settings.Vars, now time.Time) *ServerConn {
	for len(p.idle) > 0 {
		at := len(p.idle) - 1
		for i := at; i >= 0 && i > len(p.idle)-1-matchDepth; i-- {
			if p.idle[i].vars == want || p.idle[i].vars.BackendEqual(want) {
				at = i
				break
			}
		}
		sc := p.idle[at]
		p.idle = append(p.idle[:at], p.idle[at+1:]...)
		if p.usable(sc, now) {
			return sc
		}
		p.open--
		p.pools.discard(sc)
	}
	return nil
}

// probeAfter is how long a connection may rest before it is checked for a server that is gone.
const probeAfter = time.Second

func (p *Pool) usable(sc *ServerConn, now time.Time) bool {
	if now.After(sc.retire) || sc.opened.Before(p.expired) {
		return false
	}
	// A server that speaks unasked is about to go, or has gone.
	return now.Sub(sc.idle) < probeAfter || !sc.conn.Readable()
}

// openMoreLocked starts to open connections for those who wait, a few at a time: a login costs a server 30 ms of CPU.
func (p *Pool) openMoreLocked() {
	capacity := p.pools.params().PoolCapacity
	for !p.paused && p.opening < p.waiters.n && p.opening < maxOpening && p.open < capacity {
		p.open++
		p.opening++
		p.pools.goroutines.Go(p.openOne)
	}
}

// maxOpening bounds the logins that a pool has under way at once.
const maxOpening = 4

func (p *Pool) openOne() {
	sc, err := p.pools.dial(p)
	p.mu.Lock()
	p.opening--
	if err != nil {
		p.open--
		if t := p.waiters.first; t != nil { // only the one who waits longest: others may still get a connection
			p.endLocked(t, grant{err: err})
		}
		p.openMoreLocked()
		p.mu.Unlock()
		return
	}
	p.greeting, p.greeted = sc.params, sc.opened
	p.handOverLocked(sc, sc.opened)
	p.mu.Unlock()
}

// handOverLocked gives a usable connection to the next in the queue, or lets it rest.
func (p *Pool) handOverLocked(sc *ServerConn, now time.Time) {
	if p.closed {
		p.open--
		p.pools.discard(sc)
		return
	}
	if t := p.waiters.first; t != nil && !p.paused {
		p.endLocked(t, grant{sc: sc})
		return
	}
	p.idle = append(p.idle, sc)
}

// endLocked takes t out of the queue and tells it how its wait ends.
func (p *Pool) endLocked(t *Ticket, g grant) {
	if p.waiters.remove(t) {
		t.got <- g
	}
}

// end ends t's wait with an error, if it waits here.
func (p *Pool) end(t *Ticket, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked(t, grant{err: err})
}

// wait waits for the end of t's wait.
func (p *Pool) wait(t *Ticket, w Waiter) (*ServerConn, error) {
	if err := w.Queued(); err != nil {
		p.end(t, errInterrupted)
	}
	for {
		g := <-t.got
		switch {
		case g.place > 0:
			w.Waiting(g.place, g.paused)
		case g.err == errInterrupted: //nolint:errorlint // sent as it is
			return nil, w.InterruptCause()
		default:
			return g.sc, g.err
		}
	}
}

// remind ends the waits that have lasted for pool-max-wait-time, and tells who has waited long already. Pools' janitor
// calls it, so that a wait needs no timer of its own.
func (p *Pool) remind(now time.Time) {
	limit, soonest := p.pools.params().PoolMaxWait, noticeAfter
	if limit > 0 {
		soonest = min(soonest, limit)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	place := 1
	for t := p.waiters.first; t != nil; {
		next, waited := t.next, now.Sub(t.since)
		switch {
		case limit > 0 && waited >= limit:
			p.endLocked(t, grant{err: p.errWaitedLocked(limit)})
		case waited >= soonest:
			if !t.noticed && waited >= noticeAfter {
				t.noticed = true
				t.got <- grant{place: place, paused: p.paused}
			}
			place++
		default: // those behind have waited less
			return
		}
		t = next
	}
}

// errWaitedLocked says why a wait of the full length was in vain.
func (p *Pool) errWaitedLocked(limit time.Duration) error {
	if p.paused {
		return pgerr.New(pgerr.CannotConnectNow, "shard %s is paused", p.shard).
			WithDetail("The statement waited %s (pool-max-wait-time) and was not sent.", settings.FormatInterval(limit)).
			WithHint("Try again after CALL neki.resume('%s').", p.shard)
	}
	return pgerr.New(pgerr.TooManyConnections, "no connection to %s became free within %s", p.key.Node, settings.FormatInterval(limit)).
		WithDetail("All %d connections of role %q to database %q on this instance are in use.",
			p.pools.params().PoolCapacity, p.key.User, p.key.Database).
		WithHint("Raise pool-capacity or pool-max-wait-time, or end transactions that are left open: see neki.pools and neki.sessions.")
}

// Release gives a leased connection back. One that is broken, in a transaction, too old or of a closed pool is closed.
// One that a cancel request is on its way to rests apart until that was delivered.
func (p *Pool) Release(sc *ServerConn, now time.Time) {
	if sc.cancels.Load() > 0 && !sc.broken {
		p.pools.goroutines.Go(func() {
			if !p.pools.awaitCancels(sc) {
				sc.broken = true
			}
			p.release(sc, p.pools.now())
		})
		return
	}
	p.release(sc, now)
}

func (p *Pool) release(sc *ServerConn, now time.Time) {
	sc.idle = now
	p.mu.Lock()
	if sc.broken || sc.status != 'I' || now.After(sc.retire) || sc.opened.Before(p.expired) {
		p.open--
		p.openMoreLocked()
		p.mu.Unlock()
		p.pools.discard(sc)
		return
	}
	p.handOverLocked(sc, now)
	p.mu.Unlock()
}

// Pause holds or lets go the pool's clients.
func (p *Pool) pause(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = on
	for !on && p.waiters.n > 0 {
		now := p.pools.now()
		sc := p.takeIdleLocked(p.waiters.first.want, now)
		if sc == nil {
			p.openMoreLocked()
			return
		}
		p.handOverLocked(sc, now)
	}
}

// retireIdle closes idle connections that are past their time, and spare ones (above keep) not used since before.
func (p *Pool) retireIdle(keep int, before time.Time) {
	p.mu.Lock()
	now, n := p.pools.now(), len(p.idle)
	gone := p.dropIdleLocked(func(i int, sc *ServerConn) bool { // the least recently used first
		return now.After(sc.retire) || n-i > keep && sc.idle.Before(before)
	})
	p.mu.Unlock()
	p.pools.discard(gone...)
}

// dropIdleLocked takes idle connections out of the pool; the caller discards them without the lock.
func (p *Pool) dropIdleLocked(drop func(i int, sc *ServerConn) bool) (gone []*ServerConn) {
	kept := p.idle[:0]
	for i, sc := range p.idle {
		if drop(i, sc) {
			gone = append(gone, sc)
		} else {
			kept = append(kept, sc)
		}
	}
	clear(p.idle[len(kept):])
	p.idle = kept
	p.open -= len(gone)
	return gone
}

// always drops every idle connection.
func always(int, *ServerConn) bool { return true }

// DropDead closes the idle connections whose server is gone or about to go.
func (p *Pool) DropDead() {
	p.mu.Lock()
	gone := p.dropIdleLocked(func(_ int, sc *ServerConn) bool { return sc.conn.Readable() })
	p.openMoreLocked()
	p.mu.Unlock()
	p.pools.discard(gone...)
}

// close closes what is idle, fails who waits, and lets leased connections be closed as they come back.
func (p *Pool) close() {
	p.mu.Lock()
	p.closed = true
	gone := p.dropIdleLocked(always)
	for t := p.waiters.first; t != nil; t = p.waiters.first {
		p.endLocked(t, grant{err: errPoolClosed(p.key)})
	}
	p.mu.Unlock()
	p.pools.discard(gone...)
}

func errPoolClosed(key PoolKey) error {
	return pgerr.New(pgerr.CannotConnectNow, "the pool of %s is closed", key.Node)
}

// PoolStats is a row of neki.pools.
type PoolStats struct {
	PoolKey
	Capacity, Active, Idle, Waiting int
	MaxWait                         time.Duration // of those who wait now; 0 when nobody does
}

func (p *Pool) row(capacity int) PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	row := PoolStats{
		PoolKey: p.key, Capacity: capacity, Active: p.open - p.opening - len(p.idle), Idle: len(p.idle),
		Waiting: p.waiters.n,
	}
	if t := p.waiters.first; t != nil { // who came first waits longest
		row.MaxWait = p.pools.now().Sub(t.since)
	}
	return row
}
