package backend

import (
	"bytes"
	"encoding/binary"

	"neki/internal/pgerr"
)

// Answers the gateway makes itself: to a Parse and a Close that no server was asked.
var (
	parseComplete = []byte{'1', 0, 0, 0, 4}
	closeComplete = []byte{'3', 0, 0, 0, 4}
)

// synthesize makes the answers at the head of the queue that no server is asked for.
func (r *Relay) synthesize() {
	for r.Pending() && r.expects[r.head].Act == Synth {
		switch r.expects[r.head].Kind {
		case 'P':
			r.Append(parseComplete)
		case 'C':
			r.Append(closeComplete)
		}
		r.head++
	}
}

// act is what becomes of the frame in hand.
func (r *Relay) act() Act {
	if r.Retry || r.Pending() && r.expects[r.head].Act == Swallow {
		return Swallow
	}
	if r.Pending() {
		return r.expects[r.head].Act
	}
	return Forward
}

// passing handles a frame whose content does not matter; false: not for the client.
func (r *Relay) passing(typ byte) (forward bool) {
	forward = r.act() == Forward
	switch typ {
	case 'D':
		if forward {
			r.Rows++
		}
	case '1':
		r.pop('P')
	case '2':
		r.pop('B')
	case '3':
		r.pop('C')
	case 'T', 'n':
		r.pop('D')
	case 's':
		r.shape = nil
		r.pop('E')
	case 'I':
		r.completed(nil)
	case 'G':
		r.CopyIn = true
	}
	return forward
}

// frame handles a frame that is looked at; false: not for the client.
func (r *Relay) frame(typ byte, body []byte) (forward bool) {
	switch typ {
	case 'S':
		name, rest, _ := bytes.Cut(body, []byte{0})
		value, _, _ := bytes.Cut(rest, []byte{0})
		return r.events.ParameterChanged(name, value) && r.act() != Swallow
	case 'C':
		forward = r.act() == Forward
		byQuery := r.Pending() && r.expects[r.head].Kind != 'E'
		tag, _, _ := bytes.Cut(body, []byte{0})
		r.completed(tag)
		if forward && byQuery && r.Unreplicated && !r.doubted { // it was committed before this
			r.doubt()
			return false
		}
		return forward
	case 'E':
		return r.failed(body)
	case 'Z':
		return r.ready(body)
	case 'A':
		r.notified(body)
		return r.events.Notified(body)
	case 'T', 't', 'D':
		r.translate(typ, body)
		return r.passing(typ)
	case 'N':
		if waitCancelled(body) {
			r.Unreplicated = true
			return false
		}
	}
	return r.act() == Forward
}

// waitCancelled reports whether the notice says that a commit's wait for its standbys was cancelled. The text may be in any
// language, the place in the server's source is not.
func waitCancelled(body []byte) bool {
	return bytes.Contains(body, []byte("\x00RSyncRepWaitForLSN\x00"))
}

// doubt tells the client that a commit is in doubt.
func (r *Relay) doubt() {
	r.doubted = true
	err := pgerr.New(pgerr.TransactionResolutionUnknown, "the commit was not acknowledged by a replica").
		WithDetail("It waited for one when it was canceled. It is committed on the primary, and lost if a replica takes over that has not got it.").
		WithHint("Look before you run it again.")
	if frame, encErr := err.Response().Encode(nil); encErr == nil {
		r.Append(frame)
	}
}

// translate puts the OIDs that clients know in place of the shard's.
func (r *Relay) translate(typ byte, body []byte) {
	var embeds bool
	var err error
	switch typ {
	case 'T':
		if r.shape, embeds, err = r.types.describe(body); err == nil && r.Pending() {
			r.events.Described(r.head, embeds)
		}
	case 't':
		err = r.types.parameters(body)
	default:
		err = r.types.row(body, r.shape)
	}
	r.wrong = err
}

// notified replaces the pid in a notification that the session sent itself.
func (r *Relay) notified(body []byte) {
	if len(body) >= 4 && binary.BigEndian.Uint32(body) == r.server && r.ClientPID != 0 {
		binary.BigEndian.PutUint32(body, r.ClientPID)
	}
}

// completed handles the end of one statement.
func (r *Relay) completed(tag []byte) {
	r.Healable, r.shape = false, nil
	if r.act() == Forward && r.Pending() {
		r.events.Completed(r.head, r.nth, tag)
	}
	r.nth++
	r.pop('E')
}

