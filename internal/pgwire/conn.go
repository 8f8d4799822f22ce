package pgwire

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a transport to a client or a server after its startup. On a plain TCP or Unix socket it reads and writes the
// non-blocking descriptor itself, inside the callbacks of syscall.RawConn, which saves a third of the relay's CPU
// (docs/performance.md), and so it does for a client under TLS (tlsSocket); to a server under TLS, and in race-detector
// builds, it takes the ordinary net.Conn path.
//
// One goroutine at a time uses a Conn for reading and writing. Interrupt, SetDeadline, Alive and Close may be called
// from any goroutine; Close waits for a running Serve or Exchange, so end those by Interrupt first.
type Conn struct {
	nc  net.Conn
	raw syscall.RawConn // nil: the ordinary path
	tls *tlsSocket      // under a client's TLS, which Serve takes the bytes for; nil otherwise

	// State of the running callback. The callbacks are bound once, so that no call allocates; those of Exchange only
	// when it is used: a gateway has many more clients than servers.
	readFn   func(fd uintptr) bool
	writeFn  func(fd uintptr) bool
	handler  Handler
	exchange *exchangeState
	err      error
	out      []byte // what writeFn still has to write
	outErr   error
	torn     bool          // a write failed in the middle: nothing may follow it
	waits    atomic.Uint64 // see Writing

	// While Serve's callback runs the descriptor can't be closed, and its goroutine writes to it without asking first.
	fd          uintptr
	serving     bool
	interrupted atomic.Bool
}

type exchangeState struct {
	out     []byte // request bytes not yet written
	buf     []byte
	more    func() []byte // may be nil
	on      func(chunk []byte) (done bool, err error)
	unsent  bool // the request is still to be written
	partial bool // the kernel took only a part of the request
	bulk    bulkWait
	fn      func(fd uintptr) bool
}

// socketError is the error that net.Conn would give.
func socketError(op string, errno syscall.Errno) error {
	return &net.OpError{Op: op, Net: "tcp", Err: os.NewSyscallError(op, errno)}
}

// Handler is what Serve drives: the state machine of one session.
type Handler interface {
	// Buffer gives free space to read into; never empty.
	Buffer() []byte
	// Received takes n bytes that were read into the last Buffer. An error ends Serve.
	Received(n int) error
	// Park is told that Serve is about to wait, so that buffers without content can go back to their pool.
	Park()
}

// NewConn wraps nc, whose startup is over. It takes nc over.
func NewConn(nc net.Conn) *Conn {
	c := &Conn{nc: nc}
	if rawAllowed {
		if s, ok := nc.(syscall.Conn); ok {
			if raw, err := s.SyscallConn(); err == nil {
				c.raw = raw
				c.readFn, c.writeFn = c.onReadable, c.onWritable
			}
		}
		if t, ok := c.socket().(*tlsSocket); ok && t.raw != nil {
			c.tls = t
			t.waits = &c.waits
		}
	}
	return c
}

// NetConn gives the wrapped connection, for addresses and TLS state.
func (c *Conn) NetConn() net.Conn { return c.nc }

// Close closes the transport.
func (c *Conn) Close() error { return c.nc.Close() }

// Interrupt makes every present and later wait on the Conn end with os.ErrDeadlineExceeded.
func (c *Conn) Interrupt() {
	c.interrupted.Store(true)
	_ = c.nc.SetDeadline(longAgo)
}

// InterruptRead makes the present and later waits for the peer's bytes end with os.ErrDeadlineExceeded.
func (c *Conn) InterruptRead() { _ = c.nc.SetReadDeadline(longAgo) }

// SetDeadline sets the deadline of reads and writes; the zero time means none.
func (c *Conn) SetDeadline(t time.Time) error {
	c.interrupted.Store(false)
	return c.nc.SetDeadline(t)
}

// SetReadDeadline sets the deadline of reads only.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.nc.SetReadDeadline(t) }

// SetWriteDeadline sets the deadline of writes only.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.nc.SetWriteDeadline(t) }

