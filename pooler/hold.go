package pooler

import (
	"errors"
	"sync"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/backend"
)

// retryPause is how long a statement rests before the primary is tried again.
const retryPause = 20 * time.Millisecond

// Bounds of what waits for the primary of one shard, beside buffer-window. A statement beyond them fails at once.
const (
	maxHeld      = 10_000
	maxHeldBytes = 256 << 20
)

// holds counts the statements that wait for a primary, by shard. It is safe for concurrent use.
type holds struct {
	mu sync.Mutex
	of map[string]held
}

type held struct{ statements, bytes int }

// enter takes a statement of a size in; false when there are too many.
func (h *holds) enter(shard string, size int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.of[shard]
	if now.statements >= maxHeld || now.bytes+size > maxHeldBytes && now.statements > 0 {
		return false
	}
	if h.of == nil {
		h.of = map[string]held{}
	}
	h.of[shard] = held{now.statements + 1, now.bytes + size}
	return true
}

func (h *holds) leave(shard string, size int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.of[shard]
	if now.statements <= 1 {
		delete(h.of, shard)
		return
	}
	h.of[shard] = held{now.statements - 1, now.bytes - size}
}

// each gives the shards for which statements wait.
func (h *holds) each(f func(shard string, statements, bytes int)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for shard, now := range h.of {
		f(shard, now.statements, now.bytes)
	}
}

// acquirePrimary leases a connection to the shard's primary, waiting up to buffer-window for one that serves.
func (c *Session) acquirePrimary(shard string) error {
	changed := c.srv.cfg.Cluster.Changed()
	err := c.tryPrimary(shard)
	if err == nil || !unreachable(err) {
		return err
	}
	revision := c.srv.cfg.Cluster.Snapshot().TopologyDocument.Revision
	deadline := c.begun.Add(c.srv.params.Load().BufferWindow)
	size := len(c.lend().in)
	if !c.srv.holds.enter(shard, size) {
		return noServingPrimary(shard, errors.New("too many statements wait for one"))
	}
	defer c.srv.holds.leave(shard, size)
	for unreachable(err) {
		left := time.Until(deadline)
		if left <= 0 {
			return noServingPrimary(shard, err)
		}
		if err := c.pause(changed, min(left, retryPause)); err != nil {
			return err
		}
		changed = c.srv.cfg.Cluster.Changed()
		if c.srv.cfg.Cluster.Snapshot().TopologyDocument.Revision != revision {
			c.outdated = true
			return noServingPrimary(shard, errors.New("the data topology has changed while the statement waited for one"))
		}
		err = c.tryPrimary(shard)
	}
	return err
}

// outOfDate reports whether the statement in hand must be planned anew: the data topology has changed while it waited for a
// primary, and nothing of it was sent.
func (c *Session) outOfDate() bool {
	outdated := c.outdated && c.status == 'I' && !c.open && c.stx == nil && c.home == nil
	c.outdated = false
	return outdated
}

// tryPrimary leases a connection to the shard's primary.
func (c *Session) tryPrimary(shard string) error {
	node := c.srv.cfg.Cluster.Snapshot().ServingPrimary(shard)
	if node == nil {
		return errNoPrimary
	}
	sc, err := c.leaseFrom(node)
	if err == nil && sc.Params().Standby() { // it leads no longer, and the catalog can't be heard
		sc.Broken()
		sc.Release(time.Now())
		return errNoPrimary
	}
	if err == nil {
		c.took(sc, place{shard: shard, node: node, role: catalog.RolePrimary})
	}
	return err
}

var errNoPrimary = errors.New("the shard has no primary")

func noServingPrimary(shard string, cause error) error {
	return pgerr.New(pgerr.NoServingPrimary, "no serving primary for shard %q", shard).
		WithDetail("%v.", cause).
		WithHint("neki.nodes and neki.shards show the state of the cluster; the statement was not run.")
}

// followLeaders closes the connections to an instance that leads its shard no longer: those at rest at once, the others as
// they come back. A primary that is cut off, or frozen, must not be asked in a term that is over.
func (s *Server) followLeaders(led map[string]string, snap *catalog.Snapshot) {
	for i := range snap.Shards {
		uid := snap.Shards[i].UID
		now := snap.PrimaryOf(uid)
		if now == nil || led[uid] == now.ID {
			continue
		}
		if before := led[uid]; before != "" {
			s.pools.Expire(func(k backend.PoolKey) bool { return k.Node == before })
		}
		led[uid] = now.ID
	}
}
