package adminsql

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
)

func (s *Schema) backups() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "backups", Comment: "Base backups, newest first: those that were taken together have the same id",
		Columns: []Column{
			{"id", text, "what neki.delete_backup takes"},
			{"shard", text, "shard whose data it is"},
			{"kind", text, "scheduled, manual or emergency (the WAL archive had a gap)"},
			{"state", text, "running, done, partial (another shard's part is missing), failed or deleting"},
			{"started_at", timestamptz, "when it was begun"},
			{"finished_at", timestamptz, "when it ended: the earliest point in time that it can be restored to"},
			{"size_bytes", int8, "of the data"},
			{"stored_bytes", int8, "as it is kept"},
			{"wal_start", pgLSN, "recovery begins here"},
			{"wal_stop", pgLSN, "the data is consistent from here on"},
			{"timeline", int4, "timeline of wal_start"},
			{"expires_at", timestamptz, "when it is removed; the newest one of a shard stays"},
			{"protected", boolean, "it is kept whatever expires_at says"},
			{"node", text, "instance that it was taken from"},
			{"object", text, "its name in the shard's repository"},
			{"base", text, "of an incremental one: the object of the backup that it builds on, which stays as long"},
			{"by", text, "role that asked for it, or admin"},
			{"error", text, "why it failed"},
		},
		rows: ignoreArgs(func(context.Context) ([][]any, error) {
			snap, err := s.snapshot()
			if err != nil {
				return nil, err
			}
			rows := make([][]any, 0, len(snap.Backups))
			for _, b := range slices.Backward(snap.Backups) {
				rows = append(rows, backupRow(b))
			}
			return rows, nil
		}),
	}
}

func backupRow(b catalog.Backup) []any {
	return []any{
		b.ID, b.Shard, b.Kind, string(b.State), timeOrNull(b.StartedAt), timeOrNull(b.FinishedAt), orNull(b.Bytes), orNull(b.Stored),
		lsn(b.StartLSN), lsn(b.StopLSN), orNull(b.Timeline), timeOrNull(b.ExpiresAt), b.Protected, orNull(b.Node),
		orNull(b.Object), orNull(b.Base), orNull(b.By), orNull(b.Error),
	}
}

// backupArgs and backupRef are what package admin reads.
type backupArgs struct {
	Kind      string        `json:"kind"`
	Retention time.Duration `json:"retention_ns,omitempty"`
	Protected bool          `json:"protected,omitempty"`
}

type backupRef struct {
	ID string `json:"id"`
	On bool   `json:"on,omitempty"`
}

func (s *Schema) backupProcedures() []*Procedure {
	yes, no := "true", "false"
	id := Argument{Name: "id", Type: text, Comment: "an id of neki.backups"}
	return []*Procedure{
		s.long(Procedure{
			Name: "backup", Comment: "Take a base backup of every shard, or of one",
			Args: []Argument{
				{Name: "shard", Type: text, Null: true, Comment: "the uid or name of a shard; NULL = all, which fails unless each succeeds"},
				{Name: "retention", Type: interval, Null: true, Comment: "how long it is kept; NULL = as long as scheduled ones"},
				{Name: "protected", Type: boolean, Default: &no, Comment: "true: keep it until neki.protect_backup says otherwise"},
			},
		}, s.askBackup),
		s.long(Procedure{
			Name: "delete_backup", Comment: "Remove a backup, and the WAL that no other one needs",
			Args: []Argument{id},
		}, func(ctx context.Context, c *call) (catalog.Job, error) {
			return s.aboutBackup(ctx, c, "delete_backup", backupRef{ID: c.text(0)})
		}),
		s.long(Procedure{
			Name: "protect_backup", Comment: "Keep a backup beyond its time, or no longer",
			Args: []Argument{id, {Name: "on", Type: boolean, Default: &yes, Comment: "false: it goes when its time is over"}},
		}, func(ctx context.Context, c *call) (catalog.Job, error) {
			on, _ := c.args[1].(bool)
			return s.aboutBackup(ctx, c, "protect_backup", backupRef{ID: c.text(0), On: on})
		}),
		s.long(Procedure{
			Name: "restore_cluster", Comment: "Make a new cluster's data, as all shards were at a point in time; this cluster is not touched",
			Args: []Argument{
				{Name: "target_time", Type: timestamptz, Null: true, Comment: "the last commit that counts is not later; NULL = now"},
				{Name: "into", Type: text, Null: true, Comment: "absolute path of an empty directory, or one to make, where the agents run"},
			},
		}, s.askRestore),
	}
}

