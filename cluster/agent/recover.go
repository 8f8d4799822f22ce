package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"neki/cluster/decide"
	"neki/cluster/pgproc"
	"neki/internal/pgerr"
)

// Times of the steps of a failover. None of them is a promise's condition.
const (
	cutPatience    = 100 * time.Millisecond // for the receiver to end by itself
	cutLimit       = 3 * time.Second        // then the whole server is killed
	replayWait     = 2 * time.Second        // for what is local to be replayed, before a recruit answers
	promoteLimit   = 20 * time.Second
	barrierLimit   = time.Second
	recoverPoll    = 2 * time.Millisecond
	recoverReload  = 20 * time.Millisecond // between reloads that are asked for again
	checkpointTime = time.Minute
	sourceLimit    = 5 * time.Second // for the source's checkpoint, before pg_rewind
)

// recruit has this node acknowledge nothing more below the order's term: a standby's receiver is cut, a primary killed.
// The promise is on disk after that and before the answer.
func (r *runner) recruit(ctx context.Context, o Order) (Result, error) {
	p, _ := r.a.memory.get()
	running, standby := r.a.pg.Running() != 0, r.a.pg.IsStandby()
	resigned := p.ResignedTerm != 0 && p.ResignedTerm == p.OwnTerm && r.a.fencedLSN.Load() != 0
	switch {
	case running && !standby && (p.OwnTerm == o.Term || resigned):
		return Result{Done: []string{"promised"}}, r.pledge(o.Term)
	case running && standby && p.RevokedBelowTerm >= o.Term:
		return Result{}, nil
	case running && standby:
		if err := r.cut(ctx); err != nil {
			r.a.log.Warn("the receiver can't be cut: killing the server", "error", err)
			if err := r.killed(); err != nil {
				return Result{}, err
			}
		}
	default: // a primary, running or not: its data counts, its process doesn't go on
		if err := r.killed(); err != nil {
			return Result{}, err
		}
		if r.a.pg.HasData() {
			if err := r.a.pg.SetStandby(true); err != nil {
				return Result{}, err
			}
		}
		if err := r.a.memory.changeMember(func(m *Member) { m.Source, m.Term, m.Led, m.Closed = nil, 0, false, false }); err != nil {
			return Result{}, err
		}
	}
	r.step("cut")
	if err := r.pledge(o.Term); err != nil {
		return Result{}, err
	}
	if r.a.pg.Running() == 0 {
		r.backoff, r.retry = 0, time.After(0) // once this is answered
		return Result{Done: []string{"promised", "stopped"}}, nil
	}
	r.step("promise")
	err := r.awaitReplay(ctx)
	r.step("replay")
	return Result{Done: []string{"promised", "cut off"}}, err
}

func (r *runner) pledge(term int64) error {
	return r.a.memory.changePromises(func(p *Promises) { *p = decide.Pledge(*p, term) })
}

// killed kills the server with every child; only then is nothing acknowledged any more.
func (r *runner) killed() error {
	r.disconnect()
	r.retry = nil
	if err := r.a.pg.Kill(); err != nil {
		return err
	}
	if !r.upSince.IsZero() {
		r.downAt = time.Now()
	}
	r.upSince = time.Time{}
	r.ended()
	return nil
}

// ended forgets what was true of the server's last life.
func (r *runner) ended() {
	r.a.inForce.Store(nil)
	r.a.fencedLSN.Store(0)
	r.a.exited.Store(true)
	r.a.sampleNow()
}

