// Package copydata cuts the data of COPY ... FROM STDIN into rows and reads one field of each, the way Postgres does, for
// the text, csv and binary formats.
//
// A Splitter is given the stream in pieces of any size and gives whole rows as they were written: a row goes on to its
// shard byte for byte, and what is wrong within it, the shard says. Only what decides where a row ends is judged here.
//
// It starts no goroutine; a Splitter has one owner. What it holds is one row and the piece at hand.
//
// Manual: https://www.postgresql.org/docs/current/sql-copy.html
package copydata
