package decide

import (
	"slices"

	"neki/catalog"
)

// Ackers are the members of a rule's cohort but for its leader: who may acknowledge commits.
func Ackers(r catalog.Rule) []string {
	list := make([]string, 0, len(r.Cohort))
	for _, id := range r.Cohort {
		if id != r.Leader {
			list = append(list, id)
		}
	}
	slices.Sort(list)
	return list
}

// Standbys are the nodes that the leader's Postgres is told to wait for, and Demand how many of them it waits for.
func Standbys(r catalog.Rule) []string {
	return slices.DeleteFunc(Ackers(r), func(id string) bool { return slices.Contains(r.Leaving, id) })
}

// Demand is how many standbys a commit waits for.
func Demand(r catalog.Rule) int { return max(r.W, r.NextW) }

// Chain gives the rules under which commits may have been acknowledged that the next leader must have: the rule itself
// and, while it is promoting, those before it, back to the last active one.
func Chain(r *catalog.Rule) []*catalog.Rule {
	var chain []*catalog.Rule
	for ; r != nil; r = r.Prev {
		if r.Leader != "" {
			chain = append(chain, r)
		}
		if r.Phase != PhasePromoting || r.AcceptLoss {
			break
		}
	}
	return chain
}

// Safe tells whether a set of recruits suffices for a promotion: under each rule of the chain too few are left outside
// to acknowledge anything, and the recruits hold all that was acknowledged. The leader's own data does so alone, once
// it is stopped or resigned; without acknowledgements (W = 0) losing the leader means losing commits, which is what
// that policy says.
func Safe(chain []*catalog.Rule, recruited map[string]bool) bool {
	for _, r := range chain {
		if r.W == 0 || recruited[r.Leader] {
			continue
		}
		outside := 0
		for _, id := range r.Cohort {
			if id != r.Leader && !recruited[id] {
				outside++
			}
		}
		if outside >= r.W {
			return false
		}
	}
	return len(recruited) > 0
}

// inCohort tells whether a node is in the cohort of a rule, or of one that is still to be honoured.
func inCohort(r *catalog.Rule, id string) bool {
	for ; r != nil; r = r.Prev {
		if slices.Contains(r.Cohort, id) {
			return true
		}
		if r.Phase != PhasePromoting {
			break
		}
	}
	return false
}
