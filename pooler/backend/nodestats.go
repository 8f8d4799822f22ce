package backend

import (
	"sync/atomic"
	"time"

	"neki/catalog"
)

// NodeStats is what this gateway knows of one instance by using it.
type NodeStats struct {
	Outstanding atomic.Int32 // statements now running there
	Reads       atomic.Int64 // reads sent there since the start
	replayed    atomic.Uint64
	downUntil   atomic.Int64 // Unix nanoseconds
	downReason  atomic.Pointer[string]
}

// Replayed gives the furthest position that the instance is known, by asking it, to have replayed.
func (n *NodeStats) Replayed() catalog.LSN { return catalog.LSN(n.replayed.Load()) }

// NoteReplayed notes an answer of the instance.
func (n *NodeStats) NoteReplayed(lsn catalog.LSN) {
	for {
		old := n.replayed.Load()
		if uint64(lsn) <= old || n.replayed.CompareAndSwap(old, uint64(lsn)) {
			return
		}
	}
}

// NoteDown notes that the instance could not be used; reads avoid it until then.
func (n *NodeStats) NoteDown(until time.Time, reason string) {
	n.downReason.Store(&reason)
	n.downUntil.Store(until.UnixNano())
}

// NoteUp notes that the instance was used.
func (n *NodeStats) NoteUp() {
	if n.downUntil.Load() != 0 {
		n.downUntil.Store(0)
	}
}

// Down gives the reason why the instance is avoided, "" when it is not.
func (n *NodeStats) Down(now time.Time) string {
	until := n.downUntil.Load()
	if until == 0 || now.UnixNano() >= until {
		return ""
	}
	if r := n.downReason.Load(); r != nil {
		return *r
	}
	return "unreachable"
}

// Node gives the figures of an instance, making them when it is new.
func (p *Pools) Node(id string) *NodeStats {
	if m := p.nodes.Load(); m != nil {
		if n := (*m)[id]; n != nil {
			return n
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	grown := make(map[string]*NodeStats)
	if m := p.nodes.Load(); m != nil {
		for k, n := range *m {
			grown[k] = n
		}
	}
	if grown[id] == nil {
		grown[id] = &NodeStats{}
	}
	p.nodes.Store(&grown)
	return grown[id]
}
