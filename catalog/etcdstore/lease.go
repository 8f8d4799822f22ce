package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"neki/catalog"
)

// revokeTimeout bounds the wait for etcd when a lease is given up: after its time it goes by itself.
const revokeTimeout = 2 * time.Second

// lease is a catalog.Lease, kept alive by a goroutine of its own.
type lease struct {
	store  *Store
	id     clientv3.LeaseID
	lost   chan struct{}
	done   chan struct{}
	cancel context.CancelFunc

	closing sync.Once
	closed  error
}

// Lease grants a lease. etcd raises a ttl below its least, some two seconds.
func (s *Store) Lease(ctx context.Context, ttl time.Duration) (catalog.Lease, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("catalog: a lease of %s", ttl)
	}
	ctx, cancel, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	granted, err := s.client.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return nil, s.translate(err)
	}
	aliveCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &lease{
		store: s, id: granted.ID, lost: make(chan struct{}), done: make(chan struct{}), cancel: stop,
	}
	s.mu.Lock()
	closed := s.closed
	s.leases[l] = struct{}{}
	s.mu.Unlock()
	go l.keepAlive(aliveCtx, time.Duration(granted.TTL)*time.Second)
	if closed {
		_ = l.Close()
		return nil, catalog.ErrClosed
	}
	return l, nil
}

// keepAlive runs until the lease is closed or lost. The lease is lost when etcd says so, and also when etcd has said
// nothing for the lease's time: its keys may be gone then.
func (l *lease) keepAlive(ctx context.Context, ttl time.Duration) {
	defer close(l.done)
	defer close(l.lost)
	answers, err := l.store.client.KeepAlive(ctx, l.id)
	if err != nil {
		return
	}
	over := time.NewTimer(ttl)
	defer over.Stop()
	for {
		select {
		case answer, ok := <-answers:
			if !ok {
				return
			}
			over.Reset(time.Duration(answer.TTL) * time.Second)
		case <-over.C:
			return
		}
	}
}

func (l *lease) ID() int64 { return int64(l.id) }

func (l *lease) Put(ctx context.Context, key string, value []byte, cond catalog.Cond) (int64, error) {
	return l.Txn(ctx, []catalog.Cond{cond.For(key)}, []catalog.Op{catalog.PutOp(key, value)})
}

func (l *lease) Txn(ctx context.Context, conds []catalog.Cond, ops []catalog.Op) (int64, error) {
	return l.store.txn(ctx, l.id, conds, ops)
}

func (l *lease) Lost() <-chan struct{} { return l.lost }

func (l *lease) Close() error {
	l.closing.Do(func() {
		l.cancel()
		<-l.done
		l.store.mu.Lock()
		delete(l.store.leases, l)
		l.store.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), revokeTimeout)
		defer cancel()
		_, err := l.store.client.Revoke(ctx, l.id)
		if err = l.store.translate(err); !errors.Is(err, catalog.ErrLeaseLost) {
			l.closed = err
		}
	})
	return l.closed
}
