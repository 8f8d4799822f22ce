package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/catalog"
	"neki/cluster/pgproc"
	"neki/internal/pgerr"
)

// Times of the runner.
const (
	startTimeout   = 60 * time.Second // a start that takes longer goes on, and is looked at again
	confirmTimeout = 5 * time.Second  // of the linearizable read before a start as primary
	tendEvery      = 5 * time.Second  // log rotation
	restartFirst   = 100 * time.Millisecond
	restartMost    = 10 * time.Second
	steadyAfter    = 30 * time.Second // a server that ran this long is restarted without delay
	rememberOps    = 64
	orderSQLLimit  = 30 * time.Second
)

// task is one order on its way to the runner.
type task struct {
	order Order
	do    func(ctx context.Context, r *runner) (Result, error)
	reply chan<- outcome // buffered: the asker may be gone
}

type outcome struct {
	result Result
	err    error
}

// runner is the state of the goroutine that alone starts and stops Postgres.
type runner struct {
	a       *Agent
	conn    *pgx.Conn // for orders' SQL, kept between them
	done    map[string]Result
	order   []string // of done, oldest first
	backoff time.Duration
	retry   <-chan time.Time // when to try to start again
	upSince time.Time
	stubbed map[uint32]string // of databases, by oid: the version of the stubs that they hold
}

// runOrders brings the server up as the restart rule says, then carries out orders and restarts it, until ctx ends.
func (a *Agent) runOrders(ctx context.Context) error {
	r := &runner{a: a, done: map[string]Result{}}
	defer r.close()
	r.ensureRunning(ctx)
	tend := time.NewTicker(tendEvery)
	defer tend.Stop()
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
		case <-tend.C:
			if err := a.pg.RotateLog(); err != nil {
				a.log.Warn("can't rotate the server's log", "error", err)
			}
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
	r.upSince = time.Time{}
	r.disconnect()
	r.a.sampleNow()
}

// perform carries out one order: once, however often it is given.
func (r *runner) perform(ctx context.Context, t task) (Result, error) {
	if result, ok := r.done[t.order.OpID]; ok {
		return result, nil
	}
	if err := r.a.memory.accept(t.order); err != nil {
		return Result{}, err
	}
	began := time.Now()
	result, err := t.do(ctx, r)
	if err != nil && ctx.Err() != nil {
		return Result{}, pgerr.New(pgerr.AdminShutdown, "the agent of node %s is stopping: %w", r.a.cfg.Node, err)
	}
	if err != nil {
		return Result{}, err
	}
	result.OpID, result.Duration = t.order.OpID, time.Since(began)
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

// ensureRunning starts the server unless it is empty or held; when that fails it is tried again later.
func (r *runner) ensureRunning(ctx context.Context) {
	if !r.a.pg.HasData() {
		return
	}
	if _, member := r.a.memory.get(); member.Hold != "" {
		r.a.setPhase(catalog.StateFenced, "%s", member.Hold)
		return
	}
	err := r.start(ctx)
	if err == nil {
		r.a.clearPhase()
		return
	}
	if ctx.Err() != nil {
		return
	}
	r.a.log.Warn("the server is not up", "error", err)
	r.a.setPhase(catalog.StateStarting, "%v", err)
	r.retryLater()
}

func (r *runner) retryLater() {
	r.backoff = min(max(2*r.backoff, restartFirst), restartMost)
	r.retry = time.After(r.backoff)
}

// start adopts the running server, or starts it by the restart rule.
func (r *runner) start(ctx context.Context) error {
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
		if err := r.confirmRole(ctx); err != nil {
			return err
		}
		if err := r.a.writeConf(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err = r.a.pg.Start(ctx)
	if r.a.pg.Running() != 0 && r.upSince.IsZero() {
		r.upSince = time.Now()
		if adopted {
			r.a.cfg.Progress(fmt.Sprintf("%s: took over the running server (pid %d)", r.a.cfg.Node, r.a.pg.Running()))
		}
	}
	if err == nil && r.a.memory.systemID() == "" {
		return r.a.memory.changePromises(func(p *Promises) { p.SystemID = r.a.pg.SystemID() })
	}
	return err
}

// confirmRole lets a data directory without standby.signal start as a primary only when the catalog says, now, that
// this node leads; if another does it becomes a standby of that one.
func (r *runner) confirmRole(ctx context.Context) error {
	if r.a.pg.IsStandby() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	shard, err := catalog.GetShard(ctx, r.a.cfg.Store, r.a.cfg.Cluster, r.a.cfg.Shard)
	if err != nil {
		return fmt.Errorf("waits for the catalog to say whether this node leads: %w", err)
	}
	promises, _ := r.a.memory.get()
	if shard.Primary == r.a.cfg.Node && shard.Term == promises.OwnTerm {
		return nil
	}
	r.a.log.Warn("another node leads the shard: starting as standby", "leader", shard.Primary, "term", shard.Term)
	leader, err := catalog.GetNode(ctx, r.a.cfg.Store, r.a.cfg.Cluster, r.a.cfg.Shard, shard.Primary)
	if err != nil && !errors.Is(err, catalog.ErrNotFound) {
		return fmt.Errorf("address of the leader: %w", err)
	}
	if err == nil && leader.ID != r.a.cfg.Node {
		if err := r.a.memory.changeMember(func(m *Member) {
			m.Term, m.Source = shard.Term, &Source{Node: leader.ID, Host: leader.Host, Port: leader.Port}
		}); err != nil {
			return err
		}
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
