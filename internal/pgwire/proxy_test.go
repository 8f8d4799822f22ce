package pgwire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"neki/internal/pgerr"
)

// proxyHeader makes a header of version 2.
func proxyHeader(command, family byte, body string) []byte {
	b := append([]byte(proxySignature), 0x20|command, family)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(body))), body...)
}

const (
	proxied4 = "\xcb\x00\x71\x07\x0a\x00\x00\x01\x30\x39\x15\x38" // 203.0.113.7:12345 to 10.0.0.1:5432
	proxied6 = "\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" +
		"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x07\x15\x38"
)

// summed adds a checksum to a header of a client with an IPv4 address.
func summed() []byte {
	b := proxyHeader(1, proxyTCP4, proxied4+"\x03\x00\x04\x00\x00\x00\x00")
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	binary.BigEndian.PutUint32(b[len(b)-4:], sum)
	return b
}

func TestReadProxy(t *testing.T) {
	wrong := summed()
	wrong[len(wrong)-1]++
	for _, tc := range []struct {
		name string
		in   []byte
		want string // the address, "" = the proxy's own
		err  string
	}{
		{"IPv4", proxyHeader(1, proxyTCP4, proxied4), "203.0.113.7:12345", ""},
		{"IPv6", proxyHeader(1, proxyTCP6, proxied6), "[2001:db8::1]:7", ""},
		{"mapped", proxyHeader(1, proxyTCP6, strings.Repeat("\x00", 10)+"\xff\xff\xcb\x00\x71\x07"+strings.Repeat("\x00", 20)), "203.0.113.7:0", ""},
		{"fields", proxyHeader(1, proxyTCP4, proxied4+"\x04\x00\x02ab\x20\x00\x00"), "203.0.113.7:12345", ""},
		{"checksum", summed(), "203.0.113.7:12345", ""},
		{"the proxy itself", proxyHeader(0, 0, ""), "", ""},
		{"the proxy itself, with addresses", proxyHeader(0, proxyTCP4, proxied4), "", ""},
		{"a Unix socket", proxyHeader(1, 0x31, strings.Repeat("x", 216)), "", ""},
		{"wrong checksum", wrong, "", "the checksum is wrong"},
		{"no header", []byte("\x00\x00\x00\x08\x04\xd2\x16\x2fxxxxxxxxxx"), "", "does not begin with its signature"},
		{"version 1", []byte("PROXY TCP4 203.0.113.7 10.0.0.1 1 2\r\n"), "", "does not begin with its signature"},
		{"version 3", append([]byte(proxySignature), 0x31, proxyTCP4, 0, 0), "", "its version is not 2"},
		{"command", proxyHeader(2, proxyTCP4, proxied4), "", "the command is unknown"},
		{"short", proxyHeader(1, proxyTCP4, proxied4[:11]), "", "the addresses are cut short"},
		{"short field", proxyHeader(1, proxyTCP4, proxied4+"\x04\x00\x09ab"), "", "a field is cut short"},
		{"half a field", proxyHeader(1, proxyTCP4, proxied4+"\x04"), "", "a field is cut short"},
		{"too long", proxyHeader(1, proxyTCP4, strings.Repeat("x", maxProxyBody+1)), "", "it is too long"},
		{"cut off", proxyHeader(1, proxyTCP4, proxied4)[:20], "", "connection was closed"},
	} {
		conn := newTape(append(bytes.Clone(tc.in), "rest"...))
		if tc.name == "cut off" {
			conn = newTape(tc.in)
		}
		addr, err := ReadProxy(t.Context(), conn)
		var e *pgerr.Error
		switch {
		case tc.err != "":
			if !errors.As(err, &e) || !strings.Contains(e.Message+" "+e.Detail, tc.err) {
				t.Errorf("%s: %v", tc.name, err)
			}
			continue
		case err != nil || tc.want == "" != (addr == nil) || addr != nil && addr.String() != tc.want:
			t.Errorf("%s: %v, %v", tc.name, addr, err)
		}
		if rest, _ := io.ReadAll(conn.in); string(rest) != "rest" {
			t.Errorf("%s: left: %q", tc.name, rest)
		}
	}
}

// TestProxyThatSaysNothing waits no longer than the login may take.
func TestProxyThatSaysNothing(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	defer ours.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := ReadProxy(ctx, ours); pgerr.Code(err) != pgerr.ConnectionFailure {
		t.Error(err)
	}
}

func FuzzProxy(f *testing.F) {
	f.Add(proxyHeader(1, proxyTCP4, proxied4))
	f.Add(proxyHeader(1, proxyTCP6, proxied6+"\x03\x00\x04abcd"))
	f.Add(summed())
	f.Add(proxyHeader(0, 0, "\x04\xff\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		conn := newTape(in)
		addr, err := ReadProxy(context.Background(), conn)
		checkError(t, err)
		if read := len(in) - conn.in.Len(); read > proxyHead+maxProxyBody {
			t.Errorf("%d bytes were read", read)
		}
		if tcp, ok := addr.(*net.TCPAddr); addr != nil && (!ok || err != nil || tcp.AddrPort().Addr().Is4In6()) {
			t.Errorf("%v, %v", addr, err)
		}
	})
}

// FuzzParams reads any parameters of a startup packet; what was read is written again in the same form.
func FuzzParams(f *testing.F) {
	f.Add([]byte("user\x00a\x00database\x00b\x00\x00"))
	f.Add([]byte("_pq_.x\x001\x00\x00"))
	f.Add([]byte("user\x00a\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		params, unknown, err := parseParams(in)
		checkError(t, err)
		if err != nil {
			return
		}
		size := 1
		for _, p := range params {
			size += len(p.Name) + len(p.Value) + 2
		}
		if len(unknown) == 0 && size != len(in) {
			t.Errorf("%q was read as %q", in, params)
		}
	})
}
