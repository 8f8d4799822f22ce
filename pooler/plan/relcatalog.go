package plan

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"neki/internal/pgerr"
)

// RelLoad reads a database's relations and types by RelCatalogQuery, on any instance of the authoritative shard, and gives
// each row's document to scan. It has a deadline of its own.
type RelLoad func(scan func(document []byte) error) error

// RelCatalog knows the relations and types of one database, as its authoritative shard has them: as Functions does, but
// only once somebody has asked, since a database that is all on one shard needs none of it. It is safe for concurrent use.
type RelCatalog struct {
	load    RelLoad
	current func() int64 // changes when DDL was done through another gateway

	refresh sync.Mutex // one load at a time
	change  sync.Mutex // held while table and version are written
	table   atomic.Pointer[RelTable]
	version atomic.Uint64
	asked   chan struct{} // holds one token once a table was wanted
}

// NewRelCatalog makes a catalogue that reads by load. schema gives a number that changes with the cluster's schema
// (Snapshot.SchemaRev); nil: it never does. It starts no goroutine: its owner runs Run.
func NewRelCatalog(load RelLoad, schema func() int64) *RelCatalog {
	if schema == nil {
		schema = func() int64 { return 0 }
	}
	return &RelCatalog{load: load, current: schema, asked: make(chan struct{}, 1)}
}

// Table gives what the database has, reading it when it is not known, or may have changed. The error is a *pgerr.Error.
func (r *RelCatalog) Table() (*RelTable, error) {
	select {
	case r.asked <- struct{}{}:
	default:
	}
	var err error
	for range reloads {
		if t := r.table.Load(); t != nil && t.schema == r.current() {
			return t, nil
		}
		if err = r.read(false); err != nil {
			return nil, unreadable(err)
		}
	}
	return nil, pgerr.New(pgerr.CannotConnectNow, "the schema of the database changes all the time").
		WithHint("Try again.")
}

// reloads bounds how often a schema is read that changes while it is read.
const reloads = 5

func unreadable(err error) error {
	if pgerr.Code(err) == pgerr.ProgramLimitExceeded {
		return err
	}
	return pgerr.New(pgerr.CannotConnectNow, "the schema of the database can't be read: %w", err).
		WithHint("It is read from the authoritative shard.")
}

// Refresh reads the database again if it was ever asked for. The version changes only when something differs.
func (r *RelCatalog) Refresh() error {
	if r.table.Load() == nil {
		return nil
	}
	return r.read(true)
}

// read loads a table; unless again, only if that which is known is old.
func (r *RelCatalog) read(again bool) error {
	r.refresh.Lock()
	defer r.refresh.Unlock()
	schema, before := r.current(), r.version.Load()
	if old := r.table.Load(); !again && old != nil && old.schema == schema {
		return nil // another has read it meanwhile
	}
	b := newRelBuilder()
	if err := r.load(b.add); err != nil {
		return err
	}
	t := b.finish(schema)
	r.change.Lock()
	defer r.change.Unlock()
	if r.version.Load() != before {
		return nil // invalidated while it was read: then it may be the state from before
	}
	if old := r.table.Load(); old != nil && old.sum != t.sum {
		r.version.Add(1)
	}
	r.table.Store(t)
	return nil
}

// Invalidate forgets all, because the schema may have changed.
func (r *RelCatalog) Invalidate() {
	r.change.Lock()
	r.table.Store(nil)
	r.version.Add(1)
	r.change.Unlock()
}

// Version changes whenever what Table gives may.
func (r *RelCatalog) Version() uint64 { return r.version.Load() }

// Run refreshes after each interval, from the first call of Table on, until ctx ends: what was changed past the gateways
// is learned then.
func (r *RelCatalog) Run(ctx context.Context, interval time.Duration, log *slog.Logger) {
	select {
	case <-ctx.Done():
		return
	case <-r.asked:
	}
	for {
		if _, ok := pause(ctx, interval, nil); !ok {
			return
		}
		if err := r.Refresh(); err != nil && ctx.Err() == nil {
			log.Warn("the schema of the database can't be read", "error", err)
		}
	}
}
