// Package backup keeps base backups and the write-ahead log of a cluster's shards in a directory or in object storage,
// and restores from them.
//
// # Layout
//
// A Repository is one shard's part of a Store. All of it can be restored with tar, gunzip and Postgres's own programs:
//
//	<cluster>/<shard>/<system id>/base/<backup>/base.tar.gz      the data directory (and <oid>.tar.gz, a tablespace)
//	<cluster>/<shard>/<system id>/base/<backup>/backup_manifest  for pg_verifybackup
//	<cluster>/<shard>/<system id>/base/<backup>/backup.json      written last: without it there is no backup
//	<cluster>/<shard>/<system id>/wal/<timeline>/<segment>.gz
//	<cluster>/<shard>/<system id>/wal/<timeline>.history
//
// # Guarantees
//
//  1. An object appears whole or not at all, and is on disk (or acknowledged by the object store) when Put returns.
//  2. WAL is never overwritten. The same content again is success; other content under the same name is ErrDifferent:
//     two servers have written one timeline, and which of them is right is not for the archive to say.
//  3. A backup counts only when all WAL from its start to its end is archived.
//  4. Expire removes no WAL that a kept backup needs to reach the newest state, on any timeline.
//  5. FetchWAL puts nothing into place that is cut short: it writes a temporary file, checks it, flushes and renames it.
//
// A Repository starts no goroutine of its own beyond a call's end, and its methods are safe for concurrent use.
//
// Manual: https://www.postgresql.org/docs/current/continuous-archiving.html and
// https://www.postgresql.org/docs/current/protocol-replication.html
package backup
