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

// BackupPolicy says when backups are taken without being asked for.
type BackupPolicy struct {
	Off       bool          // there is no place for them: none are taken, whatever the parameters in the catalog say
	Interval  time.Duration // from one to the next; 0 = none are taken by schedule
	Retention time.Duration // how long they are kept; 0 = two days
	First     time.Duration // how long a cluster is ready before its first one
}

// BackupArgs are a backup job's.
type BackupArgs struct {
	Kind      string        `json:"kind"`                   // catalog.BackupManual ...
	Retention time.Duration `json:"retention_ns,omitempty"` // 0: the policy's
	Protected bool          `json:"protected,omitempty"`
}

// BackupRef is what the jobs about a backup that is there are about.
type BackupRef struct {
	ID string `json:"id"`
	On bool   `json:"on,omitempty"` // of protect_backup
}

// Times of backups.
const (
	primaryPatience = 30 * time.Second // for a shard to have a primary, before a backup of it fails
	scheduleEvery   = 5 * time.Second
	afterFailure    = 10 * time.Minute // until a scheduled backup that failed is tried anew
	keepFailed      = 7 * 24 * time.Hour
)

// takeBackup carries out a job of kind backup: of each shard at most Copies at once. What an earlier call has done stays.
func (l *leader) takeBackup(ctx context.Context, j catalog.Job, r *Report) error {
	var args BackupArgs
	if err := json.Unmarshal(j.Args, &args); err != nil {
		return giveUp(err)
	}
	shards := []string{j.Shard}
	if j.Shard == "" {
		shards = nil
		for _, s := range l.a.live.Snapshot().Shards {
			shards = append(shards, s.UID)
		}
	}
	t := &backupTake{l: l, job: j, args: args, report: r, sizes: map[string][2]int64{}}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(int(l.a.cfg.Copies))
	for _, uid := range shards {
		group.Go(func() error {
			if err := t.shard(gctx, uid); err != nil {
				return fmt.Errorf("shard %s: %w", uid, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, uid := range shards {
		if err := t.update(ctx, uid, func(b *catalog.Backup) { b.State, b.Error = catalog.BackupDone, "" }); err != nil {
			return err
		}
	}
	r.Step(1, "backup %s of %d shards is whole", j.ID, len(shards))
	return nil
}

// backupTake is one call of takeBackup.
type backupTake struct {
	l      *leader
	job    catalog.Job
	args   BackupArgs
	report *Report

	mu    sync.Mutex
	sizes map[string][2]int64 // of each shard: done, total
}

func (t *backupTake) update(ctx context.Context, shard string, change func(*catalog.Backup)) error {
	ctx, cancel := context.WithTimeout(ctx, jobWrites)
	defer cancel()
	_, err := catalog.UpdateBackup(ctx, t.l.a.cfg.Store, t.l.a.cfg.Cluster, shard, t.job.ID, change)
	return err
}

// shard takes one shard's part.
func (t *backupTake) shard(ctx context.Context, uid string) error {
	old, err := catalog.GetBackup(ctx, t.l.a.cfg.Store, t.l.a.cfg.Cluster, uid, t.job.ID)
	if err == nil && old.Whole() {
		return nil
	}
	if err != nil && !errors.Is(err, catalog.ErrNotFound) {
		return err
	}
	n, term, err := t.l.awaitPrimary(ctx, uid)
	if err != nil {
		return errors.Join(err, t.failed(ctx, uid, err))
	}
	began := time.Now().UTC()
	object := fmt.Sprintf("%s-%s-%d", t.job.ID, n.ID, began.Unix()) // another one at each try
	retention := t.args.Retention
	if retention == 0 {
		retention = t.l.a.cfg.tuned(t.l.a.live.Snapshot()).BackupRetention
	}
	if err := t.update(ctx, uid, func(b *catalog.Backup) {
		*b = catalog.Backup{
			ID: b.ID, Shard: b.Shard, Kind: t.args.Kind, State: catalog.BackupRunning, Object: object, Node: n.ID, StartedAt: began,
			ExpiresAt: t.job.At.Add(retention), Protected: t.args.Protected, By: t.job.By,
		}
	}); err != nil {
		return err
	}
	got, err := t.l.a.client(n).Backup(ctx, agent.BackupOrder{
		Order: t.l.a.order(t.l.epoch, term, uid+"-backup"), Object: object, Full: t.args.Kind == catalog.BackupEmergency, Topology: t.l.a.live.Snapshot().TopologyDocument.Document,
	}, func(r agent.BackupReport) { t.progress(uid, r.Done, r.Total) })
	if err != nil {
		return errors.Join(err, t.failed(ctx, uid, err))
	}
	return t.update(ctx, uid, func(b *catalog.Backup) {
		b.State, b.Error, b.SystemID, b.FinishedAt = catalog.BackupPartial, "", got.SystemID, got.FinishedAt // until all are whole
		b.Base = got.Base
		b.Timeline, b.StartLSN, b.StopLSN, b.Bytes, b.Stored = got.Timeline, got.StartLSN, got.StopLSN, got.Bytes, got.StoredBytes
	})
}

// failed notes why a shard's part is not there. It is noted also when the job was cancelled.
func (t *backupTake) failed(ctx context.Context, uid string, cause error) error {
	if orphaned := context.Cause(ctx); errors.Is(orphaned, errJobOrphaned) {
		return nil // the next leader's to tell
	}
	return t.update(context.WithoutCancel(ctx), uid, func(b *catalog.Backup) {
		b.State, b.Error, b.FinishedAt = catalog.BackupFailed, message(cause), time.Now().UTC()
		if b.Kind == "" {
			b.Kind, b.By, b.StartedAt = t.args.Kind, t.job.By, b.FinishedAt
		}
	})
}

func (t *backupTake) progress(uid string, done, total int64) {
	t.mu.Lock()
	t.sizes[uid] = [2]int64{done, total}
	var all [2]int64
	for _, s := range t.sizes {
		all[0] += s[0]
		all[1] += s[1]
	}
	t.mu.Unlock()
	t.report.Step(0, "copies the data")
	t.report.Bytes(all[0], all[1], 0, .95)
}

// awaitPrimary gives the node that leads a shard, and its term.
func (l *leader) awaitPrimary(ctx context.Context, uid string) (*catalog.Node, int64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, primaryPatience, errors.New("the shard has no primary that serves"))
	defer cancel()
	for {
		changed := l.a.live.Changed()
		snap := l.a.live.Snapshot()
		s := snap.Shard(uid)
		if s == nil {
			return nil, 0, giveUp(pgerr.New(pgerr.UndefinedObject, "shard %s is not there any more", uid))
		}
		if n := snap.Node(s.Primary); n != nil && s.Ready {
			if h := snap.Health(n.ID); h != nil && !h.Stale && h.State == catalog.StateServing && h.Role == catalog.RolePrimary {
				return n, s.Term, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
}

// deleteBackup carries out a job of kind delete_backup.
func (l *leader) deleteBackup(ctx context.Context, j catalog.Job, r *Report) error {
	var ref BackupRef
	if err := json.Unmarshal(j.Args, &ref); err != nil {
		return giveUp(err)
	}
	parts := l.partsOf(ref.ID)
	for _, b := range parts {
		if b.Protected {
			return giveUp(pgerr.New(pgerr.ObjectNotInPrerequisiteState, "backup %s is protected", ref.ID).
				WithHint("CALL neki.protect_backup('%s', false) first.", ref.ID))
		}
		if other := builtOn(l.a.live.Snapshot().BackupsOf(b.Shard), b); other != "" {
			return giveUp(pgerr.New(pgerr.ObjectNotInPrerequisiteState, "backup %s is needed by backup %s, an incremental one", ref.ID, other).
				WithHint("CALL neki.delete_backup('%s') first, or leave both to their time.", other))
		}
	}
	for i, b := range parts {
		r.Step(float64(i)/float64(len(parts)), "removes what shard %s has of it", b.Shard)
		if err := l.removeBackups(ctx, b.Shard, []catalog.Backup{b}); err != nil {
			return fmt.Errorf("shard %s: %w", b.Shard, err)
		}
	}
	r.Step(1, "backup %s is removed", ref.ID)
	return nil
}

// builtOn gives the backup that builds on another one, "" for none.
func builtOn(list []catalog.Backup, b catalog.Backup) string {
	for _, other := range list {
		if other.Base == b.Object && b.Object != "" && other.Whole() && other.ID != b.ID {
			return other.ID
		}
	}
	return ""
}

// partsOf lists the shards' parts of a backup.
func (l *leader) partsOf(id string) []catalog.Backup {
	var parts []catalog.Backup
	for _, b := range l.a.live.Snapshot().Backups {
		if b.ID == id {
			parts = append(parts, b)
		}
	}
	return parts
}

// protectBackup carries out a job of kind protect_backup.
func (l *leader) protectBackup(ctx context.Context, j catalog.Job, r *Report) error {
	var ref BackupRef
	if err := json.Unmarshal(j.Args, &ref); err != nil {
		return giveUp(err)
	}
	for _, b := range l.partsOf(ref.ID) {
		_, err := catalog.UpdateBackup(ctx, l.a.cfg.Store, l.a.cfg.Cluster, b.Shard, b.ID, func(b *catalog.Backup) { b.Protected = ref.On })
		if err != nil {
			return err
		}
	}
	if ref.On {
		r.Step(1, "backup %s is kept until it is no longer protected", ref.ID)
	} else {
		r.Step(1, "backup %s is no longer protected", ref.ID)
	}
	return nil
}

// removeBackups removes a shard's backups from its repository, then their documents. A document that says deleting is
// looked at again until it is gone.
func (l *leader) removeBackups(ctx context.Context, shard string, list []catalog.Backup) error {
	store, cluster := l.a.cfg.Store, l.a.cfg.Cluster
	objects := map[string][]string{} // by system: a shard that was restored has had several
	for _, b := range list {
		if b.Object != "" && b.SystemID != "" {
			objects[b.SystemID] = append(objects[b.SystemID], b.Object)
		}
		if _, err := catalog.UpdateBackup(ctx, store, cluster, shard, b.ID, func(b *catalog.Backup) { b.State = catalog.BackupDeleting }); err != nil {
			return err
		}
	}
	for system, names := range objects {
		n, term, err := l.awaitPrimary(ctx, shard)
		if err != nil {
			return err
		}
		did, err := l.a.client(n).Expire(ctx, agent.ExpireOrder{
			Order: l.a.order(l.epoch, term, shard+"-expire"), SystemID: system, Objects: names,
		})
		if err != nil {
			return err
		}
		if len(did.Done) > 0 {
			l.a.record(ctx, catalog.Event{Kind: "backups_removed", Shard: shard, Node: n.ID, Detail: joined(did.Done), Duration: did.Duration})
		}
	}
	for _, b := range list {
		if err := catalog.DeleteBackup(ctx, store, cluster, shard, b.ID); err != nil {
			return err
		}
	}
	return nil
}
