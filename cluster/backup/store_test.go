package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// s3Server is an S3-compatible server behind a handler that may meddle: one of this process, or the versitygw that NEKI_S3_SERVER
// names.
func s3Server(t *testing.T, meddle func(http.Handler) http.Handler) S3Config {
	t.Helper()
	var h http.Handler
	if program := os.Getenv("NEKI_S3_SERVER"); program != "" {
		h = separateServer(t, program)
	} else {
		backend := s3mem.New()
		if err := backend.CreateBucket("neki"); err != nil {
			t.Fatal(err)
		}
		h = gofakes3.New(backend).Server()
	}
	if meddle != nil {
		h = meddle(h)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return S3Config{
		Endpoint: server.URL, Bucket: "neki", Prefix: "some/where", Region: "us-east-1", AccessKey: "key", SecretKey: "secret",
	}
}

// separateServer starts a server with one bucket over a directory, and gives a way to it that keeps what is signed.
func separateServer(t *testing.T, program string) http.Handler {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, sub := range []string{"objects", "objects/neki", "sidecar"} { // names of attributes need not be the file system's affair
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, "--port", address, "--access", "key", "--secret", "secret", "--region", "us-east-1", "posix",
		"--sidecar", filepath.Join(dir, "sidecar"), filepath.Join(dir, "objects"))
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // "signal: killed"
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", address, r.In.Host
		},
		Transport: transport, ErrorLog: log.New(io.Discard, "", 0),
	}
}

func s3Store(t *testing.T, cfg S3Config) *S3Store {
	t.Helper()
	s, err := NewS3Store(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.closeIdle() })
	return s
}

// TestStores is what every Store does.
func TestStores(t *testing.T) {
	dir, err := NewDirStore(filepath.Join(t.TempDir(), "backup"))
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Store{"directory": dir, "S3": s3Store(t, s3Server(t, nil))} {
		t.Run(name, func(t *testing.T) { testStore(t, s) })
	}
}

