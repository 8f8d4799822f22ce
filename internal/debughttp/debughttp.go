// Package debughttp serves what an operator or a scraper asks a neki process by HTTP: metrics, liveness, readiness,
// an index page, and, on a mux of its own, profiles.
//
// Handler and Profiles only build handlers; Serve runs one listener until its context ends and joins every goroutine
// it started before it returns. Handlers are safe for concurrent use. Metrics belong to the packages that count; they
// come here only as a Gatherer. The default registry of the Prometheus library is never served, because importing
// etcd fills it with families that are not neki's.
//
// Format: https://prometheus.io/docs/specs/om/open_metrics_spec/
package debughttp

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	probeTimeout      = 5 * time.Second  // of all checks of one request
	scrapeTimeout     = 20 * time.Second // of one scrape
	readHeaderTimeout = 5 * time.Second
	idleTimeout       = 2 * time.Minute
	shutdownTimeout   = 5 * time.Second
)

// Check is one condition of liveness or readiness. Probe gives nil when it holds; it must return when ctx ends.
type Check struct {
	Name  string
	Probe func(ctx context.Context) error
}

// Link is a further page that the index shows.
type Link struct{ Path, Text string }

// Config says what Handler serves.
type Config struct {
	Title   string // of the index page, e.g. "neki gateway gw1"
	Metrics prometheus.Gatherer
	Live    []Check // /healthz: the process works; a failure asks for a restart
	Ready   []Check // /readyz: clients may be sent here
	Links   []Link
	Log     *slog.Logger
}

// NewRegistry makes the registry of a process, with the figures of the Go runtime and of the process in it.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return r
}

// Handler serves / (index), /metrics, /healthz and /readyz.
func Handler(c Config) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.Metrics, promhttp.HandlerOpts{
		EnableOpenMetrics: true,
		ErrorHandling:     promhttp.ContinueOnError, // one broken collector must not hide the others
		ErrorLog:          metricErrors{c.Log},
		Timeout:           scrapeTimeout,
	}))
	mux.HandleFunc("GET /healthz", checkHandler(c.Live))
	mux.HandleFunc("GET /readyz", checkHandler(c.Ready))
	mux.HandleFunc("GET /{$}", indexHandler(c))
	return mux
}

// Profiles serves /debug/pprof/. It is apart from Handler because profiles slow the process and show its inside: bind
// it to a loopback or debug address.
func Profiles() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// checkHandler answers 200 when every check holds and 503 otherwise, with a line for each check.
func checkHandler(checks []Check) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), probeTimeout)
		defer cancel()
		status := http.StatusOK
		var body strings.Builder
		for _, c := range checks {
			if err := c.Probe(ctx); err != nil {
				status = http.StatusServiceUnavailable
				fmt.Fprintf(&body, "[-] %s: %v\n", c.Name, err)
				continue
			}
			fmt.Fprintf(&body, "[+] %s\n", c.Name)
		}
		if status == http.StatusOK {
			body.WriteString("ok\n")
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body.String())) // a peer that is gone can't be told
	}
}

var indexPage = template.Must(template.New("index").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{.Title}}</title></head>
<body><h1>{{.Title}}</h1><ul>
{{range .Links}}<li><a href="{{.Path}}">{{.Text}}</a></li>
{{end}}</ul></body></html>
`))

func indexHandler(c Config) http.HandlerFunc {
	page := struct {
		Title string
		Links []Link
	}{c.Title, append([]Link{
		{"/metrics", "metrics"}, {"/healthz", "health"}, {"/readyz", "readiness"},
	}, c.Links...)}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if err := indexPage.Execute(w, page); err != nil {
			c.Log.Debug("index page not sent", "error", err)
		}
	}
}

// Serve answers on ln until ctx ends, then lets the requests that run finish, for at most five seconds. It owns ln.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout,
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(ln) }()
	select {
	case err := <-failed:
		return fmt.Errorf("http server on %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	err := server.Shutdown(grace)
	if err != nil {
		err = errors.Join(err, server.Close())
	}
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// metricErrors writes the scrape errors of promhttp to the log.
type metricErrors struct{ log *slog.Logger }

func (m metricErrors) Println(v ...any) {
	m.log.Warn("metrics incomplete", "error", strings.TrimSpace(fmt.Sprintln(v...)))
}
