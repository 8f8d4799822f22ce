package chaos

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
)

// direction is one way through a link.
type direction int

// The directions: from who dialled to who listens, and back.
const (
	there direction = iota
	back
)

// link is a proxy for one link between two parts. Its methods may be called by any goroutine.
type link struct {
	name   string
	listen net.Listener
	to     string // address of who listens
	net    string
	ended  chan struct{}
	all    sync.WaitGroup

	mu      sync.Mutex
	held    [2]bool
	delay   time.Duration
	refuses bool
	changed chan struct{} // closed at the next change
	conns   map[*conn]bool
}

// conn is one connection through a link.
type conn struct {
	from   net.Conn
	closed chan struct{}

	mu    sync.Mutex
	to    net.Conn // nil until dialled
	ended bool
}

func (c *conn) close(reset bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	close(c.closed)
	end(c.from, reset)
	end(c.to, reset)
}

func end(c net.Conn, reset bool) {
	if c == nil {
		return
	}
	if tcp, ok := c.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// dialled gives the connection its other end, unless it has ended.
func (c *conn) dialled(to net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		_ = to.Close()
		return false
	}
	c.to = to
	return true
}

func newLink(name, network, listen, to string) (*link, error) {
	l, err := net.Listen(network, listen)
	if err != nil {
		return nil, err
	}
	k := &link{
		name: name, listen: l, to: to, net: network, ended: make(chan struct{}), changed: make(chan struct{}), conns: map[*conn]bool{},
	}
	k.all.Go(k.accept)
	return k, nil
}

func (k *link) close() {
	close(k.ended)
	_ = k.listen.Close()
	k.reset()
	k.all.Wait()
}

func (k *link) accept() {
	for {
		from, err := k.listen.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		c := &conn{from: from, closed: make(chan struct{})}
		k.mu.Lock()
		refuses := k.refuses
		k.conns[c] = true
		k.mu.Unlock()
		if refuses {
			k.drop(c, true)
			continue
		}
		k.all.Go(func() { k.serve(c) })
	}
}

func (k *link) drop(c *conn, reset bool) {
	c.close(reset)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, c)
}

// serve carries one connection. While its way there is held the listener is not even dialled: the peer has accepted and
// says nothing.
func (k *link) serve(c *conn) {
	defer k.drop(c, false)
	if !k.pass(c, there) {
		return
	}
	to, err := net.DialTimeout(k.net, k.to, 5*time.Second)
	if err != nil {
		k.drop(c, true)
		return
	}
	if !c.dialled(to) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { k.pump(c, to, c.from, there) })
	both.Go(func() { k.pump(c, c.from, to, back) })
	both.Wait()
}

// pump carries one direction. What it has read while the link is held waits, and comes late: nothing of a stream is lost.
func (k *link) pump(c *conn, dst, src net.Conn, d direction) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if !k.pass(c, d) {
			return
		}
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				c.close(false)
				return
			}
		}
		if err != nil {
			if half, ok := dst.(interface{ CloseWrite() error }); ok && errors.Is(err, io.EOF) && half.CloseWrite() == nil {
				return
			}
			c.close(true)
			return
		}
	}
}

// pass waits until the direction is open, and for the delay; false when the connection ends first.
func (k *link) pass(c *conn, d direction) bool {
	for {
		k.mu.Lock()
		held, delay, changed := k.held[d], k.delay, k.changed
		k.mu.Unlock()
		var late <-chan time.Time
		switch {
		case held:
		case delay == 0:
			return true
		default:
			late = time.After(delay)
		}
		select {
		case <-late:
			return true
		case <-changed:
		case <-c.closed:
			return false
		case <-k.ended:
			return false
		}
	}
}

func (k *link) change(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
	close(k.changed)
	k.changed = make(chan struct{})
}

// hold lets nothing through, one way or both; connections stay open.
func (k *link) hold(ways ...direction) {
	k.change(func() {
		for _, d := range ways {
			k.held[d] = true
		}
	})
}

// slow delays what goes through, both ways.
func (k *link) slow(d time.Duration) { k.change(func() { k.delay = d }) }

// refuse resets every connection, and new ones.
func (k *link) refuse() {
	k.change(func() { k.refuses = true })
	k.reset()
}

// reset resets the connections that there are.
func (k *link) reset() {
	k.mu.Lock()
	list := make([]*conn, 0, len(k.conns))
	for c := range k.conns {
		list = append(list, c)
	}
	k.mu.Unlock()
	for _, c := range list {
		c.close(true)
	}
}

// heal undoes all.
func (k *link) heal() {
	k.change(func() { k.held, k.delay, k.refuses = [2]bool{}, 0, false })
}

// echo is a server that sends back what it gets.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	return l.Addr().String()
}

func TestLink(t *testing.T) {
	k, err := newLink("test", "tcp", "127.0.0.1:0", echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.close)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", k.listen.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	say := func(c net.Conn, text string) {
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(c net.Conn, limit time.Duration) (string, error) {
		buf := make([]byte, 10)
		_ = c.SetReadDeadline(time.Now().Add(limit))
		n, err := c.Read(buf)
		return string(buf[:n]), err
	}
	open := dial()
	say(open, "one")
	if got, err := hear(open, 5*time.Second); got != "one" {
		t.Fatal(got, err)
	}
	for _, d := range []direction{there, back} {
		k.hold(d)
		say(open, "two")
		if got, err := hear(open, 50*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
			t.Fatalf("held, and %q came through: %v", got, err)
		}
		k.heal()
		if got, err := hear(open, 5*time.Second); got != "two" {
			t.Fatal(got, err)
		}
	}
	k.slow(50 * time.Millisecond)
	began := time.Now()
	say(open, "late")
	if got, err := hear(open, 5*time.Second); got != "late" || time.Since(began) < 100*time.Millisecond {
		t.Fatal(got, err, time.Since(began))
	}
	k.refuse()
	if _, err := hear(open, 5*time.Second); err == nil || isTimeout(err) {
		t.Fatal("the open connection was not reset", err)
	}
	// The reset may come before the dialler has seen that it is connected.
	if c, err := net.Dial("tcp", k.listen.Addr().String()); err == nil {
		t.Cleanup(func() { _ = c.Close() })
		if _, err := hear(c, 5*time.Second); err == nil || isTimeout(err) {
			t.Fatal("a new connection was not refused", err)
		}
	} else if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	k.heal()
	open = dial()
	say(open, "again")
	if got, err := hear(open, 5*time.Second); got != "again" {
		t.Fatal(got, err)
	}
	k.reset()
	if _, err := hear(open, 5*time.Second); err == nil || isTimeout(err) {
		t.Fatal("not reset", err)
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
