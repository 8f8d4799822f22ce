package pgwire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgproto3"

	"neki/internal/fakepg"
	"neki/internal/pgerr"
)

// raw is a script step that reads the startup, then sends bytes and swallows what comes.
func rawServer(parts ...[]byte) fakepg.Script {
	return fakepg.Script{fakepg.ReadStartup(), fakepg.SendBytes(bytes.Join(parts, nil)), fakepg.Hang()}
}

var (
	authOK    = frame('R', "\x00\x00\x00\x00")
	ready     = frame('Z', "I")
	loggedIn  = slices.Concat(authOK, ready)
	authSASL  = frame('R', "\x00\x00\x00\x0aSCRAM-SHA-256\x00\x00")
	authClear = frame('R', "\x00\x00\x00\x03")
)

func connectTo(t *testing.T, s *fakepg.Server, login BackendLogin) (*Greeting, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return Connect(ctx, s.Dial(ctx), login)
}

func TestConnectGreeting(t *testing.T) {
	var startup map[string]string
	s := fakepg.Start(t, fakepg.Script{
		fakepg.ReadStartup(),
		fakepg.Do("keep startup", func(c *fakepg.Conn) error { startup = c.Startup.Parameters; return nil }),
		fakepg.Send(
			&pgproto3.AuthenticationOk{},
			&pgproto3.ParameterStatus{Name: "b", Value: "1"},
			&pgproto3.ParameterStatus{Name: "a", Value: "x"},
			&pgproto3.NoticeResponse{Severity: "WARNING", Code: "01000", Message: "careful"},
			&pgproto3.ParameterStatus{Name: "b", Value: "2"},
			&pgproto3.BackendKeyData{ProcessID: 1<<31 + 5, SecretKey: []byte("abcd")},
			fakepg.Ready('I'),
			&pgproto3.ParameterStatus{Name: "late", Value: "not ours"},
		),
		fakepg.ExpectClose(),
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn := s.Dial(ctx)
	g, err := Connect(ctx, conn, BackendLogin{User: "u", Database: "d", Params: []Pair{{"options", "-c a=b"}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Notices) != 1 || g.Notices[0].Message != "careful" || g.Conn != conn {
		t.Errorf("notices %v, connection %v", g.Notices, g.Conn)
	}
	g.Notices, g.Conn = nil, nil
	want := Greeting{Params: []Pair{{"b", "2"}, {"a", "x"}}, PID: 1<<31 + 5, Secret: []byte("abcd"), TxStatus: 'I'}
	if diff := cmp.Diff(want, *g); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"user": "u", "database": "d", "options": "-c a=b"}, startup); diff != "" {
		t.Error(diff)
	}
	if kind, body, err := readMessage(conn, 100); err != nil || kind != 'S' || !strings.HasPrefix(string(body), "late") {
		t.Errorf("what follows is gone: %c %q %v", kind, body, err)
	}
	conn.Close()
}

func TestConnectServerErrors(t *testing.T) {
	for code, message := range map[string]string{ // B15
		"3D000": `database "d" does not exist`,
		"53300": "sorry, too many clients already",
		"28000": `role "u" is not permitted to log in`,
		"57P03": "the database system is starting up",
	} {
		s := fakepg.Start(t, fakepg.Script{fakepg.RefuseLogin(code, message)})
		_, err := connectTo(t, s, BackendLogin{User: "u", Database: "d"})
		var e *pgerr.Error
		if !errors.As(err, &e) || e.Code != code || e.Message != message || e.Severity != pgerr.SeverityFatal {
			t.Errorf("%s: got %v", code, err)
		}
	}
}

func TestConnectRefusesServers(t *testing.T) {
	login := BackendLogin{User: "u", Database: "d", Password: "pencil"}
	keysOnly := BackendLogin{User: "u", Keys: deriveKeys("pencil", []byte("s"), 1)}
	for name, c := range map[string]struct {
		login  BackendLogin
		script fakepg.Script
		code   string
	}{
		"error without SQLSTATE (CVE-2026-6666)": {login, rawServer(frame('E', "SFATAL\x00Mno\x00\x00")), pgerr.InternalError},
		"error cut":                              {login, rawServer(frame('E', "SFATAL\x00Mno")), pgerr.ProtocolViolation},
		"ready before login":                     {login, rawServer(ready), pgerr.ProtocolViolation},
		"parameter before login":                 {login, rawServer(frame('S', "a\x00b\x00")), pgerr.ProtocolViolation},
		"login twice":                            {login, rawServer(authOK, authOK), pgerr.ProtocolViolation},
		"clear password not allowed":             {login, rawServer(authClear), pgerr.FeatureNotSupported},
		"clear password, but keys":               {keysOnly, rawServer(authClear), pgerr.InvalidPassword},
		"md5, but keys":                          {keysOnly, rawServer(frame('R', "\x00\x00\x00\x05salt")), pgerr.InvalidPassword},
		"md5, short salt":                        {login, rawServer(frame('R', "\x00\x00\x00\x05sal")), pgerr.ProtocolViolation},
		"nothing to log in with":                 {BackendLogin{User: "u"}, rawServer(authSASL), pgerr.InvalidPassword},
		"GSSAPI":                                 {login, rawServer(frame('R', "\x00\x00\x00\x07")), pgerr.FeatureNotSupported},
		"authentication cut":                     {login, rawServer(frame('R', "\x00")), pgerr.ProtocolViolation},
		"no mechanism we know":                   {login, rawServer(frame('R', "\x00\x00\x00\x0aX\x00\x00")), pgerr.FeatureNotSupported},
		"mechanisms not ended":                   {login, rawServer(frame('R', "\x00\x00\x00\x0aX")), pgerr.ProtocolViolation},
		"challenge before SASL":                  {login, rawServer(frame('R', "\x00\x00\x00\x0br=x,s=AAAA,i=1")), pgerr.ProtocolViolation},
		"outcome before challenge":               {login, rawServer(authSASL, frame('R', "\x00\x00\x00\x0cv=")), pgerr.ProtocolViolation},
		"SASL broken off":                        {login, rawServer(authSASL, authOK), pgerr.ProtocolViolation},
		"SASL twice":                             {login, rawServer(authSASL, authSASL), pgerr.ProtocolViolation},
		"clear after SASL":                       {login, rawServer(authSASL, authClear), pgerr.ProtocolViolation},
		"B12 iterations 10^9":                    {login, challengeServer(1_000_000_000), pgerr.ProgramLimitExceeded},
		"B12 iterations 0":                       {login, challengeServer(0), pgerr.ProtocolViolation},
		"message over the cap":                   {login, rawServer([]byte("R\x00\x02\x00\x00")), pgerr.ProtocolViolation},
		"length 2^32-1":                          {login, rawServer([]byte("R\xff\xff\xff\xff")), pgerr.ProtocolViolation},
		"length 0":                               {login, rawServer([]byte("R\x00\x00\x00\x00")), pgerr.ProtocolViolation},
		"1 GB after login":                       {login, rawServer(authOK, []byte("S\x40\x00\x00\x00")), pgerr.ProtocolViolation},
		"endless notices":                        {login, rawServer(authOK, bytes.Repeat(frame('N', "M"+strings.Repeat("x", 1<<19)+"\x00\x00"), 20)), pgerr.ProtocolViolation},
		"parameter not ended":                    {login, rawServer(authOK, frame('S', "a\x00b")), pgerr.ProtocolViolation},
		"short key":                              {login, rawServer(authOK, frame('K', "\x00\x00\x00\x01abc")), pgerr.ProtocolViolation},
		"ready without a status":                 {login, rawServer(authOK, frame('Z', "")), pgerr.ProtocolViolation},
		"ready with a wrong status":              {login, rawServer(authOK, frame('Z', "\x00")), pgerr.ProtocolViolation},
		"row":                                    {login, rawServer(authOK, frame('D', "\x00\x00")), pgerr.ProtocolViolation},
		"negotiation unasked":                    {login, rawServer(frame('v', "\x00\x03\x00\x00\x00\x00\x00\x00")), pgerr.ProtocolViolation},
		"leaves":                                 {login, fakepg.Script{fakepg.ReadStartup()}, pgerr.ConnectionFailure},
		"leaves after login":                     {login, fakepg.Script{fakepg.ReadStartup(), fakepg.SendBytes(authOK)}, pgerr.ConnectionFailure},
		"reset":                                  {login, fakepg.Script{fakepg.ReadStartup(), fakepg.Reset()}, pgerr.ConnectionFailure},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := connectTo(t, fakepg.Start(t, c.script), c.login)
			if pgerr.Code(err) != c.code || g != nil {
				t.Errorf("got %v, %v; want SQLSTATE %s", g, err, c.code)
			}
		})
	}
}

