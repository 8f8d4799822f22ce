package catalog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
)

// documents are the entries below a cluster's prefix, by key, as the store had them at a revision.
type documents struct {
	rev     int64
	entries map[string]Entry

	topology    *Topology // of the document with that ModRev; 0: there is none
	topologyRev int64

	jobs map[string]*Job // by key, as last decoded: there are many that don't change any more
}

// replace takes a whole listing and reports whether anything is different.
func (d *documents) replace(entries []Entry, rev int64) bool {
	next := make(map[string]Entry, len(entries))
	for _, e := range entries {
		next[e.Key] = e
	}
	same := maps.EqualFunc(d.entries, next, func(a, b Entry) bool { return a.ModRev == b.ModRev })
	first := d.entries == nil
	d.entries, d.rev = next, max(d.rev, rev)
	return first || !same
}

func (d *documents) apply(b Batch) {
	for _, c := range b.Changes {
		if c.Deleted {
			delete(d.entries, c.Key)
		} else {
			d.entries[c.Key] = c.Entry
		}
	}
	d.rev = max(d.rev, b.Rev)
}

// folder makes a Snapshot, all but its health, of documents.
type folder struct {
	snap   *Snapshot
	log    *slog.Logger
	rules  map[string]Rule
	live   map[string]bool // by node
	leader string
}

// fold makes a Snapshot of the documents. One that can't be read is logged and left out.
func fold(d *documents, cluster string, log *slog.Logger) *Snapshot {
	f := folder{
		snap: &Snapshot{Revision: d.rev, Cluster: cluster, SchemaRev: d.entries[SchemaKey(cluster)].ModRev}, log: log,
		rules: map[string]Rule{}, live: map[string]bool{},
	}
	prefix := Prefix(cluster)
	for key, e := range d.entries {
		if err := f.add(strings.Split(strings.TrimPrefix(key, prefix), "/"), e); err != nil {
			log.Error("catalog document left out", "key", key, "error", err)
		}
	}
	f.finish()
	d.foldJobs(f.snap, log)
	f.snap.topology = d.compile(f.snap, log)
	return f.snap
}

// compile gives the topology of a Snapshot, the same as long as its document is.
func (d *documents) compile(s *Snapshot, log *slog.Logger) *Topology {
	doc := &s.TopologyDocument
	if doc.ModRev == 0 {
		d.topology, d.topologyRev = nil, 0
		home := ""
		if sh := s.Authoritative(); sh != nil {
			home = sh.UID
		}
		return implicitTopology(home)
	}
	if doc.ModRev == d.topologyRev {
		return d.topology
	}
	t, problems := ParseTopology(doc.Document)
	if t == nil {
		t = &Topology{} // places nothing
	}
	t.Revision = doc.Revision
	if len(problems) > 0 {
		log.Error("the data topology has errors: what they concern is not placed", "revision", doc.Revision, "problems", problems)
	}
	d.topology, d.topologyRev = t, doc.ModRev
	return t
}

// foldJobs gives a Snapshot its jobs. One whose document is as it was is not decoded again.
func (d *documents) foldJobs(s *Snapshot, log *slog.Logger) {
	next := map[string]*Job{}
	prefix := JobKey(s.Cluster, "")
	for key, e := range d.entries {
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		j := d.jobs[key]
		if j == nil || j.ModRev != e.ModRev {
			j = &Job{}
			if err := decode(e, j); err != nil {
				log.Error("catalog document left out", "key", key, "error", err)
				continue
			}
			j.ModRev = e.ModRev
		}
		next[key] = j
	}
	d.jobs = next
	s.Jobs = slices.SortedFunc(maps.Values(next), func(a, b *Job) int { return strings.Compare(a.ID, b.ID) })
}

func (f *folder) add(path []string, e Entry) error {
	switch {
	case path[0] == "shards" && len(path) > 2:
		return f.addOfShard(path[1], path[2:], e)
	case path[0] == "gateways" && len(path) == 2:
		return add(&f.snap.Gateways, e, func(g *Gateway) { g.ModRev = e.ModRev })
	case path[0] == "admin" && len(path) == 3:
		return add(&f.snap.Admins, e, func(a *Admin) { a.ModRev = e.ModRev })
	case path[0] == "admin" && len(path) == 2 && path[1] == "leader":
		var leader Admin
		err := decode(e, &leader)
		f.leader = leader.ID
		return err
	case path[0] == "profiles" && len(path) == 2:
		return add(&f.snap.Profiles, e, func(p *Profile) { p.ModRev = e.ModRev })
	case path[0] == "gateway_groups" && len(path) == 2:
		return add(&f.snap.GatewayGroups, e, func(g *GatewayGroup) { g.Name, g.ModRev = path[1], e.ModRev })
	case path[0] == "gateway_places" && len(path) == 2:
		return add(&f.snap.GatewayPlaces, e, func(p *GatewayPlace) { p.Gateway = path[1] })
	case path[0] == "parameters" && len(path) == 3:
		f.snap.Parameters = append(f.snap.Parameters, ClusterParameter{path[1], path[2], string(e.Value)})
	case path[0] == "topology" && len(path) == 1:
		f.snap.TopologyDocument.ModRev = e.ModRev
		return decode(e, &f.snap.TopologyDocument)
	}
	return nil
}

