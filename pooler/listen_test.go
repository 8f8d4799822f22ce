package pooler

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"neki/internal/pgerr"
)

// notified gives the payload of the next notification, which comes while the session does nothing.
func notified(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	n, err := conn.WaitForNotification(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return n.Payload
}

func TestNotificationsReachAnIdleListener(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	listener, sender := g.connect(""), g.connect("")
	simple(t, listener, "LISTEN news")
	for i := range 20 {
		simple(t, sender, "NOTIFY news, '"+strconv.Itoa(i)+"'")
		if got := notified(t, listener); got != strconv.Itoa(i) {
			t.Errorf("notification %d: %s", i, got)
		}
		if i%3 == 0 { // statements in between find the connection as it was
			if got := one(t, listener, "SELECT 'between'"); got != "between" {
				t.Error(got)
			}
		}
	}
}

// TestManyLongNotifications sends more than a read takes, so that messages come in pieces.
func TestManyLongNotifications(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	listener, sender := g.connect(""), g.connect("")
	simple(t, listener, "LISTEN news")
	simple(t, sender, "SELECT pg_notify('news', i || repeat('x', 7000)) FROM generate_series(1, 500) i")
	for i := 1; i <= 500; i++ {
		if got := notified(t, listener); strings.TrimRight(got, "x") != strconv.Itoa(i) || len(got) < 7000 {
			t.Fatalf("notification %d: %.20s, %d bytes", i, got, len(got))
		}
	}
}

// TestListenerLosesItsServer ends the server connection of an idle listener, who must not wait on in vain.
func TestListenerLosesItsServer(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	listener, other := g.connect(""), g.connect("")
	simple(t, listener, "DO $$ BEGIN END $$") // pins, so that it listens by its own
	simple(t, listener, "LISTEN news")
	simple(t, other, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN news'")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := listener.WaitForNotification(ctx)
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != pgerr.AdminShutdown {
		t.Errorf("got %v, want the server's 57P01", err)
	}
}

// TestListenerIsDrained ends an idle listener in order.
func TestListenerIsDrained(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	listener := g.connect("")
	simple(t, listener, "LISTEN news")
	g.server.sessions.each(func(c *Session) { c.drain() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := listener.WaitForNotification(ctx); pgerr.Code(err) != pgerr.AdminShutdown {
		t.Errorf("got %v, want 57P01", err)
	}
}
