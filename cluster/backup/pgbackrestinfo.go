package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"neki/catalog"
)

// backrestInfo is what `pgbackrest info --output=json` gives of a stanza, as far as it is used.
type backrestInfo struct {
	Name   string           `json:"name"`
	Backup []backrestBackup `json:"backup"`
	DB     []struct {
		SystemID json.Number `json:"system-id"`
		Version  string      `json:"version"`
	} `json:"db"`
}

type backrestBackup struct {
	Label      string            `json:"label"`
	Prior      string            `json:"prior"`
	Type       string            `json:"type"`
	Annotation map[string]string `json:"annotation"`
	Error      bool              `json:"error"`
	Archive    struct{ Start, Stop string }
	LSN        struct{ Start, Stop string }
	Info       struct {
		Size       int64
		Repository struct{ Delta int64 }
	}
	Tablespace []struct{ OID uint32 } `json:"tablespace"`
	Timestamp  struct{ Start, Stop int64 }
}

// info asks for the stanza, or for one of its backups in full.
func (p *PgBackRest) info(ctx context.Context, more ...string) (backrestInfo, error) {
	out, err := p.run(ctx, append([]string{"info", "--output=json"}, more...)...)
	if err != nil {
		return backrestInfo{}, err
	}
	var stanzas []backrestInfo
	if err := json.Unmarshal(out, &stanzas); err != nil {
		return backrestInfo{}, fmt.Errorf("info: %w", err)
	}
	for _, one := range stanzas {
		if one.Name == p.stanza() {
			return one, nil
		}
	}
	return backrestInfo{}, nil
}

// ID is ours, or the label of one that somebody has taken by hand.
func (b *backrestBackup) id() string {
	if id := b.Annotation[annotationID]; id != "" {
		return id
	}
	return b.Label
}

// Backups lists the whole backups, the oldest first.
func (p *PgBackRest) Backups(ctx context.Context) ([]Backup, error) {
	list, _, err := p.backups(ctx)
	return list, err
}

// backups gives the labels by the backups' ids, too.
func (p *PgBackRest) backups(ctx context.Context) (list []Backup, labels map[string]backrestBackup, err error) {
	info, err := p.info(ctx)
	if err != nil {
		return nil, nil, err
	}
	ids := map[string]string{} // by label
	for _, b := range info.Backup {
		ids[b.Label] = b.id()
	}
	labels = map[string]backrestBackup{}
	for _, b := range info.Backup {
		one, err := p.backupOf(b)
		if err != nil {
			return nil, nil, fmt.Errorf("backup %s: %w", b.Label, err)
		}
		one.Base = ids[b.Prior]
		if len(info.DB) > 0 {
			one.PostgresVersion = info.DB[len(info.DB)-1].Version
		}
		labels[one.ID] = b
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b Backup) int { return cmpOr(a.FinishedAt.Compare(b.FinishedAt), strings.Compare(a.ID, b.ID)) })
	return list, labels, nil
}

func (p *PgBackRest) backupOf(b backrestBackup) (Backup, error) {
	one := Backup{
		ID: b.id(), Cluster: p.cluster, Shard: p.shard, SystemID: p.systemID, Node: b.Annotation[annotationNode], SegmentSize: DefaultSegmentSize,
		Bytes: b.Info.Size, StoredBytes: b.Info.Repository.Delta, StartedAt: time.Unix(b.Timestamp.Start, 0).UTC(),
		FinishedAt: time.Unix(b.Timestamp.Stop+1, 0).UTC(), // it is given in whole seconds, cut
	}
	var errs [4]error
	one.StartLSN, errs[0] = catalog.ParseLSN(b.LSN.Start)
	one.StopLSN, errs[1] = catalog.ParseLSN(b.LSN.Stop)
	one.Timeline, errs[2] = timelineOf(b.Archive.Start)
	one.StopTimeline, errs[3] = timelineOf(b.Archive.Stop)
	return one, errors.Join(errs[:]...)
}

func timelineOf(segment string) (int32, error) {
	n, err := strconv.ParseUint(segment[:min(8, len(segment))], 16, 31)
	return int32(n), err
}

