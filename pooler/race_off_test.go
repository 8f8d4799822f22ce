//go:build !race

package pooler

const raceEnabled = false
