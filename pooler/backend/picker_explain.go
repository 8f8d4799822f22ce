package backend

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/settings"
)

// Candidate is one instance of a shard as judged for a read.
type Candidate struct {
	Node   string
	Role   catalog.Role
	Cell   string
	Tier   string // preferred, tolerable or excluded
	Reason string // why it is excluded, "" when it is not
	Load   int    // outstanding statements of this gateway on it
	Sticky bool   // the session's replica, which is taken before the others
}

// Eligible reports whether the candidate may serve the read.
func (c Candidate) Eligible() bool { return c.Reason == "" }

// Candidates judges every replica of r.Shard, in the order in which Pick prefers them: the session's own replica, then
// by tier, locality and load, then the excluded ones. The shard's primary is listed only when the primary is asked for,
// and then alone. It is for people (EXPLAIN, neki.replica_choice, NK001), not for the hot path.
func (p *Picker) Candidates(s *catalog.Snapshot, r *Request) []Candidate { return p.candidates(s, r) }

func (p *Picker) candidates(s view, r *Request) []Candidate {
	shard := s.Shard(r.Shard)
	if shard == nil {
		return nil
	}
	if r.Role == catalog.RolePrimary {
		return p.primary(s, shard)
	}
	type ranked struct {
		Candidate
		rank int
	}
	var list []ranked
	for _, n := range s.NodesOf(r.Shard) {
		if n.ID == shard.Primary {
			continue
		}
		v := p.judge(s, shard, n, r)
		c := ranked{Candidate{Node: n.ID, Role: n.Role, Cell: n.Cell, Tier: v.tier.String()}, v.rank()}
		if p.Load != nil {
			c.Load = p.Load(n)
		}
		if v.tier == excluded {
			c.Reason = p.reason(v.cause, n, s.Health(n.ID), r)
		} else if n.ID == r.Sticky && sticks(r.Neki) {
			c.Sticky, c.rank = true, -1
		}
		list = append(list, c)
	}
	slices.SortStableFunc(list, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Load, b.Load), strings.Compare(a.Node, b.Node))
	})
	out := make([]Candidate, len(list))
	for i := range list {
		out[i] = list[i].Candidate
	}
	return out
}

func (p *Picker) primary(s view, shard *catalog.Shard) []Candidate {
	n := s.Node(shard.Primary)
	if n == nil {
		return nil
	}
	c := Candidate{Node: n.ID, Role: catalog.RolePrimary, Cell: n.Cell, Tier: preferred.String()}
	if p.Load != nil {
		c.Load = p.Load(n)
	}
	return []Candidate{c}
}

// reason says in words why n is excluded.
func (p *Picker) reason(c cause, n *catalog.Node, h *catalog.NodeHealth, r *Request) string {
	switch c {
	case wrongRole:
		return "role " + n.Role.String() + ", not " + r.Role.String()
	case failedJustNow:
		return "failed this statement"
	case refused:
		return p.Down(n)
	case desiredState:
		return because(desiredReason(n.Desired), n.Reason)
	case noReport:
		return "unreachable: no health report"
	case notServing:
		return because(h.State.String(), h.Reason)
	case notInRecovery:
		return "not in recovery"
	case wrongCell:
		return "wrong cell " + n.Cell
	case notCaughtUp:
		return "not caught up to " + r.Floor.String()
	}
	return lagReason(c, h, r)
}

func lagReason(c cause, h *catalog.NodeHealth, r *Request) string {
	above := func(limit time.Duration, by string) string {
		lag, most := shortDuration(h.Lag), shortDuration(limit)
		if lag == most { // the difference was cut off
			lag = h.Lag.String()
		}
		return "lag " + lag + " > " + most + by
	}
	switch c {
	case lagUnknown:
		return because("lag unknown", h.LagReason)
	case lagAboveMax:
		return above(r.Lag.Max, "")
	case lagAboveMin:
		return above(r.Lag.Min, " (replica_recency require)")
	case lagAboveBound:
		return above(r.Neki.Bound, " (replica_consistency bounded)")
	}
	return ""
}

// desiredReason names a wanted state as the column neki.replicas.state does.
func desiredReason(desired string) string {
	if desired == catalog.DesiredRestore {
		return catalog.StateRestoring.String()
	}
	return desired
}

func because(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}

// shortDuration is d as people write it: "17m", "1m30s", "250ms"; milliseconds count only below ten seconds.
func shortDuration(d time.Duration) string {
	if d >= 10*time.Second {
		d = d.Truncate(time.Second)
	} else if d >= time.Millisecond {
		d = d.Truncate(time.Millisecond)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// NoReplicaError is the error of a read for which no instance of the shard is eligible. It never falls back to the
// primary, so the DETAIL says of each candidate what is wrong with it. candidates are those of Candidates.
func NoReplicaError(shard *catalog.Shard, r *Request, candidates []Candidate) *pgerr.Error {
	name := r.Shard
	if shard != nil && shard.Name != "" {
		name = shard.Name
	}
	e := pgerr.New(pgerr.NoEligibleReplica, "no eligible %s for shard %q", r.Role, name)
	ofRole, behind := 0, 0
	var detail strings.Builder
	for _, c := range candidates {
		if detail.Len() > 0 {
			detail.WriteByte('\n')
		}
		detail.WriteString(c.Node + ": " + cmp.Or(c.Reason, c.Tier))
		if c.Role == r.Role {
			ofRole++
		}
		if strings.HasPrefix(c.Reason, "not caught up") {
			behind++
		}
	}
	if detail.Len() == 0 {
		detail.WriteString("The shard has no replicas.")
	}
	e.Detail = detail.String()
	e.Hint = noReplicaHint(r, name, ofRole, behind)
	return e
}

func noReplicaHint(r *Request, shard string, ofRole, behind int) string {
	switch {
	case ofRole == 0 && r.Role == catalog.RoleRdonly:
		return "Shard " + shard + " has none: `neki dev --rdonly 1` makes one; or SET __neki.target = 'replica'."
	case ofRole == 0:
		return "Shard " + shard + " has none: `neki dev --replicas 2` makes two; or SET __neki.target = 'primary'."
	case behind > 0 && r.Neki.Consistency == settings.SessionConsistency:
		return "Raise __neki.replica_wait (now " + shortDuration(r.Neki.Wait) +
			"), or SET __neki.target = 'primary' for reads that can't wait."
	}
	return "Reads never fall back to the primary by themselves: SET __neki.target = 'primary' to read there. " +
		"neki.replica_choice shows how replicas are judged."
}
