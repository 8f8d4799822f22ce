package pgwire

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"net/netip"

	"neki/internal/pgerr"
)

// The header of the PROXY protocol, version 2: signature, version and command, family, and the length of the rest.
//
// Specification: https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt
const (
	proxySignature = "\r\n\r\n\x00\r\nQUIT\n"
	proxyHead      = len(proxySignature) + 4
	maxProxyBody   = 2048 // addresses, and what proxies say of TLS; the protocol allows 64 KiB

	proxyTCP4 = 0x11
	proxyTCP6 = 0x21
	proxyCRC  = 0x03 // the TLV with a CRC-32C of the whole header
)

// ReadProxy reads the header that a proxy sends before the client's bytes, and gives the client's address: nil if the
// connection is the proxy's own, or the client did not come by TCP. It reads nothing past the header. A connection
// without one is refused.
func ReadProxy(ctx context.Context, conn net.Conn) (net.Addr, error) {
	release := bind(ctx, conn)
	defer release()
	head := make([]byte, proxyHead, proxyHead+64)
	if n, err := io.ReadFull(conn, head); err != nil {
		if n == 0 && err == io.EOF {
			return nil, io.EOF
		}
		return nil, readError(err)
	}
	size := binary.BigEndian.Uint16(head[proxyHead-2:])
	switch {
	case string(head[:len(proxySignature)]) != proxySignature:
		return nil, errProxy("the connection does not begin with its signature")
	case head[12]>>4 != 2:
		return nil, errProxy("its version is not 2")
	case size > maxProxyBody:
		return nil, errProxy("it is too long")
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(conn, body); err != nil {
		return nil, readError(err)
	}
	return parseProxy(head, body)
}

func errProxy(why string) error {
	return pgerr.Fatal(pgerr.ProtocolViolation, "invalid PROXY protocol header").WithDetail("In the header, %s.", why)
}

func parseProxy(head, body []byte) (net.Addr, error) {
	addr, rest, err := proxyAddress(head[12]&15, head[13], body)
	if err != nil {
		return nil, err
	}
	for at := len(body) - len(rest); at < len(body); {
		if len(body)-at < 3 {
			return nil, errProxy("a field is cut short")
		}
		end := at + 3 + int(binary.BigEndian.Uint16(body[at+1:]))
		if end > len(body) {
			return nil, errProxy("a field is cut short")
		}
		if body[at] == proxyCRC && !proxySum(head, body, at+3, end) {
			return nil, errProxy("the checksum is wrong")
		}
		at = end
	}
	return addr, nil
}

// proxyAddress takes the client's address off the body.
func proxyAddress(command, family byte, body []byte) (addr net.Addr, rest []byte, err error) {
	width := 0
	switch family {
	case proxyTCP4:
		width = 4
	case proxyTCP6:
		width = 16
	}
	switch {
	case command > 1:
		return nil, nil, errProxy("the command is unknown")
	case command == 0 || width == 0: // of the proxy itself, or of no family that has an address for us
		return nil, nil, nil
	case len(body) < 2*width+4:
		return nil, nil, errProxy("the addresses are cut short")
	}
	ip, _ := netip.AddrFromSlice(body[:width])
	port := binary.BigEndian.Uint16(body[2*width:])
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip.Unmap(), port)), body[2*width+4:], nil
}

// proxySum checks the CRC-32C at body[from:to], which was made with zeros in its own place.
func proxySum(head, body []byte, from, to int) bool {
	if to-from != 4 {
		return false
	}
	zeroed := bytes.Clone(body)
	clear(zeroed[from:to])
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(crc32.Checksum(head, table), table, zeroed)
	return binary.BigEndian.Uint32(body[from:to]) == sum
}
