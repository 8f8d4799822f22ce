// Package datum holds single SQL values: how they are kept, read from and written to the wire's text and binary
// formats, compared, hashed and computed with, exactly as Postgres does it.
//
// A Datum knows whether it is NULL and how it is stored, but not its type: that is known once per column or expression,
// so every function that needs it takes the type's OID. Text is ordered by bytes (collation "C"): the columns of the
// neki schema have it. Other collations are never approximated; whoever merges rows of a shard must push their order
// down or refuse it.
//
// Text input and output follow DateStyle ISO, IntervalStyle postgres and extra_float_digits 1; the time zone is the
// Session's. Types outside the table in type.go are carried only as undecoded wire bytes.
//
// Nothing here has goroutines; Datum values are immutable and may be shared.
//
// Manual: https://www.postgresql.org/docs/current/datatype.html
package datum
