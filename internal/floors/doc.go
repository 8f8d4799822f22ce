// Package floors holds no code, only the tests that keep the tree in shape: which package may import which, that
// every package has one doc comment, where pg_query may be used, and what library code must not do.
//
// The tests read the sources with go/parser; they start no goroutine and need neither network nor Postgres. A new
// package needs a line in the table of floors_test.go; ARCHITECTURE.md explains the floors.
package floors
