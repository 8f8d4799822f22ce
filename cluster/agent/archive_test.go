package agent

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"neki/catalog"
	"neki/catalog/memstore"
	"neki/cluster/backup"
	"neki/cluster/decide"
)

// TestArchiveAlarms: failures are told of once a minute, their end once, a conflict once for each file.
func TestArchiveAlarms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		defer store.Close() //nolint:errcheck // the end of the test
		a := &Agent{cfg: Config{Cluster: "c", Node: "n1", Shard: "sh1", Store: store}, log: slog.New(slog.DiscardHandler)}
		broken := errors.New("the object store answers 500")
		for _, step := range []struct {
			after time.Duration
			name  string
			err   error
		}{
			{0, "1", nil},
			{0, "2", broken},
			{time.Second, "2", broken},
			{time.Second, "2", nil},
			{time.Second, "3", broken},
			{time.Second, "3", nil},
			{2 * time.Minute, "4", broken},
			{2 * time.Minute, "4", broken},
			{time.Second, "4", nil},
			{0, "5", backup.ErrDifferent},
			{time.Second, "5", backup.ErrDifferent},
			{time.Second, "6", backup.ErrDifferent},
		} {
			time.Sleep(step.after) // of the bubble
			a.noteArchived(t.Context(), step.name, step.err)
		}
		events, err := catalog.ListEvents(t.Context(), store, "c", 100)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range events {
			if e.Shard != "sh1" || e.Node != "n1" || e.By != "agent n1" {
				t.Errorf("event %+v", e)
			}
			got = append([]string{e.Kind}, got...)
		}
		want := []string{
			"archive_failed", "archive_works", "archive_failed", "archive_failed", "archive_works", "archive_conflict", "archive_conflict",
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
}

// TestMissingFromTheArchive: of what a new leader inherited, the complete segments that the archive lacks are pushed; not
// those of its own timeline, which its server archives, nor any of other histories, nor recycled ones.
func TestMissingFromTheArchive(t *testing.T) {
	store, err := backup.NewDirStore(filepath.Join(t.TempDir(), "backup"))
	if err != nil {
		t.Fatal(err)
	}
	r := backup.NewRepository(store, "c", "sh1", "7", nil)
	name := func(timeline int32, n uint64) string {
		return backup.Segment{Timeline: timeline, Number: n}.Name(segmentBytes)
	}
	wal := t.TempDir()
	for _, archived := range []string{name(1, 2), name(1, 3)} {
		path := filepath.Join(wal, archived)
		if err := errors.Join(os.WriteFile(path, []byte("x"), 0o600), r.PushWAL(t.Context(), path)); err != nil {
			t.Fatal(err)
		}
	}
	history := []decide.Switch{{Timeline: 1, LSN: 6<<24 + 100}, {Timeline: 2, LSN: 8<<24 + 5}}
	local := inherited([]string{
		name(1, 1), name(1, 2), name(1, 3), name(1, 4), name(1, 5), name(1, 6), name(1, 7), name(2, 5), name(2, 6), name(2, 7), name(2, 8),
		name(3, 8), name(3, 9), name(4, 4), "00000002.history", name(1, 6) + ".partial", "archive_status",
	}, history, segmentBytes)
	missing, err := r.Missing(t.Context(), local, segmentBytes)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range missing {
		got = append(got, s.Name(segmentBytes))
	}
	if d := cmp.Diff([]string{name(1, 4), name(1, 5), name(2, 6), name(2, 7)}, got); d != "" {
		t.Error(d)
	}
}

func TestGap(t *testing.T) {
	for _, tc := range []struct {
		end, start, left catalog.LSN
		want             bool
	}{
		{5 << 24, 2 << 24, 6<<24 + 100, true},
		{6 << 24, 2 << 24, 6<<24 + 100, false}, // the segment in which it was left may not be archived yet
		{7 << 24, 2 << 24, 6<<24 + 100, false},
		{8 << 24, 8<<24 + 40, 6<<24 + 100, false}, // a backup after that
	} {
		if got := gap(backup.Reach{End: tc.end}, backup.Backup{StartLSN: tc.start}, tc.left); got != tc.want {
			t.Errorf("archived from %s to %s, left at %s: %v", tc.start, tc.end, tc.left, got)
		}
	}
}
