package catalog

import (
	"slices"
	"time"
)

// How a Ring keeps points: all of the last fullDetail, older ones ever fewer (at most one in a span of age/thinning),
// none older than horizon. That is some 500 points.
const (
	fullDetail = 10 * time.Second
	thinning   = 64
	horizon    = time.Hour
	// maxGap is the longest time without a sample in which the log's growth is taken to have happened at its end.
	maxGap = StaleAfter
)

// point says that the log ended at lsn from first to last. A point that stands for several has the last one's lsn and
// the first one's first: lag computed from it is never too small.
type point struct {
	first, last time.Time
	lsn         LSN
}

// Ring remembers when a primary had flushed how much of its log, on one clock. It has one owner.
type Ring struct {
	points []point // oldest first; lsn grows
	kept   int     // how many were left by the last thinning
}

// Add records a sample. Samples must come in the order of their times; one whose LSN is below the newest starts the
// ring anew.
func (r *Ring) Add(at time.Time, lsn LSN) {
	if n := len(r.points); n > 0 {
		newest := &r.points[n-1]
		switch {
		case lsn == newest.lsn:
			if at.After(newest.last) {
				newest.last = at
			}
			return
		case lsn < newest.lsn:
			r.points = r.points[:0]
		case at.Before(newest.last):
			at = newest.last
		}
	}
	r.points = append(r.points, point{at, at, lsn})
	if len(r.points) >= 2*r.kept+64 {
		r.thin(at)
	}
}

// Newest gives the newest LSN, 0 when there is none.
func (r *Ring) Newest() LSN {
	if len(r.points) == 0 {
		return 0
	}
	return r.points[len(r.points)-1].lsn
}

// Lag gives how long ago the primary went past replay. known tells that it is that; else it is at least that long, for
// the ring does not reach back far enough.
func (r *Ring) Lag(now time.Time, replay LSN) (lag time.Duration, known bool) {
	if len(r.points) == 0 {
		return 0, false
	}
	i, _ := slices.BinarySearchFunc(r.points, replay, func(p point, lsn LSN) int {
		if p.lsn <= lsn {
			return -1
		}
		return 1
	})
	switch {
	case i == len(r.points):
		return 0, true
	case i == 0:
		return max(0, now.Sub(r.points[0].first)), false
	}
	since := r.points[i].first
	if before := r.points[i-1].last; since.Sub(before) > maxGap {
		since = before
	}
	return max(0, now.Sub(since)), true
}

// Samples gives what the ring knows of the last span of time, newest first; span 0 = all.
func (r *Ring) Samples(now time.Time, span time.Duration) []Sample {
	var samples []Sample
	for _, p := range slices.Backward(r.points) {
		if span > 0 && now.Sub(p.last) > span {
			break
		}
		samples = append(samples, Sample{Age: now.Sub(p.last), LSN: p.lsn})
		if p.first.Before(p.last) {
			samples = append(samples, Sample{Age: now.Sub(p.first), LSN: p.lsn})
		}
	}
	return samples
}

// Merge records the samples of a report, newest first, that came at a time. What the ring has already is passed over;
// a newest sample below the ring's starts it anew.
func (r *Ring) Merge(received time.Time, samples []Sample) {
	if len(samples) == 0 {
		return
	}
	if samples[0].LSN < r.Newest() {
		r.points = r.points[:0]
	}
	for _, s := range slices.Backward(samples) {
		// Reports travel for differing times, so that an older sample may seem younger than one that is here.
		if s.LSN >= r.Newest() {
			r.Add(received.Add(-s.Age), s.LSN)
		}
	}
}

// thin merges neighbours that are old and near to each other, and forgets what is too old. The oldest point stays as
// it is: its LSN is how far back the ring can tell.
func (r *Ring) thin(now time.Time) {
	kept := r.points[:0]
	for i, p := range r.points {
		age := now.Sub(p.last)
		if age > horizon {
			continue
		}
		if n := len(kept); n > 1 && age > fullDetail && p.last.Sub(kept[n-1].first) < age/thinning {
			kept[n-1].last, kept[n-1].lsn = p.last, p.lsn
			continue
		}
		if len(kept) == 0 && i > 0 {
			p.first = p.last // it may stand for several; the first of them is not known any more
		}
		kept = append(kept, p)
	}
	r.points = kept
	r.kept = len(kept)
}