func (f *folder) addOfShard(uid string, path []string, e Entry) error {
	switch {
	case path[0] == "shard" && len(path) == 1:
		return add(&f.snap.Shards, e, func(s *Shard) { s.UID, s.ModRev = uid, e.ModRev })
	case path[0] == "rule" && len(path) == 1:
		var r Rule
		if err := decode(e, &r); err != nil {
			return err
		}
		r.ModRev = e.ModRev
		f.rules[uid] = r
	case path[0] == "members" && len(path) == 2:
		return add(&f.snap.Nodes, e, func(n *Node) { n.ID, n.Shard, n.ModRev = path[1], uid, e.ModRev })
	case path[0] == "live" && len(path) == 2:
		f.live[path[1]] = true
	case path[0] == "backups" && len(path) == 2:
		return add(&f.snap.Backups, e, func(b *Backup) { b.ID, b.Shard, b.ModRev = path[1], uid, e.ModRev })
	}
	return nil
}

func decode(e Entry, into any) error {
	if err := json.Unmarshal(e.Value, into); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

func add[T any](list *[]T, e Entry, complete func(*T)) error {
	var v T
	if err := decode(e, &v); err != nil {
		return err
	}
	complete(&v)
	*list = append(*list, v)
	return nil
}

// finish sorts, and joins what stands in several documents.
func (f *folder) finish() {
	s := f.snap
	slices.SortFunc(s.Shards, func(a, b Shard) int { return strings.Compare(a.UID, b.UID) })
	slices.SortFunc(s.Nodes, func(a, b Node) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Shard, b.Shard))
	})
	slices.SortFunc(s.Gateways, func(a, b Gateway) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(s.Admins, func(a, b Admin) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(s.Profiles, func(a, b Profile) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(s.GatewayGroups, func(a, b GatewayGroup) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(s.GatewayPlaces, func(a, b GatewayPlace) int { return strings.Compare(a.Gateway, b.Gateway) })
	slices.SortFunc(s.Parameters, func(a, b ClusterParameter) int {
		return cmp.Or(strings.Compare(a.Scope, b.Scope), strings.Compare(a.Name, b.Name))
	})
	sortBackups(s.Backups)
	for i := range s.Admins {
		s.Admins[i].Leader = s.Admins[i].ID == f.leader
	}
	s.rules = make([]Rule, len(s.Shards))
	for i := range s.Shards {
		s.ReadOnly = s.ReadOnly || s.Shards[i].ReadOnly
		f.applyRule(&s.Shards[i], &s.rules[i])
	}
	for i := range s.Nodes {
		s.Nodes[i].Live = f.live[s.Nodes[i].ID]
	}
	s.groupNodes()
}

// applyRule puts the rule of a shard in its place: where there is one, it says who leads, not the shard's document.
func (f *folder) applyRule(sh *Shard, place *Rule) {
	r, ok := f.rules[sh.UID]
	if !ok {
		return
	}
	*place = r
	if r.Term >= sh.Term {
		sh.Primary, sh.Term = r.Leader, r.Term
	}
}

// groupNodes fills ofShard; a node of a shard without a document counts too.
func (s *Snapshot) groupNodes() {
	groups := map[string][]*Node{}
	for i := range s.Nodes {
		groups[s.Nodes[i].Shard] = append(groups[s.Nodes[i].Shard], &s.Nodes[i])
	}
	for uid, nodes := range groups {
		of := shardNodes{uid: uid, nodes: slices.Clip(nodes)}
		if sh := s.Shard(uid); sh != nil {
			of.primary = s.Node(sh.Primary)
			switch r := s.Rule(uid); {
			case r == nil || r.Phase != PhasePromoting && r.Phase != PhaseSwitching:
				of.serving = of.primary
			case r.Phase == PhasePromoting && r.Leader != "":
				of.chosen = r.Term
			}
		}
		s.ofShard = append(s.ofShard, of)
	}
	slices.SortFunc(s.ofShard, func(a, b shardNodes) int { return strings.Compare(a.uid, b.uid) })
	s.health = make([]*NodeHealth, len(s.Nodes))
}

// planKey gives the part of the documents that plans depend on, in a form that can be compared.
func planKey(d *documents, s *Snapshot) string {
	var b bytes.Buffer
	for i := range s.Shards {
		sh := &s.Shards[i]
		fmt.Fprintf(&b, "%q %q %t %q\n", sh.UID, sh.Name, sh.Authoritative, sh.Groups)
	}
	fmt.Fprintf(&b, "%d %d", s.TopologyDocument.ModRev, s.SchemaRev)
	return b.String()
}
