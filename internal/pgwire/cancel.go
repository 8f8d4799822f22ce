package pgwire

import (
	"context"
	"crypto/tls"
	"net"

	"neki/internal/pgerr"
)

// Dial opens a connection; net.Dialer.DialContext is one.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// SendCancel asks the server at addr (host:port, or the path of a Unix socket) to cancel what the session pid does, and
// returns when the server has closed the connection: only then the signal was sent and can't hit a later statement.
func SendCancel(ctx context.Context, dial Dial, addr string, pid uint32, secret []byte, cfg *tls.Config) error {
	return pgerr.New(pgerr.InternalError, "not built yet")
}
