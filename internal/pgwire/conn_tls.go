package pgwire

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
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

// Write writes what the kernel takes at once itself; for the rest the connection waits.
func (t *tlsSocket) Write(b []byte) (written int, err error) {
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
	if t.waits != nil && n > 0 {
		t.waits.Add(2)
	}
	return written + n, err
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
