package backend

import (
	"encoding/binary"
	"io"
	"time"

	"neki/internal/pgerr"
)

// Expect is one answer that a request message is due, in the order of the requests.
type Expect struct {
	// Kind is the type byte of the request: Q, P, B, D, E, C, S, F.
	Kind byte
	Act  Act
}

// Act says what becomes of an expected answer.
type Act uint8

const (
	Forward Act = iota // the client gets it
	Swallow            // the gateway asked for it, not the client
	Synth              // no server is asked: the answer is made here when its turn comes
	Replace            // the request fails by intent; the client gets Relay.Replacement in place of the error
)

// Events are the frames that a session must know of while they pass. Slices are valid during the call only.
type Events interface {
	// ParameterChanged reports a ParameterStatus; false keeps it from the client.
	ParameterChanged(name, value []byte) (forward bool)
	// Completed reports the CommandComplete (or EmptyQueryResponse, with no tag) of the request expects[index]; nth
	// counts the statements of one Query message.
	Completed(index, nth int, tag []byte)
	// Failed reports an ErrorResponse for the request expects[index].
	Failed(index int, code []byte, fatal bool)
	// Reword gives the frame that the client gets in place of an ErrorResponse for the request expects[index], of which it
	// gets the body; nil: as it is. It is called before Failed.
	Reword(index int, body []byte) []byte
	// Notified reports a NotificationResponse, of which it gets the body; false keeps it from the client.
	Notified(body []byte) (forward bool)
	// Described reports the RowDescription of the request expects[index] on a shard whose types have other OIDs: embeds says
	// that values of it in binary form have OIDs in them.
	Described(index int, embeds bool)
	// Ready reports a ReadyForQuery that is about to be passed on: the place to append frames of one's own.
	Ready(index int, status byte)
}

// Relay passes the answers of one server connection to a client, frame by frame but unread where the content does not
// matter: a chunk goes to the client in the write that brought it here, unchanged, unless something must be left out or
// put in. It is owned by one session at a time.
//
// Message formats: https://www.postgresql.org/docs/current/protocol-message-formats.html
type Relay struct {
	client io.Writer
	events Events

	expects []Expect
	head    int

	// Replacement is the frame sent in place of the error of a Replace request.
	Replacement []byte
	// Rewrite, if set, gives the frames sent in place of an error for the request expects[index], of which it gets the body.
	Rewrite func(index int, body []byte) []byte
	// Whole says that the answers of one plain statement are due, all Forward, of which most come in one chunk.
	Whole bool
	// Retryable lets the relay hold back an error that says this server can't serve a read, if nothing was answered yet.
	Retryable bool
	// Misrouted lets it hold back 25006 as well: what was taken for a read is none, and may run on the primary.
	Misrouted bool

	// ClientPID is what the client knows as its pid: the server's own in a notification is replaced by it.
	ClientPID uint32
	server    uint32 // the server's

	// Healable lets it hold back the error of a statement whose result has changed since the server prepared it: prepared
	// again, it may do. Nothing may have been executed before.
	Healable bool

	// More gives a larger buffer than the one given to Run, for a long answer; nil: there is none.
	More func() []byte

	// What happened, for the session.
	Rows   uint64 // DataRow messages passed
	Sent   int64  // bytes written to the client
	Status byte   // of the last ReadyForQuery
	Retry  bool   // an error was held back: run the request elsewhere
	Wrote  bool   // ... namely on the primary: the error was 25006
	Stale  bool   // ... namely after preparing its statements anew
	Failed int    // the index of the expected answer that was that error
	Fatal  bool   // the server said FATAL
	// Farewell is the body of that error. The client has not seen it: what becomes of the statement, and what the client is
	// told, is the session's to say.
	Farewell []byte
	// Unreplicated: the wait of a commit for its standbys was cancelled. The client gets 08007 for it, not success.
	Unreplicated bool
	CopyIn       bool // the server waits for COPY data; Step again after it was sent
	Muted        bool // the client is gone: read on without writing
	Torn         bool // a write to the client failed within a message: what is written behind that would be taken for its rest
	// HoldReady keeps ReadyForQuery from the client, because more statements of its string follow.
	HoldReady bool

	nth     int    // statements completed in the current Query
	doubted bool   // the client was told of Unreplicated
	chunk   []byte // being scanned
	at      int    // where the frame in hand begins: insertions go before it
	from    int    // chunk[from:] is not yet in out or written
	out     []byte // answers collected since something was left out or put in
	mid     bool   // the client has only the beginning of a message
	skip    int    // bytes of the current frame still to come
	drop    bool   // ... and they are not for the client
	hold    []byte // a frame that came in pieces and must be seen whole
	onFn    func([]byte) (bool, error)

	types *Types   // of the server; nil: it has those that clients know
	shape rowShape // of the rows to come
	wrong error    // why a frame can't be passed on
}

