// Package decide says what to do with a shard, given what is known of it. It is pure: no I/O, no goroutines, no clock;
// the admin gathers, asks, and acts on the answer. Each action does no harm when it is done again, so after a crash
// the admin just asks anew.
//
// Here is provisioning: from empty instances to a primary with streaming, acknowledging replicas, and new replicas
// later on. Two rules that it never breaks:
//
//   - initdb is ordered once in the life of a shard: never when the shard's document has a system identifier, when any
//     member has data, or when a member that is known doesn't answer.
//   - the rule in the catalog names an acknowledger before Postgres waits for it (grow: catalog first, Postgres second).
//
// Manual: https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION
package decide
