// Package pooler is the gateway: it accepts Postgres clients and serves each from a session that shares the shards'
// connections with all others, in transaction pooling.
//
// A Server accepts, counts and drains sessions; it owns their goroutines, the sweeper's, and those that keep its view
// of roles and functions fresh, and joins them all in Run. A Session is the state machine of one client and is run by
// one goroutine, which alone reads from and writes to the client and the server connections leased to it. What others
// may do to a session (cancel, kill, look at it) goes through its mutex.
//
// The session loop runs inside one read callback of its connection (see pgwire.Conn.Serve): it works on the messages
// that have come and returns when they are used up, whatever state the conversation is in; so every state lives in the
// Session, none on its stack, and an idle client costs little more than the Session itself. Buffers are lent for the
// time of a request.
//
// A server connection is released when all of these hold: every expected ReadyForQuery has come, the last one said
// idle, no COPY runs, nothing was sent since the last Sync, and no pin is set. Otherwise it stays with its client.
//
// Manual: https://www.postgresql.org/docs/current/protocol-flow.html
package pooler
