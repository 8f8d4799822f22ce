//go:build race

package pooler

// raceEnabled: what is only long, the tests without the race detector do.
const raceEnabled = true
