package agent

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"neki/catalog"
	"neki/cluster/decide"
	"neki/cluster/pgproc"
	"neki/internal/pgerr"
)

// maxBody bounds a request; the stub schema is the largest part of any.
const maxBody = 4 << 20

func (a *Agent) listen() (net.Listener, error) {
	l, err := net.Listen("tcp", a.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("API: %w", err)
	}
	url := a.cfg.URL
	if url == "" {
		scheme := "http"
		if a.cfg.TLS != nil {
			scheme = "https"
		}
		url = scheme + "://" + l.Addr().String()
	}
	a.url.Store(&url)
	close(a.listenUp)
	return l, nil
}

// serve answers the API until ctx ends, and joins all its connections.
func (a *Agent) serve(ctx context.Context, l net.Listener) error {
	return Serve(ctx, l, Guard(a.routes(), a.cfg.TLS != nil, a.cfg.Token), a.cfg.TLS, a.log)
}

// serveGrace is how long handlers may take to end once Serve is to end. Streams and orders end with its context.
const serveGrace = 5 * time.Second

// Serve answers an API of the cluster on l, over TLS unless t is nil, until ctx ends, and joins all its connections. It
// owns l.
func Serve(ctx context.Context, l net.Listener, h http.Handler, t *tls.Config, log *slog.Logger) error {
	unused := unusedConns{all: map[net.Conn]struct{}{}}
	srv := &http.Server{
		ConnState: unused.note, Handler: h, TLSConfig: t, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() {
		if t != nil {
			failed <- srv.ServeTLS(l, "", "")
		} else {
			failed <- srv.Serve(l)
		}
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("API: %w", err)
	case <-ctx.Done():
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), serveGrace)
	defer cancel()
	unused.close()
	err := srv.Shutdown(limited)
	if err != nil {
		err = errors.Join(err, srv.Close())
	}
	<-failed
	return err
}

// unusedConns are the connections on which nothing was asked yet. The server would wait for each for five seconds at its end, and
// clients open some that they then don't need. It is safe for concurrent use.
type unusedConns struct {
	mu    sync.Mutex
	ended bool
	all   map[net.Conn]struct{}
}

func (u *unusedConns) note(c net.Conn, state http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(u.all, c)
	case u.ended:
		_ = c.Close() // nobody serves it
	default:
		u.all[c] = struct{}{}
	}
}

func (u *unusedConns) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
	for c := range u.all {
		_ = c.Close() // nothing was sent on it
	}
}

// Guard lets a request through that came over mutual TLS or bears the token.
func Guard(next http.Handler, mutualTLS bool, token string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !mutualTLS && (token == "" || subtle.ConstantTimeCompare([]byte(given), []byte(token)) != 1) {
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (a *Agent) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/health", a.streamHealth)
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, req *http.Request) {
		writeJSON(w, http.StatusOK, a.Status(req.Context()))
	})
	mux.HandleFunc("GET /v1/globals", a.giveGlobals)
	mux.HandleFunc("POST /v1/prepared", a.handlePrepared)
	mux.HandleFunc("POST /v1/held", a.handleHeld)
	mux.HandleFunc("POST /v1/backup", a.takeBackup)
	mux.HandleFunc("POST /v1/expire", a.expireBackups)
	mux.HandleFunc("POST /v1/recover", a.recoverInto)
	plain := func(o Order) Order { return o }
	ofLead := func(o LeadOrder) Order { return o.Order }
	ofReplace := func(o ReplaceOrder) Order { return o.Order }
	order(mux, a, "provision", decide.Init, func(o ProvisionOrder) Order { return o.Order }, (*runner).provision)
	order(mux, a, "lead", decide.Lead, ofLead, (*runner).lead)
	order(mux, a, "follow", decide.Follow, func(o FollowOrder) Order { return o.Order }, (*runner).follow)
	order(mux, a, "apply", decide.Apply, func(o ApplyOrder) Order { return o.Order }, (*runner).apply)
	order(mux, a, "globals", decide.Apply, func(o GlobalsOrder) Order { return o.Order }, (*runner).makeGlobals)
	order(mux, a, "stop", decide.Hold, func(o StopOrder) Order { return o.Order }, (*runner).stopOrder)
	order(mux, a, "start", decide.Start, plain, (*runner).startOrder)
	order(mux, a, "restart", decide.Start, plain, (*runner).restartOrder)
	order(mux, a, "configure", decide.Apply, func(o ConfigureOrder) Order { return o.Order }, (*runner).configure)
	order(mux, a, "reload", decide.Apply, plain, (*runner).reloadOrder)
	order(mux, a, "recruit", decide.Recruit, plain, (*runner).recruit)
	order(mux, a, "promote", decide.Promote, ofLead, (*runner).promote)
	order(mux, a, "fence", decide.Fence, func(o FenceOrder) Order { return o.Order }, (*runner).fence)
	order(mux, a, "unfence", decide.Unfence, ofLead, (*runner).unfence)
	order(mux, a, "resume", decide.Resume, plain, (*runner).resume)
	order(mux, a, "rewind", decide.Rewind, ofReplace, func(r *runner, ctx context.Context, o ReplaceOrder) (Result, error) {
		return r.replace(ctx, o, false)
	})
	order(mux, a, "rebuild", decide.Rebuild, ofReplace, func(r *runner, ctx context.Context, o ReplaceOrder) (Result, error) {
		return r.replace(ctx, o, true)
	})
	return mux
}

