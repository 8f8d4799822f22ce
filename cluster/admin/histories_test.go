package admin_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"neki/catalog"
	"neki/catalog/memstore"
	"neki/cluster/backup"
	"neki/cluster/decide"
)

// H10: a replica was away over a change of the lead, and needs the archive. That holds what it must not follow: a segment that an
// old primary wrote after it was replaced, and the beginning of a timeline that came to nothing. It comes back all the same, its
// data as it is.
func TestH10ForeignHistoriesInTheArchive(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	w.settings, w.timing, w.pace = fewSegments, hasty(), 5*time.Millisecond
	dir := w.withArchive()
	a, agents, ws, end := failoverWorld(t, w)
	live, away := a.Live(), members[2]
	w.end(agents[away])
	if err := w.servers[away].Kill(); err != nil {
		t.Fatal(err)
	}
	w.until(live, away+" out of the cohort", func(s *catalog.Snapshot) bool {
		return !strings.Contains(strings.Join(s.Rule("sh1").Cohort, " "), away)
	})
	w.switchTo(live, members[1], 1)
	at := w.status(live, members[1]).Server.ReceiveLSN
	w.fillLog(members[1], 4)
	w.archivedAll(live, members[1])
	w.exec(members[1], "CHECKPOINT")
	w.until(live, "loss of what "+away+" needs", func(*catalog.Snapshot) bool {
		return w.status(live, members[1]).Server.OldestLSN > at
	})
	id := w.servers[members[1]].SystemID()
	wal := filepath.Join(dir, clusterName, "sh1", id, "wal")
	var newest string
	old, err := filepath.Glob(filepath.Join(wal, "00000001", "*"))
	if err != nil || len(old) == 0 {
		t.Fatalf("segments of timeline 1: %v, %v", old, err)
	}
	newest = old[len(old)-1]
	last, ok := backup.ParseSegment(filepath.Base(newest)[:24], backup.DefaultSegmentSize)
	if !ok {
		t.Fatal(newest)
	}
	content, err := os.ReadFile(newest)
	if err != nil {
		t.Fatal(err)
	}
	for n := range uint64(6) { // one of them is where the replica would look
		s := backup.Segment{Timeline: 1, Number: last.Number + 1 + n}
		w.put(filepath.Join(wal, "00000001", s.Name(backup.DefaultSegmentSize)+".gz"), content)
	}
	w.put(filepath.Join(wal, "00000003.history"), fmt.Appendf(nil, "1\t%s\tno recovery target specified\n", catalog.LSN(at)))
	w.put(filepath.Join(wal, "00000009.history"), fmt.Appendf(nil, "2\t%s\tno recovery target specified\n", catalog.LSN(at)))

	w.agent("sh1", away, catalog.RoleReplica, false)
	w.until(live, away+" streaming again", func(s *catalog.Snapshot) bool { return healthy(s, members[1], members[0], away) })
	if n, st := live.Snapshot().Node(away), w.status(live, away); n.Request != "" || st.Filled != nil || st.Server.Timeline != 2 {
		t.Errorf("%+v, filled %+v, timeline %d", n, st.Filled, st.Server.Timeline)
	}
	log, err := os.ReadFile(w.servers[away].LogFile())
	if err != nil || strings.Contains(string(log), "is not a child of this server's history") {
		t.Errorf("the log of %s: %v\n%s", away, err, log)
	}
	ws.progress(20)
	end()
	for _, m := range members {
		ws.check(m)
	}
}

// put writes a file as the archive's owner would.
func (w *world) put(path string, content []byte) {
	w.t.Helper()
	if err := os.WriteFile(path, content, 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// switchTo gives the lead to a node.
func (w *world) switchTo(live *catalog.Live, node string, term int64) {
	w.t.Helper()
	o := catalog.Operation{ID: "to-" + node, Kind: catalog.OpSwitchover, Candidate: node, FromTerm: term, Timeout: time.Minute}
	if _, err := catalog.PutOperation(w.soon(), w.store, clusterName, "sh1", o); err != nil {
		w.t.Fatal(err)
	}
	w.until(live, "lead of "+node, func(s *catalog.Snapshot) bool {
		r := s.Rule("sh1")
		return r.Leader == node && r.Term > term && r.Phase == decide.PhaseActive && healthy(s, node)
	})
}

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
