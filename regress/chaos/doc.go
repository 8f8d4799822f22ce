// Package chaos breaks a real cluster and checks that nothing that was acknowledged is lost, and that nobody waits longer
// than is promised.
//
// It runs etcd, admins, agents and gateways as processes of their own, three Postgres servers to a shard, and clients
// through the gateway. Links between them - replication, calls of agents, etcd - go through proxies of this process, so that
// each direction of each can be held up, delayed, refused or reset. Faults are drawn from a seed that is logged.
// Package check judges what clients saw and what the cluster noted of itself.
//
// NEKI_BIN names the program; without it the tests are skipped. The test binary is also the etcd: it starts itself again for
// that. `make chaos` runs all, `make test` those that -short leaves.
//
// A cluster's methods are called by its test's goroutine, except where they say otherwise; clients have goroutines of their
// own, which their test joins.
//
// Manual: https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION
package chaos
