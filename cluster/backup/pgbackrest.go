package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"neki/cluster/pgproc"
	"neki/internal/pgerr"
)

// PgBackRestConfig is what an agent must know to leave backups and WAL to pgBackRest.
type PgBackRestConfig struct {
	Program string            // "" = pgbackrest of PATH
	Options map[string]string // of its configuration's section global, by its own names: repo1-path, repo1-type ...
}

// reservedOptions begin the names of options that are not the configuration's to set: what is backed up is the agent's instance, and
// what is kept the admin's to say.
var reservedOptions = []string{"pg", "stanza", "config", "lock-path", "archive-async", "spool-path", "repo1-retention", "annotation", "set", "type"}

// Check refuses options that can't be given to pgBackRest.
func (c *PgBackRestConfig) Check() error {
	if c.Options["repo1-path"] == "" {
		return pgerr.New(pgerr.InvalidParameterValue, "repo1-path is missing").WithHint("Name the directory, in the bucket or on disk, where pgBackRest keeps its repository.")
	}
	for name, value := range c.Options {
		if name == "" || strings.ContainsAny(name, "\n[]= ") || strings.Contains(value, "\n") {
			return pgerr.New(pgerr.InvalidParameterValue, "option %q is none of pgBackRest", name)
		}
		for _, own := range reservedOptions {
			if strings.HasPrefix(name, own) {
				return pgerr.New(pgerr.InvalidParameterValue, "option %q is set by neki", name).WithHint("Leave it out.")
			}
		}
	}
	return nil
}

// PgBackRest keeps a shard's backups and WAL by the program of that name, in a repository of its own making: one stanza for each
// database system. Each call runs the program under the server's account. It is safe for concurrent use.
//
// Manual: https://pgbackrest.org/command.html
type PgBackRest struct {
	cfg      PgBackRestConfig
	pg       *pgproc.Instance // whose data directory is backed up, and whose servers read the archive
	cluster  string
	shard    string
	systemID string
	log      *slog.Logger
}

// NewPgBackRest gives a shard's part of a repository; nothing is touched yet.
func NewPgBackRest(cfg PgBackRestConfig, pg *pgproc.Instance, cluster, shard, systemID string, log *slog.Logger) *PgBackRest {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if cfg.Program == "" {
		cfg.Program = "pgbackrest"
	}
	return &PgBackRest{cfg: cfg, pg: pg, cluster: cluster, shard: shard, systemID: systemID, log: log}
}

// Names and codes of pgBackRest.
const (
	annotationID    = "neki-id"
	annotationNode  = "neki-node"
	exitNotFound    = 1  // of archive-get
	exitDifferent   = 45 // archive-push: the archive holds another file of that name
	exitFileMissing = 55 // the stanza is not there yet
	exitRepoInvalid = 103
	keepAllOfThem   = "9999999" // what is removed is said one by one
)

func (p *PgBackRest) stanza() string { return p.cluster + "-" + p.shard + "-" + p.systemID }

func (p *PgBackRest) dir() string { return filepath.Join(p.pg.Dir(), "pgbackrest") }

// configure writes the stanza's configuration, and gives its path.
func (p *PgBackRest) configure() (string, error) {
	account := p.pg.Account()
	for _, dir := range []string{p.dir(), filepath.Join(p.dir(), "lock"), filepath.Join(p.dir(), "spool")} {
		if err := account.MakeDir(dir, 0o700); err != nil {
			return "", err
		}
	}
	var b bytes.Buffer
	b.WriteString("# Written by neki; changes here are lost.\n[global]\n")
	options := map[string]string{"log-level-file": "off", "log-level-console": "warn", "compress-level": "1", "start-fast": "y", "archive-timeout": "60"}
	maps.Copy(options, p.cfg.Options)
	options["lock-path"], options["repo1-retention-full"] = filepath.Join(p.dir(), "lock"), keepAllOfThem
	for _, name := range slices.Sorted(maps.Keys(options)) {
		fmt.Fprintf(&b, "%s=%s\n", name, options[name])
	}
	fmt.Fprintf(&b, "[%s]\npg1-path=%s\npg1-port=%d\npg1-socket-path=%s\npg1-user=%s\n", p.stanza(), p.pg.DataDir(), p.pg.Port(), p.pg.SocketDir(), pgproc.Superuser)
	path := filepath.Join(p.dir(), p.stanza()+".conf")
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, b.Bytes()) {
		return path, nil
	}
	return path, pgproc.ReplaceFile(path, b.Bytes(), 0o600, account)
}

// exitError is the program's end without success.
type exitError struct {
	code int
	text string
}

func (e *exitError) Error() string {
	return fmt.Sprintf("pgbackrest ended with %d: %s", e.code, e.text)
}

func exitCode(err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	return 0
}

// endLimit is how long the program may take to end when it is told to.
const endLimit = 10 * time.Second

