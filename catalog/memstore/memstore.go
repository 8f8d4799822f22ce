// Package memstore is a catalog.Store in memory, for tests and for processes that need no other.
//
// It passes the suite of catalog/storetest as etcdstore does, so what works on it works on etcd. A lease never runs out
// by itself here: a test takes it away with ExpireLease. Interrupt makes the store go away as a network does.
//
// It has no goroutines; a Watch runs in its caller's. A Store is safe for concurrent use.
//
// Manual: https://etcd.io/docs/latest/learning/api_guarantees/ (the behaviour that it follows)
package memstore

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"neki/catalog"
)

// maxHistory is how many transactions a watch may be behind.
const maxHistory = 10_000

// Store is a catalog.Store in memory.
type Store struct {
	mu        sync.Mutex
	closed    bool
	down      error // not nil: nothing answers
	rev       int64
	compacted int64 // watches from here or before fail
	entries   map[string]*entry
	history   []catalog.Batch
	changed   chan struct{} // closed and replaced at every change of any field
	leases    map[int64]*lease
	lastLease int64
}

type entry struct {
	catalog.Entry
	lease int64
}

// New makes an empty store.
func New() *Store {
	return &Store{
		rev: 1, entries: map[string]*entry{}, changed: make(chan struct{}), leases: map[int64]*lease{},
	}
}

func (s *Store) wakeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// enter locks the store for a call.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	switch {
	case s.closed:
		s.mu.Unlock()
		return catalog.ErrClosed
	case s.down != nil:
		err := s.down
		s.mu.Unlock()
		return err
	}
	return nil
}

// Get gives an entry.
func (s *Store) Get(ctx context.Context, key string) (catalog.Entry, error) {
	if err := s.enter(ctx); err != nil {
		return catalog.Entry{}, err
	}
	defer s.mu.Unlock()
	e, ok := s.entries[key]
	if !ok {
		return catalog.Entry{}, catalog.ErrNotFound
	}
	return e.Entry, nil
}

// List gives the entries below a prefix.
func (s *Store) List(ctx context.Context, prefix string) ([]catalog.Entry, int64, error) {
	if err := s.enter(ctx); err != nil {
		return nil, 0, err
	}
	defer s.mu.Unlock()
	var list []catalog.Entry
	for key, e := range s.entries {
		if strings.HasPrefix(key, prefix) {
			list = append(list, e.Entry)
		}
	}
	slices.SortFunc(list, func(a, b catalog.Entry) int { return strings.Compare(a.Key, b.Key) })
	return list, s.rev, nil
}

// Put writes a key.
func (s *Store) Put(ctx context.Context, key string, value []byte, cond catalog.Cond) (int64, error) {
	return s.txn(ctx, 0, []catalog.Cond{cond.For(key)}, []catalog.Op{catalog.PutOp(key, value)})
}

// Delete removes a key.
func (s *Store) Delete(ctx context.Context, key string, cond catalog.Cond) (int64, error) {
	return s.txn(ctx, 0, []catalog.Cond{cond.For(key)}, []catalog.Op{catalog.DeleteOp(key)})
}

// Txn writes several keys.
func (s *Store) Txn(ctx context.Context, conds []catalog.Cond, ops []catalog.Op) (int64, error) {
	return s.txn(ctx, 0, conds, ops)
}

func (s *Store) txn(ctx context.Context, leaseID int64, conds []catalog.Cond, ops []catalog.Op) (int64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	if leaseID != 0 && s.leases[leaseID] == nil {
		return 0, catalog.ErrLeaseLost
	}
	if err := duplicate(ops); err != nil {
		return 0, err
	}
	for _, c := range conds {
		if !s.holdsLocked(c) {
			return 0, catalog.ErrConflict
		}
	}
	s.applyLocked(leaseID, ops)
	return s.rev, nil
}

func duplicate(ops []catalog.Op) error {
	seen := map[string]bool{}
	for _, op := range ops {
		if seen[op.Key] {
			return fmt.Errorf("catalog: key %q is written twice in one transaction", op.Key)
		}
		seen[op.Key] = true
	}
	return nil
}

func (s *Store) holdsLocked(c catalog.Cond) bool {
	e, ok := s.entries[c.Key]
	switch c.Kind {
	case catalog.CondAlways:
		return true
	case catalog.CondAbsent:
		return !ok
	case catalog.CondPresent:
		return ok
	case catalog.CondModRev:
		return ok && e.ModRev == c.Rev || !ok && c.Rev == 0
	case catalog.CondCreateRev:
		return ok && e.CreateRev == c.Rev || !ok && c.Rev == 0
	}
	return false
}

