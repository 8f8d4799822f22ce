package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"neki/catalog"
	"neki/cluster/decide"
	"neki/internal/pgerr"
)

// ShardRequest are the arguments of a job create_shard.
type ShardRequest struct {
	Profile string `json:"profile"`
	Count   int    `json:"count"`
}

// newShardLimit is how long all instances of a new shard may take until they serve.
const newShardLimit = 10 * time.Minute

// createShard makes shards with the instances that their profile asks for.
func (l *leader) createShard(ctx context.Context, j catalog.Job, r *Report) error {
	var args ShardRequest
	if err := json.Unmarshal(j.Args, &args); err != nil {
		return giveUp(err)
	}
	p, err := l.profile(ctx, args.Profile)
	if err != nil {
		return err
	}
	release, err := r.runner.hold(ctx, j.ID, "new shards") // another must not choose the same uids
	if err != nil {
		return err
	}
	defer release()
	uids := strings.Fields(j.Memo["shards"])
	if len(uids) == 0 {
		uids = freeShards(l.a.live.Snapshot(), args.Count)
		if l.a.cfg.Provider == nil {
			return giveUp(startByHand(uids, &p))
		}
		if err := r.Remember(ctx, "shards", strings.Join(uids, " ")); err != nil {
			return err
		}
	}
	for i, uid := range uids {
		at := func(x float64) float64 { return (float64(i) + x) / float64(len(uids)) }
		r.Step(at(0), "shard %s: its instances start", uid)
		durability := decide.PolicySync
		if p.Replicas == 0 {
			durability = decide.PolicyNone
		}
		if err := l.ensureShard(ctx, ShardSpec{UID: uid, Profile: p.Name, Durability: durability}); err != nil {
			return err
		}
		instances := instancesOf(l.a.live.Snapshot(), uid, &p)
		for _, in := range instances {
			if err := l.a.cfg.Provider.StartInstance(ctx, in); err != nil {
				return err
			}
		}
		if err := l.awaitShard(ctx, uid, instances, func(serving int) {
			r.Step(at(.1+.9*float64(serving)/float64(len(instances))), "shard %s: %d of %d instances serve", uid, serving, len(instances))
		}); err != nil {
			return err
		}
	}
	r.Step(1, "made %s: with the roles and databases of the others, without tables, and in no shard group yet", strings.Join(uids, ", "))
	return nil
}

// startByHand says what takes the place of a provider.
func startByHand(uids []string, p *catalog.Profile) error {
	example := uids[0]
	return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "this cluster can't start instances by itself").
		WithDetail("A shard is made when agents that name it register.").
		WithHint("Start %d agents with `agent: {shard: %s, role: replica, ...}` and %d with `role: rdonly` in their neki.yaml; the name may be any that is free.",
			1+p.Replicas, example, p.Rdonly)
}

// freeShards gives uids that no shard has, nor any instance.
func freeShards(snap *catalog.Snapshot, count int) []string {
	var free []string
	for i := 1; len(free) < count; i++ {
		if uid := "sh" + strconv.Itoa(i); snap.Shard(uid) == nil && len(snap.NodesOf(uid)) == 0 {
			free = append(free, uid)
		}
	}
	return free
}

// instancesOf gives the instances of a new shard, spread over the cells that the cluster has.
func instancesOf(snap *catalog.Snapshot, uid string, p *catalog.Profile) []Instance {
	var cells []string
	for i := range snap.Nodes {
		if c := snap.Nodes[i].Cell; !slices.Contains(cells, c) {
			cells = append(cells, c)
		}
	}
	var list []Instance
	for i := range 1 + p.Replicas + p.Rdonly {
		in := Instance{ID: uid + "-" + string(rune('a'+i)), Shard: uid, Role: catalog.RoleReplica, Profile: p.Name}
		if i > p.Replicas {
			in.Role = catalog.RoleRdonly
		}
		if len(cells) > 0 {
			in.Cell = cells[i%len(cells)]
		}
		list = append(list, in)
	}
	return list
}