func (s *Schema) askBackup(ctx context.Context, c *call) (catalog.Job, error) {
	snap, err := s.snapshot()
	if err != nil {
		return catalog.Job{}, err
	}
	j := catalog.Job{Kind: "backup", Target: "the cluster"}
	if c.args[0] != nil {
		if j.Shard, err = shardArgument(snap, c.args[0]); err != nil {
			return j, err
		}
		j.Target = "shard " + j.Shard
	}
	args := backupArgs{Kind: catalog.BackupManual}
	args.Retention, _ = c.args[1].(time.Duration)
	if c.args[1] != nil && args.Retention <= 0 {
		return j, pgerr.New(pgerr.InvalidParameterValue, "retention is not greater than zero").
			WithHint("Give how long the backup is to be kept, for example '7 days'.")
	}
	args.Protected, _ = c.args[2].(bool)
	return s.putJob(ctx, c, j, args)
}

// aboutBackup asks for something to be done with a backup that is there.
func (s *Schema) aboutBackup(ctx context.Context, c *call, kind string, ref backupRef) (catalog.Job, error) {
	snap, err := s.snapshot()
	if err != nil {
		return catalog.Job{}, err
	}
	j := catalog.Job{Kind: kind, Target: "backup " + ref.ID}
	var known []string
	var shards []string
	for _, b := range snap.Backups {
		if !slices.Contains(known, b.ID) {
			known = append(known, b.ID)
		}
		if b.ID != ref.ID {
			continue
		}
		if b.State == catalog.BackupRunning {
			return j, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "backup %s is still being taken", b.ID).
				WithHint("CALL neki.cancel_operation('%s') ends it.", b.ID)
		}
		shards = append(shards, b.Shard)
	}
	if len(shards) == 0 {
		return j, invalidArgument("id", ref.ID, known)
	}
	c.result = strings.Join(shards, ", ")
	return s.putJob(ctx, c, j, ref)
}

// restoreArgs are what package admin reads.
type restoreArgs struct {
	Target time.Time `json:"target"`
	Into   string    `json:"into"`
}

func (s *Schema) askRestore(ctx context.Context, c *call) (catalog.Job, error) {
	snap, err := s.snapshot()
	if err != nil {
		return catalog.Job{}, err
	}
	now := time.Now().UTC()
	args := restoreArgs{Target: now, Into: c.text(1)}
	if c.args[0] != nil {
		args.Target, _ = c.args[0].(time.Time)
	}
	j := catalog.Job{Kind: "restore_cluster", Target: "the cluster of " + args.Target.Format(time.RFC3339)}
	switch {
	case !filepath.IsAbs(args.Into):
		return j, pgerr.New(pgerr.InvalidParameterValue, "invalid value for argument \"into\": \"%s\"", args.Into).
			WithHint("Give the absolute path of an empty directory, or of one to make.")
	case args.Target.After(now):
		return j, pgerr.New(pgerr.InvalidParameterValue, "target_time is in the future").WithHint("Give a moment that is over.")
	}
	for i := range snap.Shards {
		if sh := &snap.Shards[i]; !restorable(snap.BackupsOf(sh.UID), args.Target) {
			return j, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "shard %s has no backup that ended before %s", sh.UID, args.Target.Format(time.RFC3339Nano)).
				WithHint("SELECT shard, min(finished_at) FROM neki.backups WHERE state IN ('done', 'partial') GROUP BY shard shows where each begins.")
		}
	}
	return s.putJob(ctx, c, j, args)
}

func restorable(list []catalog.Backup, at time.Time) bool {
	return slices.ContainsFunc(list, func(b catalog.Backup) bool { return b.Whole() && !b.FinishedAt.After(at) })
}
