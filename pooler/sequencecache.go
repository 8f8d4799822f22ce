package pooler

import (
	"context"
	"fmt"
	"sync"

	"neki/internal/pgerr"
	"neki/sqlparse"
)

// SequenceName names a sequence of a database.
type SequenceName struct{ Database, Schema, Name string }

// SequenceFetch reserves up to n values of a sequence, at least one, by sequenceSQL on the primary of the shard that has it:
// see catalog.Topology.SequenceGroup.
type SequenceFetch func(ctx context.Context, name SequenceName, n int) ([]int64, error)

// sequenceSQL takes up to n values of a sequence. It asks for no more than are left of one that does not cycle: nextval would
// fail, and have used them up.
func sequenceSQL(name SequenceName, n int) string {
	literal := sqlparse.QuoteLiteral(sqlparse.QuoteIdent(name.Schema) + "." + sqlparse.QuoteIdent(name.Name))
	return fmt.Sprintf(`SELECT pg_catalog.nextval(s.seqrelid::pg_catalog.regclass)
FROM pg_catalog.pg_sequence s CROSS JOIN LATERAL pg_catalog.generate_series(1::pg_catalog.int8,
  CASE WHEN s.seqcycle THEN %[1]d::pg_catalog.int4 ELSE greatest(1, least(%[1]d::pg_catalog.int4, pg_catalog.trunc(
    (CASE WHEN s.seqincrement > 0 THEN s.seqmax ELSE s.seqmin END::pg_catalog.numeric
      - coalesce(pg_catalog.pg_sequence_last_value(s.seqrelid), s.seqstart::pg_catalog.numeric - s.seqincrement))
    / s.seqincrement))) END::pg_catalog.int8)
WHERE s.seqrelid = %[2]s::pg_catalog.regclass`, n, literal)
}

// SequenceCache hands out values of sequences that it has reserved in batches, for each role its own: it is the server that
// lets a role have them. Values that were reserved and not handed out when the gateway ends are gaps, as are those of a
// server's own CACHE; and as there, values of several gateways are not in the order of time. It is safe for concurrent use
// and starts no goroutine.
//
// Nobody waits for another's fetch, who may hold what that waits for: meanwhile others fetch what they need themselves, and
// may be given values of the batch afterwards. So the values of one session need not grow either.
type SequenceCache struct {
	mu  sync.Mutex
	all map[sequenceUse]*reserved
}

// sequenceUse is a sequence as a role uses it.
type sequenceUse struct {
	SequenceName
	role string
}

// reserved is what is left of one sequence's batch.
type reserved struct {
	schema   int64 // the revision of the schema that it was fetched under
	values   []int64
	batch    int // size of the next
	fetching bool
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
func NewSequenceCache() *SequenceCache { return &SequenceCache{all: map[sequenceUse]*reserved{}} }

// Append appends the next n values of a sequence: those of a statement that inserts n rows. Values that were fetched under
// another revision of the schema are not handed out: the sequence may have been restarted.
func (c *SequenceCache) Append(
	ctx context.Context, dst []int64, use sequenceUse, schema int64, n int, fetch SequenceFetch,
) ([]int64, error) {
	for n > 0 {
		values, r, size := c.take(use, schema, n)
		if r == nil {
			dst, n = append(dst, values...), n-len(values)
			continue
		}
		values, err := fetch(ctx, use.SequenceName, size)
		if err == nil && len(values) == 0 {
			err = pgerr.New(pgerr.UndefinedTable, "relation \"%s.%s\" does not exist", use.Schema, use.Name)
		}
		own := min(n, len(values))
		if size > n {
			c.fetched(r, schema, values[own:])
		}
		if err != nil {
			return dst, err
		}
		dst, n = append(dst, values[:own]...), n-own
	}
	return dst, nil
}

// take takes up to n values that are there; with none, it gives the record for which size values are to be fetched.
func (c *SequenceCache) take(use sequenceUse, schema int64, n int) (values []int64, r *reserved, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r = c.of(use)
	if r.schema != schema {
		r.values, r.schema = nil, schema
	}
	if len(r.values) > 0 {
		n = min(n, len(r.values))
		values, r.values = r.values[:n], r.values[n:]
		return values, nil, 0
	}
	size = min(n, largestBatch)
	if !r.fetching && r.batch > size {
		r.fetching, size = true, r.batch
		r.batch = min(2*r.batch, largestBatch)
	}
	return nil, r, size
}

// fetched puts what is left of a fetch into the record.
func (c *SequenceCache) fetched(r *reserved, schema int64, rest []int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.fetching = false
	if r.schema == schema {
		r.values = rest
	}
}

// of gives the record of a sequence. The caller holds mu.
func (c *SequenceCache) of(use sequenceUse) *reserved {
	r := c.all[use]
	if r == nil {
		for other := range c.all {
			if len(c.all) < maxSequences {
				break
			}
			delete(c.all, other) // its values become gaps
		}
		r = &reserved{batch: firstBatch}
		c.all[use] = r
	}
	return r
}

// ForgetAll drops all that is reserved in a database: after setval through this gateway, which it must see.
func (c *SequenceCache) ForgetAll(database string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for use := range c.all {
		if use.Database == database {
			delete(c.all, use)
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
