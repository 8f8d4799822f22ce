// Package exec runs queries over rows that the gateway has: relations made of Go rows now, rows of shards later. It
// is the one engine for the neki schema and for merging.
//
// A Spec is an immutable description of a query, made by exec/build; it may be shared and run by many goroutines at
// once. Open starts one run and gives a Node; a Node belongs to one goroutine, which calls Next until io.EOF and then
// Close (Close is due after an error too, and may be called twice). A Batch and its rows are valid until the next Next;
// single datums may be kept. No operator starts a goroutine; a Source that does must join it in Close.
//
// Values computed are Postgres's, bit for bit, or the query is refused (0A000 with the position when built). Text is
// compared by bytes, which is the order of collation "C": the columns of the neki schema have it. A relation whose
// text has another collation must not be sorted, compared by < or > or aggregated by min and max here; the database's
// default collation is not promised.
//
// All that a run keeps (sort, aggregate, join, CTE, subquery results) is taken from the Env's Budget, and 53200 is
// raised when that is used up. There is no SQL text and no network in this package.
//
// Manual: https://www.postgresql.org/docs/current/queries.html
package exec
