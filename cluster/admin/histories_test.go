package admin_test

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"neki/catalog"
	"neki/catalog/memstore"
	"neki/cluster/backup"
)

// slowArchive takes its time with histories, and remembers what it was given.
type slowArchive struct {
	backup.Store
	mu      sync.Mutex
	content map[string]string // by key
	other   []string          // keys that came with other content
	delay   time.Duration
}

func (s *slowArchive) wait(ctx context.Context, key string) {
	if !strings.HasSuffix(key, ".history") {
		return
	}
	select {
	case <-time.After(s.delay):
	case <-ctx.Done():
	}
}

// Put delays histories.
func (s *slowArchive) Put(ctx context.Context, key string, r io.Reader) error {
	s.wait(ctx, key)
	if !strings.Contains(key, "/wal/") {
		return s.Store.Put(ctx, key, r)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if had, known := s.content[key]; known && had != string(text) {
		s.other = append(s.other, key)
	}
	s.content[key] = string(text)
	s.mu.Unlock()
	return s.Store.Put(ctx, key, strings.NewReader(string(text)))
}

// Get delays histories.
func (s *slowArchive) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	s.wait(ctx, key)
	return s.Store.Get(ctx, key)
}

// H20: two promotions follow each other, the first one in the midst of a base backup, and the archive is slow to take and to give
// histories. No timeline is used twice, and no file of the archive comes with two contents; the backup is taken anew from the next
// primary, and the archive reaches from it to the end.
func TestH20PromotionsWithASlowArchive(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	w.timing, w.pace = hasty(), 5*time.Millisecond
	w.withArchive()
	slow := &slowArchive{Store: w.archive.Store, content: map[string]string{}, delay: 2 * time.Second}
	w.archive.Store, w.archive.MaxRate = slow, 4<<20
	a, _, ws, end := failoverWorld(t, w)
	live, first := a.Live(), members[0]
	j, _, err := catalog.PutJob(w.soon(), store, clusterName, catalog.Job{Kind: "backup", Shard: "sh1", By: "test", Args: []byte(`{"kind": "manual"}`)})
	if err != nil {
		t.Fatal(err)
	}
	w.until(live, "a backup that has begun to copy", func(s *catalog.Snapshot) bool {
		now := s.Job(j.ID)
		if now != nil && now.State.Final() {
			t.Fatalf("it ended too soon: %+v", now)
		}
		return now != nil && now.BytesDone > 1<<20
	})
	leader, term := first, int64(1)
	for range 2 {
		if err := unix.Kill(w.servers[leader].Running(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		leader, term = w.settled(live, term)
		t.Logf("%s leads in term %d, longest gap %v", leader, term, ws.progress(20))
	}
	snap := w.until(live, "the end of the backup", func(s *catalog.Snapshot) bool { now := s.Job(j.ID); return now != nil && now.State.Final() })
	taken := snap.BackupsOf("sh1")
	if now := snap.Job(j.ID); now.State != catalog.JobDone || len(taken) != 1 || taken[0].State != catalog.BackupDone || taken[0].Node == first {
		t.Errorf("%+v, %+v", now, taken)
	}
	end()
	last, ok := backup.ParseSegment(w.archivedAll(live, leader), backup.DefaultSegmentSize)
	for _, m := range members {
		ws.check(m)
	}
	r := backup.NewRepository(slow.Store, clusterName, "sh1", w.servers[leader].SystemID(), slog.New(slog.DiscardHandler))
	list, err := r.Backups(w.soon())
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	timeline := live.Snapshot().Rule("sh1").Timeline
	if reach, err := r.Contiguous(w.soon(), list[0], timeline); err != nil || !ok || reach.End <= last.Start(backup.DefaultSegmentSize) {
		t.Errorf("from the backup the archive reaches to %v, %v, not to the end of %+v", reach, err, last)
	}
	slow.mu.Lock()
	defer slow.mu.Unlock()
	if len(slow.other) > 0 {
		t.Errorf("came with two contents: %v", slow.other)
	}
	histories := 0
	for key := range slow.content {
		if strings.HasSuffix(key, ".history") {
			histories++
		}
	}
	if want := int(timeline) - 1; histories != want {
		t.Errorf("%d histories for timeline %d", histories, timeline)
	}
	events, err := catalog.ListEvents(w.soon(), store, clusterName, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Kind == "archive_conflict" {
			t.Errorf("%+v", e)
		}
	}
}
