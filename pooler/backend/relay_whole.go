package backend

import (
	"bytes"
	"encoding/binary"
)

// readySize is that of a ReadyForQuery message.
const readySize = 6

// whole passes a chunk if it is the whole answer of one statement and has nothing in it but what a statement that succeeds
// outside of a transaction is answered with: no error, notice or change of a parameter. On another shard than that whose
// types clients know, rows of which the answer tells no columns have no OIDs in them: the session has seen to it.
// false: nothing was done.
func (r *Relay) whole(chunk []byte) bool {
	r.Whole = false // what comes is the first chunk, or there are several
	end := len(chunk) - readySize
	if end < 0 || string(chunk[end:]) != "Z\x00\x00\x00\x05I" {
		return false
	}
	var rows uint64
	var columns []byte // the body of the RowDescription
	tagAt, tagEnd := 0, 0
	for at := 0; at < end; {
		if end-at < 5 {
			return false
		}
		size := binary.BigEndian.Uint32(chunk[at+1:])
		if size < 4 || uint64(size) >= uint64(end-at) {
			return false
		}
		switch chunk[at] {
		case 'D':
			rows++
		case 'T':
			if columns != nil {
				return false
			}
			columns = chunk[at+5 : at+1+int(size)]
		case '1', '2', 'n':
		case 'C':
			if tagEnd > 0 {
				return false
			}
			tagAt, tagEnd = at+5, at+1+int(size)
		default:
			return false
		}
		at += 1 + int(size)
	}
	var m *TypeMap
	if r.types != nil && columns != nil {
		if m = r.types.now.Load(); !m.plain(columns) {
			return false
		}
	}
	if tagEnd == 0 || !r.passWhole(chunk[tagAt:tagEnd], rows) {
		return false
	}
	if m != nil {
		m.tables(columns)
	}
	return true
}

// passWhole tells the session what it would have heard message by message.
func (r *Relay) passWhole(body []byte, rows uint64) bool {
	last := len(r.expects) - 1
	tag, _, _ := bytes.Cut(body, []byte{0})
	r.events.Completed(max(last-1, 0), 0, tag)
	if r.Unreplicated { // the session has doubts, which the client is to hear of
		return false
	}
	r.at = len(r.chunk) - readySize
	r.Rows, r.Status, r.Healable, r.nth = r.Rows+rows, 'I', false, 0
	r.events.Ready(last, r.Status)
	r.head, r.at = len(r.expects), len(r.chunk)
	return true
}