// Serve reads until h returns an error, which it returns; io.EOF when the peer closed. The whole loop runs in one
// RawConn.Read callback: leaving it between requests would reset the poller and forget an edge that came meanwhile
// (pipelining clients would hang), and reading before each wait would cost a system call per request.
func (c *Conn) Serve(h Handler) error {
	if c.tls != nil {
		return c.serveTLS(h)
	}
	if c.raw == nil {
		return c.serveOrdinary(h)
	}
	c.handler, c.err = h, nil
	err := c.raw.Read(c.readFn)
	c.handler, c.serving = nil, false
	if c.err != nil {
		return c.err
	}
	return err
}

func (c *Conn) onReadable(fd uintptr) bool {
	c.fd, c.serving = fd, true
	for {
		buf := c.handler.Buffer()
		n, errno := sysRead(fd, buf)
		switch {
		case errno == syscall.EAGAIN:
			c.handler.Park()
			return false
		case errno == syscall.EINTR:
			continue
		case errno != 0:
			c.err = socketError("read", errno)
			return true
		case n == 0:
			c.err = io.EOF
			return true
		}
		if c.err = c.handler.Received(n); c.err != nil {
			return true
		}
		// Drained: an edge after this read is remembered by the poller. An end of the stream that came with these bytes
		// raises none: the owner finds it by Alive.
		if n < len(buf) {
			c.handler.Park()
			return false
		}
	}
}

// parkedBuffer is what an ordinary-path session waits with: enough for a usual request, small beside tls.Conn.
const parkedBuffer = 512

