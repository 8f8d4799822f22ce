package pgwire

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgproto3"

	"neki/internal/certs"
	"neki/internal/pgerr"
)

// loopback gives both ends of a TCP connection.
func loopback(tb testing.TB) (server, client *net.TCPConn) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	dialed, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { dialed.Close(); accepted.Close() })
	dialed.SetDeadline(time.Now().Add(10 * time.Second))
	return accepted.(*net.TCPConn), dialed.(*net.TCPConn)
}

// opened is what came of one Accept.
type opened struct {
	startup *Startup
	err     error
	sent    []byte // all that the client saw
}

// open runs Accept against a client's acts. The client reads to the end afterwards.
func open(t *testing.T, cfg StartupConfig, client func(net.Conn) net.Conn) opened {
	t.Helper()
	server, conn := loopback(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	result := make(chan opened, 1)
	go func() {
		s, err := Accept(ctx, server, cfg)
		result <- opened{startup: s, err: err}
		if s != nil {
			s.Conn.Close()
		}
		server.CloseWrite()
	}()
	reader := client(conn)
	if reader == nil {
		reader = conn
	}
	sent, err := io.ReadAll(reader)
	if err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("client's read: %v", err)
	}
	o := <-result
	o.sent = sent
	return o
}

// write is a client that sends these bytes in one write.
func write(parts ...[]byte) func(net.Conn) net.Conn {
	return func(c net.Conn) net.Conn {
		c.Write(bytes.Join(parts, nil))
		return nil
	}
}

// packet makes a startup packet: length, code, body.
func packet(code uint32, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	return append(binary.BigEndian.AppendUint32(b, code), body...)
}

// params makes the body of a startup packet for user u.
func params(pairs ...string) string {
	return strings.Join(append([]string{"user", "u"}, pairs...), "\x00") + "\x00\x00"
}

var (
	tlsRequest = packet(requestTLS, "")
	gssRequest = packet(requestGSS, "")
	queryBytes = []byte("Q\x00\x00\x00\x0dselect 1\x00")
)

// fatalCode reads the SQLSTATE of the FATAL that is all, or the end, of what a client saw.
func fatalCode(t *testing.T, sent []byte) string {
	t.Helper()
	if i := bytes.IndexByte(sent, 'E'); i >= 0 && len(sent) > i+5 {
		var m pgproto3.ErrorResponse
		if m.Decode(sent[i+5:]) == nil && m.Severity == "FATAL" {
			return m.Code
		}
	}
	return ""
}

