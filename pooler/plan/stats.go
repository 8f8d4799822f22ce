package plan

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Observation is one execution of a statement.
type Observation struct {
	Duration   time.Duration
	Rows       int64
	ShardCalls int64 // statements sent to shards for it
	Failed     bool
}

// Statistic is what is known of the statements of one fingerprint.
type Statistic struct {
	Fingerprint                     string
	Query                           string
	Calls, Errors, Rows, ShardCalls int64
	Total, P50, P95, P99            time.Duration
}

// Statistics counts statements by fingerprint. It is bounded in bytes: when it is full, an entry with few calls makes
// room for a new one.
type Statistics struct {
	maxBytes int64
	evicted  atomic.Int64

	mu      sync.Mutex // guards what follows; not taken while a plan's entry lives
	entries map[string]*entry
	bytes   int64
}

// entry counts one fingerprint. Its counters are added to without a lock.
type entry struct {
	fingerprint string
	query       string
	dead        atomic.Bool // was evicted; a plan that still points to it looks again
	latency     histogram
	parts       [entryShards]entryPart
}

const entryShards = 4

// entryPart is a share of an entry's counters on a cache line of its own.
type entryPart struct {
	rows, shardCalls, errors, nanoseconds atomic.Int64
	_                                     [32]byte
}

// entryBytes is an entry without its texts: counters, histogram, map cell.
const entryBytes = 64*entryShards + 8*histogramBuckets + 200

func newStatistics(maxBytes int64) *Statistics {
	return &Statistics{maxBytes: maxBytes, entries: make(map[string]*entry)}
}

// Record counts one execution of p. It does not allocate, and takes no lock, once the fingerprint is known.
func (s *Statistics) Record(p *Plan, o Observation) {
	if p.Fingerprint == "" {
		return
	}
	e := p.stats.Load()
	if e == nil || e.dead.Load() {
		e = s.entry(p.Fingerprint, p.Query)
		p.stats.Store(e)
	}
	e.latency.add(o.Duration)
	part := &e.parts[rand.Uint32()%entryShards]
	part.nanoseconds.Add(int64(o.Duration))
	if o.Rows != 0 {
		part.rows.Add(o.Rows)
	}
	if o.ShardCalls != 0 {
		part.shardCalls.Add(o.ShardCalls)
	}
	if o.Failed {
		part.errors.Add(1)
	}
}

// entry finds or makes the entry of a fingerprint.
func (s *Statistics) entry(fingerprint, query string) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.entries[fingerprint]; ok {
		return e
	}
	e := &entry{fingerprint: fingerprint, query: query}
	s.bytes += e.bytes()
	for s.bytes > s.maxBytes && len(s.entries) > 0 {
		s.evictLocked()
	}
	s.entries[fingerprint] = e
	return e
}

// evictLocked drops the entry with the fewest calls among a few; maps are walked from a random place.
func (s *Statistics) evictLocked() {
	const sample = 8
	var victim *entry
	var fewest int64
	seen := 0
	for _, e := range s.entries {
		if calls := e.latency.count(); victim == nil || calls < fewest {
			victim, fewest = e, calls
		}
		if seen++; seen == sample {
			break
		}
	}
	victim.dead.Store(true)
	delete(s.entries, victim.fingerprint)
	s.bytes -= victim.bytes()
	s.evicted.Add(1)
}

func (e *entry) bytes() int64 { return entryBytes + int64(len(e.fingerprint)+len(e.query)) }

// List gives all entries in no order.
func (s *Statistics) List() []Statistic {
	s.mu.Lock()
	entries := make([]*entry, 0, len(s.entries))
	for _, e := range s.entries {
		entries = append(entries, e)
	}
	s.mu.Unlock()
	out := make([]Statistic, len(entries))
	for i, e := range entries {
		out[i] = e.statistic()
	}
	return out
}

// Reset forgets all entries.
func (s *Statistics) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		e.dead.Store(true)
	}
	s.entries, s.bytes = make(map[string]*entry), 0
}

// Evicted counts the entries that had to make room.
func (s *Statistics) Evicted() int64 { return s.evicted.Load() }

func (e *entry) statistic() Statistic {
	st := Statistic{Fingerprint: e.fingerprint, Query: e.query}
	for i := range e.parts {
		p := &e.parts[i]
		st.Rows += p.rows.Load()
		st.ShardCalls += p.shardCalls.Load()
		st.Errors += p.errors.Load()
		st.Total += time.Duration(p.nanoseconds.Load())
	}
	var q [3]time.Duration
	st.Calls = e.latency.quantiles([3]float64{0.50, 0.95, 0.99}, &q)
	st.P50, st.P95, st.P99 = q[0], q[1], q[2]
	return st
}
