// Package agent runs beside one PostgreSQL instance: it registers it in the catalog, reports its health as a stream,
// and obeys the leading admin's orders over HTTP and JSON.
//
// # API
//
//	GET  /v1/health     one catalog.Health a line: every 250 ms on a primary, at each change and each second elsewhere
//	GET  /v1/status     Status
//	POST /v1/provision  ProvisionOrder: an empty instance becomes the first primary, or a copy that follows one
//	POST /v1/lead       LeadOrder: slots and synchronous standbys of a primary
//	POST /v1/follow     FollowOrder: where a standby streams from
//	POST /v1/apply      ApplyOrder: cluster roles and stub schema of a primary
//	POST /v1/backup     BackupOrder: a base backup of a primary; lines that tell how far it is
//	POST /v1/expire     ExpireOrder: backups go, and the WAL that none of the others needs
//	POST /v1/recover    RecoverOrder: the shard's data of a point in time, for another cluster; lines that tell how far it is
//	POST /v1/start, /v1/stop, /v1/restart, /v1/reload, /v1/configure
//
// Peers authenticate by mutual TLS, or by a bearer token where the API is on a loopback address. An order carries the
// epoch of the admin that gives it, the shard's term and an operation id. An epoch lower than one seen before is
// refused (the highest is on disk before the order is begun); an operation id that was done is answered from memory,
// and each order by itself does no harm when it is done again.
//
// # Restart rule
//
// The default is standby. A data directory with standby.signal starts as a standby at once. One without it starts as a
// primary only after a linearizable read of the shard's document has named this node, in the term that it was told to
// lead in; if another leads, standby.signal is written first; if the catalog doesn't answer, the instance waits. A
// postmaster that an earlier agent left running is adopted. This is the ground for the promises of failover: see
// promises.
//
// # Goroutines
//
// Run owns all: the HTTP server, the sampler (which alone uses the health connection), the registrar, and the runner,
// which alone starts and stops Postgres and carries out orders one by one.
//
// Manual: https://www.postgresql.org/docs/current/high-availability.html
package agent
