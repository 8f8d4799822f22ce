// Package catalog is what a process knows about its cluster: shards, nodes, gateways, admins, profiles, parameters and
// the data topology, as documents in a [Store], and the health of every instance, as its agent reports it.
//
// A [Snapshot] is one immutable view of all that. [Live] holds the newest one behind an atomic pointer: its Run is the
// only writer, it folds in what the store's watch and [Live.Report] bring, and it goes on with the last Snapshot, and
// with health, for as long as the store is away. Reading a Snapshot takes no lock and allocates nothing.
//
// A [Store] is small and linearizable; catalog/etcdstore and catalog/memstore are two, held to one behaviour by
// catalog/storetest. Documents are JSON, one to a key; the typed accessors here are the only code that builds keys.
// A decision is made on what Get and List returned and written under a [Cond]; a watch only wakes up.
//
// Lag is computed here, on this process's monotonic clock alone: no wall clock of two machines is ever compared.
//
// Goroutines: Run has one for the watch and joins it; KeepRegistered runs in its caller's. Every type but Ring is safe
// for concurrent use.
//
// Manual: https://www.postgresql.org/docs/current/warm-standby.html#STREAMING-REPLICATION-MONITORING
package catalog
