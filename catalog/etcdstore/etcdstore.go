// Package etcdstore is a catalog.Store on etcd.
//
// Reads are linearizable. A call whose context has no deadline gets Config.Timeout; a write that fails for want of an
// answer may have been done, as with any store on a network, so that writers use conditions and read again.
//
// Goroutines: each lease has one, joined by its Close; those of the etcd client are joined by Store.Close. A Watch
// runs in its caller's. A Store is safe for concurrent use.
//
// Manual: https://etcd.io/docs/latest/learning/api_guarantees/
package etcdstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"neki/catalog"
)

// Config says where etcd is.
type Config struct {
	Endpoints []string
	TLS       *tls.Config   // nil = none
	Timeout   time.Duration // of a call whose context has no deadline; 0 = 5 s
}

// Store is a catalog.Store on etcd.
type Store struct {
	client  *clientv3.Client
	timeout time.Duration

	mu     sync.Mutex
	closed bool
	leases map[*lease]struct{}
}

// Open makes a Store. It does not wait for etcd: calls do.
func Open(cfg Config) (*Store, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: cfg.Endpoints, TLS: cfg.TLS, Logger: zap.NewNop(),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: connectTime,
		}), dialing()},
	})
	if err != nil {
		return nil, fmt.Errorf("catalog: open etcd: %w", err)
	}
	timeout := cfg.Timeout
	if timeout == 0 {
		timeout = 5 * time.Second
	}
	return &Store{client: client, timeout: timeout, leases: map[*lease]struct{}{}}, nil
}

// enter begins a call: it gives a context that has a deadline.
func (s *Store) enter(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if s.isClosed() {
		return nil, nil, catalog.ErrClosed // the client would go on trying
	}
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	return ctx, cancel, nil
}

// translate gives the catalog's error for etcd's.
func (s *Store) translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrCompacted):
		return catalog.ErrCompacted
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return catalog.ErrLeaseLost
	case s.isClosed():
		return catalog.ErrClosed
	}
	return fmt.Errorf("catalog: etcd: %w", err)
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Get gives an entry.
func (s *Store) Get(ctx context.Context, key string) (catalog.Entry, error) {
	ctx, cancel, err := s.enter(ctx)
	if err != nil {
		return catalog.Entry{}, err
	}
	defer cancel()
	got, err := s.client.Get(ctx, key)
	if err != nil {
		return catalog.Entry{}, s.translate(err)
	}
	if len(got.Kvs) == 0 {
		return catalog.Entry{}, catalog.ErrNotFound
	}
	return entryOf(got.Kvs[0]), nil
}

