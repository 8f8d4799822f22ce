package check

import "slices"

// Insert is one INSERT of a key that nobody else inserts.
type Insert struct {
	Span
	Key     int64
	Outcome Outcome
	// Timeline of the server that ran it, as the statement returned it; 0 when it returned nothing.
	Timeline int32
}

// SetRead is a read of all keys.
type SetRead struct {
	Span
	Where string // the member, or whoever served it
	Keys  []int64
}

// Set checks reads of all keys against the inserts: each that was acknowledged before a read began is in it, none that
// failed is in any, nor one that was never inserted, and no key is there twice.
func Set(inserts []Insert, reads []SetRead) []Violation {
	var found list
	byKey := make(map[int64]Insert, len(inserts))
	acked := make([]Insert, 0, len(inserts))
	for _, in := range inserts {
		byKey[in.Key] = in
		if in.Outcome == OK {
			acked = append(acked, in)
		}
	}
	slices.SortFunc(acked, func(a, b Insert) int { return int(a.Ended - b.Ended) })
	for _, r := range reads {
		there := make(map[int64]bool, len(r.Keys))
		for _, k := range r.Keys {
			in, known := byKey[k]
			switch {
			case there[k]:
				found.add("twice", "%s has key %d twice", r.Where, k)
			case !known:
				found.add("never inserted", "%s has key %d", r.Where, k)
			case in.Outcome == Failed:
				found.add("failed and there", "%s has key %d, whose INSERT was said to have failed", r.Where, k)
			}
			there[k] = true
		}
		for _, in := range acked {
			if in.Ended >= r.Began {
				break
			}
			if !there[in.Key] {
				found.add("acknowledged and lost", "%s lacks key %d, acknowledged at %v and read at %v", r.Where, in.Key, in.Ended, r.Began)
			}
		}
	}
	return found.all
}

// Epochs checks that leaders come one after the other: once a later timeline has acknowledged a commit, no statement that
// begins then is acknowledged on an earlier one.
func Epochs(inserts []Insert) []Violation {
	var found list
	began := slices.Clone(inserts)
	began = slices.DeleteFunc(began, func(in Insert) bool { return in.Outcome != OK || in.Timeline == 0 })
	ended := slices.Clone(began)
	slices.SortFunc(began, func(a, b Insert) int { return int(a.Began - b.Began) })
	slices.SortFunc(ended, func(a, b Insert) int { return int(a.Ended - b.Ended) })
	var newest Insert
	next := 0
	for _, in := range began {
		for ; next < len(ended) && ended[next].Ended < in.Began; next++ {
			if ended[next].Timeline > newest.Timeline {
				newest = ended[next]
			}
		}
		if in.Timeline < newest.Timeline {
			found.add("two leaders", "key %d was acknowledged on timeline %d at %v, key %d on timeline %d before it began at %v",
				in.Key, in.Timeline, in.Ended, newest.Key, newest.Timeline, in.Began)
		}
	}
	return found.all
}