func (c *Conn) serveOrdinary(h Handler) error {
	small := make([]byte, parkedBuffer)
	filled := false
	for {
		var n int
		var err error
		buf := small
		if filled { // a long request or a COPY: read on into the big buffer
			buf = h.Buffer()
			n, err = c.nc.Read(buf)
		} else {
			h.Park()
			if n, err = c.nc.Read(small); n > 0 {
				if room := h.Buffer(); len(room) >= n {
					copy(room, small[:n])
				} else {
					return c.feed(h, small[:n], err)
				}
			}
		}
		if n > 0 {
			if err := h.Received(n); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		filled = n == len(buf)
	}
}

// feed hands b over in pieces when the handler's buffer has less room than that, then goes on serving.
func (c *Conn) feed(h Handler, b []byte, readErr error) error {
	for len(b) > 0 {
		n := copy(h.Buffer(), b)
		if err := h.Received(n); err != nil {
			return err
		}
		b = b[n:]
	}
	if readErr != nil {
		return readErr
	}
	return c.serveOrdinary(h)
}

// Exchange writes out and then calls on with each chunk that arrives (read into buf) until on reports done or fails.
// While the peer does not take the whole request, its answers are read in between, so that neither side can block the
// other for ever. out must not overlap buf. A read that filled buf calls more, if it is not nil, for a larger buffer to go
// on with. io.ErrUnexpectedEOF when the peer closed.
func (c *Conn) Exchange(out, buf []byte, more func() []byte, on func(chunk []byte) (done bool, err error)) error {
	if c.raw == nil {
		return c.exchangeOrdinary(out, buf, on)
	}
	if c.exchange == nil {
		c.exchange = &exchangeState{fn: c.onExchange}
	}
	x := c.exchange
	*x = exchangeState{out: out, buf: buf, more: more, on: on, unsent: len(out) > 0, fn: x.fn}
	c.err = nil
	for {
		err := c.raw.Read(x.fn)
		if c.err != nil {
			err = c.err
		}
		if err != nil || !x.partial {
			*x = exchangeState{fn: x.fn}
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		done, err := c.pump(x)
		if err != nil || done {
			*x = exchangeState{fn: x.fn}
			return err
		}
		x.partial = false // written whole: the next round reads first
	}
}

func (c *Conn) onExchange(fd uintptr) bool {
	over := c.exchangeOn(fd)
	if c.exchange.bulk.on {
		c.exchange.bulk.end(fd)
	}
	return over
}

func (c *Conn) exchangeOn(fd uintptr) bool {
	x := c.exchange
	if x.unsent {
		x.unsent = false
		n, errno := sysWrite(fd, x.out)
		if errno != 0 && errno != syscall.EAGAIN && errno != syscall.EINTR {
			c.err = socketError("write", errno)
			return true
		}
		if x.out = x.out[max(n, 0):]; len(x.out) > 0 {
			x.partial = true
			return true
		}
		return false // the answer makes a new edge: nothing to read yet
	}
	for {
		n, errno := sysRead(fd, x.buf)
		switch {
		case errno == syscall.EAGAIN && x.bulk.on: // what has come since, if little, made no edge
			x.bulk.end(fd)
			continue
		case errno == syscall.EAGAIN:
			return false
		case errno == syscall.EINTR:
			continue
		case errno != 0:
			c.err = socketError("read", errno)
			return true
		case n == 0:
			c.err = io.EOF
			return true
		}
		done, err := x.on(x.buf[:n])
		if err != nil {
			c.err = err
			return true
		}
		if done {
			return true
		}
		if n < len(x.buf) && (c.interrupted.Load() || !x.bulk.ahead(fd, n, len(x.buf))) {
			return false
		}
		if n == len(x.buf) && x.more != nil {
			x.buf, x.more = x.more(), nil
		}
	}
}

// pumpInterval is how long a blocked request waits for room before the peer's answers are looked at again.
const pumpInterval = 20 * time.Millisecond

// pump finishes a request that the kernel took only in part, relaying answers meanwhile.
func (c *Conn) pump(x *exchangeState) (done bool, err error) {
	defer func() { _ = c.nc.SetWriteDeadline(time.Time{}) }()
	for len(x.out) > 0 {
		_ = c.nc.SetWriteDeadline(time.Now().Add(pumpInterval))
		n, err := c.nc.Write(x.out)
		x.out = x.out[n:]
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return false, err
		}
		for {
			n, err := c.TryRead(x.buf)
			if err != nil {
				return false, err
			}
			if n == 0 {
				break
			}
			if done, err = x.on(x.buf[:n]); err != nil {
				return false, err
			}
		}
	}
	return done, nil
}

// Send writes all of out, and calls on with what the peer sends meanwhile, without waiting for more: the way to feed a
// COPY. done is what on last reported.
func (c *Conn) Send(out, buf []byte, on func(chunk []byte) (done bool, err error)) (done bool, err error) {
	if c.raw != nil {
		return c.pump(&exchangeState{out: out, buf: buf, on: on})
	}
	written := make(chan error, 1)
	go func() { // joined below; see exchangeOrdinary
		_, err := c.nc.Write(out)
		written <- err
	}()
	for {
		n, rerr := c.TryRead(buf)
		if rerr == nil && n > 0 {
			done, rerr = on(buf[:n])
		}
		if rerr != nil {
			c.Interrupt()
			<-written
			return done, rerr
		}
		select {
		case err := <-written:
			return done, err
		default:
		}
	}
}

// inlineRequest is the largest request that the ordinary path writes before it reads: a server that waits for a request
// takes that much into its socket buffer.
const inlineRequest = 16 << 10

func (c *Conn) exchangeOrdinary(out, buf []byte, on func([]byte) (bool, error)) error {
	if len(out) <= inlineRequest {
		if len(out) > 0 {
			if _, err := c.nc.Write(out); err != nil {
				return err
			}
		}
		return c.readOrdinary(buf, on)
	}
	written := make(chan error, 1)
	go func() { // joined below; a write deadline would break a TLS session, so the write has a goroutine of its own
		_, err := c.nc.Write(out)
		if err != nil {
			c.Interrupt()
		}
		written <- err
	}()
	err := c.readOrdinary(buf, on)
	if err != nil {
		c.Interrupt()
	}
	if werr := <-written; werr != nil && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)) {
		err = werr
	}
	return err
}

