package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"neki/catalog"
	"neki/cluster/backup"
	"neki/cluster/pgproc"
	"neki/internal/pgerr"
)

// working says what the long order in hand is at; the end of the order calls idle.
func (r *runner) working(request, format string, args ...any) *Work {
	w := &Work{Step: fmt.Sprintf(format, args...), Request: request, StartedAt: time.Now().UTC()}
	r.a.work.Store(w)
	r.a.setPhase(catalog.StateRestoring, "%s", w.Step)
	return w
}

func (r *runner) idle() { r.a.work.Store(nil) }

// copied notes how many bytes of how many are in place.
func (r *runner) copied(begun *Work) func(done, total int64) {
	return func(done, total int64) {
		w := *begun
		w.Done, w.Total = done, max(total, done)
		r.a.work.Store(&w)
	}
}

// refilled makes the data of an empty data directory: from the newest backup that will do, else by a copy. follows is the
// leader, whose slot for this node keeps the WAL meanwhile. It gives what it did, in words.
func (r *runner) refilled(ctx context.Context, f Fill, follows Source, systemID string) (string, error) {
	if repository := r.a.RepositoryOf(systemID); f.Backup && systemID != "" && repository != nil {
		what, err := r.fromBackup(ctx, repository, f)
		if err == nil || ctx.Err() != nil {
			return what, err
		}
		r.a.log.Warn("no backup was restored: copying instead", "error", err)
		r.a.record(ctx, catalog.Event{Kind: "restore", Detail: "no backup was restored, a copy is made instead: " + err.Error()})
	}
	from := follows
	if f.Copy != nil {
		from = *f.Copy
	}
	slot := ""
	if from.Node == follows.Node {
		slot = SlotName(r.a.cfg.Node)
	}
	w := r.working(f.Request, "base backup from %s", from.Node)
	err := r.a.pg.BaseBackup(ctx, pgproc.BackupOptions{
		Source: r.a.replicationDSN(from) + " dbname=replication", Passfile: r.a.passfile(), Slot: slot, NoSync: r.a.noSync(),
		Progress: r.copied(w),
	})
	if err != nil {
		return "", err
	}
	if id := r.a.pg.SystemID(); systemID != "" && id != systemID {
		return "", pgerr.New(pgerr.ObjectNotInPrerequisiteState, "%s holds system %s, not %s", from.Node, id, systemID)
	}
	return r.filled("copied from " + from.Node), nil
}

// fromBackup restores the newest backup from which the archive reaches to the log that the leader has. What the leader
// wrote since comes from the archive, so it is read until the node streams.
func (r *runner) fromBackup(ctx context.Context, repository backup.Engine, f Fill) (string, error) {
	r.working(f.Request, "looking for a backup")
	b, err := usableBackup(ctx, repository, f)
	if err != nil {
		return "", err
	}
	w := r.working(f.Request, "restoring backup %s", b.ID)
	err = r.a.pg.Restore(r.a.noSync(), func(dir string) error {
		_, err := repository.Restore(ctx, b.ID, dir, backup.RestoreOptions{Own: r.a.cfg.Account.Own, Combine: r.a.pg.Combine, Progress: r.copied(w)})
		return err
	})
	if err != nil {
		return "", err
	}
	if err := r.a.memory.changeMember(func(m *Member) { m.Archive = true }); err != nil {
		return "", err
	}
	return r.filled("restored from backup " + b.ID), nil
}

// usableBackup gives the newest backup from which the archive reaches, without a gap, to where the leader's own log begins.
func usableBackup(ctx context.Context, repository backup.Engine, f Fill) (b backup.Backup, err error) {
	list, err := repository.Backups(ctx)
	if err != nil {
		return b, err
	}
	if f.SourceOldest == 0 || f.SourceTimeline == 0 {
		return b, errors.New("where the leader's log begins is not known")
	}
	why := errors.New("there is none")
	for _, b := range slices.Backward(list) {
		reach, err := repository.Contiguous(ctx, b, f.SourceTimeline)
		if err != nil {
			return b, err
		}
		if reach.End >= f.SourceOldest {
			return b, nil
		}
		why = fmt.Errorf("from backup %s the archive reaches to %s, the leader's log begins at %s", b.ID, reach.End, f.SourceOldest)
	}
	return b, why
}

