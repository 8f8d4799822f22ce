package catalog

import (
	"context"
	"errors"
	"iter"
	"time"
)

// Errors that every Store returns, wrapped or not.
var (
	ErrNotFound  = errors.New("catalog: no such key")
	ErrConflict  = errors.New("catalog: the key was changed by another")
	ErrCompacted = errors.New("catalog: the history wanted is gone")
	ErrLeaseLost = errors.New("catalog: the lease is gone")
	ErrClosed    = errors.New("catalog: the store is closed")
)

// Store is a small linearizable key-value store with revisions. Each write has a revision of its own, greater than all
// before; the writes of one Txn share one. It is safe for concurrent use. A call whose context has no deadline gets
// one from the store. After Close all calls fail with ErrClosed, and leases that are still open are gone.
type Store interface {
	// Get gives the entry, or ErrNotFound.
	Get(ctx context.Context, key string) (Entry, error)
	// List gives all entries whose key starts with prefix, in the order of the keys, as they were at the revision.
	List(ctx context.Context, prefix string) (entries []Entry, rev int64, err error)
	// Put writes one key if cond holds, else ErrConflict. A Cond with no Key is about the key written; the zero Cond
	// always holds.
	Put(ctx context.Context, key string, value []byte, cond Cond) (rev int64, err error)
	// Delete removes one key if cond holds, else ErrConflict. Removing what is not there is no error.
	Delete(ctx context.Context, key string, cond Cond) (rev int64, err error)
	// Txn does all ops if all conds hold, else nothing and ErrConflict. A key may be written once in it.
	Txn(ctx context.Context, conds []Cond, ops []Op) (rev int64, err error)
	// Watch gives every change of keys that start with prefix from fromRev on, in order, in batches that are whole
	// transactions. It ends with ErrCompacted when the history from fromRev is gone (List again), with ctx's error,
	// with ErrClosed, or with the store's. It does not end because the store is away for a time.
	Watch(ctx context.Context, prefix string, fromRev int64) iter.Seq2[Batch, error]
	// Lease grants a lease and keeps it alive until it is closed.
	Lease(ctx context.Context, ttl time.Duration) (Lease, error)
	Close() error
}

// Lease keeps keys in the store for as long as its owner lives. A key put under it goes when the lease does.
type Lease interface {
	ID() int64
	// Put is Store.Put for a key that goes with the lease. It fails with ErrLeaseLost when the lease is gone.
	Put(ctx context.Context, key string, value []byte, cond Cond) (rev int64, err error)
	// Txn is Store.Txn whose puts go with the lease.
	Txn(ctx context.Context, conds []Cond, ops []Op) (rev int64, err error)
	// Lost is closed when the lease is gone, or must be taken as gone because it could not be kept alive for its time.
	Lost() <-chan struct{}
	// Close revokes the lease: its keys are gone when it returns without error. It joins the lease's goroutine.
	Close() error
}

// Entry is one key with its value.
type Entry struct {
	Key       string
	Value     []byte // not to be changed
	ModRev    int64  // revision of the last write
	CreateRev int64  // revision of the write that made it
}

// Batch is what changed, up to and including a revision.
type Batch struct {
	Rev     int64
	Changes []Change
}

// Change is one write as a watch sees it.
type Change struct {
	Entry   // of a deletion: Key and ModRev only
	Deleted bool
}

// CondKind is what a Cond compares.
type CondKind uint8

// The kinds of conditions.
const (
	CondAlways    CondKind = iota
	CondAbsent             // the key is not there
	CondPresent            // it is
	CondModRev             // its ModRev is Rev; Rev 0 = it is not there
	CondCreateRev          // its CreateRev is Rev; Rev 0 = it is not there
)

// Cond is a condition on one key.
type Cond struct {
	Key  string
	Kind CondKind
	Rev  int64
}

// Always holds.
func Always() Cond { return Cond{} }

// Absent holds when the key is not there; in Put and Delete, key may be "" for the key written.
func Absent(key string) Cond { return Cond{Key: key, Kind: CondAbsent} }

// Present holds when the key is there.
func Present(key string) Cond { return Cond{Key: key, Kind: CondPresent} }

// ModRev holds when the last write of the key had that revision; 0 = it is not there.
func ModRev(key string, rev int64) Cond { return Cond{Key: key, Kind: CondModRev, Rev: rev} }

// CreateRev holds when the key was made by that revision; 0 = it is not there.
func CreateRev(key string, rev int64) Cond { return Cond{Key: key, Kind: CondCreateRev, Rev: rev} }

// For gives the condition with its key filled in.
func (c Cond) For(key string) Cond {
	if c.Key == "" {
		c.Key = key
	}
	return c
}

// Op is one write of a Txn.
type Op struct {
	Key    string
	Value  []byte
	Delete bool
}

// PutOp writes a key.
func PutOp(key string, value []byte) Op { return Op{Key: key, Value: value} }

// DeleteOp removes a key.
func DeleteOp(key string) Op { return Op{Key: key, Delete: true} }
