// Command neki makes many PostgreSQL servers look like one.
//
//	neki dev       a whole cluster on this machine: etcd, shards, agents, an admin and a gateway in one process
//	neki gateway   what clients connect to
//	neki agent     beside one Postgres instance
//	neki admin     watches the cluster and makes it whole
//
// This package parses flags and files, makes the parts that the other packages hold, joins them by the interfaces that
// each declares, and runs them. It decides nothing. `neki dev` and the separate commands make a part by the same
// function; they differ in where its configuration comes from.
//
// Goroutines: each part has a Run(ctx), started and joined by a parts (parts.go); a part that fails ends the process.
// SIGINT and SIGTERM end the context of main, a second one the process.
package main
