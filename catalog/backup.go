package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// BackupState is where a Backup stands.
type BackupState string

// The states of a Backup.
const (
	BackupRunning  BackupState = "running"
	BackupDone     BackupState = "done"
	BackupPartial  BackupState = "partial" // whole, but that of another shard failed: no backup of the cluster
	BackupFailed   BackupState = "failed"
	BackupDeleting BackupState = "deleting"
)

// Kinds of a Backup.
const (
	BackupScheduled = "scheduled"
	BackupManual    = "manual"
	BackupEmergency = "emergency" // one that the admin takes because the archive has a gap
)

// Backup is the document of one shard's part of a backup, a row of neki.backups. Those that were taken together have the
// same ID. What is in the repository, under Object, tells the rest.
type Backup struct {
	ID         string      `json:"id"`
	Shard      string      `json:"shard"` // uid
	Kind       string      `json:"kind"`
	State      BackupState `json:"state"`
	Object     string      `json:"object,omitempty"` // its name in the shard's repository
	SystemID   string      `json:"system_id,omitempty"`
	Base       string      `json:"base,omitempty"` // of an incremental one: the Object of the backup that it builds on
	Node       string      `json:"node,omitempty"` // that it was taken from
	Timeline   int32       `json:"timeline,omitempty"`
	StartLSN   LSN         `json:"start_lsn,omitempty"`
	StopLSN    LSN         `json:"stop_lsn,omitempty"`
	Bytes      int64       `json:"bytes,omitempty"`  // of the data
	Stored     int64       `json:"stored,omitempty"` // as it is kept
	StartedAt  time.Time   `json:"started_at,omitzero"`
	FinishedAt time.Time   `json:"finished_at,omitzero"`
	ExpiresAt  time.Time   `json:"expires_at,omitzero"` // zero: never
	Protected  bool        `json:"protected,omitempty"` // kept whatever ExpiresAt says
	By         string      `json:"by,omitempty"`
	Error      string      `json:"error,omitempty"`
	ModRev     int64       `json:"-"`
}

// Whole reports whether the shard can be restored from it.
func (b *Backup) Whole() bool { return b.State == BackupDone || b.State == BackupPartial }

// GetBackup reads a backup's document, linearizably.
func GetBackup(ctx context.Context, store Store, cluster, shard, id string) (Backup, error) {
	var b Backup
	if !ValidName(shard) || !ValidName(id) {
		return b, fmt.Errorf("catalog: backup %q of shard %q: %w", id, shard, ErrNotFound)
	}
	e, err := getJSON(ctx, store, BackupKey(cluster, shard, id), &b)
	b.ModRev = e.ModRev
	return b, err
}

// UpdateBackup writes what change makes of a backup's document; one that is not there is made. change is asked again when
// another was faster.
func UpdateBackup(ctx context.Context, store Store, cluster, shard, id string, change func(*Backup)) (Backup, error) {
	for {
		b, err := GetBackup(ctx, store, cluster, shard, id)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return b, err
		}
		rev := b.ModRev
		b.ID, b.Shard = id, shard
		change(&b)
		b.ModRev, err = putJSON(ctx, store, BackupKey(cluster, shard, id), b, rev)
		if !errors.Is(err, ErrConflict) {
			return b, err
		}
	}
}

// DeleteBackup removes a backup's document; what it tells of must be gone.
func DeleteBackup(ctx context.Context, store Store, cluster, shard, id string) error {
	if _, err := store.Delete(ctx, BackupKey(cluster, shard, id), Always()); err != nil {
		return fmt.Errorf("catalog: delete backup %s of shard %s: %w", id, shard, err)
	}
	return nil
}

// BackupsOf lists a shard's backups, the oldest first.
func (s *Snapshot) BackupsOf(shard string) []Backup {
	var list []Backup
	for _, b := range s.Backups {
		if b.Shard == shard {
			list = append(list, b)
		}
	}
	return list
}

func compareBackups(a, b Backup) int {
	if a.ID != b.ID {
		return strings.Compare(a.ID, b.ID)
	}
	return strings.Compare(a.Shard, b.Shard)
}

func sortBackups(list []Backup) { slices.SortFunc(list, compareBackups) }
