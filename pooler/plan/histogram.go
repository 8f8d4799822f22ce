package plan

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// histogram counts durations in buckets whose width grows with the value: four to each doubling, so that a quantile is
// read to within a quarter. The first bucket is all below a microsecond, the last all above about 70 seconds.
type histogram struct {
	buckets [histogramBuckets]atomic.Uint64
}

const (
	firstOctave      = 10 // 1.024 µs
	octaves          = 26
	stepBits         = 2
	histogramBuckets = octaves<<stepBits + 2
)

func bucketOf(d time.Duration) int {
	if d < 1<<firstOctave {
		return 0
	}
	octave := bits.Len64(uint64(d)) - 1
	if octave >= firstOctave+octaves {
		return histogramBuckets - 1
	}
	step := int(uint64(d)>>(octave-stepBits)) & (1<<stepBits - 1)
	return 1 + (octave-firstOctave)<<stepBits + step
}

// bucketTop gives the bucket's upper bound.
func bucketTop(i int) time.Duration {
	if i == 0 {
		return 1 << firstOctave
	}
	octave, step := firstOctave+(i-1)>>stepBits, (i-1)&(1<<stepBits-1)
	return time.Duration(1<<stepBits+step+1) << (octave - stepBits)
}

func (h *histogram) add(d time.Duration) { h.buckets[bucketOf(d)].Add(1) }

func (h *histogram) count() (n int64) {
	for i := range h.buckets {
		n += int64(h.buckets[i].Load())
	}
	return n
}

// quantiles reads all buckets once, gives the durations at the given parts of one (ascending) and the count. A quantile
// is placed inside its bucket by its rank.
func (h *histogram) quantiles(parts [3]float64, out *[3]time.Duration) (calls int64) {
	var counts [histogramBuckets]int64
	for i := range counts {
		counts[i] = int64(h.buckets[i].Load())
		calls += counts[i]
	}
	if calls == 0 {
		return 0
	}
	var below int64
	next := 0
	for i := 0; i < histogramBuckets && next < len(parts); i++ {
		for next < len(parts) {
			rank := parts[next] * float64(calls)
			if rank > float64(below+counts[i]) {
				break
			}
			out[next] = inBucket(i, (rank-float64(below))/float64(max(1, counts[i])))
			next++
		}
		below += counts[i]
	}
	return calls
}

func inBucket(i int, part float64) time.Duration {
	var bottom time.Duration
	if i > 0 {
		bottom = bucketTop(i - 1)
	}
	return bottom + time.Duration(part*float64(bucketTop(i)-bottom))
}
