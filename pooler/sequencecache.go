package pooler

import (
	"context"
	"sync"

	"neki/internal/pgerr"
)

// SequenceName names a sequence of a database.
type SequenceName struct{ Database, Schema, Name string }

// SequenceFetch reserves up to n values of a sequence, at least one, by SequenceQuery on the primary of the shard that has
// it: see catalog.Topology.SequenceGroup.
type SequenceFetch func(ctx context.Context, name SequenceName, n int) ([]int64, error)

// SequenceQuery takes up to $2 (int4) values of the sequence $1 (text, an identifier as regclass reads it). It asks for no
// more than are left of one that does not cycle: nextval would fail, and have used them up.
const SequenceQuery = `SELECT pg_catalog.nextval(s.seqrelid::pg_catalog.regclass)
FROM pg_catalog.pg_sequence s CROSS JOIN LATERAL pg_catalog.generate_series(1::pg_catalog.int8,
  CASE WHEN s.seqcycle THEN $2::pg_catalog.int4 ELSE greatest(1, least($2::pg_catalog.int4, pg_catalog.trunc(
    (CASE WHEN s.seqincrement > 0 THEN s.seqmax ELSE s.seqmin END::pg_catalog.numeric
      - coalesce(pg_catalog.pg_sequence_last_value(s.seqrelid), s.seqstart::pg_catalog.numeric - s.seqincrement))
    / s.seqincrement))) END::pg_catalog.int8)
WHERE s.seqrelid = $1::pg_catalog.text::pg_catalog.regclass`

// SequenceCache hands out values of sequences that it has reserved in batches. Values that were reserved and not handed out
// when the gateway ends are gaps, as are those of a server's own CACHE; and as there, values of several gateways are not in
// the order of time. It is safe for concurrent use and starts no goroutine.
type SequenceCache struct {
	fetch SequenceFetch

	mu  sync.Mutex
	all map[SequenceName]*reserved
}

// reserved is what is left of one sequence's batch.
type reserved struct {
	turn   chan struct{} // holds one token while somebody takes values, and fetches them if need be
	values []int64
	batch  int // size of the next
}

// Sizes of batches: a sequence that is used much gets larger ones, which bounds round trips, and one that is not leaves
// small gaps.
const (
	firstBatch   = 8
	largestBatch = 1024
)

// maxSequences bounds the sequences of which values are kept.
const maxSequences = 4096

// NewSequenceCache makes an empty cache.
func NewSequenceCache(fetch SequenceFetch) *SequenceCache {
	return &SequenceCache{fetch: fetch, all: map[SequenceName]*reserved{}}
}

// Next gives the next value of a sequence.
func (c *SequenceCache) Next(ctx context.Context, name SequenceName) (int64, error) {
	var one [1]int64
	got, err := c.Append(ctx, one[:0], name, 1)
	if err != nil {
		return 0, err
	}
	return got[0], nil
}

// Append appends the next n values of a sequence: those of a statement that inserts n rows.
func (c *SequenceCache) Append(ctx context.Context, dst []int64, name SequenceName, n int) ([]int64, error) {
	r := c.of(name)
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return dst, ctx.Err()
	}
	defer func() { <-r.turn }()
	for {
		take := min(n, len(r.values))
		dst = append(dst, r.values[:take]...)
		r.values = r.values[take:]
		if n -= take; n == 0 {
			return dst, nil
		}
		values, err := c.fetch(ctx, name, max(r.batch, min(n, largestBatch)))
		if err != nil {
			return dst, err
		}
		if len(values) == 0 {
			return dst, pgerr.New(pgerr.UndefinedTable, "relation \"%s.%s\" does not exist", name.Schema, name.Name)
		}
		r.values, r.batch = values, min(2*r.batch, largestBatch)
	}
}

func (c *SequenceCache) of(name SequenceName) *reserved {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.all[name]
	if r == nil {
		for other := range c.all {
			if len(c.all) < maxSequences {
				break
			}
			delete(c.all, other) // its values become gaps
		}
		r = &reserved{turn: make(chan struct{}, 1), batch: firstBatch}
		c.all[name] = r
	}
	return r
}

// Forget drops what is reserved of a sequence: after setval, ALTER SEQUENCE and DROP through this gateway, which it must see.
func (c *SequenceCache) Forget(name SequenceName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, name)
}

// ForgetAll drops all that is reserved in a database.
func (c *SequenceCache) ForgetAll(database string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.all {
		if name.Database == database {
			delete(c.all, name)
		}
	}
}

// sequenceValues is what one session has been given: currval and lastval answer from it, as a server does from its
// connection. A rollback takes nothing back; DISCARD SEQUENCES and DISCARD ALL do. Used by the session's goroutine only.
type sequenceValues struct {
	current map[SequenceName]int64
	last    int64
	any     bool
}

// gave notes a value that nextval gave, or setval set.
func (s *sequenceValues) gave(name SequenceName, value int64) {
	if s.current == nil {
		s.current = map[SequenceName]int64{}
	}
	s.current[name] = value
	s.last, s.any = value, true
}

// currval is 55000 before nextval was called of that sequence in the session.
func (s *sequenceValues) currval(name SequenceName) (int64, error) {
	value, ok := s.current[name]
	if !ok {
		return 0, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "currval of sequence \"%s\" is not yet defined in this session", name.Name)
	}
	return value, nil
}

// lastval is 55000 before nextval was called of any.
func (s *sequenceValues) lastval() (int64, error) {
	if !s.any {
		return 0, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "lastval is not yet defined in this session")
	}
	return s.last, nil
}

func (s *sequenceValues) discard() { *s = sequenceValues{} }
