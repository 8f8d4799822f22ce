package fakepg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func connect(t *testing.T, addr string) (*pgconn.PgConn, error) {
	t.Helper()
	ctx := within(t)
	conn, err := pgconn.Connect(ctx, "postgres://u@"+addr+"/d?sslmode=disable")
	if err == nil {
		t.Cleanup(func() { conn.Close(ctx) })
	}
	return conn, err
}

func TestScriptIsPlayed(t *testing.T) {
	played := make(chan struct{})
	s := Start(t,
		Script{
			Login("search_path", "public"), ExpectQuery("select 1"), Send(Answer("?column?", "1")...),
			Signal(played), ExpectClose(),
		},
		Script{RefuseLogin("53300", "sorry, too many clients already")},
		Script{ExpectCancel(PID, Secret())},
	)
	conn, err := connect(t, s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if got := conn.ParameterStatus("search_path"); got != "public" {
		t.Errorf("search_path is %q", got)
	}
	results, err := conn.Exec(within(t), "select 1").ReadAll()
	if err != nil || len(results) != 1 || string(results[0].Rows[0][0]) != "1" {
		t.Errorf("got %v, error %v", results, err)
	}
	<-played
	var refused *pgconn.PgError
	if _, err := connect(t, s.Addr()); !errors.As(err, &refused) || refused.Code != "53300" {
		t.Errorf("second login: %v", err)
	}
	if err := conn.CancelRequest(within(t)); err != nil {
		t.Error(err)
	}
	s.Wait(within(t), 2)
	conn.Close(within(t))
	s.Wait(within(t), 0)
}

// recorder stands for a test that a script fails.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func TestFailuresAreReported(t *testing.T) {
	r := &recorder{TB: t}
	s := Start(r,
		Script{Login(), ExpectQuery("select 1"), Send(Answer("a")...)},
		Script{Login(), ExpectQuery("select 1")},
		Script{Login(), Hang()},
		Script{Login()},
	)
	conn := s.Dial(within(t)) // not by a driver, which would try to cancel
	if _, err := conn.Write(opening(t, &pgproto3.Query{String: "select 2"})); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Fatal(err)
	}
	for range 2 { // one script waits for a query at the end, one hangs as it may
		if _, err := connect(t, s.Addr()); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range r.cleanups {
		f()
	}
	got := strings.Join(r.failures, "\n")
	for _, want := range []string{"script 0, step 1", "select 2", "script 1, step 1", "script 3 was not played"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "script 2") {
		t.Errorf("hanging was reported:\n%s", got)
	}
}

// echo answers each query with its text.
func echo(m pgproto3.FrontendMessage) []pgproto3.BackendMessage {
	return Answer("text", m.(*pgproto3.Query).String)
}

func TestProxy(t *testing.T) {
	loginBytes := startupLength(t)
	for name, c := range map[string]struct {
		rule  Rule
		fails bool
	}{
		"none":        {rule: Rule{After: 1 << 30}},
		"delay":       {rule: Rule{Direction: ToClient, After: loginBytes, Action: Delay, Delay: time.Millisecond}},
		"cut":         {rule: Rule{Direction: ToClient, After: loginBytes + 3, Action: Cut}, fails: true},
		"reset":       {rule: Rule{Direction: ToClient, After: loginBytes, Action: CutReset}, fails: true},
		"stall":       {rule: Rule{Direction: ToClient, After: loginBytes, Action: Stall}, fails: true},
		"drop":        {rule: Rule{Direction: ToClient, After: loginBytes + 8, Action: Drop}, fails: true},
		"lost query":  {rule: Rule{Direction: ToServer, After: 100, Action: Drop}, fails: true},
		"mid startup": {rule: Rule{Direction: ToServer, After: 5, Action: Cut}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := Start(t, Script{Do("login or go", func(c *Conn) error {
				err := Login().run(c)
				if isGone(err) {
					return errFinished
				}
				return err
			}), Serve(echo)})
			p := StartProxy(t, s.Addr())
			p.Next(c.rule)
			patience := 10 * time.Second
			if c.fails {
				patience = 100 * time.Millisecond
			}
			err := ask(t, p.Dial(within(t)), patience)
			if (err != nil) != c.fails {
				t.Errorf("error %v, want one: %v", err, c.fails)
			}
			if p.Accepted() == 0 {
				t.Error("the connection went past the proxy")
			}
		})
	}
}

// ask logs in, sends a query and reads until it was answered.
func ask(t *testing.T, conn net.Conn, patience time.Duration) error {
	t.Helper()
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(opening(t, &pgproto3.Query{String: strings.Repeat("x", 200)})); err != nil {
		return err
	}
	client := pgproto3.NewFrontend(conn, conn)
	for ready := 0; ready < 2; {
		m, err := client.Receive()
		if err != nil {
			return err
		}
		if _, ok := m.(*pgproto3.ReadyForQuery); ok {
			ready++
		}
	}
	return nil
}

// startupLength counts the bytes that Login sends.
func startupLength(t *testing.T) (n int64) {
	t.Helper()
	for _, m := range greeting(nil) {
		b, err := m.Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		n += int64(len(b))
	}
	return n
}

// opening gives the bytes of a startup packet and messages.
func opening(t *testing.T, messages ...pgproto3.FrontendMessage) (out []byte) {
	t.Helper()
	startup := &pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersionNumber, Parameters: map[string]string{"user": "u"},
	}
	for _, m := range append([]pgproto3.FrontendMessage{startup}, messages...) {
		var err error
		if out, err = m.Encode(out); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestCutAll(t *testing.T) {
	s := Start(t, Script{Login(), Serve(echo)})
	p := StartProxy(t, s.Addr())
	conn := p.Dial(within(t))
	if _, err := conn.Write(opening(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, startupLength(t))); err != nil {
		t.Fatal(err)
	}
	p.CutAll()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection lives on")
	}
}