func TestAcceptReadsStartup(t *testing.T) {
	long := strings.Repeat("x", 9000)
	for name, c := range map[string]struct {
		packet []byte
		want   Startup
	}{
		"B1 9000 bytes": {
			packet(Protocol30, params("application_name", long)),
			Startup{User: "u", Database: "u", Params: []Pair{{"user", "u"}, {"application_name", long}}},
		},
		"order and doubles kept, last counts": {
			packet(Protocol30, params("b", "1", "a", "", "b", "2", "database", "d")),
			Startup{User: "u", Database: "d", Params: []Pair{
				{"user", "u"}, {"b", "1"}, {"a", ""}, {"b", "2"}, {"database", "d"},
			}},
		},
		"empty database": {
			packet(Protocol30, params("database", "")),
			Startup{User: "u", Database: "u", Params: []Pair{{"user", "u"}, {"database", ""}}},
		},
		"3.2": {
			packet(Protocol32, params()),
			Startup{User: "u", Database: "u", ProtocolVersion: Protocol32, Params: []Pair{{"user", "u"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.want.ProtocolVersion == 0 {
				c.want.ProtocolVersion = Protocol30
			}
			for _, step := range []int{len(c.packet), 1} {
				o := open(t, StartupConfig{}, func(conn net.Conn) net.Conn {
					for b := c.packet; len(b) > 0; b = b[min(step, len(b)):] {
						conn.Write(b[:min(step, len(b))])
					}
					return nil
				})
				if o.err != nil {
					t.Fatalf("%d bytes a write: %v", step, o.err)
				}
				got := Startup{
					Params: o.startup.Params, User: o.startup.User, Database: o.startup.Database,
					ProtocolVersion: o.startup.ProtocolVersion,
				}
				if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(Startup{})); diff != "" {
					t.Errorf("%d bytes a write: %s", step, diff)
				}
				if len(o.sent) != 0 {
					t.Errorf("the client was sent %q", o.sent)
				}
			}
		})
	}
}

// TestStartupCutsNames: as Postgres does, in the startup packet alone.
func TestStartupCutsNames(t *testing.T) {
	long := strings.Repeat("n", 62) + "üx"
	o := open(t, StartupConfig{}, write(packet(Protocol30, "user\x00"+long+"\x00\x00")))
	if o.err != nil {
		t.Fatal(o.err)
	}
	if want := long[:63]; o.startup.User != want || o.startup.Database != want {
		t.Errorf("user %q, database %q", o.startup.User, o.startup.Database)
	}
}

func TestStartupParam(t *testing.T) {
	s := Startup{Params: []Pair{{"a", "1"}, {"b", "2"}, {"a", "3"}}}
	if v, ok := s.Param("a"); v != "3" || !ok {
		t.Errorf("got %q, %v", v, ok)
	}
	if _, ok := s.Param("c"); ok {
		t.Error("a parameter that is not there was found")
	}
}

func TestAcceptRefuses(t *testing.T) {
	raw := func(length uint32, rest string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, length), rest...)
	}
	for name, c := range map[string]struct {
		client []byte
		code   string
	}{
		"B1 bytes after the end":     {packet(Protocol30, params()+"x"), pgerr.ProtocolViolation},
		"B1 no final NUL":            {packet(Protocol30, "user\x00u\x00"), pgerr.ProtocolViolation},
		"B1 value not ended":         {packet(Protocol30, "user\x00u"), pgerr.ProtocolViolation},
		"B1 no parameters, no end":   {packet(Protocol30, ""), pgerr.ProtocolViolation},
		"over 10000 bytes":           {packet(Protocol30, params("a", strings.Repeat("x", 9990))), pgerr.ProtocolViolation},
		"length 0":                   {raw(0, "\x00\x03\x00\x00"), pgerr.ProtocolViolation},
		"length 7":                   {raw(7, "\x00\x03\x00"), pgerr.ProtocolViolation},
		"length 2^31":                {raw(1<<31, "\x00\x03\x00\x00"), pgerr.ProtocolViolation},
		"length 2^32-1":              {raw(1<<32-1, "\x00\x03\x00\x00"), pgerr.ProtocolViolation},
		"B13 password first":         {[]byte("p\x00\x00\x00\x08abc\x00"), pgerr.ProtocolViolation},
		"B13 query first":            {queryBytes, pgerr.ProtocolViolation},
		"B13 sync first":             {[]byte("S\x00\x00\x00\x04"), pgerr.ProtocolViolation},
		"B13 copy data first":        {[]byte("d\x00\x00\x00\x04"), pgerr.ProtocolViolation},
		"http":                       {[]byte("GET / HTTP/1.1\r\n\r\n"), pgerr.ProtocolViolation},
		"B6 4.0":                     {packet(4<<16, params()), pgerr.FeatureNotSupported},
		"2.0":                        {packet(2<<16, strings.Repeat("\x00", 288)), pgerr.FeatureNotSupported},
		"no user":                    {packet(Protocol30, "database\x00d\x00\x00"), pgerr.InvalidAuthorizationSpec},
		"empty user":                 {packet(Protocol30, "user\x00\x00\x00"), pgerr.InvalidAuthorizationSpec},
		"cancel without key":         {packet(requestCancel, "\x00\x00\x00\x01"), pgerr.ProtocolViolation},
		"cancel with a short key":    {packet(requestCancel, "\x00\x00\x00\x01abc"), pgerr.ProtocolViolation},
		"cancel with a long key":     {packet(requestCancel, strings.Repeat("k", 261)), pgerr.ProtocolViolation},
		"TLS request with a body":    {packet(requestTLS, "x"), pgerr.FeatureNotSupported},
		"B8 startup behind request":  {bytes.Join([][]byte{tlsRequest, packet(Protocol30, params()), queryBytes}, nil), pgerr.ProtocolViolation},
		"B8 startup behind GSS":      {bytes.Join([][]byte{gssRequest, packet(Protocol30, params()), queryBytes}, nil), pgerr.ProtocolViolation},
		"direct TLS, not configured": {[]byte("\x16\x03\x01\x00\x05hello"), pgerr.ProtocolViolation},
	} {
		t.Run(name, func(t *testing.T) {
			o := open(t, StartupConfig{}, write(c.client))
			if got := pgerr.Code(o.err); got != c.code || o.startup != nil {
				t.Errorf("Accept gave %v, %v; want SQLSTATE %s", o.startup, o.err, c.code)
			}
			if got := fatalCode(t, o.sent); got != c.code && !strings.HasPrefix(name, "over") {
				t.Errorf("the client saw %q, want SQLSTATE %s", o.sent, c.code)
			}
		})
	}
}