// readBody decodes what is asked of name; it answers for a body that can't be read, and gives false.
func readBody(w http.ResponseWriter, req *http.Request, name string, into any) bool {
	err := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxBody)).Decode(into)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, problemOf(pgerr.New(pgerr.InvalidParameterValue, "%s: %w", name, err)))
	}
	return err == nil
}

// order routes POST /v1/<name>: it decodes the order and has the runner do it. A caller who goes away before the end
// finds the result when he asks again with the same operation id.
func order[T any](mux *http.ServeMux, a *Agent, name string, kind decide.Kind, head func(T) Order,
	do func(*runner, context.Context, T) (Result, error),
) {
	mux.HandleFunc("POST /v1/"+name, func(w http.ResponseWriter, req *http.Request) {
		var o T
		dec := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxBody))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&o); err != nil {
			writeJSON(w, http.StatusBadRequest, problemOf(pgerr.New(pgerr.InvalidParameterValue, "%s: %w", name, err)))
			return
		}
		result, err := a.submit(req.Context(), kind, head(o), func(ctx context.Context, r *runner) (Result, error) {
			return do(r, ctx, o)
		})
		if err != nil {
			writeJSON(w, http.StatusConflict, problemOf(err))
			return
		}
		writeJSON(w, http.StatusOK, result)
	})
}

// submit hands an order to the runner and waits for its end, or for the caller's.
func (a *Agent) submit(ctx context.Context, kind decide.Kind, o Order, do func(context.Context, *runner) (Result, error)) (Result, error) {
	reply := make(chan outcome, 1)
	select {
	case a.tasks <- task{order: o, kind: kind, do: do, reply: reply}:
	case <-ctx.Done():
		return Result{}, context.Cause(ctx)
	}
	select {
	case out := <-reply:
		return out.result, out.err
	case <-ctx.Done():
		return Result{}, context.Cause(ctx)
	}
}

// streamHealth writes reports as lines until the caller leaves. The first carries the whole ring of samples, later ones
// what is new since the one before.
func (a *Agent) streamHealth(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	flush := http.NewResponseController(w)
	enc := json.NewEncoder(w)
	var span time.Duration
	idle := time.NewTicker(reportEvery)
	defer idle.Stop()
	for {
		h, changed := a.health.latest(span)
		sent := time.Now()
		if h.Seq > 0 {
			if enc.Encode(h) != nil || flush.Flush() != nil {
				return // the caller has left
			}
		}
		select {
		case <-changed:
		case <-idle.C:
		case <-req.Context().Done():
			return
		}
		span = time.Since(sent) + 2*sampleEvery
	}
}

func (r *runner) stopOrder(ctx context.Context, o StopOrder) (Result, error) {
	reason := o.Reason
	if reason == "" {
		reason = "stopped by order " + o.OpID
	}
	if err := r.a.memory.changeMember(func(m *Member) { m.Hold = reason }); err != nil {
		return Result{}, err
	}
	r.a.setPhase(catalog.StateFenced, "%s", reason)
	return Result{Done: []string{"stopped"}}, r.stop(ctx, o.Mode)
}

func (r *runner) startOrder(ctx context.Context, _ Order) (Result, error) {
	if err := r.a.memory.changeMember(func(m *Member) { m.Hold = "" }); err != nil {
		return Result{}, err
	}
	r.a.clearPhase()
	if !r.a.pg.HasData() {
		return Result{}, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s is empty", r.a.cfg.Node)
	}
	if err := r.start(ctx, true); err != nil {
		r.retryLater()
		return Result{}, err
	}
	return Result{Done: []string{"started"}}, nil
}

// restartOrder stops and starts the server; one that hangs is killed, as it would not hear.
func (r *runner) restartOrder(ctx context.Context, o Order) (Result, error) {
	if r.a.hung.Load() {
		if err := r.killed(); err != nil {
			return Result{}, err
		}
	} else if err := r.stop(ctx, pgproc.StopFast); err != nil {
		return Result{}, err
	}
	return r.startOrder(ctx, o)
}

func (r *runner) reloadOrder(ctx context.Context, _ Order) (Result, error) {
	_, err := r.applyConf(ctx)
	return Result{Done: []string{"reloaded"}}, err
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller may have left
}
