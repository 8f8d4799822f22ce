package pgwire

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"

	"neki/internal/pgerr"
)

// Protocol versions and request codes, the first word of a startup packet.
const (
	Protocol30 uint32 = 3 << 16
	Protocol32 uint32 = 3<<16 | 2

	requestCancel uint32 = 1234<<16 | 5678
	requestTLS    uint32 = 1234<<16 | 5679
	requestGSS    uint32 = 1234<<16 | 5680
)

const (
	maxStartupBody  = 10_000 // as MAX_STARTUP_PACKET_LENGTH of Postgres, without the length word
	maxCancelKey    = 256
	tlsRecordType   = 0x16 // a TLS handshake record: the client began TLS without asking
	alpnProtocol    = "postgresql"
	protocolOptions = "_pq_."
)

// Pair is a parameter: of a startup packet, or reported by a server.
type Pair struct{ Name, Value string }

// Kind says what a client that connected wants.
type Kind uint8

const (
	KindSession Kind = iota // a session: authenticate it
	KindCancel              // a cancel request: deliver it and close
)

// StartupConfig is what Accept needs to know of the server.
type StartupConfig struct {
	TLS  *tls.Config // nil: TLS is declined. Cloned for each connection; session tickets are off, as in Postgres
	Peer net.Addr    // where the client is, if a proxy said so; nil: where the connection comes from
}

// CancelKey is what a cancel request names.
type CancelKey struct {
	PID    uint32
	Secret []byte // 4 bytes under protocol 3.0, up to 256 under 3.2
}

// Startup is a client's opening, read and answered up to the point where authentication begins.
type Startup struct {
	Kind            Kind
	Conn            net.Conn // the connection to go on with: a *tls.Conn when TLS, else the one given to Accept
	Raw             net.Conn // the connection given to Accept, for deadlines, addresses and socket options
	Peer            net.Addr // where the client is
	TLS             bool
	Direct          bool   // TLS was begun without an SSLRequest
	ProtocolVersion uint32 // as negotiated: Protocol30 or Protocol32
	Params          []Pair // in the client's order, with user and database, without _pq_. options
	User            string
	Database        string     // the user's name when the client gave none
	Cancel          *CancelKey // set for KindCancel

	endpoint []byte // tls-server-end-point channel binding of our certificate; nil = none
	pending  []byte // what the client is still to be told, before AuthenticationOk
}

// Pending gives what Authenticate left to be sent to the client before AuthenticationOk. The caller sends both in one
// write.
func (s *Startup) Pending() []byte {
	b := s.pending
	s.pending = nil
	return b
}

// Param gives the value of a startup parameter; the last one counts, as in Postgres.
func (s *Startup) Param(name string) (string, bool) {
	for i := len(s.Params) - 1; i >= 0; i-- {
		if s.Params[i].Name == name {
			return s.Params[i].Value, true
		}
	}
	return "", false
}

// PeerState gives the TLS state, nil without TLS; client certificates are in it.
func (s *Startup) PeerState() *tls.ConnectionState {
	conn, ok := s.Conn.(*tls.Conn)
	if !ok {
		return nil
	}
	state := conn.ConnectionState()
	return &state
}

// CertificateName gives the common name of the client's certificate, if it has one that was verified: for the HBA method
// cert. ok is false without one, and for a name that is not plain text.
func (s *Startup) CertificateName() (name string, ok bool) {
	state := s.PeerState()
	if state == nil || len(state.VerifiedChains) == 0 {
		return "", false
	}
	name = state.PeerCertificates[0].Subject.CommonName
	return name, name != "" && !strings.Contains(name, "\x00")
}

// Refuse sends err to the client as FATAL. The caller closes the connection. ctx bounds the write: take a new one when
// the login's has run out.
func (s *Startup) Refuse(ctx context.Context, err error) error {
	release := bind(ctx, s.Raw)
	defer release()
	return writeFatal(s.Conn, s.Pending(), err)
}

// Accept reads what a client sends first and answers it: SSLRequest and GSSENCRequest, each at most once; direct TLS;
// a cancel request; or a startup packet, after which NegotiateProtocolVersion has been sent if it is due. The deadline
// of ctx bounds it. On failure the client has been told, where it can be, and the caller only closes conn. A client that
// leaves without a byte yields an error that is io.EOF.
func Accept(ctx context.Context, conn net.Conn, cfg StartupConfig) (*Startup, error) {
	release := bind(ctx, conn)
	defer release()
	a := &acceptor{cfg: cfg, s: Startup{Conn: conn, Raw: conn, Peer: cfg.Peer}}
	if cfg.Peer == nil {
		a.s.Peer = conn.RemoteAddr()
	}
	err := a.run(ctx)
	if err == nil {
		return &a.s, nil
	}
	if fatal := (*pgerr.Error)(nil); errors.As(err, &fatal) {
		writeFatal(a.s.Conn, nil, fatal) //nolint:errcheck // the first error is the one to report
	}
	return nil, err
}

