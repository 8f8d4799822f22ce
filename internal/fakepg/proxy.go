package fakepg

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Direction is a way through a Proxy.
type Direction uint8

const (
	ToServer Direction = iota
	ToClient
)

// Action is what a Rule does to a connection.
type Action uint8

const (
	Cut      Action = iota // close both sides in order
	CutReset               // close both sides with a TCP reset
	Stall                  // read no more, so that the sender's buffers fill, until the test ends
	Drop                   // read on, but forward nothing more
	Delay                  // forward each further piece after Rule.Delay
)

// Rule changes one direction of one connection once After bytes have been forwarded in it.
type Rule struct {
	Direction Direction
	After     int64
	Action    Action
	Delay     time.Duration
}

// Proxy forwards connections to a server, and meddles with them by rules.
type Proxy struct {
	tb       testing.TB
	listener net.Listener
	target   string
	ctx      context.Context // ends with the test
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	mu       sync.Mutex
	next     [][]Rule
	links    map[*link]struct{}
	accepted int
}

// StartProxy forwards a free port of the loopback to target.
func StartProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{tb: tb, listener: l, target: target, links: map[*link]struct{}{}}
	p.ctx, p.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // ends in the cleanup
	p.wg.Go(p.accept)
	tb.Cleanup(func() {
		p.cancel()
		l.Close()
		p.CutAll()
		p.wg.Wait()
	})
	return p
}

// Addr is host:port of the proxy.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Dial connects through the proxy; the connection is closed at the test's end.
func (p *Proxy) Dial(ctx context.Context) net.Conn {
	p.tb.Helper()
	return dialFor(ctx, p.tb, p.Addr())
}

// Next gives rules to the next connection that has none yet. Later connections without rules pass untouched.
func (p *Proxy) Next(rules ...Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = append(p.next, rules)
}

// Accepted counts the connections so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// CutAll closes all connections there are.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close(false)
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	var d net.Dialer
	server, err := d.DialContext(p.ctx, "tcp", p.target)
	if err != nil {
		client.Close() // as a server that is down
		return
	}
	l := &link{client: client.(*net.TCPConn), server: server.(*net.TCPConn), over: p.ctx.Done()}
	rules := p.enter(l)
	var wg sync.WaitGroup
	wg.Go(func() { l.pump(l.client, l.server, only(rules, ToServer)) })
	l.pump(l.server, l.client, only(rules, ToClient))
	wg.Wait()
	l.close(false)
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// enter registers a link and gives its rules.
func (p *Proxy) enter(l *link) (rules []Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accepted++
	p.links[l] = struct{}{}
	if p.ctx.Err() != nil {
		l.close(false)
	}
	if len(p.next) > 0 {
		rules, p.next = p.next[0], p.next[1:]
	}
	return rules
}

func only(rules []Rule, d Direction) *Rule {
	for i := range rules {
		if rules[i].Direction == d {
			return &rules[i]
		}
	}
	return nil
}

// link is one connection through the proxy.
type link struct {
	client, server *net.TCPConn
	over           <-chan struct{}
}

func (l *link) close(reset bool) {
	for _, c := range []*net.TCPConn{l.client, l.server} {
		if reset {
			c.SetLinger(0)
		}
		c.Close()
	}
}

// pump forwards one direction until its source ends, its rule says otherwise or the link is closed.
func (l *link) pump(from, to *net.TCPConn, rule *Rule) {
	if rule == nil {
		forward(from, to, nil)
		return
	}
	if n, err := io.CopyN(to, from, rule.After); n < rule.After {
		if err == io.EOF {
			to.CloseWrite()
		}
		return
	}
	switch rule.Action {
	case Cut, CutReset:
		l.close(rule.Action == CutReset)
	case Stall:
		<-l.over
	case Drop:
		io.Copy(io.Discard, from)
	case Delay:
		forward(from, to, func() bool { return l.pause(rule.Delay) })
	}
}

// forward copies until from ends, which it tells to.
func forward(from, to *net.TCPConn, before func() bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if before != nil && !before() {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				from.Close()
				return
			}
		}
		if err == io.EOF {
			to.CloseWrite()
			return
		}
		if err != nil {
			to.Close()
			return
		}
	}
}

// pause waits for d and reports whether the test still runs.
func (l *link) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.over:
		return false
	}
}
