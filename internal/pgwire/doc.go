// Package pgwire speaks the Postgres frontend/backend protocol where the library pgproto3 can't be used: the startup of
// a client connection, both sides of SCRAM-SHA-256, the login to a backend, cancel requests and their keys, and the
// framing and relay of messages.
//
// Startup and authentication read exactly: a header, then the body its length names, never a byte more. So whoever
// takes the connection over after Accept, Authenticator.Authenticate or Connect finds the next message untouched in the
// socket. Lengths are compared as unsigned numbers with a limit before memory is taken for them; nothing a peer sends
// makes these functions panic.
//
// No goroutine outlives a call. A connection has one owner at a time, who calls these functions one after the other; an
// Authenticator and a KeySpace are immutable and shared. Every wait ends with the context of the call. Errors are
// *pgerr.Error with the SQLSTATE Postgres would give, or that the server gave.
//
// Keys and Verifier hold secrets. They print as "redacted".
//
// Manual: https://www.postgresql.org/docs/current/protocol-flow.html,
// https://www.postgresql.org/docs/current/sasl-authentication.html and
// https://www.postgresql.org/docs/current/protocol-message-formats.html
package pgwire