// NewRelay makes a Relay; Bind comes before its use.
func NewRelay() *Relay {
	r := &Relay{}
	r.onFn = r.onChunk
	return r
}

// Bind makes the relay write to client and report to events.
func (r *Relay) Bind(client io.Writer, events Events) { r.client, r.events = client, events }

// maxHold bounds a frame whose content the relay looks at; a longer error or notice is passed on unseen.
const maxHold = 64 << 10

// Begin forgets the last segment.
func (r *Relay) Begin() {
	r.expects, r.head = r.expects[:0], 0
	r.Rewrite, r.Whole = nil, false
	r.Replacement, r.Retryable, r.Misrouted, r.HoldReady, r.Muted = nil, false, false, false, false
	r.Healable, r.Stale, r.Failed = false, false, 0
	r.Rows, r.Sent, r.Retry, r.Wrote, r.Fatal, r.CopyIn, r.nth = 0, 0, false, false, false, false, 0
	r.Farewell, r.Unreplicated, r.doubted = r.Farewell[:0], false, false
	r.Torn, r.mid = false, false
	r.out, r.skip, r.drop, r.hold = r.out[:0], 0, false, r.hold[:0]
	r.wrong = nil
	if cap(r.out) > maxHold {
		r.out = nil
	}
}

// Expect adds an expected answer and gives its index.
func (r *Relay) Expect(kind byte, act Act) int {
	r.expects = append(r.expects, Expect{Kind: kind, Act: act})
	return len(r.expects) - 1
}

// Pending reports whether answers are still due.
func (r *Relay) Pending() bool { return r.head < len(r.expects) }

// Answered counts those of them that have come.
func (r *Relay) Answered() int { return r.head }

// Append puts frames of the gateway's own into the client's stream, before the frame in hand.
func (r *Relay) Append(frames []byte) {
	r.collect(r.at)
	r.out = append(r.out, frames...)
}

// Run sends out to sc and passes answers on until all that is expected has come, or the server wants COPY data.
// buf is room to read into; it must not be touched meanwhile.
func (r *Relay) Run(sc *ServerConn, out, buf []byte) error {
	r.server, r.types, r.shape = sc.pid, sc.types, nil
	r.CopyIn = false
	r.chunk, r.at, r.from = nil, 0, 0
	if r.types != nil {
		var err error
		if out, err = r.types.toShard(out); err != nil {
			return err
		}
	}
	r.synthesize()
	if !r.Pending() { // a Flush behind answers that are made here: the server has nothing to say to it
		if _, err := sc.conn.Write(out); err != nil {
			return err
		}
		return r.flush()
	}
	return sc.conn.Exchange(out, buf, r.More, r.onFn)
}

// Flush writes what was appended outside of Run.
func (r *Relay) Flush() error { return r.flush() }

// Feed sends out, the client's COPY data, to sc and passes on what sc has to say meanwhile, without waiting for it.
// Afterwards Pending tells whether the COPY goes on.
func (r *Relay) Feed(sc *ServerConn, out, buf []byte) error {
	r.server = sc.pid
	r.CopyIn = false
	_, err := sc.conn.Send(out, buf, r.onFn)
	return err
}

// Poll passes on what sc has sent already.
func (r *Relay) Poll(sc *ServerConn, buf []byte) error {
	r.server = sc.pid
	r.CopyIn = false
	for {
		n, err := sc.conn.TryRead(buf)
		if err != nil || n == 0 {
			return err
		}
		if done, err := r.onChunk(buf[:n]); done || err != nil {
			return err
		}
	}
}

