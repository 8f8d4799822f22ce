package backend

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"neki/internal/pgerr"
	"neki/internal/pgwire"
	"neki/settings"
)

// ServerConn is one logged-in connection to a Postgres instance. It has one owner at a time; only Cancel and Interrupt
// may be called by others.
type ServerConn struct {
	conn   *pgwire.Conn
	pool   *Pool
	addr   string
	pid    uint32
	secret []byte

	vars        *settings.Vars
	params      *ParamSet // what the server reported
	types       *Types    // nil: those that clients know
	typesSchema int64     // the revision of the schema that they are of
	greeting    *ParamSet // what it reported at the login
	prepared    preparedSet
	unnamed     uint64 // whose its unnamed statement is; 0 = unknown
	status      byte   // of the last ReadyForQuery

	opened  time.Time
	idle    time.Time
	retire  time.Time // not reused after this
	broken  bool
	warned  bool         // the last Exec brought a notice
	user    uint64       // the session that had it last
	evicts  bool         // a prepared statement had to make room
	others  bool         // it has prepared statements that prepared does not know
	cancels atomic.Int32 // cancel requests on their way
	hear    func(body []byte)
}

// Node gives the id of the instance.
func (sc *ServerConn) Node() string { return sc.pool.key.Node }

// Unheard reports whether a request that failed with err surely never reached the server: it had closed the connection
// before.
func (sc *ServerConn) Unheard(err error) bool {
	return errors.Is(err, syscall.EPIPE) || sc.conn.Unheard()
}

// PID gives the server process's id.
func (sc *ServerConn) PID() uint32 { return sc.pid }

// Vars gives the settings the server has.
func (sc *ServerConn) Vars() *settings.Vars { return sc.vars }

// SetVars notes settings that the server has after a statement of the client.
func (sc *ServerConn) SetVars(v *settings.Vars) { sc.vars = v }

// SetTypes says how the server's types become those that clients know, as of a revision of the schema; nil: they are the
// same.
func (sc *ServerConn) SetTypes(t *Types, schema int64) { sc.types, sc.typesSchema = t, schema }

// TypesAsOf reports whether SetTypes has given a translation as of that revision.
func (sc *ServerConn) TypesAsOf(schema int64) bool {
	return sc.types != nil && sc.typesSchema == schema
}

// Translates reports whether SetTypes has given a translation.
func (sc *ServerConn) Translates() bool { return sc.types != nil }

// Status gives the transaction status of the last ReadyForQuery: I, T or E.
func (sc *ServerConn) Status() byte { return sc.status }

// SetStatus notes what a Relay saw.
func (sc *ServerConn) SetStatus(status byte) { sc.status = status }

// Params gives what the server has reported.
func (sc *ServerConn) Params() *ParamSet { return sc.params }

// Greeting gives what the server reported at the login.
func (sc *ServerConn) Greeting() *ParamSet { return sc.greeting }

// Reported notes a ParameterStatus.
func (sc *ServerConn) Reported(name, value []byte) {
	if old, ok := sc.params.Get(string(name)); !ok || old != string(value) {
		sc.params = sc.pool.pools.paramSets.with(sc.params, string(name), string(value))
	}
}

// NoteGreeting tells the pool what a login is told: the connection has no client's settings on it.
func (sc *ServerConn) NoteGreeting() { sc.pool.NoteGreeting(sc.params) }

// Stats gives the figures of the instance.
func (sc *ServerConn) Stats() *NodeStats { return sc.pool.stats }

// Broken marks the connection as unfit for reuse.
func (sc *ServerConn) Broken() { sc.broken = true }

// Unfit reports whether Broken was called, or the connection has failed.
func (sc *ServerConn) Unfit() bool { return sc.broken }

// Prepared reports whether the server knows s.
func (sc *ServerConn) Prepared(s *Statement) bool { return sc.prepared.has(s) }

// PreparedSince reports whether the server knows s, and whether it has prepared it at the given time or later.
func (sc *ServerConn) PreparedSince(s *Statement, at uint64) (known, since bool) {
	if !sc.prepared.has(s) {
		return false, false
	}
	return true, sc.prepared.byID[s.id].at >= at
}

// NotePrepared notes when s was prepared, by a clock of the caller's.
func (sc *ServerConn) NotePrepared(s *Statement, at uint64) {
	if e := sc.prepared.byID[s.id]; e != nil {
		e.at = at
	}
}

// Renew makes the server forget s before it prepares it again.
func (sc *ServerConn) Renew(s *Statement) {
	sc.prepared.remove(s)
	sc.evicts = true
}

// Prepare appends the messages that make s known to the server, and the expectations of their answers, which the
// client does not see unless act says so.
func (sc *ServerConn) Prepare(dst []byte, r *Relay, s *Statement, act Act) []byte {
	dst = sc.Announce(dst, r, s)
	if !s.sql {
		r.Expect('P', act)
		return append(dst, s.Parse()...)
	}
	r.Expect('C', Swallow)
	r.Expect('P', Swallow)
	r.Expect('B', Swallow)
	r.Expect('E', act)
	r.Expect('C', Swallow)
	return append(dst, s.Parse()...)
}

