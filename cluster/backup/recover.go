package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"neki/catalog"
	"neki/cluster/pgproc"
	"neki/internal/pgerr"
)

// Recovery makes a server's data directory as a shard was at a point in time.
type Recovery struct {
	Repository Engine
	Shard      string
	Log        *slog.Logger // nil discards
	// Instance is where the data goes: it must be empty. It runs while WAL is replayed, and is stopped after that.
	Instance *pgproc.Instance
	Program  string    // neki's own, which the server's account can run
	Target   time.Time // the last commit that counts is not later; zero: all that is archived
	Progress func(step string, done, total int64)
}

// Recovered is what came of it.
type Recovered struct {
	Backup     string      `json:"backup"` // object that it began with
	Timeline   int32       `json:"timeline"`
	LSN        catalog.LSN `json:"lsn"`
	LastCommit time.Time   `json:"last_commit,omitzero"`
	// Short: the archive ends before Target; what it has is there.
	Short    bool `json:"short,omitempty"`
	Prepared int  `json:"prepared,omitempty"` // transactions that clients had prepared by themselves and not ended: they still are
	// RolledBack counts parts of transactions over several shards that were in doubt then.
	RolledBack int `json:"rolled_back,omitempty"`
}

// Run restores the newest backup that ended before the target, replays WAL up to the target, and leaves a stopped
// primary on a timeline of its own. Nothing of the repository is written. A Run that was interrupted begins anew.
func (c *Recovery) Run(ctx context.Context) (Recovered, error) {
	var out Recovered
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	b, err := c.choose(ctx)
	if err != nil {
		return out, err
	}
	out.Backup = b.ID
	if err := c.Instance.Wipe(); err != nil {
		return out, err
	}
	if err := c.Instance.Fill(false, func(dir string) error {
		_, err := c.Repository.Restore(ctx, b.ID, dir, RestoreOptions{
			Own: c.Instance.Account().Own, Tablespaces: filepath.Join(c.Instance.Dir(), "tablespaces"), Combine: c.Instance.Combine,
			Progress: func(done, total int64) { c.say("restores backup "+b.ID, done, total) },
		})
		return err
	}); err != nil {
		return out, err
	}
	defer c.Instance.Close()
	if err := c.replay(ctx, b, &out); err != nil {
		return out, errors.Join(err, c.Instance.Kill())
	}
	return out, nil
}

func (c *Recovery) say(step string, done, total int64) {
	if c.Progress != nil {
		c.Progress(step, done, total)
	}
}

// choose gives the newest backup that ended before the target.
func (c *Recovery) choose(ctx context.Context) (Backup, error) {
	all, err := c.Repository.Backups(ctx)
	if err != nil {
		return Backup{}, err
	}
	var best *Backup
	for i := range all {
		if c.Target.IsZero() || !all[i].FinishedAt.After(c.Target) {
			best = &all[i]
		}
	}
	if best != nil {
		return *best, nil
	}
	e := pgerr.New(pgerr.ObjectNotInPrerequisiteState, "shard %s has no backup that ended before %s", c.Shard, stamp(c.Target))
	if len(all) > 0 {
		return Backup{}, e.WithHint("The earliest point in time that it can be restored to is %s.", stamp(all[0].FinishedAt))
	}
	return Backup{}, e.WithHint("SELECT * FROM neki.backups shows what there is.")
}

// stamp writes a time as Postgres reads it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.999999") + "+00" }

// replay starts the server with the archive to read from, and stops it once it is a primary.
func (c *Recovery) replay(ctx context.Context, b Backup, out *Recovered) error {
	reach, err := c.Repository.Contiguous(ctx, b, 0)
	if err != nil {
		return err
	}
	socket := filepath.Join(c.Instance.SocketDir(), "wal.sock")
	stop, err := c.serve(ctx, socket, int64(reach.End-b.StartLSN))
	if err != nil {
		return err
	}
	defer stop()
	if err := c.configure(socket, c.Target); err != nil {
		return err
	}
	err = c.Instance.Start(ctx)
	if err != nil && ctx.Err() == nil && strings.Contains(c.Instance.LogTail(20), "recovery ended before configured recovery target was reached") {
		out.Short = true // what there is is the best that can be had
		if err := c.configure(socket, time.Time{}); err != nil {
			return err
		}
		err = c.Instance.Start(ctx)
	}
	if err != nil {
		return fmt.Errorf("replay of WAL: %w", err)
	}
	c.say("is as it was", 1, 1)
	if err := c.finish(ctx, out); err != nil {
		return err
	}
	if err := c.Instance.Stop(ctx, pgproc.StopFast); err != nil {
		return err
	}
	_, err = c.Instance.WriteSettings(pgproc.Settings{}) // the one who takes the data writes his own
	return err
}

// serve answers restore_command, and tells how much of the WAL was asked for.
func (c *Recovery) serve(ctx context.Context, socket string, total int64) (stop func(), err error) {
	l, err := ListenCourier(socket, c.Instance.Account().Own)
	if err != nil {
		return nil, err
	}
	var fetched atomic.Int64
	courier := Courier{
		Push: func(context.Context, string, []byte) error {
			return errors.New("a server that is being restored archives nothing")
		},
		Fetch: func(ctx context.Context, name string) (io.ReadCloser, error) {
			in, err := c.Repository.OpenWAL(ctx, name, Limit{})
			if _, segment := ParseSegment(name, DefaultSegmentSize); err == nil && segment {
				done := fetched.Add(DefaultSegmentSize)
				c.say("replays WAL", done, max(done, total))
			}
			return in, err
		},
		Log: c.Log,
	}
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := courier.Serve(ctx, l); err != nil {
			c.Log.Error("WAL is not served to the recovery", "error", err)
		}
	})
	return func() { cancel(); serving.Wait() }, nil
}

