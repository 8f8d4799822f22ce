package agent_test

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"neki/catalog"
	"neki/cluster/agent"
	"neki/internal/certs"
)

func reloader(t *testing.T, a *certs.Authority, r certs.Request) *certs.Reloader {
	t.Helper()
	files, err := a.Ensure(t.TempDir(), r)
	if err != nil {
		t.Fatal(err)
	}
	re, err := certs.NewReloader(files, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return re
}

// Over mutual TLS no token is needed, and without a certificate of the authority nothing is answered.
func TestMutualTLS(t *testing.T) {
	authority, err := certs.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := reloader(t, authority, certs.Request{Name: "agent", Hosts: []string{"127.0.0.1"}, Server: true})
	admin := reloader(t, authority, certs.Request{Name: "admin", Client: true})
	b := newBench(t)
	cfg := b.config("a", catalog.RoleReplica)
	cfg.Token, cfg.TLS = "", server.ServerConfig(tls.RequireAndVerifyClientCert)
	b.http.Transport.(*http.Transport).TLSClientConfig = admin.ClientConfig("127.0.0.1")
	a := b.run(cfg)
	a.Token = ""
	a.until(b, "report of an empty node", func(h catalog.Health) bool { return h.State == catalog.StateStopped && h.Reason != "" })

	bare := admin.ClientConfig("127.0.0.1")
	bare.GetClientCertificate = nil
	stranger := &http.Client{Transport: &http.Transport{TLSClientConfig: bare}}
	defer stranger.CloseIdleConnections()
	if _, err := (&agent.Client{URL: a.URL, HTTP: stranger}).Status(b.soon()); err == nil {
		t.Error("a caller without a certificate was answered")
	}
	open := b.config("b", catalog.RoleReplica)
	open.Token, open.TLS = "", server.ServerConfig(tls.NoClientCert)
	if _, err := agent.New(open); err == nil {
		t.Error("TLS without client certificates was accepted")
	}
}

// What a feed brings, a Live shows; with the catalog gone the stream goes on, with the agent gone the node is stale.
func TestFeed(t *testing.T) {
	b := newBench(t)
	a := b.primary()
	live := catalog.NewLive(b.store, cluster, slog.New(slog.DiscardHandler))
	feed := &agent.Feed{Live: live, HTTP: b.http, Token: token}
	b.background("live", live.Run)
	b.background("feed", feed.Run)
	b.view(live, "a serving primary", func(h *catalog.NodeHealth) bool {
		return h.State == catalog.StateServing && h.Role == catalog.RolePrimary && h.LagKnown && h.Lag == 0
	})
	b.store.Interrupt(errCut)
	seq := live.Snapshot().Health("a").Seq
	b.view(live, "reports without the catalog", func(h *catalog.NodeHealth) bool { return h.Seq > seq+8 })
	b.store.Interrupt(nil)
	a.end(t)
	b.view(live, "a stale report", func(h *catalog.NodeHealth) bool { return h.Stale && h.State == catalog.StateUnreachable })
	b.run(a.cfg) // at another URL
	b.view(live, "reports of the next agent", func(h *catalog.NodeHealth) bool {
		return !h.Stale && h.State == catalog.StateServing && h.Role == catalog.RolePrimary
	})
}

// A connection on which nothing is asked does not hold up the end of an API.
func TestServeEndsWithUnusedConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	answer := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	go func() { served <- agent.Serve(ctx, l, answer, nil, slog.New(slog.DiscardHandler)) }()
	unused, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer unused.Close()
	asked, err := http.Get("http://" + l.Addr().String()) // by the time it is answered the other one has been accepted, too
	if err != nil {
		t.Fatal(err)
	}
	_ = asked.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	end()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