func (s *Store) applyLocked(leaseID int64, ops []catalog.Op) {
	rev := s.rev + 1
	var changes []catalog.Change
	for _, op := range ops {
		before, ok := s.entries[op.Key]
		switch {
		case op.Delete && ok:
			delete(s.entries, op.Key)
			changes = append(changes, catalog.Change{Entry: catalog.Entry{Key: op.Key, ModRev: rev}, Deleted: true})
		case !op.Delete:
			e := &entry{catalog.Entry{Key: op.Key, Value: bytes.Clone(op.Value), ModRev: rev, CreateRev: rev}, leaseID}
			if ok {
				e.CreateRev = before.CreateRev
			}
			s.entries[op.Key] = e
			changes = append(changes, catalog.Change{Entry: e.Entry})
		}
	}
	if len(changes) == 0 {
		return
	}
	s.rev = rev
	s.history = append(s.history, catalog.Batch{Rev: rev, Changes: changes})
	if len(s.history) > maxHistory {
		s.compactLocked(s.history[len(s.history)-maxHistory].Rev)
	}
	s.wakeLocked()
}

// Watch gives what changes.
func (s *Store) Watch(ctx context.Context, prefix string, fromRev int64) iter.Seq2[catalog.Batch, error] {
	return func(yield func(catalog.Batch, error) bool) {
		for next := fromRev; ; {
			batches, changed, err := s.since(next)
			if err != nil {
				yield(catalog.Batch{}, err)
				return
			}
			for _, b := range batches {
				next = b.Rev + 1
				if b.Changes = below(prefix, b.Changes); len(b.Changes) > 0 && !yield(b, nil) {
					return
				}
			}
			select {
			case <-ctx.Done():
				yield(catalog.Batch{}, ctx.Err())
				return
			case <-changed:
			}
		}
	}
}

// since gives the transactions from a revision on and the channel that tells of more.
func (s *Store) since(rev int64) ([]catalog.Batch, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, nil, catalog.ErrClosed
	case s.down != nil: // a watch doesn't end, it hears nothing
		return nil, s.changed, nil
	case rev <= s.compacted:
		return nil, nil, catalog.ErrCompacted
	}
	at := sort.Search(len(s.history), func(i int) bool { return s.history[i].Rev >= rev })
	return slices.Clone(s.history[at:]), s.changed, nil
}

func below(prefix string, changes []catalog.Change) []catalog.Change {
	var kept []catalog.Change
	for _, c := range changes {
		if strings.HasPrefix(c.Key, prefix) {
			kept = append(kept, c)
		}
	}
	return kept
}

// Compact forgets the history before rev: a watch from before it fails.
func (s *Store) Compact(rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compactLocked(min(rev, s.rev))
	s.wakeLocked()
}

func (s *Store) compactLocked(rev int64) {
	s.compacted = max(s.compacted, rev-1)
	at := sort.Search(len(s.history), func(i int) bool { return s.history[i].Rev > s.compacted })
	s.history = slices.Clone(s.history[at:])
}

// Interrupt makes every call fail with err, and watches hear nothing, until it is called with nil.
func (s *Store) Interrupt(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = err
	s.wakeLocked()
}

// Close ends all watches and leases.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	for id := range s.leases {
		s.dropLeaseLocked(id)
	}
	s.closed = true
	s.wakeLocked()
	return nil
}

// lease is a catalog.Lease.
type lease struct {
	store *Store
	id    int64
	lost  chan struct{}
}

// Lease grants a lease.
func (s *Store) Lease(ctx context.Context, ttl time.Duration) (catalog.Lease, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("catalog: a lease of %s", ttl)
	}
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	s.lastLease++
	l := &lease{store: s, id: s.lastLease, lost: make(chan struct{})}
	s.leases[l.id] = l
	return l, nil
}

// ExpireLease takes a lease away from its owner, as when it was not kept alive.
func (s *Store) ExpireLease(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLeaseLocked(id)
}

func (s *Store) dropLeaseLocked(id int64) {
	l := s.leases[id]
	if l == nil {
		return
	}
	delete(s.leases, id)
	var ops []catalog.Op
	for key, e := range s.entries {
		if e.lease == id {
			ops = append(ops, catalog.DeleteOp(key))
		}
	}
	s.applyLocked(0, ops)
	close(l.lost)
}

func (l *lease) ID() int64 { return l.id }

func (l *lease) Put(ctx context.Context, key string, value []byte, cond catalog.Cond) (int64, error) {
	return l.Txn(ctx, []catalog.Cond{cond.For(key)}, []catalog.Op{catalog.PutOp(key, value)})
}

func (l *lease) Txn(ctx context.Context, conds []catalog.Cond, ops []catalog.Op) (int64, error) {
	return l.store.txn(ctx, l.id, conds, ops)
}

func (l *lease) Lost() <-chan struct{} { return l.lost }

func (l *lease) Close() error {
	l.store.ExpireLease(l.id)
	return nil
}

var _ catalog.Store = (*Store)(nil)
