// Package fanout runs one statement on several server connections at once.
//
// Start puts a goroutine on each connection, a leg, which sends its messages and hands the answer on in pieces: rows as
// the messages that they came in, many to a piece. A leg may be a few pieces ahead of its reader and then leaves its
// server waiting, so that a result of any size takes bounded memory. Legs are read one at a time, to merge them, or
// whichever has something, to join them.
//
// The session that started the legs owns them: it alone reads, and calls Close, which cancels on its server each leg
// that has not ended, reads its answer to the end, and joins the goroutines. The connections are the legs' until then.
//
// Rows makes an exec.Node of a leg's rows, Merge one of several sorted legs.
//
// Manual: https://www.postgresql.org/docs/current/protocol-flow.html
package fanout