// run runs a command of the program and gives what it writes.
func (p *PgBackRest) run(ctx context.Context, args ...string) ([]byte, error) {
	conf, err := p.configure()
	if err != nil {
		return nil, err
	}
	var out, said bytes.Buffer
	cmd := p.pg.Account().Command(ctx, p.cfg.Program, append([]string{"--config=" + conf, "--stanza=" + p.stanza()}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &said
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = endLimit
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = &exitError{exit.ExitCode(), strings.TrimSpace(said.String() + out.String())}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%s of shard %s: %w", args[0], p.shard, err)
	}
	return out.Bytes(), nil
}

// runInStanza is run for commands that need the stanza, which the first of them makes.
func (p *PgBackRest) runInStanza(ctx context.Context, args ...string) ([]byte, error) {
	out, err := p.run(ctx, args...)
	if code := exitCode(err); code != exitFileMissing && code != exitRepoInvalid {
		return out, err
	}
	if _, err := p.run(ctx, "stanza-create", "--no-online"); err != nil {
		return nil, err
	}
	return p.run(ctx, args...)
}

// PushContent archives a file of WAL.
func (p *PgBackRest) PushContent(ctx context.Context, name string, content []byte) error {
	if _, err := p.configure(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Join(p.dir(), "spool"), "push-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is found again by nobody
	file := filepath.Join(dir, filepath.Base(name))
	if err := errors.Join(os.WriteFile(file, content, 0o600), p.pg.Account().Own(file), p.pg.Account().Own(dir)); err != nil {
		return err
	}
	return p.PushWAL(ctx, file)
}

// PushWAL archives a file of pg_wal.
func (p *PgBackRest) PushWAL(ctx context.Context, file string) error {
	_, err := p.runInStanza(ctx, "archive-push", file)
	if exitCode(err) == exitDifferent {
		return fmt.Errorf("%s: %w", filepath.Base(file), ErrDifferent)
	}
	return err
}

// OpenWAL reads a file of the archive; ErrNotExist when there is none that the limit allows.
func (p *PgBackRest) OpenWAL(ctx context.Context, name string, limit Limit) (io.ReadCloser, error) {
	if !limit.Allows(name) {
		return nil, fmt.Errorf("WAL file %s: %w", name, ErrNotExist)
	}
	if _, err := p.configure(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(filepath.Join(p.dir(), "spool"), "get-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the open file stays readable
	if err := p.pg.Account().Own(dir); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "file")
	_, err = p.run(ctx, "archive-get", name, file)
	switch exitCode(err) {
	case exitNotFound, exitFileMissing, exitRepoInvalid:
		return nil, fmt.Errorf("WAL file %s: %w", name, ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	return os.Open(file)
}

// archived lists what the archive holds.
func (p *PgBackRest) archived(ctx context.Context, size int64) (archived, error) {
	a := archived{histories: map[int32][]Ancestor{}, size: size}
	out, err := p.run(ctx, "repo-ls", "--recurse", "--output=json", path.Join("archive", p.stanza()))
	if err != nil {
		return a, err
	}
	var files map[string]struct{ Type string }
	if err := json.Unmarshal(out, &files); err != nil {
		return a, fmt.Errorf("repo-ls: %w", err)
	}
	for file := range files {
		name, _, _ := strings.Cut(path.Base(file), "-") // 00000001000000000000000A-<checksum>.gz
		if s, ok := ParseSegment(name, size); ok {
			a.segments = append(a.segments, s)
		}
		timeline, ok := parseHistoryName(name)
		if !ok {
			continue
		}
		text, err := p.history(ctx, name)
		if err != nil {
			return a, err
		}
		if a.histories[timeline], err = parseHistory(text); err != nil {
			return a, err
		}
	}
	slices.SortFunc(a.segments, compareSegments)
	return a, nil
}

func (p *PgBackRest) history(ctx context.Context, name string) (string, error) {
	in, err := p.OpenWAL(ctx, name, Limit{})
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(in, maxSmall))
	return string(text), errors.Join(err, in.Close())
}

// LimitOf is the limit of a server that is to follow the timeline, by the archive's own history file of it.
func (p *PgBackRest) LimitOf(ctx context.Context, timeline int32) (Limit, error) {
	l := Limit{Timeline: timeline}
	if timeline <= 1 {
		return l, nil
	}
	text, err := p.history(ctx, historyName(timeline))
	if err != nil {
		return l, err
	}
	l.Ancestors, err = parseHistory(text)
	return l, err
}

// Contiguous gives how far the archive reaches without a gap from the backup's start.
func (p *PgBackRest) Contiguous(ctx context.Context, b Backup, timeline int32) (Reach, error) {
	a, err := p.archived(ctx, b.SegmentSize)
	if err != nil {
		return Reach{}, err
	}
	if timeline == 0 {
		timeline = a.newest(b)
	}
	return a.reach(b, timeline), nil
}

// Missing lists those of a server's complete segments that the archive lacks, of those that come after the first one that it has.
func (p *PgBackRest) Missing(ctx context.Context, local []Segment, size int64) ([]Segment, error) {
	a, err := p.archived(ctx, size)
	if code := exitCode(err); code == exitFileMissing || code == exitRepoInvalid {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return a.missing(local), nil
}
