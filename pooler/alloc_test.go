//go:build !race

package pooler

import (
	"bytes"
	"encoding/binary"
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

func msg(typ byte, parts ...any) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		switch v := p.(type) {
		case string:
			b.WriteString(v)
			b.WriteByte(0)
		case []byte:
			b.Write(v)
		case int16:
			_ = binary.Write(&b, binary.BigEndian, v)
		case int32:
			_ = binary.Write(&b, binary.BigEndian, v)
		case byte:
			b.WriteByte(v)
		}
	}
	out := binary.BigEndian.AppendUint32([]byte{typ}, uint32(b.Len()+4))
	return append(out, b.Bytes()...)
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
	c.roundTrip(msg('Q', "CREATE TABLE accounts (aid int PRIMARY KEY, abalance int)"))
	c.roundTrip(msg('Q', "INSERT INTO accounts VALUES (1, 10), (2, 20)"))
	c.roundTrip(append(msg('P', "s1", "SELECT abalance FROM accounts WHERE aid = $1", int16(0)), msg('S')...))
	query := "SELECT abalance FROM accounts WHERE aid = 1;"
	bind := func(name string) []byte {
		return msg('B', "", name, int16(0), int16(1), int32(1), []byte("1"), int16(0))
	}
	tail := bytes.Join([][]byte{msg('D', byte('P'), ""), msg('E', "", int32(0)), msg('S')}, nil)
	for name, request := range map[string][]byte{
		"simple":   msg('Q', query),
		"prepared": append(bind("s1"), tail...),
		"extended": bytes.Join([][]byte{msg('P', "", "SELECT abalance FROM accounts WHERE aid = $1", int16(0)), bind(""), tail}, nil),
	} {
		for range 20 {
			if answer := c.roundTrip(request); !bytes.Contains(answer, []byte("SELECT 1")) {
				t.Fatalf("%s: %q", name, answer)
			}
		}
		g.quiet.Store(true)
		<-time.After(200 * time.Millisecond) // what the reporter had begun is done
		if n := testing.AllocsPerRun(2000, func() { c.roundTrip(request) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		g.quiet.Store(false)
	}
}
