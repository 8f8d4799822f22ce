package pooler

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"neki/catalog"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/internal/pgwire"
	"neki/pooler/backend"
	"neki/pooler/plan"
	"neki/settings"
)

// phase is what a session's conversation is in the middle of.
//
//	phase        client may send           what happens
//	ready        anything                  Q is run; P B D E C are collected until S or H
//	skipping     anything                  all is dropped up to the next S: an error ended the segment
//	copying      d c f (H S ignored)       passed to the server that waits for them
//	             anything else             passed too: the server ends the COPY with an error
//
// Whether a transaction is open is not a phase: the last ReadyForQuery of the server says it (Session.status).
type phase uint8

const (
	phaseReady phase = iota
	phaseSkipping
	phaseCopying
)

// Session is one client. Fields above mu are the session goroutine's own.
type Session struct {
	srv  *Server
	conn *pgwire.Conn
	user string
	db   *database
	role *role // as it was at login

	vars     *settings.Vars
	defaults *settings.Vars // what RESET returns to: the startup packet's
	env      *plan.Env
	envVars  *settings.Vars // env was made for these
	memo     plan.Memo
	envPath  string
	envUser  string
	shown    *backend.ParamSet
	reports  *backend.ParamSet // of the connection that was given back last; nil once the client knows

	calm     bool         // the session is resting: see plain.go
	segment  plainSegment // that runs
	phase    phase
	status   byte // I, T or E, as the client was told
	tx       transaction
	given    sequenceValues // what the gateway itself has handed out of sequences
	ownTypes bool           // a statement's parameters were given types of a user's
	stx      *shardTx       // the transaction's shards; nil: it is on the lease alone
	open     bool           // messages were sent since the last Sync
	parsed   bool           // they only prepare and describe statements
	copyEx   bool           // the COPY was begun by the extended protocol

	lease *backend.ServerConn // in use by the present statement, segment or transaction
	home  *backend.ServerConn // pinned to this session; may be the lease too
	pins  plan.Pins
	place place // of the lease
	homed place // of home

	usedByOthers bool   // the lease was another session's since this one had it
	userBefore   uint64 // whose it was; see backend.ServerConn.UsedBy
	drew         bool   // a statement that was run on the lease may have drawn from a sequence

	statements map[string]*preparedStatement
	portals    map[string]*plan.Plan
	portal     *plan.Plan // of the unnamed portal
	portalAt   portalPlace
	portalsAt  map[string]portalPlace
	describing *ownPortal     // was asked for its columns, which come with its rows
	reading    *datum.Session // how texts of values are read, made for readBy
	readBy     *backend.ParamSet
	suspended  *spread            // has rows left that its portal may be asked for
	running    []*spread          // begun and not closed
	split      *splitCopy         // is fed by the client
	behind     *stringRest        // what the string of a COPY that is fed goes on with
	cursors    map[string]*cursor // over several shards, by name
	unnamed    unnamedStatement
	ownPortals map[string]*ownPortal
	parsing    []parsing

	shards   []shardState
	pool     *backend.Pool   // used last
	ticket   *backend.Ticket // for waiting in its queue; nil until it did
	avoid    string          // the replica that has just failed the present statement
	outdated bool            // the data topology has changed while the statement in hand waited
	moves    int             // how often the present statement was run again though nothing said that its primary changes

	sub       *subscription // to what the hub of the database hears; nil until the session listens
	claimed   claim         // its connection's notifications are known to be the session's
	dying     bool          // the statement was cancelled to end the session
	handsOver bool          // the connection in use may listen: the hub is to take that over

	watch  *watch // of home, while the session listens and waits for its client
	work   *work
	copied int // bytes of a large CopyData still to come
	failed bool
	// newSchema: relations may have changed in this transaction.
	newSchema  bool
	begun      time.Time // of the running statement
	now        time.Time // about now: taken when a statement begins and ends
	current    *plan.Plan
	shardCalls int64 // of the running statement, when there is more than one

	pid        uint32
	slot       uint32
	generation uint64
	protocol   uint32
	connected  time.Time
	addr       string
	tls        bool

	state       atomic.Uint32 // of type sessionState
	since       atomic.Int64  // Unix nanoseconds of the last change of state
	lastPlan    atomic.Pointer[plan.Plan]
	leasedShard atomic.Pointer[string]
	deadlock    atomic.Pointer[deadlockVictim]
	committing  atomic.Bool   // the message in hand ends a transaction: no cancel is passed on
	hit         atomic.Bool   // a cancel was passed on for the message in hand
	leaving     atomic.Bool   // drain: end when outside a transaction
	feeding     atomic.Bool   // waits for more COPY data of the client
	heard       atomic.Bool   // the watched server has spoken
	parked      atomic.Uint64 // counts the waits for the client
	seenPark    uint64        // the sweeper's own: as of its last look
	checkedPark uint64        // and the wait in which it found the client alive
	seenWrite   uint64        // and what is being written to the client
	writeSince  time.Time     // it began to wait for the client to take more of that

	mu        sync.Mutex
	backends  []shardBackend        // of the transaction, when it is on several shards
	active    *backend.ServerConn   // running a statement of this client: a cancel may be sent to it
	feeders   []*backend.ServerConn // wait for COPY data of this client; cancels go by interrupt
	cause     *pgerr.Error          // why the session must end
	killed    time.Time             // when kill was called
	parting   bool                  // the client is being told
	interrupt chan struct{}         // closed to end a wait; nil while there is none
	queued    bool                  // waits, or has just waited, for a server connection
	canceled  int64                 // the statement that was cancelled and has not noticed yet, by its begun
	public    publicState
	text      []byte // of the running Query, as the client sent it, cut; in work.shown
}

