//go:build race

package plan

// raceEnabled: the race detector makes sync.Pool drop things at random.
const raceEnabled = true
