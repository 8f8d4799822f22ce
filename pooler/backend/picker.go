package backend

import (
	"math/rand/v2"
	"time"

	"neki/catalog"
	"neki/settings"
)

// Picker chooses the instance that serves a read. It is pure: everything that it decides by is in its fields, the
// Snapshot and the Request, and it changes none of them. Pick does not allocate. It is safe for concurrent use when Load
// and Rand are.
//
// The rules are those of the settings __neki.target and __neki.replica_*:
//
//   - A candidate is a node whose desired role is the one asked for. Target replica never takes an rdonly node: rdonly
//     nodes exist so that heavy reads can't disturb the others, and the reverse must hold as well.
//   - Excluded whatever the settings say: fenced, draining, restoring or unreachable nodes, a node that is not in recovery
//     (it would accept a write), unknown lag, lag above Lag.Max.
//   - Recency orders the others in two tiers, locality orders within a tier, and of the best group the one with fewer
//     outstanding statements of two taken at random is chosen.
//   - The node that the session used last (Request.Sticky) wins while it is not excluded, under affinity session, and
//     under consistency session too, where moving to another replica could show older rows than were seen.
type Picker struct {
	Cell string                       // the gateway's own cell (availability zone)
	Here func() string                // the gateway's cell, where it changes; nil = Cell
	Load func(n *catalog.Node) int    // outstanding statements of this gateway on n; nil = all equal
	Rand func() uint64                // random source; nil = math/rand/v2
	Down func(n *catalog.Node) string // why this gateway itself can't reach n, "" = it can; nil = all can
	// Replayed gives a position that n is known to have replayed, besides what its agent reports; nil = none is known.
	Replayed func(n *catalog.Node) catalog.LSN
}

// Lag holds the gateway parameters replication-lag-tolerable-min and -max.
type Lag struct {
	Min, Max time.Duration
}

// Request is what one read asks of one shard.
type Request struct {
	Shard  string       // uid
	Role   catalog.Role // RolePrimary, RoleReplica or RoleRdonly
	Neki   settings.Neki
	Lag    Lag
	Floor  catalog.LSN // the replica must have replayed this; 0 = no floor
	Sticky string      // node that the session used last on this shard; "" = none
	Avoid  string      // node that has just failed this statement; "" = none
}

// view is what the Picker reads of a Snapshot.
type view interface {
	Shard(uid string) *catalog.Shard
	Node(id string) *catalog.Node
	NodesOf(shard string) []*catalog.Node
	Health(node string) *catalog.NodeHealth
}

// Choice is the result of Pick.
type Choice struct {
	Node *catalog.Node // nil: nobody is eligible
	// Wait: nobody is eligible, but a node is excluded for nothing but consistency (the floor or the bound), so waiting up
	// to __neki.replica_wait can help. Pick again without Floor (and with Consistency Eventual) to learn whom to wait for.
	Wait bool
}

// tier is how good a candidate is by lag.
type tier uint8

const (
	preferred tier = iota
	tolerable
	excluded
)

func (t tier) String() string {
	switch t {
	case preferred:
		return "preferred"
	case tolerable:
		return "tolerable"
	}
	return "excluded"
}

// cause is why a node is excluded. The two causes of consistency are last, so that a node with one of them has no other.
type cause uint8

const (
	eligible cause = iota
	wrongRole
	isPrimary
	failedJustNow
	refused
	desiredState
	noReport
	notServing
	notInRecovery
	lagUnknown
	lagAboveMax
	lagAboveMin
	wrongCell
	lagAboveBound
	notCaughtUp
)

func (c cause) consistency() bool { return c == lagAboveBound || c == notCaughtUp }

// verdict is the judgement of one node.
type verdict struct {
	tier   tier
	cause  cause
	remote bool // another cell than the gateway's, and locality matters
}

// rank orders eligible candidates: tier first, then locality. Smaller is better.
func (v verdict) rank() int {
	r := int(v.tier) * 2
	if v.remote {
		r++
	}
	return r
}

// Pick chooses the instance of r.Shard for a statement. For the primary it gives the shard's primary without judging it:
// whether it serves is found out by using it.
func (p *Picker) Pick(s *catalog.Snapshot, r *Request) Choice { return p.pick(s, r) }

