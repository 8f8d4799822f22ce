package pooler

import (
	"context"
	"sync"
	"time"

	"neki/internal/pgerr"
	"neki/internal/pgwire"
	"neki/pooler/backend"
)

// registry holds the sessions of a gateway in numbered slots; the number is part of the virtual pid. It is safe for
// concurrent use.
type registry struct {
	mu    sync.RWMutex
	slots []slot
	free  []uint32 // in the order they became free: free[head:]
	head  int
	count int // sessions now
	limit int
	users map[string]int // sessions by role
}

type slot struct {
	session    *Session
	generation uint64 // grows each time the slot is used
}

func (r *registry) init(limit int) { r.limit, r.users = limit, make(map[string]int) }

// add gives c a slot, unless the gateway is full, or the role has as many sessions as it may; -1 = any number.
func (r *registry) add(c *Session, keys *pgwire.KeySpace, ofRole int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count >= r.limit {
		return pgerr.Fatal(pgerr.TooManyConnections, "sorry, too many clients already").
			WithDetail("The gateway takes %d.", r.limit)
	}
	if ofRole >= 0 && r.users[c.user] >= ofRole {
		return pgerr.Fatal(pgerr.TooManyConnections, "too many connections for role \"%s\"", c.user)
	}
	if r.head < len(r.free) {
		c.slot = r.free[r.head]
		if r.head++; r.head > len(r.free)/2 {
			r.free = append(r.free[:0], r.free[r.head:]...)
			r.head = 0
		}
	} else {
		c.slot = uint32(len(r.slots))
		r.slots = append(r.slots, slot{})
	}
	c.pid = keys.PID(c.slot)
	s := &r.slots[c.slot]
	s.session = c
	s.generation++
	c.generation = s.generation
	r.count++
	r.users[c.user]++
	return nil
}

func (r *registry) remove(c *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if int(c.slot) < len(r.slots) && r.slots[c.slot].session == c {
		r.slots[c.slot].session = nil
		r.free = append(r.free, c.slot) // used again as late as can be
		r.count--
		if r.users[c.user]--; r.users[c.user] == 0 {
			delete(r.users, c.user)
		}
	}
}

// find gives the session of a virtual pid of this gateway, nil when there is none.
func (r *registry) find(pid uint32) *Session {
	_, number, ok := pgwire.SplitPID(pid)
	if !ok {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if int(number) >= len(r.slots) {
		return nil
	}
	if c := r.slots[number].session; c != nil && c.pid == pid {
		return c
	}
	return nil
}

// each calls f for every session.
func (r *registry) each(f func(*Session)) {
	r.mu.RLock()
	all := make([]*Session, 0, r.count)
	for i := range r.slots {
		if c := r.slots[i].session; c != nil {
			all = append(all, c)
		}
	}
	r.mu.RUnlock()
	for _, c := range all {
		f(c)
	}
}

func (r *registry) len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.count
}

// cancelTimeout bounds the delivery of a cancel request.
const cancelTimeout = 5 * time.Second

// handleCancel acts on a cancel request. A wrong key is answered by silence, as by Postgres.
func (s *Server) handleCancel(key *pgwire.CancelKey) {
	if !s.keys.Owns(key.PID) {
		if s.cfg.ForwardCancel != nil {
			s.cfg.ForwardCancel(key)
		}
		return
	}
	s.Cancel(key)
}

// Cancel acts on a cancel request for a session of this gateway.
func (s *Server) Cancel(key *pgwire.CancelKey) {
	if !s.keys.Owns(key.PID) {
		return
	}
	c := s.sessions.find(key.PID)
	if c == nil || !s.keys.Check(key.PID, key.Secret, c.generation, c.protocol) {
		return
	}
	s.metrics.cancels.Inc()
	c.cancel()
}

// cancel ends what the session waits for, or cancels the statement that a server runs for it. It returns when the
// request was delivered.
func (c *Session) cancel() (hit bool) {
	c.mu.Lock()
	sc, begun := c.active, c.since.Load()
	if sc != nil && c.committing.Load() { // it can't be undone, and a cancelled wait would say nothing of what becomes of it
		c.mu.Unlock()
		return true
	}
	if sc != nil {
		c.hit.Store(true)
		sc.BeginCancel() // before the session can give the connection back
	} else if sessionState(c.state.Load()) == stateActive {
		hit = true
		c.canceled = begun // a statement that has not come to its server yet notices it
		c.wakeLocked()
	}
	c.mu.Unlock()
	if sc != nil {
		c.srv.deliverCancel(sc)
		c.srv.cancels.Go(func() { c.cancelAgain(sc, begun) })
		return true
	}
	return hit
}

// cancelPauses are how long it is waited each time whether a cancel request takes effect, before it is sent again.
var cancelPauses = [...]time.Duration{20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, time.Second}

// cancelAgain repeats a cancel request as long as the statement runs that it is for: the request comes by a connection of its
// own, and may be there before the server has begun with the statement.
func (c *Session) cancelAgain(sc *backend.ServerConn, begun int64) {
	for _, pause := range cancelPauses {
		<-time.After(pause)
		c.mu.Lock()
		runs := c.active == sc && c.since.Load() == begun && !c.srv.ending.Load()
		if runs {
			sc.BeginCancel()
		}
		c.mu.Unlock()
		if !runs {
			return
		}
		c.srv.deliverCancel(sc)
	}
}

// deliverCancel sends a cancel request that was announced by BeginCancel.
func (s *Server) deliverCancel(sc *backend.ServerConn) {
	ctx, done := context.WithTimeout(context.Background(), cancelTimeout) //nolint:forbidigo // bounded here
	defer done()
	if err := sc.Cancel(ctx); err != nil {
		s.log.Warn("cancel request not delivered", "node", sc.Node(), "error", err)
	}
}

// CancelQuery cancels what the session of a virtual pid runs.
func (s *Server) CancelQuery(pid uint32) (found bool) {
	c := s.sessions.find(pid)
	if c == nil {
		return false
	}
	c.cancel()
	return true
}

// KillSession ends the session of a virtual pid.
func (s *Server) KillSession(pid uint32) (found bool) {
	c := s.sessions.find(pid)
	if c == nil {
		return false
	}
	c.kill(pgerr.Fatal(pgerr.AdminShutdown, "terminating connection due to administrator command"))
	return true
}