// cut ends the receiver for good: without a source in the configuration, with nothing that holds replay up (a startup
// process that is held up doesn't read the configuration), and with a signal when that isn't enough.
func (r *runner) cut(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cutLimit)
	defer cancel()
	if err := r.a.memory.changeMember(func(m *Member) { m.Source, m.Term = nil, 0 }); err != nil {
		return err
	}
	r.hurry()
	if err := r.a.writeConf(); err != nil {
		return err
	}
	if err := r.a.pg.Reload(); err != nil {
		return err
	}
	conn, err := r.sql(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	reloaded := began
	for {
		if err := unblockReplay(ctx, conn); err != nil {
			return err
		}
		gone, err := receiverGone(ctx, conn, time.Since(began) > cutPatience)
		if err != nil || gone {
			return err
		}
		if time.Since(reloaded) > recoverReload {
			reloaded = time.Now()
			if err := r.a.pg.Reload(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(recoverPoll):
		}
	}
}

// unblockReplay resumes replay and ends the sessions that may hold it up.
func unblockReplay(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `SELECT CASE WHEN pg_is_in_recovery() AND pg_get_wal_replay_pause_state() <> 'not paused'
		THEN pg_wal_replay_resume() END`)
	if err != nil {
		return err
	}
	return endClients(ctx, conn)
}

