package pgwire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// tlsPair gives a client under TLS and the served side of its connection. What the client writes goes through cut, which
// may send it in pieces.
func tlsPair(t testing.TB, cut func(net.Conn) net.Conn) (*tls.Conn, *Conn) {
	t.Helper()
	serverConfig, clientConfig := testTLS(t)
	near, far := pair(t)
	server := tls.Server(newTLSSocket(far, nil), serverConfig)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	shaken := make(chan error, 1)
	go func() { shaken <- server.HandshakeContext(ctx) }()
	client := tls.Client(cut(near), clientConfig)
	if err := errors.Join(client.HandshakeContext(ctx), <-shaken); err != nil {
		t.Fatal(err)
	}
	_ = client.SetDeadline(time.Now().Add(30 * time.Second))
	return client, NewConn(server)
}

// byteByByte sends each write in pieces of one byte, so that no record arrives whole.
type byteByByte struct{ net.Conn }

func (c byteByByte) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := c.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

// TestServeTLS serves clients under TLS whose records come whole, in pieces and several at a time.
func TestServeTLS(t *testing.T) {
	for name, cut := range map[string]func(net.Conn) net.Conn{
		"whole":     func(c net.Conn) net.Conn { return c },
		"in pieces": func(c net.Conn) net.Conn { return byteByByte{c} },
	} {
		t.Run(name, func(t *testing.T) {
			client, c := tlsPair(t, cut)
			served := make(chan error, 1)
			go func() { served <- c.Serve(&echo{c: c}) }()
			want, got := make([]byte, 1000), make([]byte, 1000)
			for i := range want {
				want[i] = byte(i)
			}
			for size := 1; size <= len(want); size += 37 {
				for _, half := range [][]byte{want[:size/2], want[size/2 : size]} {
					if _, err := client.Write(half); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := io.ReadFull(client, got[:size]); err != nil || !bytes.Equal(got[:size], want[:size]) {
					t.Fatalf("%d bytes: got % x, %v", size, got[:size], err)
				}
			}
			_ = client.Close()
			if err := <-served; err != io.EOF {
				t.Errorf("Serve: %v", err)
			}
		})
	}
}

// TestServeTLSBigAnswer: a client that is slow to read gets all of an answer that its socket does not take at once.
func TestServeTLSBigAnswer(t *testing.T) {
	client, c := tlsPair(t, func(c net.Conn) net.Conn { return c })
	answer := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.Serve(&answerer{c: c, answer: answer}); err != io.EOF {
			t.Errorf("Serve: %v", err)
		}
	})
	for range 2 {
		if _, err := client.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(answer))
		if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, answer) {
			t.Fatalf("another answer, or %v", err)
		}
	}
	_ = client.Close()
	wg.Wait()
}

// answerer writes the same to every request.
type answerer struct {
	c      *Conn
	buf    [64]byte
	answer []byte
}

func (a *answerer) Buffer() []byte { return a.buf[:] }
func (a *answerer) Park()          {}
func (a *answerer) Received(int) error {
	_, err := a.c.Write(a.answer)
	return err
}

// TestServeTLSInterrupted: a wait can be ended, and the client told why.
func TestServeTLSInterrupted(t *testing.T) {
	client, c := tlsPair(t, func(c net.Conn) net.Conn { return c })
	served := make(chan error, 1)
	go func() { served <- c.Serve(&echo{c: c}) }()
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	one := make([]byte, 1)
	if _, err := io.ReadFull(client, one); err != nil {
		t.Fatal(err)
	}
	c.Interrupt()
	if err := <-served; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Serve: %v", err)
	}
	_ = c.SetDeadline(time.Time{})
	if _, err := c.Write([]byte("y")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(client, one); err != nil || one[0] != 'y' {
		t.Errorf("got %q, %v", one, err)
	}
}

// TestServeTLSGarbage: bytes that are no record end the session with an error.
func TestServeTLSGarbage(t *testing.T) {
	client, c := tlsPair(t, func(c net.Conn) net.Conn { return c })
	served := make(chan error, 1)
	go func() { served <- c.Serve(&echo{c: c}) }()
	if _, err := client.NetConn().Write(bytes.Repeat([]byte{0x17, 3, 3, 0, 8}, 3)); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err == nil || err == io.EOF {
		t.Errorf("Serve: %v", err)
	}
}

// TestInterruptTLSWrite: an answer that is written as the session is interrupted comes to the client, and so does what
// the session says last.
func TestInterruptTLSWrite(t *testing.T) {
	client, c := tlsPair(t, func(c net.Conn) net.Conn { return c })
	c.Interrupt()
	if _, err := c.Write([]byte("answer ")); err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write([]byte("last word")); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if got, err := io.ReadAll(client); err != nil || string(got) != "answer last word" {
		t.Errorf("the client read %q, %v", got, err)
	}
}

// TestTornTLSWrite: nothing follows a record that the client has only a part of, so that what it sees is an end, not a
// forgery.
func TestTornTLSWrite(t *testing.T) {
	client, c := tlsPair(t, func(c net.Conn) net.Conn { return c })
	_ = c.SetDeadline(time.Now().Add(50 * time.Millisecond))
	sent := 0
	for {
		n, err := c.Write(make([]byte, 1<<20))
		if sent += n; err != nil {
			break
		}
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = c.Write([]byte("last word"))
	_ = c.Close()
	got, err := io.ReadAll(client)
	if !errors.Is(err, io.ErrUnexpectedEOF) || len(got) > sent {
		t.Errorf("the client read %d of %d bytes, then %v", len(got), sent, err)
	}
}
