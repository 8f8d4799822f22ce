package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestStatistics(t *testing.T) {
	s := newStatistics(1 << 20)
	p := &Plan{Fingerprint: "00000000000000aa", Query: "select ?"}
	for i := range 100 {
		s.Record(p, Observation{Duration: time.Duration(i+1) * time.Millisecond, Rows: 2, ShardCalls: 1, Failed: i%10 == 0})
	}
	s.Record(&Plan{Fingerprint: p.Fingerprint}, Observation{Duration: time.Millisecond}) // another shape of it
	s.Record(&Plan{}, Observation{})                                                     // unparsable
	list := s.List()
	if len(list) != 1 {
		t.Fatalf("%d entries", len(list))
	}
	got := list[0]
	if got.Calls != 101 || got.Rows != 200 || got.ShardCalls != 100 || got.Errors != 10 || got.Query != "select ?" {
		t.Errorf("%+v", got)
	}
	if want := 5051 * time.Millisecond; got.Total != want {
		t.Errorf("total %v, want %v", got.Total, want)
	}
	near := func(name string, got, want time.Duration) {
		t.Helper()
		if got < want*3/4 || got > want*5/4 {
			t.Errorf("%s %v, want about %v", name, got, want)
		}
	}
	near("p50", got.P50, 50*time.Millisecond)
	near("p95", got.P95, 95*time.Millisecond)
	near("p99", got.P99, 99*time.Millisecond)
}

func TestStatisticsAreBounded(t *testing.T) {
	const limit = 100 * (entryBytes + 100)
	s := newStatistics(limit)
	hot := &Plan{Fingerprint: "hot", Query: "select hot"}
	for i := range 1000 {
		for range 5 {
			s.Record(hot, Observation{Duration: time.Millisecond})
		}
		s.Record(&Plan{Fingerprint: fmt.Sprintf("%016x", i), Query: "select cold"}, Observation{})
	}
	if s.bytes > limit || len(s.entries) > 110 || len(s.entries) < 50 || s.Evicted() < 800 {
		t.Errorf("%d bytes of %d in %d entries, %d evicted", s.bytes, limit, len(s.entries), s.Evicted())
	}
	list := s.List()
	i := slices.IndexFunc(list, func(st Statistic) bool { return st.Fingerprint == "hot" })
	if i < 0 || list[i].Calls != 5000 {
		t.Errorf("the statement with the most calls was evicted: %d, %+v", i, list[max(0, i)])
	}
}

func TestRecordAfterReset(t *testing.T) {
	s := newStatistics(1 << 20)
	p := &Plan{Fingerprint: "a", Query: "select a"}
	s.Record(p, Observation{})
	s.Reset()
	if len(s.List()) != 0 {
		t.Error("entries after Reset")
	}
	s.Record(p, Observation{})
	if l := s.List(); len(l) != 1 || l[0].Calls != 1 {
		t.Errorf("%+v", l)
	}
}

// TestBuckets: buckets are in order, without gaps, and no wider than a quarter of what is in them.
func TestBuckets(t *testing.T) {
	for i := 1; i < histogramBuckets-1; i++ {
		bottom, top := bucketTop(i-1), bucketTop(i)
		if bucketOf(bottom) != i || bucketOf(top-1) != i {
			t.Fatalf("bucket %d is [%v, %v), its ends are in %d and %d", i, bottom, top, bucketOf(bottom), bucketOf(top-1))
		}
		if top-bottom > bottom/4 {
			t.Errorf("bucket %d is %v wide at %v", i, top-bottom, bottom)
		}
	}
	for d, want := range map[time.Duration]int{-1: 0, 0: 0, 1023: 0, time.Hour: histogramBuckets - 1} {
		if got := bucketOf(d); got != want {
			t.Errorf("%v in bucket %d, want %d", d, got, want)
		}
	}
}

// TestQuantiles compares with exact quantiles of random samples.
func TestQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
		samples := make([]time.Duration, rapid.IntRange(1, 500).Draw(t, "samples"))
		var h histogram
		for i := range samples {
			samples[i] = time.Duration(1<<r.IntN(25)) * time.Microsecond
			samples[i] += time.Duration(r.Int64N(int64(samples[i])))
			h.add(samples[i])
		}
		slices.Sort(samples)
		parts := [3]float64{0.5, 0.95, 0.99}
		var got [3]time.Duration
		if n := h.quantiles(parts, &got); n != int64(len(samples)) {
			t.Fatalf("%d calls of %d", n, len(samples))
		}
		for i, part := range parts {
			rank := int(part * float64(len(samples)))
			low, high := samples[max(0, rank-1)], samples[min(len(samples)-1, rank)]
			if got[i] < low*3/4 || got[i] > high*5/4 {
				t.Fatalf("p%v = %v, exact is between %v and %v", part, got[i], low, high)
			}
		}
	})
}
