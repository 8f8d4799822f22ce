package pooler

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"neki/internal/pgerr"
)

// listensFree waits until a session that has said LISTEN holds no connection for it.
func (g *gateway) listensFree() {
	g.t.Helper()
	eventually(g.t, "no connection is pinned", func() bool {
		active := 0
		for _, p := range g.server.pools.Stats() {
			active += p.Active
		}
		return active == 0
	})
}

// TestListenersShareAConnection has many clients listen over a pool of one connection, which stays free for others.
func TestListenersShareAConnection(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(1)})
	sender := g.connect("")
	var listeners []*pgx.Conn
	for i := range 20 {
		conn := g.connect("")
		simple(t, conn, "LISTEN news")
		simple(t, conn, fmt.Sprintf(`LISTEN "Own %d"`, i))
		listeners = append(listeners, conn)
	}
	g.listensFree()
	const count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'neki notifications'"
	if got := g.group.Primary.Text(count); got != "1" {
		t.Errorf("%s connections listen", got)
	}
	for i := range 50 {
		simple(t, sender, fmt.Sprintf("NOTIFY news, '%d'", i))
	}
	for i, conn := range listeners {
		simple(t, sender, fmt.Sprintf(`NOTIFY "Own %d", 'last'`, i))
		for k := range 50 {
			if got := notified(t, conn); got != strconv.Itoa(k) {
				t.Fatalf("listener %d, notification %d: %s", i, k, got)
			}
		}
		if got := notified(t, conn); got != "last" {
			t.Errorf("listener %d: %s", i, got)
		}
	}
	for _, conn := range listeners {
		_ = conn.Close(t.Context())
	}
	eventually(t, "nobody listens", func() bool { return !g.server.dbs.get("postgres").hub.used.Load() })
}

// notifications are what a client of the wire hears in the answers, as "own" or "other" with channel and payload.
func (r *wireClient) notifications(ready int, messages ...[]byte) string {
	r.t.Helper()
	r.send(messages...)
	var out []string
	for ready > 0 {
		_ = r.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		typ, body, err := readFrame(r.conn)
		if err != nil {
			return strings.Join(append(out, err.Error()), " ")
		}
		switch typ {
		case 'A':
			out = append(out, r.notification(body))
		case 'E':
			out = append(out, readable(typ, body))
		case 'Z':
			ready--
			out = append(out, string(body))
		}
	}
	return strings.Join(out, " ")
}

func (r *wireClient) notification(body []byte) string {
	var n pgproto3.NotificationResponse
	if err := n.Decode(body); err != nil {
		return err.Error()
	}
	whose := "other"
	if n.PID == r.pid {
		whose = "own"
	}
	return whose + ":" + n.Channel + ":" + n.Payload
}

