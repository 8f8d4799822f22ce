// Package plan decides what is to be done with a statement, before anything is sent anywhere.
//
// A [Planner] turns a statement's text into a [Plan]: who answers it (the session itself, the engine over the virtual
// neki schema, or a shard), whether it is proven to be a read, what state it leaves in a server connection, and what the
// session must remember when it succeeds. Plans are found again by the statement's shape, its text with the literals
// lifted out, in a cache that is bounded in bytes; a hit costs no parse and no allocation. Since a shard is always sent
// the client's original bytes, one plan serves all literals, except where the plan itself depends on them
// ([Plan.ByText]): those are found by their whole text.
//
// A Plan says nothing of the session's __neki.* settings: [Access] joins the two for each execution and says which kind
// of instance may serve the statement, or refuses it. [Destination] does the same for the shard.
//
// In a database whose tables lie on several shards a statement is analysed first: where the rows of each table, join and
// subquery are, and which values of shard keys pin them. What is pinned to one shard goes there as it was written, and one
// plan serves all literals of its shape: [Plan.Shards] finds the shard of each execution. The rest has a [Spread]: legs for
// the shards, and how their rows become the answer: concatenated, merged in order, or read by the engine (exec/build) as the
// relations of a query. What can't be right that way is refused with NK013 and a number (docs/errors.md).
//
// Unproven is a write: text that does not parse, and a call of a function that is not known to be harmless, go to the
// primary. What a function does is learned from pg_proc by [Functions], one for each database.
//
// A Plan is immutable but for its counters and is shared by all sessions. A Planner, Functions and Statistics are safe for concurrent
// use. The goroutines here are those of the cache, which [Planner.Close] joins.
//
// Manual: https://www.postgresql.org/docs/current/hot-standby.html#HOT-STANDBY-USERS and
// https://www.postgresql.org/docs/current/xfunc-volatility.html
package plan
