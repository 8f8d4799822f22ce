package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
)

func TestParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newParts()
		lives := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		one := all.start("one", lives)
		two := all.start("two", lives)
		if err := one.stop(); err != nil {
			t.Errorf("a part that was stopped: %v", err)
		}
		select {
		case err := <-all.failed:
			t.Errorf("failed: %v", err)
		default:
		}
		broken := errors.New("broken")
		three := all.start("three", func(context.Context) error { return broken })
		four := all.start("four", func(context.Context) error { return nil })
		synctest.Wait()
		if err := <-all.failed; !strings.HasPrefix(err.Error(), "three") && !strings.HasPrefix(err.Error(), "four") {
			t.Errorf("failed: %v", err)
		}
		err := stopAll([]*part{two, three, four})
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), "three: broken") || !strings.Contains(err.Error(), "four ended") {
			t.Errorf("stopAll: %v", err)
		}
	})
}

func TestRunUntil(t *testing.T) {
	all := newParts()
	p := all.start("x", func(context.Context) error { return errors.New("went wrong") })
	if err := runUntil(t.Context(), all, p.stop); err == nil || err.Error() != "x: went wrong" {
		t.Errorf("%v", err)
	}
}

func TestStackUnwindsBackwards(t *testing.T) {
	var s stack
	var order []string
	for _, name := range []string{"a", "b", "c"} {
		s.push(func() error { order = append(order, name); return errors.New(name) })
	}
	if err := s.unwind(); err == nil || strings.Join(order, "") != "cba" || err.Error() != "c\nb\na" {
		t.Errorf("%v: %v", order, err)
	}
	if err := s.unwind(); err != nil || len(order) != 3 {
		t.Error("undone twice")
	}
}