// Hear passes on what sc has sent though nothing is due: notifications, notices, its end. It waits for the rest of a
// message that it has the beginning of, at most restLimit.
func (r *Relay) Hear(sc *ServerConn, buf []byte) error {
	r.server = sc.pid
	for {
		n, err := sc.conn.TryRead(buf)
		if err != nil {
			return err
		}
		if n > 0 {
			if _, err := r.onChunk(buf[:n]); err != nil {
				return err
			}
			continue
		}
		if r.skip == 0 && len(r.hold) == 0 {
			return nil
		}
		_ = sc.conn.SetReadDeadline(time.Now().Add(restLimit))
		err = sc.conn.AwaitReadable()
		_ = sc.conn.SetReadDeadline(time.Time{})
		if err != nil {
			return err
		}
	}
}

// restLimit is how long the rest of a message may take that a server has begun.
const restLimit = 10 * time.Second

// IgnoreSyncs takes the Syncs that directly follow the request in hand as answered: a server in COPY IN ignores them.
func (r *Relay) IgnoreSyncs() {
	for i := r.head + 1; i < len(r.expects) && r.expects[i].Kind == 'S'; i++ {
		r.expects[i] = Expect{Act: Synth} // of no kind: nothing is sent for it
	}
}

// Untouched reports whether the client has got nothing of the answer, nor has any statement of it been completed.
func (r *Relay) Untouched() bool { return r.Rows == 0 && r.Sent == 0 && r.nth == 0 }

// MidFrame reports whether the client has got only a part of a message.
func (r *Relay) MidFrame() bool { return r.skip > 0 && !r.drop }

// SyncDue reports whether a ReadyForQuery is among the answers still expected.
func (r *Relay) SyncDue() bool {
	for _, e := range r.expects[r.head:] {
		if endsSegment(e.Kind) {
			return true
		}
	}
	return false
}

// Expected counts the answers expected since Begin.
func (r *Relay) Expected() int { return len(r.expects) }

func (r *Relay) onChunk(chunk []byte) (done bool, err error) {
	r.chunk, r.at, r.from = chunk, 0, 0
	if r.Whole && r.whole(chunk) {
		err := r.flush()
		return err == nil, err
	}
	if len(r.hold) > 0 {
		if err := r.unhold(); err != nil {
			return false, err
		}
	}
	for r.at < len(chunk) {
		if isData(chunk[r.at]) && r.skip == 0 {
			r.rows()
			if r.at == len(chunk) {
				break
			}
		}
		if err := r.scan(); err != nil {
			return false, err
		}
	}
	if r.skip == 0 && len(r.hold) == 0 {
		r.synthesize()
	}
	if err := r.flush(); err != nil {
		return false, err
	}
	if r.Fatal { // the end of the stream may have come with it, unannounced by an edge of its own
		return false, io.ErrUnexpectedEOF
	}
	return !r.Pending() && r.skip == 0 && len(r.hold) == 0 || r.CopyIn, nil
}

// isData reports whether a message of the type is a row, of a query or of a COPY.
func isData(typ byte) bool { return typ|0x20 == 'd' }

// rows passes the whole messages with rows at chunk[at:]: large results are nothing else.
func (r *Relay) rows() {
	if !r.Pending() || r.act() != Forward || r.shape != nil {
		return
	}
	chunk, at := r.chunk, r.at
	var n uint64
	for len(chunk)-at >= 5 && isData(chunk[at]) {
		size := binary.BigEndian.Uint32(chunk[at+1:])
		if size < 4 || uint64(size) >= uint64(len(chunk)-at) { // broken, or not here to its end: scan sees to it
			break
		}
		if chunk[at] == 'D' {
			n++
		}
		at += int(size) + 1
	}
	r.at = at
	r.Rows += n
}

