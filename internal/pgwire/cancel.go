package pgwire

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"neki/internal/pgerr"
)

// Dial opens a connection; net.Dialer.DialContext is one.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// maxCancelAnswer bounds what is read while the server closes; it has nothing to say.
const maxCancelAnswer = 8 << 10

// SendCancel asks the server at addr (host:port, or the path of a Unix socket) to cancel what the session pid does, and
// returns when the server has closed the connection: only then the signal was sent and can't hit a later statement. A
// nil error says that the request was delivered, not that anything was cancelled: the server never tells.
func SendCancel(ctx context.Context, dial Dial, addr string, pid uint32, secret []byte, cfg *tls.Config) error {
	if len(secret) < 4 || len(secret) > maxCancelKey {
		return pgerr.New(pgerr.ProtocolViolation, "invalid length %d of a cancel key", len(secret))
	}
	network := "tcp"
	if strings.HasPrefix(addr, "/") || strings.HasPrefix(addr, "@") {
		network = "unix"
	}
	conn, err := dial(ctx, network, addr)
	if err != nil {
		return pgerr.New(pgerr.ConnectionFailure, "could not connect to send a cancel request: %w", err)
	}
	defer conn.Close() //nolint:errcheck // nothing is lost: the server has closed, or the request failed
	release := bind(ctx, conn)
	defer release()
	if cfg != nil {
		if conn, err = requestTLSFrom(ctx, conn, cfg); err != nil {
			return err
		}
	}
	if err := writeAll(conn, cancelPacket(pid, secret)); err != nil {
		return err
	}
	return awaitClose(conn)
}

func cancelPacket(pid uint32, secret []byte) []byte {
	packet := binary.BigEndian.AppendUint32(nil, uint32(12+len(secret)))
	packet = binary.BigEndian.AppendUint32(packet, requestCancel)
	packet = binary.BigEndian.AppendUint32(packet, pid)
	return append(packet, secret...)
}

// awaitClose reads until the server closes. A reset is a close too.
func awaitClose(conn net.Conn) error {
	n, err := io.Copy(io.Discard, io.LimitReader(conn, maxCancelAnswer))
	switch {
	case n >= maxCancelAnswer:
		return pgerr.New(pgerr.ProtocolViolation, "server answers a cancel request at length")
	case err == nil, errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return nil
	}
	return readError(err)
}
