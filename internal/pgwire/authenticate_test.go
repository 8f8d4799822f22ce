package pgwire

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"neki/internal/pgerr"
)

// prove runs Authenticate for user u against a client.
func prove(t *testing.T, method Method, secret string, client func(net.Conn)) (*Keys, error) {
	t.Helper()
	server, conn := loopback(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		client(conn)
		conn.CloseWrite()
	}()
	s := &Startup{Conn: server, Raw: server, User: "u"}
	keys, err := NewAuthenticator(nil, 0).Authenticate(ctx, s, method, secret)
	if _, err := server.Write(s.Pending()); err != nil {
		t.Error(err)
	}
	server.CloseWrite()
	<-done
	return keys, err
}

// logIn is a client with a password that answers what it is asked.
func logIn(t *testing.T, password string, asked *string) func(net.Conn) {
	return func(c net.Conn) {
		l := loginState{
			login: BackendLogin{User: "u", Password: password, AllowCleartext: true}, greeting: Greeting{Conn: c, TLS: true},
		}
		for {
			kind, body, err := readMessage(c, 1<<16)
			if err != nil {
				return
			}
			*asked += " " + map[uint32]string{3: "clear", 5: "md5", 10: "sasl", 11: "", 12: "final"}[binary.BigEndian.Uint32(body)]
			if err := l.message(kind, body); err != nil {
				t.Errorf("client: %v", err)
				return
			}
		}
	}
}

func TestAuthenticate(t *testing.T) {
	scram, md5 := pencil().Text(), md5Secret("pencil", "u")
	for name, c := range map[string]struct {
		method           Method
		secret, password string
		asked            string
		keys, fails      bool
	}{
		"scram":                  {MethodSCRAM, scram, "pencil", " sasl  final", true, false},
		"scram, wrong":           {MethodSCRAM, scram, "x", " sasl ", false, true},
		"scram, unknown user":    {MethodSCRAM, "", "pencil", " sasl ", false, true},
		"scram, md5 secret":      {MethodSCRAM, md5, "pencil", " sasl ", false, true},
		"md5":                    {MethodMD5, md5, "pencil", " md5", false, false},
		"md5, wrong":             {MethodMD5, md5, "x", " md5", false, true},
		"md5, scram secret":      {MethodMD5, scram, "pencil", " sasl  final", true, false},
		"md5, unknown user":      {MethodMD5, "", "pencil", " sasl ", false, true},
		"clear, scram":           {MethodPassword, scram, "pencil", " clear", true, false},
		"clear, scram, wrong":    {MethodPassword, scram, "x", " clear", false, true},
		"clear, md5":             {MethodPassword, md5, "pencil", " clear", false, false},
		"clear, md5, wrong":      {MethodPassword, md5, "x", " clear", false, true},
		"clear, unknown user":    {MethodPassword, "", "pencil", " clear", false, true},
		"clear, secret is clear": {MethodPassword, "pencil", "pencil", " clear", false, true},
		"B10 5000 characters":    {MethodPassword, newVerifier(strings.Repeat("p", 5000), []byte("s"), 1).Text(), strings.Repeat("p", 5000), " clear", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			asked := ""
			keys, err := prove(t, c.method, c.secret, logIn(t, c.password, &asked))
			if asked != c.asked {
				t.Errorf("the client was asked%s, want%s", asked, c.asked)
			}
			if (err != nil) != c.fails || (keys != nil) != c.keys {
				t.Fatalf("keys %v, error %v", keys, err)
			}
			if c.fails && (pgerr.Code(err) != pgerr.InvalidPassword || pgerr.From(err).Severity != pgerr.SeverityFatal) {
				t.Errorf("got %v", err)
			}
			if c.keys && c.secret == scram && *keys != *deriveKeys("pencil", pencil().Salt, 4096) {
				t.Error("these are not the role's keys")
			}
		})
	}
}

func TestAuthenticateCapsIterations(t *testing.T) {
	v := pencil()
	v.Iterations = 1<<31 - 1 // a role can set such a verifier for itself
	start := time.Now()
	asked := ""
	if _, err := prove(t, MethodPassword, v.Text(), logIn(t, "pencil", &asked)); pgerr.Code(err) != pgerr.InvalidPassword {
		t.Errorf("got %v", err)
	}
	if time.Since(start) > 5*time.Second {
		t.Error("the iterations were run")
	}
}

// frame makes a message.
func frame(kind byte, body string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{kind}, uint32(4+len(body)))
	return append(b, body...)
}

