package pgproc

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place gives the Config of a new server in a directory that its account can reach, cleaned up with the test.
func place(t *testing.T) Config {
	t.Helper()
	inst, err := FindInstallation(t.Context(), "", 0)
	if errors.Is(err, ErrNoBinaries) {
		t.Skip("no PostgreSQL server binaries")
	}
	if err != nil {
		t.Fatal(err)
	}
	account, err := LookupAccount("")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "nekiproc-")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := errors.Join(l.Close(), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return Config{Installation: inst, Account: account, Dir: dir, Port: port}
}

// open makes the Instance of a place; at the test's end it is killed if it still runs.
func open(t *testing.T, cfg Config) *Instance {
	t.Helper()
	p, err := New(cfg)
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
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// makePrimary initialises and starts a server that needs no flushes and no standbys.
func makePrimary(t *testing.T) *Instance {
	t.Helper()
	p := open(t, place(t))
	if err := p.Init(soon(t), InitOptions{NoSync: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.WriteSettings(DevSettings().With(Settings{"fsync": "off", "synchronous_standby_names": ""})); err != nil {
		t.Fatal(err)
	}
	if _, err := p.WriteHBA(DefaultHBA("repl")); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	return p
}

func text(t *testing.T, p *Instance, sql string) string {
	t.Helper()
	ctx := soon(t)
	c, err := pgx.Connect(ctx, p.LocalDSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx) //nolint:errcheck // the query's error counts
	var v string
	if err := c.QueryRow(ctx, sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestLifecycle(t *testing.T) {
	p := makePrimary(t)
	if !p.Ready() || p.Running() == 0 {
		t.Fatal("not running after Start")
	}
	if err := p.Start(soon(t)); err != nil {
		t.Fatalf("second Start: %v", err)
	}
	c, err := p.ControlData(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if c.State != "in production" || c.Timeline != 1 || !c.DataChecksums || c.SystemID != p.SystemID() || c.InBackupHistory {
		t.Errorf("control data %+v, system id %s", c, p.SystemID())
	}
	if got := text(t, p, "SELECT datcollate || ' ' || pg_encoding_to_char(encoding) FROM pg_database WHERE datname = 'postgres'"); got != "C.UTF-8 UTF8" {
		t.Errorf("locale %q", got)
	}
	changed, err := p.WriteSettings(DevSettings().With(Settings{"fsync": "off", "synchronous_standby_names": "", "work_mem": "7MB"}))
	if err != nil || !changed {
		t.Fatalf("WriteSettings: %v, %v", changed, err)
	}
	if err := p.Stop(soon(t), StopFast); err != nil {
		t.Fatal(err)
	}
	if e, ok := p.LastExit(); !ok || e.Status != "exit status 0" {
		t.Errorf("exit %+v, %v", e, ok)
	}
	if err := p.Stop(soon(t), StopFast); err != nil {
		t.Errorf("second Stop: %v", err)
	}
	if err := p.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	if got := text(t, p, "SHOW work_mem"); got != "7MB" {
		t.Errorf("work_mem %s", got)
	}
}

// A supervisor that was killed leaves a running server: the next one takes it over and can stop it.
func TestAdopt(t *testing.T) {
	first := makePrimary(t)
	pid := first.Running()
	first.Close()
	second := open(t, first.cfg)
	if ok, err := second.Adopt(); err != nil || !ok || second.Running() != pid {
		t.Fatalf("Adopt: %v, %v, pid %d, want %d", ok, err, second.Running(), pid)
	}
	if got := text(t, second, "SELECT 'up'"); got != "up" {
		t.Error(got)
	}
	if err := second.Stop(soon(t), StopFast); err != nil {
		t.Fatal(err)
	}
	third := open(t, first.cfg)
	if ok, err := third.Adopt(); err != nil || ok {
		t.Fatalf("Adopt of a stopped server: %v, %v", ok, err)
	}
}

// A postmaster that is killed alone leaves children in process groups of their own, and its lock files.
func TestStartAfterPostmasterKilled(t *testing.T) {
	p := makePrimary(t)
	pid := p.Running()
	frozen, err := processesIn(p.DataDir(), servers)
	if err != nil || len(frozen) < 4 {
		t.Fatalf("processes %v, %v", frozen, err)
	}
	for _, child := range frozen { // stopped children outlive the postmaster until each is killed
		if child != pid {
			if err := unix.Kill(child, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Exited():
	case <-soon(t).Done():
		t.Fatal("the exit was not seen")
	}
	if e, _ := p.LastExit(); e.Status != "signal: killed" {
		t.Errorf("exit %+v", e)
	}
	if left, _ := processesIn(p.DataDir(), servers); len(left) == 0 {
		t.Fatal("the test is void: no child outlived the postmaster")
	}
	if err := p.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	if p.Running() == pid {
		t.Error("same process")
	}
	now, err := processesIn(p.DataDir(), servers)
	if err != nil {
		t.Fatal(err)
	}
	for _, old := range frozen {
		for _, n := range now {
			if old == n {
				t.Errorf("process %d of the old server lives", old)
			}
		}
	}
}

// A pid file whose number belongs to a process that is no postmaster of this directory must not stop a start.
func TestStalePIDFile(t *testing.T) {
	p := makePrimary(t)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(p.DataDir(), "postmaster.pid")
	if err := os.WriteFile(path, []byte("1\n"+p.DataDir()+"\n0\n5432\n\n\n\nready\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.cfg.Account.Own(path); err != nil {
		t.Fatal(err)
	}
	if ok, err := p.Adopt(); err != nil || ok {
		t.Fatalf("adopted process 1: %v", err)
	}
	if err := p.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
}

func TestReplicaAndPromotion(t *testing.T) {
	primary := makePrimary(t)
	for _, sql := range []string{
		"CREATE ROLE repl LOGIN REPLICATION PASSWORD 'it''s: a \\secret'",
		"SELECT pg_create_physical_replication_slot('b', true)",
		"CREATE TABLE t AS SELECT 42 AS v",
		"ALTER SYSTEM SET work_mem = '9MB'",
	} {
		execute(t, primary, sql)
	}
	replica := open(t, place(t))
	if err := replica.Prepare(); err != nil {
		t.Fatal(err)
	}
	pass, err := replica.WritePassfile("repl", `it's: a \secret`)
	if err != nil {
		t.Fatal(err)
	}
	source := "host=" + primary.Host() + " port=" + portText(primary) + " user=repl"
	wrong := BackupOptions{Source: source, Passfile: "/nonexistent", Slot: "b", NoSync: true}
	if err := replica.BaseBackup(soon(t), wrong); err == nil || replica.HasData() {
		t.Fatalf("a base backup without a password: %v, data %v", err, replica.HasData())
	}
	if err := replica.BaseBackup(soon(t), BackupOptions{Source: source, Passfile: pass, Slot: "b", NoSync: true}); err != nil {
		t.Fatal(err)
	}
	if !replica.IsStandby() || replica.SystemID() != primary.SystemID() {
		t.Fatalf("standby %v, system ids %s %s", replica.IsStandby(), replica.SystemID(), primary.SystemID())
	}
	_, err = replica.WriteSettings(DevSettings().With(Settings{
		"fsync": "off", "synchronous_standby_names": "", "primary_slot_name": "b",
		"primary_conninfo": source + " passfile=" + pass + " application_name=b",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if err := replica.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	if got := text(t, replica, "SELECT v::text || pg_is_in_recovery() FROM t"); got != "42true" {
		t.Errorf("replica says %s", got)
	}
	if got := text(t, replica, "SHOW work_mem"); got == "9MB" {
		t.Error("ALTER SYSTEM of the primary came with the backup")
	}
	if err := replica.Promote(soon(t)); err != nil {
		t.Fatal(err)
	}
	if got := text(t, replica, "SELECT pg_is_in_recovery()::text"); got != "false" {
		t.Errorf("in recovery after Promote: %s", got)
	}
	if err := replica.Promote(soon(t)); err != nil {
		t.Errorf("second Promote: %v", err)
	}
}

func execute(t *testing.T, p *Instance, sql string) {
	t.Helper()
	ctx := soon(t)
	c, err := pgx.Connect(ctx, p.LocalDSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx) //nolint:errcheck // the statement's error counts
	if _, err := c.Exec(ctx, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func portText(p *Instance) string {
	_, port, _ := net.SplitHostPort(p.Address())
	return port
}

// A server that can't start says why, at once.
func TestStartFailure(t *testing.T) {
	p := open(t, place(t))
	if err := p.Start(soon(t)); err == nil {
		t.Fatal("started without data")
	}
	if err := p.Init(soon(t), InitOptions{NoSync: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.WriteSettings(Settings{"shared_buffers": "nonsense"}); err != nil {
		t.Fatal(err)
	}
	err := p.Start(soon(t))
	if err == nil || !strings.Contains(p.LogTail(20), "shared_buffers") {
		t.Fatalf("Start: %v; log %s", err, p.LogTail(20))
	}
}

// A supervisor killed in the middle of a base backup leaves pg_basebackup running: it must not write into the next one.
func TestLeftoverCopy(t *testing.T) {
	p := open(t, place(t))
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() //nolint:errcheck // nothing was served
	if err := p.Prepare(); err != nil {
		t.Fatal(err)
	}
	dir := p.DataDir() + ".new"
	if err := p.cfg.Account.MakeDir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(silent.Addr().String())
	orphan := p.command(soon(t), "pg_basebackup", "-D", dir, "-d", "host=127.0.0.1 user=u port="+port)
	orphan.Dir = dir
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	if left, err := processesIn(dir, fills); err != nil || len(left) != 1 {
		t.Fatalf("the test is void: %v, %v", left, err)
	}
	if err := p.Init(soon(t), InitOptions{NoSync: true}); err != nil {
		t.Fatal(err)
	}
	if err := orphan.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the orphan: %v", err)
	}
}

// A server that was started at another port is known as moved.
func TestMoved(t *testing.T) {
	p := makePrimary(t)
	if p.Moved() {
		t.Error("moved without a move")
	}
	cfg := place(t)
	cfg.Dir = p.cfg.Dir
	other := open(t, cfg)
	if ok, err := other.Adopt(); err != nil || !ok || !other.Moved() {
		t.Errorf("adopted %v, %v, moved %v", ok, err, other.Moved())
	}
}

func TestBetterInstallation(t *testing.T) {
	whole, newer := Installation{Major: 15}, Installation{Major: 18, Missing: []string{"pg_basebackup"}}
	if !whole.betterThan(newer) || newer.betterThan(whole) || !newer.betterThan(Installation{}) || newer.CheckTools() == nil {
		t.Error("an incomplete installation is preferred")
	}
}

func TestRotateLog(t *testing.T) {
	cfg := place(t)
	cfg.LogMaxBytes = 10
	p := open(t, cfg)
	if err := p.RotateLog(); err != nil {
		t.Fatalf("without a log: %v", err)
	}
	for _, step := range []struct{ write, log, old string }{
		{"short", "short", ""}, {"longer than ten", "", "longer than ten"}, {"again short", "", "again short"},
	} {
		if err := os.WriteFile(p.LogFile(), []byte(step.write), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := p.RotateLog(); err != nil {
			t.Fatal(err)
		}
		log, _ := os.ReadFile(p.LogFile())
		old, _ := os.ReadFile(p.LogFile() + ".1")
		if string(log) != step.log || string(old) != step.old {
			t.Errorf("after %q: log %q, old %q", step.write, log, old)
		}
	}
}

func TestSocketDirShort(t *testing.T) {
	long := "/" + strings.Repeat("d", 120)
	p, err := New(Config{Dir: long, Port: 65535})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(filepath.Join(p.SocketDir(), ".s.PGSQL.65535")); n > maxSocketPath {
		t.Errorf("socket path of %d bytes", n)
	}
	other, err := New(Config{Dir: long + "x", Port: 65535})
	if err != nil {
		t.Fatal(err)
	}
	if other.SocketDir() == p.SocketDir() {
		t.Error("two servers share a socket directory")
	}
}

func TestCheckReach(t *testing.T) {
	dir := t.TempDir() // its parent is closed to others
	if os.Geteuid() != 0 {
		t.Skip("only root changes accounts")
	}
	a, err := LookupAccount("")
	if err != nil {
		t.Skip(err)
	}
	if err := a.CheckReach(filepath.Join(dir, "data")); err == nil {
		t.Error("a directory below a closed one counts as reachable")
	}
	if err := a.CheckReach("/usr/lib/x"); err != nil {
		t.Error(err)
	}
}

func TestParseVersion(t *testing.T) {
	for out, want := range map[string]int{
		"postgres (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)\n": 15, "postgres (PostgreSQL) 18beta1": 18,
		"postgres (PostgreSQL) 17.10": 17, "nonsense": 0, "postgres (PostgreSQL) x": 0,
	} {
		_, got, err := parseVersion(out)
		if got != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %d, %v", out, got, err)
		}
	}
}

func TestSettingsRender(t *testing.T) {
	got := string(Settings{"b": "it's", "a": "1"}.With(Settings{"a": "2"}).render())
	want := "# Written by neki; changes here are lost. Use neki.set_parameter().\na = '2'\nb = 'it''s'\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestQuoteConninfo(t *testing.T) {
	for in, want := range map[string]string{"plain": "plain", "": "''", `a b`: `'a b'`, `it's\`: `'it\'s\\'`} {
		if got := quoteConninfo(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}
