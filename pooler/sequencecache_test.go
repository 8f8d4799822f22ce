package pooler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
	"neki/internal/testpg"
)

// TestSequenceQuery reserves from a server: what is left is given out to the last value, whichever way it counts.
func TestSequenceQuery(t *testing.T) {
	server := testpg.Start(t)
	conn := server.Conn(t.Context())
	fetch := func(ctx context.Context, name SequenceName, n int) ([]int64, error) {
		rows, err := conn.Query(ctx, sequenceSQL(name, n))
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	for _, tc := range []struct {
		options string
		before  int // values taken past the gateway
		want    []int64
		code    string // after them
	}{
		{"MAXVALUE 12", 0, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, "2200H"},
		{"MAXVALUE 12", 10, []int64{11, 12}, "2200H"},
		{"MAXVALUE 12", 12, nil, "2200H"},
		{"START 5 INCREMENT 3 MAXVALUE 13", 0, []int64{5, 8, 11}, "2200H"},
		{"INCREMENT -4 MINVALUE -10 MAXVALUE 3", 0, []int64{3, -1, -5, -9}, "2200H"},
		{"MAXVALUE 3 CYCLE", 0, []int64{1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2}, ""},
		{"START 9223372036854775805", 0, []int64{9223372036854775805, 9223372036854775806, 9223372036854775807}, "2200H"},
		{"INCREMENT -1 MINVALUE -9223372036854775808 START -9223372036854775807", 0, []int64{-9223372036854775807, -9223372036854775808}, "2200H"},
	} {
		server.Exec(`DROP SEQUENCE IF EXISTS "Se q"`)
		server.Exec(`CREATE SEQUENCE "Se q" ` + tc.options)
		for range tc.before {
			server.Exec(`SELECT nextval('"Se q"')`)
		}
		cache := taker{NewSequenceCache(), fetch, 0}
		name := SequenceName{"postgres", "public", "Se q"}
		for i, want := range tc.want {
			if got, err := cache.next(t.Context(), name); err != nil || got != want {
				t.Fatalf("%s, value %d: %d, %v, want %d", tc.options, i, got, err, want)
			}
		}
		if _, err := cache.next(t.Context(), name); pgerr.Code(err) != tc.code {
			t.Errorf("%s: %v at the end", tc.options, err)
		}
	}
	none := taker{NewSequenceCache(), fetch, 0}
	if _, err := none.next(t.Context(), SequenceName{"postgres", "public", "none"}); pgerr.Code(err) != pgerr.UndefinedTable {
		t.Error(err)
	}
}

// taker takes values for one role, under a revision of the schema.
type taker struct {
	*SequenceCache
	fetch  SequenceFetch
	schema int64
}

func (t *taker) next(ctx context.Context, name SequenceName) (int64, error) {
	got, err := t.take(ctx, nil, name, 1)
	if err != nil {
		return 0, err
	}
	return got[0], nil
}

func (t *taker) take(ctx context.Context, dst []int64, name SequenceName, n int) ([]int64, error) {
	return t.Append(ctx, dst, sequenceUse{name, "r"}, t.schema, n, t.fetch)
}

// counter is a sequence in memory.
type counter struct {
	mu     sync.Mutex
	last   int64
	sizes  []int
	failed error
}

func (c *counter) fetch(_ context.Context, _ SequenceName, n int) ([]int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return nil, c.failed
	}
	c.sizes = append(c.sizes, n)
	values := make([]int64, n)
	for i := range values {
		c.last++
		values[i] = c.last
	}
	return values, nil
}

