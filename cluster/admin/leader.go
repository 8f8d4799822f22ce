package admin

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"neki/catalog"
	"neki/cluster/decide"
)

// Times of leadership.
const (
	leaseTTL    = 5 * time.Second // how long nobody may lead after a leader's death
	retryLead   = time.Second
	lookAround  = 10 * time.Millisecond // the least pause between looks at the set of shards
	ensureLimit = 10 * time.Second
)

// campaign keeps the admin registered, and leads whenever nobody else does.
func (a *Admin) campaign(ctx context.Context) error {
	outage := catalog.Outage{Log: a.log, What: "registration in the catalog"}
	for ctx.Err() == nil {
		if err := a.term(ctx, outage.Worked); err != nil && ctx.Err() == nil {
			outage.Failed(err)
		}
		sleep(ctx, retryLead)
	}
	return nil
}

// term holds one lease: it registers, calls registered, tries to lead until it does, and leads until the lease is lost or ctx ends.
func (a *Admin) term(ctx context.Context, registered func()) error {
	lease, err := a.cfg.Store.Lease(ctx, leaseTTL)
	if err != nil {
		return err
	}
	defer lease.Close() //nolint:errcheck // it expires by itself
	self := catalog.Admin{ID: a.cfg.ID, URL: a.url(), Since: a.since, Parameters: a.cfg.parameters()}
	if err := catalog.PutAdmin(ctx, lease, a.cfg.Cluster, self); err != nil {
		return err
	}
	registered()
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watching.Go(func() {
		select {
		case <-lease.Lost():
			cancel()
		case <-ctx.Done():
		}
	})
	for {
		epoch, err := catalog.AcquireLeader(ctx, lease, a.cfg.Cluster, self)
		switch {
		case err == nil:
			return a.lead(ctx, epoch)
		case !errors.Is(err, catalog.ErrConflict):
			return err
		}
		if !a.awaitVacancy(ctx) {
			return ctx.Err()
		}
	}
}

// awaitVacancy waits until the leader's key may be free.
func (a *Admin) awaitVacancy(ctx context.Context) bool {
	wctx, cancel := context.WithTimeout(ctx, leaseTTL)
	defer cancel()
	e, err := a.cfg.Store.Get(wctx, catalog.LeaderKey(a.cfg.Cluster))
	if err != nil { // free, or the catalog is away
		sleep(ctx, retryLead/10)
		return ctx.Err() == nil
	}
	for batch, err := range a.cfg.Store.Watch(wctx, e.Key, e.ModRev+1) {
		if err != nil {
			break
		}
		for _, c := range batch.Changes {
			if c.Deleted {
				return true
			}
		}
	}
	return ctx.Err() == nil
}

// lead does the leader's work until ctx ends.
func (a *Admin) lead(ctx context.Context, epoch int64) error {
	a.epoch.Store(epoch)
	defer a.epoch.Store(0)
	select {
	case <-a.live.Ready():
	case <-ctx.Done():
		return ctx.Err()
	}
	l := &leader{a: a, epoch: epoch, loops: map[string]*shardLoop{}}
	if err := l.ensureBasics(ctx); err != nil {
		return err
	}
	a.record(ctx, catalog.Event{Kind: "leader", Detail: "leads from now on"})
	runner := newJobRunner(l)
	var loops errgroup.Group
	defer loops.Wait() //nolint:errcheck // loops return nothing
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	loops.Go(func() error { l.followCommits(ctx); return nil })
	loops.Go(func() error { l.keepBackups(ctx); return nil })
	loops.Go(func() error { l.keepReplicas(ctx); return nil })
	for ctx.Err() == nil {
		changed := a.live.Changed()
		l.look(ctx, &loops)
		runner.look(ctx, a.live.Snapshot(), &loops)
		sleep(ctx, lookAround)
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	return ctx.Err()
}

// leader is one time of leading.
type leader struct {
	a       *Admin
	epoch   int64
	secrets Secrets
	loops   map[string]*shardLoop
}

// ensureBasics makes what every cluster has: secrets, profiles, shards.
func (l *leader) ensureBasics(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ensureLimit)
	defer cancel()
	var err error
	if l.secrets, err = ensureSecrets(ctx, l.a.cfg.Store, l.a.cfg.Cluster, l.epoch, l.a.cfg.Superuser); err != nil {
		return err
	}
	if err := l.ensureProfiles(ctx); err != nil {
		return err
	}
	for _, s := range l.a.cfg.Shards {
		if err := l.ensureShard(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// defaultProfile is what a cluster without any gets.
const defaultProfile = "default"

func (l *leader) ensureProfiles(ctx context.Context) error {
	profiles := l.a.cfg.Profiles
	if len(profiles) == 0 {
		have, _, err := l.a.cfg.Store.List(ctx, catalog.ProfileKey(l.a.cfg.Cluster, ""))
		if err != nil || len(have) > 0 {
			return err
		}
		profiles = []catalog.Profile{{Name: defaultProfile, Replicas: 2, Default: true}}
	}
	for _, p := range profiles {
		_, err := catalog.PutProfile(ctx, l.a.cfg.Store, l.a.cfg.Cluster, p, 0)
		if err != nil && !errors.Is(err, catalog.ErrConflict) { // one that is there is not changed
			return err
		}
	}
	return nil
}

func (l *leader) ensureShard(ctx context.Context, s ShardSpec) error {
	doc := catalog.Shard{
		UID: s.UID, Name: s.Name, Profile: s.Profile, Durability: s.Durability, Authoritative: s.Authoritative,
	}
	if doc.Name == "" {
		doc.Name = s.UID
	}
	if doc.Profile == "" {
		doc.Profile = defaultProfile
	}
	if doc.Durability == "" {
		doc.Durability = decide.PolicySync
	}
	_, err := catalog.PutShard(ctx, l.a.cfg.Store, l.a.cfg.Cluster, doc, 0)
	if errors.Is(err, catalog.ErrConflict) {
		return nil
	}
	return err
}

// look starts a loop for each shard that has none, makes shards that only agents know of, and wakes the loops whose
// shard has changed.
func (l *leader) look(ctx context.Context, loops *errgroup.Group) {
	snap := l.a.live.Snapshot()
	for i := range snap.Nodes {
		n := &snap.Nodes[i]
		if snap.Shard(n.Shard) != nil {
			continue
		}
		spec := ShardSpec{UID: n.Shard, Profile: n.Profile, Authoritative: len(snap.Shards) == 0}
		if err := l.ensureShard(ctx, spec); err != nil && ctx.Err() == nil {
			l.a.log.Warn("shard not made", "shard", n.Shard, "error", err)
		}
		break // the next Snapshot has it; so only the first shard of all becomes the authoritative one
	}
	for i := range snap.Shards {
		uid := snap.Shards[i].UID
		loop := l.loops[uid]
		if loop == nil {
			loop = newShardLoop(l, uid)
			l.loops[uid] = loop
			loops.Go(func() error { loop.run(ctx); return nil })
		}
		loop.notice(snap)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