// publicState is what neki.sessions shows beyond the atomics. It is written by the session's goroutine, under mu.
type publicState struct {
	vars *settings.Vars
	pins plan.Pins
	held uint32 // pid of the server process that is kept between statements
}

// place is where a leased connection leads.
type place struct {
	shard string
	node  *catalog.Node
	role  catalog.Role
}

// sessionState is what a session is seen doing.
type sessionState uint32

const (
	stateIdle sessionState = iota
	stateActive
	stateIdleInTx
	stateIdleInFailedTx
)

func (s sessionState) String() string {
	switch s {
	case stateActive:
		return "active"
	case stateIdleInTx:
		return "idle in transaction"
	case stateIdleInFailedTx:
		return "idle in transaction (aborted)"
	}
	return "idle"
}

// errTerminate ends the session because the client said so.
var errTerminate = errors.New("terminate")

// fatalError ends the session after the client was told; err is what it was told.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }

// run serves the client until it or the gateway ends the session, then gives everything back.
func (c *Session) run() {
	defer c.leaveServer()
	growStack(0)
	err := c.conn.Serve(c)
	for errors.Is(err, os.ErrDeadlineExceeded) {
		if c.servesOn() { // the client spoke as the session was to end
			err = nil
		} else if c.wakened() { // the server spoke in the middle of a COPY, or notifies
			err = c.wake()
		} else {
			break
		}
		if err == nil {
			err = c.conn.Serve(c)
		}
	}
	c.sayWhy(err)
}

// growStack takes the stack that a statement needs, 4 KB, before the session waits for its first one: grown one by one
// later, the stacks of many idle sessions would leave as many holes behind.
//
//go:noinline
func growStack(i int) byte {
	var room [2300]byte
	room[i] = byte(i)
	return room[len(room)-1-i]
}

// growLogin takes the stack that a login needs at once, while there is little on it to be copied.
//
//go:noinline
func growLogin(i int) byte {
	var room [6 << 10]byte
	room[i] = byte(i)
	return room[len(room)-1-i]
}

// sayWhy tells a client that others ended the session.
func (c *Session) sayWhy(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) && !c.torn() {
		if cause := c.lastWord(); cause != nil {
			_ = c.conn.SetDeadline(time.Now().Add(time.Second))
			_, _ = c.conn.Write(encodeError(nil, cause.WithSeverity(pgerr.SeverityFatal)))
		}
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, errTerminate) {
		c.srv.log.Debug("session ended", "pid", c.pid, "error", err)
	}
}

// torn reports whether the client has only a part of a message: what is written behind that would be taken for its rest.
func (c *Session) torn() bool { return c.work != nil && c.work.relay.Torn }

// leaveServer gives back all that the session has. A panic ends this session, not the gateway: what the connection to
// the server is in the middle of is unknown then, so it is closed.
func (c *Session) leaveServer() {
	r := recover()
	if r != nil {
		c.srv.log.Error("session panicked", "pid", c.pid, "panic", r, "stack", string(debug.Stack()))
		c.abandonSpreads()
		c.dropLease()
		if c.home != nil {
			c.home.Broken()
		}
		c.srv.metrics.panics.Inc()
	}
	c.stopWatching()
	c.forgetSubscription()
	c.giveBack()
	if c.work != nil && r == nil {
		c.srv.work.put(c.work)
		c.work = nil
	}
	c.srv.sessions.remove(c)
	_ = c.conn.Close()
}

