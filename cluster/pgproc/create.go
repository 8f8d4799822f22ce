package pgproc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultLocale sorts by code point, the same on every machine and version: shards must agree on order.
const DefaultLocale = "C.UTF-8"

// InitOptions are the choices of a new database cluster that can't be changed later.
type InitOptions struct {
	Locale string // DefaultLocale when empty
	NoSync bool   // for tests: don't flush to disk
}

// Init makes a new database cluster unless there is one. It has data checksums, UTF8, and Superuser as superuser,
// without a password: he gets in over the Unix socket only.
func (p *Instance) Init(ctx context.Context, o InitOptions) error {
	if o.Locale == "" {
		o.Locale = DefaultLocale
	}
	return p.create(o.NoSync, func(dir string) error {
		_, err := p.runIn(ctx, dir, "initdb", "--pgdata="+dir, "--username="+Superuser, "--encoding=UTF8", "--locale="+o.Locale,
			"--data-checksums", "--auth-local=trust", "--auth-host=scram-sha-256", "--no-sync", "--no-instructions")
		return err
	})
}

// BackupOptions say where a base backup comes from.
type BackupOptions struct {
	Source   string // connection string of the source, a role with REPLICATION
	Passfile string
	Slot     string // an existing physical slot that keeps the WAL meanwhile; "" uses a temporary one
	NoSync   bool
	// Progress is told, each second, how many bytes of how many are copied.
	Progress func(done, total int64)
}

// BaseBackup fills an empty data directory from a running server, with all WAL that it needs. The result has
// standby.signal: a copy must never start as a second primary. An interrupted copy leaves nothing that counts as data.
func (p *Instance) BaseBackup(ctx context.Context, o BackupOptions) error {
	return p.create(o.NoSync, func(dir string) error {
		args := []string{
			"--pgdata=" + dir, "--dbname=" + o.Source, "--format=plain", "--wal-method=stream",
			"--checkpoint=fast", "--no-sync", "--no-password", "--label=neki replica", "--progress",
		}
		if o.Slot != "" {
			args = append(args, "--slot="+o.Slot)
		}
		cmd := p.command(ctx, "pg_basebackup", args...)
		cmd.Dir = dir
		cmd.Env = append(cmd.Env, "PGPASSFILE="+o.Passfile)
		if err := runWithProgress(ctx, cmd, o.Progress); err != nil {
			return err
		}
		return p.writeOwned(filepath.Join(dir, "standby.signal"), nil)
	})
}

// Restore fills an empty data directory by unpack, which is given a new directory and leaves in it what a base backup
// does. The result has standby.signal, as that of BaseBackup.
func (p *Instance) Restore(noSync bool, unpack func(dir string) error) error {
	return p.create(noSync, func(dir string) error {
		if err := unpack(dir); err != nil {
			return err
		}
		return p.writeOwned(filepath.Join(dir, "standby.signal"), nil)
	})
}

// Combine makes one data directory, which is there and empty, of a base backup and the incremental ones after it. moves gives the
// new place of each tablespace. Restore and Fill call what calls it.
func (p *Instance) Combine(ctx context.Context, chain []string, into string, moves map[string]string) error {
	args := []string{"--no-sync", "--output=" + into}
	for _, from := range slices.Sorted(maps.Keys(moves)) {
		args = append(args, "--tablespace-mapping="+from+"="+moves[from])
	}
	_, err := p.runIn(ctx, into, "pg_combinebackup", append(args, chain...)...)
	return err
}

// CopyData fills an empty data directory with a copy of another, stopped, one. Tests start from a template so.
func (p *Instance) CopyData(ctx context.Context, from string) error {
	return p.create(true, func(dir string) error {
		cmd := p.command(ctx, "cp", "-a", "--reflink=auto", from+"/.", dir)
		cmd.Path, cmd.Dir = "/bin/cp", dir
		_, err := runCommand(ctx, cmd)
		return err
	})
}

// create runs fill on a new directory beside the data directory, flushes it and gives it its name.
func (p *Instance) create(noSync bool, fill func(dir string) error) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.HasData() {
		return nil
	}
	if err := p.Prepare(); err != nil {
		return err
	}
	dir := p.DataDir() + ".new"
	// A supervisor that was killed may have left the program that was filling it: it would go on in ours.
	if err := killAll(dir, fills); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(dir), os.RemoveAll(dir+".chain")); err != nil { // the latter is an incremental restore's
		return err
	}
	if err := p.cfg.Account.MakeDir(dir, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	if err := fill(dir); err != nil {
		return err
	}
	if err := p.includeSettings(dir); err != nil {
		return err
	}
	if !noSync {
		if err := syncFilesystem(dir); err != nil {
			return err
		}
	}
	if err := os.Remove(p.DataDir()); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("the data directory is neither empty nor a database cluster: %w", err)
	}
	if err := os.Rename(dir, p.DataDir()); err != nil {
		return err
	}
	if noSync {
		return nil
	}
	return syncDir(p.cfg.Dir)
}

// includeSettings makes postgresql.conf end with our file, and drops what ALTER SYSTEM left in a copied directory:
// that file is read after ours, and another member's settings are not this one's.
func (p *Instance) includeSettings(dir string) error {
	path := filepath.Join(dir, "postgresql.conf")
	conf, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	line := "include_if_exists = '" + SettingsFile + "'"
	if !strings.Contains(string(conf), line) {
		conf = append(conf, "\n"+line+"\n"...)
		if err := p.writeOwned(path, conf); err != nil {
			return err
		}
	}
	return p.writeOwned(filepath.Join(dir, "postgresql.auto.conf"), nil)
}

// writeOwned writes a file of a directory that is flushed as a whole later.
func (p *Instance) writeOwned(path string, content []byte) error {
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	return p.cfg.Account.Own(path)
}

// syncFilesystem flushes all of a new directory's files with one call, instead of a thousand.
func syncFilesystem(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // opened for reading
	return unix.Syncfs(int(d.Fd()))
}

// Rewind brings the data directory of a stopped server in line with a running one's, whose timeline it left, and makes a
// standby of it. The source is a connection string of a role that may read its files. Configuration files come from the
// source: the caller writes its own. When it fails the data directory may be of no use any more.
func (p *Instance) Rewind(ctx context.Context, source string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkStopped(); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(p.DataDir(), "standby.signal")); err != nil && !os.IsNotExist(err) {
		return err
	}
	if _, err := p.run(ctx, "pg_rewind", "-D", p.DataDir(), "--source-server="+source); err != nil {
		return err
	}
	if err := p.includeSettings(p.DataDir()); err != nil {
		return err
	}
	if err := p.writeOwned(filepath.Join(p.DataDir(), "standby.signal"), nil); err != nil {
		return err
	}
	return syncFilesystem(p.DataDir())
}

// Wipe removes the data directory, for a restore. The server must be stopped.
func (p *Instance) Wipe() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkStopped(); err != nil {
		return err
	}
	return os.RemoveAll(p.DataDir())
}

// checkStopped fails while the server runs, and ends what an earlier one has left. The caller holds mu.
func (p *Instance) checkStopped() error {
	if pr := p.process.Load(); pr != nil && pr.alive() {
		return fmt.Errorf("the server is running")
	}
	return p.killLeftovers()
}

// Fill has a function fill an empty data directory, which appears whole or not at all; noSync leaves it unflushed.
func (p *Instance) Fill(noSync bool, fill func(dir string) error) error {
	return p.create(noSync, fill)
}