// List gives the entries below a prefix.
func (s *Store) List(ctx context.Context, prefix string) ([]catalog.Entry, int64, error) {
	ctx, cancel, err := s.enter(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer cancel()
	got, err := s.client.Get(ctx, prefix, clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
	if err != nil {
		return nil, 0, s.translate(err)
	}
	entries := make([]catalog.Entry, len(got.Kvs))
	for i, kv := range got.Kvs {
		entries[i] = entryOf(kv)
	}
	return entries, got.Header.Revision, nil
}

func entryOf(kv *mvccpb.KeyValue) catalog.Entry {
	return catalog.Entry{Key: string(kv.Key), Value: kv.Value, ModRev: kv.ModRevision, CreateRev: kv.CreateRevision}
}

// Put writes a key.
func (s *Store) Put(ctx context.Context, key string, value []byte, cond catalog.Cond) (int64, error) {
	return s.txn(ctx, clientv3.NoLease, []catalog.Cond{cond.For(key)}, []catalog.Op{catalog.PutOp(key, value)})
}

// Delete removes a key.
func (s *Store) Delete(ctx context.Context, key string, cond catalog.Cond) (int64, error) {
	return s.txn(ctx, clientv3.NoLease, []catalog.Cond{cond.For(key)}, []catalog.Op{catalog.DeleteOp(key)})
}

// Txn writes several keys.
func (s *Store) Txn(ctx context.Context, conds []catalog.Cond, ops []catalog.Op) (int64, error) {
	return s.txn(ctx, clientv3.NoLease, conds, ops)
}

func (s *Store) txn(ctx context.Context, id clientv3.LeaseID, conds []catalog.Cond, ops []catalog.Op) (int64, error) {
	ctx, cancel, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer cancel()
	var cmps []clientv3.Cmp
	for _, c := range conds {
		if c.Kind != catalog.CondAlways {
			cmps = append(cmps, compare(c))
		}
	}
	writes := make([]clientv3.Op, len(ops))
	for i, op := range ops {
		if op.Delete {
			writes[i] = clientv3.OpDelete(op.Key)
		} else {
			writes[i] = clientv3.OpPut(op.Key, string(op.Value), clientv3.WithLease(id))
		}
	}
	done, err := s.client.Txn(ctx).If(cmps...).Then(writes...).Commit()
	if err != nil {
		return 0, s.translate(err)
	}
	if !done.Succeeded {
		return 0, catalog.ErrConflict
	}
	return done.Header.Revision, nil
}

func compare(c catalog.Cond) clientv3.Cmp {
	switch c.Kind {
	case catalog.CondAbsent:
		return clientv3.Compare(clientv3.CreateRevision(c.Key), "=", 0)
	case catalog.CondPresent:
		return clientv3.Compare(clientv3.CreateRevision(c.Key), ">", 0)
	case catalog.CondCreateRev:
		return clientv3.Compare(clientv3.CreateRevision(c.Key), "=", c.Rev)
	default:
		return clientv3.Compare(clientv3.ModRevision(c.Key), "=", c.Rev)
	}
}

// watchPause is the wait before a watch that a member without a leader has ended is begun anew.
const watchPause = 200 * time.Millisecond

// Watch gives what changes.
func (s *Store) Watch(ctx context.Context, prefix string, fromRev int64) iter.Seq2[catalog.Batch, error] {
	return func(yield func(catalog.Batch, error) bool) {
		next, more := fromRev, true
		for more {
			next, more = s.watchOnce(ctx, prefix, next, yield)
			if more {
				wait(ctx, watchPause)
			}
		}
	}
}

// watchOnce yields until the watch ends; more tells that it should be begun again at next.
func (s *Store) watchOnce(
	ctx context.Context, prefix string, from int64, yield func(catalog.Batch, error) bool,
) (next int64, more bool) {
	next = from
	watchCtx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	if s.isClosed() {
		yield(catalog.Batch{}, catalog.ErrClosed)
		return next, false
	}
	for response := range s.client.Watch(watchCtx, prefix, clientv3.WithPrefix(), clientv3.WithRev(next)) {
		if err := response.Err(); err != nil {
			if errors.Is(err, rpctypes.ErrNoLeader) {
				return next, true
			}
			yield(catalog.Batch{}, s.translate(err))
			return next, false
		}
		batch := batchOf(response)
		if len(batch.Changes) == 0 {
			continue
		}
		if !yield(batch, nil) {
			return next, false
		}
		next = batch.Rev + 1
	}
	switch {
	case ctx.Err() != nil:
		yield(catalog.Batch{}, ctx.Err())
		return next, false
	case s.isClosed():
		yield(catalog.Batch{}, catalog.ErrClosed)
		return next, false
	}
	return next, true
}

// batchOf gives the changes of a response. Its revision is the last change's: the header's may be ahead of what this
// watch was sent.
func batchOf(response clientv3.WatchResponse) catalog.Batch {
	var b catalog.Batch
	for _, e := range response.Events {
		c := catalog.Change{Entry: entryOf(e.Kv), Deleted: e.Type == mvccpb.Event_DELETE}
		if c.Deleted {
			c.Value, c.CreateRev = nil, 0
		}
		b.Changes = append(b.Changes, c)
		b.Rev = max(b.Rev, c.ModRev)
	}
	return b
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Close revokes the leases that are open, as far as etcd answers at once, and ends all calls.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	open := make([]*lease, 0, len(s.leases))
	for l := range s.leases {
		open = append(open, l)
	}
	s.mu.Unlock()
	for _, l := range open {
		_ = l.Close() // etcd lets it run out if it can't be told
	}
	if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("catalog: close etcd: %w", err)
	}
	return nil
}

var _ catalog.Store = (*Store)(nil)
