// Package admin watches a cluster and makes it whole: it provisions empty instances, keeps slots, synchronous standbys,
// cluster roles and the stub schema as they should be, and records what it did. Of several admins one leads.
//
// The leader holds a leased key in the catalog; the revision that made the key is its epoch. Every write to the catalog
// that decides something compares the key's revision in the same transaction, and every order to an agent carries the
// epoch, so an admin that was deposed without noticing can do nothing. The lease only bounds how long nobody leads.
//
// The leader has one goroutine a shard: look, decide (package decide), act, again. It looks whenever the Snapshot says
// something new of the shard, and at each discovery-poll-interval in any case. What takes long, a base backup, runs
// beside it, at most Config.Copies at once in the cluster.
//
// The admin is not on the way of any statement: with every admin gone, shards serve on and gateways route on.
//
// Run owns all goroutines and joins them. All methods are safe for concurrent use.
//
// Manual: https://www.postgresql.org/docs/current/high-availability.html
package admin
