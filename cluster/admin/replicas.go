package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"neki/catalog"
	"neki/cluster/agent"
	"neki/internal/pgerr"
)

// Times of jobs on replicas.
const (
	registerLimit = time.Minute      // for the agent of a new instance to register
	silentLimit   = 10 * time.Second // after which a node that is to be removed is not waited for
)

// replicaArgs are what the procedures on replicas ask for.
type replicaArgs struct {
	Profile string       `json:"profile,omitempty"`
	Cell    string       `json:"cell,omitempty"`
	Role    catalog.Role `json:"role"`
	Count   int          `json:"count"`
	Request string       `json:"request,omitempty"` // of a restore that was begun already
}

func argsOf(j *catalog.Job) (a replicaArgs, err error) {
	if err = json.Unmarshal(j.Args, &a); err != nil {
		return a, giveUp(err)
	}
	if a.Role == catalog.RoleUnknown {
		a.Role = catalog.RoleReplica
	}
	return a, nil
}

// addReplica gives one shard, or each shard of a profile, one replica more.
func (l *leader) addReplica(ctx context.Context, j catalog.Job, r *Report) error {
	args, err := argsOf(&j)
	if err != nil {
		return err
	}
	if j.Shard != "" {
		return l.addTo(ctx, &j, r, args, j.Shard, part{0, 1})
	}
	shards, err := l.shardsOf(ctx, &j, r, args.Profile)
	if err != nil {
		return err
	}
	if _, counted := j.Memo["counted"]; !counted {
		if err := l.countMore(ctx, args); err != nil {
			return err
		}
		if err := r.Remember(ctx, "counted", "yes"); err != nil {
			return err
		}
	}
	for i, shard := range shards {
		if err := l.inShard(ctx, r, shard, func() error {
			return l.addTo(ctx, &j, r, args, shard, partOf(i, len(shards)))
		}); err != nil {
			return err
		}
	}
	r.Step(1, "each shard of profile %s has one %s more: %s", args.Profile, args.Role, strings.Join(shards, ", "))
	return nil
}

// part is a piece of a job's progress.
type part struct{ from, to float64 }

func partOf(i, n int) part { return part{float64(i) / float64(n), float64(i+1) / float64(n)} }

func (p part) at(f float64) float64 { return p.from + (p.to-p.from)*f }

// inShard does something while no other job is about the shard.
func (l *leader) inShard(ctx context.Context, r *Report, shard string, do func() error) error {
	release, err := r.HoldShard(ctx, shard)
	if err != nil {
		return err
	}
	defer release()
	return do()
}

// shardsOf lists the shards of a profile as they were when the job was begun.
func (l *leader) shardsOf(ctx context.Context, j *catalog.Job, r *Report, profile string) ([]string, error) {
	if list, ok := j.Memo["shards"]; ok {
		return strings.Fields(list), nil
	}
	var shards []string
	snap := l.a.live.Snapshot()
	for i := range snap.Shards {
		if s := &snap.Shards[i]; s.Profile == profile {
			shards = append(shards, s.UID)
		}
	}
	return shards, r.Remember(ctx, "shards", strings.Join(shards, " "))
}

// countMore raises a profile's number, so that shards made later have as many.
func (l *leader) countMore(ctx context.Context, args replicaArgs) error {
	return l.setCount(ctx, args.Profile, func(p *catalog.Profile) {
		if args.Role == catalog.RoleRdonly {
			p.Rdonly++
		} else {
			p.Replicas++
		}
	})
}

func (l *leader) setCount(ctx context.Context, profile string, change func(*catalog.Profile)) error {
	p := l.a.live.Snapshot().Profile(profile)
	if p == nil {
		return giveUp(pgerr.New(pgerr.UndefinedObject, "profile %s is not there any more", profile))
	}
	next := *p
	change(&next)
	if next.Replicas == p.Replicas && next.Rdonly == p.Rdonly {
		return nil
	}
	_, err := catalog.PutProfile(ctx, l.a.cfg.Store, l.a.cfg.Cluster, next, p.ModRev)
	return err
}

