package admin

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"neki/catalog"
)

func joined(list []string) string { return strings.Join(list, ", ") }

// keepBackups takes backups by schedule and removes those whose time is over, until ctx ends.
func (l *leader) keepBackups(ctx context.Context) {
	var readySince time.Time
	tick := time.NewTicker(scheduleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		snap := l.a.live.Snapshot()
		switch ready := allReady(snap); {
		case !ready:
			readySince = time.Time{}
			continue
		case readySince.IsZero():
			readySince = time.Now()
		}
		policy := l.a.cfg.Backups
		policy.Interval = l.a.cfg.tuned(snap).BackupInterval
		if !policy.Off && due(snap, policy, readySince, time.Now()) {
			if err := l.schedule(ctx, catalog.BackupScheduled, ""); err != nil && ctx.Err() == nil {
				l.a.log.Warn("backup not scheduled", "error", err)
			}
		}
		for i := range snap.Shards {
			uid := snap.Shards[i].UID
			list := expired(snap.BackupsOf(uid), time.Now())
			if len(list) == 0 {
				continue
			}
			if err := l.removeBackups(ctx, uid, list); err != nil && ctx.Err() == nil {
				l.a.log.Warn("old backups not removed", "shard", uid, "error", err)
			}
		}
	}
}

func (l *leader) schedule(ctx context.Context, kind, shard string) error {
	args, err := json.Marshal(BackupArgs{Kind: kind})
	if err != nil {
		return err
	}
	target := "the cluster"
	if shard != "" {
		target = "shard " + shard
	}
	_, _, err = catalog.PutJob(ctx, l.a.cfg.Store, l.a.cfg.Cluster, catalog.Job{
		Kind: "backup", Target: target, Shard: shard, Args: args, By: "admin " + l.a.cfg.ID, Key: "backup " + kind + " " + shard,
	})
	return err
}

func allReady(snap *catalog.Snapshot) bool {
	for i := range snap.Shards {
		if !snap.Shards[i].Ready {
			return false
		}
	}
	return len(snap.Shards) > 0
}

// due tells whether a scheduled backup of the cluster is to be taken now. Any whole one of all shards counts.
func due(snap *catalog.Snapshot, p BackupPolicy, readySince, now time.Time) bool {
	if p.Interval == 0 || now.Sub(readySince) < p.First {
		return false
	}
	for _, j := range snap.Jobs {
		if j.Kind == "backup" && (!j.State.Final() || j.State == catalog.JobFailed && now.Sub(j.FinishedAt) < afterFailure) {
			return false
		}
	}
	parts, newest := map[string]int{}, map[string]time.Time{}
	for _, b := range snap.Backups {
		if b.State == catalog.BackupDone {
			parts[b.ID]++
			newest[b.ID] = b.StartedAt
		}
	}
	for id, n := range parts {
		if n >= len(snap.Shards) && now.Sub(newest[id]) < p.Interval {
			return false
		}
	}
	return true
}

// expired lists those of a shard's backups that are to go: whose time is over, that failed long ago, and those whose
// removal was begun. The newest whole one always stays, and so does what those that stay build on.
func expired(list []catalog.Backup, now time.Time) []catalog.Backup {
	newest := -1
	for i := range list {
		if list[i].Whole() && (newest < 0 || list[i].FinishedAt.After(list[newest].FinishedAt)) {
			newest = i
		}
	}
	var gone []catalog.Backup
	for i, b := range list {
		switch {
		case i == newest, b.Protected:
		case b.State == catalog.BackupDeleting, b.State == catalog.BackupFailed && now.Sub(b.FinishedAt) > keepFailed,
			b.Whole() && !b.ExpiresAt.IsZero() && now.After(b.ExpiresAt):
			gone = append(gone, b)
		}
	}
	for {
		left := slices.DeleteFunc(slices.Clone(gone), func(b catalog.Backup) bool {
			return b.State != catalog.BackupDeleting && slices.ContainsFunc(list, func(other catalog.Backup) bool {
				return other.Whole() && other.Base == b.Object && b.Object != "" &&
					!slices.ContainsFunc(gone, func(g catalog.Backup) bool { return g.ID == other.ID })
			})
		})
		if len(left) == len(gone) {
			return gone
		}
		gone = left
	}
}