// TestNotificationsAreAsInPostgres: a client's own notifications come before its ReadyForQuery, and LISTEN and UNLISTEN
// obey transactions and savepoints.
func TestNotificationsAreAsInPostgres(t *testing.T) {
	scripts := map[string][]string{
		"own":                  {"listen a", "notify a, '1'", "notify a; notify a, '2'; notify b", "select pg_notify('a', '3')"},
		"one string":           {"listen a; notify a, '1'", "notify a, '2'; unlisten a; notify a, '3'", "notify a, '4'"},
		"a transaction":        {"begin", "listen a", "notify a, '1'", "commit", "begin", "notify a, '2'", "rollback", "notify a, '3'"},
		"rolled back":          {"begin", "listen a", "rollback", "notify a, '1'"},
		"failed":               {"listen a; select 1/0", "notify a, '1'"},
		"unlisten rolled back": {"listen a", "begin", "unlisten a", "notify a, '1'", "rollback", "notify a, '2'", "begin", "unlisten a", "notify a, '3'", "commit", "notify a, '4'"},
		"savepoints": {
			"listen a; listen b", "begin", "unlisten a", "savepoint s", "unlisten b", "rollback to s", "commit", "notify a, '1'; notify b, '2'",
			"begin", "savepoint s", "unlisten *", "rollback to s", "commit", "notify b, '3'",
		},
		"unlisten":    {"listen a", "listen b", "unlisten a", "notify a, '1'; notify b, '2'", "unlisten *", "notify b, '3'", "listen b", "notify b, '4'"},
		"again":       {"listen a", "listen a", "notify a, '1'", "begin; unlisten a; listen a; commit", "notify a, '2'", "begin; listen a; unlisten a; commit", "notify a, '3'"},
		"discard all": {"listen a", "discard all", "notify a, '1'", "listen a", "notify a, '2'"},
		"a trigger": {
			"create temp table x (a int); create function pg_temp.f() returns trigger language plpgsql as 'begin perform pg_notify(''a'', new.a::text); return new; end'",
			"create trigger x after insert on x for each row execute function pg_temp.f()", "listen a", "insert into x values (1), (2), (1)",
		},
		"names":    {`listen "A b""c"`, `notify "A b""c", '1'`, "listen " + strings.Repeat("n", 70), "notify " + strings.Repeat("n", 63) + ", '2'"},
		"channels": {"listen b; listen a", "select string_agg(c, ',' order by c) from pg_listening_channels() c", "notify a, '1'", "unlisten b", "select * from pg_listening_channels()", "notify a; notify b"},
	}
	for _, size := range poolSizes {
		t.Run(fmt.Sprintf("pool of %d", size), func(t *testing.T) {
			b := newBothWays(t, size)
			for name, script := range scripts {
				t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
					b.ways(t, name, func(cfg *pgx.ConnConfig) string { return b.talk(t, cfg, script, false) })
					b.ways(t, name+" by the extended protocol", func(cfg *pgx.ConnConfig) string { return b.talk(t, cfg, script, true) })
				})
			}
		})
	}
}

// talk gives what a client hears that runs a script, and the rows of its queries.
func (b *bothWays) talk(t *testing.T, cfg *pgx.ConnConfig, script []string, extended bool) string {
	t.Helper()
	c := newWireClient(t, cfg)
	defer c.conn.Close()
	var out []string
	for _, sql := range script {
		if strings.HasPrefix(sql, "select") && strings.Contains(sql, "channels") {
			out = append(out, c.ask(1, q(sql)))
			continue
		}
		if !extended || strings.Contains(sql, ";") {
			out = append(out, c.notifications(1, q(sql)))
			continue
		}
		out = append(out, c.notifications(1, parse("", sql), bindTo("", ""), execute("", 0), syncMsg))
	}
	return strings.Join(out, "\n    ")
}

// TestNotificationsWhileListening sends without a pause while a client begins to listen, time and again: from its LISTEN on
// none is lost, none comes twice, and their order is kept.
func TestNotificationsWhileListening(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(3)})
	g.group.Primary.Exec("CREATE SEQUENCE sent")
	sender := g.connect("")
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := trySimple(sender, "SELECT pg_notify('news', nextval('sent')::text)"); err != nil {
				done <- err
				return
			}
		}
	}()
	defer func() {
		close(stop)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for range 40 {
		conn := g.connect("")
		simple(t, conn, "LISTEN news")
		after, _ := strconv.Atoi(one(t, conn, "SELECT last_value FROM sent"))
		first, _ := strconv.Atoi(notified(t, conn))
		if first > after+1 {
			t.Errorf("the first notification is %d; %d was not sent yet when the client listened", first, after+1)
		}
		for k := first + 1; k < first+60; k++ {
			if got := notified(t, conn); got != strconv.Itoa(k) {
				t.Fatalf("after %d: %s", k-1, got)
			}
		}
		_ = conn.Close(t.Context())
	}
}

