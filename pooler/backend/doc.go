// Package backend holds the gateway's side towards Postgres: connections, the pools they rest in, the relay of their
// answers, and the choice of the instance that serves a statement.
//
// A ServerConn belongs to its Pool while it is idle and to one session while it is leased; only the owner touches it. A
// Pool hands connections to waiting sessions in the order they came. Pools owns every goroutine of the package
// (openers, the janitor) and joins them in Close. Picker is pure.
//
// A connection goes back to its pool only when nothing of its last client is left in it but settings, which are known
// as an interned settings.Vars: a client with an equal set finds it ready, another one sends the difference.
//
// Manual: https://www.postgresql.org/docs/current/protocol-flow.html
package backend
