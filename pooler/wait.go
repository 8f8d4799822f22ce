package pooler

import (
	"time"

	"neki/internal/pgerr"
	"neki/pooler/backend"
)

// waiting is a Session as the pools see it while it waits for a connection.
type waiting Session

// Ticket gives the session's place holder in queues.
func (w *waiting) Ticket() *backend.Ticket {
	if w.ticket == nil {
		w.ticket = backend.NewTicket()
	}
	return w.ticket
}

// Queued begins a wait that a cancel or kill can end.
func (w *waiting) Queued() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	(*Session)(w).showTextLocked()
	if w.canceled == w.begun.UnixNano() || w.cause != nil {
		return errCanceled
	}
	w.queued = true
	return nil
}

// InterruptCause says why the wait ends.
func (w *waiting) InterruptCause() error { return (*Session)(w).waitEnded() }

// Waiting tells the client why it waits: the shard is paused, or where it is in the queue.
func (w *waiting) Waiting(place int, paused bool) {
	c := (*Session)(w)
	if c.shown == nil { // still logging in: a client does not expect a notice there
		return
	}
	n := pgerr.Notice("waiting for a connection: place %d in the queue", place).
		WithHint("All connections of your role to this database are in use; see neki.pools.")
	if paused {
		n = pgerr.Notice("shard %s is paused: the statement waits", c.pool.Shard()).
			WithHint("It goes on with CALL neki.resume('%s').", c.pool.Shard())
	}
	_, _ = c.conn.Write(encodeError(nil, n)) // a client that is gone is noticed at the next write
}

// interruptChan begins a wait that a cancel or kill can end.
func (c *Session) interruptChan() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.showTextLocked()
	if c.canceled == c.begun.UnixNano() || c.cause != nil {
		ended := make(chan struct{})
		close(ended)
		return ended
	}
	if c.interrupt == nil {
		c.interrupt = make(chan struct{})
	}
	return c.interrupt
}

// waitEnded says why the wait was ended, and makes the next one possible.
func (c *Session) waitEnded() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.canceled, c.queued = 0, false
	if c.cause != nil {
		return c.cause
	}
	return errCanceled
}

var errCanceled = pgerr.New(pgerr.QueryCanceled, "canceling statement due to user request")

// showTextLocked lets neki.sessions see the Query that now runs or waits. The caller holds mu.
func (c *Session) showTextLocked() {
	w := c.work
	if w == nil || w.text == nil {
		return
	}
	n := min(len(w.text), shownSize)
	for n < len(w.text) && n > 0 && w.text[n]&0xC0 == 0x80 { // not within a character
		n--
	}
	w.shown = append(w.shown[:0], w.text[:n]...)
	c.text, w.text = w.shown, nil
}

// pause waits for a change, at most for the given time; the error says that the wait was ended.
func (c *Session) pause(changed <-chan struct{}, limit time.Duration) error {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	case <-c.interruptChan():
		return c.waitEnded()
	}
	return nil
}

// wakeLocked ends a wait, if there is one. The caller holds mu.
func (c *Session) wakeLocked() {
	if c.queued {
		c.ticket.Interrupt()
	}
	if c.interrupt != nil {
		close(c.interrupt)
		c.interrupt = nil
	}
}

// kill ends the session with a reason, whatever it does.
func (c *Session) kill(cause *pgerr.Error) {
	c.mu.Lock()
	if c.cause != nil && !c.killed.IsZero() {
		c.mu.Unlock()
		return
	}
	if c.cause == nil {
		c.cause = cause
	}
	c.killed = time.Now()
	c.wakeLocked()
	sc, begun := c.active, c.since.Load()
	if sc != nil {
		sc.BeginCancel()
	}
	c.mu.Unlock()
	if sc != nil {
		c.srv.deliverCancel(sc)
		c.srv.cancels.Go(func() { c.cancelAgain(sc, begun) })
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.parting {
		c.conn.Interrupt()
	}
}

// lastWord says why the session's waits were interrupted, and that the client is about to be told.
func (c *Session) lastWord() *pgerr.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parting = true
	return c.cause
}

// cut ends the session whatever it waits for.
func (c *Session) cut() {
	c.mu.Lock()
	if c.active != nil {
		c.active.Interrupt()
	}
	c.mu.Unlock()
	c.conn.Interrupt()
}

// drain ends the session once it is outside a transaction.
func (c *Session) drain() {
	c.leaving.Store(true)
	if sessionState(c.state.Load()) == stateIdle {
		c.mu.Lock()
		if c.cause == nil {
			c.cause = errShutdown
		}
		c.mu.Unlock()
		c.conn.InterruptRead()
	}
}

// servesOn reports whether a session that a drain has woken has heard from its client at the same time: what that sent is
// run before the session ends.
func (c *Session) servesOn() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != errShutdown || !c.killed.IsZero() || c.phase != phaseReady || !c.conn.Readable() {
		return false
	}
	c.cause = nil
	return c.conn.SetReadDeadline(time.Time{}) == nil
}

// killedBy says why the session is being ended in the midst of what it does, nil when it is not.
func (c *Session) killedBy() *pgerr.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.killed.IsZero() {
		return nil
	}
	return c.cause
}

// endCause says why the session's waits were interrupted.
func (c *Session) endCause() *pgerr.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// beginActive notes that the lease now runs a statement of this client: a cancel may go to it. It fails if one has come
// already.
func (c *Session) beginActive() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interrupt, c.queued = nil, false
	c.showTextLocked()
	if c.canceled != 0 && c.canceled == c.begun.UnixNano() {
		c.canceled = 0
		return errCanceled
	}
	c.active = c.lease
	if c.hit.Load() {
		c.hit.Store(false)
	}
	return nil
}

// endActive notes the end of that. From here on no cancel begins; one under way is awaited before the connection is
// given to another session.
func (c *Session) endActive() {
	c.mu.Lock()
	c.active = nil
	if c.committing.Load() {
		c.committing.Store(false)
	}
	c.mu.Unlock()
}
