package pooler

import (
	"errors"
	"testing"
	"time"
)

// TestCancelBeforeTheServer: a cancel that comes while a statement has no server yet is not lost, and hits no later one.
func TestCancelBeforeTheServer(t *testing.T) {
	c := &Session{}
	begin := func() {
		c.begun = c.begun.Add(time.Second)
		c.setState(stateActive, c.begun)
	}
	begin()
	if !c.cancel() {
		t.Error("an active session is not cancelled")
	}
	select {
	case <-c.interruptChan():
	default:
		t.Error("a wait begins although the statement is cancelled")
	}
	if err := c.beginActive(); !errors.Is(err, errCanceled) {
		t.Errorf("the statement goes to the server: %v", err)
	}
	if err := c.beginActive(); err != nil {
		t.Errorf("the cancel holds twice: %v", err)
	}
	begin()
	c.cancel()
	begin()
	if err := c.beginActive(); err != nil {
		t.Errorf("the cancel of a statement that has ended hits the next: %v", err)
	}
	c.setState(stateIdle, c.begun.Add(time.Millisecond))
	if c.cancel() {
		t.Error("an idle session is cancelled")
	}
	begin()
	wait := c.interruptChan()
	c.cancel()
	select {
	case <-wait:
	default:
		t.Error("the wait goes on")
	}
	if err := c.waitEnded(); !errors.Is(err, errCanceled) {
		t.Error(err)
	}
	if err := c.beginActive(); err != nil {
		t.Errorf("the cancel that ended a wait holds for more: %v", err)
	}
}