// challengeServer asks for many iterations.
func challengeServer(iterations int) fakepg.Script {
	return fakepg.Script{
		fakepg.ReadStartup(), fakepg.SendBytes(authSASL),
		fakepg.Do("challenge", func(c *fakepg.Conn) error {
			_, body, err := readMessage(c.Net, 1<<16)
			if err != nil {
				return err
			}
			_, nonce, _ := strings.Cut(string(body), "r=")
			_, err = c.Net.Write(frame('R', fmt.Sprintf("\x00\x00\x00\x0br=%sx,s=AAAA,i=%d", nonce, iterations)))
			return err
		}),
		fakepg.Hang(),
	}
}

func TestConnectVerifiesServer(t *testing.T) {
	// A server that has the role's StoredKey but not its ServerKey can let us in, and is found out.
	keys := deriveKeys("pencil", pencil().Salt, 4096)
	keys.ServerKey = Key{}
	s := fakepg.Start(t, fakepg.Script{scramStep(pencil()), fakepg.Hang()})
	_, err := connectTo(t, s, BackendLogin{User: "u", Keys: keys})
	if pgerr.Code(err) != pgerr.InvalidAuthorizationSpec || pgerr.From(err).Severity != pgerr.SeverityFatal {
		t.Errorf("got %v", err)
	}
}

