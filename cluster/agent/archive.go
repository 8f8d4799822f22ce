package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"neki/catalog"
	"neki/cluster/backup"
	"neki/cluster/pgproc"
)

// Archive says where an agent keeps its shard's backups and WAL. Without a Store and PgBackRest there is neither.
type Archive struct {
	Store      backup.Store
	PgBackRest *backup.PgBackRestConfig // instead of a Store
	// Program is neki's own, in a place where the server's account can run it: Postgres calls its wal-push and wal-fetch.
	Program string
	MaxRate int64 // bytes per second that a base backup reads; 0 = no bound
	// Incremental is how many incremental backups may follow a full one, with PostgreSQL 17 and newer; 0 = all are full.
	Incremental int
}

// on tells whether there is an archive at all.
func (c *Archive) on() bool { return c.Store != nil || c.PgBackRest != nil }

// Times of the archive.
const (
	archiveTimeout = "60s"           // a segment that is not full is archived after this
	complainEvery  = time.Minute     // between events that tell of failures
	eventLimit     = 5 * time.Second // to write one
	limitRead      = 2 * time.Second // of the rule and the history, before a fetch
)

// archiver is the archive's part of an agent.
type archiver struct {
	mu       sync.Mutex
	failing  time.Time  // since when pushes fail; zero: they don't
	said     time.Time  // when an event told of it
	conflict string     // the last file that the archive holds with other content
	taking   sync.Mutex // held while a base backup is taken ...

	recovering sync.Mutex // ... and while data of a point in time is made
}

func (a *Agent) walSocket() string { return filepath.Join(a.pg.SocketDir(), "wal.sock") }

// repository is the shard's, for the system that the data directory holds.
func (a *Agent) repository() (backup.Engine, error) {
	id := a.pg.SystemID()
	if !a.cfg.Archive.on() {
		return nil, fmt.Errorf("node %s has no place for backups", a.cfg.Node)
	}
	if id == "" {
		return nil, fmt.Errorf("node %s is empty", a.cfg.Node)
	}
	return a.RepositoryOf(id), nil
}

// RepositoryOf is the shard's repository of a database system; nil when the agent keeps no backups.
func (a *Agent) RepositoryOf(systemID string) backup.Engine {
	if !a.cfg.Archive.on() {
		return nil
	}
	if c := a.cfg.Archive.PgBackRest; c != nil {
		return backup.NewPgBackRest(*c, a.pg, a.cfg.Cluster, a.cfg.Shard, systemID, a.log)
	}
	return backup.NewRepository(a.cfg.Archive.Store, a.cfg.Cluster, a.cfg.Shard, systemID, a.log)
}

// archiveSettings has the primary archive. archive_mode takes effect with the server's next start.
func (a *Agent) archiveSettings() pgproc.Settings {
	if !a.cfg.Archive.on() {
		return pgproc.Settings{"archive_mode": "off"}
	}
	s := pgproc.Settings{
		"archive_mode": "on", "archive_timeout": archiveTimeout,
		"archive_command": a.walCommand("wal-push", "%p"),
	}
	if a.cfg.Archive.PgBackRest != nil {
		s["archive_command"] += " # pgbackrest looks for its name here before it takes a backup"
	} else if a.incremental() {
		s["summarize_wal"] = "on"
	}
	return s
}

// incremental tells whether backups may be incremental ones.
func (a *Agent) incremental() bool {
	return a.cfg.Archive.Incremental > 0 && (a.cfg.Archive.PgBackRest != nil || a.cfg.Installation.Major >= backup.IncrementalMajor)
}

// restoreCommand is what a standby fetches WAL from the archive with; "" when there is none.
func (a *Agent) restoreCommand() string {
	if !a.cfg.Archive.on() {
		return ""
	}
	return a.walCommand("wal-fetch", "%f", "%p")
}

func (a *Agent) walCommand(verb string, args ...string) string {
	return backup.Command(a.cfg.Archive.Program, verb, a.walSocket(), args...)
}

// startArchive serves the archive. It ends after the rest of the agent: a server that stops archives what it has left.
func (a *Agent) startArchive(ctx context.Context) (stop func(), err error) {
	if !a.cfg.Archive.on() {
		return func() {}, nil
	}
	l, err := backup.ListenCourier(a.walSocket(), a.cfg.Account.Own)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var serving sync.WaitGroup
	serving.Go(func() {
		c := backup.Courier{Push: a.pushWAL, Fetch: a.fetchWAL, Log: a.log}
		if err := c.Serve(ctx, l); err != nil {
			a.log.Error("WAL is not archived any more", "error", err)
		}
	})
	return func() { cancel(); serving.Wait() }, nil
}

func (a *Agent) pushWAL(ctx context.Context, name string, content []byte) error {
	r, err := a.repository()
	if err == nil {
		err = r.PushContent(ctx, name, content)
	}
	a.noteArchived(ctx, name, err)
	return err
}

// noteArchived records when archiving begins to fail, and when it works again.
func (a *Agent) noteArchived(ctx context.Context, name string, err error) {
	now := time.Now()
	s := &a.archiver
	var e catalog.Event
	s.mu.Lock()
	switch {
	case errors.Is(err, backup.ErrDifferent):
		if s.conflict != name {
			e.Kind, e.Detail = "archive_conflict", fmt.Sprintf("%s: %v; nothing was overwritten", name, err)
		}
		s.conflict = name
	case err != nil:
		if s.failing.IsZero() {
			s.failing = now
		}
		if now.Sub(s.said) > complainEvery {
			s.said = now
			e.Kind, e.Detail = "archive_failed", fmt.Sprintf("%s is not archived, and kept until it is: %v", name, err)
		}
	case !s.failing.IsZero():
		if !s.said.Before(s.failing) {
			e.Kind, e.Detail, e.Duration = "archive_works", name+" is archived", now.Sub(s.failing)
		}
		s.failing = time.Time{}
	}
	s.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		a.log.Warn("WAL not archived", "file", name, "error", err)
	}
	if e.Kind != "" {
		a.record(ctx, e)
	}
}

// record writes an event; that it can't be written must not stop what it tells of.
func (a *Agent) record(ctx context.Context, e catalog.Event) {
	e.Shard, e.Node, e.By = a.cfg.Shard, a.cfg.Node, "agent "+a.cfg.Node
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventLimit)
	defer cancel()
	if _, err := catalog.AppendEvent(ctx, a.cfg.Store, a.cfg.Cluster, e); err != nil {
		a.log.Warn("event not recorded", "kind", e.Kind, "detail", e.Detail, "error", err)
	}
}

// fetchWAL gives a file of the archive, if it belongs to the history that the shard's present rule is of.
func (a *Agent) fetchWAL(ctx context.Context, name string) (io.ReadCloser, error) {
	r, err := a.repository()
	if err != nil {
		return nil, err
	}
	limit, err := a.walLimit(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("which history %s must belong to is not known: %w", name, err)
	}
	return r.OpenWAL(ctx, name, limit)
}

func (a *Agent) walLimit(ctx context.Context, r backup.Engine) (backup.Limit, error) {
	ctx, cancel := context.WithTimeout(ctx, limitRead)
	defer cancel()
	rule, err := catalog.GetRule(ctx, a.cfg.Store, a.cfg.Cluster, a.cfg.Shard)
	if err != nil {
		return backup.Limit{}, err
	}
	return r.LimitOf(ctx, rule.Timeline)
}
