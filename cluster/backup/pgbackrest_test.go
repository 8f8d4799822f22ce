package backup

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"neki/cluster/pgproc"
)

// TestPgBackRest has the real program archive, back up in full and incrementally, restore with the log that came after, and expire.
func TestPgBackRest(t *testing.T) {
	if _, err := exec.LookPath("pgbackrest"); err != nil {
		t.Skip("pgbackrest is not installed: scripts/setup.sh test does that")
	}
	s := startSystemOf(t, nil, "", nil)
	if s.Installation().Major != 15 {
		t.Skip("the installed pgbackrest may not know this version of PostgreSQL")
	}
	if err := s.Account().MakeDir(filepath.Join(s.dir, "repo"), 0o750); err != nil {
		t.Fatal(err)
	}
	if list, err := s.e.Backups(patient(t)); err != nil || len(list) > 0 {
		t.Fatalf("before the first one: %v, %v", list, err)
	}
	psql(t, s.Instance, "CREATE TABLE a AS SELECT g AS id FROM generate_series(1, 10000) g")
	full := s.take(t, Options{Node: "n1"})
	psql(t, s.Instance, "INSERT INTO a VALUES (0)")
	base, err := s.e.NextBase(patient(t), 1)
	if err != nil || base != full.ID {
		t.Fatalf("the next one builds on %q, %v", base, err)
	}
	incremental := s.take(t, Options{Node: "n1", Base: base})
	list, err := s.e.Backups(patient(t))
	if err != nil || len(list) != 2 || list[0].ID != full.ID || list[1].ID != incremental.ID || list[1].Base != full.ID {
		t.Fatalf("backups: %+v, %v", list, err)
	}
	for _, b := range list {
		if b.Node != "n1" || b.Timeline != 1 || b.StopTimeline != 1 || b.StartLSN == 0 || b.StopLSN <= b.StartLSN || b.Bytes < 1<<20 || b.PostgresVersion != "15" {
			t.Errorf("backup: %+v", b)
		}
	}
	if base, err := s.e.NextBase(patient(t), 1); base != "" || err != nil {
		t.Errorf("after one incremental one the next builds on %q, %v", base, err)
	}
	psql(t, s.Instance, "INSERT INTO a SELECT generate_series(10001, 20000)")
	psql(t, s.Instance, "SELECT pg_switch_wal()")
	psql(t, s.Instance, "CHECKPOINT")
	s.awaitArchived(t)
	s.refusesOtherWAL(t, incremental)
	if reach, err := s.e.Contiguous(patient(t), full, 0); err != nil || reach.Timeline != 1 || reach.End <= incremental.StopLSN {
		t.Errorf("the archive reaches to %+v, %v", reach, err)
	}
	copied := s.restore(t, incremental.ID, pgproc.Settings{"recovery_target_action": "promote"})
	awaitPrimary(t, copied)
	if got := psql(t, copied, "SELECT count(*) FROM a"); got != "20001" {
		t.Errorf("restored rows: %s", got)
	}
	if removed, _, err := s.e.Expire(patient(t), func(b Backup) bool { return b.ID == incremental.ID }); err != nil || len(removed) > 0 {
		t.Errorf("removed %q, which the kept one builds on, %v", removed, err)
	}
	last := s.take(t, Options{Node: "n1"})
	removed, segments, err := s.e.Expire(patient(t), func(b Backup) bool { return b.ID == last.ID })
	if err != nil || strings.Join(removed, " ") != incremental.ID+" "+full.ID || segments == 0 {
		t.Errorf("removed %q and %d segments, %v", removed, segments, err)
	}
	if reach, err := s.e.Contiguous(patient(t), last, 0); err != nil || reach.End < last.StopLSN {
		t.Errorf("of what was kept the archive reaches to %+v, %v", reach, err)
	}
}

// refusesOtherWAL archives a segment again, as it is and with another byte in it, and asks for one that is not there.
func (s *system) refusesOtherWAL(t *testing.T, b Backup) {
	t.Helper()
	name := SegmentOf(1, b.StartLSN, b.SegmentSize).Name(b.SegmentSize)
	content := make([]byte, DefaultSegmentSize)
	in, err := s.e.OpenWAL(patient(t), name, Limit{})
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(content); {
		k, err := in.Read(content[n:])
		if n += k; err != nil {
			t.Fatal(n, err)
		}
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.e.PushContent(patient(t), name, content); err != nil {
		t.Errorf("the same again: %v", err)
	}
	content[len(content)/2] ^= 1
	if err := s.e.PushContent(patient(t), name, content); !errors.Is(err, ErrDifferent) {
		t.Errorf("other content: %v", err)
	}
	if _, err := s.e.OpenWAL(patient(t), (Segment{1, 4000}).Name(DefaultSegmentSize), Limit{}); !errors.Is(err, ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
	if _, err := s.e.OpenWAL(patient(t), name, Limit{Timeline: 2}); !errors.Is(err, ErrNotExist) {
		t.Errorf("what is of another history: %v", err)
	}
}

func TestPgBackRestOptions(t *testing.T) {
	for name, options := range map[string]map[string]string{
		"": {"repo1-path": "/b", "repo1-type": "s3", "repo1-s3-key": "a=b"}, "repo1-path": {}, "pg1-path": {"repo1-path": "/b", "pg1-path": "/x"},
		"a\nb": {"repo1-path": "/b", "a\nb": "c"}, "repo1-cipher-pass": {"repo1-path": "/b", "repo1-cipher-pass": "a\nb"},
	} {
		err := (&PgBackRestConfig{Options: options}).Check()
		if (err == nil) != (name == "") || err != nil && !strings.Contains(err.Error(), strings.Split(name, "\n")[0]) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
