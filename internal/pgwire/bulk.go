package pgwire

import (
	"golang.org/x/sys/unix"
)

// A server sends a long answer in pieces of 8 KB. Each of them would wake the poller, and most of the time to no purpose,
// as the relay is at work with the piece before. So once an answer has proved to be long, the socket is told to be readable
// only when much more has come, and that is waited for outside of the poller, for a moment: the end of an answer is shorter,
// and a server may pause.
const (
	longAnswer   = 1 << 20   // bytes of an answer, after which it is long
	bulkRead     = 128 << 10 // bytes that are waited for then
	bulkPatience = 1         // milliseconds
)

// bulkWait is part of an exchange: reads are to wait for bulkRead bytes.
type bulkWait struct {
	on   bool
	read int // bytes of the answer since the last wait that was in vain
}

// ahead waits, if the answer is a long one of which n more bytes were read and there is room for much, until there is much
// to read. It reports whether it has waited, be it in vain: the socket is to be read then, as no edge tells of what has come
// meanwhile.
func (b *bulkWait) ahead(fd uintptr, n, room int) (waited bool) {
	if b.read += n; b.read < longAnswer || room < 2*bulkRead {
		return false
	}
	if !b.on {
		b.on = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bulkRead) == nil
		if !b.on {
			b.read = 0
			return false
		}
	}
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if got, err := unix.Poll(p[:], bulkPatience); got == 0 || err != nil {
		b.end(fd)
	}
	return true
}

// end has the socket be readable again by any byte. It must come before each wait in the poller.
func (b *bulkWait) end(fd uintptr) {
	if b.on {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1) // fails on no open socket
	}
	*b = bulkWait{}
}
