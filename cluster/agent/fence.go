package agent

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"neki/catalog"
	"neki/cluster/decide"
	"neki/internal/pgerr"
)

// Times of fencing.
const (
	guardEvery   = 500 * time.Millisecond // a sixth of the isolation timeout
	guardRead    = 400 * time.Millisecond
	defaultDrain = 2 * time.Second
	drainPoll    = 2 * time.Millisecond
)

// bootTime is a clock that goes on while the machine sleeps.
func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// guard is the watch of a primary over its own right to serve. Its goroutine runs run.
type guard struct {
	a         *Agent
	conn      *pgx.Conn
	confirmed time.Duration // start of the last read that confirmed it; 0 = none
	alone     bool          // the last rule that was read has nobody else who could lead
}

// guards judges, until ctx ends.
func (a *Agent) guards(ctx context.Context) error {
	g := &guard{a: a}
	defer g.disconnect()
	return every(ctx, guardEvery, func(time.Time) { g.judge(ctx) })
}

// judge looks for a proof that this primary may serve, and fences it when there is none.
func (g *guard) judge(ctx context.Context) {
	a := g.a
	p, m := a.memory.get()
	if a.pg.IsStandby() || p.RevokedBelowTerm > p.OwnTerm {
		a.selfFenced.Store(0) // it leads no more
	}
	if a.pg.Running() == 0 || a.pg.IsStandby() || p.OwnTerm == 0 || !m.Led || p.RevokedBelowTerm > p.OwnTerm {
		g.disconnect()
		return
	}
	began := bootTime()
	rctx, cancel := context.WithTimeout(ctx, guardRead)
	rule, err := catalog.GetRule(rctx, a.cfg.Store, a.cfg.Cluster, a.cfg.Shard)
	cancel()
	if err == nil && decide.Confirms(p, a.cfg.Node, &rule) {
		g.confirmed, g.alone = began, len(rule.Cohort) < 2 && rule.W == 0
		if at := a.selfFenced.Load(); at != 0 && began >= time.Duration(at) {
			a.log.Info("this node leads: it serves again")
			a.selfFenced.Store(0)
			a.nudgeRunner()
		}
	} else if err == nil {
		g.alone = false
	}
	if ctx.Err() != nil || a.selfFenced.Load() != 0 || p.ResignedTerm == p.OwnTerm || g.alone {
		return
	}
	proof := decide.Proof{Confirmed: decide.Never, Acks: m.Acks}
	if g.confirmed != 0 {
		proof.Confirmed = bootTime() - g.confirmed
	}
	if proof.Confirmed > decide.DefaultTiming().Isolation/2 { // the replies cost a query
		proof.Replies = g.replies(ctx, m)
	}
	if decide.Serves(proof, decide.DefaultTiming().Isolation) {
		return
	}
	a.log.Warn("nothing proves that this node still leads: it fences itself", "unconfirmed_for", proof.Confirmed)
	a.selfFenced.Store(int64(max(bootTime(), 1)))
	a.sampleNow()
	a.nudgeRunner()
}

// replies are the ages of the last words of the standbys that may acknowledge.
func (g *guard) replies(ctx context.Context, m Member) []time.Duration {
	ctx, cancel := context.WithTimeout(ctx, guardRead)
	defer cancel()
	if g.conn == nil || g.conn.IsClosed() {
		conn, err := g.a.connect(ctx, "postgres", guardRead)
		if err != nil {
			return nil
		}
		g.conn = conn
	}
	list, err := walsenders(ctx, g.conn)
	if err != nil {
		g.disconnect()
		return nil
	}
	var ages []time.Duration
	for _, w := range list {
		if w.Streaming && w.Sync && contains(m.Standbys, w.Node) {
			ages = append(ages, w.ReplyAge)
		}
	}
	return ages
}

func (g *guard) disconnect() {
	if g.conn != nil {
		closeSoon(g.conn)
		g.conn = nil
	}
}

// nudgeRunner has the runner look at what it should do.
func (a *Agent) nudgeRunner() {
	select {
	case a.attend <- struct{}{}:
	default:
	}
}

// attend brings a running primary in line with what it may do: fenced when it fenced itself, opened when its barrier can
// be acknowledged.
func (r *runner) attend(ctx context.Context) {
	if r.a.pg.Running() == 0 || r.a.pg.IsStandby() || !r.a.pg.Ready() {
		return
	}
	p, m := r.a.memory.get()
	if r.a.selfFenced.Load() != 0 {
		r.shut(ctx, m)
		return
	}
	if !m.Closed || !m.Led || p.RevokedBelowTerm > p.OwnTerm || p.ResignedTerm == p.OwnTerm {
		return
	}
	err := r.reconfigure(ctx)
	if err == nil {
		err = r.open(ctx)
	}
	if err != nil && ctx.Err() == nil {
		r.complain("not open to clients yet", err)
	}
}