// initial makes a SASLInitialResponse whose length field is as given.
func initial(mechanism string, length uint32, data string) []byte {
	return frame('p', mechanism+"\x00"+string(binary.BigEndian.AppendUint32(nil, length))+data)
}

func TestAuthenticateMalformed(t *testing.T) {
	const first = "n,,n=,r=abc"
	size := uint32(len(first))
	good := initial(mechanismPlain, size, first)
	for name, c := range map[string]struct {
		method Method
		sends  [][]byte
		code   string
	}{
		"B12 SASL length -1":               {MethodSCRAM, [][]byte{initial(mechanismPlain, 1<<32-1, first)}, pgerr.ProtocolViolation},
		"B12 SASL length -1, then nothing": {MethodSCRAM, [][]byte{initial(mechanismPlain, 1<<32-1, ""), frame('p', "")}, pgerr.ProtocolViolation},
		"B12 SASL length 2^31-1":           {MethodSCRAM, [][]byte{initial(mechanismPlain, 1<<31-1, first)}, pgerr.ProtocolViolation},
		"SASL length 2^31":                 {MethodSCRAM, [][]byte{initial(mechanismPlain, 1<<31, first)}, pgerr.ProtocolViolation},
		"B12 SASL length over packet":      {MethodSCRAM, [][]byte{initial(mechanismPlain, size+1, first)}, pgerr.ProtocolViolation},
		"SASL length under packet":         {MethodSCRAM, [][]byte{initial(mechanismPlain, size-1, first)}, pgerr.ProtocolViolation},
		"SASL length 0":                    {MethodSCRAM, [][]byte{initial(mechanismPlain, 0, "")}, pgerr.ProtocolViolation},
		"B12 mechanism not ended":          {MethodSCRAM, [][]byte{frame('p', mechanismPlain)}, pgerr.ProtocolViolation},
		"B12 unknown mechanism":            {MethodSCRAM, [][]byte{initial("PLAIN", size, first)}, pgerr.ProtocolViolation},
		"PLUS without TLS":                 {MethodSCRAM, [][]byte{initial(mechanismPlus, size, first)}, pgerr.ProtocolViolation},
		"no length":                        {MethodSCRAM, [][]byte{frame('p', mechanismPlain+"\x00\x00")}, pgerr.ProtocolViolation},
		"empty":                            {MethodSCRAM, [][]byte{frame('p', "")}, pgerr.ProtocolViolation},
		"B12 no nonce":                     {MethodSCRAM, [][]byte{initial(mechanismPlain, 5, "n,,n=")}, pgerr.ProtocolViolation},
		"over 1024 bytes":                  {MethodSCRAM, [][]byte{frame('p', strings.Repeat("x", 1025))}, pgerr.ProtocolViolation},
		"message length 2^32-1":            {MethodSCRAM, [][]byte{[]byte("p\xff\xff\xff\xffxxxx")}, pgerr.ProtocolViolation},
		"message length 2^31":              {MethodSCRAM, [][]byte{[]byte("p\x80\x00\x00\x00xxxx")}, pgerr.ProtocolViolation},
		"message length 3":                 {MethodSCRAM, [][]byte{[]byte("p\x00\x00\x00\x03xxxx")}, pgerr.ProtocolViolation},
		"query instead":                    {MethodSCRAM, [][]byte{queryBytes}, pgerr.ProtocolViolation},
		"second answer is a query":         {MethodSCRAM, [][]byte{good, queryBytes}, pgerr.ProtocolViolation},
		"B12 wrong nonce":                  {MethodSCRAM, [][]byte{good, frame('p', "c=biws,r=abcdef,p="+proofOfRFC)}, pgerr.ProtocolViolation},
		"second answer over 1024 bytes":    {MethodSCRAM, [][]byte{good, frame('p', strings.Repeat("x", 1025))}, pgerr.ProtocolViolation},
		"client leaves":                    {MethodSCRAM, nil, pgerr.ConnectionFailure},
		"client leaves in the middle":      {MethodSCRAM, [][]byte{good}, pgerr.ConnectionFailure},
		"client leaves in a message":       {MethodSCRAM, [][]byte{good[:8]}, pgerr.ConnectionFailure},
		"password not ended":               {MethodPassword, [][]byte{frame('p', "abc")}, pgerr.ProtocolViolation},
		"password with a NUL":              {MethodPassword, [][]byte{frame('p', "a\x00b\x00")}, pgerr.ProtocolViolation},
		"password empty":                   {MethodPassword, [][]byte{frame('p', "\x00")}, pgerr.InvalidPassword},
		"password over 65535 bytes":        {MethodPassword, [][]byte{frame('p', strings.Repeat("x", 65535)+"\x00")}, pgerr.ProtocolViolation},
		"md5 answer empty":                 {MethodMD5, [][]byte{frame('p', "\x00")}, pgerr.InvalidPassword},
		"md5 answer of another length":     {MethodMD5, [][]byte{frame('p', "md5\x00")}, pgerr.InvalidPassword},
	} {
		t.Run(name, func(t *testing.T) {
			secret := pencil().Text()
			if c.method == MethodMD5 {
				secret = md5Secret("pencil", "u")
			}
			keys, err := prove(t, c.method, secret, func(conn net.Conn) {
				for _, b := range c.sends {
					readMessage(conn, 1<<16) //nolint:errcheck // the request; the test looks at the server's side
					conn.Write(b)
				}
			})
			if pgerr.Code(err) != c.code || keys != nil {
				t.Errorf("got %v, want SQLSTATE %s", err, c.code)
			}
		})
	}
}