// addTo gives a shard one instance more, and waits until it does what its role is. What the shard's loop does with an
// empty member is its own affair: a backup is restored, or a replica is copied.
func (l *leader) addTo(ctx context.Context, j *catalog.Job, r *Report, args replicaArgs, shard string, p part) error {
	memo := "node " + shard
	node := j.Memo[memo]
	if node == "" {
		in, err := l.place(shard, args)
		if err != nil {
			return err
		}
		node = in.ID
		if err := r.Remember(ctx, memo, node+" "+in.Cell); err != nil {
			return err
		}
		node += " " + in.Cell
	}
	node, cell, _ := strings.Cut(node, " ")
	r.Step(p.at(.02), "%s: an instance is made in cell %s", node, cmp.Or(cell, "-"))
	if err := l.provide(ctx, Instance{ID: node, Shard: shard, Role: args.Role, Cell: cell, Profile: l.profileOf(shard)}); err != nil {
		return err
	}
	return l.awaitJoined(ctx, r, shard, node, args.Role, p)
}

func (l *leader) profileOf(shard string) string {
	if s := l.a.live.Snapshot().Shard(shard); s != nil {
		return s.Profile
	}
	return ""
}

// place chooses the id and the cell of a shard's new instance: a free one of its own, else a new one, in the cell that has
// the fewest of the shard.
func (l *leader) place(shard string, args replicaArgs) (Instance, error) {
	snap := l.a.live.Snapshot()
	if snap.Shard(shard) == nil {
		return Instance{}, giveUp(pgerr.New(pgerr.UndefinedObject, "shard %s is not there any more", shard))
	}
	if n := freeAgent(snap, shard, args.Role, args.Cell); n != nil {
		return Instance{ID: n.ID, Cell: n.Cell}, nil
	}
	cell := cmp.Or(args.Cell, emptiestCell(snap, shard))
	in := Instance{ID: unusedNode(snap, shard), Cell: cell}
	if l.a.cfg.Provider == nil {
		return in, giveUp(noProvider(&in, l.a.cfg.Cluster, shard, args.Role))
	}
	return in, nil
}

// noProvider says what to start where neki can't start it.
func noProvider(in *Instance, cluster, shard string, role catalog.Role) error {
	command := fmt.Sprintf("neki agent --cluster %s --shard %s --node %s --role %s", cluster, shard, in.ID, role)
	if in.Cell != "" {
		command += " --cell " + in.Cell
	}
	return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "no agent of shard %s is free", shard).
		WithDetail("Instances of this cluster are started by hand; a new one registers by itself and is made a %s.", role).
		WithHint("On a host for it, start: %s, with --dir and --store as the other agents have them.", command)
}

// emptiestCell is the cell with the fewest instances of a shard, of those that the cluster's instances are in.
func emptiestCell(snap *catalog.Snapshot, shard string) string {
	counts := map[string]int{}
	for i := range snap.Nodes {
		if n := &snap.Nodes[i]; n.Desired != catalog.DesiredRemoved {
			counts[n.Cell] += 0
			if n.Shard == shard {
				counts[n.Cell]++
			}
		}
	}
	best, found := "", false
	for cell, n := range counts {
		if !found || n < counts[best] || n == counts[best] && cell < best {
			best, found = cell, true
		}
	}
	return best
}

// unusedNode is an id after the last one of the shard, so that no event of an earlier node is taken for the new one's.
func unusedNode(snap *catalog.Snapshot, shard string) string {
	next := 0
	for _, n := range snap.NodesOf(shard) {
		if suffix, ok := strings.CutPrefix(n.ID, shard+"-"); ok && len(suffix) == 1 {
			next = max(next, int(suffix[0]-'a')+1)
		}
	}
	const letters = 26
	if next < letters {
		return shard + "-" + string(rune('a'+next))
	}
	for i := letters + 1; ; i++ {
		if id := fmt.Sprintf("%s-%d", shard, i); snap.Node(id) == nil {
			return id
		}
	}
}

// provide has an instance run: a new one, or one that was removed and whose agent is there.
func (l *leader) provide(ctx context.Context, in Instance) error {
	cfg := &l.a.cfg
	n, err := catalog.GetNode(ctx, cfg.Store, cfg.Cluster, in.Shard, in.ID)
	switch {
	case err == nil && n.Desired == catalog.DesiredRemoved:
		_, err = catalog.UpdateNode(ctx, cfg.Store, cfg.Cluster, in.Shard, in.ID, func(n *catalog.Node) error {
			n.Desired, n.Reason, n.Request = catalog.DesiredRestore, "it is a replica again", catalog.NewRequest(time.Now(), n.Request)
			n.Tries = 1
			return nil
		})
		return err
	case err == nil && cfg.Provider == nil:
		return nil
	case err != nil && !errors.Is(err, catalog.ErrNotFound):
		return err
	}
	return cfg.Provider.StartInstance(ctx, in)
}

