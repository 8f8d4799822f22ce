package catalog

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Snapshot is one view of the cluster. It is immutable: its slices are shared and must not be written to. All are
// sorted by id (Parameters by scope and name). Lookups allocate nothing.
type Snapshot struct {
	Revision int64 // of the store
	// PlanVersion changes only when plans may change: with shards, the topology and the schema, not with health. It
	// grows, in this process.
	PlanVersion uint64
	// SchemaRev changes when DDL may have changed what plans depend on: see TouchSchema.
	SchemaRev  int64
	Cluster    string
	Shards     []Shard
	Nodes      []Node
	Gateways   []Gateway
	Admins     []Admin
	Profiles   []Profile
	Parameters []ClusterParameter
	// GatewayGroups and which gateways are in them.
	GatewayGroups []GatewayGroup
	GatewayPlaces []GatewayPlace
	Jobs          []*Job   // long actions, oldest first
	Backups       []Backup // sorted by id, then shard: oldest first
	// ReadOnly: a shard's disk is low, see Shard.ReadOnly.
	ReadOnly bool
	// TopologyDocument is the document that Topology gives compiled; its Revision is 0 when none was ever set.
	TopologyDocument TopologyDocument

	topology *Topology
	rules    []Rule        // of the shards, at the same places; the zero Rule where there is none
	ofShard  []shardNodes  // of the shards, at the same places
	health   []*NodeHealth // of the nodes, at the same places; nil = no report yet
}

type shardNodes struct {
	uid     string
	nodes   []*Node
	primary *Node // nil when there is none
	serving *Node // the primary, unless it is being replaced
	chosen  int64 // the term in which primary has been chosen and is being promoted, else 0
}

// ClusterParameter is a parameter that was set by SQL.
type ClusterParameter struct{ Scope, Name, Value string }

// Topology gives the data topology. It is never nil: without a document all is on the authoritative shard. What a document
// that was forced on the cluster has wrong is not placed.
func (s *Snapshot) Topology() *Topology {
	if s.topology != nil {
		return s.topology
	}
	if home := s.Authoritative(); home != nil { // a Snapshot that no Live made
		return implicitTopology(home.UID)
	}
	return implicitTopology("")
}

// CurrentTopology gives the document of the topology in force; where none was ever set, one that says what is so, of
// revision 0.
func (s *Snapshot) CurrentTopology() TopologyDocument {
	if s.TopologyDocument.Revision != 0 {
		return s.TopologyDocument
	}
	shard := s.Topology().Authoritative.Shards[0]
	return TopologyDocument{Document: fmt.Appendf(nil, `{"shard_groups": [{"uid": %q, "key_ranges": [{"shard_uid": %q}]}], `+
		`"default_shard_group": %q, "authoritative_shard_group": %q}`, implicitGroup, shard, implicitGroup, implicitGroup)}
}

// Shard gives the shard of that uid, nil when there is none.
func (s *Snapshot) Shard(uid string) *Shard {
	i, ok := slices.BinarySearchFunc(s.Shards, uid, func(a Shard, uid string) int { return strings.Compare(a.UID, uid) })
	if !ok {
		return nil
	}
	return &s.Shards[i]
}

// Rule gives the rule of the shard of that uid, nil when there is none.
func (s *Snapshot) Rule(uid string) *Rule {
	i, ok := slices.BinarySearchFunc(s.Shards, uid, func(a Shard, uid string) int { return strings.Compare(a.UID, uid) })
	if !ok || s.rules[i].ModRev == 0 {
		return nil
	}
	return &s.rules[i]
}

// Node gives the node of that id, nil when there is none.
func (s *Snapshot) Node(id string) *Node {
	i, ok := s.nodeIndex(id)
	if !ok {
		return nil
	}
	return &s.Nodes[i]
}

func (s *Snapshot) nodeIndex(id string) (int, bool) {
	return slices.BinarySearchFunc(s.Nodes, id, func(a Node, id string) int { return strings.Compare(a.ID, id) })
}

