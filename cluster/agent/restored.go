package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"neki/cluster/backup"
	"neki/cluster/decide"
	"neki/cluster/pgproc"
	"neki/internal/pgerr"
)

// RecoverOrder has the shard's data made as it was at a point in time, for an instance of another cluster. Nothing of the
// node's own instance changes. The answer is a stream of BackupReports.
type RecoverOrder struct {
	Order
	Into     string    `json:"into"` // directory of the new cluster; the instance's is nodes/<Node> in it
	Node     string    `json:"node"` // id that the instance is to have
	SystemID string    `json:"system_id"`
	Target   time.Time `json:"target"`
	// Topology is the new cluster's, kept in Into for the one who starts it.
	Topology json.RawMessage `json:"topology,omitempty"`
}

// Files of a restored cluster.
const (
	restoredFile  = "restored.json" // beside an instance's data, until that belongs to a shard
	restoringFile = "restoring"     // while its data is being made
	// TopologyFile holds the data topology, in the directory of the cluster.
	TopologyFile = "topology.json"
)

// RestoredNode is what restored.json tells.
type RestoredNode struct {
	Shard     string           `json:"shard"`
	Target    time.Time        `json:"target"`
	Recovered backup.Recovered `json:"recovered"`
}

// seeded tells whether the data directory was made by a RecoverOrder and belongs to no shard of this cluster yet.
func (a *Agent) seeded() bool {
	_, err := os.Stat(filepath.Join(a.cfg.Dir, restoredFile))
	return err == nil && a.pg.HasData()
}

func (a *Agent) endSeed() error {
	if err := os.Remove(filepath.Join(a.cfg.Dir, restoredFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// recoverInto serves POST /v1/recover.
func (a *Agent) recoverInto(w http.ResponseWriter, req *http.Request) {
	var o RecoverOrder
	if !readBody(w, req, "recover", &o) {
		return
	}
	dir, err := a.beginRecover(o)
	if err != nil {
		writeJSON(w, http.StatusConflict, problemOf(err))
		return
	}
	defer a.archiver.recovering.Unlock()
	a.reportBackup(req.Context(), w, func(ctx context.Context, progress func(BackupReport)) (BackupReport, error) {
		done, err := a.recovered(ctx, o, dir, progress)
		return BackupReport{Restored: &done}, err
	})
}

// beginRecover checks the order and the place, and takes archiver.recovering.
func (a *Agent) beginRecover(o RecoverOrder) (dir string, err error) {
	if !a.cfg.Archive.on() {
		return "", pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s has no place for backups", a.cfg.Node)
	}
	if !filepath.IsAbs(o.Into) || o.Node == "" || o.Node != filepath.Base(o.Node) {
		return "", pgerr.New(pgerr.InvalidParameterValue, "%q is no absolute path of a directory", o.Into)
	}
	dir = filepath.Join(filepath.Clean(o.Into), "nodes", o.Node)
	if err := a.cfg.Account.CheckReach(filepath.Join(dir, "data")); err != nil {
		return "", err
	}
	if err := a.memory.accept(decide.Apply, o.Order); err != nil {
		return "", err
	}
	if !a.archiver.recovering.TryLock() {
		return "", pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s restores something already", a.cfg.Node)
	}
	return dir, nil
}

// recovered makes the data, or finds it made. A directory that something else has put there is left alone.
func (a *Agent) recovered(ctx context.Context, o RecoverOrder, dir string, progress func(BackupReport)) (RestoredNode, error) {
	done := RestoredNode{Shard: a.cfg.Shard, Target: o.Target}
	text, err := os.ReadFile(filepath.Join(dir, restoredFile))
	if err == nil {
		var old RestoredNode
		if err := json.Unmarshal(text, &old); err == nil && old.Shard == done.Shard && old.Target.Equal(o.Target) {
			return old, nil
		}
	}
	entries, err := os.ReadDir(dir)
	_, ours := os.Stat(filepath.Join(dir, restoringFile))
	if err == nil && len(entries) > 0 && ours != nil {
		return done, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "%s is not empty", dir).WithHint("Choose another directory.")
	}
	if err := makeReachable(dir); err != nil {
		return done, err
	}
	if err := os.WriteFile(filepath.Join(dir, restoringFile), nil, 0o600); err != nil {
		return done, err
	}
	if err := a.closeSegment(ctx, o, progress); err != nil {
		return done, err
	}
	if done.Recovered, err = a.recoverIn(ctx, o, dir, progress); err != nil {
		return done, err
	}
	return done, a.leaveRestored(o, dir, done)
}

// makeReachable makes a directory and those above it that are missing; the server's account may enter them.
func makeReachable(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := makeReachable(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(dir, 0o755) // whatever the umask
}

// leaveRestored writes what the agent of the new instance, and the one who starts the cluster, go by.
func (a *Agent) leaveRestored(o RecoverOrder, dir string, done RestoredNode) error {
	if len(o.Topology) > 0 {
		if err := pgproc.ReplaceFile(filepath.Join(o.Into, TopologyFile), o.Topology, 0o600, pgproc.Account{}); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(done, "", "  ")
	if err != nil {
		return err
	}
	if err := pgproc.ReplaceFile(filepath.Join(dir, restoredFile), append(text, '\n'), 0o600, pgproc.Account{}); err != nil {
		return err
	}
	return os.Remove(filepath.Join(dir, restoringFile))
}

func (a *Agent) recoverIn(ctx context.Context, o RecoverOrder, dir string, progress func(BackupReport)) (backup.Recovered, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // for a number that nobody uses
	if err != nil {
		return backup.Recovered{}, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return backup.Recovered{}, err
	}
	p, err := pgproc.New(pgproc.Config{
		Installation: a.cfg.Installation, Account: a.cfg.Account, Dir: dir, Port: port, Log: a.log,
	})
	if err != nil {
		return backup.Recovered{}, err
	}
	if err := p.Prepare(); err != nil {
		return backup.Recovered{}, err
	}
	r := backup.Recovery{
		Repository: a.RepositoryOf(o.SystemID), Shard: a.cfg.Shard, Log: a.log, Instance: p, Program: a.cfg.Archive.Program, Target: o.Target,
		Progress: func(step string, done, total int64) { progress(BackupReport{Step: step, Done: done, Total: total}) },
	}
	return r.Run(ctx)
}

// closeSegment has a primary commit something after the target and archives all up to it: recovery proves by a later
// commit that it has all that came before the target. Of a shard without a primary there is only what is archived.
func (a *Agent) closeSegment(ctx context.Context, o RecoverOrder, progress func(BackupReport)) error {
	if a.pg.IsStandby() || !a.pg.Ready() || a.pg.SystemID() != o.SystemID {
		return nil
	}
	progress(BackupReport{Step: "archives the last WAL"})
	conn, err := a.connect(ctx, "postgres", orderSQLLimit)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // the statements' errors count
	if _, err := conn.Exec(ctx, "SELECT pg_catalog.pg_current_xact_id()"); err != nil {
		return err
	}
	var file string
	if err := conn.QueryRow(ctx, "SELECT pg_walfile_name(pg_switch_wal())").Scan(&file); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, archiveWait, fmt.Errorf("WAL file %s is not archived within %v", file, archiveWait))
	defer cancel()
	for {
		var archived bool
		if err := conn.QueryRow(ctx, "SELECT coalesce(last_archived_wal >= $1, false) FROM pg_stat_archiver", file).Scan(&archived); err != nil {
			return err
		}
		if archived {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(archivePoll):
		}
	}
}

// Times of closeSegment.
const (
	archiveWait = 2 * time.Minute
	archivePoll = 100 * time.Millisecond
)