// acceptor is the state of one Accept.
type acceptor struct {
	cfg      StartupConfig
	s        Startup
	tlsAsked bool
	gssAsked bool
}

func (a *acceptor) run(ctx context.Context) error {
	for first := true; ; first = false {
		body, err := a.packet(ctx, first)
		if err != nil {
			return err
		}
		if body == nil { // direct TLS was begun
			continue
		}
		done, err := a.handle(ctx, body)
		if done || err != nil {
			return err
		}
	}
}

// packet reads one startup packet and returns it without its length. nil means that the connection began with TLS,
// which is up now.
func (a *acceptor) packet(ctx context.Context, first bool) ([]byte, error) {
	var head [4]byte
	if n, err := io.ReadFull(a.s.Conn, head[:]); err != nil {
		if n == 0 && first && errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, readError(err)
	}
	if first && head[0] == tlsRecordType {
		return nil, a.directTLS(ctx, head)
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 8 || size-4 > maxStartupBody {
		return nil, pgerr.Fatal(pgerr.ProtocolViolation, "invalid length of startup packet")
	}
	body := make([]byte, size-4)
	if _, err := io.ReadFull(a.s.Conn, body); err != nil {
		return nil, readError(err)
	}
	return body, nil
}

// handle acts on a packet and reports whether it was the last one.
func (a *acceptor) handle(ctx context.Context, body []byte) (done bool, err error) {
	code, rest := binary.BigEndian.Uint32(body), body[4:]
	switch {
	case code == requestTLS && !a.tlsAsked && len(rest) == 0:
		a.tlsAsked = true
		return false, a.answerTLS(ctx)
	case code == requestGSS && !a.gssAsked && len(rest) == 0:
		a.gssAsked = true
		return false, a.decline("GSSAPI encryption")
	case code == requestCancel:
		return true, a.cancel(rest)
	}
	return true, a.session(code, rest)
}

func (a *acceptor) cancel(rest []byte) error {
	if len(rest) < 8 || len(rest)-4 > maxCancelKey {
		return pgerr.Fatal(pgerr.ProtocolViolation, "invalid length of query cancel packet")
	}
	a.s.Kind = KindCancel
	a.s.Cancel = &CancelKey{PID: binary.BigEndian.Uint32(rest), Secret: rest[4:]}
	return nil
}

// session takes the parameters of a startup packet and settles the protocol version.
func (a *acceptor) session(code uint32, rest []byte) error {
	if code>>16 != 3 {
		return pgerr.Fatal(pgerr.FeatureNotSupported,
			"unsupported frontend protocol %d.%d: server supports 3.0 to 3.2", code>>16, code&0xffff)
	}
	params, unknown, err := parseParams(rest)
	if err != nil {
		return err
	}
	a.s.Params = params
	a.s.User, _ = a.s.Param("user")
	a.s.Database, _ = a.s.Param("database")
	a.s.ProtocolVersion = settle(code)
	if a.s.User == "" {
		return pgerr.Fatal(pgerr.InvalidAuthorizationSpec, "no PostgreSQL user name specified in startup packet")
	}
	if a.s.Database == "" {
		a.s.Database = a.s.User
	}
	a.s.User, a.s.Database = identifier(a.s.User), identifier(a.s.Database)
	if a.s.ProtocolVersion == code && len(unknown) == 0 {
		return nil
	}
	return sendNegotiate(a.s.Conn, a.s.ProtocolVersion, unknown)
}

// maxIdentifier is the length of the longest name, Postgres's NAMEDATALEN - 1.
const maxIdentifier = 63

// identifier cuts a name to the length that names have, at a byte, as Postgres does with those of a startup packet.
func identifier(name string) string { return name[:min(len(name), maxIdentifier)] }

// settle gives the version to speak. 3.1 was never defined, so who asks for it gets 3.0.
func settle(code uint32) uint32 {
	if code >= Protocol32 {
		return Protocol32
	}
	return Protocol30
}