// Announce notes that s is about to be prepared, and appends what makes room for it.
func (sc *ServerConn) Announce(dst []byte, r *Relay, s *Statement) []byte {
	evicted := sc.prepared.add(s)
	if evicted != nil {
		sc.evicts = true
		dst = appendClose(dst, 'S', evicted.Name())
		r.Expect('C', Swallow)
	}
	if sc.evicts { // s may have been evicted in a segment that failed before its Close
		dst = appendClose(dst, 'S', s.Name())
		r.Expect('C', Swallow)
	}
	return dst
}

// Forget notes that the server does not know s: its Parse failed.
func (sc *ServerConn) Forget(s *Statement) { sc.prepared.remove(s) }

// ForgetAll notes that the server has dropped all prepared statements.
func (sc *ServerConn) ForgetAll() { sc.prepared.clear(); sc.unnamed, sc.others = 0, false }

// DeallocateAll has the server drop all prepared statements.
func (sc *ServerConn) DeallocateAll(buf []byte) error {
	sc.ForgetAll()
	_, err := sc.Exec("DEALLOCATE ALL", buf)
	return err
}

// HoldsOthers notes that the server has statements under names that are not the gateway's: they must go before another
// client gets the connection.
func (sc *ServerConn) HoldsOthers() { sc.others = true }

// Untidy reports whether it has such statements.
func (sc *ServerConn) Untidy() bool { return sc.others && !sc.broken }

// Tidy drops such statements.
func (sc *ServerConn) Tidy(buf []byte) {
	if sc.status != 'I' || sc.DeallocateAll(buf) != nil {
		sc.broken = true
	}
}

// Unnamed gives the token of what is in the server's unnamed slot, 0 when unknown.
func (sc *ServerConn) Unnamed() uint64 { return sc.unnamed }

// SetUnnamed notes what was put into the server's unnamed slot.
func (sc *ServerConn) SetUnnamed(token uint64) { sc.unnamed = token }

func appendClose(dst []byte, what byte, name []byte) []byte {
	dst = append(dst, 'C')
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+1+len(name)+1))
	dst = append(dst, what)
	return append(append(dst, name...), 0)
}

// AppendQuery appends a Query message.
func AppendQuery(dst []byte, sql string) []byte {
	dst = append(dst, 'Q')
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+len(sql)+1))
	return append(append(dst, sql...), 0)
}

// Hear has f called with the body of each NotificationResponse that comes while the gateway itself asks the server; nil:
// they are dropped.
func (sc *ServerConn) Hear(f func(body []byte)) { sc.hear = f }

// Bound sets the time by which exchanges with the server must have ended; the zero time means none.
func (sc *ServerConn) Bound(deadline time.Time) { _ = sc.conn.SetDeadline(deadline) }

// Interrupt makes the owner's waits on the connection fail; it can't be used after that.
func (sc *ServerConn) Interrupt() { sc.conn.Interrupt() }

// Exec runs SQL of the gateway's own to its end and gives the rows as text. buf is room to read into. An error of the
// server leaves the connection usable; any other marks it broken.
func (sc *ServerConn) Exec(sql string, buf []byte) (rows [][]string, err error) {
	x := execState{sc: sc}
	if err := sc.conn.Exchange(AppendQuery(nil, sql), buf, nil, x.onChunk); err != nil {
		sc.broken = true
		return nil, fmt.Errorf("%s: %w", sc.Node(), err)
	}
	sc.unnamed = 0 // a Query drops the unnamed statement
	sc.warned = x.warned
	if x.failed != nil {
		return nil, x.failed
	}
	return x.rows, nil
}

// Warned reports whether the last Exec brought a notice of any kind: a COMMIT PREPARED that no standby has acknowledged
// succeeds with one.
func (sc *ServerConn) Warned() bool { return sc.warned }

// execState decodes the answers of one Exec.
type execState struct {
	sc     *ServerConn
	held   []byte
	rows   [][]string
	failed *pgerr.Error
	warned bool
	ready  bool
}

func (x *execState) onChunk(chunk []byte) (done bool, err error) {
	x.held = append(x.held, chunk...)
	for len(x.held) >= 5 {
		size, err := frameSize(x.held)
		if err != nil {
			return false, err
		}
		if len(x.held) < size {
			break
		}
		typ, body := x.held[0], x.held[5:size]
		x.held = x.held[size:]
		if err := x.frame(typ, body); err != nil {
			return false, err
		}
	}
	return x.ready && len(x.held) == 0, nil // what comes unasked behind ReadyForQuery is read to its end
}

