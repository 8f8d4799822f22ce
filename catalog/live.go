package catalog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// StaleAfter is the age from which a report says nothing about now, and the age of a receiver's last message from
// which the link may be cut.
const StaleAfter = 3 * time.Second

// Times of Live's dealings with the store.
const (
	listTimeout  = 5 * time.Second
	backoffFirst = 100 * time.Millisecond
	backoffMost  = 5 * time.Second
	resyncEvery  = 10 * time.Second // a listing, whatever the watch says
)

// Live holds the newest Snapshot. Run writes it; all else may be called from anywhere.
type Live struct {
	store   Store
	cluster string
	log     *slog.Logger

	view  atomic.Pointer[view]
	ready chan struct{}
	lost  atomic.Pointer[error] // why the store can't be reached; nil = it can, as far as is known

	wake    chan struct{} // holds one token when pending isn't empty
	mu      sync.Mutex
	pending map[string]report // the newest of each node
}

// view is a Snapshot with the channel that is closed when it is replaced.
type view struct {
	snap    *Snapshot
	changed chan struct{}
}

type report struct {
	health Health
	at     time.Time
}

// NewLive makes a Live of a cluster. It does nothing until Run.
func NewLive(store Store, cluster string, log *slog.Logger) *Live {
	l := &Live{
		store: store, cluster: cluster, log: log, ready: make(chan struct{}), wake: make(chan struct{}, 1),
		pending: map[string]report{},
	}
	l.view.Store(&view{changed: make(chan struct{})})
	return l
}

// Snapshot gives the newest one. It is nil until Ready, never after.
func (l *Live) Snapshot() *Snapshot { return l.view.Load().snap }

// Ready is closed when there is a first Snapshot.
func (l *Live) Ready() <-chan struct{} { return l.ready }

// Changed is closed when the Snapshot that is the newest now is replaced. Take it before Snapshot, so as to miss none.
func (l *Live) Changed() <-chan struct{} { return l.view.Load().changed }

// StoreError tells why the store can't be reached at present; nil when it can, as far as is known.
func (l *Live) StoreError() error {
	if p := l.lost.Load(); p != nil {
		return *p
	}
	return nil
}

// Report takes in a report that has just come. It does not wait.
func (l *Live) Report(h Health) {
	now := time.Now()
	l.mu.Lock()
	if before, ok := l.pending[h.Node]; ok && before.health.continuedBy(&h) {
		h.Ring = append(slices.Clip(h.Ring), older(before, now)...)
	}
	l.pending[h.Node] = report{h, now}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// maxPending bounds the samples that wait for Run.
const maxPending = 4096

// continuedBy reports whether the samples of h and of a later report belong to one ring.
func (h *Health) continuedBy(later *Health) bool {
	return h.Role == later.Role && h.Term == later.Term && h.Timeline == later.Timeline && len(h.Ring) < maxPending
}

// older gives the samples of a report that nobody has looked at, as they are now.
func older(r report, now time.Time) []Sample {
	samples := make([]Sample, len(r.health.Ring))
	for i, s := range r.health.Ring {
		samples[i] = Sample{Age: s.Age + now.Sub(r.at), LSN: s.LSN}
	}
	return samples
}

func (l *Live) takeReports() map[string]report {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.pending
	l.pending = map[string]report{}
	return taken
}

// Run keeps the Snapshot new until ctx ends, and gives ctx's error. The store may come and go meanwhile.
func (l *Live) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	updates := make(chan update)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		l.follow(ctx, updates)
	}()
	defer func() { cancel(); <-followed }()

	w := newWriter(l)
	expiry := time.NewTimer(0)
	defer expiry.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case u := <-updates:
			w.update(u)
		case <-l.wake:
			w.report(l.takeReports())
		case <-expiry.C:
		}
		expiry.Reset(w.publish(time.Now()))
	}
}

// update is news from the store: a whole listing, or a batch.
type update struct {
	listed  bool
	entries []Entry
	batch   Batch // of a listing: Rev only
}

// follow lists and watches for ever; what it learns goes to updates.
func (l *Live) follow(ctx context.Context, updates chan<- update) {
	backoff := backoffFirst
	var seen int64
	for ctx.Err() == nil {
		rev, err := l.list(ctx, seen, updates)
		if err == nil {
			l.found()
			backoff = backoffFirst
			seen, err = l.watch(ctx, rev, updates)
		}
		if err == nil {
			continue
		}
		if errors.Is(err, ErrCompacted) { // the watch fell behind: the pause bounds the listings of one that always does
			pause(ctx, backoffFirst)
			continue
		}
		l.loseStore(ctx, err)
		pause(ctx, backoff/2+rand.N(backoff/2))
		backoff = min(2*backoff, backoffMost)
	}
}

// list sends all that the store has. A store that has gone back to an older revision was put in place of the one that
// is known: rather than forget shards that serve, that one's last state stays.
func (l *Live) list(ctx context.Context, seen int64, updates chan<- update) (int64, error) {
	listCtx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	entries, rev, err := l.store.List(listCtx, Prefix(l.cluster))
	if err != nil {
		return 0, err
	}
	if rev < seen {
		return 0, fmt.Errorf("catalog: the store went back from revision %d to %d: keeping the last state", seen, rev)
	}
	return rev, send(ctx, updates, update{listed: true, entries: entries, batch: Batch{Rev: rev}})
}

// watch sends what changes after rev until it is time to list again. It gives the last revision seen.
func (l *Live) watch(ctx context.Context, rev int64, updates chan<- update) (int64, error) {
	watchCtx, cancel := context.WithTimeout(ctx, resyncEvery)
	defer cancel()
	for batch, err := range l.store.Watch(watchCtx, Prefix(l.cluster), rev+1) {
		if err != nil {
			if watchCtx.Err() != nil {
				return rev, ctx.Err()
			}
			return rev, err
		}
		if err := send(ctx, updates, update{batch: batch}); err != nil {
			return rev, err
		}
		rev = max(rev, batch.Rev)
	}
	return rev, ctx.Err()
}

func send(ctx context.Context, updates chan<- update, u update) error {
	select {
	case updates <- u:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Live) found() {
	if l.lost.Swap(nil) != nil {
		l.log.Info("catalog store is back")
	}
}

func (l *Live) loseStore(ctx context.Context, err error) {
	if ctx.Err() == nil && l.lost.Swap(&err) == nil {
		l.log.Warn("catalog store can't be reached, going on with what is known", "error", err)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
