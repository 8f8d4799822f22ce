package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"neki/internal/pgerr"
)

// listenTCP opens a listener; none for "". A shared one lets a successor listen on the same port while this process
// drains.
func listenTCP(address string, shared bool) (net.Listener, error) {
	if address == "" {
		return nil, nil //nolint:nilnil // no address is no error
	}
	var lc net.ListenConfig
	if shared {
		lc.Control = func(_, _ string, c syscall.RawConn) error {
			var failed error
			err := c.Control(func(fd uintptr) {
				failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			})
			return errors.Join(err, failed)
		}
	}
	l, err := lc.Listen(context.Background(), "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, pgerr.New(pgerr.SystemError, "another process listens on %s", address).
			WithHint("Choose another address with --listen or --http, or stop that process.")
	case err != nil:
		return nil, pgerr.New(pgerr.SystemError, "can't listen on %s: %w", address, err)
	}
	return l, nil
}

// listenClients opens a gateway's listeners for clients: its addresses, and a Unix socket in socketDir for the first
// address's port.
func listenClients(addresses []string, socketDir string) ([]net.Listener, error) {
	var list []net.Listener
	fail := func(err error) ([]net.Listener, error) {
		for _, l := range list {
			_ = l.Close() // the first error counts
		}
		return nil, err
	}
	port := "5432"
	for i, address := range addresses {
		l, err := listenTCP(address, true)
		if err != nil {
			return fail(err)
		}
		list = append(list, l)
		if _, p, err := net.SplitHostPort(l.Addr().String()); err == nil && i == 0 {
			port = p
		}
	}
	if socketDir == "" {
		return list, nil
	}
	l, err := listenUnix(filepath.Join(socketDir, ".s.PGSQL."+port))
	if err != nil {
		return fail(err)
	}
	return append(list, l), nil
}

// listenUnix opens a Unix socket for everybody, in the place of one that nobody listens on any more.
func listenUnix(path string) (net.Listener, error) {
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close() // only asked whether somebody is there
		return nil, pgerr.New(pgerr.SystemError, "another process listens on %s", path)
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, pgerr.New(pgerr.SystemError, "can't replace %s: %w", path, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, pgerr.New(pgerr.SystemError, "can't listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o777); err != nil { // as Postgres: whoever may enter the directory may connect
		_ = l.Close()
		return nil, err
	}
	return l, nil
}
