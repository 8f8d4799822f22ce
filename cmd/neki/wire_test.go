package main

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"neki/internal/certs"
	"neki/settings"
)

// handshake connects a client to a server of the given files and gives the client's error.
func handshake(t *testing.T, server certs.Files, client *tls.Config) error {
	t.Helper()
	r, err := certs.NewReloader(server, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", r.ServerConfig(tls.NoClientCert))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := l.Accept(); err == nil {
			_, _ = io.Copy(io.Discard, c) // the client's error counts
			_ = c.Close()
		}
	}()
	defer func() {
		_ = l.Close()
		<-done
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(raw, client)
	defer c.Close() //nolint:errcheck // the handshake counts
	return c.HandshakeContext(t.Context())
}

func TestBackendTLS(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	instance := func(dir string) certs.Files {
		authority, err := certs.OpenAuthority(dir)
		if err != nil {
			t.Fatal(err)
		}
		files, err := authority.Ensure(dir, certs.Request{Name: "pg", Hosts: []string{"elsewhere"}, Server: true})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	ours, strange := instance(t.TempDir()), instance(t.TempDir())
	cfg, err := backendTLS(settings.TLS{CA: ours.CA}, log)
	if err != nil {
		t.Fatal(err)
	}
	if err := handshake(t, ours, cfg); err != nil {
		t.Errorf("an instance of the authority: %v", err)
	}
	if err := handshake(t, strange, cfg); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a stranger: %v", err)
	}
	if cfg, err := backendTLS(settings.TLS{}, log); cfg != nil || err != nil {
		t.Errorf("without configuration: %v %v", cfg, err)
	}
	if _, err := backendTLS(settings.TLS{CA: "/none"}, log); err == nil {
		t.Error("a file that is not there is accepted")
	}
}

func TestReachable(t *testing.T) {
	name, err := os.Hostname()
	if err != nil {
		t.Skip(err)
	}
	for in, want := range map[string]string{
		"127.0.0.1:6432": "127.0.0.1:6432", "[::1]:6432": "[::1]:6432", "0.0.0.0:6432": name + ":6432", "[::]:6432": name + ":6432",
	} {
		if got := reachable(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(in))); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
