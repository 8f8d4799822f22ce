package pgwire

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// tlsSocket is what a tls.Conn of a client reads and writes. While a session is served it takes the bytes that are there
// and never waits: Serve waits in its place, with the same care for the poller's edges as without TLS.
type tlsSocket struct {
	net.Conn
	prefix []byte // was read to look at it, and comes first
	raw    syscall.RawConn

	// Of the running callback of Serve.
	fd      uintptr
	serving bool
	drained bool // the last read took all there was

	broken bool // a record was not written whole; tls.Conn writes one record at a time

	waits *atomic.Uint64 // of the Conn
}

// newTLSSocket wraps conn, of which prefix was read already.
func newTLSSocket(conn net.Conn, prefix []byte) *tlsSocket {
	t := &tlsSocket{Conn: conn, prefix: prefix}
	if s, ok := conn.(syscall.Conn); ok {
		t.raw, _ = s.SyscallConn() // fails only on a closed connection
	}
	return t
}

// SyscallConn gives the descriptor.
func (t *tlsSocket) SyscallConn() (syscall.RawConn, error) {
	if t.raw == nil {
		return nil, syscall.EINVAL
	}
	return t.raw, nil
}

func (t *tlsSocket) Read(b []byte) (int, error) {
	if len(t.prefix) > 0 {
		n := copy(b, t.prefix)
		t.prefix = t.prefix[n:]
		return n, nil
	}
	if !t.serving {
		return t.Conn.Read(b)
	}
	for !t.drained {
		n, errno := sysRead(t.fd, b)
		switch {
		case errno == syscall.EAGAIN:
			t.drained = true
			continue
		case errno == syscall.EINTR:
			continue
		case errno != 0:
			return 0, socketError("read", errno)
		case n == 0:
			return 0, io.EOF
		}
		t.drained = n < len(b)
		return n, nil
	}
	return 0, errNothingThere
}

// Write writes what the kernel takes at once itself; for the rest the connection waits. An interrupt ends the wait, not
// what needs none: tls.Conn can write nothing more after a record that it could not write. Nor is anything written after
// such a record, not even the farewell of Close, which its number would make a forgery to the client.
func (t *tlsSocket) Write(b []byte) (written int, err error) {
	if t.broken {
		return 0, io.ErrClosedPipe
	}
	defer func() { t.broken = err != nil }()
	for t.serving && written < len(b) {
		n, errno := sysWrite(t.fd, b[written:])
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 { // EAGAIN, or what Conn.Write finds again
			break
		}
		written += n
	}
	if written == len(b) && t.serving {
		return written, nil
	}
	n, err := t.Conn.Write(b[written:])
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		n, err = t.writeNow(b[written:], err)
	}
	if t.waits != nil && n > 0 {
		t.waits.Add(2)
	}
	return written + n, err
}

// writeNow writes what the kernel takes at once, whatever the deadline; late is what to fail with when it does not take all.
func (t *tlsSocket) writeNow(b []byte, late error) (n int, err error) {
	if t.raw == nil {
		return 0, late
	}
	ctlErr := t.raw.Control(func(fd uintptr) {
		n, err = unix.SendmsgN(int(fd), b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	n = max(n, 0)
	if ctlErr == nil && err == nil && n == len(b) {
		return n, nil
	}
	return n, late
}

// errNothingThere ends a read of tls.Conn that would have to wait. It is temporary, so that tls.Conn keeps what it has of
// a record and goes on with the next read.
var errNothingThere net.Error = nothingThere{}

type nothingThere struct{}

func (nothingThere) Error() string   { return "nothing to read yet" }
func (nothingThere) Timeout() bool   { return true }
func (nothingThere) Temporary() bool { return true }

// Is lets those who read with a deadline in the past take it for what they would have got.
func (nothingThere) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// serveTLS is Serve for a client under TLS.
func (c *Conn) serveTLS(h Handler) error {
	c.handler, c.err = h, nil
	err := c.tls.raw.Read(c.onReadableTLS)
	c.handler, c.tls.serving = nil, false
	if c.err != nil {
		return c.err
	}
	return err
}

func (c *Conn) onReadableTLS(fd uintptr) bool {
	c.tls.fd, c.tls.serving, c.tls.drained = fd, true, false
	for {
		n, err := c.nc.Read(c.handler.Buffer())
		if n > 0 {
			err = c.handler.Received(n)
		}
		if err == error(errNothingThere) { //nolint:errorlint // tls.Conn gives it back as it is
			c.handler.Park()
			return false
		}
		if err != nil {
			c.err = err
			return true
		}
	}
}
