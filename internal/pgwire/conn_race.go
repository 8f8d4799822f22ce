//go:build race

package pgwire

import "syscall"

const rawAllowed = false

func sysRead(fd uintptr, b []byte) (int, syscall.Errno)  { return 0, syscall.ENOSYS }
func sysWrite(fd uintptr, b []byte) (int, syscall.Errno) { return 0, syscall.ENOSYS }