func (x *execState) frame(typ byte, body []byte) error {
	switch typ {
	case 'D':
		var row pgproto3.DataRow
		if err := row.Decode(body); err != nil {
			return err
		}
		texts := make([]string, len(row.Values))
		for i, v := range row.Values {
			texts[i] = string(v)
		}
		x.rows = append(x.rows, texts)
	case 'S':
		var p pgproto3.ParameterStatus
		if err := p.Decode(body); err != nil {
			return err
		}
		x.sc.Reported([]byte(p.Name), []byte(p.Value))
	case 'N':
		x.warned = true
	case 'A':
		if x.sc.hear != nil {
			x.sc.hear(body)
		}
	case 'E':
		var e pgproto3.ErrorResponse
		if err := e.Decode(body); err != nil {
			return err
		}
		if x.failed == nil {
			x.failed = pgerr.FromResponse(&e)
		}
		if x.failed.Severity != pgerr.SeverityError {
			return x.failed
		}
	case 'Z':
		if len(body) == 1 {
			x.sc.status = body[0]
		}
		x.ready = true
	}
	return nil
}

// Apply makes the server's settings equal to want.
func (sc *ServerConn) Apply(want *settings.Vars, buf []byte) error {
	if sc.vars == want || sc.vars.BackendEqual(want) {
		sc.vars = want
		return nil
	}
	diff := settings.AppendDiff(nil, sc.vars, want)
	if len(diff) > 0 {
		if _, err := sc.Exec(string(diff), buf); err != nil {
			sc.broken = true // how much of it was done is unknown
			return err
		}
	}
	sc.vars = want
	return nil
}

// cleanSQL takes away whatever a session can leave behind, as DISCARD ALL does, except that plans are kept. Prepared
// statements go too: code that ran unseen may have made some.
const cleanSQL = `SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; RESET ALL; DEALLOCATE ALL; CLOSE ALL; UNLISTEN *; ` +
	`SELECT pg_catalog.pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES`

// UsedBy notes the session that has the connection now, and gives the one that had it before; 0: none.
func (sc *ServerConn) UsedBy(user uint64) (before uint64) {
	before = sc.user
	sc.user = user
	return before
}

// Clean ends any transaction and, when dirty, takes away all session state, so that the connection can be reused.
func (sc *ServerConn) Clean(dirty bool, defaults *settings.Vars, buf []byte) error {
	if sc.status != 'I' {
		if _, err := sc.Exec("ROLLBACK", buf); err != nil {
			sc.broken = true
			return err
		}
	}
	if !dirty {
		return nil
	}
	seed := strconv.FormatFloat(rand.Float64(), 'f', -1, 64) // the next random numbers must not be known
	if _, err := sc.Exec(cleanSQL+`; SELECT pg_catalog.setseed(`+seed+`)`, buf); err != nil {
		sc.broken = true
		return err
	}
	sc.ForgetAll()
	sc.vars = defaults
	return nil
}

// Cancel asks the server to cancel what it runs, and returns once the request was delivered. The caller has called
// BeginCancel while the connection's owner could not release it.
func (sc *ServerConn) Cancel(ctx context.Context) error {
	defer sc.cancels.Add(-1)
	p := sc.pool.pools
	return pgwire.SendCancel(ctx, p.cfg.Dial, sc.addr, sc.pid, sc.secret, p.cfg.TLS)
}

// BeginCancel announces a Cancel: the connection will not be given to another session before it is delivered.
func (sc *ServerConn) BeginCancel() { sc.cancels.Add(1) }

// Drain reads on until all answers that r still expects have come, without passing them to the client, and cancels
// the running statement first. A segment without its Sync is rolled back. For a client that is gone.
func (sc *ServerConn) Drain(ctx context.Context, r *Relay, buf []byte) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		return errors.New("drain without a deadline")
	}
	_ = sc.conn.SetDeadline(deadline)
	defer func() { _ = sc.conn.SetDeadline(time.Time{}) }()
	if r.Pending() {
		sc.BeginCancel()
		if err := sc.Cancel(ctx); err != nil {
			return err
		}
	}
	r.Muted = true
	var out []byte
	if r.CopyIn {
		out = append(out, 'f', 0, 0, 0, 5, 0)
	}
	if !r.SyncDue() { // a Sync alone would commit
		out = append(AppendFailure(out), 'S', 0, 0, 0, 4)
		r.Expect('B', Forward)
		r.Expect('S', Forward)
	}
	if err := r.Run(sc, out, buf); err != nil {
		return err
	}
	sc.status = r.Status
	return nil
}

// Alive reports whether the server still holds the connection. Any goroutine may ask.
func (sc *ServerConn) Alive() bool { return sc.conn.Alive() }

// Speaks reports whether the server has sent something that was not read yet. Any goroutine may ask.
func (sc *ServerConn) Speaks() bool { return sc.conn.Readable() }

// AwaitSpeech waits until the server sends something or closes, without reading it; an error says that StopAwaiting
// ended the wait. It may run in a goroutine of its own while the owner leaves the connection alone.
func (sc *ServerConn) AwaitSpeech() error { return sc.conn.AwaitReadable() }

// StopAwaiting ends AwaitSpeech, waits until it has returned and done is closed, and makes the connection usable again.
func (sc *ServerConn) StopAwaiting(done <-chan struct{}) {
	_ = sc.conn.SetReadDeadline(time.Unix(1, 0))
	<-done
	_ = sc.conn.SetReadDeadline(time.Time{})
}

// Release gives the connection back to its pool. now is about the present time.
func (sc *ServerConn) Release(now time.Time) { sc.pool.Release(sc, now) }
