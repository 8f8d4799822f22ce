package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"neki/cluster/pgproc"
	"neki/internal/testpg"
)

// An incremental backup of a server with two tablespaces holds little, and what is restored from a chain of three is what was there:
// Postgres's own program checks it, and the log that came after goes on from there.
func TestIncrementalBackup(t *testing.T) {
	bin := testpg.Newer(t, IncrementalMajor)
	store, err := NewDirStore(filepath.Join(t.TempDir(), "backup"))
	if err != nil {
		t.Fatal(err)
	}
	s := startSystemOf(t, store, bin, nil)
	place := filepath.Join(s.dir, "elsewhere")
	if err := s.Account().MakeDir(place, 0o700); err != nil {
		t.Fatal(err)
	}
	psql(t, s.Instance, "CREATE TABLE a AS SELECT g AS id, repeat('x', 500) AS pad FROM generate_series(1, 20000) g")
	psql(t, s.Instance, "CREATE TABLESPACE elsewhere LOCATION '"+place+"'")
	psql(t, s.Instance, "CREATE TABLE b TABLESPACE elsewhere AS SELECT 1 AS id")
	chain := []Backup{s.take(t, Options{Node: "n1"})}
	// A server that does not summarise its log refuses, and a full one may be taken instead.
	_, err = s.r.Take(patient(t), s.LocalDSN("postgres"), Options{ID: "refused", Node: "n1", Base: chain[0].ID})
	if !RefusedIncremental(err) {
		t.Fatalf("without summaries: %v", err)
	}
	psql(t, s.Instance, "ALTER SYSTEM SET summarize_wal = on")
	psql(t, s.Instance, "SELECT pg_reload_conf()")
	for i := range 2 {
		psql(t, s.Instance, fmt.Sprintf("UPDATE a SET pad = 'changed' WHERE id = %d; INSERT INTO b VALUES (%d)", i+1, i+2))
		base, err := s.r.NextBase(patient(t), 2)
		if err != nil || base != chain[i].ID {
			t.Fatalf("an incremental backup builds on %q, %v: not on %q", base, err, chain[i].ID)
		}
		chain = append(chain, s.take(t, Options{Node: "n1", Base: base}))
	}
	if base, err := s.r.NextBase(patient(t), 2); base != "" || err != nil {
		t.Errorf("after two incremental ones the next builds on %q, %v", base, err)
	}
	if chain[2].StoredBytes*3 > chain[0].StoredBytes || chain[2].Base != chain[1].ID || chain[0].Base != "" {
		t.Errorf("the full one takes %d bytes, the last one %d: %+v", chain[0].StoredBytes, chain[2].StoredBytes, chain[2])
	}
	psql(t, s.Instance, "SELECT pg_switch_wal()")
	psql(t, s.Instance, "CHECKPOINT")
	s.awaitArchived(t)
	s.verifyChain(t, chain[2])
	copied := s.restore(t, chain[2].ID, pgproc.Settings{"recovery_target_action": "promote"})
	awaitPrimary(t, copied)
	const rows = "SELECT count(*) FILTER (WHERE pad = 'changed') || ' ' || count(*) || ' ' || (SELECT string_agg(id::text, ',' ORDER BY id) FROM b) FROM a"
	if got := psql(t, copied, rows); got != "2 20000 1,2,3" {
		t.Errorf("restored rows: %s", got)
	}
	if _, err := os.Stat(copied.DataDir() + ".chain"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the unpacked chain is left: %v", err)
	}
	// What the kept one needs stays, whatever is said of it.
	removed, _, err := s.r.Expire(patient(t), func(b Backup) bool { return b.ID == chain[1].ID })
	if err != nil || strings.Join(removed, " ") != chain[2].ID {
		t.Errorf("removed %q, %v", removed, err)
	}
	if err := s.r.Remove(patient(t), chain[0].ID); err != nil { // as by hand
		t.Fatal(err)
	}
	_, err = s.r.Restore(patient(t), chain[1].ID, t.TempDir(), RestoreOptions{Combine: copied.Combine})
	if err == nil || !strings.Contains(err.Error(), chain[0].ID) {
		t.Errorf("a chain that lacks a link was restored: %v", err)
	}
	if base, err := s.r.NextBase(patient(t), 9); base != "" || err != nil {
		t.Errorf("the next one builds on %q, %v: its chain lacks a link", base, err)
	}
}

// Errors of the caller's own end are no refusals: a full backup would end just so.
func TestRefusedIncremental(t *testing.T) {
	for err, want := range map[error]bool{
		context.Canceled: false, &pgconn.PgError{Code: "57P01"}: false, fmt.Errorf("x: %w", &pgconn.PgError{Code: "55000"}): true, nil: false,
	} {
		if got := RefusedIncremental(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// verifyChain restores without any log and has pg_verifybackup check the data against the manifest that was made of the chain's.
func (s *system) verifyChain(t *testing.T, b Backup) {
	t.Helper()
	p := instanceOf(t, s.bin)
	if err := errors.Join(p.Prepare(), p.Account().MakeDir(p.DataDir(), 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.r.Restore(patient(t), b.ID, p.DataDir(), RestoreOptions{
		Own: p.Account().Own, Tablespaces: filepath.Join(p.Dir(), "tablespaces"), Combine: p.Combine,
	}); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(patient(t), p.Installation().Tool("pg_verifybackup"), "--no-parse-wal", p.DataDir()).CombinedOutput()
	if err != nil {
		t.Errorf("pg_verifybackup: %v: %s", err, out)
	}
}

// patient is for what waits for the archive, on a machine that has other things to do.
func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