func TestNegotiation(t *testing.T) {
	for name, c := range map[string]struct {
		version uint32
		options []string
		want    uint32   // the version settled
		unknown []string // nil: no negotiation
		quiet   bool
	}{
		"3.0":                  {version: Protocol30, want: Protocol30, quiet: true},
		"3.1 was never":        {version: 3<<16 | 1, want: Protocol30},
		"3.2":                  {version: Protocol32, want: Protocol32, quiet: true},
		"3.3":                  {version: 3<<16 | 3, want: Protocol32},
		"B6 3.9999":            {version: 3<<16 | 9999, want: Protocol32},
		"B6 3.9999 and option": {3<<16 | 9999, []string{"_pq_.x", "1", "_pq_.y", ""}, Protocol32, []string{"_pq_.x", "_pq_.y"}, false},
		"B6 3.0 and option":    {Protocol30, []string{"_pq_.x", "1", "a", "b"}, Protocol30, []string{"_pq_.x"}, false},
		"3.2 and option":       {Protocol32, []string{"_pq_.x", "1"}, Protocol32, []string{"_pq_.x"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := open(t, StartupConfig{}, write(packet(c.version, params(c.options...))))
			if o.err != nil || o.startup.ProtocolVersion != c.want {
				t.Fatalf("got %+v, %v", o.startup, o.err)
			}
			for _, p := range o.startup.Params {
				if strings.HasPrefix(p.Name, "_pq_.") {
					t.Errorf("%s passed for a parameter", p.Name)
				}
			}
			var want []byte
			if !c.quiet {
				m := pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: c.want, UnrecognizedOptions: c.unknown}
				want, _ = m.Encode(nil)
			}
			if !bytes.Equal(o.sent, want) {
				t.Errorf("the client was sent %q, want %q", o.sent, want)
			}
		})
	}
}

func TestAcceptCancel(t *testing.T) {
	for _, key := range []string{"abcd", strings.Repeat("k", 32), strings.Repeat("k", 256)} {
		o := open(t, StartupConfig{}, write(packet(requestCancel, "\x00\x00\x10\x92"+key)))
		if o.err != nil || o.startup.Kind != KindCancel {
			t.Fatalf("key of %d bytes: %+v, %v", len(key), o.startup, o.err)
		}
		if diff := cmp.Diff(&CancelKey{PID: 4242, Secret: []byte(key)}, o.startup.Cancel); diff != "" {
			t.Error(diff)
		}
	}
}

// dance is a client that sends each request and waits for its one-byte answer before the next.
func dance(answers string, requests ...[]byte) func(net.Conn) net.Conn {
	return func(c net.Conn) net.Conn {
		for i, r := range requests {
			c.Write(r)
			if i < len(answers) {
				var b [1]byte
				if _, err := io.ReadFull(c, b[:]); err != nil || b[0] != answers[i] {
					return nil
				}
			}
		}
		return nil
	}
}

func TestEncryptionRequestsOnce(t *testing.T) {
	start := packet(Protocol30, params())
	cancel := packet(requestCancel, "\x00\x00\x00\x01abcd")
	for name, c := range map[string]struct {
		client func(net.Conn) net.Conn
		code   string
	}{
		"TLS, startup":           {dance("N", tlsRequest, start), ""},
		"GSS, startup":           {dance("N", gssRequest, start), ""},
		"GSS, TLS, startup":      {dance("NN", gssRequest, tlsRequest, start), ""},
		"TLS, GSS, startup":      {dance("NN", tlsRequest, gssRequest, start), ""},
		"TLS, cancel":            {dance("N", tlsRequest, cancel), ""},
		"B8 TLS twice":           {dance("N", tlsRequest, tlsRequest), pgerr.FeatureNotSupported},
		"B8 GSS twice":           {dance("N", gssRequest, gssRequest), pgerr.FeatureNotSupported},
		"B8 GSS, TLS, GSS":       {dance("NN", gssRequest, tlsRequest, gssRequest), pgerr.FeatureNotSupported},
		"B8 TLS, GSS, TLS":       {dance("NN", tlsRequest, gssRequest, tlsRequest), pgerr.FeatureNotSupported},
		"B8 requests 1000 times": {write(bytes.Repeat(append(gssRequest, tlsRequest...), 1000)), pgerr.ProtocolViolation},
	} {
		t.Run(name, func(t *testing.T) {
			o := open(t, StartupConfig{}, c.client)
			if got := pgerr.Code(o.err); got != c.code {
				t.Errorf("error %v, want SQLSTATE %q", o.err, c.code)
			}
		})
	}
}