// shut takes a primary that fenced itself out of service.
func (r *runner) shut(ctx context.Context, m Member) {
	if m.Closed && r.shutFor == r.a.selfFenced.Load() {
		return
	}
	at := r.a.selfFenced.Load()
	err := r.a.memory.changeMember(func(m *Member) { m.Closed = true })
	r.a.inForce.Store(nil)
	if err == nil {
		err = r.reconfigure(ctx)
	}
	var conn *pgx.Conn
	if err == nil {
		conn, err = r.sql(ctx)
	}
	if err == nil {
		err = endClients(ctx, conn)
	}
	if err != nil {
		r.complain("fencing itself goes on", err)
		return
	}
	r.shutFor = at
}

// fence has a primary resign: nothing is acknowledged after the position that it then reports.
func (r *runner) fence(ctx context.Context, o FenceOrder) (Result, error) {
	conn, err := r.primary(ctx)
	if err != nil {
		return Result{}, err
	}
	if r.a.fencedLSN.Load() != 0 {
		return Result{}, nil
	}
	r.a.inForce.Store(nil)
	r.a.setPhase(catalog.StateDraining, "a switchover is under way")
	if o.Drain == 0 {
		o.Drain = defaultDrain
	}
	if list := r.a.holders.awaitHeld(ctx, o, heldLimit); len(list) > 0 { // what they send is refused, and they run it elsewhere
		r.a.log.Info("hands over though some gateways have not said that they hold", "gateways", list)
	}
	r.step("gateways")
	if err := r.drain(ctx, conn, o.Drain); err != nil {
		return Result{}, err
	}
	r.step("drain")
	if err := r.unacknowledged(ctx, conn); err != nil {
		return Result{}, err
	}
	r.step("fence")
	var text string
	if err := conn.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&text); err != nil {
		return Result{}, err
	}
	lsn, err := catalog.ParseLSN(text)
	if err != nil {
		return Result{}, err
	}
	r.a.fencedLSN.Store(uint64(lsn))
	return Result{Done: []string{"acknowledges nothing after " + text}}, nil
}

// unacknowledged has the server acknowledge nothing any more, and proves it: each walsender that streams says that it
// counts for nothing. One that comes later starts with the configuration of the postmaster, so without any the proof is a
// new session's.
func (r *runner) unacknowledged(ctx context.Context, conn *pgx.Conn) error {
	if err := r.reconfigureSoon(ctx); err != nil {
		return err
	}
	var streaming int
	err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'").Scan(&streaming)
	if err == nil && streaming == 0 {
		err = r.reload(ctx)
	}
	if err != nil {
		return err
	}
	return awaitStandbys(ctx, conn, LeadOrder{Acks: 1})
}

// drain lets no client begin to write any more, and then waits a while for what they have open: it can still be
// acknowledged. What begins after that is told to go elsewhere.
func (r *runner) drain(ctx context.Context, conn *pgx.Conn, limit time.Duration) error {
	r.a.draining.Store(true)
	defer r.a.draining.Store(false)
	if err := r.a.writeConf(); err != nil {
		return err
	}
	if err := r.reloadSeen(ctx, conn); err != nil {
		return err
	}
	return awaitIdle(ctx, conn, limit)
}

// reloadSeen has the server read its files, and waits until the session of conn has: the postmaster tells all at once.
func (r *runner) reloadSeen(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	var before, now time.Time
	if err := conn.QueryRow(ctx, "SELECT pg_conf_load_time()").Scan(&before); err != nil {
		return err
	}
	if err := r.a.pg.Reload(); err != nil {
		return err
	}
	for !now.After(before) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(standbyPoll):
		}
		if err := conn.QueryRow(ctx, "SELECT pg_conf_load_time()").Scan(&now); err != nil {
			return err
		}
	}
	return nil
}

// awaitIdle waits a while for statements and transactions of clients to end.
func awaitIdle(ctx context.Context, conn *pgx.Conn, limit time.Duration) error {
	ends := time.Now().Add(limit)
	for time.Now().Before(ends) {
		var open int
		err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
			AND state IN ('active', 'idle in transaction') AND pid <> pg_backend_pid() AND application_name <> 'neki_agent'`).Scan(&open)
		if err != nil || open == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(drainPoll):
		}
	}
	return nil
}

// unfence takes a resignation back, by an order and by what the catalog says now.
func (r *runner) unfence(ctx context.Context, o LeadOrder) (Result, error) {
	rctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	rule, err := catalog.GetRule(rctx, r.a.cfg.Store, r.a.cfg.Cluster, r.a.cfg.Shard)
	if err != nil {
		return Result{}, err
	}
	p, _ := r.a.memory.get()
	head := decide.Head{Epoch: o.Epoch, Term: o.Term, Sub: o.Sub, OpID: o.OpID}
	if err := decide.MayUnfence(p, r.a.cfg.Node, head, &rule, decide.Flaws{}); err != nil {
		return Result{}, err
	}
	if r.a.pg.Running() == 0 || r.a.pg.IsStandby() {
		return Result{}, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s is no running primary", r.a.cfg.Node)
	}
	if err := r.a.memory.changePromises(func(p *Promises) { p.ResignedTerm = 0 }); err != nil {
		return Result{}, err
	}
	r.a.fencedLSN.Store(0)
	if err := r.reconfigure(ctx); err != nil {
		return Result{}, err
	}
	if err := r.open(ctx); err != nil {
		return Result{}, err
	}
	r.a.clearPhase()
	return Result{Done: []string{"takes clients again"}}, nil
}
