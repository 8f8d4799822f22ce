//go:build !race

package pooler

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// rawClient speaks messages without allocating.
type rawClient struct {
	t    testing.TB
	conn net.Conn
	buf  []byte
}

func (g *gateway) raw() *rawClient {
	g.t.Helper()
	h, err := g.connect("").PgConn().Hijack()
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = h.Conn.Close() })
	return &rawClient{t: g.t, conn: h.Conn, buf: make([]byte, 64<<10)}
}

// roundTrip sends a request and reads up to the ReadyForQuery.
func (c *rawClient) roundTrip(request []byte) []byte {
	if _, err := c.conn.Write(request); err != nil {
		c.t.Fatal(err)
	}
	n := 0
	for {

		m, err := c.conn.Read(c.buf[n:])
		if err != nil {
			if err == io.EOF {
				c.t.Fatal("the gateway has closed the connection")
			}
			c.t.Fatal(err)
		}
		n += m
		if n >= 6 && c.buf[n-6] == 'Z' && c.buf[n-2] == 5 {
			return c.buf[:n]
		}
	}
}

// TestHotPathDoesNotAllocate runs statements whose plans are cached, each protocol in turn.
func TestHotPathDoesNotAllocate(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	g.awaitFunctions()
	c := g.raw()
	c.roundTrip(q("CREATE TABLE accounts (aid int PRIMARY KEY, abalance int)"))
	c.roundTrip(q("INSERT INTO accounts VALUES (1, 10), (2, 20)"))
	c.roundTrip(cat(parse("s1", "SELECT abalance FROM accounts WHERE aid = $1"), syncMsg))
	query := "SELECT abalance FROM accounts WHERE aid = 1;"
	tail := cat(describe('P', ""), execute("", 0), syncMsg)
	g.countAllocations(c, map[string][]byte{
		"simple":   q(query),
		"prepared": cat(bindTo("", "s1", "1"), tail),
		"extended": cat(parse("", "SELECT abalance FROM accounts WHERE aid = $1"), bindTo("", "", "1"), tail),
	})
}

// TestShardedHotPathDoesNotAllocate: neither does finding the shard of a key.
func TestShardedHotPathDoesNotAllocate(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	c := s.raw()
	c.roundTrip(q("INSERT INTO t (k, n) VALUES (2, 10)"))
	c.roundTrip(cat(parse("s1", "SELECT n FROM t WHERE k = $1"), syncMsg))
	tail := cat(describe('P', ""), execute("", 0), syncMsg)
	s.countAllocations(c, map[string][]byte{
		"simple":   q("SELECT n FROM t WHERE k = 2;"),
		"prepared": cat(bindTo("", "s1", "2"), tail),
		"extended": cat(parse("", "SELECT n FROM t WHERE k = $1"), bindTo("", "", "2"), tail),
	})
}

// countAllocations has each request answered many times, by one row.
func (g *gateway) countAllocations(c *rawClient, requests map[string][]byte) {
	g.t.Helper()
	for name, request := range requests {
		for range 20 {
			if answer := c.roundTrip(request); !bytes.Contains(answer, []byte("SELECT 1")) {
				g.t.Fatalf("%s: %q", name, answer)
			}
		}
		g.quiet.Store(true)
		<-time.After(200 * time.Millisecond) // what the reporter had begun is done
		if n := testing.AllocsPerRun(2000, func() { c.roundTrip(request) }); n != 0 {
			g.t.Errorf("%s: %v allocations", name, n)
		}
		g.quiet.Store(false)
	}
}
