package pgwire_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"neki/internal/certs"
	"neki/internal/pgerr"
	"neki/internal/pgwire"
)

// gate is the smallest gateway that can be built of this package: it authenticates a client by a verifier, logs in to a
// backend with the keys that this gave, and passes bytes. Each client has a backend of its own.
type gate struct {
	t        *testing.T
	listener net.Listener
	config   pgwire.StartupConfig
	auth     *pgwire.Authenticator
	keys     *pgwire.KeySpace
	secrets  func(user string) string // rolpassword
	backend  string

	mu       sync.Mutex
	sessions []backendKey // by session slot
	logins   int          // backends that were asked
	last     *pgwire.Startup
	failed   error // the last backend login that failed
}

type backendKey struct {
	pid     uint32
	secret  []byte
	version uint32 // of the client
}

func startGate(t *testing.T, cfg *tls.Config, backend string, secrets func(string) string) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := pgwire.NewKeySpace(7)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{
		t: t, listener: l, config: pgwire.StartupConfig{TLS: cfg}, auth: pgwire.NewAuthenticator(nil, 0), keys: keys,
		secrets: secrets, backend: backend,
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				defer context.AfterFunc(ctx, func() { conn.Close() })()
				g.serve(ctx, conn)
			})
		}
	})
	t.Cleanup(func() { l.Close(); cancel(); wg.Wait() })
	return g
}

func (g *gate) port() int { return g.listener.Addr().(*net.TCPAddr).Port }

func (g *gate) serve(ctx context.Context, conn net.Conn) {
	login, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	s, err := pgwire.Accept(login, conn, g.config)
	if err != nil {
		return
	}
	if s.Kind == pgwire.KindCancel {
		g.cancel(login, s.Cancel)
		return
	}
	keys, err := g.auth.Authenticate(login, s, pgwire.MethodSCRAM, g.secrets(s.User))
	if err != nil {
		s.Refuse(login, err)
		return
	}
	greeting, err := g.logIn(login, s, keys)
	if err != nil {
		s.Refuse(login, err)
		return
	}
	defer greeting.Conn.Close()
	stop := context.AfterFunc(ctx, func() { greeting.Conn.Close() })
	defer stop()
	if err := g.welcome(s, greeting); err != nil {
		return
	}
	splice(s.Conn, greeting.Conn)
}

func (g *gate) logIn(ctx context.Context, s *pgwire.Startup, keys *pgwire.Keys) (*pgwire.Greeting, error) {
	g.mu.Lock()
	g.logins++
	g.last = s
	g.mu.Unlock()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", g.backend)
	if err != nil {
		return nil, err
	}
	var params []pgwire.Pair
	for _, p := range s.Params {
		if p.Name != "user" && p.Name != "database" {
			params = append(params, p)
		}
	}
	greeting, err := pgwire.Connect(ctx, conn, pgwire.BackendLogin{
		User: s.User, Database: s.Database, Params: params, Keys: keys,
	})
	if err != nil {
		conn.Close()
		g.mu.Lock()
		g.failed = err
		g.mu.Unlock()
	}
	return greeting, err
}

// welcome tells the client that it is in, with a virtual pid and a key of our own.
func (g *gate) welcome(s *pgwire.Startup, greeting *pgwire.Greeting) error {
	g.mu.Lock()
	slot := uint32(len(g.sessions))
	g.sessions = append(g.sessions, backendKey{greeting.PID, greeting.Secret, s.ProtocolVersion})
	g.mu.Unlock()
	if _, err := s.Conn.Write(s.Pending()); err != nil {
		return err
	}
	messages := []pgproto3.BackendMessage{&pgproto3.AuthenticationOk{}}
	for _, p := range greeting.Params {
		messages = append(messages, &pgproto3.ParameterStatus{Name: p.Name, Value: p.Value})
	}
	messages = append(messages, &pgproto3.BackendKeyData{
		ProcessID: g.keys.PID(slot), SecretKey: g.keys.AppendKey(nil, slot, 1, s.ProtocolVersion),
	}, &pgproto3.ReadyForQuery{TxStatus: greeting.TxStatus})
	var buf []byte
	for _, m := range messages {
		var err error
		if buf, err = m.Encode(buf); err != nil {
			return err
		}
	}
	_, err := s.Conn.Write(buf)
	return err
}

func (g *gate) cancel(ctx context.Context, key *pgwire.CancelKey) {
	_, slot, ok := pgwire.SplitPID(key.PID)
	g.mu.Lock()
	defer g.mu.Unlock()
	if !ok || int(slot) >= len(g.sessions) {
		return
	}
	target := g.sessions[slot]
	if !g.keys.Check(key.PID, key.Secret, 1, target.version) {
		return
	}
	var d net.Dialer
	if err := pgwire.SendCancel(ctx, d.DialContext, g.backend, target.pid, target.secret, nil); err != nil {
		g.t.Errorf("cancel: %v", err)
	}
}

func (g *gate) backendLogins() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.logins
}

func (g *gate) lastClient() pgwire.Startup {
	g.mu.Lock()
	defer g.mu.Unlock()
	return *g.last
}

func (g *gate) lastFailure() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return pgerr.Code(g.failed)
}

// splice passes bytes both ways until one side ends.
func splice(client, backend net.Conn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(client, backend)
		client.Close()
	}()
	io.Copy(backend, client)
	backend.Close()
	<-done
}

// certificates are what servers and clients of a test need.
type certificates struct {
	files  certs.Files
	server *tls.Config
	client *tls.Config
}

func makeCertificates(t *testing.T, dir string) certificates {
	t.Helper()
	authority, err := certs.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	files, errEnsure := authority.Ensure(dir, certs.Request{Name: "s", Hosts: []string{"localhost", "127.0.0.1"}, Server: true})
	r, errLoad := certs.NewReloader(files, slog.New(slog.DiscardHandler))
	if err := errors.Join(errEnsure, errLoad); err != nil {
		t.Fatal(err)
	}
	return certificates{files, r.ServerConfig(tls.NoClientCert), r.ClientConfig("127.0.0.1")}
}
