package fakepg

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Conn is one connection of a Server while its script runs.
type Conn struct {
	Net     net.Conn
	Backend *pgproto3.Backend
	Startup *pgproto3.StartupMessage // set by the login steps

	over <-chan struct{}
}

// PID and Secret are what Login sends as BackendKeyData.
const PID = 4242

// Secret goes with PID.
func Secret() []byte { return []byte{1, 2, 3, 4} }

// Run runs the step: for steps made of steps.
func (s Step) Run(c *Conn) error { return s.run(c) }

// Do is a step of one's own.
func Do(name string, run func(*Conn) error) Step { return Step{name: name, run: run} }

// ReadStartup reads the startup packet. It declines encryption.
func ReadStartup() Step { return Do("read startup", func(c *Conn) error { return c.readStartup() }) }

func (c *Conn) readStartup() error {
	for {
		m, err := c.Backend.ReceiveStartupMessage()
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *pgproto3.SSLRequest, *pgproto3.GSSEncRequest:
			if _, err := c.Net.Write([]byte{'N'}); err != nil {
				return err
			}
		case *pgproto3.StartupMessage:
			copied := *m
			c.Startup = &copied
			return nil
		default:
			return fmt.Errorf("got %T", m)
		}
	}
}

// Login lets the client in without a password and reports a few parameters, those given last.
func Login(params ...string) Step {
	return Do("login", func(c *Conn) error {
		if err := c.readStartup(); err != nil {
			return err
		}
		return c.send(greeting(params)...)
	})
}

func greeting(params []string) []pgproto3.BackendMessage {
	messages := []pgproto3.BackendMessage{&pgproto3.AuthenticationOk{}}
	all := append([]string{
		"server_version", "15.20", "server_encoding", "UTF8", "client_encoding", "UTF8",
		"standard_conforming_strings", "on", "integer_datetimes", "on",
	}, params...)
	for i := 0; i+1 < len(all); i += 2 {
		messages = append(messages, &pgproto3.ParameterStatus{Name: all[i], Value: all[i+1]})
	}
	return append(messages, &pgproto3.BackendKeyData{ProcessID: PID, SecretKey: Secret()}, Ready('I'))
}

// Ready is ReadyForQuery with a transaction status.
func Ready(status byte) pgproto3.BackendMessage { return &pgproto3.ReadyForQuery{TxStatus: status} }

// RefuseLogin reads the startup and answers with a FATAL.
func RefuseLogin(sqlstate, message string) Step {
	return Do("refuse login", func(c *Conn) error {
		if err := c.readStartup(); err != nil {
			return err
		}
		return c.send(&pgproto3.ErrorResponse{
			Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: sqlstate, Message: message,
		})
	})
}

// ExpectCancel reads a cancel request with this key, such as PID and Secret.
func ExpectCancel(pid uint32, secret []byte) Step {
	return Do("expect cancel", func(c *Conn) error {
		m, err := c.Backend.ReceiveStartupMessage()
		if err != nil {
			return err
		}
		cancel, ok := m.(*pgproto3.CancelRequest)
		if !ok || cancel.ProcessID != pid || !bytes.Equal(cancel.SecretKey, secret) {
			return fmt.Errorf("got %#v", m)
		}
		return nil
	})
}

// Expect reads one message that must equal want.
func Expect(want pgproto3.FrontendMessage) Step {
	return Do(fmt.Sprintf("expect %T", want), func(c *Conn) error {
		got, err := c.Backend.Receive()
		if err != nil {
			return err
		}
		return equal(got, want)
	})
}

// equal compares by wire form, for which nil and empty are one.
func equal(got, want pgproto3.FrontendMessage) error {
	a, errA := got.Encode(nil)
	b, errB := want.Encode(nil)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	if reflect.TypeOf(got) != reflect.TypeOf(want) || !bytes.Equal(a, b) {
		return fmt.Errorf("got %#v, want %#v", got, want)
	}
	return nil
}

