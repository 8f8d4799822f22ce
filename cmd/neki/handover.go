package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"neki/internal/pgwire"
	"neki/pooler"
)

// A gateway that starts beside another one, on the same machine and port, takes the other's listening sockets over: both
// then accept from one queue, and no connection that waits there is lost when the first one stops listening. With sockets
// of their own, which SO_REUSEPORT would allow too, the kernel resets what waits in the one that is closed.
//
// They meet at a Unix socket in the abstract namespace, which belongs to the machine's network just as the port does. Only
// processes of the same user are served.

const (
	handoverLimit = 2 * time.Second
	handoverRetry = 100 * time.Millisecond
)

func handoverName(address string) string {
	return fmt.Sprintf("@neki/%d/listener/%s", os.Geteuid(), address)
}

// inherit asks the process that listens on address for its socket; nil when there is none to ask.
func inherit(address string) net.Listener {
	if _, port, err := net.SplitHostPort(address); err != nil || port == "0" {
		return nil
	}
	nc, err := net.DialTimeout("unix", handoverName(address), handoverLimit)
	if err != nil {
		return nil
	}
	defer nc.Close() //nolint:errcheck // all is read
	conn, ok := nc.(*net.UnixConn)
	if !ok || !sameUser(conn) {
		return nil
	}
	_ = conn.SetDeadline(time.Now().Add(handoverLimit))
	one, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(one, rights)
	if err != nil {
		return nil
	}
	return listenerOf(rights[:n])
}

// listenerOf makes a listener of a descriptor that came in a message.
func listenerOf(rights []byte) net.Listener {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil
	}
	f := os.NewFile(uintptr(fds[0]), "listener")
	defer f.Close() //nolint:errcheck // the listener has its own
	l, err := net.FileListener(f)
	if err != nil {
		return nil
	}
	return l
}

// sameUser reports whether the peer's process is of this process's user.
func sameUser(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return err == nil && failed == nil && int(peer.Uid) == os.Geteuid()
}

// offer gives the listeners to a successor, once each, until ctx ends.
func (c *clientListeners) offer(ctx context.Context, log *slog.Logger) error {
	var each sync.WaitGroup
	for _, l := range c.all {
		if tcp, ok := unwrap(l).(*net.TCPListener); ok {
			each.Go(func() { offer(ctx, tcp, c.addresses[l], log) })
		}
	}
	each.Wait()
	<-ctx.Done()
	return ctx.Err()
}

func unwrap(l net.Listener) net.Listener {
	if p, ok := l.(*pooler.ProxiedListener); ok {
		return p.Listener
	}
	return l
}

// offer waits for a successor and sends it the listener. While a predecessor is there, or when another process has the
// name, it waits for that to go.
func offer(ctx context.Context, l *net.TCPListener, address string, log *slog.Logger) {
	for ctx.Err() == nil {
		at, err := net.ListenUnix("unix", &net.UnixAddr{Name: handoverName(address), Net: "unix"})
		if err == nil {
			given := giveOnce(ctx, at, l)
			_ = at.Close() // the name is free for the successor
			if given {
				log.Info("another gateway listens on the address too, and can take it over", "listen", address)
				return
			}
		}
		if !pause(ctx, handoverRetry) {
			return
		}
	}
}

// giveOnce serves processes that ask until one has got the listener.
func giveOnce(ctx context.Context, at *net.UnixListener, l *net.TCPListener) bool {
	stop := context.AfterFunc(ctx, func() { _ = at.Close() })
	defer stop()
	for {
		conn, err := at.AcceptUnix()
		if err != nil {
			return false
		}
		err = give(conn, l)
		_ = conn.Close() // the successor has read all or is gone
		if err == nil {
			return true
		}
	}
}

var errOtherUser = errors.New("the process is of another user")

func give(conn *net.UnixConn, l *net.TCPListener) error {
	if !sameUser(conn) {
		return errOtherUser
	}
	f, err := l.File()
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // a duplicate
	_ = conn.SetDeadline(time.Now().Add(handoverLimit))
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	sent := raw.Control(func(fd uintptr) {
		_, _, err = conn.WriteMsgUnix([]byte{1}, unix.UnixRights(int(fd)), nil)
	})
	return errors.Join(sent, err)
}

// Cancel requests for sessions of a gateway that leaves come to its successor, on the same port. They are passed on by a
// socket that each gateway has under its address, which it shares with its successor and with no other cluster, and its
// index.

func (g *gateway) cancelName(index int) string {
	return fmt.Sprintf("@neki/%d/cancel/%s/%s/%d", os.Geteuid(), g.cfg.Cluster, g.address(), index)
}

// serveCancels takes cancel requests from other gateways of the machine until ctx ends.
func (g *gateway) serveCancels(ctx context.Context, index int) {
	l, err := net.Listen("unix", g.cancelName(index))
	if err != nil {
		g.log.Warn("cancel requests that reach another gateway of this machine are lost", "error", err)
		return
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		g.takeCancel(ctx, conn)
	}
}

func (g *gateway) takeCancel(ctx context.Context, conn net.Conn) {
	defer conn.Close() //nolint:errcheck // its end is the answer
	if local, ok := conn.(*net.UnixConn); !ok || !sameUser(local) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, forwardLimit)
	defer cancel()
	if st, err := pgwire.Accept(ctx, conn, pgwire.StartupConfig{}); err == nil && st.Kind == pgwire.KindCancel {
		g.server.Cancel(st.Cancel)
	}
}

// sendCancelHere passes a cancel request to the gateway of the index that had this one's address before; false when there
// is none.
func (g *gateway) sendCancelHere(ctx context.Context, index int, key *pgwire.CancelKey) bool {
	return pgwire.SendCancel(ctx, (&net.Dialer{}).DialContext, g.cancelName(index), key.PID, key.Secret, nil) == nil
}
