package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"neki/catalog"
	"neki/settings"
)

// keepReplicas has a replica that is lost for good replaced by another, and tells of those that lag, until ctx ends. How long each has not been heard of is
// counted anew by the next leader.
func (l *leader) keepReplicas(ctx context.Context) {
	since := map[string]time.Time{}  // nodes whose agent holds no lease
	tried := map[string]time.Time{}  // when a replacement was asked for last
	lacking := map[string]struct{}{} // told of
	lag := laggards{}
	for {
		l.rest(ctx, func(p settings.Parameters) time.Duration { return p.RecoveryPoll })
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		l.noteLag(ctx, lag, now)
		snap := l.a.live.Snapshot()
		after := l.a.cfg.tuned(snap).ReplaceAfter
		for _, n := range lostNodes(snap, since, after, now) {
			if now.Sub(tried[n.ID]) < max(after, afterFailure) && !tried[n.ID].IsZero() {
				continue
			}
			if !l.canReplace(snap, n) {
				if _, said := lacking[n.ID]; !said {
					lacking[n.ID] = struct{}{}
					l.a.record(ctx, catalog.Event{Kind: "lost", Shard: n.Shard, Node: n.ID, Detail: fmt.Sprintf(
						"not heard of for %v, and no agent of shard %s is free to take its place: start one", now.Sub(since[n.ID]).Round(time.Second), n.Shard)})
				}
				continue
			}
			tried[n.ID] = now
			delete(lacking, n.ID)
			if err := l.askReplacement(ctx, n, now.Sub(since[n.ID])); err != nil && ctx.Err() == nil {
				l.a.log.Warn("replacement not asked for", "node", n.ID, "error", err)
			}
		}
	}
}

// lostNodes lists the instances that count as lost for good, of shards that have fewer than their profile says. It notes in since
// those that are silent. A primary is none of them: nobody could take its place without what it has.
func lostNodes(snap *catalog.Snapshot, since map[string]time.Time, after time.Duration, now time.Time) (lost []*catalog.Node) {
	for i := range snap.Nodes {
		n := &snap.Nodes[i]
		sh, rule := snap.Shard(n.Shard), snap.Rule(n.Shard)
		if n.Live || n.Desired == catalog.DesiredRemoved || sh == nil || !sh.Ready || sh.Maintenance || rule == nil || rule.Leader == n.ID {
			delete(since, n.ID)
			continue
		}
		if since[n.ID].IsZero() {
			since[n.ID] = now
		}
		if after > 0 && now.Sub(since[n.ID]) >= after && alive(snap, n) < wanted(snap, sh, n.Role) {
			lost = append(lost, n)
		}
	}
	return lost
}

// alive counts the instances of a node's shard and role that are there.
func alive(snap *catalog.Snapshot, like *catalog.Node) (count int) {
	for _, n := range snap.NodesOf(like.Shard) {
		if n.Role == like.Role && n.Live && n.Desired != catalog.DesiredRemoved {
			count++
		}
	}
	return count
}

// wanted is how many of a role a shard is to have by its profile, its primary counted as a replica.
func wanted(snap *catalog.Snapshot, sh *catalog.Shard, role catalog.Role) int {
	p := snap.Profile(sh.Profile)
	switch {
	case p == nil:
		return 0
	case role == catalog.RoleRdonly:
		return p.Rdonly
	}
	return 1 + p.Replicas
}

// canReplace tells whether there is something to replace a node with.
func (l *leader) canReplace(snap *catalog.Snapshot, n *catalog.Node) bool {
	return l.a.cfg.Provider != nil || freeAgent(snap, n.Shard, n.Role, "") != nil
}

// freeAgent gives an instance of a shard that was removed and whose agent is there, in a cell or, for "", in any.
func freeAgent(snap *catalog.Snapshot, shard string, role catalog.Role, cell string) *catalog.Node {
	for _, n := range snap.NodesOf(shard) {
		if n.Desired == catalog.DesiredRemoved && n.Live && n.Role == role && (cell == "" || n.Cell == cell) {
			return n
		}
	}
	return nil
}

func (l *leader) askReplacement(ctx context.Context, n *catalog.Node, silent time.Duration) error {
	args, err := json.Marshal(replicaArgs{Role: n.Role})
	if err != nil {
		return err
	}
	_, fresh, err := catalog.PutJob(ctx, l.a.cfg.Store, l.a.cfg.Cluster, catalog.Job{
		Kind: "replace_replica", Target: "node " + n.ID, Shard: n.Shard, Node: n.ID, Args: args, By: "admin " + l.a.cfg.ID, Key: "replace_replica " + n.ID,
	})
	if err == nil && fresh {
		l.a.record(ctx, catalog.Event{Kind: "lost", Shard: n.Shard, Node: n.ID, Detail: fmt.Sprintf(
			"not heard of for %v: another takes its place", silent.Round(time.Second))})
	}
	return err
}

// replaceReplica gives a shard another instance in the place of one that is lost. When the lost one comes back it is found removed:
// its agent is free, and its data is kept until it is needed again.
func (l *leader) replaceReplica(ctx context.Context, j catalog.Job, r *Report) error {
	args, err := argsOf(&j)
	if err != nil {
		return err
	}
	lost, err := l.node(ctx, j.Shard, j.Node)
	if err != nil {
		return err
	}
	_, begun := j.Memo["node "+j.Shard]
	if snap := l.a.live.Snapshot(); !begun && (lost == nil || snap.Node(j.Node) != nil && snap.Node(j.Node).Live) {
		r.Step(1, "%s is back", j.Node)
		return nil
	}
	if err := l.addTo(ctx, &j, r, args, j.Shard, part{0, .95}); err != nil {
		return err
	}
	if n := l.a.live.Snapshot().Node(j.Node); n == nil || n.Live {
		r.Step(1, "shard %s has another %s, and %s is back", j.Shard, args.Role, j.Node)
		return nil
	}
	if err := l.retire(ctx, &j); err != nil {
		return err
	}
	r.Step(1, "another %s of shard %s takes the place of %s", args.Role, j.Shard, j.Node)
	return nil
}

// retire notes that a node that is lost is none of the shard's any more.
func (l *leader) retire(ctx context.Context, j *catalog.Job) error {
	cfg := &l.a.cfg
	_, err := catalog.UpdateNode(ctx, cfg.Store, cfg.Cluster, j.Shard, j.Node, func(n *catalog.Node) error {
		if n.Desired != catalog.DesiredFenced {
			n.Desired, n.Reason = catalog.DesiredRemoved, "it was lost, and another has taken its place"
		}
		return nil
	})
	return err
}
