package pgwire

import (
	"context"
	"crypto/tls"
	"net"

	"neki/internal/pgerr"
)

// BackendLogin says how to log in to a backend.
type BackendLogin struct {
	User, Database string
	Params         []Pair      // further startup parameters
	Keys           *Keys       // log in with a client's keys ...
	Password       string      // ... or with a password, when Keys is nil; "" = none
	TLS            *tls.Config // nil: plain. Else TLS is required
	AllowCleartext bool        // send Password in clear if the server asks so and the connection is TLS or a Unix socket
	MaxIterations  int         // refuse a server that asks for more rounds; 0 = 1 000 000
}

// Greeting is what a backend said up to its first ReadyForQuery.
type Greeting struct {
	Conn     net.Conn // the connection to go on with: a *tls.Conn when TLS, else the one given to Connect
	TLS      bool
	Params   []Pair // ParameterStatus, in order, the last value of each
	PID      uint32
	Secret   []byte
	TxStatus byte           // of ReadyForQuery: 'I'
	Notices  []*pgerr.Error // the first few
}

// Connect logs in on conn, which stays the caller's to close, on failure too. The server's own error comes back with
// its SQLSTATE. It reads nothing past ReadyForQuery.
func Connect(ctx context.Context, conn net.Conn, login BackendLogin) (*Greeting, error) {
	return nil, pgerr.Fatal(pgerr.InternalError, "not built yet")
}
