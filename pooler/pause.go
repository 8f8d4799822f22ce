package pooler

import (
	"context"
	"sync"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
)

// followPauses holds the clients of the shards that the catalog calls paused, and lets them go again. It also tells the hubs
// of new primaries.
func (s *Server) followPauses(ctx context.Context) {
	led := map[string]string{}
	told := map[string]int64{}
	var words sync.WaitGroup
	defer words.Wait()
	for {
		changed := s.cfg.Cluster.Changed()
		snap := s.cfg.Cluster.Snapshot()
		s.applyPauses(snap)
		s.followLeaders(led, snap)
		s.tellHeld(ctx, told, snap, &words)
		for _, db := range s.dbs.all() {
			db.hub.follow(snap)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Times of the word that is given to a primary that hands over.
const (
	heldGrace = 2 * time.Millisecond // for what has just found that primary, and is about to be sent there
	heldLimit = 200 * time.Millisecond
)

// tellHeld tells each primary that is to hand over, once, that nothing new comes from here. Statements find no primary from
// the moment that the Snapshot says so.
func (s *Server) tellHeld(ctx context.Context, told map[string]int64, snap *catalog.Snapshot, words *sync.WaitGroup) {
	if s.cfg.Held == nil {
		return
	}
	for i := range snap.Shards {
		rule := snap.Rule(snap.Shards[i].UID)
		if rule == nil || rule.Phase != catalog.PhaseSwitching || told[snap.Shards[i].UID] == rule.ModRev {
			continue
		}
		told[snap.Shards[i].UID] = rule.ModRev
		primary := snap.Node(rule.Leader)
		if primary == nil {
			continue
		}
		words.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, heldLimit)
			defer cancel()
			select {
			case <-time.After(heldGrace):
			case <-ctx.Done():
			}
			if err := s.cfg.Held(ctx, primary, rule.Term, rule.Sub); err != nil {
				s.log.Debug("the primary was not told that nothing new is sent", "node", primary.ID, "error", err)
			}
		})
	}
}

func (s *Server) applyPauses(snap *catalog.Snapshot) {
	for i := range snap.Nodes {
		n := &snap.Nodes[i]
		shard := snap.Shard(n.Shard)
		s.pools.Pause(n.ID, shard != nil && shard.Paused)
	}
}

// Pause has every gateway hold the clients of a shard, and returns when none has a statement or transaction on it here.
func (f facts) Pause(ctx context.Context, shard string) error {
	if err := f.setPaused(ctx, shard, true); err != nil {
		return err
	}
	tick := time.NewTicker(pausePoll)
	defer tick.Stop()
	for f.Running(shard) > 0 {
		select {
		case <-ctx.Done():
			return pgerr.New(pgerr.QueryCanceled, "shard %s is paused, but what ran there has not ended", shard).
				WithHint("neki.sessions shows what runs; CALL neki.resume('%s') lets its clients go on.", shard)
		case <-tick.C:
		}
	}
	return nil
}

// pausePoll is how often a pause looks whether the last transaction has ended.
const pausePoll = 10 * time.Millisecond

// Resume has every gateway let the clients of a shard go on.
func (f facts) Resume(ctx context.Context, shard string) error { return f.setPaused(ctx, shard, false) }

func (f facts) setPaused(ctx context.Context, shard string, on bool) error {
	if f.cfg.SetPaused == nil {
		return pgerr.New(pgerr.FeatureNotSupported, "this gateway can't pause shards")
	}
	if err := f.cfg.SetPaused(ctx, shard, on); err != nil {
		return err
	}
	f.applyPauses(f.cfg.Cluster.Snapshot()) // before its goroutine comes to it
	return nil
}

// Running counts the server connections to a shard that sessions of this gateway have now.
func (s *Server) Running(shard string) (n int) {
	snap := s.cfg.Cluster.Snapshot()
	for _, p := range s.pools.Stats() {
		if node := snap.Node(p.Node); node != nil && node.Shard == shard {
			n += p.Active
		}
	}
	return n
}
