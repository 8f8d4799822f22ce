package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"neki/catalog"
	"neki/cluster/agent"
	"neki/internal/pgerr"
)

// RestoreArgs are a restore_cluster job's.
type RestoreArgs struct {
	Target time.Time `json:"target"`
	Into   string    `json:"into"`
}

// RestoredShard says where a shard's data of the new cluster is.
type RestoredShard struct {
	Shard, Node string
	Recovered   agent.RestoredNode
}

// restoreCluster carries out a job of kind restore_cluster: an agent of each shard makes its data as it was at the point in
// time. The cluster that runs is not touched. What an earlier call has made is found there.
func (l *leader) restoreCluster(ctx context.Context, j catalog.Job, r *Report) error {
	var args RestoreArgs
	if err := json.Unmarshal(j.Args, &args); err != nil {
		return giveUp(err)
	}
	topology, err := l.topologyAt(ctx, args.Target)
	if err != nil {
		return err
	}
	t := &restoreTake{l: l, args: args, topology: topology, report: r, parts: map[string]agent.BackupReport{}}
	shards := l.a.live.Snapshot().Shards
	restored := make([]RestoredShard, len(shards))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(int(l.a.cfg.Copies))
	for i := range shards {
		group.Go(func() (err error) {
			if restored[i], err = t.shard(gctx, &shards[i]); err != nil {
				return fmt.Errorf("shard %s: %w", shards[i].UID, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	how := fmt.Sprintf("start an agent on each of its nodes with agent.data below %s/nodes, in a cluster of another name", args.Into)
	if l.a.cfg.Restored != nil {
		if how, err = l.a.cfg.Restored(args.Into, restored); err != nil {
			return err
		}
	}
	inDoubt := 0
	for _, s := range restored {
		inDoubt += s.Recovered.Recovered.RolledBack
		if s.Recovered.Recovered.Short {
			how = fmt.Sprintf("shard %s ends before that, at its last archived commit; %s", s.Shard, how)
		}
	}
	if inDoubt > 0 {
		how = fmt.Sprintf("%d parts of transactions over several shards that were in doubt then are rolled back; %s", inDoubt, how)
	}
	r.Step(1, "%d shards as of %s are in %s; %s", len(restored), args.Target.UTC().Format(time.RFC3339Nano), args.Into, how)
	return nil
}

// topologyAt gives the data topology that was in force; nil when there was none.
func (l *leader) topologyAt(ctx context.Context, at time.Time) (json.RawMessage, error) {
	history, err := catalog.TopologyHistory(ctx, l.a.cfg.Store, l.a.cfg.Cluster)
	if err != nil {
		return nil, err
	}
	var found *catalog.TopologyDocument
	for i := range history {
		if d := &history[i]; !d.At.After(at) && (found == nil || d.Revision > found.Revision) {
			found = d
		}
	}
	if found == nil {
		return nil, nil
	}
	return found.Document, nil
}

// restoreTake is one call of restoreCluster.
type restoreTake struct {
	l        *leader
	args     RestoreArgs
	topology json.RawMessage
	report   *Report

	mu    sync.Mutex
	parts map[string]agent.BackupReport
}

// shard has the shard's primary make its data; another member does where there is none.
func (t *restoreTake) shard(ctx context.Context, s *catalog.Shard) (RestoredShard, error) {
	out := RestoredShard{Shard: s.UID}
	n, term, err := t.l.awaitPrimary(ctx, s.UID)
	if err != nil {
		if n, term = t.l.anyNode(s.UID); n == nil {
			return out, err
		}
	}
	out.Node = n.ID
	out.Recovered, err = t.l.a.client(n).Recover(ctx, agent.RecoverOrder{
		Order: t.l.a.order(t.l.epoch, term, s.UID+"-recover"), Into: t.args.Into, Node: n.ID, SystemID: s.SystemID,
		Target: t.args.Target, Topology: t.topology,
	}, func(r agent.BackupReport) { t.progress(s.UID, r) })
	if pgErr, ok := errors.AsType[*pgerr.Error](err); ok && pgErr.Code == pgerr.ObjectNotInPrerequisiteState {
		return out, giveUp(pgErr)
	}
	return out, err
}

func (t *restoreTake) progress(uid string, r agent.BackupReport) {
	t.mu.Lock()
	t.parts[uid] = r
	var done, total int64
	for _, p := range t.parts {
		done, total = done+p.Done, total+p.Total
	}
	t.mu.Unlock()
	t.report.Step(0, "shard %s %s", uid, r.Step)
	t.report.Bytes(done, total, 0, .95)
}

// anyNode gives a member of the shard whose agent lives.
func (l *leader) anyNode(uid string) (*catalog.Node, int64) {
	snap := l.a.live.Snapshot()
	var term int64
	if s := snap.Shard(uid); s != nil {
		term = s.Term
	}
	for _, n := range snap.NodesOf(uid) {
		if n.Live {
			return n, term
		}
	}
	return nil, term
}