func TestConnectWithKeysAndPassword(t *testing.T) {
	for name, login := range map[string]BackendLogin{
		"keys":     {User: "u", Keys: deriveKeys("pencil", pencil().Salt, 4096)},
		"password": {User: "u", Password: "pencil"},
	} {
		s := fakepg.Start(t, fakepg.Script{scramStep(pencil()), fakepg.SendBytes(loggedIn), fakepg.ExpectClose()})
		g, err := connectTo(t, s, login)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		g.Conn.Close()
	}
}

// scramStep authenticates the client by a verifier.
func scramStep(v *Verifier) fakepg.Step {
	return fakepg.Do("scram", func(c *fakepg.Conn) error {
		if err := fakepg.ReadStartup().Run(c); err != nil {
			return err
		}
		s := &Startup{Conn: c.Net, Raw: c.Net, User: "u"}
		_, err := NewAuthenticator(nil, 0).Authenticate(context.Background(), s, MethodSCRAM, v.Text())
		if err == nil {
			_, err = c.Net.Write(s.Pending())
		}
		return err
	})
}

func TestConnectMD5AndClear(t *testing.T) {
	md5Script := fakepg.Script{
		fakepg.ReadStartup(), fakepg.SendBytes(frame('R', "\x00\x00\x00\x05salt")),
		fakepg.Expect(&pgproto3.PasswordMessage{Password: md5Answer(md5Secret("pencil", "u"), [4]byte([]byte("salt")))}),
		fakepg.SendBytes(loggedIn), fakepg.ExpectClose(),
	}
	if g, err := connectTo(t, fakepg.Start(t, md5Script), BackendLogin{User: "u", Password: "pencil"}); err != nil {
		t.Error(err)
	} else {
		g.Conn.Close()
	}
	// In clear only over TLS or a Unix socket, even when allowed.
	login := BackendLogin{User: "u", Password: "pencil", AllowCleartext: true}
	if _, err := connectTo(t, fakepg.Start(t, rawServer(authClear)), login); pgerr.Code(err) != pgerr.FeatureNotSupported {
		t.Errorf("clear over TCP: %v", err)
	}
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan []byte, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		c.Write(authClear)
		size := make([]byte, 4)
		if _, err := io.ReadFull(c, size); err == nil { // the startup, and no more
			io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(size))-4)
		}
		_, body, _ := readMessage(c, 1000)
		got <- body
		c.Write(loggedIn)
	}()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := Connect(ctx, conn, login); err != nil || string(<-got) != "pencil\x00" {
		t.Errorf("clear over a Unix socket: %v", err)
	}
}