// endClients ends all sessions but the agent's.
func endClients(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name <> 'neki_agent'`)
	return err
}

// receiverGone tells whether there is no receiver process: what the configuration says is no proof.
func receiverGone(ctx context.Context, conn *pgx.Conn, force bool) (bool, error) {
	rows, err := conn.Query(ctx, `SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'
		UNION SELECT pid FROM pg_stat_wal_receiver`)
	if err != nil {
		return false, err
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil || len(pids) == 0 {
		return err == nil, err
	}
	for _, pid := range pids {
		if force {
			if err := unix.Kill(pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
				return false, err
			}
		}
	}
	return false, nil
}

// awaitReplay waits a while until it is known where the log ends; it is no error when it takes longer. What is not replayed by
// then a promotion replays.
func (r *runner) awaitReplay(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, replayWait)
	defer cancel()
	for {
		if r.a.observer.look(ctx).Up {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(recoverPoll):
		}
	}
}

// promote makes this node the primary of the order's term, and opens it once the barrier is acknowledged. Done again, it
// goes on where it was.
func (r *runner) promote(ctx context.Context, o LeadOrder) (Result, error) {
	conn, err := r.sql(ctx)
	if err != nil {
		return Result{}, err
	}
	var recovery bool
	if err := conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&recovery); err != nil {
		return Result{}, fmt.Errorf("ask the own server: %w", err)
	}
	p, before := r.a.memory.get()
	open := !recovery && !before.Closed && p.BarrierTerm == o.Term
	if !open { // a position at which it resigned, if it did, was of an earlier term: the next resignation has one of its own
		r.a.fencedLSN.Store(0)
	}
	err = r.a.memory.changeMember(func(m *Member) {
		m.Source, m.Term, m.Led, m.Closed = nil, 0, true, !open
		m.Peers, m.Standbys, m.Acks = slices.Clone(o.Peers), slices.Clone(o.Standbys), o.Acks
	})
	if err != nil {
		return Result{}, err
	}
	did := []string{}
	r.step("remember")
	if recovery {
		if err := r.leaveRecovery(ctx, conn, o); err != nil {
			return Result{}, err
		}
		did = append(did, "promoted")
		defer r.checkpoint() // not before clients are let in: the first commit would wait for what it writes
	} else {
		if err := r.reconfigure(ctx); err != nil {
			return Result{}, err
		}
		if _, err := ensureSlots(ctx, conn, o.Peers); err != nil {
			return Result{}, err
		}
	}
	r.a.sampleNow()
	if open {
		return Result{Done: did}, nil
	}
	if err := r.open(ctx); err != nil {
		return Result{}, err
	}
	r.a.clearPhase() // it may have resigned in an earlier term, and led on
	return Result{Done: append(did, "barrier acknowledged")}, nil
}

// leaveRecovery promotes a standby whose receiver is gone.
func (r *runner) leaveRecovery(ctx context.Context, conn *pgx.Conn, o LeadOrder) error {
	ctx, cancel := context.WithTimeout(ctx, promoteLimit)
	defer cancel()
	if gone, err := receiverGone(ctx, conn, false); err != nil || !gone {
		if err == nil {
			err = r.cut(ctx)
		}
		return errors.Join(pgerr.New(pgerr.ObjectNotInPrerequisiteState, "promotion refused: the receiver was still there"), err)
	}
	// First: the others are told to follow at the same time, and one that finds no slot yet comes again 200 ms later only.
	if _, err := ensureSlots(ctx, conn, o.Peers); err != nil {
		return err
	}
	r.step("slots")
	// Until the reload is effective the configuration lets nobody acknowledge: no harm is done by not waiting for it.
	if err := r.reconfigureSoon(ctx); err != nil {
		return err
	}
	r.step("configuration")
	if err := unblockReplay(ctx, conn); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_promote(false)"); err != nil {
		return err
	}
	r.openAhead(ctx)
	for recovery := true; recovery; {
		if err := conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&recovery); err != nil {
			return err
		}
		if !recovery {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("promotion goes on: %w", ctx.Err())
		case <-time.After(recoverPoll):
		}
	}
	r.step("end of recovery")
	return endClients(ctx, conn) // those that came since
}

// reconfigure writes the files and has the server read them.
func (r *runner) reconfigure(ctx context.Context) error {
	if err := r.a.writeConf(); err != nil {
		return err
	}
	return r.reload(ctx)
}

// reconfigureSoon writes the files and has the server told, for what is proven, or waited for, in another way. What an
// ALTER SYSTEM has put above our file is taken away first.
func (r *runner) reconfigureSoon(ctx context.Context) error {
	if r.a.pg.Overrides("synchronous_standby_names", "primary_conninfo", "primary_slot_name") {
		return r.reconfigure(ctx)
	}
	if err := r.a.writeConf(); err != nil {
		return err
	}
	return r.a.pg.Reload()
}

// open commits the barrier of the node's term and, once that is acknowledged, lets clients in.
func (r *runner) open(ctx context.Context) error {
	p, m := r.a.memory.get()
	if _, _, ok := decide.Demands(p, m.Led, m.Standbys, m.Acks, r.a.selfFenced.Load() != 0); !ok {
		return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s is fenced", r.a.cfg.Node)
	}
	if len(m.Standbys) < m.Acks { // the order comes again when there are more
		return pgerr.New(pgerr.CannotConnectNow, "the barrier of term %d waits for acknowledgers", p.OwnTerm)
	}
	if err := r.barrier(ctx, p.OwnTerm); err != nil {
		return err
	}
	r.step("barrier")
	if err := r.a.memory.changeBoth(func(p *Promises, m *Member) { p.BarrierTerm, m.Closed = p.OwnTerm, false }); err != nil {
		return err
	}
	err := r.reconfigureSoon(ctx) // a client that comes before that is effective tries again
	r.step("open to clients")
	r.a.sampleNow()
	return err
}

// barrier commits the row of a term, which must be acknowledged.
func (r *runner) barrier(ctx context.Context, term int64) error {
	err := r.acknowledged(ctx, fmt.Sprintf(`BEGIN; CREATE SCHEMA IF NOT EXISTS neki;
		CREATE TABLE IF NOT EXISTS neki.term_log (term bigint PRIMARY KEY, leader text NOT NULL, tli integer NOT NULL,
			lsn pg_lsn NOT NULL, at timestamptz NOT NULL);
		INSERT INTO neki.term_log SELECT %d, current_setting('cluster_name'),
			('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int, pg_current_wal_lsn(), clock_timestamp()
		ON CONFLICT (term) DO UPDATE SET lsn = excluded.lsn, at = excluded.at; COMMIT`, term))
	if err != nil {
		return pgerr.New(pgerr.CannotConnectNow, "the barrier of term %d was not acknowledged: %w", term, err)
	}
	return nil
}

// mark commits something that says nothing.
func (r *runner) mark(ctx context.Context) error {
	err := r.acknowledged(ctx, "SELECT pg_logical_emit_message(true, 'neki', '')")
	if err != nil {
		return pgerr.New(pgerr.CannotConnectNow, "a commit under the new standbys was not acknowledged: %w", err)
	}
	return nil
}

// acknowledged runs a script whose commit must be acknowledged by the standbys that are waited for. A wait that was
// cancelled is no acknowledgement.
func (r *runner) acknowledged(ctx context.Context, script string) error {
	ctx, cancel := context.WithTimeout(ctx, barrierLimit)
	defer cancel()
	c := r.ahead
	r.ahead = nil
	if c == nil || c.pid != r.a.pg.Running() {
		c.close()
		var err error
		if c, err = r.committing(ctx); err != nil {
			return err
		}
	}
	defer c.close()
	_, err := c.conn.PgConn().Exec(ctx, script).ReadAll()
	if err == nil && c.warned.Load() {
		err = errors.New("the wait was cancelled")
	}
	return err
}

// committer is a connection for one commit that must be acknowledged.
type committer struct {
	conn   *pgx.Conn
	pid    int         // of the postmaster
	warned atomic.Bool // the wait for the acknowledgement was cut short
}

func (c *committer) close() {
	if c != nil {
		closeSoon(c.conn)
	}
}

// openAhead opens the barrier's connection while the promotion goes on: a session that was opened in recovery commits after it.
// Without one the barrier opens its own.
func (r *runner) openAhead(ctx context.Context) {
	r.ahead.close()
	r.ahead = nil
	if c, err := r.committing(ctx); err == nil {
		r.ahead = c
	}
}

func (r *runner) committing(ctx context.Context) (*committer, error) {
	cfg, err := pgx.ParseConfig(r.a.pg.LocalDSN("postgres"))
	if err != nil {
		return nil, err
	}
	c := &committer{pid: r.a.pg.Running()}
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Routine == "SyncRepWaitForLSN" {
			c.warned.Store(true)
		}
	}
	for name, value := range map[string]string{
		"application_name": "neki_agent", "search_path": "pg_catalog", "lc_messages": "C", "synchronous_commit": "on",
		"client_min_messages": "warning", "default_transaction_read_only": "off",
	} {
		cfg.RuntimeParams[name] = value
	}
	if c.conn, err = pgx.ConnectConfig(ctx, cfg); err != nil {
		return nil, err
	}
	return c, nil
}

func closeSoon(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = conn.Close(ctx) // the server may be gone
}

// checkpoint has the new primary write one, beside: pg_rewind wants to see the new timeline in its control file.
func (r *runner) checkpoint() {
	r.side.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, checkpointTime)
		defer cancel()
		conn, err := r.a.connect(ctx, "postgres", checkpointTime)
		if err == nil {
			defer closeSoon(conn)
			_, err = conn.Exec(ctx, "CHECKPOINT")
		}
		if err != nil && ctx.Err() == nil {
			r.a.log.Warn("no checkpoint after the promotion", "error", err)
		}
	})
}

// resume lets replay go on.
func (r *runner) resume(ctx context.Context, _ Order) (Result, error) {
	conn, err := r.sql(ctx)
	if err != nil {
		return Result{}, err
	}
	return Result{Done: []string{"replay goes on"}}, unblockReplay(ctx, conn)
}

// replace has the data of this node, which is in no cohort, brought in line with the source's: by pg_rewind or, when
// anew is set, by a copy.
func (r *runner) replace(ctx context.Context, o ReplaceOrder, anew bool) (Result, error) {
	began := time.Now()
	p, m := r.a.memory.get()
	ob := r.a.observer.look(ctx)
	if r.made(o.Fill) {
		return Result{}, nil
	}
	if o.Request == "" && ob.Streaming && m.Source != nil && m.Source.Node == o.Source.Node && m.Term == o.Term {
		return Result{}, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s follows %s already", r.a.cfg.Node, o.Source.Node)
	}
	if r.a.pg.Running() != 0 && !r.a.pg.IsStandby() && !(p.RevokedBelowTerm >= o.Term && p.OwnTerm < o.Term) {
		return Result{}, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s is a primary", r.a.cfg.Node)
	}
	if !anew {
		if err := r.awaitCheckpoint(ctx, o.Source); err != nil {
			return Result{}, err
		}
	}
	r.a.replacing.Store(true)
	defer r.a.replacing.Store(false)
	r.working(o.Request, "stopping")
	defer r.idle()
	// Not known where it stood: it counts again when it has the barrier of the order's term, which comes after all that
	// was acknowledged before.
	at, known := decide.Position{Term: o.Term}, false
	if ob.Up {
		d := decide.Member{Timeline: ob.Timeline, ReceiveLSN: ob.ReceiveLSN, ReplayLSN: ob.ReplayLSN, Replayed: ob.Replayed, Row: ob.Row, History: ob.History}
		if pos, ok := d.Position(); ok {
			at, known = pos, true
		}
	}
	if !p.RewindInProgress || !known {
		if err := r.a.memory.changePromises(func(p *Promises) { *p = decide.Replace(*p, at, ob.Timeline) }); err != nil {
			return Result{}, err
		}
	}
	// The promise is on disk, so nobody takes this node into a cohort from here on.
	if err := r.stillWanted(ctx, o.Fill); err != nil {
		return Result{}, errors.Join(err, r.a.memory.changePromises(func(now *Promises) {
			now.RewindInProgress = p.RewindInProgress
		}))
	}
	if err := r.stop(ctx, pgproc.StopFast); err != nil {
		return Result{}, err
	}
	r.ended()
	source := o.Source
	if err := r.a.memory.changeMember(func(m *Member) { m.Source, m.Term, m.Led, m.Closed = &source, o.Term, false, false }); err != nil {
		return Result{}, err
	}
	what, err := r.refill(ctx, o, anew)
	if err != nil {
		return Result{}, err
	}
	if err := r.a.memory.changePromises(func(p *Promises) { *p = decide.Replaced(*p) }); err != nil {
		return Result{}, err
	}
	if err := r.restored(o.Fill); err != nil {
		return Result{}, err
	}
	step := r.progress(what, began)
	r.ensureRunning(ctx)
	return Result{Done: []string{step}}, nil
}

// awaitCheckpoint waits until the source has a checkpoint on its present timeline. pg_rewind reads the timeline from the
// control file, and before that finds nothing to do.
func (r *runner) awaitCheckpoint(ctx context.Context, source Source) error {
	ctx, cancel := context.WithTimeout(ctx, sourceLimit)
	defer cancel()
	cfg, err := pgx.ParseConfig(fmt.Sprintf("host=%s port=%d user=%s dbname=postgres passfile=%s %s",
		source.Host, source.Port, RoleReplication, quoteConninfo(r.a.passfile()), r.a.sslMode()))
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("the source of pg_rewind: %w", err)
	}
	defer closeSoon(conn)
	for {
		var ready bool
		err := conn.QueryRow(ctx, `SELECT NOT pg_is_in_recovery() AND timeline_id =
			('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int FROM pg_control_checkpoint()`).Scan(&ready)
		if err != nil || ready {
			return err
		}
		select {
		case <-ctx.Done():
			return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "%s has no checkpoint on its timeline yet", source.Node)
		case <-time.After(recoverReload):
		}
	}
}

// refill makes the data anew, or rewinds it. Data that is made anew is laid aside until the new one serves.
func (r *runner) refill(ctx context.Context, o ReplaceOrder, anew bool) (what string, err error) {
	if !anew {
		r.working(o.Request, "pg_rewind from %s", o.Source.Node)
		if err := r.a.pg.Rewind(ctx, r.a.replicationDSN(o.Source)+" dbname=postgres"); err != nil {
			return "", err
		}
		return "rewound to " + o.Source.Node, r.a.writeConf()
	}
	kept, err := r.a.pg.SetAside(time.Now())
	if err != nil {
		return "", err
	}
	if kept != "" {
		r.a.log.Info("the data is laid aside", "as", kept)
	}
	return r.refilled(ctx, o.Fill, o.Source, o.SystemID)
}