// testTLS gives a server's and a client's configuration.
func testTLS(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	dir := t.TempDir()
	authority, err := certs.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	files, err := authority.Ensure(dir, certs.Request{
		Name: "s", Hosts: []string{"localhost", "127.0.0.1"}, Server: true, Client: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := certs.NewReloader(files, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return r.ServerConfig(tls.VerifyClientCertIfGiven), r.ClientConfig("localhost")
}

// upgrade is a client that starts TLS, after an SSLRequest unless direct, and then sends what.
func upgrade(t *testing.T, cfg *tls.Config, direct bool, alpn string, what []byte) func(net.Conn) net.Conn {
	return func(c net.Conn) net.Conn {
		if !direct {
			c.Write(tlsRequest)
			var b [1]byte
			if _, err := io.ReadFull(c, b[:]); err != nil || b[0] != 'S' {
				t.Errorf("SSLRequest was answered %q, %v", b, err)
				return nil
			}
		}
		cfg = cfg.Clone()
		if alpn != "" {
			cfg.NextProtos = []string{alpn}
		}
		conn := tls.Client(c, cfg)
		if conn.Handshake() != nil {
			return nil
		}
		conn.Write(what)
		return conn
	}
}

func TestAcceptTLS(t *testing.T) {
	serverTLS, clientTLS := testTLS(t)
	cfg := StartupConfig{TLS: serverTLS}
	start := packet(Protocol32, params("database", "d"))
	for name, c := range map[string]struct {
		direct bool
		alpn   string
		what   []byte
		fails  bool
		code   string
	}{
		"requested":               {what: start},
		"requested with ALPN":     {alpn: "postgresql", what: start},
		"requested, other ALPN":   {alpn: "h2", what: start, fails: true, code: pgerr.ProtocolViolation},
		"direct":                  {direct: true, alpn: "postgresql", what: start},
		"direct without ALPN":     {direct: true, what: start, fails: true, code: pgerr.ProtocolViolation},
		"direct, other ALPN":      {direct: true, alpn: "h2", what: start, fails: true, code: pgerr.ProtocolViolation},
		"TLS within TLS":          {what: tlsRequest, fails: true, code: pgerr.FeatureNotSupported},
		"TLS within direct TLS":   {direct: true, alpn: "postgresql", what: tlsRequest, fails: true, code: pgerr.FeatureNotSupported},
		"GSS within TLS":          {what: gssRequest, fails: true, code: pgerr.FeatureNotSupported},
		"TLS record within TLS":   {what: []byte{0x16, 3, 1, 0, 5}, fails: true, code: pgerr.ProtocolViolation},
		"unknown version, in TLS": {what: packet(4<<16, ""), fails: true, code: pgerr.FeatureNotSupported},
	} {
		t.Run(name, func(t *testing.T) {
			o := open(t, cfg, upgrade(t, clientTLS, c.direct, c.alpn, c.what))
			if (o.err != nil) != c.fails || pgerr.Code(o.err) != c.code {
				t.Fatalf("error %v, want SQLSTATE %q", o.err, c.code)
			}
			if c.fails {
				return
			}
			if !o.startup.TLS || o.startup.Direct != c.direct || o.startup.Database != "d" || o.startup.endpoint == nil {
				t.Errorf("got %+v", o.startup)
			}
			if name, ok := o.startup.CertificateName(); name != "s" || !ok {
				t.Errorf("the client's certificate is of %q, %v", name, ok)
			}
		})
	}
	t.Run("cancel", func(t *testing.T) {
		o := open(t, cfg, upgrade(t, clientTLS, false, "", packet(requestCancel, "\x00\x00\x00\x01abcd")))
		if o.err != nil || o.startup.Kind != KindCancel || !o.startup.TLS {
			t.Errorf("got %+v, %v", o.startup, o.err)
		}
	})
	t.Run("B8 plain text behind the request", func(t *testing.T) {
		o := open(t, cfg, write(tlsRequest, start, queryBytes))
		if pgerr.Code(o.err) != pgerr.ProtocolViolation || fatalCode(t, o.sent) != pgerr.ProtocolViolation {
			t.Errorf("error %v, client saw %q", o.err, o.sent)
		}
	})
	t.Run("B8 plain text after the answer", func(t *testing.T) {
		o := open(t, cfg, dance("S", tlsRequest, append(start, queryBytes...)))
		if o.err == nil {
			t.Errorf("plain text was taken: %+v", o.startup)
		}
	})
	t.Run("without a certificate", func(t *testing.T) {
		for name, auth := range map[string]tls.ClientAuthType{"none": tls.VerifyClientCertIfGiven, "unverified": tls.RequestClientCert} {
			other, bare := serverTLS.Clone(), clientTLS.Clone()
			other.GetConfigForClient, other.ClientAuth = nil, auth
			if name == "none" {
				bare.GetClientCertificate = nil
			}
			o := open(t, StartupConfig{TLS: other}, upgrade(t, bare, false, "", start))
			if o.err != nil {
				t.Fatal(o.err)
			}
			if cn, ok := o.startup.CertificateName(); ok {
				t.Errorf("%s: a certificate of %q", name, cn)
			}
		}
	})
	t.Run("plain is still possible", func(t *testing.T) {
		o := open(t, cfg, write(start))
		if o.err != nil || o.startup.TLS || o.startup.PeerState() != nil {
			t.Errorf("got %+v, %v", o.startup, o.err)
		}
	})
}

func TestUnixSocketDeclinesTLS(t *testing.T) {
	serverTLS, _ := testTLS(t)
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	client.SetDeadline(time.Now().Add(10 * time.Second))
	go dance("N", tlsRequest, packet(Protocol30, params()))(client)
	if s, err := Accept(ctx, server, StartupConfig{TLS: serverTLS}); err != nil || s.TLS {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestAcceptLeavesWhatFollows(t *testing.T) {
	server, client := loopback(t)
	client.Write(append(packet(Protocol30, params()), queryBytes...))
	s, err := Accept(t.Context(), server, StartupConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Conn != net.Conn(server) {
		t.Error("the connection was wrapped")
	}
	got := make([]byte, len(queryBytes))
	if _, err := io.ReadFull(server, got); err != nil || !bytes.Equal(got, queryBytes) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestAcceptEnds(t *testing.T) {
	t.Run("nothing sent", func(t *testing.T) {
		server, client := loopback(t)
		client.Close()
		if _, err := Accept(t.Context(), server, StartupConfig{}); err != io.EOF {
			t.Errorf("got %v, want io.EOF", err)
		}
	})
	t.Run("half a packet", func(t *testing.T) {
		server, client := loopback(t)
		client.Write([]byte{0, 0})
		client.Close()
		_, err := Accept(t.Context(), server, StartupConfig{})
		if pgerr.Code(err) != pgerr.ConnectionFailure || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		server, client := loopback(t)
		client.Write(packet(Protocol30, params())[:9])
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := Accept(ctx, server, StartupConfig{}); pgerr.Code(err) != pgerr.ConnectionFailure {
			t.Errorf("got %v", err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		server, client := loopback(t)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			client.Write([]byte{0})
			cancel()
		}()
		if _, err := Accept(ctx, server, StartupConfig{}); pgerr.Code(err) != pgerr.ConnectionFailure {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no deadline is left behind", func(t *testing.T) {
		server, client := loopback(t)
		client.Write(packet(Protocol30, params()))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := Accept(ctx, server, StartupConfig{}); err != nil {
			t.Fatal(err)
		}
		cancel()
		client.Write([]byte{1})
		if _, err := server.Read(make([]byte, 1)); err != nil {
			t.Errorf("read after Accept: %v", err)
		}
	})
}

func TestRefuse(t *testing.T) {
	server, client := loopback(t)
	s := &Startup{Conn: server, Raw: server}
	if err := s.Refuse(t.Context(), pgerr.New(pgerr.TooManyConnections, "too many").WithHint("wait")); err != nil {
		t.Fatal(err)
	}
	server.Close()
	sent, _ := io.ReadAll(client)
	if got := fatalCode(t, sent); got != pgerr.TooManyConnections {
		t.Errorf("client saw %q", sent)
	}
}
