package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"neki/catalog"
	"neki/internal/pgerr"
)

// Handler carries out a job. It is called with what the job's document says, from the beginning: after a failure, and by
// the next leader when this one is gone. So each of its steps looks at what is so, and does nothing where it is done
// already. When ctx ends it returns soon, and leaves the work such that it can be gone on with.
type Handler func(ctx context.Context, j catalog.Job, r *Report) error

// jobKind is how jobs of a kind are carried out.
type jobKind struct {
	run Handler
	// beside: it does not keep other jobs of its shard and host waiting, nor wait for them.
	beside bool
	// attempts is how often it may fail before it is given up; 0 means jobAttempts.
	attempts int
}

const (
	jobAttempts = 5
	jobBackoff  = time.Second      // after the first failure, twice as long after each other
	jobBackMost = time.Minute      //
	reportEvery = time.Second / 4  // at most so often progress is written
	jobWrites   = 10 * time.Second // bounds one write
)

var (
	errJobCancelled = errors.New("it was cancelled")
	errJobOrphaned  = errors.New("this admin leads no more")
)

// giveUp marks an error that trying again does not mend: the job fails at once.
func giveUp(err error) error { return &lastError{err} }

type lastError struct{ error }

func (e *lastError) Unwrap() error { return e.error }

// jobKinds says how each kind is carried out.
func (l *leader) jobKinds() map[string]jobKind {
	return map[string]jobKind{
		"restart_node": {run: l.restartNode},
		"create_shard": {run: l.createShard},
		"drop_shard":   {run: l.dropShard},
		// A profile is of several shards, which it holds one after the other; assign_profile holds its shard by that, too.
		"alter_profile":  {run: l.alterProfile, beside: true},
		"assign_profile": {run: l.assignProfile, beside: true},
		"fence":          {run: l.fenceNode, beside: true}, // what is ill must not wait
		"unfence":        {run: l.unfenceNode, beside: true},

		"backup":          {run: l.takeBackup, beside: true},
		"delete_backup":   {run: l.deleteBackup, beside: true},
		"protect_backup":  {run: l.protectBackup, beside: true},
		"add_replica":     {run: l.addReplica},
		"remove_replica":  {run: l.removeReplica},
		"set_replicas":    {run: l.setReplicas},
		"replace_replica": {run: l.replaceReplica},
		"restore_replica": {run: l.restoreReplica, beside: true}, // the shard's loop does it, one after the other

		endTransaction: {run: l.awaitTransaction, beside: true},

		"restore_cluster": {run: l.restoreCluster, beside: true, attempts: 3},
	}
}

// shownOnly tells of kinds whose jobs show an Operation: the shard's loop carries it out and writes them.
func shownOnly(kind string) bool { return kind == catalog.OpSwitchover || kind == catalog.OpFailover }

// jobRunner carries out the cluster's jobs for one time of leading. look is called by the leader's goroutine; each job
// has a goroutine of its own.
type jobRunner struct {
	l     *leader
	kinds map[string]jobKind

	mu    sync.Mutex
	under map[string]context.CancelCauseFunc // by job
	held  map[string]string                  // "shard sh1", "host h1" -> job
	freed chan struct{}                      // closed, and replaced, when something is no longer held
}

func newJobRunner(l *leader) *jobRunner {
	return &jobRunner{
		l: l, kinds: l.jobKinds(), under: map[string]context.CancelCauseFunc{}, held: map[string]string{}, freed: make(chan struct{}),
	}
}

// look begins what is to be begun, and ends what is to end.
func (r *jobRunner) look(ctx context.Context, snap *catalog.Snapshot, loops *errgroup.Group) {
	for _, j := range snap.Jobs {
		if shownOnly(j.Kind) {
			continue
		}
		r.mu.Lock()
		if j.State.Final() {
			delete(r.under, j.ID)
			r.mu.Unlock()
			continue
		}
		end, under := r.under[j.ID]
		if !under {
			jctx, cancel := context.WithCancelCause(ctx)
			r.under[j.ID], end = cancel, cancel
			loops.Go(func() error {
				defer cancel(nil)
				r.carryOut(jctx, *j)
				return nil
			})
		}
		r.mu.Unlock()
		if j.Cancel != "" {
			end(errJobCancelled)
		}
	}
}