// awaitShard waits until a shard is ready and all its instances serve.
func (l *leader) awaitShard(ctx context.Context, uid string, instances []Instance, tell func(serving int)) error {
	limited, cancel := context.WithTimeout(ctx, newShardLimit)
	defer cancel()
	for {
		changed := l.a.live.Changed()
		snap := l.a.live.Snapshot()
		serving := 0
		for _, in := range instances {
			if h := snap.Health(in.ID); h != nil && !h.Stale && h.State == catalog.StateServing {
				serving++
			}
		}
		tell(serving)
		if sh := snap.Shard(uid); sh != nil && sh.Ready && serving == len(instances) {
			return nil
		}
		select {
		case <-changed:
		case <-limited.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("shard %s: %d of %d instances serve after %v", uid, serving, len(instances), newShardLimit)
		}
	}
}

// dropShard removes a shard that the data topology does not refer to, with its instances and their data. Its backups stay.
func (l *leader) dropShard(ctx context.Context, j catalog.Job, r *Report) error {
	cfg := &l.a.cfg
	doc, err := catalog.GetShard(ctx, cfg.Store, cfg.Cluster, j.Shard)
	if errors.Is(err, catalog.ErrNotFound) {
		return l.dropDocuments(ctx, j.Shard)
	}
	if err != nil {
		return err
	}
	if why := l.shardIsUsed(ctx, &doc); why != nil {
		return why
	}
	nodes := l.a.live.Snapshot().NodesOf(j.Shard)
	if cfg.Provider == nil {
		for _, n := range nodes {
			if n.Live { // it would register anew, and the shard be made again
				return giveUp(pgerr.New(pgerr.ObjectNotInPrerequisiteState, "the agent of %s still runs", n.ID).
					WithHint("Stop the agents of shard %s, with --stop-postgres, and call this again.", j.Shard))
			}
		}
	}
	if _, err := catalog.UpdateShard(ctx, cfg.Store, cfg.Cluster, j.Shard, func(s *catalog.Shard) error {
		s.Maintenance = true // that its instances go is no failure
		return nil
	}); err != nil {
		return err
	}
	for i, n := range nodes {
		r.Step(.1+.8*float64(i)/float64(len(nodes)), "%s is removed", n.ID)
		if cfg.Provider != nil {
			if err := cfg.Provider.RemoveInstance(ctx, n.ID); err != nil {
				return err
			}
		}
		if err := catalog.DeleteNode(ctx, cfg.Store, cfg.Cluster, j.Shard, n.ID, catalog.AnyRev); err != nil {
			return err
		}
	}
	if err := l.dropDocuments(ctx, j.Shard); err != nil {
		return err
	}
	r.Step(1, "shard %s is gone", j.Shard)
	return nil
}

// shardIsUsed tells why a shard must stay, by the topology as it is now.
func (l *leader) shardIsUsed(ctx context.Context, doc *catalog.Shard) error {
	if doc.Authoritative {
		return giveUp(pgerr.New(pgerr.DependentObjectsStillExist, "shard %s is the authoritative one", doc.UID))
	}
	stored, err := catalog.GetTopology(ctx, l.a.cfg.Store, l.a.cfg.Cluster)
	if err != nil || stored.Revision == 0 {
		return err
	}
	t, _ := catalog.ParseTopology(stored.Document)
	if t == nil { // what can't be read may say anything
		return giveUp(pgerr.New(pgerr.ObjectNotInPrerequisiteState, "the data topology can't be read"))
	}
	for _, g := range t.Groups {
		if slices.Contains(g.Shards, doc.UID) {
			return giveUp(pgerr.New(pgerr.DependentObjectsStillExist, "shard %s is in shard group %s", doc.UID, g.UID))
		}
	}
	return nil
}

// dropDocuments removes what the catalog has of a shard, its own document last; backups stay.
func (l *leader) dropDocuments(ctx context.Context, shard string) error {
	cfg := &l.a.cfg
	prefix, own := catalog.ShardPrefix(cfg.Cluster, shard), catalog.ShardKey(cfg.Cluster, shard)
	entries, _, err := cfg.Store.List(ctx, prefix)
	if err != nil {
		return err
	}
	backups := catalog.BackupKey(cfg.Cluster, shard, "")
	for _, e := range entries {
		if e.Key == own || strings.HasPrefix(e.Key, backups) {
			continue
		}
		if _, err := cfg.Store.Delete(ctx, e.Key, catalog.Always()); err != nil {
			return err
		}
	}
	_, err = cfg.Store.Delete(ctx, own, catalog.Always())
	return err
}
