package testpg

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/cluster/pgproc"
)

// base is the template that servers are copied from.
type base struct {
	installation pgproc.Installation
	account      pgproc.Account
	dataDir      string
}

var oneTemplate = sync.OnceValues(makeTemplate)

// template finds or makes the template, once per process; it skips the test where there is no Postgres.
func template(tb testing.TB) *base {
	tb.Helper()
	b, err := oneTemplate()
	if errors.Is(err, pgproc.ErrNoBinaries) {
		tb.Skip("testpg: no PostgreSQL server binaries")
	}
	if err != nil {
		tb.Fatalf("testpg: template: %v", err)
	}
	return b
}

// Installation gives the binaries and the account that servers run with; it skips the test where there are none.
func Installation(tb testing.TB) (pgproc.Installation, pgproc.Account) {
	tb.Helper()
	b := template(tb)
	return b.installation, b.account
}

func makeTemplate() (*base, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	inst, err := pgproc.FindInstallation(ctx, os.Getenv("NEKI_TEST_PGBIN"), 0)
	if err != nil {
		return nil, err
	}
	account, err := pgproc.LookupAccount("")
	if err != nil {
		return nil, err
	}
	sweep(inst, account)
	dir, err := templateDir(inst)
	if err != nil {
		return nil, err
	}
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	// The server for the template lies beside it until it is finished; a crash leaves no half template.
	data, work := filepath.Join(dir, "data"), filepath.Join(dir, "work")
	b := &base{installation: inst, account: account, dataDir: data}
	if _, err := os.Stat(filepath.Join(data, "PG_VERSION")); err == nil {
		return b, nil
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p, err := pgproc.New(pgproc.Config{Installation: inst, Account: account, Dir: work, Port: port})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if err := errors.Join(p.Kill(), os.RemoveAll(work)); err != nil {
		return nil, err
	}
	if err := fillTemplate(ctx, p); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, p.LogTail(10))
	}
	return b, os.Rename(p.DataDir(), data)
}

// fillTemplate makes a cluster whose superuser has a password.
func fillTemplate(ctx context.Context, p *pgproc.Instance) (err error) {
	if err := p.Init(ctx, pgproc.InitOptions{NoSync: true}); err != nil {
		return err
	}
	if _, err := p.WriteSettings(pgproc.Settings{
		// A replica refuses to start below the figures that its template was shut down with.
		"fsync": "off", "max_connections": "8", "max_wal_senders": "2", "max_locks_per_transaction": "10",
		"max_worker_processes": "2", "superuser_reserved_connections": "1",
	}); err != nil {
		return err
	}
	if _, err := p.WriteHBA([]pgproc.HBARule{"local all all trust"}); err != nil {
		return err
	}
	if err := p.Start(ctx); err != nil {
		return err
	}
	defer func() {
		if serr := p.Stop(ctx, pgproc.StopFast); err == nil {
			err = serr
		}
	}()
	c, err := pgx.Connect(ctx, p.LocalDSN("postgres"))
	if err != nil {
		return err
	}
	defer c.Close(ctx) //nolint:errcheck // the statement's error counts
	_, err = c.Exec(ctx, "ALTER ROLE "+Superuser+" PASSWORD '"+Password+"'")
	return err
}

// templateDir is one directory per user, version and place of the binaries.
func templateDir(inst pgproc.Installation) (string, error) {
	h := fnv.New32a()
	_, _ = fmt.Fprint(h, "4 ", inst.BinDir, inst.Version) // the number changes with the template's making
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("neki-testpg-%d-%d-%08x", os.Getuid(), inst.Major, h.Sum32()))
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return "", err
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(dir, &st); err != nil {
		return "", err
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR || int(st.Uid) != os.Getuid() {
		return "", fmt.Errorf("%s belongs to somebody else", dir)
	}
	return dir, nil
}

// lock keeps test processes from making the template at the same time.
func lock(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}