// TestNotificationsWaitForTheTransaction: none comes within one.
func TestNotificationsWaitForTheTransaction(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(2)})
	c, sender := newWireClient(t, g.config("")), g.connect("")
	if got := c.notifications(1, q("listen a")); got != "I" {
		t.Error(got)
	}
	if got := c.notifications(1, q("begin")); got != "T" {
		t.Error(got)
	}
	simple(t, sender, "NOTIFY a, '1'")
	for range 3 {
		if got := c.notifications(1, q("select 1")); got != "T" {
			t.Error(got)
		}
	}
	if got := c.notifications(1, q("commit")); got != "other:a:1 I" {
		t.Error(got)
	}
}

// TestHubLosesItsServer ends the connection that notifications come on: every client that listens is told, none waits in
// vain, and those that connect again hear again.
func TestHubLosesItsServer(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(2)})
	idle, busy, other := g.connect(""), g.connect(""), g.connect("")
	simple(t, idle, "LISTEN news")
	simple(t, busy, "LISTEN news; LISTEN more")
	g.listensFree()
	simple(t, busy, "BEGIN")
	simple(t, other, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'neki notifications'")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := idle.WaitForNotification(ctx)
	checkListenerLost(t, err)
	if got := one(t, busy, "SELECT 'still here'"); got != "still here" {
		t.Error(got)
	}
	simple(t, busy, "COMMIT")
	_, err = busy.WaitForNotification(ctx)
	checkListenerLost(t, err)
	again := g.connect("")
	simple(t, again, "LISTEN news")
	g.listensFree()
	simple(t, other, "NOTIFY news, 'again'")
	if got := notified(t, again); got != "again" {
		t.Error(got)
	}
}

func checkListenerLost(t *testing.T, err error) {
	t.Helper()
	var e *pgconn.PgError
	if !errors.As(err, &e) || e.Code != pgerr.ConnectionFailure || e.Severity != "FATAL" || !strings.Contains(e.Hint, "LISTEN") {
		t.Errorf("a client that listens is told %v", err)
	}
}

// TestSlowListener: what waits for a client that does not read is bounded; that client is ended, others go on.
func TestSlowListener(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(2)})
	slow, inTx, quick := newWireClient(t, g.config("")), g.connect(""), g.connect("")
	slow.ask(1, q("listen news"))
	simple(t, inTx, "LISTEN news")
	simple(t, inTx, "BEGIN")
	simple(t, quick, "LISTEN news")
	h := g.server.dbs.get("postgres").hub
	heard := make(chan error, 1)
	go func() {
		for range 40 * 100 {
			if _, err := quick.WaitForNotification(context.Background()); err != nil {
				heard <- err
				return
			}
		}
		heard <- nil
	}()
	sender := g.connect("")
	for range 40 {
		simple(t, sender, "SELECT pg_notify('news', i || repeat('x', 7900)) FROM generate_series(1, 100) i")
	}
	if err := <-heard; err != nil {
		t.Error(err)
	}
	eventually(t, "the slow client's session has ended", func() bool { return g.server.sessions.find(slow.pid) == nil })
	h.mu.Lock()
	held := h.held
	h.mu.Unlock()
	if held > 2*subscriptionLimit {
		t.Errorf("%d bytes wait", held)
	}
	simple(t, inTx, "SELECT 1")
	_, err := trySimple(inTx, "COMMIT")
	if err == nil {
		_, err = trySimple(inTx, "SELECT 1")
	}
	if pgerr.Code(err) != pgerr.InsufficientResources {
		t.Errorf("a client in a long transaction is told %v", err)
	}
}

// TestNotificationsNameTheirSession: a notification has the pid by which the client that sends it knows itself.
func TestNotificationsNameTheirSession(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(1)})
	listener := g.connect("")
	simple(t, listener, "LISTEN news")
	g.listensFree()
	for i := range 20 {
		sender := g.connect("")
		simple(t, sender, []string{"NOTIFY news", "SELECT pg_notify('news', 'x')", "BEGIN; NOTIFY news; SELECT 1; COMMIT"}[i%3])
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		n, err := listener.WaitForNotification(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if n.PID != sender.PgConn().PID() {
			t.Errorf("from %d, want %d", n.PID, sender.PgConn().PID())
		}
		_ = sender.Close(t.Context())
	}
}
