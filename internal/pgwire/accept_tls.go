package pgwire

import (
	"context"
	"crypto/tls"
	"net"
	"syscall"

	"neki/internal/pgerr"
)

// answerTLS answers an SSLRequest, and starts TLS when it is configured. On a Unix socket it is declined, as Postgres
// does.
func (a *acceptor) answerTLS(ctx context.Context) error {
	if !a.canTLS() {
		return a.decline("SSL")
	}
	if err := a.nothingBuffered("SSL"); err != nil {
		return err
	}
	if err := writeAll(a.s.Conn, []byte{'S'}); err != nil {
		return err
	}
	return a.startTLS(ctx, nil)
}

func (a *acceptor) canTLS() bool {
	_, unix := a.s.Raw.(*net.UnixConn)
	return a.cfg.TLS != nil && !a.s.TLS && !unix
}

// decline answers a request for encryption with N. Bytes behind the request were sent without waiting for the answer:
// Postgres refuses them, whatever the answer.
func (a *acceptor) decline(what string) error {
	if err := a.nothingBuffered(what); err != nil {
		return err
	}
	return writeAll(a.s.Conn, []byte{'N'})
}

// nothingBuffered refuses a client that has sent bytes behind its encryption request: someone in between could have put
// them there (CVE-2021-23214). We never read them ourselves, so what comes after this look is taken for TLS and fails.
func (a *acceptor) nothingBuffered(what string) error {
	raw, ok := a.s.Conn.(syscall.Conn)
	if !ok {
		return nil
	}
	rc, err := raw.SyscallConn()
	if err != nil {
		return readError(err)
	}
	var n int
	err = rc.Control(func(fd uintptr) {
		var one [1]byte
		n, _, _ = syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	if err != nil {
		return readError(err)
	}
	if n > 0 {
		return pgerr.Fatal(pgerr.ProtocolViolation, "received unencrypted data after %s request", what).
			WithDetail("This could be either a client-software bug or evidence of an attempted man-in-the-middle attack.")
	}
	return nil
}

// directTLS starts TLS with a client that did not ask. head is what was read of its first record.
func (a *acceptor) directTLS(ctx context.Context, head [4]byte) error {
	if !a.canTLS() {
		return pgerr.Fatal(pgerr.ProtocolViolation, "received direct SSL connection request, which is not supported here")
	}
	a.s.Direct, a.tlsAsked, a.gssAsked = true, true, true
	if err := a.startTLS(ctx, head[:]); err != nil {
		return err
	}
	if a.s.PeerState().NegotiatedProtocol != alpnProtocol {
		return pgerr.Fatal(pgerr.ProtocolViolation,
			"received direct SSL connection request without ALPN protocol negotiation extension")
	}
	return nil
}

// startTLS makes the handshake; prefix is what was read of it already.
func (a *acceptor) startTLS(ctx context.Context, prefix []byte) error {
	served := &servedCertificate{}
	upgraded := tls.Server(newTLSSocket(a.s.Conn, prefix), served.watch(a.cfg.TLS))
	if err := upgraded.HandshakeContext(ctx); err != nil {
		return &handshakeError{err}
	}
	a.s.Conn, a.s.TLS = upgraded, true
	a.gssAsked = true // there is no GSSAPI inside TLS
	a.s.endpoint = served.endpoint()
	return nil
}

// handshakeError is a failed TLS handshake: nothing more can be said to the client.
type handshakeError struct{ err error }

func (e *handshakeError) Error() string { return "could not accept SSL connection: " + e.err.Error() }
func (e *handshakeError) Unwrap() error { return e.err }

// SQLState makes it 08P01, as Postgres logs it.
func (e *handshakeError) SQLState() string { return pgerr.ProtocolViolation }