// removeReplica takes an instance out of its shard: out of the cohort, stopped, forgotten.
func (l *leader) removeReplica(ctx context.Context, j catalog.Job, r *Report) error {
	return l.remove(ctx, &j, r, j.Shard, j.Node, part{0, 1})
}

func (l *leader) remove(ctx context.Context, j *catalog.Job, r *Report, shard, node string, p part) error {
	cfg := &l.a.cfg
	_, err := catalog.UpdateNode(ctx, cfg.Store, cfg.Cluster, shard, node, func(n *catalog.Node) error {
		n.Desired, n.Reason = catalog.DesiredRemoved, "removed by "+j.By
		return nil
	})
	if errors.Is(err, catalog.ErrNotFound) {
		r.Step(p.at(1), "%s is removed", node)
		return nil
	}
	if err != nil {
		return err
	}
	if err := l.awaitOut(ctx, r, shard, node, p); err != nil {
		return err
	}
	if cfg.Provider == nil {
		r.Step(p.at(1), "%s is out of shard %s and stopped; end its agent, or neki.add_replica takes it again", node, shard)
		return nil
	}
	r.Step(p.at(.8), "%s: its data is removed", node)
	if err := cfg.Provider.RemoveInstance(ctx, node); err != nil {
		return err
	}
	if err := l.forget(ctx, shard, node); err != nil {
		return err
	}
	r.Step(p.at(1), "%s is removed", node)
	return nil
}

// awaitOut waits until nothing depends on a node any more: it is in no cohort, no slot keeps WAL for it, and it is stopped.
func (l *leader) awaitOut(ctx context.Context, r *Report, shard, node string, p part) error {
	cfg := &l.a.cfg
	heard := time.Now()
	for ctx.Err() == nil {
		rule, err := catalog.GetRule(ctx, cfg.Store, cfg.Cluster, shard)
		if err != nil {
			return err
		}
		lead := l.a.live.Snapshot().Node(rule.Leader)
		n, err := l.node(ctx, shard, node)
		switch {
		case err != nil:
			return err
		case n == nil:
			return nil
		case n.Desired != catalog.DesiredRemoved:
			return giveUp(pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s is to be %s now", node, n.Desired))
		case rule.Leader == node || rule.Phase != catalog.PhaseActive:
			r.Step(p.at(.1), "%s gives the lead away", node)
		case slices.Contains(rule.Cohort, node):
			r.Step(p.at(.3), "%s is to acknowledge no commits any more", node)
		case !l.stopped(ctx, n, &heard):
			r.Step(p.at(.5), "%s stops", node)
		case lead == nil || l.keepsSlot(ctx, lead, node):
			r.Step(p.at(.7), "%s: its slot is to go", node)
		default:
			return nil
		}
		sleep(ctx, restartPoll)
	}
	return context.Cause(ctx)
}

// stopped tells whether a node is held, or has been silent for so long that it is not waited for.
func (l *leader) stopped(ctx context.Context, n *catalog.Node, heard *time.Time) bool {
	st, err := l.status(ctx, n)
	if err != nil {
		return time.Since(*heard) > silentLimit
	}
	*heard = time.Now()
	return st.Member.Hold != "" && st.PID == 0
}

// filled tells what a node's data was made of, and how much that was.
func (l *leader) filled(ctx context.Context, r *Report, n *catalog.Node, p part) string {
	st, err := l.status(ctx, n)
	if err != nil || st.Filled == nil {
		return ""
	}
	r.Bytes(st.Filled.Total, st.Filled.Total, p.at(1), p.at(1))
	return ", " + st.Filled.Step
}

// node reads a node's document, nil when there is none.
func (l *leader) node(ctx context.Context, shard, id string) (*catalog.Node, error) {
	n, err := catalog.GetNode(ctx, l.a.cfg.Store, l.a.cfg.Cluster, shard, id)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, nil
	}
	return &n, err
}

