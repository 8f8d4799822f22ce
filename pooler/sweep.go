package pooler

import (
	"context"
	"time"

	"neki/internal/pgerr"
	"neki/pooler/backend"
)

// sweepInterval is how often sessions are looked at: the precision of idle timeouts, and how soon a client that has
// gone away during its statement is noticed.
const sweepInterval = 250 * time.Millisecond

// goneAfter is how long a statement runs before it is checked whether anybody still waits for it.
const goneAfter = time.Second

var (
	errIdleSession = pgerr.Fatal(pgerr.IdleSessionTimeout, "terminating connection due to idle-session timeout")
	errIdleInTx    = pgerr.Fatal(pgerr.IdleInTransactionSessionTimeout,
		"terminating connection due to idle-in-transaction timeout")
	errNotReading = pgerr.Fatal(pgerr.ConnectionFailure, "terminating connection because the client does not read")
	errClientGone = pgerr.Fatal(pgerr.ConnectionFailure, "connection to client lost")
)

// now gives the present time: the wall clock as the sweeper last saw it, and the monotonic clock since, which costs one
// reading of a clock where time.Now takes two.
func (s *Server) now() time.Time {
	seen := s.clock.Load()
	return seen.Add(time.Since(*seen))
}

// sweep enforces what no session can while it waits: timeouts, and the end of statements whose client is gone.
func (s *Server) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.clock.Store(&now)
			params := s.params.Load()
			s.sessions.each(func(c *Session) {
				c.check(now, params.IdleSession, params.IdleInTransaction)
				c.checkWriting(now, params.ClientWrite)
			})
			for _, db := range s.dbs.all() {
				db.hub.rest(now)
			}
		}
	}
}

// check ends the session if it was idle for too long or its client is gone.
func (c *Session) check(now time.Time, idle, idleInTx time.Duration) {
	lasted := now.Sub(time.Unix(0, c.since.Load()))
	switch sessionState(c.state.Load()) {
	case stateIdle:
		if idle > 0 && lasted > idle {
			c.end(errIdleSession)
		} else if c.leaving.Load() {
			c.end(errShutdown)
		}
		c.checkParked()
	case stateIdleInTx, stateIdleInFailedTx:
		if idleInTx > 0 && lasted > idleInTx {
			c.end(errIdleInTx)
		}
		c.checkParked()
	case stateActive:
		c.wakeFeeding()
		if lasted > goneAfter {
			c.checkActive(now)
		}
	}
}

// checkParked looks once in each wait for the client whether the client is still there. The end of a stream that came
// together with the last bytes raises no edge of its own, and a session reads again only at an edge.
func (c *Session) checkParked() {
	p := c.parked.Load()
	if p == c.seenPark && p != c.checkedPark {
		c.checkedPark = p
		if !c.conn.Alive() {
			c.end(errClientGone)
		}
	}
	c.seenPark = p
}

// checkWriting ends a session whose client takes nothing of what is written to it: its server connection, and what its
// transaction has locked, would wait for it for ever.
func (c *Session) checkWriting(now time.Time, limit time.Duration) {
	if w := c.conn.Writing(); w&1 == 0 || w != c.seenWrite {
		c.seenWrite, c.writeSince = w, now
		return
	}
	if limit <= 0 || now.Sub(c.writeSince) <= limit || c.killedBy() != nil {
		return
	}
	c.srv.log.Info("a client that does not read is disconnected", "pid", c.pid, "user", c.user, "address", c.addr)
	c.kill(errNotReading)
}

// killPatience is how long a killed session's statement has to end by the cancel request before its connection is cut.
const killPatience = 5 * time.Second

// checkActive ends a statement for which nobody waits any more, and one whose server is gone.
func (c *Session) checkActive(now time.Time) {
	c.mu.Lock()
	c.eachFed(func(sc *backend.ServerConn) {
		if !sc.Alive() || !c.killed.IsZero() && now.Sub(c.killed) > killPatience {
			sc.Interrupt()
		}
	})
	c.mu.Unlock()
	if !c.conn.Alive() {
		c.kill(errClientGone)
	}
}

// wakeFeeding wakes a session that waits for COPY data when its server has something to say: it has failed.
func (c *Session) wakeFeeding() {
	if !c.feeding.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.eachFed(func(sc *backend.ServerConn) {
		if sc.Speaks() && c.feeding.CompareAndSwap(true, false) {
			c.conn.Interrupt()
		}
	})
}

// end ends an idle session with a reason.
func (c *Session) end(cause *pgerr.Error) {
	c.mu.Lock()
	if c.cause == nil {
		c.cause = cause
	}
	c.mu.Unlock()
	c.conn.InterruptRead() // an answer that is on its way is written to its end
}
