package pooler

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"neki/internal/pgerr"
	"neki/internal/pgwire"
)

// cancelRequest sends a cancel request and waits until the gateway closes, which must say nothing.
func cancelRequest(t testing.TB, addr string, pid uint32, key []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	packet := msgOf(0, int32(80877102), int32(pid), key)[1:]
	if _, err := conn.Write(packet); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(conn); len(got) > 0 || err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("a cancel request is answered by %q, %v", got, err)
	}
}

func (r *wireClient) cancel() { cancelRequest(r.t, r.conn.RemoteAddr().String(), r.pid, r.key) }

const (
	canceled = `C57014`
	sleep    = "select 'slept' from pg_sleep(%g)"
)

// running waits until a server runs the client's statement.
func (b *bothWays) running(t *testing.T, r *wireClient) {
	t.Helper()
	eventually(t, "the statement runs", func() bool {
		s := b.g.server.sessions.find(r.pid)
		if s == nil {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.active != nil
	})
}

func caseWrongCancelKey(t *testing.T, b *bothWays) {
	a := newWireClient(t, b.g.config(""))
	a.send(q(fmt.Sprintf(sleep, 0.5)))
	b.running(t, a)
	wrong := bytes.Clone(a.key)
	wrong[len(wrong)-1] ^= 1
	for _, key := range [][]byte{wrong, append(bytes.Clone(a.key), 0)} {
		cancelRequest(t, b.g.addr, a.pid, key)
	}
	cancelRequest(t, b.g.addr, a.pid+1, a.key)
	if got := listen(a.conn, 1); !strings.Contains(got, "slept") {
		t.Error(got)
	}
}

// caseLateCancels: a client's statement has ended, and another one's runs on its connection, when its cancel requests come.
func caseLateCancels(t *testing.T, b *bothWays) {
	defer b.single()()
	a, other := newWireClient(t, b.g.config("")), newWireClient(t, b.g.config(""))
	a.ask(1, q("select 1"))
	other.send(q(fmt.Sprintf(sleep, 1.0)))
	b.running(t, other)
	var all sync.WaitGroup
	for range 100 {
		all.Go(a.cancel)
	}
	all.Wait()
	if got := listen(other.conn, 1); !strings.Contains(got, "slept") {
		t.Error(got)
	}
}

func caseCancelInQueue(t *testing.T, b *bothWays) {
	defer b.single()()
	holder, waiter := newWireClient(t, b.g.config("")), newWireClient(t, b.g.config(""))
	holder.ask(1, q("begin; insert into t values (10)"))
	waiter.send(q("insert into t values (11)"))
	eventually(t, "the client waits", func() bool { return b.waiting() == 1 })
	waiter.cancel()
	if got := listen(waiter.conn, 1); !strings.Contains(got, canceled) {
		t.Error(got)
	}
	if got := holder.ask(1, q("commit")); !strings.Contains(got, "COMMIT") {
		t.Error(got)
	}
	if got := waiter.ask(1, q("select string_agg(k::text, ',' order by k) from t")); !strings.Contains(got, "1,2,10") || strings.Contains(got, "11") {
		t.Error(got)
	}
}

func (b *bothWays) waiting() (n int) {
	for _, p := range b.g.server.pools.Stats() {
		n += p.Waiting
	}
	return n
}

func caseCancelIdle(t *testing.T, b *bothWays) {
	a := newWireClient(t, b.g.config(""))
	for _, before := range []string{"select 1", "begin"} {
		a.ask(1, q(before))
		for range 20 {
			a.cancel()
		}
		if got, want := a.ask(1, parse("", "select 2"), bindTo("", ""), execute("", 0), syncMsg), "1{"; !strings.HasPrefix(got, want) || strings.Count(got, "Z{") != 1 || strings.Contains(got, "E{") {
			t.Error(got)
		}
	}
}

// single leaves the gateway one server connection, until restore is called.
func (b *bothWays) single() (restore func()) {
	restore = b.capacity(1)
	b.g.server.pools.Retire("")
	return restore
}

// second starts another gateway before the same cluster, which ends with the test.
func (b *bothWays) second(t *testing.T, change func(*Config)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := b.g.server.cfg
	cfg.ID, cfg.Index, cfg.Listeners = "gw2", 2, []net.Listener{l}
	change(&cfg)
	second, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- second.Run(ctx) }()
	t.Cleanup(func() {
		second.sessions.each(func(c *Session) { c.kill(errShutdown) })
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// caseCancelElsewhere has a client's cancel request come to another gateway, as behind a load balancer.
func caseCancelElsewhere(t *testing.T, b *bothWays) {
	addr := b.second(t, func(c *Config) { c.ForwardCancel = func(key *pgwire.CancelKey) { b.g.server.Cancel(key) } })
	a := newWireClient(t, b.g.config(""))
	a.send(q(fmt.Sprintf(sleep, 20.0)))
	b.running(t, a)
	cancelRequest(t, addr, a.pid, a.key)
	if got := listen(a.conn, 1); !strings.Contains(got, canceled) {
		t.Error(got)
	}
	cancelRequest(t, addr, a.pid, append([]byte{1}, a.key[1:]...)) // one of nobody
	if got := a.ask(1, q("select 'on'")); !strings.Contains(got, "on") {
		t.Error(got)
	}
}

// caseCancelUnderTLS: clients that speak protocol 3.2 have long keys, and some encrypt their cancel requests.
func caseCancelUnderTLS(t *testing.T, b *bothWays) {
	certificate := benchCertificate(t)
	addr := b.second(t, func(c *Config) { c.TLS = certificate.ServerConfig(tls.NoClientCert) })
	for version, size := range map[string]int{"3.0": 4, "3.2": 32} {
		cfg := b.g.config("")
		_, port, _ := net.SplitHostPort(addr)
		number, _ := strconv.Atoi(port)
		cfg.Port, cfg.TLSConfig, cfg.MaxProtocolVersion = uint16(number), certificate.ClientConfig("127.0.0.1"), version
		conn := b.g.connectAs(cfg)
		if got := len(conn.PgConn().SecretKey()); got != size {
			t.Errorf("protocol %s: a key of %d bytes", version, got)
		}
		done := make(chan error, 1)
		go func() {
			_, err := trySimple(conn, fmt.Sprintf(sleep, 15.0))
			done <- err
		}()
		eventually(t, "the statement runs", func() bool {
			return b.g.group.Primary.Text("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%slept%' AND pid <> pg_backend_pid()") == "1"
		})
		if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; pgerr.Code(err) != pgerr.QueryCanceled {
			t.Errorf("protocol %s: %v", version, err)
		}
	}
}

// caseManyCancels: whatever they hit, everything works afterwards.
func caseManyCancels(t *testing.T, b *bothWays) {
	defer b.single()()
	const clients, each = 20, 100
	var all sync.WaitGroup
	for range clients {
		r := newWireClient(t, b.g.config(""))
		all.Go(func() {
			for i := range each {
				r.send(q(fmt.Sprintf("select %d from pg_sleep(0.001)", i)))
				r.cancel()
				if got := listen(r.conn, 1); strings.Count(got, "Z{") != 1 || !strings.Contains(got, fmt.Sprintf(`%d"} C{`, i)) && !strings.Contains(got, canceled) {
					t.Errorf("statement %d: %s", i, got)
				}
			}
			if got := r.ask(1, q("select 'on'")); !strings.Contains(got, "on") {
				t.Error(got)
			}
		})
	}
	all.Wait()
	if got := one(t, b.g.connect(""), "SELECT 'next'"); got != "next" {
		t.Error(got)
	}
}

// caseCancelAtTheEnd sends a cancel request as a statement ends; the next client on its connection must not be hit.
func caseCancelAtTheEnd(t *testing.T, b *bothWays) {
	defer b.single()()
	a, other := newWireClient(t, b.g.config("")), newWireClient(t, b.g.config(""))
	for i := range 1000 {
		a.send(q("select 1"))
		var cancel sync.WaitGroup
		cancel.Go(a.cancel)
		if got := listen(a.conn, 1); strings.Count(got, "Z{") != 1 {
			t.Fatal(got)
		}
		if got := other.ask(1, q(fmt.Sprintf("select 'own %d' from pg_sleep(0.001)", i))); !strings.Contains(got, fmt.Sprintf("own %d", i)) {
			t.Fatalf("round %d: another client gets %s", i, got)
		}
		cancel.Wait()
	}
}

// TestCancelIsNotLost sends the cancel request right behind a statement: it may come before the server has begun.
func TestCancelIsNotLost(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(2)})
	for i := range 100 {
		a := newWireClient(t, g.config(""))
		a.ask(1, q("select 1"))
		state := func() sessionState { return sessionState(g.server.sessions.find(a.pid).state.Load()) }
		eventually(t, "the first statement has ended", func() bool { return state() == stateIdle })
		a.send(q(fmt.Sprintf(sleep, 8.0)))
		for state() != stateActive { // at once
			runtime.Gosched()
		}
		a.cancel()
		if got := listen(a.conn, 1); !strings.Contains(got, canceled) {
			t.Fatalf("round %d: %s", i, got)
		}
		_ = a.conn.Close()
	}
}

// TestTerminatedWhileRunning: a client whose session is ended in the midst of a statement is told just that.
func TestTerminatedWhileRunning(t *testing.T) {
	b := &bothWays{g: startGateway(t, gatewayOptions{parameters: poolOf(2)})}
	for i := range 30 {
		a := newWireClient(t, b.g.config(""))
		a.send(q(fmt.Sprintf(sleep, 15.0)))
		b.running(t, a)
		b.g.server.KillSession(a.pid)
		if got := listen(a.conn, 1); strings.Count(got, "E{") != 1 || !strings.Contains(got, "SFATAL|VFATAL|C57P01") || !strings.HasSuffix(got, "(EOF)") {
			t.Errorf("round %d: %s", i, got)
		}
	}
}

// TestLoginWhileAllConnectionsAreInUse: a client gets in although all connections of its role are held by transactions, as
// long as it brings no settings that a server must look at.
func TestLoginWhileAllConnectionsAreInUse(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(1)})
	holder := g.connect("")
	simple(t, holder, "BEGIN")
	node := g.live.Snapshot().PrimaryOf("sh1")
	pool := g.server.pools.Pool(node, holder.Config().User, "postgres")
	eventually(t, "what the last login was told is old", func() bool { return pool.FreshGreeting(greetingFresh) == nil })
	cfg := g.config("")
	cfg.RuntimeParams["application_name"] = "second"
	other := g.connectAs(cfg)
	if got := other.PgConn().ParameterStatus("application_name"); got != "second" {
		t.Errorf("application_name is %q", got)
	}
	if got := other.PgConn().ParameterStatus("server_version"); got != holder.PgConn().ParameterStatus("server_version") {
		t.Errorf("server_version is %q", got)
	}
	simple(t, holder, "COMMIT")
	if got := one(t, other, "SHOW application_name"); got != "second" {
		t.Error(got)
	}
}