// configure writes settings for recovery over those that the source had, and recovery.signal.
func (c *Recovery) configure(socket string, target time.Time) error {
	settings, err := c.Instance.ReadSettings()
	if err != nil {
		return err
	}
	for name := range settings {
		if strings.HasPrefix(name, "recovery_target") || strings.HasPrefix(name, "ssl") {
			delete(settings, name)
		}
	}
	settings = settings.With(pgproc.Settings{
		"archive_mode": "off", "primary_conninfo": "", "primary_slot_name": "", "synchronous_standby_names": "",
		// Nobody reads from it meanwhile, and recovery would refuse smaller settings than the source's for the sake of readers.
		"hot_standby": "off", "recovery_target_timeline": "latest", "recovery_target_action": "promote",
		"restore_command": Command(c.Program, "wal-fetch", socket, "%f", "%p"),
	})
	if !target.IsZero() {
		settings["recovery_target_time"], settings["recovery_target_inclusive"] = stamp(target), "on"
	}
	if _, err := c.Instance.WriteSettings(settings); err != nil {
		return err
	}
	if _, err := c.Instance.WriteHBA([]pgproc.HBARule{"local all " + pgproc.Superuser + " trust"}); err != nil {
		return err
	}
	path := filepath.Join(c.Instance.DataDir(), "recovery.signal")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	return c.Instance.Account().Own(path)
}

// Command is a line for archive_command or restore_command; the server puts what %f and %p stand for into args.
func Command(program, verb, socket string, args ...string) string {
	quote := func(s string) string {
		return "'" + strings.ReplaceAll(strings.ReplaceAll(s, "%", "%%"), "'", `'\''`) + "'"
	}
	words := []string{quote(program), verb, quote(socket)}
	for _, arg := range args {
		words = append(words, `"`+arg+`"`)
	}
	return strings.Join(words, " ")
}

// restoredRow makes the log of terms that of a shard that nobody has led yet: the terms of the source's life mean nothing
// in the new one, and what is on the present timeline counts.
const restoredRow = `BEGIN; CREATE SCHEMA IF NOT EXISTS neki;
	CREATE TABLE IF NOT EXISTS neki.term_log (term bigint PRIMARY KEY, leader text NOT NULL, tli integer NOT NULL,
		lsn pg_lsn NOT NULL, at timestamptz NOT NULL);
	DELETE FROM neki.term_log;
	INSERT INTO neki.term_log SELECT 0, 'restored', (pg_control_checkpoint()).timeline_id, pg_current_wal_lsn(), clock_timestamp();
	COMMIT`

// finish looks at the new primary and makes its log of terms that of a new shard.
func (c *Recovery) finish(ctx context.Context, out *Recovered) error {
	conn, err := pgconn.Connect(ctx, c.Instance.LocalDSN("postgres"))
	if err != nil {
		return err
	}
	defer closeConn(conn)
	results, err := conn.Exec(ctx, `SET synchronous_commit = local; CHECKPOINT;
		SELECT (pg_control_checkpoint()).timeline_id, pg_current_wal_lsn(),
			extract(epoch FROM pg_last_xact_replay_timestamp())::numeric(20, 6), (SELECT count(*) FROM pg_prepared_xacts)`).ReadAll()
	if err != nil {
		return err
	}
	row := results[len(results)-1].Rows[0]
	var seconds float64
	if _, err := fmt.Sscan(string(row[0]), &out.Timeline); err != nil {
		return err
	}
	if out.LSN, err = catalog.ParseLSN(string(row[1])); err != nil {
		return err
	}
	if _, err := fmt.Sscan(string(row[3]), &out.Prepared); err != nil {
		return err
	}
	if row[2] != nil {
		if _, err := fmt.Sscan(string(row[2]), &seconds); err != nil {
			return err
		}
		out.LastCommit = time.UnixMicro(int64(seconds * 1e6)).UTC()
	}
	if out.RolledBack, err = c.rollBack(ctx, conn); err != nil {
		return err
	}
	out.Prepared -= out.RolledBack
	_, err = conn.Exec(ctx, restoredRow).ReadAll()
	return err
}

// rollBack ends what gateways had prepared and not committed on this shard by then. Who would decide on it is none of the new
// cluster, and its locks would stay.
func (c *Recovery) rollBack(ctx context.Context, conn *pgconn.PgConn) (count int, err error) {
	found := conn.ExecParams(ctx, "SELECT gid, database FROM pg_prepared_xacts", nil, nil, nil, nil).Read()
	if found.Err != nil {
		return 0, found.Err
	}
	for _, row := range found.Rows {
		gid, database := string(row[0]), string(row[1])
		if _, _, _, ours := catalog.ParseGID(gid); !ours {
			continue
		}
		if err := c.rollBackIn(ctx, database, gid); err != nil {
			return count, fmt.Errorf("prepared transaction %s: %w", gid, err)
		}
		count++
	}
	return count, nil
}

func (c *Recovery) rollBackIn(ctx context.Context, database, gid string) error {
	conn, err := pgconn.Connect(ctx, c.Instance.LocalDSN(database))
	if err != nil {
		return err
	}
	defer closeConn(conn)
	for _, sql := range []string{"SET synchronous_commit = local", "ROLLBACK PREPARED '" + strings.ReplaceAll(gid, "'", "''") + "'"} {
		if _, err := conn.Exec(ctx, sql).ReadAll(); err != nil {
			return err
		}
	}
	return nil
}