func testStore(t *testing.T, s Store) {
	ctx := t.Context()
	get := func(key string) string {
		in, err := s.Get(ctx, key)
		if errors.Is(err, ErrNotExist) {
			return "none"
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err := errors.Join(err, in.Close()); err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	check := func(want error, err error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Fatalf("%v, want %v", err, want)
		}
	}
	check(nil, s.Put(ctx, "a/b/1", bytes.NewReader([]byte("one"))))
	check(ErrExists, s.Put(ctx, "a/b/1", bytes.NewReader([]byte("two"))))
	check(nil, s.Put(ctx, "a/b/2", strings.NewReader("stream"))) // of unknown size
	check(ErrExists, s.Put(ctx, "a/b/2", strings.NewReader("another")))
	check(nil, s.Put(ctx, "a/c", bytes.NewReader([]byte("c"))))
	check(nil, s.Put(ctx, "ab/1", bytes.NewReader([]byte("x"))))
	check(nil, s.Replace(ctx, "a/b/2", bytes.NewReader([]byte("replaced"))))
	large := bytes.Repeat([]byte("0123456789abcdef"), 2<<20) // of several parts
	check(nil, s.Put(ctx, "large", io.MultiReader(bytes.NewReader(large))))
	if got := get("large"); got != string(large) {
		t.Errorf("a large object came back with %d bytes", len(got))
	}
	for key, want := range map[string]string{"a/b/1": "one", "a/b/2": "replaced", "a/c": "c", "a/b": "none", "none": "none"} {
		if got := get(key); got != want {
			t.Errorf("%s holds %q, want %q", key, got, want)
		}
	}
	list := func(prefix string) (keys []string) {
		objects, err := s.List(ctx, prefix)
		check(nil, err)
		for _, o := range objects {
			keys = append(keys, fmt.Sprintf("%s %d", o.Key, o.Size))
			if o.Modified.IsZero() {
				t.Errorf("%s has no time", o.Key)
			}
		}
		return keys
	}
	if d := cmp.Diff([]string{"a/b/1 3", "a/b/2 8", "a/c 1"}, list("a/")); d != "" {
		t.Error(d)
	}
	check(nil, s.Delete(ctx, "a/b/1"))
	check(nil, s.Delete(ctx, "a/b/1"))
	if d := cmp.Diff([]string{"a/b/2 8"}, list("a/b/")); d != "" {
		t.Error(d)
	}
	if got := list("nowhere/"); len(got) > 0 {
		t.Errorf("nowhere is %q", got)
	}
	broken := io.MultiReader(bytes.NewReader(large), brokenReader{})
	if err := s.Put(ctx, "half", broken); err == nil {
		t.Error("a broken upload succeeded")
	}
	if got := get("half"); got != "none" {
		t.Errorf("a broken upload left %d bytes", len(got))
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Put(cancelled, "never", strings.NewReader("x")); err == nil {
		t.Error("a cancelled upload succeeded")
	}
}

func TestEndpoints(t *testing.T) {
	for text, want := range map[string]string{
		"": "s3.amazonaws.com true", "host:9000": "host:9000 true", "http://host:9000": "host:9000 false", "https://host/": "host true",
		"ftp://host": "error", "https://host/bucket": "error", "http://": "error",
	} {
		host, secure, err := endpointOf(text)
		got := fmt.Sprint(host, " ", secure)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// faults breaks requests by chance: it refuses them, or answers so after it has done them, or cuts them or their answers
// in the middle, or does not answer in time.
type faults struct {
	next http.Handler
	mu   sync.Mutex
	rand *rand.Rand
	off  bool
	end  chan struct{} // closed at the end of the test
	done map[string]int
}

func (f *faults) choose() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.off {
		return "none"
	}
	kinds := []string{"refused", "lost answer", "half request", "half answer", "too late", "slow down"}
	fault := "none"
	if f.rand.IntN(100) < 45 {
		fault = kinds[f.rand.IntN(len(kinds))]
	}
	f.done[fault]++
	return fault
}

func (f *faults) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch f.choose() {
	case "none":
		f.next.ServeHTTP(w, req)
	case "refused":
		http.Error(w, "injected", http.StatusInternalServerError)
	case "slow down":
		http.Error(w, "injected", http.StatusServiceUnavailable)
	case "lost answer":
		f.next.ServeHTTP(httptest.NewRecorder(), req)
		http.Error(w, "injected", http.StatusInternalServerError)
	case "half request":
		_, _ = io.CopyN(io.Discard, req.Body, req.ContentLength/2) // then the connection ends
		panic(http.ErrAbortHandler)
	case "half answer":
		whole := httptest.NewRecorder()
		f.next.ServeHTTP(whole, req)
		for name, values := range whole.Header() {
			w.Header()[name] = values
		}
		body := whole.Body.Bytes()
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		w.WriteHeader(whole.Code)
		_, _ = w.Write(body[:len(body)/2])
		if len(body) > 0 {
			panic(http.ErrAbortHandler)
		}
	case "too late":
		_, _ = io.Copy(io.Discard, req.Body)
		select {
		case <-req.Context().Done(): // the client gives up
		case <-f.end:
		}
	}
}

// TestArchiveSurvivesFaults pushes WAL as Postgres does, again and again until it is told that a file is archived, through
// a store that fails in every way. What is acknowledged is there and whole, and other content is never accepted.
func TestArchiveSurvivesFaults(t *testing.T) {
	f := &faults{rand: rand.New(rand.NewPCG(1, 2)), end: make(chan struct{}), done: map[string]int{}}
	cfg := s3Server(t, func(next http.Handler) http.Handler { f.next = next; return f })
	t.Cleanup(func() { close(f.end) })
	cfg.Timeout = 300 * time.Millisecond
	r := NewRepository(s3Store(t, cfg), "c", "sh1", "7000", nil)
	content := func(n uint64) []byte { return bytes.Repeat(fmt.Appendf(nil, "WAL of segment %d ", n), 5000) }
	failures, refused := 0, 0
	const files = 25
	for n := uint64(1); n <= files; n++ {
		name := Segment{1, n}.Name(DefaultSegmentSize)
		for err := error(io.EOF); err != nil; {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if err = r.PushContent(ctx, name, content(n)); err != nil {
				failures++
			}
			if errors.Is(err, ErrDifferent) {
				t.Fatalf("%s was taken for another: %v", name, err)
			}
			cancel()
		}
		err := r.PushContent(t.Context(), name, content(n+1000))
		if err == nil {
			t.Fatalf("%s was replaced", name)
		}
		if errors.Is(err, ErrDifferent) {
			refused++
		}
		dst := filepath.Join(t.TempDir(), name)
		_ = r.FetchWAL(t.Context(), name, dst, Limit{}) // whole or not at all: see below
		checkWholeOrMissing(t, dst, content(n))
	}
	t.Logf("%d failures, %d refusals, faults %v", failures, refused, f.done)
	if failures == 0 || refused == 0 || len(f.done) < 7 {
		t.Errorf("not all was tried: %d failures, %d refusals, faults %v", failures, refused, f.done)
	}
	f.mu.Lock()
	f.off = true
	f.mu.Unlock()
	for n := uint64(1); n <= files; n++ {
		dst := filepath.Join(t.TempDir(), "out")
		if err := r.FetchWAL(t.Context(), Segment{1, n}.Name(DefaultSegmentSize), dst, Limit{}); err != nil {
			t.Errorf("segment %d: %v", n, err)
			continue
		}
		checkWholeOrMissing(t, dst, content(n))
	}
	if reach, err := r.Contiguous(t.Context(), Backup{Timeline: 1, StopTimeline: 1, StartLSN: DefaultSegmentSize, SegmentSize: DefaultSegmentSize}, 0); err != nil ||
		reach.End != (files+1)*DefaultSegmentSize {
		t.Errorf("the archive reaches %v, %v", reach, err)
	}
}