// Buffer gives room for what the client sends.
func (c *Session) Buffer() []byte {
	w := c.lend()
	if w.end == len(w.in) {
		w.makeRoom(len(w.ops) == 0)
	}
	return w.in[w.end:]
}

// makeRoom moves the unread bytes to the front, or makes the buffer larger. Collected messages are referred to by
// offset, so nothing may move while there are any.
func (w *work) makeRoom(mayMove bool) {
	if mayMove && w.start > 0 {
		w.end = copy(w.in, w.in[w.start:w.end])
		w.start = 0
	}
	if w.end == len(w.in) {
		grown := make([]byte, 2*len(w.in))
		copy(grown, w.in[:w.end])
		w.in = grown
	}
}

func (c *Session) lend() *work {
	if c.work == nil {
		c.work = c.srv.work.get()
		c.work.relay.Bind(c.conn, c)
		c.work.relay.ClientPID = c.pid
	}
	return c.work
}

// Park gives the buffers back unless something is half done.
func (c *Session) Park() {
	c.parked.Add(1)
	if c.listens() {
		c.watchServer()
	}
	if c.mayBeWoken() {
		c.db.hub.park(c.sub)
	}
	w := c.work
	if w == nil {
		return
	}
	if c.phase == phaseCopying {
		c.feeding.Store(true)
		if c.split != nil && c.split.ctx.Err() != nil {
			c.conn.InterruptRead()
		}
	}
	if w.start < w.end || len(w.ops) > 0 || w.relay.Pending() {
		return
	}
	if c.text != nil { // only this goroutine writes it
		c.mu.Lock()
		c.text = nil
		c.mu.Unlock()
	}
	c.work = nil
	c.srv.work.put(w)
}

// Received works on n more bytes of the client.
func (c *Session) Received(n int) error {
	c.stopWatching()
	c.unpark()
	w := c.work
	w.end += n
	if c.phase == phaseCopying {
		c.feeding.Store(false)
	}
	if c.calm {
		c.calm = false
		if _, err := c.plain(); err != nil {
			return err
		}
	}
	for {
		if c.copied > 0 {
			if err := c.copyOn(); err != nil {
				return err
			}
		}
		m, ok, err := c.next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		c.calm, w.used = false, true
		if err := c.dispatch(m); err != nil {
			return err
		}
	}
	if w.start == w.end && len(w.ops) == 0 {
		w.start, w.end = 0, 0
	}
	return nil
}

// message is one whole message of the client; raw is all of it, in the input buffer from offset at.
type message struct {
	typ byte
	at  int
	raw []byte
}

func (m message) body() []byte { return m.raw[5:] }

// Limits of messages: what carries SQL or data may be long, all else is short.
const (
	maxMessage = 256 << 20
	maxSmall   = 10_000
)

// next takes the next whole message; ok is false when it has not come entirely.
func (c *Session) next() (m message, ok bool, err error) {
	w := c.work
	rest := w.in[w.start:w.end]
	if len(rest) < 5 {
		return m, false, nil
	}
	length := binary.BigEndian.Uint32(rest[1:])
	if err := checkLength(rest[0], length); err != nil {
		return m, false, c.outOfStep(err)
	}
	size := uint64(length) + 1
	if uint64(len(rest)) < size {
		if c.phase == phaseCopying && rest[0] == 'd' && size > inSize/2 {
			return m, false, c.copyPart(rest, int(size))
		}
		return m, false, nil
	}
	m = message{typ: rest[0], at: w.start, raw: rest[:size]}
	w.start += int(size)
	return m, true, nil
}

// checkLength checks the head of a message: what is wrong there leaves it unknown where the next one begins. length
// counts itself, but not the type.
func checkLength(typ byte, length uint32) *pgerr.Error {
	limit := uint32(maxSmall)
	switch typ {
	case 'Q', 'P', 'B', 'F', 'd':
		limit = maxMessage
	case 'D', 'E', 'C', 'H', 'S', 'X', 'c', 'f':
	default:
		return pgerr.Fatal(pgerr.ProtocolViolation, "invalid frontend message type %d", typ)
	}
	if length < 4 || length > limit {
		return pgerr.Fatal(pgerr.ProtocolViolation, "invalid message length").
			WithDetail("A message of type %q says that it is %d bytes long; 4 to %d are accepted.", typ, length, limit)
	}
	return nil
}