// filled notes what the data was made of, and gives it with the bytes.
func (r *runner) filled(what string) string {
	w := *r.a.work.Load()
	w.Step = what
	if w.Total > 0 {
		w.Step += fmt.Sprintf(", %d MB", w.Total>>20)
	}
	r.a.filled.Store(&w)
	return w.Step
}

// restored notes for what the data was made, and that it is whole.
func (r *runner) restored(f Fill) error {
	r.a.damage.Store(nil)
	r.suspect = ""
	if f.Request == "" {
		return nil
	}
	return r.a.memory.changeMember(func(m *Member) { m.Restored = max(m.Restored, f.Request) })
}

// made tells whether the data was made for the request already, or for a later one, and is still there.
func (r *runner) made(f Fill) bool {
	_, m := r.a.memory.get()
	return f.Request != "" && m.Restored >= f.Request && r.a.pg.HasData()
}

// stillWanted refuses to throw data away for a request that was taken back on its way here: what the catalog says now
// counts.
func (r *runner) stillWanted(ctx context.Context, f Fill) error {
	if f.Request == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	n, err := catalog.GetNode(ctx, r.a.cfg.Store, r.a.cfg.Cluster, r.a.cfg.Shard, r.a.cfg.Node)
	if err != nil {
		return fmt.Errorf("whether node %s is still to be restored: %w", r.a.cfg.Node, err)
	}
	if n.Desired != catalog.DesiredRestore || n.Request != f.Request {
		return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s is to be %s, by request %q: %q was taken back",
			r.a.cfg.Node, n.Desired, n.Request, f.Request)
	}
	return nil
}

// fatal are words of the server's last message that only other data mends. A message counts when two lives of the server
// ended with it.
var fatal = []string{
	"could not locate a valid checkpoint record", "could not locate required checkpoint record", "invalid checkpoint record",
	"could not find redo location", "incorrect checksum in control file", "WAL contains references to invalid pages",
	"invalid page in block", "could not access status of transaction", "is not a child of this server's history",
	"WAL ends before consistent recovery point", "could not read block", `file "global/pg_control"`,
}

// examine looks for a reason in the log of a server that has just ended, from where its life began.
func (r *runner) examine() {
	found := r.lastWords()
	switch {
	case found == "":
		r.suspect = ""
	case found == r.suspect:
		r.a.damage.Store(&found)
	default:
		r.suspect = found
	}
}

// lastWords gives what is fatal in the log of the server's last life, "" for nothing.
func (r *runner) lastWords() string {
	f, err := os.Open(r.a.pg.LogFile())
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // opened for reading
	if st, err := f.Stat(); err != nil || st.Size() < r.logAt {
		r.logAt = 0 // it was rotated meanwhile
	}
	text, err := io.ReadAll(io.LimitReader(io.NewSectionReader(f, r.logAt, 1<<62), 1<<20))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		_, said, ok := strings.Cut(line, "FATAL:  ")
		if !ok {
			_, said, ok = strings.Cut(line, "PANIC:  ")
		}
		if !ok {
			continue
		}
		for _, words := range fatal {
			if strings.Contains(said, words) {
				return strings.TrimSpace(said)
			}
		}
	}
	return ""
}

// markLog remembers where the log of the life that begins now starts.
func (r *runner) markLog() {
	r.logAt = 0
	if st, err := os.Stat(r.a.pg.LogFile()); err == nil {
		r.logAt = st.Size()
	}
}

// tidy removes the data that was laid aside once what took its place serves.
func (r *runner) tidy() {
	if h, _ := r.a.health.latest(time.Second); h.State != catalog.StateServing {
		return
	}
	if removed, err := r.a.pg.RemoveAside(); err != nil {
		r.a.log.Warn("the data that was laid aside is still there", "error", err)
	} else if removed {
		r.a.log.Info("the data that was laid aside is removed: the new one serves")
	}
}
