package debughttp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func get(h http.Handler, path, accept string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Accept", accept)
	h.ServeHTTP(w, r)
	return w
}

func TestHandler(t *testing.T) {
	down := errors.New("no snapshot yet")
	registry := NewRegistry()
	calls := prometheus.NewCounter(prometheus.CounterOpts{Name: "neki_test_calls_total", Help: "calls"})
	registry.MustRegister(calls)
	calls.Add(3)
	h := Handler(Config{
		Title: "gateway <gw1>", Metrics: registry, Log: quiet(),
		Live: []Check{{"loop", func(context.Context) error { return nil }}},
		Ready: []Check{
			{"listener", func(context.Context) error { return nil }},
			{"catalog", func(context.Context) error { return down }},
		},
		Links: []Link{{"/dashboard/", "dashboard"}},
	})
	for _, tc := range []struct {
		path, accept string
		status       int
		contentType  string
		body         []string
	}{
		{"/metrics", "", 200, "text/plain", []string{"neki_test_calls_total 3", "go_goroutines", "process_open_fds"}},
		{
			"/metrics", "application/openmetrics-text; version=1.0.0", 200, "application/openmetrics-text",
			[]string{"# TYPE neki_test_calls counter\n", "neki_test_calls_total 3.0\n", "# EOF\n"},
		},
		{"/healthz", "", 200, "text/plain", []string{"[+] loop\nok\n"}},
		{"/readyz", "", 503, "text/plain", []string{"[+] listener\n[-] catalog: no snapshot yet\n"}},
		{"/", "", 200, "text/html", []string{"gateway &lt;gw1&gt;", `href="/metrics"`, `href="/dashboard/"`}},
		{"/nothing", "", 404, "text/plain", nil},
		{"/debug/pprof/", "", 404, "text/plain", nil},
	} {
		w := get(h, tc.path, tc.accept)
		if w.Code != tc.status || !strings.HasPrefix(w.Header().Get("Content-Type"), tc.contentType) {
			t.Errorf("%s: %d %s, want %d %s", tc.path, w.Code, w.Header().Get("Content-Type"), tc.status, tc.contentType)
		}
		for _, part := range tc.body {
			if !strings.Contains(w.Body.String(), part) {
				t.Errorf("%s: no %q in\n%s", tc.path, part, w.Body)
			}
		}
	}
	down = nil
	if w := get(h, "/readyz", ""); w.Code != 200 {
		t.Errorf("readyz after recovery: %d %s", w.Code, w.Body)
	}
}

func TestProfiles(t *testing.T) {
	if w := get(Profiles(), "/debug/pprof/goroutine?debug=1", ""); w.Code != 200 ||
		!strings.Contains(w.Body.String(), "goroutine profile") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestServeDrains ends the context while a request runs: the request is answered in full, then Serve returns.
func TestServeDrains(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	entered, release := make(chan struct{}), make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-release
		_, _ = io.WriteString(w, "done")
	})
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, ln, h, quiet()) }()

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	answer := make(chan string, 1)
	go func() {
		resp, err := client.Get("http://" + ln.Addr().String())
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		answer <- string(body)
	}()
	<-entered
	cancel()
	close(release)
	if got := <-answer; got != "done" {
		t.Errorf("answer %q", got)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

func TestServeReportsListenerFailure(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if err := Serve(t.Context(), ln, http.NotFoundHandler(), quiet()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve on a closed listener: %v", err)
	}
}