// outOfStep ends the session for the head of a message. What came before it is run first, as Postgres does.
func (c *Session) outOfStep(err *pgerr.Error) error {
	if err := c.runCollected(); err != nil {
		return err
	}
	return c.fatal(err)
}

// runCollected runs messages of the extended protocol that were collected, because another kind of message follows.
func (c *Session) runCollected() error {
	switch {
	case c.phase != phaseReady:
		return nil
	case len(c.work.ops) > 0:
		return c.runSegment('H')
	case c.open && c.lease != nil && c.work.relay.Pending():
		return c.awaitCopy()
	}
	return nil
}

// dispatch does what the message asks for.
func (c *Session) dispatch(m message) error {
	if m.typ == 'X' {
		return c.terminate()
	}
	switch c.phase {
	case phaseCopying:
		return c.copyMessage(m)
	case phaseSkipping:
		if m.typ != 'S' {
			return nil
		}
		if len(m.body()) > 0 {
			return c.badSync()
		}
		return c.endSkipping()
	}
	switch m.typ {
	case 'Q':
		return c.query(m)
	case 'P', 'B', 'D', 'E', 'C':
		return c.collect(m)
	case 'H', 'S':
		if len(m.body()) > 0 {
			return c.badSegmentEnd(m)
		}
		return c.runSegment(m.typ)
	case 'F':
		return c.functionCall(m)
	}
	if err := c.runCollected(); err != nil || c.phase != phaseCopying {
		return err // c, d, f: late messages of a COPY that has ended
	}
	return c.copyMessage(m)
}

// terminate ends the session at the client's wish. What it has sent before that is run, as Postgres does.
func (c *Session) terminate() error {
	c.work.relay.Muted = true
	if err := c.runCollected(); err != nil {
		return err
	}
	return errTerminate
}

// badSegmentEnd answers a Sync or Flush with a body.
func (c *Session) badSegmentEnd(m message) error {
	if m.typ == 'H' {
		if len(c.work.ops) == 0 {
			c.beginSegment()
		}
		c.work.ops = append(c.work.ops, op{typ: 'H', at: m.at, end: m.at + len(m.raw), err: errFormat})
		return c.runSegment('H')
	}
	if err := c.runCollected(); err != nil || c.phase == phaseCopying {
		return err
	}
	return c.badSync()
}

// badSync answers a Sync that fails itself: it ends the segment all the same, which is undone.
func (c *Session) badSync() error {
	c.begun = c.srv.now()
	if c.phase == phaseSkipping {
		c.countError()
		c.work.reply = encodeError(c.work.reply[:0], errFormat)
		if err := c.sendReply(); err != nil {
			return err
		}
		return c.endSkipping()
	}
	return c.refuseQuery(errFormat)
}

// fatal tells the client why and ends the session.
func (c *Session) fatal(err *pgerr.Error) error {
	_ = c.conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.conn.Write(encodeError(nil, err.WithSeverity(pgerr.SeverityFatal)))
	return &fatalError{err}
}

// leave ends the session for a drain, if it is between transactions.
func (c *Session) leave() error {
	if c.status != 'I' || c.open || c.phase != phaseReady {
		return nil
	}
	return c.fatal(errShutdown)
}

// encodeError appends the ErrorResponse or NoticeResponse of err.
func encodeError(dst []byte, err *pgerr.Error) []byte {
	var out []byte
	var encErr error
	switch err.Severity {
	case pgerr.SeverityWarning, pgerr.SeverityNotice:
		out, encErr = err.NoticeResponse().Encode(dst)
	default:
		out, encErr = err.Response().Encode(dst)
	}
	if encErr != nil { // only a message over 1 GiB
		return dst
	}
	return out
}

func appendReady(dst []byte, status byte) []byte { return append(dst, 'Z', 0, 0, 0, 5, status) }

func appendComplete(dst []byte, tag string) []byte {
	dst = append(dst, 'C')
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+len(tag)+1))
	return append(append(dst, tag...), 0)
}

// setState makes the session's state visible. A cancel that finds it active must find which statement it is about.
func (c *Session) setState(s sessionState, now time.Time) {
	c.since.Store(now.UnixNano())
	c.state.Store(uint32(s))
}

// settle shows what the session is after a statement.
func (c *Session) settle(now time.Time) {
	c.publish()
	switch {
	case c.status == 'T' || c.open:
		c.setState(stateIdleInTx, now)
	case c.status == 'E':
		c.setState(stateIdleInFailedTx, now)
	default:
		c.setState(stateIdle, now)
	}
}