func TestSequenceCacheGivesEachValueOnce(t *testing.T) {
	c := &counter{}
	cache := taker{NewSequenceCache(), c.fetch, 0}
	const takers, each = 8, 500
	results := make([][]int64, takers)
	var joined sync.WaitGroup
	for i := range takers {
		joined.Go(func() {
			for len(results[i]) < each {
				var err error
				if results[i], err = cache.take(t.Context(), results[i], SequenceName{Name: "q"}, 1+i%3); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	joined.Wait()
	var all []int64
	for _, r := range results {
		all = append(all, r...)
	}
	slices.Sort(all)
	if len(slices.Compact(all)) < takers*each {
		t.Error("a value was given twice")
	}
	if len(c.sizes) > takers*each/4 || slices.Max(c.sizes) != largestBatch {
		t.Errorf("batches: %v", c.sizes)
	}
}

func TestSequenceCacheForgets(t *testing.T) {
	c := &counter{}
	cache, name := taker{NewSequenceCache(), c.fetch, 0}, SequenceName{"db", "s", "q"}
	next := func(want int64) {
		t.Helper()
		if got, err := cache.next(t.Context(), name); err != nil || got != want {
			t.Errorf("%d, %v, want %d", got, err, want)
		}
	}
	next(1)
	cache.schema++
	next(firstBatch + 1) // the batch after the first is twice as large
	cache.ForgetAll("other")
	next(firstBatch + 2)
	cache.ForgetAll("db")
	next(3*firstBatch + 1)
	other, err := cache.Append(t.Context(), nil, sequenceUse{name, "another"}, cache.schema, 1, c.fetch)
	if err != nil || other[0] != 4*firstBatch+1 {
		t.Errorf("another role: %v, %v", other, err)
	}
	many, err := cache.take(t.Context(), nil, name, 3*largestBatch)
	if err != nil || len(many) != 3*largestBatch || many[0] != 3*firstBatch+2 {
		t.Errorf("%d values, %v", len(many), err)
	}
	c.failed = errors.New("away")
	cache.ForgetAll("db")
	if _, err := cache.next(t.Context(), name); err == nil || !strings.Contains(err.Error(), "away") {
		t.Error(err)
	}
	c.failed = nil
	if _, err := cache.next(t.Context(), name); err != nil {
		t.Errorf("after a failure: %v", err)
	}
}

// TestSequenceCacheNobodyWaits: while one session fetches a batch, another fetches what it needs itself; what was fetched
// under an old schema is not handed out.
func TestSequenceCacheNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var mu sync.Mutex
		last := int64(0)
		cache := taker{NewSequenceCache(), func(_ context.Context, _ SequenceName, n int) ([]int64, error) {
			if n > 1 {
				<-answer
			}
			mu.Lock()
			defer mu.Unlock()
			var values []int64
			for range n {
				last++
				values = append(values, last)
			}
			return values, nil
		}, 0}
		name := SequenceName{Name: "q"}
		var first int64
		var joined sync.WaitGroup
		joined.Go(func() { first, _ = cache.next(t.Context(), name) })
		synctest.Wait()
		if second, err := cache.next(t.Context(), name); err != nil || second != 1 {
			t.Errorf("beside a fetch: %d, %v", second, err)
		}
		cache.schema++
		if third, err := cache.next(t.Context(), name); err != nil || third != 2 {
			t.Errorf("under the next schema: %d, %v", third, err)
		}
		close(answer)
		joined.Wait()
		if next, err := cache.next(t.Context(), name); err != nil || first != 3 || next <= 2+firstBatch {
			t.Errorf("%d, then %d, %v", first, next, err)
		}
	})
}

func TestSequenceValuesOfASession(t *testing.T) {
	var s sequenceValues
	a, b := SequenceName{"d", "s", "a"}, SequenceName{"d", "s", "b"}
	undefined := func(_ int64, err error) {
		t.Helper()
		if pgerr.Code(err) != pgerr.ObjectNotInPrerequisiteState {
			t.Error(err)
		}
	}
	undefined(s.lastval())
	s.gave(a, 7)
	s.gave(b, 9)
	undefined(s.currval(SequenceName{"d", "t", "a"}))
	if v, err := s.currval(a); v != 7 || err != nil {
		t.Error(v, err)
	}
	if v, err := s.lastval(); v != 9 || err != nil {
		t.Error(v, err)
	}
	s.discard()
	undefined(s.currval(a))
	undefined(s.lastval())
}
