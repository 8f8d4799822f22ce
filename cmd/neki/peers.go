package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	adminsql "neki/admin_sql"
	"neki/catalog"
	"neki/cluster/agent"
	"neki/internal/pgerr"
	"neki/internal/pgwire"
)

// peers asks the other gateways of the cluster, and answers them: what one of them knows alone, and CALLs that concern
// it. They speak HTTP and JSON, guarded as the agents' API is.
type peers struct {
	self   string
	live   *catalog.Live
	client *http.Client
	token  string
	log    *slog.Logger
}

// peerLimit bounds a question to another gateway: the neki schema answers when others don't.
const peerLimit = 500 * time.Millisecond

// maxPeerAnswer bounds what is read of an answer; 10 000 sessions take some 8 MB.
const maxPeerAnswer = 64 << 20

// peerStatus is what a gateway says of itself.
type peerStatus struct {
	adminsql.GatewayStatus
	Running map[string]int // server connections in use, by shard
}

// others lists the gateways but this one.
func (p *peers) others() []catalog.Gateway {
	snap := p.live.Snapshot()
	var list []catalog.Gateway
	for i := range snap.Gateways {
		if g := &snap.Gateways[i]; g.ID != p.self {
			list = append(list, *g)
		}
	}
	return list
}

// ask sends a request to another gateway and decodes its answer.
func (p *peers) ask(ctx context.Context, g *catalog.Gateway, method, path string, answer any) error {
	if g.AdminURL == "" {
		return fmt.Errorf("gateway %s has no rpc address", g.ID)
	}
	req, err := http.NewRequestWithContext(ctx, method, g.AdminURL+path, http.NoBody)
	if err != nil {
		return err
	}
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read only
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("gateway %s answers %s", g.ID, resp.Status)
	}
	return json.NewDecoder(io.LimitReader(resp.Body, maxPeerAnswer)).Decode(answer)
}

// askAll asks every other gateway at once and gives the answers of those that came in time.
func askAll[T any](ctx context.Context, p *peers, path string) map[string]T {
	ctx, cancel := context.WithTimeout(ctx, peerLimit)
	defer cancel()
	answers := map[string]T{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, g := range p.others() {
		asking.Go(func() {
			var answer T
			if err := p.ask(ctx, &g, http.MethodGet, path, &answer); err != nil {
				p.log.Debug("another gateway does not answer", "to", g.ID, "error", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			answers[g.ID] = answer
		})
	}
	asking.Wait()
	return answers
}

// order has another gateway do something.
func (p *peers) order(ctx context.Context, g *catalog.Gateway, path string) (found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, forwardLimit)
	defer cancel()
	var answer struct{ Found bool }
	if err := p.ask(ctx, g, http.MethodPost, path, &answer); err != nil {
		return false, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "gateway %s does not answer", g.ID).
			WithDetail("%v", err).WithHint("Connect to that gateway: neki.gateways has its address.")
	}
	return answer.Found, nil
}

// gatewayOfPID finds the gateway that gave a client its pid; nil when it is this one or none.
func (p *peers) gatewayOfPID(pid int32) *catalog.Gateway {
	index, _, ok := pgwire.SplitPID(uint32(pid))
	if !ok {
		return nil
	}
	for _, g := range p.others() {
		if g.Index+1 == index {
			return &g
		}
	}
	return nil
}

// awaitPaused waits until every other gateway holds the clients of a shard and has none of them on it.
func (p *peers) awaitPaused(ctx context.Context, shard string, revision int64) error {
	tick := time.NewTicker(peerPoll)
	defer tick.Stop()
	for {
		answers := askAll[peerStatus](ctx, p, "/v1/gateway")
		busy := ""
		for _, g := range p.others() {
			st, ok := answers[g.ID]
			if !ok && ctx.Err() == nil {
				return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "shard %s is paused, but gateway %s does not answer", shard, g.ID).
					WithDetail("It holds its clients as soon as it sees the catalog; whether any of them is still on the shard is not known.").
					WithHint("Call it again, or CALL neki.resume('%s').", shard)
			}
			if st.TopologyRevision < revision || st.Running[shard] > 0 {
				busy = g.ID
			}
		}
		if busy == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return pgerr.New(pgerr.QueryCanceled, "shard %s is paused, but what ran there by gateway %s has not ended", shard, busy).
				WithHint("neki.sessions shows what runs; CALL neki.resume('%s') lets its clients go on.", shard)
		}
	}
}

// peerPoll is how often the others are asked whether a pause is complete.
const peerPoll = 50 * time.Millisecond

// sharedFacts are those of this gateway with what the others know.
type sharedFacts struct {
	source
	peers *peers
}

// Sessions lists the clients of all gateways that answer.
func (f *sharedFacts) Sessions(ctx context.Context) ([]adminsql.SessionRow, error) {
	rows, err := f.source.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	for _, more := range askAll[[]adminsql.SessionRow](ctx, f.peers, "/v1/sessions") {
		rows = append(rows, more...)
	}
	return rows, nil
}

// GatewayStatuses asks all gateways.
func (f *sharedFacts) GatewayStatuses(ctx context.Context) map[string]adminsql.GatewayStatus {
	all := f.source.GatewayStatuses(ctx)
	for id, st := range askAll[peerStatus](ctx, f.peers, "/v1/gateway") {
		all[id] = st.GatewayStatus
	}
	return all
}

