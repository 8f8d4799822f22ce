//go:build !race

package pgwire

import (
	"syscall"
	"unsafe"
)

// rawAllowed says whether Conn may use the descriptor itself. Race builds may not: the detector does not see the order
// that a socket gives and reports races where there are none.
const rawAllowed = true

// sysRead and sysWrite use RawSyscall: the descriptor is non-blocking, so the scheduler need not be told.
func sysRead(fd uintptr, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), errno
}

func sysWrite(fd uintptr, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), errno
}
