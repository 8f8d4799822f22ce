package pooler

import (
	"time"

	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/pooler/plan"
)

// watch waits, for a session that listens and has nothing to do, until its server speaks. Its goroutine is joined
// before the session touches the connection again.
type watch struct {
	sc   *backend.ServerConn
	done chan struct{} // closed at the goroutine's end
}

// watchServer begins to watch the connection that notifications come on, while the session waits for its client.
func (c *Session) watchServer() {
	if c.watch != nil || c.home == nil || c.lease != nil || c.status != 'I' || c.open || c.phase != phaseReady {
		return
	}
	w := &watch{sc: c.home, done: make(chan struct{})}
	c.watch = w
	go func() {
		defer close(w.done)
		if w.sc.AwaitSpeech() == nil {
			c.heard.Store(true)
			c.conn.Interrupt()
		}
	}()
}

// stopWatching makes the connection usable for the session again and reports whether the server had spoken.
func (c *Session) stopWatching() (spoke bool) {
	w := c.watch
	if w == nil {
		return false
	}
	c.watch = nil
	w.sc.StopAwaiting(w.done)
	if !c.heard.Swap(false) {
		return false
	}
	c.clearInterrupt()
	return true
}

// clearInterrupt takes back the interrupt that woke the session, but none that is to end it.
func (c *Session) clearInterrupt() {
	_ = c.conn.SetDeadline(time.Time{})
	if c.endCause() != nil {
		c.conn.Interrupt()
	}
}

// wakened is why a session that waits for its client was interrupted, when not to be ended.
func (c *Session) wakened() bool {
	return c.endCause() == nil && (c.phase == phaseCopying || c.sub != nil || c.watch != nil && c.heard.Load())
}

// wake serves what the session was wakened for.
func (c *Session) wake() error {
	if c.phase == phaseCopying {
		return c.hearServer()
	}
	notified, spoke := c.unpark(), c.stopWatching()
	if notified {
		if err := c.deliver(); err != nil {
			return err
		}
	}
	if !spoke {
		return nil
	}
	w := c.lend()
	if err := w.relay.Hear(c.home, w.answers); err != nil {
		return c.homeLost(err)
	}
	return nil
}

// homeLost ends a session whose listening connection is gone: it would miss notifications without knowing.
func (c *Session) homeLost(err error) error {
	c.home.Broken()
	if gone := clientError(err); gone != nil {
		return gone
	}
	if c.dismissed(c.homed) {
		return c.passFarewell()
	}
	return c.fatal(pgerr.Fatal(pgerr.ConnectionFailure, "the connection that the session listens on was lost").
		WithDetail("%v.", err))
}

// listens reports whether notifications may come at any time.
func (c *Session) listens() bool { return c.pins&plan.PinListen != 0 }
