package pgwire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"neki/internal/pgerr"
)

// tape is a connection whose peer has sent all it will ever send.
type tape struct {
	in  *bytes.Reader
	out bytes.Buffer
}

func newTape(in []byte) *tape { return &tape{in: bytes.NewReader(in)} }

func (c *tape) Read(p []byte) (int, error)  { return c.in.Read(p) }
func (c *tape) Write(p []byte) (int, error) { return c.out.Write(p) }

func (*tape) Close() error                     { return nil }
func (*tape) LocalAddr() net.Addr              { return nil }
func (*tape) RemoteAddr() net.Addr             { return nil }
func (*tape) SetDeadline(time.Time) error      { return nil }
func (*tape) SetReadDeadline(time.Time) error  { return nil }
func (*tape) SetWriteDeadline(time.Time) error { return nil }

// checkError demands that a failure has an SQLSTATE that fits what a peer did.
func checkError(t *testing.T, err error) {
	t.Helper()
	var e *pgerr.Error
	if err != nil && !errors.As(err, &e) && !errors.Is(err, io.EOF) || e != nil && len(e.Code) != 5 {
		t.Errorf("not an error for the wire: %v", err)
	}
}

func FuzzStartup(f *testing.F) {
	for _, b := range [][]byte{
		packet(Protocol30, params("a", "b")), packet(3<<16|9999, params("_pq_.x", "1")), tlsRequest, gssRequest,
		append(bytes.Clone(gssRequest), packet(Protocol32, params("database", "d"))...),
		packet(requestCancel, "\x00\x00\x00\x01abcd"), packet(4<<16, ""),
		{0, 0, 0, 0},
		{0x16, 3, 1, 0, 1, 1},
		{255, 255, 255, 255},
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		conn := newTape(in)
		s, err := Accept(context.Background(), conn, StartupConfig{})
		checkError(t, err)
		if err != nil {
			return
		}
		read := len(in) - conn.in.Len()
		switch {
		case s.Kind == KindCancel:
			if n := len(s.Cancel.Secret); n < 4 || n > maxCancelKey {
				t.Errorf("a key of %d bytes", n)
			}
		case s.User == "" || s.Database == "" || s.ProtocolVersion != Protocol30 && s.ProtocolVersion != Protocol32:
			t.Errorf("got %+v", s)
		}
		if read > maxStartupBody+4+2*8 {
			t.Errorf("%d bytes were read", read)
		}
		for _, p := range s.Params {
			if p.Name == "" || strings.Contains(p.Name+p.Value, "\x00") || strings.HasPrefix(p.Name, protocolOptions) {
				t.Errorf("parameter %q", p)
			}
		}
		if n := bytes.Count(conn.out.Bytes(), []byte{'v', 0, 0}); n > 1 {
			t.Errorf("the version was negotiated %d times", n)
		}
	})
}

func FuzzSASLInitial(f *testing.F) {
	good := initial(mechanismPlain, 11, "n,,n=,r=abc")
	f.Add(good[5:], []byte(finalStart))
	f.Add(initial(mechanismPlus, 1<<32-1, "p=tls-server-end-point,,n=,r=abc")[5:], []byte{})
	f.Add([]byte("SCRAM-SHA-256\x00\x00\x00\x00\x05y,a=x"), []byte("c=,r=,p="))
	f.Fuzz(func(t *testing.T, body, final []byte) {
		mechanism, message, err := parseSASLInitial(body)
		checkError(t, err)
		if err != nil {
			return
		}
		s := scramServer{verifier: &Verifier{Iterations: 1, Salt: []byte("salt")}, endpoint: []byte("e"), nonce: "nonce"}
		challenge, err := s.first(mechanism, message)
		checkError(t, err)
		if err != nil {
			return
		}
		client := scramClient{password: "x", maxIterations: 1, nonce: strings.TrimSuffix(s.fullNonce, "nonce")}
		if _, _, _, err := client.parseChallenge(challenge); err != nil {
			t.Errorf("our challenge %q is refused: %v", challenge, err)
		}
		_, keys, ok, err := s.final(final)
		checkError(t, err)
		if ok || keys != nil {
			t.Error("a proof for a zero key was found")
		}
	})
}

func FuzzVerifier(f *testing.F) {
	f.Add(pencil().Text())
	f.Add("SCRAM-SHA-256$4096:zzz")
	f.Add("SCRAM-SHA-256$1:AA==$" + strings.Repeat("A", 43) + "=:" + strings.Repeat("A", 43) + "=")
	f.Fuzz(func(t *testing.T, text string) {
		v, err := ParseVerifier(text)
		if err == nil && v.Text() != text {
			t.Errorf("%q was read as %q", text, v.Text())
		}
	})
}

func FuzzServerFirst(f *testing.F) {
	f.Add([]byte("r=abcdef,s=c2FsdA==,i=2"), []byte("v=AAAA"))
	f.Add([]byte("r=abc,s=,i=99999999999999999999"), []byte("e=x"))
	f.Add([]byte("m=x"), []byte(""))
	f.Fuzz(func(t *testing.T, challenge, outcome []byte) {
		c := scramClient{keys: deriveKeys("x", []byte("s"), 1), nonce: "abc", maxIterations: 100}
		if _, err := c.first([]string{mechanismPlain}); err != nil {
			t.Fatal(err)
		}
		proof, err := c.final(challenge)
		checkError(t, err)
		if err != nil {
			return
		}
		if !bytes.HasPrefix(challenge, []byte("r=abc")) || !strings.HasPrefix(proof, "c=biws,r=abc") {
			t.Errorf("%q was answered %q", challenge, proof)
		}
		if err := c.verify(outcome); err == nil {
			t.Errorf("signature %q was believed", outcome)
		} else {
			checkError(t, err)
		}
	})
}

// FuzzGreeting plays any bytes as a server.
func FuzzGreeting(f *testing.F) {
	f.Add(bytes.Join([][]byte{authOK, frame('S', "a\x00b\x00"), frame('K', "\x00\x00\x00\x01abcd"), ready}, nil))
	f.Add(authSASL)
	f.Add(authClear)
	f.Add(frame('E', "SFATAL\x00VFATAL\x00C28000\x00Mno\x00P1\x00\x00"))
	f.Add(append(bytes.Clone(authOK), frame('N', "L99999999999999999999\x00\x00")...))
	f.Fuzz(func(t *testing.T, in []byte) {
		g, err := Connect(context.Background(), newTape(in), BackendLogin{User: "u", Password: "x"})
		checkError(t, err)
		if err == nil && strings.IndexByte("ITE", g.TxStatus) < 0 {
			t.Errorf("got %+v", g)
		}
	})
}
