package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/catalog"
	"neki/cluster/decide"
	"neki/cluster/pgproc"
	"neki/internal/pgerr"
)

// Times of the runner.
const (
	attendEvery    = 500 * time.Millisecond // a primary that is not open yet
	waitRetry      = 300 * time.Millisecond // whether a former primary may start
	startTimeout   = 60 * time.Second       // a start that takes longer goes on, and is looked at again
	confirmTimeout = 2 * time.Second        // of the linearizable read before a start as primary
	tendEvery      = 5 * time.Second        // log rotation
	restartFirst   = 100 * time.Millisecond
	restartMost    = 10 * time.Second
	steadyAfter    = 30 * time.Second // a server that ran this long is restarted without delay
	rememberOps    = 64
	orderSQLLimit  = 30 * time.Second
)

// task is one order on its way to the runner.
type task struct {
	order Order
	kind  decide.Kind
	do    func(ctx context.Context, r *runner) (Result, error)
	reply chan<- outcome // buffered: the asker may be gone
}

type outcome struct {
	result Result
	err    error
}

// runner is the state of the goroutine that alone starts and stops Postgres.
type runner struct {
	a         *Agent
	ctx       context.Context // ends with the runner; for side
	side      sync.WaitGroup  // what goes on beside orders
	downAt    time.Time       // when the server last ended
	shutFor   int64           // the self-fencing that was carried out
	conn      *pgx.Conn       // for orders' SQL, kept between them
	ahead     *committer      // for the barrier of a promotion under way
	done      map[string]Result
	order     []string // of done, oldest first
	backoff   time.Duration
	retry     <-chan time.Time // when to try to start again
	calm      <-chan time.Time // when a change of the source is over
	upSince   time.Time
	suspect   string            // what the server's last life ended with, if it is fatal
	logAt     int64             // where the log of its present life begins
	stubbed   map[uint32]string // of databases, by oid: the version of the stubs that they hold
	complaint string            // the last that was logged
	steps     []Step            // of the order in hand
	lapped    time.Time         // when the last of them ended
}

// runOrders brings the server up as the restart rule says, then carries out orders and restarts it, until ctx ends.
func (a *Agent) runOrders(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	r := &runner{a: a, ctx: ctx, done: map[string]Result{}, downAt: time.Now().Add(-decide.Patience)}
	defer r.side.Wait()
	defer r.close()
	defer cancel()
	r.ensureRunning(ctx)
	tend := time.NewTicker(tendEvery)
	defer tend.Stop()
	attend := time.NewTicker(attendEvery)
	defer attend.Stop()
	for {
		select {
		case <-ctx.Done():
			return r.shutdown()
		case t := <-a.tasks:
			result, err := r.perform(ctx, t)
			t.reply <- outcome{result, err}
		case <-r.exited():
			r.onExit()
			r.ensureRunning(ctx)
		case <-r.retry:
			r.retry = nil
			r.ensureRunning(ctx)
		case <-r.calm:
			r.calmDown(ctx)
		case <-a.attend:
			r.attend(ctx)
		case <-attend.C:
			r.attend(ctx)
		case <-tend.C:
			if err := a.pg.RotateLog(); err != nil {
				a.log.Warn("can't rotate the server's log", "error", err)
			}
			r.tidy()
		}
	}
}

// exited gives the channel of a running server's end; one that is down already is waited for by retry alone.
func (r *runner) exited() <-chan struct{} {
	if r.a.pg.Running() == 0 && r.upSince.IsZero() {
		return nil
	}
	return r.a.pg.Exited()
}

func (r *runner) onExit() {
	e, _ := r.a.pg.LastExit()
	r.a.log.Warn("the postmaster ended", "pid", e.PID, "status", e.Status, "log", r.a.pg.LogTail(3))
	if time.Since(r.upSince) > steadyAfter {
		r.backoff = 0
	}
	r.examine()
	r.upSince, r.downAt = time.Time{}, time.Now()
	r.disconnect()
	if err := r.a.pg.Kill(); err != nil { // the postmaster's children outlive it for a while, and acknowledge meanwhile
		r.a.log.Error("processes of the server are left", "error", err)
		return
	}
	r.ended()
}