// NodesOf gives the nodes of a shard, the primary too, in the order of their ids. The slice must not be written to.
func (s *Snapshot) NodesOf(shard string) []*Node {
	if of := s.nodesOf(shard); of != nil {
		return of.nodes
	}
	return nil
}

func (s *Snapshot) nodesOf(shard string) *shardNodes {
	i, ok := slices.BinarySearchFunc(s.ofShard, shard, func(a shardNodes, uid string) int {
		return strings.Compare(a.uid, uid)
	})
	if !ok {
		return nil
	}
	return &s.ofShard[i]
}

// PrimaryOf gives the node that is the primary of a shard, nil when there is none.
func (s *Snapshot) PrimaryOf(shard string) *Node {
	if of := s.nodesOf(shard); of != nil {
		return of.primary
	}
	return nil
}

// ServingPrimary is PrimaryOf, but nil while the shard's primary is being replaced: the next one takes no clients yet, the last
// one no new ones. That the next one serves its agent says before the catalog does.
func (s *Snapshot) ServingPrimary(shard string) *Node {
	of := s.nodesOf(shard)
	switch {
	case of == nil:
		return nil
	case of.serving != nil || of.chosen == 0 || of.primary == nil:
		return of.serving
	}
	h := s.Health(of.primary.ID)
	if h == nil || h.Stale || h.Role != RolePrimary || h.State != StateServing || h.Term != of.chosen {
		return nil
	}
	return of.primary
}

// Health gives what is known of a node's health, nil when its agent has never reported to this process.
func (s *Snapshot) Health(node string) *NodeHealth {
	i, ok := s.nodeIndex(node)
	if !ok {
		return nil
	}
	return s.health[i]
}

// Authoritative gives the shard that is the source of schema and type OIDs; nil when there is no shard. Where no shard
// says that it is, it is the first.
func (s *Snapshot) Authoritative() *Shard {
	for i := range s.Shards {
		if s.Shards[i].Authoritative {
			return &s.Shards[i]
		}
	}
	if len(s.Shards) == 0 {
		return nil
	}
	return &s.Shards[0]
}

// Profile gives the profile of that name, nil when there is none; for "" the default one.
func (s *Snapshot) Profile(name string) *Profile {
	for i := range s.Profiles {
		if p := &s.Profiles[i]; p.Name == name || name == "" && p.Default {
			return p
		}
	}
	return nil
}

// ShardsOfProfile lists the uids of the shards that have a profile; a shard that names none has the default one.
func (s *Snapshot) ShardsOfProfile(p *Profile) []string {
	uids := []string{}
	for i := range s.Shards {
		if sh := &s.Shards[i]; sh.Profile == p.Name || sh.Profile == "" && p.Default {
			uids = append(uids, sh.UID)
		}
	}
	return uids
}

// Gateway gives the gateway of that id, nil when there is none.
func (s *Snapshot) Gateway(id string) *Gateway {
	i, ok := slices.BinarySearchFunc(s.Gateways, id, func(a Gateway, id string) int { return strings.Compare(a.ID, id) })
	if !ok {
		return nil
	}
	return &s.Gateways[i]
}

// Leader gives the admin that leads, nil when there is none.
func (s *Snapshot) Leader() *Admin {
	for i := range s.Admins {
		if s.Admins[i].Leader {
			return &s.Admins[i]
		}
	}
	return nil
}

// Parameter gives the text of a parameter that was set by SQL.
func (s *Snapshot) Parameter(scope, name string) (string, bool) {
	for i := range s.Parameters {
		if p := &s.Parameters[i]; p.Scope == scope && p.Name == name {
			return p.Value, true
		}
	}
	return "", false
}

// ParametersOf gives the names and texts of a scope's parameters that were set by SQL, in the order of the names.
func (s *Snapshot) ParametersOf(scope string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for i := range s.Parameters {
			if p := &s.Parameters[i]; p.Scope == scope && !yield(p.Name, p.Value) {
				return
			}
		}
	}
}