// carryOut does a job until it has ended, or ctx. Its entry in under stays as long as its document may be seen unfinished.
func (r *jobRunner) carryOut(ctx context.Context, j catalog.Job) {
	kind, known := r.kinds[j.Kind]
	if !known {
		r.finish(ctx, j, giveUp(pgerr.New(pgerr.FeatureNotSupported, "the leading admin knows no operation %q", j.Kind)))
		return
	}
	release := func() {}
	if !kind.beside {
		var err error
		if release, err = r.hold(ctx, j.ID, locksOf(&j)...); err != nil {
			r.finish(ctx, j, err)
			return
		}
	}
	err := r.attempt(ctx, j, kind)
	release()
	r.finish(ctx, j, err)
}

func locksOf(j *catalog.Job) []string {
	var locks []string
	if j.Shard != "" {
		locks = append(locks, "shard "+j.Shard)
	}
	if j.Host != "" {
		locks = append(locks, "host "+j.Host)
	}
	return locks
}

// hold waits until no other job holds any of the things named, and takes them all at once.
func (r *jobRunner) hold(ctx context.Context, id string, things ...string) (release func(), err error) {
	for {
		r.mu.Lock()
		free := !slices.ContainsFunc(things, func(t string) bool { return r.held[t] != "" && r.held[t] != id })
		freed := r.freed
		if free {
			for _, t := range things {
				r.held[t] = id
			}
		}
		r.mu.Unlock()
		if free {
			return func() { r.release(things) }, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (r *jobRunner) release(things []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range things {
		delete(r.held, t)
	}
	close(r.freed)
	r.freed = make(chan struct{})
}

// attempt calls the handler until it succeeds, gives up, or has failed too often.
func (r *jobRunner) attempt(ctx context.Context, j catalog.Job, kind jobKind) error {
	most := kind.attempts
	if most == 0 {
		most = jobAttempts
	}
	for try := 1; ; try++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := r.once(ctx, j, kind.run)
		if _, last := errors.AsType[*lastError](err); err == nil || last || try == most || ctx.Err() != nil {
			return err
		}
		wait := min(jobBackoff<<min(try-1, 6), jobBackMost)
		r.l.a.log.Warn("operation failed, and is tried again", "id", j.ID, "kind", j.Kind, "target", j.Target, "error", err, "after", wait)
		_, _ = r.write(ctx, j.ID, func(j *catalog.Job) { // the next try says so, too
			j.Attempts, j.Error, j.Hint = try, message(err), pgerr.From(err).Hint
			j.Step = fmt.Sprintf("tried %d times, waits", try)
		})
		sleep(ctx, wait)
	}
}

func message(err error) string {
	e := pgerr.From(err)
	if e.Detail != "" {
		return e.Message + ": " + e.Detail
	}
	return e.Message
}

// once calls the handler with a Report, whose writer it joins.
func (r *jobRunner) once(ctx context.Context, j catalog.Job, run Handler) error {
	started, err := r.write(ctx, j.ID, func(j *catalog.Job) {
		if j.State == catalog.JobPending {
			j.State, j.StartedAt = catalog.JobRunning, time.Now().UTC()
		}
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	report := &Report{runner: r, id: j.ID, news: make(chan struct{}, 1)}
	var writing sync.WaitGroup
	writing.Go(func() {
		if err := report.run(ctx); err != nil {
			cancel(err)
		}
	})
	err = run(ctx, started, report)
	if ctx.Err() != nil && err != nil {
		err = context.Cause(ctx)
	}
	cancel(nil)
	writing.Wait()
	return err
}

// write changes the job's document.
func (r *jobRunner) write(ctx context.Context, id string, change func(*catalog.Job)) (catalog.Job, error) {
	ctx, cancel := context.WithTimeout(ctx, jobWrites)
	defer cancel()
	j, err := catalog.UpdateJob(ctx, r.l.a.cfg.Store, r.l.a.cfg.Cluster, r.l.epoch, id, change)
	if errors.Is(err, catalog.ErrConflict) {
		err = errJobOrphaned
	}
	return j, err
}

// finish writes how a job ended. Where the admin ends or leads no more, it has not.
func (r *jobRunner) finish(ctx context.Context, j catalog.Job, err error) {
	cancelled := errors.Is(context.Cause(ctx), errJobCancelled) && err != nil
	if ctx.Err() != nil && !cancelled || errors.Is(err, errJobOrphaned) {
		return
	}
	ctx = context.WithoutCancel(ctx)
	for try := 0; ; try++ {
		ended, writeErr := r.write(ctx, j.ID, func(j *catalog.Job) { end(j, err, cancelled) })
		if writeErr == nil {
			r.noteEnd(ctx, &ended)
			return
		}
		if errors.Is(writeErr, errJobOrphaned) || errors.Is(writeErr, catalog.ErrNotFound) || errors.Is(writeErr, catalog.ErrClosed) || try == jobAttempts {
			r.l.a.log.Warn("the end of an operation was not written", "id", j.ID, "kind", j.Kind, "error", writeErr)
			r.mu.Lock()
			delete(r.under, j.ID) // what is left of it is done when it is seen again
			r.mu.Unlock()
			return
		}
		sleep(ctx, jobBackoff)
	}
}

func end(j *catalog.Job, err error, cancelled bool) {
	j.FinishedAt, j.Error, j.Hint = time.Now().UTC(), "", ""
	switch {
	case err == nil:
		j.State, j.Progress = catalog.JobDone, 1
	case cancelled:
		j.State, j.Error = catalog.JobCancelled, "cancelled by "+j.Cancel
	default:
		j.State, j.Error, j.Hint = catalog.JobFailed, message(err), pgerr.From(err).Hint
		if pgerr.Code(err) == pgerr.InvalidParameterValue {
			j.Code = pgerr.InvalidParameterValue
		}
	}
	if j.StartedAt.IsZero() {
		j.StartedAt = j.FinishedAt
	}
}

// noteEnd records the end and removes old jobs.
func (r *jobRunner) noteEnd(ctx context.Context, j *catalog.Job) {
	ctx, cancel := context.WithTimeout(ctx, jobWrites)
	defer cancel()
	detail := fmt.Sprintf("operation %s %s, asked for by %s", j.ID, j.State, j.By)
	if j.Error != "" {
		detail += ": " + j.Error
	} else if j.Step != "" {
		detail += ": " + j.Step
	}
	r.l.a.record(ctx, catalog.Event{
		Kind: j.Kind, Shard: j.Shard, Node: j.Node, Detail: detail, Duration: j.FinishedAt.Sub(j.StartedAt),
	})
	if err := catalog.TrimJobs(ctx, r.l.a.cfg.Store, r.l.a.cfg.Cluster, r.l.a.live.Snapshot().Jobs, catalog.KeptJobs); err != nil {
		r.l.a.log.Warn("old operations not removed", "error", err)
	}
}

// Report tells how a job gets on. It is safe for concurrent use.
type Report struct {
	runner *jobRunner
	id     string
	news   chan struct{}

	mu          sync.Mutex
	step        string
	progress    float64
	done, total int64
}

// Step says what is done now, and how much of the whole, from 0 to 1, is behind.
func (p *Report) Step(progress float64, format string, args ...any) {
	p.mu.Lock()
	p.step, p.progress = fmt.Sprintf(format, args...), min(max(progress, 0), 1)
	p.mu.Unlock()
	p.tell()
}

// Bytes says how far the copying of something is; progress goes from one fraction to the other with it.
func (p *Report) Bytes(done, total int64, from, to float64) {
	p.mu.Lock()
	p.done, p.total = done, total
	if total > 0 {
		p.progress = from + (to-from)*min(float64(done)/float64(total), 1)
	}
	p.mu.Unlock()
	p.tell()
}

func (p *Report) tell() {
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// run writes what is new until ctx ends, the last word included. It fails when the job is not this admin's any more.
func (p *Report) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			p.flush(context.WithoutCancel(ctx)) //nolint:errcheck // the end of the job is written next, or by another
			return nil
		case <-p.news:
		}
		if err := p.flush(ctx); errors.Is(err, errJobOrphaned) {
			return err
		}
		sleep(ctx, reportEvery)
	}
}

func (p *Report) flush(ctx context.Context) error {
	p.mu.Lock()
	step, progress, done, total := p.step, p.progress, p.done, p.total
	p.mu.Unlock()
	if step == "" && progress == 0 && total == 0 {
		return nil
	}
	_, err := p.runner.write(ctx, p.id, func(j *catalog.Job) {
		j.Step, j.Progress, j.BytesDone, j.BytesTotal = strings.TrimSpace(step), progress, done, total
	})
	return err
}

// Remember keeps something for the next call of the handler, which finds it in the job's Memo.
func (p *Report) Remember(ctx context.Context, key, value string) error {
	_, err := p.runner.write(ctx, p.id, func(j *catalog.Job) {
		j.Memo = maps.Clone(j.Memo)
		if j.Memo == nil {
			j.Memo = map[string]string{}
		}
		j.Memo[key] = value
	})
	return err
}

// HoldShard keeps other jobs off a shard, for a job that is about several, until release is called.
func (p *Report) HoldShard(ctx context.Context, shard string) (release func(), err error) {
	return p.runner.hold(ctx, p.id, "shard "+shard)
}
