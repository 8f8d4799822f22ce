package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"neki/cluster/backup"
	"neki/cluster/decide"
	"neki/internal/pgerr"
)

// BackupOrder has a primary's base backup taken. The answer is a stream of BackupReports; the backup ends with the
// caller's connection.
type BackupOrder struct {
	Order
	Object   string          `json:"object"`         // its name in the repository
	Full     bool            `json:"full,omitempty"` // not an incremental one
	Topology json.RawMessage `json:"topology,omitempty"`
}

// BackupReport is one line of the answer: how far it is, or, at the end, what came of it.
type BackupReport struct {
	Done   int64          `json:"done,omitempty"`
	Total  int64          `json:"total,omitempty"`
	Step   string         `json:"step,omitempty"`
	Backup *backup.Backup `json:"backup,omitempty"`
	Error  *problem       `json:"error,omitempty"`

	Restored *RestoredNode `json:"restored,omitempty"`
}

// ExpireOrder removes backups and the WAL that none of the others needs.
type ExpireOrder struct {
	Order
	SystemID string   `json:"system_id"`
	Objects  []string `json:"objects"` // names in the repository
}

// backupReportEvery is how often a backup tells how far it is: a caller that is gone is noticed by then.
const backupReportEvery = 500 * time.Millisecond

// takeBackup serves POST /v1/backup. It runs beside the runner: a primary that is replaced meanwhile ends it.
func (a *Agent) takeBackup(w http.ResponseWriter, req *http.Request) {
	var o BackupOrder
	if !readBody(w, req, "backup", &o) {
		return
	}
	r, err := a.beginBackup(o)
	if err != nil {
		writeJSON(w, http.StatusConflict, problemOf(err))
		return
	}
	defer a.archiver.taking.Unlock()
	a.reportBackup(req.Context(), w, func(ctx context.Context, progress func(BackupReport)) (BackupReport, error) {
		b, err := a.take(ctx, r, o, func(done, total int64) { progress(BackupReport{Done: done, Total: total}) })
		return BackupReport{Backup: &b}, err
	})
}

// take takes an incremental backup where one may be taken, else a full one.
func (a *Agent) take(ctx context.Context, r backup.Engine, o BackupOrder, progress func(done, total int64)) (backup.Backup, error) {
	options := backup.Options{ID: o.Object, Node: a.cfg.Node, MaxRate: a.cfg.Archive.MaxRate, Topology: o.Topology, Progress: progress}
	if a.incremental() && !o.Full {
		var err error
		if options.Base, err = r.NextBase(ctx, a.cfg.Archive.Incremental); err != nil {
			return backup.Backup{}, err
		}
	}
	b, err := r.Take(ctx, a.pg.LocalDSN("postgres"), options)
	if err != nil && options.Base != "" && ctx.Err() == nil && backup.RefusedIncremental(err) {
		a.log.Warn("no incremental backup can be taken: a full one is", "base", options.Base, "error", err)
		options.Base = ""
		b, err = r.Take(ctx, a.pg.LocalDSN("postgres"), options)
	}
	return b, err
}

// beginBackup checks that one can be taken, and takes archiver.taking.
func (a *Agent) beginBackup(o BackupOrder) (backup.Engine, error) {
	r, err := a.repository()
	if err != nil {
		return nil, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "%w", err)
	}
	if a.pg.IsStandby() || !a.pg.Ready() {
		return nil, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s is not a primary that serves", a.cfg.Node)
	}
	if err := a.memory.accept(decide.Apply, o.Order); err != nil {
		return nil, err
	}
	if !a.archiver.taking.TryLock() {
		return nil, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "a backup of node %s is under way", a.cfg.Node)
	}
	return r, nil
}