func (l *leader) status(ctx context.Context, n *catalog.Node) (agent.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return l.a.client(n).Status(ctx)
}

// keepsSlot tells whether a primary keeps a slot for a node, or can't say.
func (l *leader) keepsSlot(ctx context.Context, lead *catalog.Node, node string) bool {
	st, err := l.status(ctx, lead)
	return err != nil || slices.Contains(st.Member.Peers, node)
}

// forget removes a node's documents.
func (l *leader) forget(ctx context.Context, shard, node string) error {
	cfg := &l.a.cfg
	_, err := cfg.Store.Txn(ctx, []catalog.Cond{catalog.LeaderCond(cfg.Cluster, l.epoch)},
		[]catalog.Op{catalog.DeleteOp(catalog.NodeKey(cfg.Cluster, shard, node)), catalog.DeleteOp(catalog.LiveKey(cfg.Cluster, shard, node))})
	return err
}

// setReplicas brings each shard of a profile to a number of replicas.
func (l *leader) setReplicas(ctx context.Context, j catalog.Job, r *Report) error {
	args, err := argsOf(&j)
	if err != nil {
		return err
	}
	if err := l.setCount(ctx, args.Profile, func(p *catalog.Profile) {
		if args.Role == catalog.RoleRdonly {
			p.Rdonly = args.Count
		} else {
			p.Replicas = args.Count
		}
	}); err != nil {
		return err
	}
	shards, err := l.shardsOf(ctx, &j, r, args.Profile)
	if err != nil {
		return err
	}
	for i, shard := range shards {
		if err := l.inShard(ctx, r, shard, func() error {
			return l.bringTo(ctx, &j, r, args, shard, partOf(i, len(shards)))
		}); err != nil {
			return err
		}
	}
	r.Step(1, "each shard of profile %s has %d of role %s", args.Profile, args.Count, args.Role)
	return nil
}

// bringTo adds or removes instances of a shard until there are as many as wanted, its primary aside.
func (l *leader) bringTo(ctx context.Context, j *catalog.Job, r *Report, args replicaArgs, shard string, p part) error {
	if node := j.Memo["node "+shard]; node != "" { // one that was begun
		if err := l.addTo(ctx, j, r, args, shard, p); err != nil {
			return err
		}
	}
	for {
		have := l.replicasOf(shard, args.Role)
		step := part{p.from, p.to}
		switch {
		case len(have) == args.Count:
			return nil
		case len(have) < args.Count:
			if err := r.Remember(ctx, "node "+shard, ""); err != nil {
				return err
			}
			delete(j.Memo, "node "+shard)
			if err := l.addTo(ctx, j, r, args, shard, step); err != nil {
				return err
			}
		default:
			if err := l.remove(ctx, j, r, shard, have[len(have)-1], step); err != nil {
				return err
			}
		}
		if err := l.awaitSnapshot(ctx, shard, args.Role, len(have)); err != nil {
			return err
		}
	}
}

// awaitSnapshot waits until this process sees that the number has changed.
func (l *leader) awaitSnapshot(ctx context.Context, shard string, role catalog.Role, before int) error {
	for len(l.replicasOf(shard, role)) == before {
		if sleep(ctx, restartPoll); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// replicasOf lists the members of a role but for the primary, the ones to keep first: of the cell that has the most, the
// newest goes.
func (l *leader) replicasOf(shard string, role catalog.Role) []string {
	snap := l.a.live.Snapshot()
	cells, nodes := map[string]int{}, []*catalog.Node{}
	for _, n := range snap.NodesOf(shard) {
		if n.Desired == catalog.DesiredRemoved {
			continue
		}
		cells[n.Cell]++
		if p := snap.PrimaryOf(shard); n.Role == role && (p == nil || p.ID != n.ID) {
			nodes = append(nodes, n)
		}
	}
	slices.SortStableFunc(nodes, func(a, b *catalog.Node) int {
		return cmp.Or(cmp.Compare(cells[a.Cell], cells[b.Cell]), a.Since.Compare(b.Since), strings.Compare(a.ID, b.ID))
	})
	ids := make([]string, len(nodes))
	for i, n := range nodes {
		ids[i] = n.ID
	}
	return ids
}
