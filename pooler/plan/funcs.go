package plan

import (
	"context"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Function is a row of pg_proc as far as planning needs it.
type Function struct {
	Schema, Name string
	MinArgs      int  // without those that have defaults
	MaxArgs      int  // -1: variadic
	Volatile     bool // provolatile = 'v', but for functions known to be harmless
}

// Relation is the name of a relation.
type Relation struct {
	Schema, Name string
}

// Load reads a database's functions, and the relations that have the name of one of the virtual schema's: by
// FunctionsQuery and RelationsQuery, on any instance of the database's home shard.
type Load func(ctx context.Context) ([]Function, []Relation, error)

// Functions knows the functions of one database. Until the first Refresh it knows none, so that every call counts as a
// write. From Invalidate to the next Refresh it knows the built-in functions only: see builtIns.
type Functions struct {
	load    Load
	refresh sync.Mutex // one load at a time
	change  sync.Mutex // held while table and version are written; table first, so that no version promises too much
	table   atomic.Pointer[functionTable]
	version atomic.Uint64
	stale   chan struct{} // holds one token when Invalidate was called
}

// functionTable is immutable.
type functionTable struct {
	byName    map[string][]overload
	relations map[Relation]struct{}
	sum       uint64 // of all rows: equal tables need no new version
	partial   bool   // holds built-in functions only, and no relations
}

// overload is all functions of a name, schema, number of arguments and volatility.
type overload struct {
	schema   string
	min, max int16
	volatile bool
}

var _ FuncCatalog = (*Functions)(nil)

// NewFunctions makes a catalog that reads by load. It starts no goroutine: its owner runs Run, or calls Refresh from time
// to time and when Stale says so. A Planner must see one Functions for a database, not a new one later, since versions
// are counted by each for itself.
func NewFunctions(load Load) *Functions {
	return &Functions{load: load, stale: make(chan struct{}, 1)}
}

// Refresh reads the database. The version changes only when something differs.
func (f *Functions) Refresh(ctx context.Context) error {
	f.refresh.Lock()
	defer f.refresh.Unlock()
	before := f.version.Load()
	functions, relations, err := f.load(ctx)
	if err != nil {
		return err
	}
	t := newFunctionTable(functions, relations)
	f.change.Lock()
	defer f.change.Unlock()
	old := f.table.Load()
	if f.version.Load() != before || old != nil && !old.partial && old.sum == t.sum {
		return nil // nothing new, or invalidated while it was read: then it may be the state from before
	}
	f.table.Store(t)
	f.version.Add(1)
	return nil
}

// settle is the least time between two Refreshes that Run makes because of Invalidate: a script of many changes is not
// answered by one each.
const settle = 100 * time.Millisecond

// Run refreshes at once, at an Invalidate and after each interval, until ctx ends. A failed Refresh is logged and tried
// again after a second.
func (f *Functions) Run(ctx context.Context, interval time.Duration, log *slog.Logger) {
	var changed time.Time // when the last Refresh because of an Invalidate began
	for {
		wait := interval
		if err := f.Refresh(ctx); err != nil && ctx.Err() == nil {
			log.Warn("functions of the database can't be read", "error", err)
			wait = time.Second
		}
		stale, ok := pause(ctx, wait, f.stale)
		if ok && stale {
			if left := settle - time.Since(changed); left > 0 {
				_, ok = pause(ctx, left, nil)
			}
			changed = time.Now()
		}
		if !ok {
			return
		}
	}
}

// pause waits for a token of wake, at most the given time; ok is false once ctx has ended.
func pause(ctx context.Context, limit time.Duration, wake <-chan struct{}) (woken, ok bool) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, false
	case <-timer.C:
		return false, true
	case <-wake:
		return true, true
	}
}

// Invalidate forgets all but the built-in functions, because functions may have changed. Stale then fires.
func (f *Functions) Invalidate() {
	f.change.Lock()
	if t := f.table.Load(); t != nil {
		f.table.Store(t.builtIns())
	}
	f.version.Add(1)
	f.change.Unlock()
	select {
	case f.stale <- struct{}{}:
	default:
	}
}

// Stale gives a token when a Refresh is needed.
func (f *Functions) Stale() <-chan struct{} { return f.stale }

// Loaded reports whether all functions are known.
func (f *Functions) Loaded() bool {
	t := f.table.Load()
	return t != nil && !t.partial
}

// Version changes whenever an answer of Volatile or Relation may.
func (f *Functions) Version() uint64 { return f.version.Load() }

// Volatile judges a call. Argument types are not known here, so all functions that could be meant count, and one that is
// volatile decides.
func (f *Functions) Volatile(schema, name string, nargs int, searchPath []string) (volatile, known bool) {
	t := f.table.Load()
	if t == nil || t.partial && schema == "" && (len(searchPath) == 0 || searchPath[0] != systemSchema) {
		return true, false
	}
	for _, o := range t.byName[name] {
		if nargs < int(o.min) || o.max >= 0 && nargs > int(o.max) || !visible(o.schema, schema, searchPath) {
			continue
		}
		known = true
		volatile = volatile || o.volatile
	}
	return volatile || !known, known
}

// Relation tells whether the database has a relation of a name that the virtual schema has too.
func (f *Functions) Relation(schema, name string) (exists, known bool) {
	t := f.table.Load()
	if t == nil || t.partial {
		return false, false
	}
	_, exists = t.relations[Relation{schema, name}]
	return exists, true
}

// builtIns gives what of the table may be believed after a change of functions: those of pg_catalog, which such changes
// don't touch, under names that no other schema had. A new function of such a name, for other types of arguments, is
// unknown until the next Refresh, which is under way: what it writes on a standby is refused there, and then run on the
// primary.
func (t *functionTable) builtIns() *functionTable {
	if t.partial {
		return t
	}
	kept := &functionTable{byName: make(map[string][]overload, len(t.byName)), partial: true}
	for name, overloads := range t.byName {
		if !slices.ContainsFunc(overloads, func(o overload) bool { return o.schema != systemSchema }) {
			kept.byName[name] = overloads
		}
	}
	return kept
}

func visible(schema, wanted string, searchPath []string) bool {
	if wanted != "" {
		return schema == wanted
	}
	return slices.Contains(searchPath, schema)
}

// tableSeed makes sums of one process comparable.
var tableSeed = maphash.MakeSeed()

func newFunctionTable(functions []Function, relations []Relation) *functionTable {
	t := &functionTable{byName: make(map[string][]overload, len(functions)), relations: make(map[Relation]struct{})}
	schemas := make(map[string]string) // one string for each schema's name
	for _, fn := range functions {
		schema, ok := schemas[fn.Schema]
		if !ok {
			schema = fn.Schema
			schemas[schema] = schema
		}
		o := overload{schema: schema, min: int16(fn.MinArgs), max: int16(fn.MaxArgs), volatile: fn.Volatile}
		if o.volatile && schema == systemSchema && isHarmless(fn.Name) {
			o.volatile = false
		}
		if !o.volatile && schema == systemSchema && hasEffects(fn.Name) {
			o.volatile = true
		}
		t.byName[fn.Name] = append(t.byName[fn.Name], o)
		t.sum += maphash.Comparable(tableSeed, fn) // a sum: the order of rows does not count
	}
	for _, r := range relations {
		t.relations[r] = struct{}{}
		t.sum += maphash.Comparable(tableSeed, r)
	}
	return t
}