// ExpectQuery reads a simple query with this text.
func ExpectQuery(sql string) Step { return Expect(&pgproto3.Query{String: sql}) }

// ExpectType reads messages that need only be of the types of these, in order.
func ExpectType(messages ...pgproto3.FrontendMessage) Step {
	var names []string
	for _, m := range messages {
		names = append(names, fmt.Sprintf("%T", m))
	}
	return Do("expect "+strings.Join(names, ", "), func(c *Conn) error {
		for _, want := range names {
			got, err := c.Backend.Receive()
			if err != nil {
				return err
			}
			if fmt.Sprintf("%T", got) != want {
				return fmt.Errorf("got %#v, want %s", got, want)
			}
		}
		return nil
	})
}

// Send sends messages in one write.
func Send(messages ...pgproto3.BackendMessage) Step {
	return Do("send", func(c *Conn) error { return c.send(messages...) })
}

func (c *Conn) send(messages ...pgproto3.BackendMessage) error {
	for _, m := range messages {
		c.Backend.Send(m)
	}
	return c.Backend.Flush()
}

// SendBytes sends bytes as they are.
func SendBytes(b []byte) Step {
	return Do("send bytes", func(c *Conn) error {
		_, err := c.Net.Write(b)
		return err
	})
}

// Answer gives a result of one text column, complete with ReadyForQuery.
func Answer(column string, values ...string) []pgproto3.BackendMessage {
	const textOID = 25
	messages := []pgproto3.BackendMessage{&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{
		{Name: []byte(column), DataTypeOID: textOID, DataTypeSize: -1, TypeModifier: -1},
	}}}
	for _, v := range values {
		messages = append(messages, &pgproto3.DataRow{Values: [][]byte{[]byte(v)}})
	}
	tag := fmt.Sprintf("SELECT %d", len(values))
	return append(messages, &pgproto3.CommandComplete{CommandTag: []byte(tag)}, Ready('I'))
}

// Serve answers each message with what answer returns, until the client leaves or terminates.
func Serve(answer func(pgproto3.FrontendMessage) []pgproto3.BackendMessage) Step {
	return Step{name: "serve", last: true, run: func(c *Conn) error {
		for {
			m, err := c.Backend.Receive()
			if isGone(err) {
				return errFinished
			}
			if err != nil {
				return err
			}
			if _, over := m.(*pgproto3.Terminate); over {
				return errFinished
			}
			if err := c.send(answer(m)...); err != nil {
				return err
			}
		}
	}}
}

// Signal closes ch, so that a test knows that the script came this far.
func Signal(ch chan<- struct{}) Step {
	return Do("signal", func(*Conn) error { close(ch); return nil })
}

// Await waits for a test to close ch.
func Await(ch <-chan struct{}) Step {
	return Do("await", func(c *Conn) error {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-ch:
			return nil
		case <-timer.C:
			return errors.New("nobody signalled in time")
		case <-c.over:
			return errors.New("the test ended without the signal")
		}
	})
}

// ExpectClose waits until the client closes, with Terminate or without.
func ExpectClose() Step {
	return Do("expect close", func(c *Conn) error {
		m, err := c.Backend.Receive()
		if _, ok := m.(*pgproto3.Terminate); ok && err == nil {
			_, err = c.Backend.Receive()
		} else if err == nil {
			return fmt.Errorf("got %#v", m)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || isReset(err) {
			return nil
		}
		return err
	})
}

// Hang reads and drops what comes, and says nothing, until the client or the test ends.
func Hang() Step {
	return Step{name: "hang", last: true, run: func(c *Conn) error {
		_, err := io.Copy(io.Discard, c.Net)
		if err == nil || isReset(err) {
			return errFinished
		}
		return err
	}}
}

// Reset closes the connection with a TCP reset.
func Reset() Step {
	return Do("reset", func(c *Conn) error {
		if err := c.Net.(*net.TCPConn).SetLinger(0); err != nil {
			return err
		}
		return errors.Join(c.Net.Close(), errFinished)
	})
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