// NextBase gives the backup that the next one may build on.
func (p *PgBackRest) NextBase(ctx context.Context, most int) (string, error) {
	if most <= 0 {
		return "", nil
	}
	all, err := p.Backups(ctx)
	if err != nil {
		return "", err
	}
	return nextBase(all, most), nil
}

// Take takes a backup of the instance, by its Unix socket. It returns when all WAL that the backup needs is archived.
func (p *PgBackRest) Take(ctx context.Context, _ string, o Options) (Backup, error) {
	if id := p.pg.SystemID(); id != p.systemID {
		return Backup{}, fmt.Errorf("backup: the server is database system %s, not %s", id, p.systemID)
	}
	kind := "full"
	if o.Base != "" {
		kind = "incr"
	}
	_, err := p.runInStanza(ctx, "backup", "--type="+kind, "--annotation="+annotationID+"="+o.ID, "--annotation="+annotationNode+"="+o.Node)
	if err != nil {
		return Backup{}, err
	}
	all, err := p.Backups(ctx)
	if err != nil {
		return Backup{}, err
	}
	i := slices.IndexFunc(all, func(b Backup) bool { return b.ID == o.ID })
	if i < 0 {
		return Backup{}, fmt.Errorf("backup %s: %w after it was taken", o.ID, ErrNotExist)
	}
	if o.Progress != nil {
		o.Progress(all[i].Bytes, all[i].Bytes)
	}
	return all[i], nil
}

// Restore fills an empty directory; the caller writes how WAL is fetched.
func (p *PgBackRest) Restore(ctx context.Context, id, dataDir string, o RestoreOptions) (Backup, error) {
	all, labels, err := p.backups(ctx)
	if err != nil {
		return Backup{}, err
	}
	i := slices.IndexFunc(all, func(b Backup) bool { return b.ID == id })
	if i < 0 {
		return Backup{}, fmt.Errorf("backup %s of shard %s: %w", id, p.shard, ErrNotExist)
	}
	label := labels[id].Label
	args := []string{"restore", "--set=" + label, "--pg1-path=" + dataDir, "--type=none"}
	if o.Tablespaces != "" {
		if err := makeEmpty(filepath.Join(o.Tablespaces, "x"), o.Own); err != nil {
			return all[i], err
		}
		args = append(args, "--tablespace-map-all="+o.Tablespaces)
	} else if full, err := p.info(ctx, "--set="+label); err != nil || len(full.Backup) == 1 && len(full.Backup[0].Tablespace) > 0 {
		return all[i], errors.Join(err, fmt.Errorf("restore: backup %s has tablespaces and there is no place for them", id))
	}
	if o.Progress != nil {
		o.Progress(0, all[i].Bytes)
	}
	if _, err := p.run(ctx, args...); err != nil {
		return all[i], err
	}
	if o.Progress != nil {
		o.Progress(all[i].Bytes, all[i].Bytes)
	}
	return all[i], nil
}

// Expire removes the backups that keep refuses and none of the others builds on, and the WAL from before the oldest that is kept.
func (p *PgBackRest) Expire(ctx context.Context, keep func(Backup) bool) (removed []string, segments int, err error) {
	all, labels, err := p.backups(ctx)
	if err != nil {
		return nil, 0, err
	}
	kept := needed(all, keep)
	if len(kept) == 0 {
		return nil, 0, nil
	}
	before, err := p.archived(ctx, DefaultSegmentSize)
	if err != nil {
		return nil, 0, err
	}
	full := 0
	for _, b := range slices.Backward(all) { // an incremental one before what it builds on
		if kept[b.ID] {
			if b.Base == "" {
				full++
			}
			continue
		}
		if _, err := p.run(ctx, "expire", "--set="+labels[b.ID].Label); err != nil {
			return removed, 0, err
		}
		removed = append(removed, b.ID)
	}
	n := strconv.Itoa(max(full, 1))
	if _, err := p.run(ctx, "expire", "--repo1-retention-full="+n, "--repo1-retention-archive-type=full", "--repo1-retention-archive="+n); err != nil {
		return removed, 0, err
	}
	after, err := p.archived(ctx, DefaultSegmentSize)
	return removed, len(before.segments) - len(after.segments), err
}
