// Package fakepg holds servers for tests: Server plays scripts in the place of Postgres, to fix the order of protocol
// messages, and Proxy stands before a real server and cuts, stalls or delays what goes through.
//
// Each connection runs in one goroutine (a Proxy's in two). They all end, and are waited for, in the test's cleanup,
// which also reports every script that failed or was not played to its end. Steps run one after the other in the
// connection's goroutine and must not call the test's FailNow.
//
// Manual: https://www.postgresql.org/docs/current/protocol-message-formats.html
package fakepg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// limit bounds a script: a test that hangs fails with the step it hung in. When the test is over, what is on its way may
// still arrive for the time of grace.
const (
	limit = 30 * time.Second
	grace = time.Second
)

// Step is one act of a script.
type Step struct {
	name string
	run  func(*Conn) error
	last bool // being cut off in this step is no failure
}

// Script is what one connection does.
type Script []Step

// Server plays a script for each connection.
type Server struct {
	tb       testing.TB
	listener *net.TCPListener
	scripts  []Script
	wg       sync.WaitGroup
	done     []chan struct{} // one for each script, closed at its end

	mu      sync.Mutex
	started int
	ended   bool
	conns   map[net.Conn]bool // the value says whether its script is in a step that may be cut off
	over    chan struct{}     // closed when the test is over
	errs    []error
}

// Start listens on a free port of the loopback. The nth connection plays the nth script; one too many is a failure.
func Start(tb testing.TB, scripts ...Script) *Server {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := &Server{tb: tb, listener: l.(*net.TCPListener), scripts: scripts, conns: map[net.Conn]bool{}, over: make(chan struct{})}
	for range scripts {
		s.done = append(s.done, make(chan struct{}))
	}
	s.wg.Go(s.accept)
	tb.Cleanup(s.end)
	return s
}

// Addr is host:port of the server.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Port is the port alone.
func (s *Server) Port() int { return s.listener.Addr().(*net.TCPAddr).Port }

// Dial connects to the server; the connection is closed at the test's end.
func (s *Server) Dial(ctx context.Context) net.Conn {
	s.tb.Helper()
	return dialFor(ctx, s.tb, s.Addr())
}

// Wait waits until script n (from 0) has ended.
func (s *Server) Wait(ctx context.Context, n int) {
	s.tb.Helper()
	select {
	case <-s.done[n]:
	case <-ctx.Done():
		s.tb.Errorf("script %d did not end: %v", n, ctx.Err())
	}
}

func dialFor(ctx context.Context, tb testing.TB, addr string) net.Conn {
	tb.Helper()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	return conn
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		n, ok := s.start(conn)
		if !ok {
			conn.Close()
			continue
		}
		s.wg.Go(func() { s.play(n, conn) })
	}
}

// start registers a connection and gives the number of its script.
func (s *Server) start(conn net.Conn) (n int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = s.started
	s.started++
	if n >= len(s.scripts) {
		s.errs = append(s.errs, fmt.Errorf("connection %d came, but there are only %d scripts", n, len(s.scripts)))
		return 0, false
	}
	s.conns[conn] = false
	patience := limit
	if s.ended { // it came while the test still ran, and waited to be accepted
		patience = grace
		if s.started == len(s.scripts) {
			s.listener.Close()
		}
	}
	conn.SetDeadline(time.Now().Add(patience))
	return n, true
}

func (s *Server) play(n int, conn net.Conn) {
	defer close(s.done[n])
	defer conn.Close()
	c := &Conn{Net: conn, Backend: pgproto3.NewBackend(conn, conn), over: s.over}
	for i, step := range s.scripts[n] {
		if !s.enter(conn, step) {
			return
		}
		err := step.run(c)
		if errors.Is(err, errFinished) {
			return
		}
		s.mu.Lock()
		cutOff := s.ended && step.last
		if err != nil && !cutOff {
			s.errs = append(s.errs, fmt.Errorf("script %d, step %d (%s): %w", n, i, step.name, err))
		}
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// enter notes that a connection goes into a step, and says false if the test is over and the step needs not be run.
func (s *Server) enter(conn net.Conn, step Step) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[conn] = step.last
	return !s.ended || !step.last
}

// end stops the server and reports.
func (s *Server) end() {
	s.mu.Lock()
	s.ended = true
	close(s.over)
	for conn, mayBeCut := range s.conns {
		deadline := time.Now()
		if !mayBeCut {
			deadline = deadline.Add(grace)
		}
		conn.SetDeadline(deadline)
	}
	if s.started < len(s.scripts) {
		s.listener.SetDeadline(time.Now().Add(grace))
	} else {
		s.listener.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	s.listener.Close()
	for _, err := range s.errs {
		s.tb.Errorf("fakepg: %v", err)
	}
	for n := s.started; n < len(s.scripts); n++ {
		s.tb.Errorf("fakepg: script %d was not played: nobody connected", n)
	}
}

// errFinished ends a script early without failure.
var errFinished = errors.New("script finished")

// isGone reports whether err says that the peer has left or that the test is over.
func isGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, os.ErrDeadlineExceeded) || isReset(err)
}
