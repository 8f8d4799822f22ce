package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"neki/cluster/agent"
)

// ShardStatus is what the leading admin thinks of a shard.
type ShardStatus struct {
	UID      string   `json:"uid"`
	Ready    bool     `json:"ready"`
	Primary  string   `json:"primary,omitempty"`
	Term     int64    `json:"term,omitempty"`
	Problems []string `json:"problems,omitempty"`
	Busy     []string `json:"busy,omitempty"` // nodes with a long order under way
}

// Status is what an admin says of itself.
type Status struct {
	ID         string        `json:"id"`
	Leader     bool          `json:"leader"`
	Epoch      int64         `json:"epoch,omitempty"`
	Since      time.Time     `json:"since"`
	StoreError string        `json:"store_error,omitempty"`
	Shards     []ShardStatus `json:"shards"` // of the last time that it led
}

// Status tells what the admin is and does.
func (a *Admin) Status() Status {
	st := Status{ID: a.cfg.ID, Leader: a.Leading(), Epoch: a.epoch.Load(), Since: a.since, Shards: []ShardStatus{}}
	if err := a.live.StoreError(); err != nil {
		st.StoreError = err.Error()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	st.Shards = slices.SortedFunc(maps.Values(a.shards), func(x, y ShardStatus) int { return strings.Compare(x.UID, y.UID) })
	return st
}

// Handler gives GET /healthz and /metrics, open to all, and GET /v1/status, guarded as the agents' API is.
func (a *Admin) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok") // the caller may have left
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	status := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a.Status()) // the caller may have left
	})
	mux.Handle("GET /v1/status", agent.Guard(status, a.cfg.TLS != nil, a.cfg.Token))
	return mux
}

func (a *Admin) listen() (net.Listener, error) {
	l, err := net.Listen("tcp", a.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("admin API: %w", err)
	}
	addr := l.Addr().String()
	a.addr.Store(&addr)
	return l, nil
}

// url is where others reach the API; "" without one.
func (a *Admin) url() string {
	addr := a.addr.Load()
	switch {
	case a.cfg.URL != "" || addr == nil:
		return a.cfg.URL
	case a.cfg.TLS != nil:
		return "https://" + *addr
	}
	return "http://" + *addr
}

// serve answers the API until ctx ends, and joins its connections.
func (a *Admin) serve(ctx context.Context, l net.Listener) error {
	return agent.Serve(ctx, l, a.Handler(), a.cfg.TLS, a.log)
}
