package backup

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// Expire removes the backups that keep refuses and none of the others builds on, and the WAL that none of the others needs. Of an archive without any
// backup it removes nothing: a first one may be under way. It gives the ids of what it removed and the number of WAL files.
//
// WAL before the oldest kept backup's start goes, on its timeline and those before it; later timelines keep theirs, for
// their segments may be on the way from that backup to the newest state.
func (r *Repository) Expire(ctx context.Context, keep func(Backup) bool) (removed []string, segments int, err error) {
	all, err := r.Backups(ctx)
	if err != nil {
		return nil, 0, err
	}
	var oldest *Backup
	var gone []Backup
	kept := needed(all, keep)
	for i, b := range all {
		switch {
		case !kept[b.ID]:
			gone = append(gone, b)
		case oldest == nil || b.StartLSN < oldest.StartLSN:
			oldest = &all[i]
		}
	}
	if oldest == nil {
		return nil, 0, nil
	}
	for _, b := range slices.Backward(gone) { // an incremental one before what it builds on
		if err := r.Remove(ctx, b.ID); err != nil {
			return removed, 0, fmt.Errorf("remove backup %s: %w", b.ID, err)
		}
		removed = append(removed, b.ID)
	}
	if err := r.sweep(ctx, time.Now()); err != nil {
		return removed, 0, err
	}
	segments, err = r.expireWAL(ctx, *oldest)
	return removed, segments, err
}

// abandonedAfter is when the parts of a backup that never became one are taken for remains: those of one that is still
// being taken are younger.
const abandonedAfter = 7 * 24 * time.Hour

// sweep removes what backups have left whose agent was killed.
func (r *Repository) sweep(ctx context.Context, now time.Time) error {
	base := r.key("base") + "/"
	objects, err := r.store.List(ctx, base)
	if err != nil {
		return err
	}
	newest, whole := map[string]time.Time{}, map[string]bool{}
	for _, o := range objects {
		id, name, _ := strings.Cut(strings.TrimPrefix(o.Key, base), "/")
		whole[id] = whole[id] || name == metaName
		if o.Modified.After(newest[id]) {
			newest[id] = o.Modified
		}
	}
	for id, at := range newest {
		if whole[id] || now.Sub(at) < abandonedAfter {
			continue
		}
		if err := r.Remove(ctx, id); err != nil {
			return fmt.Errorf("remove what is left of backup %s: %w", id, err)
		}
	}
	return nil
}

// expireWAL removes segments that end before the backup begins. A position before its start is needed by nobody on any
// timeline: whatever is kept begins later.
func (r *Repository) expireWAL(ctx context.Context, oldest Backup) (int, error) {
	objects, err := r.store.List(ctx, r.key("wal")+"/")
	if err != nil {
		return 0, err
	}
	first := SegmentOf(oldest.Timeline, oldest.StartLSN, oldest.SegmentSize)
	n := 0
	for _, o := range objects {
		name, _, _ := strings.Cut(path.Base(o.Key), ".") // of a segment, its .partial and its .backup
		s, ok := ParseSegment(name, oldest.SegmentSize)
		if !ok || s.Number >= first.Number {
			continue
		}
		if err := r.store.Delete(ctx, o.Key); err != nil {
			return n, fmt.Errorf("remove %s: %w", o.Key, err)
		}
		n++
	}
	return n, nil
}
