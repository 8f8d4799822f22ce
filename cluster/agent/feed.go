package agent

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"neki/catalog"
)

// Feed keeps a health stream open to every agent of the cluster and reports what comes to a Live. Gateways and admins
// each run one. It needs the catalog only to learn of agents: streams go on while the store is away.
type Feed struct {
	Live  *catalog.Live
	HTTP  *http.Client // nil means http.DefaultClient
	Token string
	Log   *slog.Logger // nil discards
}

// Run runs until ctx ends and joins all streams.
func (f *Feed) Run(ctx context.Context) error {
	var streams sync.WaitGroup
	defer streams.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	open := map[string]openStream{}
	select {
	case <-f.Live.Ready():
	case <-ctx.Done():
		return nil
	}
	for {
		changed := f.Live.Changed()
		f.match(ctx, open, &streams)
		// Health replaces the Snapshot several times a second; nodes come and go rarely.
		pause := time.NewTimer(100 * time.Millisecond)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// openStream is the stream to one node at one URL.
type openStream struct {
	url  string
	stop context.CancelFunc
}

// match opens streams to nodes that have none at their URL and ends those to nodes that are gone.
func (f *Feed) match(ctx context.Context, open map[string]openStream, streams *sync.WaitGroup) {
	snap := f.Live.Snapshot()
	for i := range snap.Nodes {
		n := &snap.Nodes[i]
		if s, ok := open[n.ID]; ok {
			if s.url == n.AgentURL {
				continue
			}
			s.stop()
			delete(open, n.ID)
		}
		if n.AgentURL == "" {
			continue
		}
		sctx, stop := context.WithCancel(ctx)
		open[n.ID] = openStream{url: n.AgentURL, stop: stop}
		client := &Client{URL: n.AgentURL, HTTP: f.HTTP, Token: f.Token}
		streams.Go(func() { f.follow(sctx, n.ID, client) })
	}
	for id, s := range open {
		if snap.Node(id) == nil {
			s.stop()
			delete(open, id)
		}
	}
}

// follow keeps one stream open for ever.
func (f *Feed) follow(ctx context.Context, node string, client *Client) {
	wait := feedFirst
	for ctx.Err() == nil {
		for h, err := range client.Stream(ctx) {
			if err != nil {
				if f.Log != nil && ctx.Err() == nil {
					f.Log.Debug("health stream broken", "node", node, "error", err)
				}
				break
			}
			if h.Node != node { // its address has passed to another
				break
			}
			wait = feedFirst
			f.Live.Report(h)
		}
		t := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
		wait = min(2*wait, feedMost)
	}
}

// Waits between attempts to open a stream.
const (
	feedFirst = 100 * time.Millisecond
	feedMost  = 2 * time.Second
)
