package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"neki/internal/pgerr"
	"neki/pooler"
	"neki/settings"
)

// listenTCP opens a listener; none for "". One for clients lets a successor listen on the same port while this process
// drains.
func listenTCP(address string, clients bool) (net.Listener, error) {
	if address == "" {
		return nil, nil //nolint:nilnil // no address is no error
	}
	var lc net.ListenConfig
	if clients {
		lc.KeepAlive = -1 // set below, once: connections inherit it from their listener
		lc.Control = func(_, _ string, c syscall.RawConn) error {
			var failed error
			err := c.Control(func(fd uintptr) { failed = setClientOptions(int(fd)) })
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

// setClientOptions makes the port one to share, and connections of clients that are gone known within two minutes.
func setClientOptions(fd int) error {
	for _, o := range []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 60},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 10},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 6},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return err
		}
	}
	return nil
}

// clientListeners are where a gateway takes clients.
type clientListeners struct {
	all       []net.Listener
	addresses map[net.Listener]string // as configured
}

func (c *clientListeners) close() {
	for _, l := range c.all {
		_ = l.Close() // another error counts
	}
}

// listenClients opens a gateway's listeners for clients. A Unix socket in a directory has the port of the first address
// in its name.
func listenClients(addresses []settings.Listener) (*clientListeners, error) {
	c := &clientListeners{addresses: make(map[net.Listener]string)}
	if err := c.open(addresses); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *clientListeners) open(addresses []settings.Listener) error {
	port := "5432"
	for _, address := range addresses {
		if address.Directory() {
			continue
		}
		l := inherit(address.Address)
		if l == nil {
			var err error
			if l, err = listenTCP(address.Address, true); err != nil {
				return err
			}
		}
		if _, p, err := net.SplitHostPort(l.Addr().String()); err == nil && len(c.all) == 0 {
			port = p
		}
		if len(address.Proxy) > 0 {
			l = &pooler.ProxiedListener{Listener: l, From: address.Networks()}
		}
		c.all = append(c.all, l)
		c.addresses[l] = address.Address
	}
	for _, address := range addresses {
		if !address.Directory() {
			continue
		}
		l, err := listenUnix(filepath.Join(address.Address, ".s.PGSQL."+port), os.FileMode(address.SocketMode()))
		if err != nil {
			return err
		}
		c.all = append(c.all, l)
	}
	return nil
}

// listenUnix opens a Unix socket in the place of one that nobody listens on any more, or that another gateway listens
// on, which keeps the clients it has: that is how gateways follow each other. It becomes visible with its permissions.
func listenUnix(path string, mode os.FileMode) (net.Listener, error) {
	lock := path + ".lock"
	if pid := postgresLock(lock); pid > 0 {
		return nil, pgerr.New(pgerr.SystemError, "a server with the pid %d listens on %s", pid, path).
			WithDetail("%s says so.", lock)
	}
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.Remove(fresh); err != nil && !os.IsNotExist(err) { // of a process that had our pid
		return nil, pgerr.New(pgerr.SystemError, "can't replace %s: %w", fresh, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, pgerr.New(pgerr.SystemError, "can't listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	owned := &unixListener{UnixListener: l, path: path, lock: lock}
	if err := owned.show(fresh, mode); err != nil {
		_ = owned.Close()
		_ = os.Remove(fresh)
		return nil, pgerr.New(pgerr.SystemError, "can't listen on %s: %w", path, err)
	}
	return owned, nil
}

// unixListener removes its socket when it is closed, unless a successor's has taken the place.
type unixListener struct {
	*net.UnixListener
	path, lock string
	self       os.FileInfo
}

// lockOwner is in a gateway's lock file where a Postgres has its data directory.
const lockOwner = "neki gateway"

// show gives the socket its permissions and its name, and writes the lock file that keeps a Postgres away.
func (l *unixListener) show(fresh string, mode os.FileMode) error {
	if err := os.Chmod(fresh, mode); err != nil {
		return err
	}
	var err error
	if l.self, err = os.Stat(fresh); err != nil {
		return err
	}
	text := fmt.Sprintf("%d\n%s\n", os.Getpid(), lockOwner)
	if err := os.WriteFile(l.lock, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(fresh, l.path)
}

// Close stops listening.
func (l *unixListener) Close() error {
	if now, err := os.Stat(l.path); err == nil && l.self != nil && os.SameFile(now, l.self) {
		_ = os.Remove(l.path) // what stays is taken over by the next process
		_ = os.Remove(l.lock)
	}
	return l.UnixListener.Close()
}

// postgresLock gives the pid of the living server that a lock file names, 0 when there is none or it is a gateway.
func postgresLock(lock string) int {
	text, err := os.ReadFile(lock)
	if err != nil {
		return 0
	}
	lines := strings.Split(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 1 || len(lines) > 1 && lines[1] == lockOwner || unix.Kill(pid, 0) == unix.ESRCH {
		return 0
	}
	return pid
}
