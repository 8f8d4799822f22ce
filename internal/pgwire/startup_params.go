package pgwire

import (
	"bytes"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"

	"neki/internal/pgerr"
)

// parseParams splits name and value strings, closed by an empty name that must be the packet's last byte. Options of
// the protocol itself come back as unknown: we know none.
func parseParams(rest []byte) (params []Pair, unknown []string, err error) {
	for {
		name, after, ok := cutString(rest)
		if !ok {
			return nil, nil, errLayout()
		}
		if name == "" {
			if len(after) != 0 {
				return nil, nil, errLayout()
			}
			return params, unknown, nil
		}
		value, after, ok := cutString(after)
		if !ok {
			return nil, nil, errLayout()
		}
		rest = after
		if strings.HasPrefix(name, protocolOptions) {
			unknown = append(unknown, name)
			continue
		}
		params = append(params, Pair{Name: name, Value: value})
	}
}

func errLayout() error {
	return pgerr.Fatal(pgerr.ProtocolViolation,
		"invalid startup packet layout: expected terminator as last byte")
}

// cutString takes a NUL-terminated string off b.
func cutString(b []byte) (s string, rest []byte, ok bool) {
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return "", nil, false
	}
	return string(b[:i]), b[i+1:], true
}

// sendNegotiate names the version we speak (in full, as Postgres does, not only its minor part) and the options that we
// don't know.
func sendNegotiate(conn net.Conn, version uint32, unknown []string) error {
	m := pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: version, UnrecognizedOptions: unknown}
	return writeMessages(conn, &m)
}
