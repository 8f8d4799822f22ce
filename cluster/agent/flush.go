package agent

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"time"
)

// Times of the flushes that show whether the disk answers.
const (
	flushEvery = 2 * time.Second
	stallAfter = 5 * time.Second
)

// flushing is a flush under way.
type flushing struct{ since atomic.Pointer[time.Time] }

// stalled reports whether it takes so long that the disk can't be relied on.
func (f *flushing) stalled(now time.Time) bool {
	since := f.since.Load()
	return since != nil && now.Sub(*since) >= stallAfter
}

// flushes writes a block beside the data and flushes it, again and again, until ctx ends. An error is not looked at: a full
// disk is no stalled one, and the block has its place since the first time.
func (a *Agent) flushes(ctx context.Context) error {
	if a.noSync() {
		return nil
	}
	return every(ctx, flushEvery, func(now time.Time) {
		a.flushing.since.Store(&now)
		if probe, _, err := openSlots(filepath.Join(a.cfg.Dir, "flush.probe")); err == nil {
			_ = probe.put([]byte(now.String()))
		}
		a.flushing.since.Store(nil)
	})
}