// TestAuthenticateAsksForTheFirstMessage has a client that names its mechanism with no data: it is asked for them.
func TestAuthenticateAsksForTheFirstMessage(t *testing.T) {
	keys, err := prove(t, MethodSCRAM, pencil().Text(), func(conn net.Conn) {
		client := scramClient{password: "pencil", nonce: newNonce(), maxIterations: maxIterations}
		first, err := client.first([]string{mechanismPlain})
		if err != nil {
			t.Error(err)
		}
		for _, answer := range []func(asked []byte) []byte{
			func([]byte) []byte { return initial(mechanismPlain, 1<<32-1, "") },
			func(asked []byte) []byte {
				if !bytes.Equal(asked, []byte{0, 0, 0, 11}) {
					t.Errorf("asked for the first message by %q", asked)
				}
				return frame('p', first)
			},
			func(asked []byte) []byte {
				final, err := client.final(asked[4:])
				if err != nil {
					t.Error(err)
				}
				return frame('p', final)
			},
		} {
			_, body, err := readMessage(conn, 1<<16)
			if err != nil {
				t.Error(err)
				return
			}
			conn.Write(answer(body))
		}
	})
	if err != nil || keys == nil {
		t.Errorf("keys %v, error %v", keys, err)
	}
}

func TestAuthenticateDeadline(t *testing.T) {
	server, _ := loopback(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	s := &Startup{Conn: server, Raw: server, User: "u"}
	_, err := NewAuthenticator(nil, 0).Authenticate(ctx, s, MethodSCRAM, "")
	if pgerr.Code(err) != pgerr.ConnectionFailure {
		t.Errorf("got %v", err)
	}
}

func TestAuthenticateOverTLS(t *testing.T) {
	serverTLS, clientTLS := testTLS(t)
	server, conn := loopback(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	used := make(chan string, 1)
	go func() {
		defer close(used)
		secure, err := requestTLSFrom(ctx, conn, clientTLS)
		if err != nil {
			t.Error(err)
			return
		}
		l := loginState{login: BackendLogin{User: "u", Password: "pencil"}, greeting: Greeting{Conn: secure, TLS: true}}
		if err := l.sendStartup(); err != nil {
			t.Error(err)
		}
		for !l.verified {
			kind, body, err := readMessage(secure, 1<<16)
			if err == nil {
				err = l.message(kind, body)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
		used <- l.scram.mechanism
	}()
	s, err := Accept(ctx, server, StartupConfig{TLS: serverTLS})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := NewAuthenticator(nil, 0).Authenticate(ctx, s, MethodSCRAM, pencil().Text())
	if err != nil || keys == nil {
		t.Error(err)
	}
	if _, err := s.Conn.Write(s.Pending()); err != nil {
		t.Error(err)
	}
	if got := <-used; got != mechanismPlus {
		t.Errorf("the client used %q", got)
	}
	if got := s.PeerState().CurveID; got != tls.X25519 { // the client offers hybrids too
		t.Errorf("keys were exchanged by %s", got)
	}
}

func TestAuthenticateLeavesWhatFollows(t *testing.T) {
	server, client := loopback(t)
	go func() {
		readMessage(client, 1<<16) //nolint:errcheck // as above
		client.Write(append(frame('p', "pencil\x00"), queryBytes...))
	}()
	s := &Startup{Conn: server, Raw: server, User: "u"}
	if _, err := NewAuthenticator(nil, 0).Authenticate(t.Context(), s, MethodPassword, pencil().Text()); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(queryBytes))
	if _, err := io.ReadFull(server, got); err != nil || string(got) != string(queryBytes) {
		t.Errorf("got %q, %v", got, err)
	}
}