func (c *Conn) readOrdinary(buf []byte, on func([]byte) (bool, error)) error {
	for {
		n, err := c.nc.Read(buf)
		if n > 0 {
			if done, err := on(buf[:n]); err != nil || done {
				return err
			}
		}
		if err == io.EOF {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
}

// TryRead reads what is there without waiting: 0, nil when nothing is.
func (c *Conn) TryRead(buf []byte) (n int, err error) {
	if c.raw == nil {
		_ = c.nc.SetReadDeadline(time.Now().Add(time.Millisecond))
		n, err = c.nc.Read(buf)
		_ = c.nc.SetReadDeadline(time.Time{})
		if c.interrupted.Load() { // meanwhile
			_ = c.nc.SetReadDeadline(longAgo)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		return n, err
	}
	rawErr := c.raw.Read(func(fd uintptr) bool {
		var errno syscall.Errno
		n, errno = sysRead(fd, buf)
		switch {
		case errno == syscall.EAGAIN || errno == syscall.EINTR:
			n = 0
		case errno != 0:
			err = socketError("read", errno)
		case n == 0:
			err = io.ErrUnexpectedEOF
		}
		return true
	})
	if err == nil {
		err = rawErr
	}
	return max(n, 0), err
}

// Write writes all of b, waiting for room until the write deadline.
func (c *Conn) Write(b []byte) (int, error) {
	if c.torn {
		return 0, io.ErrClosedPipe
	}
	if c.raw == nil {
		c.waits.Add(1)
		n, err := c.nc.Write(b)
		c.waits.Add(1)
		c.torn = err != nil && n > 0
		return n, err
	}
	c.out, c.outErr = b, nil
	var err error
	if !c.serving || c.interrupted.Load() || !c.onWritable(c.fd) {
		c.waits.Add(1)
		err = c.raw.Write(c.writeFn)
		c.waits.Add(1)
	}
	if c.outErr != nil {
		err = c.outErr
	}
	n := len(b) - len(c.out)
	c.out = nil
	c.torn = err != nil && n > 0
	return n, err
}

// Writing tells a write that does not get on from one that does, to those who ask now and then: the number is odd while a
// Write may be waiting for the peer, and another one after every piece that the peer has taken. It may be called from any
// goroutine.
func (c *Conn) Writing() uint64 { return c.waits.Load() }

func (c *Conn) onWritable(fd uintptr) bool {
	for len(c.out) > 0 {
		n, errno := sysWrite(fd, c.out)
		switch {
		case errno == syscall.EAGAIN:
			return false
		case errno == syscall.EINTR:
			continue
		case errno != 0:
			c.outErr = socketError("write", errno)
			return true
		}
		if c.out = c.out[n:]; len(c.out) > 0 {
			c.waits.Add(2)
		}
	}
	return true
}

// Alive reports whether the peer still holds the connection, without reading from it: false after its FIN or RST.
// Bytes that wait to be read count as alive, but not under TLS, where the last may be no more than its farewell.
func (c *Conn) Alive() bool {
	if c.socket() != c.nc && c.hungUp() {
		return false
	}
	n, err := c.peek()
	return n > 0 || err == syscall.EAGAIN || err == syscall.EINTR
}

// Readable reports whether bytes wait in the socket, or the peer has closed it.
func (c *Conn) Readable() bool {
	n, err := c.peek()
	return n > 0 || err == nil
}

// AwaitReadable waits until the peer has sent something, or has closed, without taking it; the read deadline ends the
// wait with an error.
func (c *Conn) AwaitReadable() error {
	s, ok := c.socket().(syscall.Conn)
	if !ok {
		return errors.ErrUnsupported
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return err != syscall.EAGAIN && err != syscall.EINTR
	})
}

// Unheard reports whether the peer had closed the connection before what was sent last came to it; to be asked once an
// exchange has ended with the peer's end. The kernel of the peer answers such bytes with an RST, which an end that had
// seen the FIN before keeps as EPIPE: had the peer read them, or died with them unread, there would be none, or another.
func (c *Conn) Unheard() (unheard bool) {
	s, ok := c.socket().(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}} // an error is always reported
		_, _ = unix.Poll(p, int(unheardWait.Milliseconds()))
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		unheard = err == nil && syscall.Errno(code) == syscall.EPIPE
	})
	return unheard
}

// unheardWait is how long the RST may be on its way: a round trip.
const unheardWait = 20 * time.Millisecond

// hungUp reports whether the peer has closed its side, whatever waits to be read.
func (c *Conn) hungUp() (up bool) {
	s, ok := c.socket().(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		up = err == nil && n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return up || err != nil
}

// peek looks for a byte without taking it.
func (c *Conn) peek() (n int, err error) {
	s, ok := c.socket().(syscall.Conn)
	if !ok {
		return 0, syscall.EAGAIN
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	if ctlErr != nil {
		err = ctlErr
	}
	return n, err
}

// socket is the connection under any TLS.
func (c *Conn) socket() net.Conn {
	if t, ok := c.nc.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return c.nc
}
