package pgwire

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"neki/internal/fakepg"
	"neki/internal/pgerr"
)

func TestSendCancel(t *testing.T) {
	serverTLS, clientTLS := testTLS(t)
	var dialer net.Dialer
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()

	closed := make(chan struct{})
	s := fakepg.Start(t, fakepg.Script{
		fakepg.ExpectCancel(fakepg.PID, fakepg.Secret()),
		fakepg.Await(closed), // the sender must wait until we close
	}, fakepg.Script{fakepg.ExpectCancel(fakepg.PID, make([]byte, 32)), fakepg.Reset()})
	done := make(chan error, 1)
	go func() { done <- SendCancel(ctx, dialer.DialContext, s.Addr(), fakepg.PID, fakepg.Secret(), nil) }()
	select {
	case err := <-done:
		t.Fatalf("SendCancel came back before the server had closed: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(closed)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := SendCancel(ctx, dialer.DialContext, s.Addr(), fakepg.PID, make([]byte, 32), nil); err != nil {
		t.Errorf("closed by a reset: %v", err)
	}

	t.Run("TLS", func(t *testing.T) {
		server, client := loopback(t)
		got := make(chan *Startup, 1)
		go func() {
			s, err := Accept(ctx, server, StartupConfig{TLS: serverTLS})
			if err != nil {
				t.Error(err)
			}
			got <- s
			server.Close() // without a close_notify, as a process that ends
		}()
		dial := func(context.Context, string, string) (net.Conn, error) { return client, nil }
		if err := SendCancel(ctx, dial, "x:1", 7, []byte("abcd"), clientTLS); err != nil {
			t.Error(err)
		}
		if s := <-got; s == nil || s.Cancel == nil || s.Cancel.PID != 7 || string(s.Cancel.Secret) != "abcd" {
			t.Errorf("got %+v", s)
		}
	})
	t.Run("Unix socket", func(t *testing.T) {
		dial := func(_ context.Context, network, _ string) (net.Conn, error) { return nil, errors.New(network) }
		err := SendCancel(ctx, dial, "/tmp/.s.PGSQL.5432", 7, []byte("abcd"), nil)
		if pgerr.Code(err) != pgerr.ConnectionFailure || errors.Unwrap(err).Error() != "unix" {
			t.Errorf("got %v", err)
		}
	})
}

func TestSendCancelFails(t *testing.T) {
	var dialer net.Dialer
	dial := func(answer []byte) Dial {
		server, client := loopback(t)
		go func() { server.Write(answer); io.Copy(io.Discard, server) }()
		return func(context.Context, string, string) (net.Conn, error) { return client, nil }
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := SendCancel(short, dial(nil), "x:1", 1, []byte("abcd"), nil); pgerr.Code(err) != pgerr.ConnectionFailure {
		t.Errorf("a server that never closes: %v", err)
	}
	if err := SendCancel(t.Context(), dial(make([]byte, 1<<20)), "x:1", 1, []byte("abcd"), nil); pgerr.Code(err) != pgerr.ProtocolViolation {
		t.Errorf("a server that talks: %v", err)
	}
	for _, n := range []int{0, 3, 257} {
		if err := SendCancel(t.Context(), dialer.DialContext, "x:1", 1, make([]byte, n), nil); pgerr.Code(err) != pgerr.ProtocolViolation {
			t.Errorf("a key of %d bytes: %v", n, err)
		}
	}
}

func TestKeySpace(t *testing.T) {
	k, other, again := newKeySpace(t, 3), newKeySpace(t, 4), newKeySpace(t, 3)
	for _, version := range []uint32{Protocol30, Protocol32} {
		for _, session := range []uint32{0, 1, MaxSession} {
			pid := k.PID(session)
			if gateway, got, ok := SplitPID(pid); gateway != 3 || got != session || !ok || !k.Owns(pid) || other.Owns(pid) {
				t.Errorf("session %d: pid %d splits to %d, %d, %v", session, pid, gateway, got, ok)
			}
			key := k.AppendKey(nil, session, 9, version)
			if want := map[uint32]int{Protocol30: 4, Protocol32: 32}[version]; len(key) != want {
				t.Errorf("a key of %d bytes, want %d", len(key), want)
			}
			flipped := append([]byte{key[0] ^ 1}, key[1:]...)
			for name, good := range map[string]bool{
				"right":                 k.Check(pid, key, 9, version),
				"other generation":      !k.Check(pid, key, 10, version),
				"other session":         !k.Check(k.PID(session^1), key, 9, version),
				"other gateway":         !other.Check(other.PID(session), key, 9, version),
				"foreign pid":           !k.Check(other.PID(session), key, 9, version),
				"earlier process":       !again.Check(pid, key, 9, version),
				"wrong bit":             !k.Check(pid, flipped, 9, version),
				"short":                 !k.Check(pid, key[:3], 9, version),
				"none":                  !k.Check(pid, nil, 9, version),
				"key of another length": !k.Check(pid, key, 9, Protocol30+Protocol32-version),
			} {
				if !good {
					t.Errorf("version %x, session %d: %s", version, session, name)
				}
			}
		}
	}
}

func newKeySpace(t *testing.T, gateway int) *KeySpace {
	t.Helper()
	k, err := NewKeySpace(gateway)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestVirtualPIDRange(t *testing.T) {
	if low := newKeySpace(t, 1).PID(0); low != 1<<23 {
		t.Errorf("lowest pid %d", low)
	}
	if high := newKeySpace(t, MaxGateway).PID(MaxSession); high != 1<<31-1 {
		t.Errorf("highest pid %d", high)
	}
	for _, pid := range []uint32{0, 1, 1<<22 - 1, 1<<23 - 1, 1 << 31, 1<<32 - 1} {
		if _, _, ok := SplitPID(pid); ok {
			t.Errorf("%d passes for a virtual pid", pid)
		}
	}
	for _, index := range []int{-1, 0, MaxGateway + 1} {
		if _, err := NewKeySpace(index); err == nil {
			t.Errorf("gateway index %d was taken", index)
		}
	}
}
