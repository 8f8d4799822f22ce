package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"neki/catalog"
)

// testRepository is one on a directory of its own.
func testRepository(t *testing.T) (*Repository, *DirStore) {
	t.Helper()
	store, err := NewDirStore(filepath.Join(t.TempDir(), "backup"))
	if err != nil {
		t.Fatal(err)
	}
	return NewRepository(store, "c", "sh1", "7000", nil), store
}

// pushed archives content under a name, from a file of its own.
func pushed(t *testing.T, r *Repository, name, content string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return r.PushWAL(t.Context(), file)
}

func TestPushWAL(t *testing.T) {
	r, store := testRepository(t)
	const segment, history = "000000010000000000000002", "00000002.history"
	steps := []struct {
		name, content string
		want          error
	}{
		{segment, "first", nil},
		{segment, "first", nil},
		{segment, "other", ErrDifferent},
		{segment, "first and more", ErrDifferent},
		{segment, "fir", ErrDifferent},
		{segment + ".partial", "other", nil},
		{segment + ".00000028.backup", "label", nil},
		{history, "1\t0/3000000\tno recovery target specified\n", nil},
		{history, "1\t0/4000000\tno recovery target specified\n", ErrDifferent},
	}
	for _, s := range steps {
		if err := pushed(t, r, s.name, s.content); !errors.Is(err, s.want) {
			t.Errorf("push of %s with %q: %v, want %v", s.name, s.content, err, s.want)
		}
	}
	for _, name := range []string{"x", "00000001000000000000000g", "pg_control"} {
		if err := pushed(t, r, name, "x"); err == nil {
			t.Errorf("%s was archived", name)
		}
	}
	dst := filepath.Join(t.TempDir(), "RECOVERYXLOG")
	if err := r.FetchWAL(t.Context(), segment, dst, Limit{}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(dst); err != nil || string(got) != "first" {
		t.Errorf("the archive holds %q, %v", got, err)
	}
	var keys []string
	objects, err := store.List(t.Context(), "c/")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		keys = append(keys, strings.TrimPrefix(o.Key, "c/sh1/7000/"))
	}
	want := []string{
		"wal/00000001/" + segment + ".00000028.backup.gz", "wal/00000001/" + segment + ".gz",
		"wal/00000001/" + segment + ".partial.gz", "wal/" + history,
	}
	if d := cmp.Diff(want, keys); d != "" {
		t.Error(d)
	}
}

