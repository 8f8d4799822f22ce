package catalog

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// writer is the state of Live's Run: all that a Snapshot is made from.
type writer struct {
	live    *Live
	docs    documents
	static  *Snapshot // of docs; nil before the first listing
	dirty   bool      // docs or reports have changed since the last Snapshot
	reports map[string]report
	rings   map[string]*nodeRing
	planKey string
	plan    uint64
}

// nodeRing is the ring of one node's time as a primary.
type nodeRing struct {
	Ring
	term     int64
	timeline int32
}

func newWriter(l *Live) *writer {
	return &writer{live: l, reports: map[string]report{}, rings: map[string]*nodeRing{}}
}

func (w *writer) update(u update) {
	if u.listed {
		if !w.docs.replace(u.entries, u.batch.Rev) {
			return
		}
	} else {
		w.docs.apply(u.batch)
	}
	w.static = fold(&w.docs, w.live.cluster, w.live.log)
	if key := planKey(&w.docs, w.static); key != w.planKey {
		w.planKey = key
		w.plan++
	}
	w.static.PlanVersion = w.plan
	w.dirty = true
}

func (w *writer) report(reports map[string]report) {
	maps.Copy(w.reports, reports)
	for node, r := range reports {
		w.dirty = true
		h := &r.health
		if h.Role != RolePrimary {
			delete(w.rings, node)
			continue
		}
		ring := w.rings[node]
		if ring == nil || ring.term != h.Term || ring.timeline != h.Timeline {
			ring = &nodeRing{term: h.Term, timeline: h.Timeline}
			w.rings[node] = ring
		}
		ring.Merge(r.at, h.Ring)
		if h.FlushLSN > 0 && h.FlushLSN >= ring.Newest() {
			ring.Add(r.at, h.FlushLSN)
		}
		h.Ring = nil // it would only take memory
		w.reports[node] = r
	}
}

// publish makes a new Snapshot when there is something new in it, and tells when that may be so by time alone.
func (w *writer) publish(now time.Time) (next time.Duration) {
	next = time.Hour
	if w.static == nil {
		return next
	}
	for node, r := range w.reports {
		age := now.Sub(r.at)
		switch {
		case age <= StaleAfter:
			next = min(next, StaleAfter-age+time.Millisecond)
		case w.static.Node(node) == nil:
			delete(w.reports, node)
			delete(w.rings, node)
		}
	}
	if w.dirty || w.newlyStale(now) {
		w.replace(now)
	}
	return next
}

// newlyStale reports whether a report has become stale that was not so in the last Snapshot.
func (w *writer) newlyStale(now time.Time) bool {
	for _, h := range w.live.Snapshot().health {
		if h != nil && !h.Stale && now.Sub(h.ReceivedAt) > StaleAfter {
			return true
		}
	}
	return false
}

func (w *writer) replace(now time.Time) {
	w.dirty = false
	snap := *w.static
	w.promote(&snap, now)
	snap.health = make([]*NodeHealth, len(snap.Nodes))
	for i := range snap.Nodes {
		if r, ok := w.reports[snap.Nodes[i].ID]; ok {
			snap.health[i] = w.assess(&snap, &snap.Nodes[i], r, now)
		}
	}
	old := w.live.view.Swap(&view{snap: &snap, changed: make(chan struct{})})
	if old.snap == nil {
		close(w.live.ready)
	}
	close(old.changed)
}

// promote lets an instance that serves as a primary in a later term than the store tells be the primary: after a
// failover its report is often here before the store's watch. Terms only come from the store, so it is never wrong.
func (w *writer) promote(snap *Snapshot, now time.Time) {
	copied := false
	for node, r := range w.reports {
		h := &r.health
		n := snap.Node(node)
		if h.Role != RolePrimary || h.State != StateServing || now.Sub(r.at) > StaleAfter || n == nil {
			continue
		}
		sh := snap.Shard(n.Shard)
		if sh == nil || h.Term <= sh.Term {
			continue
		}
		if !copied {
			snap.Shards = slices.Clone(snap.Shards)
			copied = true
			sh = snap.Shard(n.Shard)
		}
		sh.Primary, sh.Term = node, h.Term
	}
}

// assess says what a report means now.
func (w *writer) assess(snap *Snapshot, n *Node, r report, now time.Time) *NodeHealth {
	h := &NodeHealth{Health: r.health, ReceivedAt: r.at, Stale: now.Sub(r.at) > StaleAfter}
	if h.Stale {
		h.State = StateUnreachable
		h.Reason = fmt.Sprintf("no report from the agent for more than %s", StaleAfter)
	}
	sh := snap.Shard(n.Shard)
	if sh == nil || sh.Primary == "" {
		h.LagReason = "the shard has no primary"
		return h
	}
	primary, ok := w.reports[sh.Primary]
	ring := w.rings[sh.Primary]
	if !ok || ring == nil || ring.Newest() == 0 {
		h.LagReason = "the primary has not reported its log position"
		return h
	}
	h.Lag, h.LagKnown = ring.Lag(now, h.replayed())
	if h.Node == sh.Primary {
		h.Lag, h.LagKnown = 0, true
	}
	h.LagBytes = max(0, int64(ring.Newest())-int64(h.replayed()))
	h.LagReason = unknownBecause(h, &primary.health, now.Sub(primary.at))
	h.LagBytesKnown = h.replayed() != 0 && !h.Stale && now.Sub(primary.at) <= StaleAfter
	switch {
	case h.LagReason != "":
		h.LagKnown = false
	case !h.LagKnown:
		h.LagReason = fmt.Sprintf("more than %s, the primary's record does not reach back further",
			h.Lag.Round(time.Millisecond))
	}
	return h
}

// replayed gives how much of the log a query on the instance sees: on a primary all.
func (h *NodeHealth) replayed() LSN {
	if h.Role == RolePrimary {
		return h.FlushLSN
	}
	return h.ReplayLSN
}

// unknownBecause tells why a lag computed from the primary's ring can't be trusted; "" when it can.
func unknownBecause(h *NodeHealth, primary *Health, primaryAge time.Duration) string {
	switch {
	case h.Stale:
		return h.Reason
	case primaryAge > StaleAfter:
		return "no report from the primary's agent for more than " + StaleAfter.String()
	case primary.Role != RolePrimary || primary.State != StateServing && primary.State != StateDraining:
		return "the primary is " + primary.State.String()
	case primary.SystemID != h.SystemID && primary.SystemID != "" && h.SystemID != "":
		return "the instance is not a copy of the primary"
	case h.Role == RolePrimary && h.Node != primary.Node:
		return "the instance is itself a primary"
	case h.Role == RolePrimary:
		return ""
	case h.ReplayLSN == 0:
		return "the instance has not reported its replay position"
	case !h.Streaming:
		return "the receiver is down"
	case h.LastMsgAge > StaleAfter:
		return fmt.Sprintf("the receiver's last message is %s old", h.LastMsgAge.Round(time.Millisecond))
	}
	return ""
}
