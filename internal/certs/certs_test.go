package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

func ensure(t *testing.T, a *Authority, dir string, r Request) Files {
	t.Helper()
	files, err := a.Ensure(dir, r)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func leaf(t *testing.T, files Files) *x509.Certificate {
	t.Helper()
	cert, _, err := loadPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestEnsureKeepsWhatFits(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	clock := func() time.Time { return now }
	open := func() *Authority {
		a, err := openAuthority(dir, clock)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	server := Request{Name: "gateway", Hosts: []string{"localhost", "127.0.0.1"}, Server: true}
	first := leaf(t, ensure(t, open(), dir, server))

	same := leaf(t, ensure(t, open(), dir, server))
	if !same.Equal(first) {
		t.Error("a certificate that fits was issued again")
	}
	wider := server
	wider.Hosts = append([]string{"db.example"}, server.Hosts...)
	second := leaf(t, ensure(t, open(), dir, wider))
	if second.Equal(first) || second.VerifyHostname("db.example") != nil || second.VerifyHostname("127.0.0.1") != nil {
		t.Error("a certificate without a wanted host was kept")
	}
	both := wider
	both.Client = true
	third := leaf(t, ensure(t, open(), dir, both))
	if third.Equal(second) {
		t.Error("a certificate without a wanted usage was kept")
	}
	if again := leaf(t, ensure(t, open(), dir, server)); !again.Equal(third) {
		t.Error("a certificate that can do more was issued again")
	}
	now = now.Add(leafLife - renewBefore + time.Minute)
	if late := leaf(t, ensure(t, open(), dir, server)); late.Equal(third) {
		t.Error("a certificate near its end was kept")
	}
	other, err := OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	before := leaf(t, ensure(t, open(), dir, server))
	if foreign := leaf(t, ensure(t, other, dir, server)); foreign.Equal(before) {
		t.Error("a certificate of another authority was kept")
	}
}

func TestAuthorityIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenAuthority(dir); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "ca.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("ca.key: mode %v, error %v", info.Mode(), err)
	}
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(dir); err == nil {
		t.Error("an authority without its key was opened")
	}
}

func TestRequestsRefused(t *testing.T) {
	a, err := OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []Request{
		{Name: "", Server: true},
		{Name: "../x", Server: true},
		{Name: "ca", Server: true},
		{Name: "x"},
	} {
		if _, err := a.Ensure(t.TempDir(), r); err == nil {
			t.Errorf("Ensure(%+v) succeeded", r)
		}
	}
}

func TestConcurrentOpeners(t *testing.T) {
	dir := t.TempDir()
	certificates := make([]*x509.Certificate, 8)
	var wg sync.WaitGroup
	for i := range certificates {
		wg.Go(func() {
			a, err := OpenAuthority(dir)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := a.Ensure(dir, Request{Name: "n", Hosts: []string{"h"}, Server: true}); err != nil {
				t.Error(err)
			}
			certificates[i] = a.cert
		})
	}
	wg.Wait()
	for _, c := range certificates {
		if c == nil || !c.Equal(certificates[0]) {
			t.Fatal("two openers made two authorities")
		}
	}
}

// handshake connects client to server and gives the client's view, or its error.
func handshake(t *testing.T, server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	a, b := net.Pipe()
	serverSide, clientSide := tls.Server(a, server), tls.Client(b, client)
	done := make(chan error, 1)
	go func() {
		err := serverSide.HandshakeContext(ctx)
		if err == nil {
			_, err = serverSide.Write([]byte{1})
		}
		done <- err
		a.Close()
	}()
	err := clientSide.HandshakeContext(ctx)
	if err == nil { // under TLS 1.3 the server's verdict on our certificate comes after our handshake
		_, err = clientSide.Read(make([]byte, 1))
	}
	b.Close()
	if serverErr := <-done; err == nil {
		err = serverErr
	}
	return clientSide.ConnectionState(), err
}

func TestMutualTLSAndReload(t *testing.T) {
	dir := t.TempDir()
	a, err := OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	other, err := OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := newReloader(t, ensure(t, a, dir, Request{Name: "agent", Hosts: []string{"agent1"}, Server: true}))
	client := newReloader(t, ensure(t, a, dir, Request{Name: "admin", Client: true}))
	stranger := newReloader(t, ensure(t, other, t.TempDir(), Request{Name: "admin", Client: true}))
	stranger.files.CA, stranger.state.roots = client.files.CA, client.state.roots // trusts our server
	wrongUse := newReloader(t, ensure(t, a, dir, Request{Name: "srv", Hosts: []string{"x"}, Server: true}))

	serverConfig := server.ServerConfig(tls.RequireAndVerifyClientCert)
	state, err := handshake(t, serverConfig, client.ClientConfig("agent1"))
	if err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]*tls.Config{
		"wrong host":           client.ClientConfig("agent2"),
		"other authority":      stranger.ClientConfig("agent1"),
		"server's certificate": wrongUse.ClientConfig("agent1"),
		"none":                 {ServerName: "agent1", RootCAs: client.state.roots},
	} {
		if _, err := handshake(t, serverConfig, cfg); err == nil {
			t.Errorf("%s: handshake succeeded", name)
		}
	}

	first := state.PeerCertificates[0]
	ensure(t, a, dir, Request{Name: "agent", Hosts: []string{"agent1", "agent9"}, Server: true})
	state, err = handshake(t, serverConfig, client.ClientConfig("agent9"))
	if err != nil || state.PeerCertificates[0].Equal(first) {
		t.Errorf("a new certificate was not loaded: %v", err)
	}
	if err := os.WriteFile(server.files.Cert, []byte("rubbish"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err = handshake(t, serverConfig, client.ClientConfig("agent9")); err != nil {
		t.Errorf("the last good certificate did not stay in use: %v", err)
	}
}

func newReloader(t *testing.T, files Files) *Reloader {
	t.Helper()
	r, err := NewReloader(files, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r.every = 0
	return r
}

func TestReloaderNeedsGoodFiles(t *testing.T) {
	dir := t.TempDir()
	a, err := OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := ensure(t, a, dir, Request{Name: "n", Server: true})
	for _, bad := range []Files{
		{Cert: files.Cert, Key: filepath.Join(dir, "ca.key")},
		{Cert: filepath.Join(dir, "none"), Key: files.Key},
		{Cert: files.Cert, Key: files.Key, CA: files.Key},
	} {
		if _, err := NewReloader(bad, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%+v was loaded", bad)
		}
	}
}
