package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"neki/catalog"
	"neki/cluster/backup"
	"neki/cluster/decide"
)

// Times of filling the archive.
const (
	fillEvery   = 2 * time.Second
	fillTimeout = 10 * time.Minute
)

// fillArchive looks, once in each term that this node leads, whether the archive lacks segments that the leader before
// completed and did not get to archive: a standby takes what it receives as archived, so nobody else would. It tries
// until it has been done.
func (a *Agent) fillArchive(ctx context.Context) error {
	if !a.cfg.Archive.on() {
		return nil
	}
	filled, complaint := int64(0), ""
	return every(ctx, fillEvery, func(time.Time) {
		p, m := a.memory.get()
		if p.OwnTerm == filled || !m.Led || p.RevokedBelowTerm > p.OwnTerm || a.pg.IsStandby() || !a.pg.Ready() {
			return
		}
		err := a.fillOnce(ctx)
		if err == nil {
			filled, complaint = p.OwnTerm, ""
			return
		}
		if ctx.Err() == nil && err.Error() != complaint {
			complaint = err.Error()
			a.log.Warn("the archive is not completed yet", "term", p.OwnTerm, "error", err)
		}
	})
}

func (a *Agent) fillOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	r, err := a.repository()
	if err != nil {
		return err
	}
	h, _ := a.health.latest(time.Second)
	if h.Role != catalog.RolePrimary || h.Timeline == 0 {
		return fmt.Errorf("the server has not said yet that it is a primary")
	}
	history, err := readHistory(a.pg.DataDir(), h.Timeline)
	if err != nil {
		return err
	}
	wal := filepath.Join(a.pg.DataDir(), "pg_wal")
	entries, err := os.ReadDir(wal)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	missing, err := r.Missing(ctx, inherited(names, history, segmentBytes), segmentBytes)
	if err != nil {
		return err
	}
	for _, s := range missing {
		if err := r.PushWAL(ctx, filepath.Join(wal, s.Name(segmentBytes))); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		a.record(ctx, catalog.Event{
			Kind: "archive_filled", Detail: fmt.Sprintf("%d WAL files from %s on, which the leader before had not archived", len(missing), missing[0].Name(segmentBytes)),
		})
	}
	return a.healGap(ctx, r, h.Timeline, history)
}

// healGap has a backup taken when the archive lacks WAL that nobody has any more: recovery from the last one would end
// there.
func (a *Agent) healGap(ctx context.Context, r backup.Engine, timeline int32, history []decide.Switch) error {
	all, err := r.Backups(ctx)
	if err != nil || len(all) == 0 || len(history) == 0 {
		return err
	}
	last := all[len(all)-1]
	reach, err := r.Contiguous(ctx, last, timeline)
	if err != nil || !gap(reach, last, history[len(history)-1].LSN) {
		return err
	}
	args, err := json.Marshal(map[string]string{"kind": catalog.BackupEmergency})
	if err != nil {
		return err
	}
	_, fresh, err := catalog.PutJob(ctx, a.cfg.Store, a.cfg.Cluster, catalog.Job{
		Kind: "backup", Target: "shard " + a.cfg.Shard, Shard: a.cfg.Shard, Args: args, By: "agent " + a.cfg.Node,
		Key: "backup " + catalog.BackupEmergency + " " + a.cfg.Shard,
	})
	if err == nil && fresh {
		a.record(ctx, catalog.Event{
			Kind: "archive_gap", Detail: fmt.Sprintf("WAL from %s on is lost to the archive; a backup is taken at once", reach.End),
		})
	}
	return err
}

// gap tells whether the archive ends before the segment in which the timeline before was left: all that came before that
// segment was complete.
func gap(reach backup.Reach, last backup.Backup, left catalog.LSN) bool {
	return reach.End < left/segmentBytes*segmentBytes && last.StartLSN < left
}

// inherited lists the segments of earlier timelines that were complete before the timeline was left.
func inherited(names []string, history []decide.Switch, size int64) []backup.Segment {
	var list []backup.Segment
	for _, name := range names {
		s, ok := backup.ParseSegment(name, size)
		if !ok {
			continue
		}
		begun := catalog.LSN(0) // of the timeline
		for _, old := range history {
			if old.Timeline == s.Timeline && s.Start(size)+catalog.LSN(size) <= old.LSN && s.Start(size)+catalog.LSN(size) > begun {
				list = append(list, s)
			}
			begun = old.LSN
		}
	}
	return list
}
