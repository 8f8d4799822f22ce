//go:build !race

package pgwire

import (
	"syscall"
	"unsafe"
)

// rawAllowed says whether Conn may use the descriptor itself. Race builds may not: the detector does not see the order
// that a socket gives and reports races where there are none.
const rawAllowed = true

// sysRead and sysWrite use RawSyscall: the descriptor is non-blocking, so the scheduler need not be told. The socket
// calls do less in the kernel than read and write, and a peer that is gone raises no SIGPIPE.
func sysRead(fd uintptr, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), syscall.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

func sysWrite(fd uintptr, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}
