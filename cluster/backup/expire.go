package backup

import (
	"context"
	"fmt"
	"path"
	"strings"
)

// Expire removes the backups that keep refuses, and the WAL that none of the others needs. Of an archive without any
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
	for i, b := range all {
		switch {
		case !keep(b):
			gone = append(gone, b)
		case oldest == nil || b.StartLSN < oldest.StartLSN:
			oldest = &all[i]
		}
	}
	if oldest == nil {
		return nil, 0, nil
	}
	for _, b := range gone {
		if err := r.Remove(ctx, b.ID); err != nil {
			return removed, 0, fmt.Errorf("remove backup %s: %w", b.ID, err)
		}
		removed = append(removed, b.ID)
	}
	segments, err = r.expireWAL(ctx, *oldest)
	return removed, segments, err
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