// CancelQuery cancels what a session runs, whichever gateway's it is.
func (f *sharedFacts) CancelQuery(ctx context.Context, pid int32) (bool, error) {
	if g := f.peers.gatewayOfPID(pid); g != nil {
		return f.peers.order(ctx, g, "/v1/cancel?pid="+strconv.Itoa(int(pid)))
	}
	return f.source.CancelQuery(ctx, pid)
}

// KillSession ends a session, whichever gateway's it is.
func (f *sharedFacts) KillSession(ctx context.Context, pid int32) (bool, error) {
	if g := f.peers.gatewayOfPID(pid); g != nil {
		return f.peers.order(ctx, g, "/v1/kill?pid="+strconv.Itoa(int(pid)))
	}
	return f.source.KillSession(ctx, pid)
}

// Drain takes a gateway out of service, this one or another.
func (f *sharedFacts) Drain(ctx context.Context, gateway string) error {
	for _, g := range f.peers.others() {
		if g.ID == gateway {
			_, err := f.peers.order(ctx, &g, "/v1/drain")
			return err
		}
	}
	return f.source.Drain(ctx, gateway)
}

// Pause holds the clients of a shard at every gateway, and returns when none is left on it.
func (f *sharedFacts) Pause(ctx context.Context, shard string) error {
	if err := f.source.Pause(ctx, shard); err != nil {
		return err
	}
	return f.peers.awaitPaused(ctx, shard, f.peers.live.Snapshot().Revision)
}

// peerHandler answers the other gateways.
func (g *gateway) peerHandler(s source) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/gateway", func(w http.ResponseWriter, r *http.Request) {
		st := peerStatus{GatewayStatus: s.GatewayStatuses(r.Context())[g.cfg.ID], Running: map[string]int{}}
		snap := g.cfg.Live.Snapshot()
		for i := range snap.Shards {
			st.Running[snap.Shards[i].UID] = g.server.Running(snap.Shards[i].UID)
		}
		answerJSON(w, st, nil)
	})
	mux.HandleFunc("GET /v1/sessions", func(w http.ResponseWriter, r *http.Request) {
		rows, err := s.Sessions(r.Context())
		answerJSON(w, rows, err)
	})
	mux.HandleFunc("POST /v1/drain", func(w http.ResponseWriter, r *http.Request) {
		answerJSON(w, map[string]bool{"Found": true}, s.Drain(r.Context(), g.cfg.ID))
	})
	onSession := func(act func(context.Context, int32) (bool, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			pid, err := strconv.ParseInt(r.URL.Query().Get("pid"), 10, 32)
			if err != nil {
				http.Error(w, "no pid", http.StatusBadRequest)
				return
			}
			found, err := act(r.Context(), int32(pid))
			answerJSON(w, map[string]bool{"Found": found}, err)
		}
	}
	mux.HandleFunc("POST /v1/cancel", onSession(s.CancelQuery))
	mux.HandleFunc("POST /v1/kill", onSession(s.KillSession))
	return agent.Guard(mux, g.cfg.RPC.server != nil, g.cfg.RPC.token)
}

func answerJSON(w http.ResponseWriter, answer any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the caller may have left
}

// servePeers answers the other gateways until ctx ends.
func (g *gateway) servePeers(ctx context.Context, around *sync.WaitGroup) {
	if g.cfg.RPCListener == nil {
		return
	}
	around.Go(func() {
		err := agent.Serve(ctx, g.cfg.RPCListener, g.peerHandler(g.server.Facts()), g.cfg.RPC.server, g.log)
		if err != nil {
			g.log.Error("the other gateways can't reach this one", "error", err)
		}
	})
}

// peerURL is where the other gateways reach this one, "" when they can't.
func (g *gateway) peerURL() string {
	switch {
	case g.cfg.RPCListener == nil:
		return ""
	case g.cfg.RPCURL != "":
		return g.cfg.RPCURL
	case g.cfg.RPC.server != nil:
		return "https://" + reachable(g.cfg.RPCListener.Addr())
	}
	return "http://" + reachable(g.cfg.RPCListener.Addr())
}

// listenPeers opens the listener for other gateways: where the file says, or with a token anywhere on the loopback.
func listenPeers(address string, r *rpc) (net.Listener, error) {
	if address == "" && r.token != "" {
		address = "127.0.0.1:0"
	}
	return listenTCP(address, false)
}

// setPaused writes into the catalog whether the clients of a shard are held, and waits until this gateway sees it.
func (g *gateway) setPaused(ctx context.Context, shard string, on bool) error {
	writing, cancel := context.WithTimeout(ctx, catalogWait)
	defer cancel()
	doc, err := catalog.UpdateShard(writing, g.cfg.Store, g.cfg.Cluster, shard, func(s *catalog.Shard) error {
		s.Paused = on
		return nil
	})
	if err != nil {
		return unavailable(err)
	}
	if !seenRevision(ctx, g.cfg.Live, doc.ModRev) {
		return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "the catalog has it, but this gateway has not seen it yet").
			WithHint("It comes into force when the gateway reaches the catalog again.")
	}
	return nil
}

// schemaChanged has all gateways plan anew.
func (g *gateway) schemaChanged(ctx context.Context) error {
	revision, err := catalog.TouchSchema(ctx, g.cfg.Store, g.cfg.Cluster)
	if err != nil {
		return err
	}
	for { // what the session asks next is to be answered by the new schema
		changed := g.cfg.Live.Changed()
		if g.cfg.Live.Snapshot().SchemaRev >= revision {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
