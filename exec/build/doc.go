// Package build turns a parsed SELECT into an exec.Spec: it is the only reader of target lists, FROM, WHERE, GROUP BY,
// HAVING, ORDER BY and LIMIT. Names, types, operators and functions are resolved by Postgres's own rules over a copy of
// Postgres 15's pg_type, pg_cast, pg_operator and pg_proc (pg15.catalog), so that a query means here what it would mean
// there; what has a meaning there but no implementation here is 0A000 with its name and position.
//
// Text is ordered by bytes (collation "C"), see package exec.
//
// A query is built on the caller's goroutine; nothing is shared but the parsed catalog, which is immutable.
//
// Manual: https://www.postgresql.org/docs/current/typeconv.html and
// https://www.postgresql.org/docs/current/sql-select.html
package build
