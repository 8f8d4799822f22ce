package pgwire

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"neki/internal/pgerr"
)

// longAgo is a deadline that has passed: setting it ends a wait on a connection.
var longAgo = time.Unix(1, 0)

// bind makes reads and writes on conn end with ctx: by its deadline, or at once when it is cancelled. release undoes
// it and leaves conn without a deadline.
func bind(ctx context.Context, conn net.Conn) (release func()) {
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline) //nolint:errcheck // fails only on a closed connection, which the next call shows
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(fired)
		conn.SetDeadline(longAgo) //nolint:errcheck // as above
	})
	return func() {
		if !stop() {
			<-fired
		}
		conn.SetDeadline(time.Time{}) //nolint:errcheck // as above
	}
}

// readMessage reads one message, type byte first, and not a byte more. A length under 4 or a body over limit is a
// violation, found before memory is taken.
func readMessage(conn net.Conn, limit uint32) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return 0, nil, readError(err)
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size < 4 || size-4 > limit {
		return 0, nil, pgerr.Fatal(pgerr.ProtocolViolation, "invalid length %d of a message of type %q", size, head[0])
	}
	body = make([]byte, size-4)
	if _, err := io.ReadFull(conn, body); err != nil {
		return 0, nil, readError(err)
	}
	return head[0], body, nil
}

// readError gives a failed read its SQLSTATE: a peer that left, or a wait that ran out.
func readError(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return pgerr.Fatal(pgerr.ConnectionFailure, "connection was closed during startup: %w", err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return pgerr.Fatal(pgerr.ConnectionFailure, "timeout during startup: %w", err)
	}
	return pgerr.Fatal(pgerr.ConnectionFailure, "could not receive data during startup: %w", err)
}

func writeError(err error) error {
	return pgerr.Fatal(pgerr.ConnectionFailure, "could not send data during startup: %w", err)
}

// writeMessages encodes messages into one write.
func writeMessages(conn net.Conn, messages ...pgproto3.Message) error {
	return writeBehind(conn, nil, messages...)
}

// writeBehind encodes messages behind buf, into one write.
func writeBehind(conn net.Conn, buf []byte, messages ...pgproto3.Message) error {
	for _, m := range messages {
		var err error
		if buf, err = m.Encode(buf); err != nil {
			return pgerr.Fatal(pgerr.InternalError, "could not encode %T: %w", m, err)
		}
	}
	return writeAll(conn, buf)
}

func writeAll(conn net.Conn, buf []byte) error {
	if _, err := conn.Write(buf); err != nil {
		return writeError(err)
	}
	return nil
}

// writeFatal sends err as the FATAL that ends a startup, behind what is still to be said.
func writeFatal(conn net.Conn, pending []byte, err error) error {
	e := pgerr.From(err)
	if e.Severity != pgerr.SeverityFatal {
		e = e.WithSeverity(pgerr.SeverityFatal)
	}
	return writeBehind(conn, pending, e.Response())
}
