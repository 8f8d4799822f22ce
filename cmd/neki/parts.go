package main

import (
	"context"
	"errors"
	"fmt"
)

// parts runs what a process consists of. Each part has a context of its own, so that parts end one after the other and
// not all at a signal.
type parts struct {
	failed chan error // the first part that ended without being stopped
}

func newParts() *parts { return &parts{failed: make(chan error, 1)} }

// part is one running part.
type part struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set when done is closed
}

// start runs a part until it is stopped.
func (p *parts) start(name string, run func(context.Context) error) *part {
	ctx, cancel := context.WithCancel(context.Background())
	one := &part{name: name, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(one.done)
		err := run(ctx)
		stopped := ctx.Err() != nil
		if stopped && errors.Is(err, context.Canceled) {
			err = nil
		}
		if err != nil {
			one.err = fmt.Errorf("%s: %w", name, err)
		} else if !stopped {
			one.err = fmt.Errorf("%s ended", name)
		}
		if !stopped {
			select {
			case p.failed <- one.err:
			default: // another was first
			}
		}
	}()
	return one
}

// stop ends the part and waits for it.
func (p *part) stop() error {
	p.cancel()
	<-p.done
	return p.err
}

// stopAll stops parts at the same time.
func stopAll(list []*part) error {
	for _, p := range list {
		p.cancel()
	}
	errs := make([]error, len(list))
	for i, p := range list {
		errs[i] = p.stop()
	}
	return errors.Join(errs...)
}

// stack remembers how to undo steps; the last is undone first.
type stack struct{ undo []func() error }

func (s *stack) push(undo func() error) { s.undo = append(s.undo, undo) }

func (s *stack) unwind() error {
	var errs []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i]())
	}
	s.undo = nil
	return errors.Join(errs...)
}

// runUntil waits for the end of ctx, or for a part to fail, then stops all.
func runUntil(ctx context.Context, all *parts, stop func() error) error {
	select {
	case <-ctx.Done():
		return stop()
	case err := <-all.failed:
		_ = stop() // the first error is the cause
		return err
	}
}

// stopEach does steps in order, all of them.
func stopEach(steps ...func() error) error {
	errs := make([]error, len(steps))
	for i, step := range steps {
		errs[i] = step()
	}
	return errors.Join(errs...)
}