func TestConnectRefusesParameters(t *testing.T) {
	for name, login := range map[string]BackendLogin{
		"NUL in a value": {User: "u", Params: []Pair{{"a", "b\x00user\x00postgres"}}},
		"NUL in a name":  {User: "u", Params: []Pair{{"a\x00", "b"}}},
		"NUL in user":    {User: "u\x00"},
		"empty name":     {User: "u", Params: []Pair{{"", "b"}}},
		"too long":       {User: "u", Params: []Pair{{"a", strings.Repeat("x", 10_000)}}},
	} {
		_, client := loopback(t)
		_, err := Connect(t.Context(), client, login)
		if code := pgerr.Code(err); code != pgerr.InvalidParameterValue && code != pgerr.ProgramLimitExceeded {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConnectTLS(t *testing.T) {
	serverTLS, clientTLS := testTLS(t)
	serve := func(answer func(ctx context.Context, c net.Conn)) net.Conn {
		server, client := loopback(t)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		done := make(chan struct{})
		go func() { defer close(done); answer(ctx, server); server.Close() }()
		t.Cleanup(func() { client.Close(); cancel(); <-done })
		return client
	}
	gateway := func(ctx context.Context, c net.Conn) {
		s, err := Accept(ctx, c, StartupConfig{TLS: serverTLS})
		if err != nil {
			return
		}
		if _, err := NewAuthenticator(nil, 0).Authenticate(ctx, s, MethodSCRAM, pencil().Text()); err != nil {
			t.Error(err)
		}
		s.Conn.Write(append(s.Pending(), loggedIn...))
		io.Copy(io.Discard, s.Conn)
	}
	wrongHost := clientTLS.Clone()
	wrongHost.ServerName = "elsewhere"
	login := BackendLogin{User: "u", Keys: deriveKeys("pencil", pencil().Salt, 4096), TLS: clientTLS}
	g, err := Connect(t.Context(), serve(gateway), login)
	if err != nil || !g.TLS {
		t.Fatalf("got %+v, %v", g, err)
	}
	byte1 := func(b byte) func(context.Context, net.Conn) {
		return func(_ context.Context, c net.Conn) {
			io.ReadFull(c, make([]byte, 8))
			c.Write(append([]byte{b}, loggedIn...)) // plain text behind the answer
			io.Copy(io.Discard, c)
		}
	}
	login.TLS = wrongHost
	if _, err := Connect(t.Context(), serve(gateway), login); pgerr.Code(err) != pgerr.SQLClientUnableToConnect {
		t.Errorf("wrong host: %v", err)
	}
	login.TLS = clientTLS
	for _, b := range []byte("SNEG") {
		_, err := Connect(t.Context(), serve(byte1(b)), login)
		if pgerr.Code(err) != pgerr.SQLClientUnableToConnect {
			t.Errorf("SSLRequest answered %c: %v", b, err)
		}
	}
}

func TestConnectDeadline(t *testing.T) {
	s := fakepg.Start(t, fakepg.Script{fakepg.Hang()}, fakepg.Script{fakepg.Hang()})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Connect(ctx, s.Dial(t.Context()), BackendLogin{User: "u"}); pgerr.Code(err) != pgerr.ConnectionFailure {
		t.Errorf("deadline: %v", err)
	}
	gone, cancelNow := context.WithCancel(t.Context())
	cancelNow()
	if _, err := Connect(gone, s.Dial(t.Context()), BackendLogin{User: "u"}); pgerr.Code(err) != pgerr.ConnectionFailure {
		t.Errorf("cancelled: %v", err)
	}
}
