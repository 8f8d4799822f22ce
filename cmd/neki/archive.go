package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"neki/cluster/admin"
	"neki/cluster/agent"
	"neki/cluster/backup"
	"neki/cluster/pgproc"
	"neki/settings"
)

// firstBackup is how long a cluster has served before its first backup by schedule.
const firstBackup = 20 * time.Second

// walCommands are what Postgres calls to archive a file of WAL and to get one back. They speak to the agent's socket.
func walCommands() []*cli.Command {
	return []*cli.Command{
		walCommand("wal-push", "SOCKET FILE", 2, func(ctx context.Context, args []string) error {
			return backup.SendWAL(ctx, args[0], args[1])
		}),
		walCommand("wal-fetch", "SOCKET NAME FILE", 3, func(ctx context.Context, args []string) error {
			return backup.ReceiveWAL(ctx, args[0], args[1], args[2])
		}),
	}
}

func walCommand(name, args string, count int, run func(context.Context, []string) error) *cli.Command {
	return &cli.Command{
		Name: name, Hidden: true, ArgsUsage: args, Usage: "called by Postgres: archive_command, restore_command",
		Action: func(c *cli.Context) error {
			if c.Args().Len() != count {
				return usagef("neki %s takes %s", name, args)
			}
			return run(c.Context, c.Args().Slice())
		},
	}
}

// openArchive opens the place for backups that a configuration names; without one there is none.
func openArchive(cfg settings.Backup, account pgproc.Account, dir string) (agent.Archive, error) {
	var store backup.Store
	var err error
	var backrest *backup.PgBackRestConfig
	switch {
	case cfg.PgBackRest.Used():
		backrest = &backup.PgBackRestConfig{Program: cfg.PgBackRest.Program, Options: cfg.PgBackRest.Options}
		if err = backrest.Check(); err == nil {
			err = ownRepository(account, cfg.PgBackRest.Options)
		}
	case cfg.Directory != "":
		store, err = backup.NewDirStore(cfg.Directory)
	case cfg.S3 != (settings.S3{}):
		store, err = openS3(cfg.S3)
	default:
		return agent.Archive{}, nil
	}
	if err != nil {
		return agent.Archive{}, err
	}
	program, err := ownProgram(account, dir)
	return agent.Archive{Store: store, PgBackRest: backrest, Program: program, MaxRate: int64(cfg.MaxRate) << 20, Incremental: cfg.Incremental}, err
}

// ownRepository makes the directory of a pgBackRest repository on disk, which the program writes as the servers' account.
func ownRepository(account pgproc.Account, options map[string]string) error {
	if kind := options["repo1-type"]; kind != "" && kind != "posix" || options["repo1-host"] != "" {
		return nil
	}
	if _, err := os.Stat(options["repo1-path"]); err == nil {
		return nil
	}
	return account.MakeDir(options["repo1-path"], 0o750)
}

func openS3(cfg settings.S3) (*backup.S3Store, error) {
	secret := ""
	if cfg.SecretKeyFile != "" {
		text, err := os.ReadFile(cfg.SecretKeyFile)
		if err != nil {
			return nil, fmt.Errorf("backup.s3.secret-key-file: %w", err)
		}
		secret = strings.TrimSpace(string(text))
	}
	return backup.NewS3Store(backup.S3Config{
		Endpoint: cfg.Endpoint, Bucket: cfg.Bucket, Prefix: cfg.Prefix, Region: cfg.Region, AccessKey: cfg.AccessKey, SecretKey: secret, CA: cfg.CA,
	})
}

func backupPolicy(cfg settings.Backup) (admin.BackupPolicy, error) {
	interval, retention, err := cfg.Times()
	off := cfg.Directory == "" && cfg.S3 == (settings.S3{}) && !cfg.PgBackRest.Used()
	return admin.BackupPolicy{Off: off, Interval: interval, Retention: retention, First: firstBackup}, err
}

// replaceAfter is the parameter as package admin takes it: never is less than 0 there.
func replaceAfter(values settings.Parameters) time.Duration {
	if values.ReplaceAfter == 0 {
		return -1
	}
	return values.ReplaceAfter
}

// ownProgram gives the path of this program where the servers' account can run it: where it is, or a copy in dir.
func ownProgram(account pgproc.Account, dir string) (string, error) {
	self, err := exec.LookPath(os.Args[0]) // not os.Executable: the name that it was called by may decide what it does
	if err != nil {
		if self, err = os.Executable(); err != nil {
			return "", err
		}
	}
	if self, err = filepath.Abs(self); err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(self)
	if err != nil {
		return "", err
	}
	st, err := os.Stat(real)
	if err != nil {
		return "", err
	}
	const allMayRun = 0o005
	if account.CheckReach(self) == nil && account.CheckReach(real) == nil && st.Mode().Perm()&allMayRun == allMayRun {
		return self, nil
	}
	path := filepath.Join(dir, "bin", "neki")
	if have, err := os.Stat(path); err == nil && have.Size() == st.Size() && !have.ModTime().Before(st.ModTime()) {
		return path, nil
	}
	if err := makeOpenDir(filepath.Dir(path)); err != nil {
		return "", err
	}
	return path, copyProgram(real, path)
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // opened for reading
	tmp := to + ".new"
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return fmt.Errorf("copy the program to %s: %w", to, err)
	}
	if err := out.Close(); err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o755); err != nil { // whatever the umask
		return err
	}
	return os.Rename(tmp, to)
}