func (p *Picker) pick(s view, r *Request) Choice {
	shard := s.Shard(r.Shard)
	if shard == nil {
		return Choice{}
	}
	if r.Role == catalog.RolePrimary {
		return Choice{Node: s.Node(shard.Primary)}
	}
	var two pair
	best, wait := int(excluded)*2, false
	for _, n := range s.NodesOf(r.Shard) {
		v := p.judge(s, shard, n, r)
		if v.tier == excluded {
			wait = wait || v.cause.consistency()
			continue
		}
		if n.ID == r.Sticky && sticks(r.Neki) {
			return Choice{Node: n}
		}
		switch rank := v.rank(); {
		case rank < best:
			best = rank
			two = pair{first: n, seen: 1}
		case rank == best:
			two.add(n, p.Rand)
		}
	}
	if two.seen == 0 {
		return Choice{Wait: wait}
	}
	return Choice{Node: p.lighter(two)}
}

func sticks(n settings.Neki) bool {
	return n.Affinity == settings.AffinitySession || n.Consistency == settings.SessionConsistency
}

// pair is a uniform sample of up to two of the nodes added to it (reservoir sampling).
type pair struct {
	first, second *catalog.Node
	seen          int
}

func (t *pair) add(n *catalog.Node, random func() uint64) {
	t.seen++
	if t.seen == 2 {
		t.second = n
		return
	}
	switch below(random, t.seen) {
	case 0:
		t.first = n
	case 1:
		t.second = n
	}
}

// lighter gives the node of t with fewer outstanding statements; equal loads are decided at random, so that idle
// replicas share evenly.
func (p *Picker) lighter(t pair) *catalog.Node {
	if t.second == nil {
		return t.first
	}
	if p.Load != nil {
		switch a, b := p.Load(t.first), p.Load(t.second); {
		case a < b:
			return t.first
		case b < a:
			return t.second
		}
	}
	if below(p.Rand, 2) == 0 {
		return t.first
	}
	return t.second
}

// below gives a random number in [0, n).
func below(random func() uint64, n int) int {
	if random == nil {
		return rand.IntN(n)
	}
	return int(random() % uint64(n))
}

// judge says whether n may serve r and how well.
func (p *Picker) judge(s view, shard *catalog.Shard, n *catalog.Node, r *Request) verdict {
	h := s.Health(n.ID)
	if c := p.state(shard, n, h, r); c != eligible {
		return verdict{tier: excluded, cause: c}
	}
	v := verdict{tier: preferred}
	switch {
	case !h.LagKnown:
		return verdict{tier: excluded, cause: lagUnknown}
	case h.Lag > r.Lag.Max:
		return verdict{tier: excluded, cause: lagAboveMax}
	case h.Lag > r.Lag.Min && r.Neki.Recency == settings.Require:
		return verdict{tier: excluded, cause: lagAboveMin}
	case h.Lag > r.Lag.Min && r.Neki.Recency == settings.Prefer:
		v.tier = tolerable
	}
	if n.Cell != p.cell() && r.Neki.Locality != settings.Off {
		if r.Neki.Locality == settings.Require {
			return verdict{tier: excluded, cause: wrongCell}
		}
		v.remote = true
	}
	switch {
	case r.Neki.Consistency == settings.Bounded && h.Lag > r.Neki.Bound:
		return verdict{tier: excluded, cause: lagAboveBound}
	case h.ReplayLSN < r.Floor && (p.Replayed == nil || p.Replayed(n) < r.Floor):
		return verdict{tier: excluded, cause: notCaughtUp}
	}
	return v
}

// cell is the gateway's cell as it is now.
func (p *Picker) cell() string {
	if p.Here != nil {
		return p.Here()
	}
	return p.Cell
}

// state judges all that has nothing to do with lag, place and consistency.
func (p *Picker) state(shard *catalog.Shard, n *catalog.Node, h *catalog.NodeHealth, r *Request) cause {
	switch {
	case n.Role != r.Role:
		return wrongRole
	case n.ID == shard.Primary:
		return isPrimary
	case n.ID == r.Avoid:
		return failedJustNow
	case n.Desired != "" && n.Desired != catalog.DesiredRun:
		return desiredState
	case h == nil:
		return noReport
	case h.State != catalog.StateServing:
		return notServing
	case h.Role == catalog.RolePrimary:
		return notInRecovery
	case p.Down != nil && p.Down(n) != "":
		return refused
	}
	return eligible
}
