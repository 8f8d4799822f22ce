package pgerr

import "strings"

// Nearest gives the candidate that name was most likely meant to be, for a HINT; "" when none is near. Case does not
// count; a distance (insertions, deletions, substitutions and swaps of neighbours) of more than a third of the name's
// length, or more than three, is not near.
func Nearest(name string, candidates []string) string {
	name = strings.ToLower(name)
	limit := min(3, max(1, len(name)/3))
	best, bestDistance := "", limit+1
	for _, c := range candidates {
		if d := distance(name, strings.ToLower(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance is the optimal string alignment distance of a and b, by bytes.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
