package pgwire

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLongAnswer: an answer that is read in large pieces comes to its end, which is a small one, also when the peer pauses;
// the socket then tells of single bytes again.
func TestLongAnswer(t *testing.T) {
	if !rawAllowed {
		t.Skip("the raw path is off in race builds")
	}
	const size, piece = 8<<20 + 5, 8 << 10
	near, far := pair(t)
	answer := make([]byte, size)
	for i := range answer {
		answer[i] = byte(i * 31 >> 3)
	}
	sent, taken := make(chan error, 1), make(chan struct{}, size)
	go func() {
		var err error
		for at := 0; at < size && err == nil; at += piece {
			if _, err = far.Write(answer[at:min(at+piece, size)]); at <= longAnswer {
				<-taken // pieces that come one by one do not fill the buffer
			} else if at%(2<<20) == 0 {
				time.Sleep(5 * time.Millisecond) // longer than is waited for much
			}
		}
		sent <- err
	}()
	c := NewConn(near)
	var got []byte
	large := 0
	err := c.Exchange([]byte("x"), make([]byte, 16<<10), func() []byte { return make([]byte, 256<<10) }, func(chunk []byte) (bool, error) {
		if got = append(got, chunk...); c.exchange.bulk.on {
			large++
		}
		taken <- struct{}{}
		return len(got) >= size, nil
	})
	if err != nil || !bytes.Equal(got, answer) {
		t.Fatalf("got %d bytes of %d, %v", len(got), size, err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d reads waited for much", large)
	raw, err := near.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		if mark, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT); mark != 1 || err != nil {
			t.Errorf("the socket is readable by %d bytes, %v", mark, err)
		}
	})
	go func() { _, _ = far.Write([]byte("y")) }()
	if err := c.Exchange(nil, make([]byte, 16), nil, func(chunk []byte) (bool, error) { return string(chunk) == "y", nil }); err != nil {
		t.Fatal(err)
	}
}
