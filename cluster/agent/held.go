package agent

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// heldLimit bounds the wait for gateways: one that is gone, or cut off, must not hold a switchover up.
const heldLimit = 200 * time.Millisecond

// Held is a gateway's word that it sends nothing new to a primary that is about to hand over.
type Held struct {
	Gateway string `json:"gateway"`
	Term    int64  `json:"term"`
	Sub     int64  `json:"sub"`
}

// Held tells the agent that a gateway holds what is for its instance as a primary.
func (c *Client) Held(ctx context.Context, h Held) error {
	return c.call(ctx, http.MethodPost, "held", h, &struct{}{})
}

// holders remembers the newest word of each gateway. It is safe for concurrent use.
type holders struct {
	mu      sync.Mutex
	of      map[string]Held
	changed chan struct{} // closed at the next word; nil: nobody waits
}

// maxHolders bounds what is remembered.
const maxHolders = 1024

func (h *holders) note(word Held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil || len(h.of) >= maxHolders {
		h.of = map[string]Held{}
	}
	h.of[word.Gateway] = word
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// missing gives those of the gateways that have not said yet that they hold, and a channel that is closed at the next word.
func (h *holders) missing(gateways []string, term, sub int64) (list []string, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range gateways {
		if word, ok := h.of[g]; !ok || word.Term != term || word.Sub < sub {
			list = append(list, g)
		}
	}
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return list, h.changed
}

// awaitHeld waits a while for gateways to stop sending what is new, and gives those that have not.
func (h *holders) awaitHeld(ctx context.Context, o FenceOrder, limit time.Duration) []string {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		list, changed := h.missing(o.Gateways, o.Term, o.Sub)
		if len(list) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return list
		}
	}
}

func (a *Agent) handleHeld(w http.ResponseWriter, req *http.Request) {
	var word Held
	if readBody(w, req, "held", &word) {
		a.holders.note(word)
		writeJSON(w, http.StatusOK, struct{}{})
	}
}
