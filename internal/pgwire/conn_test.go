package pgwire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// pair gives two ends of a TCP connection.
func pair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type accepted struct {
		c   net.Conn
		err error
	}
	ch := make(chan accepted, 1)
	go func() {
		c, err := l.Accept()
		ch <- accepted{c, err}
	}()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	got := <-ch
	if got.err != nil {
		t.Fatal(got.err)
	}
	t.Cleanup(func() { a.Close(); got.c.Close() })
	return a, got.c
}

// echo answers each byte it receives, as a session that serves one-byte requests would.
type echo struct {
	c      *Conn
	buf    [64]byte
	parked int
}

func (e *echo) Buffer() []byte { return e.buf[:] }
func (e *echo) Park()          { e.parked++ }
func (e *echo) Received(n int) error {
	_, err := e.c.Write(e.buf[:n])
	return err
}

// TestServePipelined sends the second request while the first is served: no wake-up may be lost.
func TestServePipelined(t *testing.T) {
	var wg sync.WaitGroup
	for range 50 {
		client, server := pair(t)
		c := NewConn(server)
		wg.Go(func() {
			if err := c.Serve(&echo{c: c}); err != io.EOF {
				t.Errorf("Serve: %v", err)
			}
		})
		wg.Go(func() {
			defer client.Close()
			_ = client.SetDeadline(time.Now().Add(10 * time.Second))
			one := make([]byte, 1)
			for i := range 200 {
				if _, err := client.Write([]byte{byte(i)}); err != nil {
					t.Error(err)
					return
				}
				if i%2 == 1 {
					for range 2 {
						if _, err := io.ReadFull(client, one); err != nil {
							t.Errorf("hung: %v", err)
							return
						}
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestInterruptEndsServe(t *testing.T) {
	_, server := pair(t)
	c := NewConn(server)
	done := make(chan error, 1)
	go func() { done <- c.Serve(&echo{c: c}) }()
	c.Interrupt()
	if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Serve: %v", err)
	}
}

// TestExchangeBothWaysFull sends a request larger than all socket buffers to a peer that answers as much before it has
// read the request.
func TestExchangeBothWaysFull(t *testing.T) {
	const size = 32 << 20
	near, far := pair(t)
	out := bytes.Repeat([]byte("q"), size)
	go func() {
		go func() { _, _ = io.Copy(io.Discard, far) }()
		_, _ = far.Write(bytes.Repeat([]byte("a"), size))
	}()
	// The far side writes first and reads only slowly; the exchange must take the answer meanwhile.
	got := 0
	c := NewConn(near)
	err := c.Exchange(out, make([]byte, 32<<10), nil, func(chunk []byte) (bool, error) {
		got += len(chunk)
		return got == size, nil
	})
	if err != nil || got != size {
		t.Errorf("got %d bytes, %v", got, err)
	}
}

func TestExchangePeerGone(t *testing.T) {
	near, far := pair(t)
	far.Close()
	c := NewConn(near)
	err := c.Exchange([]byte("x"), make([]byte, 16), nil, func([]byte) (bool, error) { return false, nil })
	if err == nil {
		t.Error("no error from a closed peer")
	}
}

func TestAlive(t *testing.T) {
	near, far := pair(t)
	c := NewConn(near)
	if !c.Alive() {
		t.Error("not alive at first")
	}
	far.Close()
	deadline := time.Now().Add(5 * time.Second)
	for c.Alive() {
		if time.Now().After(deadline) {
			t.Fatal("alive after the peer closed")
		}
	}
}

func TestExchangeDoesNotAllocate(t *testing.T) {
	if !rawAllowed {
		t.Skip("the raw path is off in race builds")
	}
	near, far := pair(t)
	go func() { _, _ = io.Copy(far, far) }()
	c := NewConn(near)
	out, buf := []byte("x"), make([]byte, 64)
	on := func([]byte) (bool, error) { return true, nil }
	if n := testing.AllocsPerRun(100, func() {
		if err := c.Exchange(out, buf, nil, on); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations in an exchange", n)
	}
}

// TestWriting: a write that the peer does not take shows as such, and its end too. One that failed in the middle lets nothing
// follow it.
func TestWriting(t *testing.T) {
	peer, server := pair(t)
	c := NewConn(server)
	written := make(chan error, 1)
	stuck := func() uint64 { // waits until nothing gets on
		for last, same := c.Writing(), 0; ; time.Sleep(time.Millisecond) {
			now := c.Writing()
			if same++; now != last || now&1 == 0 {
				last, same = now, 0
			}
			if same == 100 {
				return now
			}
		}
	}
	go func() { _, err := c.Write(make([]byte, 64<<20)); written <- err }()
	before := stuck()
	if _, err := io.CopyN(io.Discard, peer, 64<<20); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if now := c.Writing(); now&1 != 0 || now <= before {
		t.Errorf("%d after the write, %d while it waited", now, before)
	}
	go func() { _, err := c.Write(make([]byte, 64<<20)); written <- err }()
	stuck()
	c.Interrupt()
	if err := <-written; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if n, err := c.Write([]byte("more")); err == nil || n > 0 {
		t.Errorf("%d bytes were written behind a part of something else", n)
	}
}
