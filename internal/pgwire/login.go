package pgwire

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"

	"neki/internal/pgerr"
)

// What a backend may send before its first ReadyForQuery.
const (
	maxAuthBody     = 64 << 10
	maxGreetingBody = 1 << 20
	maxGreeting     = 8 << 20 // all messages together
	maxNotices      = 16      // kept; the others are dropped
)

// BackendLogin says how to log in to a backend.
type BackendLogin struct {
	User, Database string
	Params         []Pair      // further startup parameters
	Keys           *Keys       // log in with a client's keys ...
	Password       string      // ... or with a password, when Keys is nil; "" = none
	MD5            string      // an md5 secret, as stored, for a server that asks by md5; "" = none
	TLS            *tls.Config // nil: plain. Else TLS is required
	AllowCleartext bool        // send Password in clear if the server asks so and the connection is TLS or a Unix socket
	MaxIterations  int         // refuse a server that asks for more SCRAM rounds; 0 = 1 000 000
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
	release := bind(ctx, conn)
	defer release()
	l := &loginState{login: login, greeting: Greeting{Conn: conn}}
	if login.TLS != nil {
		upgraded, err := requestTLSFrom(ctx, conn, login.TLS)
		if err != nil {
			return nil, err
		}
		l.greeting.Conn, l.greeting.TLS = upgraded, true
	}
	if err := l.sendStartup(); err != nil {
		return nil, err
	}
	if err := l.run(); err != nil {
		return nil, err
	}
	return &l.greeting, nil
}

// requestTLSFrom asks a server for TLS and starts it. It reads the one byte of the answer; what a man in the middle put
// behind that is taken for TLS and fails (CVE-2021-23222).
func requestTLSFrom(ctx context.Context, conn net.Conn, cfg *tls.Config) (*tls.Conn, error) {
	request := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 8}, requestTLS)
	if err := writeAll(conn, request); err != nil {
		return nil, err
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return nil, readError(err)
	}
	switch answer[0] {
	case 'S':
	case 'N':
		return nil, pgerr.Fatal(pgerr.SQLClientUnableToConnect, "server does not support SSL, but SSL was required")
	default: // an error in clear could be anybody's (CVE-2024-10977): its text is not looked at
		return nil, pgerr.Fatal(pgerr.SQLClientUnableToConnect, "server refused SSL negotiation")
	}
	cfg = cfg.Clone()
	cfg.NextProtos = []string{alpnProtocol}
	upgraded := tls.Client(conn, cfg)
	if err := upgraded.HandshakeContext(ctx); err != nil {
		return nil, pgerr.Fatal(pgerr.SQLClientUnableToConnect, "SSL negotiation with the server failed: %w", err)
	}
	return upgraded, nil
}

// loginState is the state of one Connect.
type loginState struct {
	login         BackendLogin
	greeting      Greeting
	scram         *scramClient
	challenged    bool // SASL was begun
	answered      bool // the challenge was answered
	verified      bool // the server's signature was right
	authenticated bool
	received      int
}

func (l *loginState) sendStartup() error {
	pairs := append([]Pair{{"user", l.login.User}, {"database", l.login.Database}}, l.login.Params...)
	body := binary.BigEndian.AppendUint32(nil, Protocol30)
	for _, p := range pairs {
		if strings.Contains(p.Name+p.Value, "\x00") || p.Name == "" {
			return pgerr.Fatal(pgerr.InvalidParameterValue, "invalid startup parameter %q", p.Name)
		}
		body = append(append(body, p.Name...), 0)
		body = append(append(body, p.Value...), 0)
	}
	body = append(body, 0)
	if len(body) > maxStartupBody {
		return pgerr.Fatal(pgerr.ProgramLimitExceeded, "startup parameters take more than %d bytes", maxStartupBody)
	}
	packet := binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))
	return writeAll(l.greeting.Conn, append(packet, body...))
}

func (l *loginState) run() error {
	for l.greeting.TxStatus == 0 {
		limit := uint32(maxAuthBody)
		if l.authenticated {
			limit = maxGreetingBody
		}
		kind, body, err := readMessage(l.greeting.Conn, limit)
		if err != nil {
			return err
		}
		if l.received += len(body); l.received > maxGreeting {
			return pgerr.Fatal(pgerr.ProtocolViolation, "server sent more than %d bytes before it was ready", maxGreeting)
		}
		if err := l.message(kind, body); err != nil {
			return err
		}
	}
	return nil
}

func (l *loginState) message(kind byte, body []byte) error {
	switch kind {
	case 'E':
		return decodeServerError(body)
	case 'N':
		return l.notice(body)
	case 'R':
		if !l.authenticated {
			return l.authentication(body)
		}
	case 'S', 'K', 'Z':
		if l.authenticated {
			return l.afterAuthentication(kind, body)
		}
	}
	return pgerr.Fatal(pgerr.ProtocolViolation, "unexpected message of type %q from server during startup", kind)
}

func decodeServerError(body []byte) error {
	var m pgproto3.ErrorResponse
	if err := m.Decode(body); err != nil {
		return pgerr.Fatal(pgerr.ProtocolViolation, "invalid ErrorResponse from server: %w", err)
	}
	return errorFromServer(&m)
}

// errorFromServer keeps what a server sent, but for an SQLSTATE that is none.
func errorFromServer(m *pgproto3.ErrorResponse) *pgerr.Error {
	e := pgerr.FromResponse(m)
	if len(e.Code) != 5 || strings.Trim(e.Code, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		e.Code = pgerr.InternalError
	}
	return e
}

func (l *loginState) notice(body []byte) error {
	var m pgproto3.NoticeResponse
	if err := m.Decode(body); err != nil {
		return pgerr.Fatal(pgerr.ProtocolViolation, "invalid NoticeResponse from server: %w", err)
	}
	if len(l.greeting.Notices) < maxNotices {
		l.greeting.Notices = append(l.greeting.Notices, errorFromServer((*pgproto3.ErrorResponse)(&m)))
	}
	return nil
}

func (l *loginState) afterAuthentication(kind byte, body []byte) error {
	switch kind {
	case 'S':
		name, rest, ok := cutString(body)
		value, rest, ok2 := cutString(rest)
		if ok && ok2 && len(rest) == 0 {
			l.setParam(Pair{name, value})
			return nil
		}
	case 'K':
		if len(body) >= 8 && len(body)-4 <= maxCancelKey {
			l.greeting.PID, l.greeting.Secret = binary.BigEndian.Uint32(body), body[4:]
			return nil
		}
	case 'Z':
		if len(body) == 1 && strings.IndexByte("ITE", body[0]) >= 0 {
			l.greeting.TxStatus = body[0]
			return nil
		}
	}
	return pgerr.Fatal(pgerr.ProtocolViolation, "invalid message of type %q from server during startup", kind)
}

func (l *loginState) setParam(p Pair) {
	i := slices.IndexFunc(l.greeting.Params, func(q Pair) bool { return q.Name == p.Name })
	if i < 0 {
		l.greeting.Params = append(l.greeting.Params, p)
		return
	}
	l.greeting.Params[i] = p
}