// TestCutShort: an object that is not whole, as a broken disk may leave it, is never put into place.
func TestCutShort(t *testing.T) {
	r, store := testRepository(t)
	const name = "000000010000000000000002"
	if err := pushed(t, r, name, strings.Repeat("content of a segment ", 1000)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(store.dir, "c/sh1/7000/wal/00000001", name+".gz")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, damaged := range [][]byte{{}, whole[:len(whole)/2], whole[:len(whole)-1], flipped(whole)} {
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := r.FetchWAL(t.Context(), name, filepath.Join(dir, "out"), Limit{}); err == nil || errors.Is(err, ErrNotExist) {
			t.Errorf("%d of %d bytes: %v", len(damaged), len(whole), err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%d of %d bytes: left %v", len(damaged), len(whole), left)
		}
	}
}

func flipped(b []byte) []byte {
	c := bytes.Clone(b)
	c[len(c)/2] ^= 1
	return c
}

func TestPutIsWholeOrNothing(t *testing.T) {
	_, store := testRepository(t)
	broken := io.MultiReader(strings.NewReader("half"), brokenReader{})
	if err := store.Put(t.Context(), "a/b", broken); err == nil {
		t.Fatal("a broken upload succeeded")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := store.Put(ctx, "a/b", strings.NewReader("whole")); !errors.Is(err, context.Canceled) {
		t.Fatalf("a cancelled upload: %v", err)
	}
	if _, err := store.Get(t.Context(), "a/b"); !errors.Is(err, ErrNotExist) {
		t.Fatalf("after failed uploads: %v", err)
	}
	if err := store.Put(t.Context(), "../x", strings.NewReader("")); err == nil {
		t.Error("a key outside was written")
	}
	if left, _ := os.ReadDir(filepath.Join(store.dir, "a")); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

func TestLimit(t *testing.T) {
	l := Limit{Timeline: 4, Ancestors: []Ancestor{{1, 0x3000060}, {3, 0x5000000}}}
	for name, want := range map[string]bool{
		"00000001.history": true, "00000002.history": false, "00000003.history": true, "00000004.history": true,
		"00000005.history":         false,
		"000000010000000000000002": true, "000000010000000000000003": true, // the switch is in it
		"000000010000000000000004": false, // the old primary's, after it was deposed
		"000000020000000000000003": false, // a promotion that came to nothing
		"000000030000000000000004": true, "000000030000000000000005": false,
		"000000040000000000000009": true, "000000050000000000000005": false, "nonsense": false,
	} {
		if got := l.Allows(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
		if !(Limit{}).Allows(name) {
			t.Errorf("%s is not allowed without a limit", name)
		}
	}
}

func TestSegmentNames(t *testing.T) {
	for _, size := range []int64{1 << 20, DefaultSegmentSize, 64 << 20, 1 << 30} {
		for _, at := range []catalog.LSN{0, 0x1000000, 0xFFFFFFFF, 0x100000000, 0x123456789ABC} {
			s := SegmentOf(3, at, size)
			if got, ok := ParseSegment(s.Name(size), size); !ok || got != s {
				t.Errorf("size %d, %s: %s is %v, %v", size, at, s.Name(size), got, ok)
			}
			if s.Start(size) > at || s.Start(size)+catalog.LSN(size) <= at {
				t.Errorf("size %d: %s is not in %v", size, at, s)
			}
		}
	}
}

// putBackup makes a backup that has nothing but its description.
func putBackup(t *testing.T, r *Repository, id string, timeline int32, start, stop catalog.LSN) Backup {
	t.Helper()
	b := Backup{ID: id, Timeline: timeline, StopTimeline: timeline, StartLSN: start, StopLSN: stop, SegmentSize: DefaultSegmentSize}
	if err := r.putMeta(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestContiguousAndExpire(t *testing.T) {
	r, _ := testRepository(t)
	segment := func(timeline int32, n uint64) string { return Segment{timeline, n}.Name(DefaultSegmentSize) }
	for n := uint64(1); n <= 5; n++ {
		mustPush(t, r, segment(1, n))
	}
	mustPushText(t, r, "00000002.history", "1\t0/5000060\tno recovery target specified\n")
	mustPush(t, r, segment(1, 5)+".partial")
	for _, n := range []uint64{5, 6, 8} { // 7 is lost
		mustPush(t, r, segment(2, n))
	}
	old := putBackup(t, r, "b1", 1, 0x2000028, 0x2000100)
	mid := putBackup(t, r, "b2", 1, 0x4000028, 0x4000100)
	late := putBackup(t, r, "b3", 2, 0x8000028, 0x8000100)
	for _, c := range []struct {
		b        Backup
		timeline int32
		want     Reach
	}{
		{old, 0, Reach{2, 0x7000000}},
		{old, 1, Reach{1, 0x6000000}},
		{mid, 2, Reach{2, 0x7000000}},
		{late, 0, Reach{2, 0x9000000}},
		{putBackup(t, r, "gap", 2, 0x7000028, 0x7000100), 0, Reach{2, 0x7000000}},
	} {
		if got, err := r.Contiguous(t.Context(), c.b, c.timeline); err != nil || got != c.want {
			t.Errorf("backup %s towards %d: %v, %v; want %v", c.b.ID, c.timeline, got, err, c.want)
		}
	}
	removed, n, err := r.Expire(t.Context(), func(Backup) bool { return false })
	if err != nil || len(removed) > 0 || n > 0 {
		t.Errorf("the last backups went: %v, %d segments, %v", removed, n, err)
	}
	removed, n, err = r.Expire(t.Context(), func(b Backup) bool { return b.ID == "b2" || b.ID == "b3" })
	if d := cmp.Diff([]string{"gap", "b1"}, removed); d != "" || n != 3 || err != nil {
		t.Errorf("%s %d segments, %v", d, n, err)
	}
	if got, err := r.Contiguous(t.Context(), mid, 0); err != nil || got != (Reach{2, 0x7000000}) {
		t.Errorf("after expiry: %v, %v", got, err)
	}
	if err := r.FetchWAL(t.Context(), segment(1, 3), filepath.Join(t.TempDir(), "x"), Limit{}); !errors.Is(err, ErrNotExist) {
		t.Errorf("a segment that nobody needs: %v", err)
	}
}

func mustPush(t *testing.T, r *Repository, name string) {
	t.Helper()
	mustPushText(t, r, name, fmt.Sprintf("content of %s", name))
}

func mustPushText(t *testing.T, r *Repository, name, text string) {
	t.Helper()
	if err := pushed(t, r, name, text); err != nil {
		t.Fatal(err)
	}
}

func checkWholeOrMissing(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes, want %d: %v", path, len(got), len(want), err)
	}
}

// TestSweep: what a backup left whose agent was killed goes after a week; one that is being taken, and whole ones, stay.
func TestSweep(t *testing.T) {
	r, store := testRepository(t)
	putBackup(t, r, "whole", 1, 0x2000028, 0x2000100)
	for _, key := range []string{"base/whole/base.tar.gz", "base/left/base.tar.gz"} {
		if err := store.Put(t.Context(), r.key(key), strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	keys := func(after time.Duration) (keys []string) {
		if err := r.sweep(t.Context(), time.Now().Add(after)); err != nil {
			t.Fatal(err)
		}
		objects, err := store.List(t.Context(), r.key("base")+"/")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			keys = append(keys, strings.TrimPrefix(o.Key, r.key("base")+"/"))
		}
		return keys
	}
	if d := cmp.Diff([]string{"left/base.tar.gz", "whole/backup.json", "whole/base.tar.gz"}, keys(24*time.Hour)); d != "" {
		t.Errorf("after a day: %s", d)
	}
	if d := cmp.Diff([]string{"whole/backup.json", "whole/base.tar.gz"}, keys(8*24*time.Hour)); d != "" {
		t.Errorf("after a week: %s", d)
	}
}
