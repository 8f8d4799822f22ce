// Package pgproc runs one PostgreSQL server: it finds the binaries, makes or copies a data directory, writes the
// configuration, starts, stops and adopts the postmaster, and reads its control file.
//
// It knows nothing of clusters: who is primary, and when to restart, is the agent's business. What it guarantees:
//
//  1. A data directory appears whole or not at all: initdb and base backups work in a neighbour directory that is
//     flushed and renamed at the end.
//  2. Start never runs beside remains of an earlier postmaster: each Postgres child has its own process group and
//     outlives a killed postmaster for a while, so every process whose working directory is the data directory is
//     killed first.
//  3. A zombie is not alive: exits are seen through a pidfd, which fires before anyone has reaped, and are reaped
//     here when the postmaster is a child of this process. An adopted postmaster is watched in the same way.
//  4. Files that the server reads are replaced by rename, after an fsync.
//
// All methods of an Instance are safe for concurrent use; those that start, stop or rewrite take turns. The one
// goroutine that an Instance has watches the postmaster; Close (or the postmaster's end) joins it. Closing does not
// stop Postgres: the next supervisor adopts it.
//
// Manual: https://www.postgresql.org/docs/current/server-start.html and
// https://www.postgresql.org/docs/current/server-shutdown.html
package pgproc