// perform carries out one order: once, however often it is given.
func (r *runner) perform(ctx context.Context, t task) (Result, error) {
	if result, ok := r.done[t.order.OpID]; ok {
		return result, nil
	}
	if err := r.a.memory.accept(t.kind, t.order); err != nil {
		return Result{}, err
	}
	began := time.Now()
	r.steps, r.lapped = nil, began
	result, err := t.do(ctx, r)
	if err != nil && ctx.Err() != nil {
		return Result{}, pgerr.New(pgerr.AdminShutdown, "the agent of node %s is stopping: %w", r.a.cfg.Node, err)
	}
	if err != nil {
		return Result{}, err
	}
	result.OpID, result.Duration, result.Steps = t.order.OpID, time.Since(began), r.steps
	r.done[t.order.OpID] = result
	r.order = append(r.order, t.order.OpID)
	if len(r.order) > rememberOps {
		delete(r.done, r.order[0])
		r.order = r.order[1:]
	}
	if len(result.Done) > 0 {
		r.a.log.Info("order done", "op", t.order.OpID, "did", result.Done, "took", result.Duration)
	}
	r.a.sampleNow()
	return result, nil
}

// complain logs what goes on failing, once as long as it is for the same reason.
func (r *runner) complain(what string, err error) {
	if text := what + ": " + err.Error(); text != r.complaint {
		r.complaint = text
		r.a.log.Warn(what, "error", err)
	}
}

// step notes that a part of the order in hand has ended.
func (r *runner) step(what string) {
	now := time.Now()
	r.steps = append(r.steps, Step{What: what, Took: now.Sub(r.lapped)})
	r.lapped = now
}

// ensureRunning starts the server unless it is empty or held; when that fails it is tried again later.
func (r *runner) ensureRunning(ctx context.Context) {
	if !r.a.pg.HasData() {
		return
	}
	if p, _ := r.a.memory.get(); p.OwnTerm == 0 && r.a.seeded() {
		r.a.setPhase(catalog.StateStopped, "restored data that waits to be a shard's")
		return
	}
	if _, member := r.a.memory.get(); member.Hold != "" {
		r.a.setPhase(catalog.StateFenced, "%s", member.Hold)
		return
	}
	err := r.start(ctx, false)
	if err == nil {
		r.a.clearPhase()
		return
	}
	var waits waitError
	if errors.As(err, &waits) && ctx.Err() == nil {
		r.a.setPhase(catalog.StateStarting, "%v", err)
		r.retry = time.After(waitRetry)
		return
	}
	if ctx.Err() != nil {
		return
	}
	r.complain("the server is not up", err)
	if r.a.pg.Running() == 0 { // it ended while it started
		r.examine()
	}
	r.a.setPhase(catalog.StateStarting, "%v", err)
	r.retryLater()
}

func (r *runner) retryLater() {
	r.backoff = min(max(2*r.backoff, restartFirst), restartMost)
	r.retry = time.After(r.backoff)
}

// start adopts the running server, or starts it by the restart rule.
func (r *runner) start(ctx context.Context, ordered bool) error {
	adopted, err := r.a.pg.Adopt()
	if err != nil {
		return err
	}
	if adopted && r.a.pg.Moved() {
		r.a.log.Info("the running server listens elsewhere than configured: restarting it")
		if err := r.stop(ctx, pgproc.StopFast); err != nil {
			return err
		}
		adopted = false
	}
	if !adopted {
		if err := r.a.pg.Kill(); err != nil { // what is left of an earlier one
			return err
		}
		if err := r.confirmRole(ctx, ordered); err != nil {
			r.ended()
			return err
		}
		if err := r.a.writeConf(); err != nil {
			return err
		}
	}
	if !adopted {
		r.markLog()
	}
	r.a.exited.Store(false)
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err = r.a.pg.Start(ctx)
	if r.a.pg.Running() != 0 && r.upSince.IsZero() {
		r.upSince = time.Now()
		if adopted {
			r.a.cfg.Progress(fmt.Sprintf("%s: took over the running server (pid %d)", r.a.cfg.Node, r.a.pg.Running()))
		}
	}
	if err == nil && adopted { // the one before may have ended between an order's promise and its configuration
		if err := r.reconfigure(ctx); err != nil {
			r.a.log.Warn("the configuration of the server that was taken over may be older than the last order", "error", err)
		}
	}
	if err == nil && r.a.memory.systemID() == "" {
		return r.a.memory.changePromises(func(p *Promises) { p.SystemID = r.a.pg.SystemID() })
	}
	return err
}