// failed handles an ErrorResponse. The server skips to the next Sync, so the answers up to there are off.
func (r *Relay) failed(body []byte) (forward bool) {
	code, fatal := errorFields(body)
	act := r.act()
	if fatal {
		r.Fatal = true
		r.farewell(code, body)
		return false
	}
	if act == Swallow && !r.Retry {
		act = Forward // what the gateway put in failed, so what the client asked for can't run
	}
	wrote := r.Misrouted && string(code) == pgerr.ReadOnlySQLTransaction
	stale := r.Healable && resultChanged(code, body)
	if r.Rows == 0 && r.Sent == 0 && act == Forward && (wrote || stale || r.Retryable && cannotServe(code)) {
		r.Retry, r.Wrote, r.Stale, r.Failed = true, wrote, stale, r.head
		r.Farewell = append(r.Farewell[:0], body...)
		r.collect(r.at)
		r.out = r.out[:0]
		act = Swallow
	}
	if act == Replace {
		r.Append(r.Replacement)
	}
	forward = act == Forward
	if forward {
		forward = !r.reworded(body)
	}
	if act != Swallow {
		r.events.Failed(r.head, code, fatal)
	}
	r.skipToSync()
	return forward
}

// farewell keeps the error with which the server ends the connection. It leaves a client that has got nothing of the answer
// with nothing.
func (r *Relay) farewell(code, body []byte) {
	r.Farewell = append(r.Farewell[:0], body...)
	r.collect(r.at)
	if r.Untouched() && cannotServe(code) { // else what came before it is part of the answer: an error in a COPY
		r.out = r.out[:0]
	}
	r.skipToSync()
}

// AppendFarewell appends the error with which the server ended the connection, as it came.
func (r *Relay) AppendFarewell(dst []byte) []byte {
	dst = append(dst, 'E')
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+len(r.Farewell)))
	return append(dst, r.Farewell...)
}

// Field gives a field of the server's farewell, "" when it has none.
func (r *Relay) Field(code byte) string {
	for body := r.Farewell; len(body) > 1; {
		value, rest, ok := bytes.Cut(body[1:], []byte{0})
		if !ok {
			break
		}
		if body[0] == code {
			return string(value)
		}
		body = rest
	}
	return ""
}

// reworded puts an error in the client's words in place of the server's, if they differ.
func (r *Relay) reworded(body []byte) bool {
	if r.Rewrite != nil {
		r.Append(r.Rewrite(r.head, body))
		return true
	}
	own := r.events.Reword(r.head, body)
	if own == nil {
		return false
	}
	r.Append(own)
	return true
}

// skipToSync drops the expectations that an error made void.
func (r *Relay) skipToSync() {
	for r.Pending() && !endsSegment(r.expects[r.head].Kind) {
		r.head++
	}
}

// endsSegment reports whether a request of the kind is answered by ReadyForQuery.
func endsSegment(kind byte) bool { return kind == 'S' || kind == 'Q' || kind == 'F' }

func (r *Relay) ready(body []byte) (forward bool) {
	if len(body) > 0 {
		r.Status = body[0]
	}
	forward = r.act() == Forward
	if !r.Pending() {
		return forward
	}
	r.skipToSync()                               // nothing before it is answered any more
	if forward && r.Unreplicated && !r.doubted { // the commit was the Sync's
		r.doubt()
	}
	forward = forward && !r.HoldReady
	if forward {
		r.events.Ready(r.head, r.Status)
	}
	r.nth = 0
	if endsSegment(r.expects[r.head].Kind) {
		r.head++
	}
	return forward
}

// pop takes the head off when it is of the kind.
func (r *Relay) pop(kind byte) {
	if r.Pending() && r.expects[r.head].Kind == kind {
		r.head++
	}
}

// errorFields gives the SQLSTATE of an ErrorResponse and whether it ends the connection.
func errorFields(body []byte) (code []byte, fatal bool) {
	for len(body) > 1 {
		value, rest, ok := bytes.Cut(body[1:], []byte{0})
		if !ok {
			break
		}
		switch body[0] {
		case 'C':
			code = value
		case 'V':
			fatal = string(value) == "FATAL" || string(value) == "PANIC"
		}
		body = rest
	}
	return code, fatal
}

// resultChanged reports whether the error is "cached plan must not change result type". The text may be in any language,
// the place in the server's source is not.
func resultChanged(code, body []byte) bool {
	return string(code) == pgerr.FeatureNotSupported && bytes.Contains(body, []byte("\x00RRevalidateCachedQuery\x00"))
}

// cannotServe reports whether the SQLSTATE says that this server, not the statement, is at fault: it is shutting down,
// starting up, or a standby that had to stop the read for its replay.
func cannotServe(code []byte) bool {
	switch string(code) {
	case "57P01", "57P02", "57P03", "57P04", "40001":
		return true
	}
	return false
}
