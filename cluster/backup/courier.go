package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Courier answers archive_command and restore_command of one server on a Unix socket, so that the programs that Postgres
// starts need neither configuration nor secrets. Content goes over the socket: each side opens files with its own rights.
type Courier struct {
	Push  func(ctx context.Context, name string, content []byte) error
	Fetch func(ctx context.Context, name string) (io.ReadCloser, error)
	Log   *slog.Logger // nil discards

	pushing sync.Mutex // one file in memory at a time
}

// Limits of a call.
const (
	maxSegment     = 1<<30 + 1
	courierTimeout = 10 * time.Minute // of one file
	dialTimeout    = 5 * time.Second
)

// ListenCourier opens the socket; own gives it to the server's account.
func ListenCourier(path string, own func(path string) error) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket for WAL: %w", err)
	}
	err = os.Chmod(path, 0o600)
	if err == nil && own != nil {
		err = own(path)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Serve answers until ctx ends. It closes the listener and joins its connections.
func (c *Courier) Serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /push", c.push)
	mux.HandleFunc("GET /fetch", c.fetch)
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(ctx)
	server := &http.Server{
		Handler: mux, BaseContext: func(net.Listener) context.Context { return ctx }, ReadHeaderTimeout: dialTimeout,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	server.SetKeepAlivesEnabled(false) // each call is a program of its own
	var closing sync.WaitGroup
	closing.Go(func() {
		<-ctx.Done()
		limited, stop := context.WithTimeout(context.WithoutCancel(ctx), dialTimeout)
		defer stop()
		if server.Shutdown(limited) != nil {
			_ = server.Close() // a call that doesn't end
		}
	})
	err := server.Serve(l)
	cancel()
	closing.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (c *Courier) push(w http.ResponseWriter, req *http.Request) {
	c.pushing.Lock()
	defer c.pushing.Unlock()
	content, err := io.ReadAll(io.LimitReader(req.Body, maxSegment))
	if err == nil {
		err = c.Push(req.Context(), req.URL.Query().Get("name"), content)
	}
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
	}
}

func (c *Courier) fetch(w http.ResponseWriter, req *http.Request) {
	in, err := c.Fetch(req.Context(), req.URL.Query().Get("name"))
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
		return
	}
	defer in.Close() //nolint:errcheck // opened for reading
	if _, err := io.Copy(w, in); err != nil {
		panic(http.ErrAbortHandler) // the other side sees that it is cut short
	}
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, ErrNotExist):
		return http.StatusNotFound
	case errors.Is(err, ErrDifferent):
		return http.StatusConflict
	}
	return http.StatusInternalServerError
}

// SendWAL is archive_command: it hands a file to the courier and returns once it is archived.
func SendWAL(ctx context.Context, socket, file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	body, err := call(ctx, socket, http.MethodPost, "push", filepath.Base(file), content)
	if err != nil {
		return err
	}
	return body.Close()
}

// ReceiveWAL is restore_command: it puts a file at dst, whole or not at all.
func ReceiveWAL(ctx context.Context, socket, name, dst string) error {
	body, err := call(ctx, socket, http.MethodGet, "fetch", name, nil)
	if err != nil {
		return err
	}
	return errors.Join(place(ctx, body, dst), body.Close())
}

// call makes one request; the error of any answer but success is the courier's own text.
func call(ctx context.Context, socket, method, what, name string, content []byte) (io.ReadCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, courierTimeout)
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		d := net.Dialer{Timeout: dialTimeout}
		return d.DialContext(ctx, "unix", socket)
	}}
	target := "http://agent/" + what + "?name=" + url.QueryEscape(name)
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(content))
	if err != nil {
		cancel()
		return nil, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("the agent doesn't answer: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		return bodyOf{resp.Body, cancel}, nil
	}
	defer cancel()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	err = errors.Join(err, resp.Body.Close())
	switch resp.StatusCode {
	case http.StatusNotFound:
		err = errors.Join(err, ErrNotExist)
	case http.StatusConflict:
		err = errors.Join(err, ErrDifferent)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.TrimSpace(string(text)), err)
	}
	return nil, errors.New(strings.TrimSpace(string(text)))
}

type bodyOf struct {
	io.ReadCloser
	cancel func()
}

func (b bodyOf) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}
