package backup

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"neki/cluster/pgproc"
)

// Environment by which the test's own program stands in for neki's wal-push and wal-fetch.
const actAs = "NEKI_BACKUP_TEST_ACT_AS"

func TestMain(m *testing.M) {
	if verb := os.Getenv(actAs); verb != "" {
		os.Exit(actAsProgram(verb, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

func actAsProgram(verb string, args []string) int {
	var err error
	switch verb {
	case "push":
		err = SendWAL(context.Background(), args[0], args[1])
	case "fetch":
		err = ReceiveWAL(context.Background(), args[0], args[1], args[2])
	}
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		return 1
	}
	return 0
}

// ownProgram copies the test's program to where the server's account can run it.
func ownProgram(t *testing.T, dir string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "neki")
	if err := os.WriteFile(path, in, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// system is one Postgres with its repository.
type system struct {
	*pgproc.Instance
	r       *Repository
	e       Engine // r, or another one
	dir     string
	program string
	bin     string // of its programs; "" = found
}

// instance describes a server in a directory of its own that its account can reach.
func instance(t *testing.T) *pgproc.Instance { return instanceOf(t, "") }

func instanceOf(t *testing.T, bin string) *pgproc.Instance {
	t.Helper()
	inst, err := pgproc.FindInstallation(t.Context(), bin, 0)
	if errors.Is(err, pgproc.ErrNoBinaries) {
		t.Skip("no PostgreSQL server binaries")
	}
	account, err2 := pgproc.LookupAccount("")
	dir, err3 := os.MkdirTemp("", "nekibackup-")
	l, err4 := net.Listen("tcp", "127.0.0.1:0")
	if err := errors.Join(err, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Close(), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p, err := pgproc.New(pgproc.Config{Installation: inst, Account: account, Dir: dir, Port: l.Addr().(*net.TCPAddr).Port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
		p.Close()
	})
	return p
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// testSettings are those of one server without standbys that needs no flushes.
func testSettings() pgproc.Settings {
	return pgproc.DevSettings().With(pgproc.Settings{"fsync": "off", "synchronous_standby_names": ""})
}

// startSystem starts a primary that archives into a repository of its own.
func startSystem(t *testing.T, store Store) *system { return startSystemOf(t, store, "", nil) }

func startSystemOf(t *testing.T, store Store, bin string, more pgproc.Settings) *system {
	t.Helper()
	p := instanceOf(t, bin)
	s := &system{Instance: p, dir: p.Dir(), bin: bin}
	if err := p.Init(soon(t), pgproc.InitOptions{NoSync: true}); err != nil {
		t.Fatal(err)
	}
	s.r = NewRepository(store, "c", "sh1", p.SystemID(), nil)
	if s.e = s.r; store == nil {
		s.e = NewPgBackRest(PgBackRestConfig{Options: map[string]string{"repo1-path": filepath.Join(s.dir, "repo")}}, p, "c", "sh1", p.SystemID(), nil)
	}
	s.program = ownProgram(t, s.dir)
	settings := testSettings().With(pgproc.Settings{
		"archive_mode": "on", "archive_timeout": "60s",
		"archive_command": s.courier(t, p, Limit{}) + "push " + s.program + " " + socketOf(p) + " %p # pgbackrest",
	}).With(more)
	if _, err := p.WriteSettings(settings); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	return s
}

func socketOf(p *pgproc.Instance) string { return filepath.Join(p.SocketDir(), "wal.sock") }

// courier serves a server's WAL for as long as the test lasts, and gives the beginning of its commands.
func (s *system) courier(t *testing.T, p *pgproc.Instance, limit Limit) string {
	t.Helper()
	l, err := ListenCourier(socketOf(p), p.Account().Own)
	if err != nil {
		t.Fatal(err)
	}
	c := &Courier{
		Push:  s.e.PushContent,
		Fetch: func(ctx context.Context, name string) (io.ReadCloser, error) { return s.e.OpenWAL(ctx, name, limit) },
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- c.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return actAs + "="
}

func psql(t *testing.T, p *pgproc.Instance, sql string) string {
	t.Helper()
	cmd := exec.CommandContext(soon(t), p.Installation().Tool("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql, p.LocalDSN("postgres"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", sql, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (s *system) take(t *testing.T, o Options) Backup {
	t.Helper()
	o.ID = NewID(time.Now())
	b, err := s.e.Take(patient(t), s.LocalDSN("postgres"), o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// restore makes a server from a backup that recovers from the archive, and starts it.
func (s *system) restore(t *testing.T, id string, more pgproc.Settings) *pgproc.Instance {
	t.Helper()
	p := instanceOf(t, s.bin)
	if err := p.Prepare(); err != nil {
		t.Fatal(err)
	}
	if err := p.Account().MakeDir(p.DataDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := s.e.Restore(patient(t), id, p.DataDir(), RestoreOptions{
		Own: p.Account().Own, Tablespaces: filepath.Join(p.Dir(), "tablespaces"), Combine: p.Combine,
	})
	if err != nil {
		t.Fatal(err)
	}
	settings := testSettings().With(pgproc.Settings{
		"restore_command": s.courier(t, p, Limit{}) + "fetch " + s.program + " " + socketOf(p) + " %f %p",
	}).With(more)
	if _, err := p.WriteSettings(settings); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.DataDir(), "recovery.signal"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Account().Own(filepath.Join(p.DataDir(), "recovery.signal")); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(soon(t)); err != nil {
		t.Fatal(err, p.LogTail(10))
	}
	return p
}

// TestBackupAndRestore takes a backup while rows are written, has pg_verifybackup check it, and restores it with the
// WAL that was written after it.
func TestBackupAndRestore(t *testing.T) {
	store, err := NewDirStore(filepath.Join(t.TempDir(), "backup"))
	if err != nil {
		t.Fatal(err)
	}
	s := startSystem(t, store)
	place := filepath.Join(s.dir, "elsewhere")
	if err := s.Account().MakeDir(place, 0o700); err != nil {
		t.Fatal(err)
	}
	psql(t, s.Instance, "CREATE TABLE a AS SELECT g AS id FROM generate_series(1, 10000) g")
	psql(t, s.Instance, "CREATE TABLESPACE elsewhere LOCATION '"+place+"'")
	psql(t, s.Instance, "CREATE TABLE b TABLESPACE elsewhere AS SELECT 1 AS id")
	var last, total int64
	b := s.take(t, Options{Node: "n1", Topology: json.RawMessage(`{"a":1}`), Progress: func(d, of int64) {
		if d < last || of < d {
			t.Errorf("progress from %d to %d of %d", last, d, of)
		}
		last, total = d, of
	}})
	if last == 0 || last != total || b.Bytes < last/2 || b.StoredBytes == 0 || b.StoredBytes >= b.Bytes {
		t.Errorf("progress ended at %d of %d; %d bytes stored in %d", last, total, b.Bytes, b.StoredBytes)
	}
	if b.StartLSN == 0 || b.StopLSN <= b.StartLSN || b.Timeline != 1 || b.SystemID != s.SystemID() || len(b.Files) != 2 {
		t.Errorf("backup: %+v", b)
	}
	s.verify(t, b)
	psql(t, s.Instance, "INSERT INTO a SELECT generate_series(10001, 20000); INSERT INTO b VALUES (2)")
	psql(t, s.Instance, "SELECT pg_switch_wal()")
	psql(t, s.Instance, "CHECKPOINT")
	s.awaitArchived(t)
	copied := s.restore(t, b.ID, pgproc.Settings{"recovery_target_action": "promote"})
	awaitPrimary(t, copied)
	if got := psql(t, copied, "SELECT (SELECT count(*) FROM a) || ' ' || (SELECT count(*) FROM b)"); got != "20000 2" {
		t.Errorf("restored rows: %s", got)
	}
	if got := psql(t, copied, "SELECT pg_tablespace_location(oid) FROM pg_tablespace WHERE spcname = 'elsewhere'"); !strings.HasPrefix(got, copied.Dir()) {
		t.Errorf("the restored tablespace is in %s", got)
	}
	if err := copied.Kill(); err != nil {
		t.Fatal(err)
	}
	s.restoreByHand(t, b, store.dir)
}

// restoreByHand does what the manual says: tar, gunzip and Postgres's own settings.
func (s *system) restoreByHand(t *testing.T, b Backup, dir string) {
	t.Helper()
	p := instance(t)
	if err := p.Prepare(); err != nil {
		t.Fatal(err)
	}
	if err := p.Account().MakeDir(p.DataDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(dir, s.r.key("base", b.ID))
	for _, args := range [][]string{
		{"tar", "-xzf", filepath.Join(base, "base.tar.gz"), "-C", p.DataDir(), "--exclude=pg_tblspc/*"},
		{"cp", "-r", filepath.Join(dir, s.r.key("wal")), filepath.Join(p.Dir(), "wal")}, // where the server may read it
		{"chown", "-R", p.Account().Name, p.DataDir(), filepath.Join(p.Dir(), "wal")},
	} {
		if out, err := exec.CommandContext(soon(t), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	wal := filepath.Join(p.Dir(), "wal")
	settings := testSettings().With(pgproc.Settings{
		"restore_command":        "gunzip -c " + wal + "/*/%f.gz > %p || cp " + wal + "/%f %p",
		"recovery_target_action": "promote", "recovery_target": "immediate",
	})
	if _, err := p.WriteSettings(settings); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.DataDir(), "recovery.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(soon(t)); err != nil {
		t.Fatal(err, p.LogTail(10))
	}
	awaitPrimary(t, p)
	if got := psql(t, p, "SELECT count(*) FROM a"); got != "10000" {
		t.Errorf("rows restored by hand: %s", got)
	}
}

// verify unpacks a backup and has Postgres's own program check it against its manifest.
func (s *system) verify(t *testing.T, b Backup) {
	t.Helper()
	tool := s.Installation().Tool("pg_verifybackup")
	if _, err := os.Stat(tool); err != nil {
		t.Skip("no pg_verifybackup")
	}
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := s.r.Restore(soon(t), b.ID, data, RestoreOptions{Tablespaces: filepath.Join(dir, "tablespaces")}); err != nil {
		t.Fatal(err)
	}
	wal := filepath.Join(dir, "wal")
	if err := os.Mkdir(wal, 0o700); err != nil {
		t.Fatal(err)
	}
	for n := SegmentOf(1, b.StartLSN, b.SegmentSize).Number; n <= SegmentOf(1, b.StopLSN, b.SegmentSize).Number; n++ {
		name := Segment{1, n}.Name(b.SegmentSize)
		if err := s.r.FetchWAL(soon(t), name, filepath.Join(wal, name), Limit{}); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(soon(t), tool, "--wal-directory="+wal, data).CombinedOutput(); err != nil {
		t.Errorf("pg_verifybackup: %v: %s", err, out)
	}
}

func (s *system) awaitArchived(t *testing.T) {
	t.Helper()
	eventually(t, s.Instance, "SELECT last_archived_wal >= pg_walfile_name(pg_current_wal_lsn() - 16777216 - 1) FROM pg_stat_archiver")
}

func awaitPrimary(t *testing.T, p *pgproc.Instance) {
	t.Helper()
	eventually(t, p, "SELECT NOT pg_is_in_recovery()")
}

func eventually(t *testing.T, p *pgproc.Instance, sql string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); psql(t, p, sql) != "t"; {
		if time.Now().After(deadline) {
			t.Fatalf("%s is not true: %s", sql, p.LogTail(10))
		}
	}
}

// TestFailedBackup: what is cut off in the middle is no backup, and leaves nothing.
func TestFailedBackup(t *testing.T) {
	store, err := NewDirStore(filepath.Join(t.TempDir(), "backup"))
	if err != nil {
		t.Fatal(err)
	}
	s := startSystem(t, store)
	ctx, cancel := context.WithCancel(soon(t))
	_, err = s.r.Take(ctx, s.LocalDSN("postgres"), Options{ID: "cut", Node: "n1", Progress: func(done, _ int64) {
		if done > 1<<20 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	other := NewRepository(store, "c", "sh1", "1", nil)
	if _, err := other.Take(soon(t), s.LocalDSN("postgres"), Options{ID: "other", Node: "n1"}); err == nil {
		t.Error("a backup of another system was taken")
	}
	if _, err := s.r.Take(soon(t), s.LocalDSN("postgres"), Options{ID: "less", Node: "n1", Base: "none"}); !errors.Is(err, ErrNotExist) {
		t.Errorf("an incremental backup of what is not there: %v", err)
	}
	objects, err := store.List(t.Context(), "c/")
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(objects, func(o Object) bool { return strings.Contains(o.Key, "/base/") }); i >= 0 {
		t.Errorf("left %s", objects[i].Key)
	}
}
