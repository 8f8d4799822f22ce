package check

import (
	"slices"

	"neki/catalog"
)

// Demand is one sample of whom a primary waits for: synchronous_standby_names as its walsenders have it, between two
// reads of the rule.
type Demand struct {
	Node          string
	Before, After catalog.Rule
	OwnTerm       int64    // in which the node leads
	Names         []string // of the standbys that may acknowledge
	Acks          int
	None          bool // nobody needs to acknowledge
}

// Demands checks that etcd's acknowledgers contain those that Postgres waits for, at every moment: a promotion counts
// etcd's. Samples during which the rule changed say nothing.
func Demands(samples []Demand) []Violation {
	var found list
	for _, s := range samples {
		if s.Before.ModRev != s.After.ModRev || s.Before.Leader != s.Node || s.Before.Term != s.OwnTerm {
			continue
		}
		if s.Before.W > 0 && (s.None || s.Acks < s.Before.W) {
			found.add("too few must acknowledge", "%s in term %d.%d waits for %d, the rule demands %d",
				s.Node, s.Before.Term, s.Before.Sub, s.Acks, s.Before.W)
		}
		for _, name := range s.Names {
			if !slices.Contains(s.Before.Cohort, name) {
				found.add("unknown acknowledger", "%s in term %d.%d waits for %s, the cohort is %v",
					s.Node, s.Before.Term, s.Before.Sub, name, s.Before.Cohort)
			}
		}
	}
	return found.all
}

// History checks the records of terms: each is of its own term and timeline, in order, and leaves the timeline of the one
// before it at a position beyond the one where that began. now is the rule at the end, which must be the last one's.
func History(rows []catalog.History, now catalog.Rule) []Violation {
	var found list
	sorted := slices.Clone(rows)
	slices.SortStableFunc(sorted, func(a, b catalog.History) int { return int(a.Term - b.Term) })
	for i, h := range sorted {
		if i == 0 {
			continue
		}
		before := sorted[i-1]
		if h.Term == before.Term {
			found.add("two records of a term", "term %d: %s and %s", h.Term, before.Leader, h.Leader)
		}
		if h.Timeline == before.Timeline && h.Leader != before.Leader {
			found.add("timeline used twice", "terms %d and %d, of %s and %s, have timeline %d",
				before.Term, h.Term, before.Leader, h.Leader, h.Timeline)
		}
		if h.SwitchLSN < before.SwitchLSN {
			found.add("history goes back", "term %d begins at %v, term %d at %v", h.Term, h.SwitchLSN, before.Term, before.SwitchLSN)
		}
		if h.Parent != 0 && h.Timeline != before.Timeline && h.Parent < before.Timeline {
			found.add("a term's timeline was left out", "term %d has timeline %d, of parent %d; term %d had %d",
				h.Term, h.Timeline, h.Parent, before.Term, before.Timeline)
		}
	}
	if n := len(sorted); n > 0 && (sorted[n-1].Term != now.Term || sorted[n-1].Leader != now.Leader) {
		found.add("no record of the term", "the rule is of term %d, led by %s; the last record is of %d, led by %s",
			now.Term, now.Leader, sorted[n-1].Term, sorted[n-1].Leader)
	}
	return found.all
}

// End is a member of a shard at the end: a position of a timeline, and its rows.
type End struct {
	Node     string
	Timeline int32
	LSN      catalog.LSN
	Rows     string // a digest
}

// Same checks that all members are the same.
func Same(ends []End) []Violation {
	var found list
	for _, e := range ends[min(1, len(ends)):] {
		if first := ends[0]; e.Timeline != first.Timeline || e.LSN != first.LSN || e.Rows != first.Rows {
			found.add("members differ", "%+v and %+v", first, e)
		}
	}
	return found.all
}
