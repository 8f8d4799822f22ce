// Package sqlparse turns SQL text into what the gateway needs to know about it. It is the only importer of
// pg_query_go, so that a change of the parser's version stays the work of one package; others hold tree nodes through
// the aliases of nodes.go.
//
// There are two ways through it, for the two speeds at which a statement is met:
//
//   - A Shaper lexes the text in Go, without cgo and without an allocation, lifts the literals out and hashes the rest:
//     the key of the plan cache. Split cuts a string of several statements by offsets with the same lexer.
//   - Parse calls Postgres's own grammar (pg_query) and classifies the tree to a Statement: its kind, what it leaves
//     behind (Effects), the functions it calls and the relations it names.
//
// Guarantees:
//
//  1. Nothing here panics or kills the process, whatever the bytes. Chains deeper than MaxDepth never reach C, whose
//     stack they would overflow; a text with a NUL byte is refused, since C would see only what is before it.
//  2. Texts of one Shape have the same meaning but for the values of the lifted literals: a literal whose value decides
//     what the statement means stays in the shape (see Shaper).
//  3. What is not proven harmless is reported as harmful: an effect may be reported that does not happen, but none
//     that the text alone can reveal is missed. What no text reveals (a view or a trigger that calls a function)
//     is the server's to refuse.
//  4. Text is read as with standard_conforming_strings = on and an ASCII-safe encoding. The gateway refuses sessions
//     with other values, because server and lexer would see different statements.
//
// A Shaper has one owner; all else may be used by many goroutines at once. The package starts no goroutine.
//
// Manual: https://www.postgresql.org/docs/current/sql-syntax-lexical.html
package sqlparse