// reportBackup writes lines while the work goes on, and what came of it.
func (a *Agent) reportBackup(ctx context.Context, w http.ResponseWriter,
	work func(context.Context, func(BackupReport)) (BackupReport, error),
) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	news := make(chan BackupReport, 1)
	ended := make(chan BackupReport, 1)
	go func() {
		end, err := work(ctx, func(r BackupReport) { offer(news, r) })
		if err != nil {
			p := problemOf(err)
			end = BackupReport{Error: &p}
		}
		ended <- end
	}()
	w.Header().Set("Content-Type", "application/x-ndjson")
	enc, flush := json.NewEncoder(w), http.NewResponseController(w)
	tick := time.NewTicker(backupReportEvery)
	defer tick.Stop()
	var last BackupReport
	for {
		select {
		case end := <-ended:
			_ = enc.Encode(end) // the caller may have left
			return
		case <-tick.C:
			select {
			case last = <-news:
			default:
			}
			if err := errors.Join(enc.Encode(last), flush.Flush()); err != nil {
				cancel(fmt.Errorf("the admin that asked for it is gone: %w", err))
				<-ended
				return
			}
		}
	}
}

// offer keeps the newest report only.
func offer(c chan BackupReport, r BackupReport) {
	select {
	case <-c:
	default:
	}
	select {
	case c <- r:
	default:
	}
}

// expireBackups serves POST /v1/expire.
func (a *Agent) expireBackups(w http.ResponseWriter, req *http.Request) {
	var o ExpireOrder
	if !readBody(w, req, "expire", &o) {
		return
	}
	began := time.Now()
	did, err := a.expire(req.Context(), o)
	if err != nil {
		writeJSON(w, http.StatusConflict, problemOf(err))
		return
	}
	writeJSON(w, http.StatusOK, Result{OpID: o.OpID, Done: did, Duration: time.Since(began)})
}

func (a *Agent) expire(ctx context.Context, o ExpireOrder) ([]string, error) {
	r := a.RepositoryOf(o.SystemID)
	if r == nil {
		return nil, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s has no place for backups", a.cfg.Node)
	}
	if err := a.memory.accept(decide.Apply, o.Order); err != nil {
		return nil, err
	}
	if a.incremental() {
		if !a.archiver.taking.TryLock() {
			return nil, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "a backup of node %s is under way, which may build on another", a.cfg.Node)
		}
		defer a.archiver.taking.Unlock()
	}
	removed, segments, err := r.Expire(ctx, func(b backup.Backup) bool { return !slices.Contains(o.Objects, b.ID) })
	var did []string
	for _, id := range removed {
		did = append(did, "backup "+id)
	}
	if segments > 0 {
		did = append(did, fmt.Sprintf("%d WAL files", segments))
	}
	return did, err
}

// Backup has a base backup of a primary taken, and tells how far it is.
func (c *Client) Backup(ctx context.Context, o BackupOrder, progress func(BackupReport)) (backup.Backup, error) {
	end, err := c.report(ctx, "backup", o, progress)
	if err == nil && end.Backup == nil {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return backup.Backup{}, err
	}
	return *end.Backup, nil
}

// Recover has the shard's data of a point in time made for another cluster.
func (c *Client) Recover(ctx context.Context, o RecoverOrder, progress func(BackupReport)) (RestoredNode, error) {
	end, err := c.report(ctx, "recover", o, progress)
	if err == nil && end.Restored == nil {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return RestoredNode{}, err
	}
	return *end.Restored, nil
}

// report gives an order whose answer is a stream of reports, and the last of them.
func (c *Client) report(ctx context.Context, name string, o any, progress func(BackupReport)) (BackupReport, error) {
	resp, err := c.send(ctx, http.MethodPost, name, o)
	if err != nil {
		return BackupReport{}, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read only
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 16<<10), maxBody)
	for lines.Scan() {
		var report BackupReport
		if err := json.Unmarshal(lines.Bytes(), &report); err != nil {
			return report, err
		}
		switch {
		case report.Error != nil:
			return report, report.Error.asError()
		case report.Backup != nil, report.Restored != nil:
			return report, nil
		case progress != nil:
			progress(report)
		}
	}
	return BackupReport{}, errors.Join(io.ErrUnexpectedEOF, lines.Err())
}

// Expire removes backups of the node's shard.
func (c *Client) Expire(ctx context.Context, o ExpireOrder) (Result, error) {
	return c.order(ctx, "expire", o)
}