// waitError says that a start has to wait for others.
type waitError struct{ why string }

func (e waitError) Error() string { return e.why }

// confirmRole decides how the server is started: as a primary only when the catalog says, now, that this node leads, and
// when the admin has had time to choose another or has ordered the start.
func (r *runner) confirmRole(ctx context.Context, ordered bool) error {
	p, m := r.a.memory.get()
	self := decide.Self{
		Node: r.a.cfg.Node, HasData: r.a.pg.HasData(), Standby: r.a.pg.IsStandby(), Held: m.Hold != "", DownFor: time.Since(r.downAt),
	}
	as, why := decide.HowToStart(p, self, nil, ordered, decide.Flaws{})
	var rule catalog.Rule
	if as == decide.StartWait {
		var err error
		if rule, err = r.readRule(ctx); err != nil {
			return waitError{fmt.Sprintf("%s: %v", why, err)}
		}
		as, why = decide.HowToStart(p, self, &rule, ordered, decide.Flaws{})
	}
	switch as {
	case decide.StartStandby:
		if why != "" {
			r.a.log.Warn("starts as a standby", "why", why)
		}
		return r.standby()
	case decide.StartPrimary:
		if rule.Phase == decide.PhaseBootstrap {
			return nil
		}
		return r.a.memory.changeMember(func(m *Member) { m.Closed = true }) // until its barrier is acknowledged
	case decide.StartWait, decide.StartNothing:
	}
	return waitError{why}
}

func (r *runner) readRule(ctx context.Context) (catalog.Rule, error) {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	return catalog.GetRule(ctx, r.a.cfg.Store, r.a.cfg.Cluster, r.a.cfg.Shard)
}

// standby has the next start be one of a standby. What led is not told to follow anybody: whether it can is the admin's
// to decide.
func (r *runner) standby() error {
	if r.a.pg.IsStandby() {
		return nil
	}
	err := r.a.memory.changeMember(func(m *Member) { m.Source, m.Term, m.Led, m.Closed = nil, 0, false, false })
	if err != nil {
		return err
	}
	return r.a.pg.SetStandby(true)
}

// shutdown ends the runner's part: the server stops, or is left to the next agent.
func (r *runner) shutdown() error {
	r.disconnect()
	if !r.a.cfg.StopPostgres {
		return nil
	}
	return r.stop(context.Background(), pgproc.StopFast)
}

// stop stops the server, at worst the hard way.
func (r *runner) stop(ctx context.Context, mode pgproc.StopMode) error {
	r.disconnect()
	r.upSince, r.retry = time.Time{}, nil
	for _, m := range []pgproc.StopMode{mode, pgproc.StopImmediate} {
		limited, cancel := context.WithTimeout(ctx, r.a.cfg.StopTimeout)
		err := r.a.pg.Stop(limited, m)
		cancel()
		if err == nil {
			return nil
		}
		r.a.log.Warn("the server doesn't stop", "mode", m, "error", err)
	}
	return r.a.pg.Kill()
}

// sql gives the connection for orders.
func (r *runner) sql(ctx context.Context) (*pgx.Conn, error) {
	if r.conn != nil && !r.conn.IsClosed() {
		return r.conn, nil
	}
	conn, err := r.a.connect(ctx, "postgres", orderSQLLimit)
	if err != nil {
		return nil, fmt.Errorf("connect to the own server: %w", err)
	}
	r.conn = conn
	return conn, nil
}

func (r *runner) disconnect() {
	r.ahead.close()
	r.ahead = nil
	if r.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = r.conn.Close(ctx) // the server may be gone
	r.conn = nil
}

func (r *runner) close() { r.disconnect() }

func (m *memory) systemID() string {
	p, _ := m.get()
	return p.SystemID
}
