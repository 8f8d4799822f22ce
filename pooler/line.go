package pooler

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/internal/pgwire"
	"neki/pooler/backend"
)

// line is a connection of a hub to one shard's primary. Its run reads; anybody may ask.
type line struct {
	hub   *hub
	shard string
	node  string
	conn  net.Conn

	mu       sync.Mutex
	sent     uint64 // queries
	answered uint64
	waits    []lineWait // for answers, in order
	failed   error      // why it is of no use any more
}

type lineWait struct {
	answer uint64
	done   chan<- error // has room
}

// lineTimeout bounds a login, a write and an answer of an instance.
const lineTimeout = 5 * time.Second

// openLine logs in to an instance as the gateway itself: listening needs no rights.
func openLine(ctx context.Context, h *hub, n *catalog.Node) (*line, error) {
	ctx, cancel := context.WithTimeout(ctx, lineTimeout)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}}
	nc, err := d.DialContext(ctx, "tcp", net.JoinHostPort(n.Host, strconv.Itoa(n.Port)))
	if err != nil {
		return nil, &backend.ConnectError{Node: n.ID, Err: err}
	}
	system := h.srv.cfg.System
	g, err := pgwire.Connect(ctx, nc, pgwire.BackendLogin{
		User: system.User, Password: system.Password, Database: h.name, TLS: h.srv.cfg.BackendTLS,
		Params: []pgwire.Pair{{Name: "application_name", Value: "neki notifications"}, {Name: "search_path", Value: "pg_catalog"}},
	})
	if err != nil {
		_ = nc.Close()
		return nil, &backend.ConnectError{Node: n.ID, Err: err}
	}
	_ = nc.SetDeadline(time.Time{})
	l := &line{hub: h, shard: n.Shard, node: n.ID, conn: g.Conn}
	l.tell(h.listenAll())
	return l, nil
}

// run reads until the connection ends, and tells the hub then.
func (l *line) run() {
	err := l.read()
	l.close(err)
	l.mu.Lock()
	err = l.failed
	for _, w := range l.waits {
		w.done <- err
	}
	l.waits = nil
	l.mu.Unlock()
	l.hub.lost(l, err)
}

func (l *line) read() error {
	in := pgproto3.NewFrontend(l.conn, l.conn)
	for {
		m, err := in.Receive()
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *pgproto3.NotificationResponse:
			l.hub.notified(l, m.PID, m.Channel, m.Payload)
		case *pgproto3.ReadyForQuery:
			l.answer()
		case *pgproto3.ErrorResponse:
			return pgerr.FromResponse(m)
		}
	}
}

func (l *line) answer() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answered++
	for len(l.waits) > 0 && l.waits[0].answer <= l.answered {
		l.waits[0].done <- nil
		l.waits = l.waits[1:]
	}
}

// ask runs a query and waits for its end: what the server had to notify before has been passed on then.
func (l *line) ask(ctx context.Context, sql string) error {
	done := make(chan error, 1)
	if err := l.send(sql, done); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, lineTimeout)
	defer cancel()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		l.close(errNoAnswer)
		return errNoAnswer
	}
}

var errNoAnswer = errors.New("no answer")

// tell runs a query whose end nobody waits for.
func (l *line) tell(sql string) { _ = l.send(sql, nil) }

func (l *line) send(sql string, done chan<- error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return l.failed
	}
	_ = l.conn.SetWriteDeadline(time.Now().Add(lineTimeout))
	if _, err := l.conn.Write(backend.AppendQuery(nil, sql)); err != nil {
		l.closeLocked(err)
		return err
	}
	l.sent++
	if done != nil {
		l.waits = append(l.waits, lineWait{l.sent, done})
	}
	return nil
}

// close ends the connection; its run does the rest.
func (l *line) close(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closeLocked(cause)
}

func (l *line) closeLocked(cause error) {
	if l.failed == nil {
		l.failed = cause
		_ = l.conn.Close()
	}
}