// scan handles what begins at chunk[at:] and moves at behind it.
func (r *Relay) scan() error {
	rest := r.chunk[r.at:]
	if r.skip > 0 {
		n := min(r.skip, len(rest))
		if r.drop {
			r.leaveOut(n)
		} else {
			r.at += n
		}
		r.skip -= n
		return nil
	}
	r.synthesize()
	if len(rest) < 5 {
		r.keepForLater()
		return nil
	}
	size, err := frameSize(rest)
	if err != nil {
		return err
	}
	if !r.seen(rest[0], size) {
		r.skip, r.drop = size, !r.passing(rest[0])
		if len(rest) >= size && !r.drop { // most are here to their end
			r.at, r.skip = r.at+size, 0
		}
		return nil
	}
	if len(rest) < size {
		r.keepForLater()
		return nil
	}
	if r.frame(rest[0], rest[5:size]) {
		r.at += size
	} else {
		r.leaveOut(size)
	}
	return r.wrong
}

func frameSize(b []byte) (int, error) {
	size := binary.BigEndian.Uint32(b[1:])
	if size < 4 || size > 1<<30 {
		return 0, pgerr.New(pgerr.ProtocolViolation, "a shard sent a message of type %q with an invalid length %d", b[0], size)
	}
	return int(size) + 1, nil
}

// seen reports whether the relay must look into a frame of the type.
func (r *Relay) seen(typ byte, size int) bool {
	switch typ {
	case 'Z', 'S', 'C', 'E', 'N', 'A':
		return size <= maxHold
	case 'T', 't':
		return r.types != nil
	case 'D':
		return r.shape != nil
	}
	return false
}

// keepForLater holds chunk[at:] back until the rest of the frame comes.
func (r *Relay) keepForLater() {
	r.hold = append(r.hold[:0], r.chunk[r.at:]...)
	r.leaveOut(len(r.chunk) - r.at)
}

// unhold completes the held frame from the chunk's beginning.
func (r *Relay) unhold() error {
	if !r.moveToHold(5) {
		return nil
	}
	size, err := frameSize(r.hold)
	if err != nil {
		return err
	}
	typ := r.hold[0]
	if !r.seen(typ, size) {
		r.skip, r.drop = size-len(r.hold), !r.passing(typ)
		if !r.drop {
			r.Append(r.hold)
		}
		r.hold = r.hold[:0]
		return nil
	}
	if !r.moveToHold(size) {
		return nil
	}
	if r.frame(typ, r.hold[5:size]) {
		r.Append(r.hold)
	}
	r.hold = r.hold[:0]
	return r.wrong
}

// moveToHold moves bytes from the chunk's beginning until hold has size of them; false: the chunk has too few.
func (r *Relay) moveToHold(size int) bool {
	if need := size - len(r.hold); need > 0 {
		n := min(need, len(r.chunk)-r.at)
		r.hold = append(r.hold, r.chunk[r.at:r.at+n]...)
		r.leaveOut(n)
	}
	return len(r.hold) >= size
}

// leaveOut keeps the next n bytes from the client.
func (r *Relay) leaveOut(n int) {
	r.collect(r.at)
	r.at += n
	r.from = r.at
}

// collect moves chunk[from:to] to out, because what follows differs from what came.
func (r *Relay) collect(to int) {
	if to > r.from {
		r.out = append(r.out, r.chunk[r.from:to]...)
		r.from = to
	}
}

func (r *Relay) flush() error {
	b := r.chunk[min(r.from, len(r.chunk)):]
	if len(r.out) > 0 {
		r.out = append(r.out, b...)
		b = r.out
	}
	r.chunk, r.at, r.from = nil, 0, 0
	defer func() { r.out = r.out[:0] }()
	if len(b) == 0 || r.Muted {
		return nil
	}
	n, err := r.client.Write(b)
	r.Sent += int64(n)
	if err != nil {
		r.Torn = n > 0 || r.mid
		return &ClientError{Err: err}
	}
	r.mid = r.MidFrame()
	return nil
}

// ClientError is a failure to write to the client: the server connection is in the middle of an answer.
type ClientError struct{ Err error }

func (e *ClientError) Error() string { return "client: " + e.Err.Error() }

// Unwrap gives the cause.
func (e *ClientError) Unwrap() error { return e.Err }
