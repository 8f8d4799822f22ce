package agent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/catalog"
)

// How often things are looked at.
const (
	sampleEvery  = 250 * time.Millisecond // the resolution of lag
	reportEvery  = time.Second            // the longest silence of a stream
	usageEvery   = time.Second            // processes, disk, connections
	probeEvery   = 500 * time.Millisecond // new connections
	probeTimeout = time.Second
	sizeEvery    = time.Minute // pg_database_size looks at every file
	queryTimeout = 2 * time.Second
	// frozenTimeout bounds questions to a server that answers no new connection.
	frozenTimeout = 250 * time.Millisecond
	// freshFor is how old the receiver's last message may be: a cut link looks like an idle one for some seconds.
	freshFor = 3 * time.Second
)

// healthQuery is one round trip; each instance answers it four times a second.
const healthQuery = `
SELECT pg_is_in_recovery(),
       CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_flush_lsn() END::text,
       pg_last_wal_receive_lsn()::text, pg_last_wal_replay_lsn()::text,
       coalesce(r.status = 'streaming', false),
       coalesce(extract(epoch FROM clock_timestamp() - r.last_msg_receipt_time), 0)::float8,
       coalesce(r.received_tli,
                CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
                     ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END)
  FROM (SELECT) one LEFT JOIN pg_stat_wal_receiver r ON true`

const usageQuery = `
SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       current_setting('max_connections')::int, current_setting('server_version')`

const sizeQuery = `
SELECT coalesce(sum(pg_database_size(d.oid)), 0)::int8,
       (SELECT coalesce(sum(checksum_failures), 0)::int8 FROM pg_stat_database)
  FROM pg_database d`

// sampler gathers reports. Its goroutine alone uses the connection.
type sampler struct {
	a        *Agent
	conn     *pgx.Conn
	received catalog.Ring // of a replica: when it had received what, for its own idea of lag
	usage    usage
	slow     catalog.Health // the figures that are not asked for each time
	usageAt  time.Time
	sizeAt   time.Time
	last     catalog.Health
	lastAt   time.Time
}

// sample runs until ctx ends.
func (a *Agent) sample(ctx context.Context) error {
	s := &sampler{a: a}
	defer s.disconnect()
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for kicked := false; ; {
		one, cancel := context.WithCancel(ctx)
		a.sampling.Store(&cancel)
		if !kicked { // who kicks wants it told at once
			s.refreshUsage(one)
		}
		h := s.collect(one)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		s.publish(h, time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			kicked = false
		case <-a.kick:
			kicked = true
		}
	}
}

// interruptSample ends the sampler's wait for a server that answers nothing, so that this is told at once.
func (a *Agent) interruptSample() {
	if cancel := a.sampling.Load(); cancel != nil {
		(*cancel)()
	}
}

// patience is how long the server is waited for: as usual, or less when it answered no new connection lately. A failover must
// not wait for a frozen server at each step.
func (a *Agent) patience(usual time.Duration) time.Duration {
	if a.probed.Load() != nil {
		return min(usual, frozenTimeout)
	}
	return usual
}

// publish passes a primary's report on always, another's when it says something new or a second has passed.
func (s *sampler) publish(h catalog.Health, now time.Time) {
	same := s.last
	same.LastMsgAge, same.Lag = h.LastMsgAge, h.Lag
	if h.Role != catalog.RolePrimary && now.Sub(s.lastAt) < reportEvery-sampleEvery/2 && reflect.DeepEqual(same, h) {
		return
	}
	s.last, s.lastAt = h, now
	s.a.health.publish(h, now)
}

// collect makes one report, whatever state the instance is in.
func (s *sampler) collect(ctx context.Context) catalog.Health {
	promises, member := s.a.memory.get()
	h := s.slow
	h.Node, h.Term = s.a.cfg.Node, max(promises.OwnTerm, member.Term)
	h.SystemID = promises.SystemID
	ph := s.a.phase.Load()
	switch pid := s.a.pg.Running(); {
	case pid == 0:
		s.disconnect()
		h.State, h.Reason = catalog.StateStopped, s.a.stoppedReason()
	case !s.a.pg.Ready() && s.conn == nil:
		h.State, h.Reason = catalog.StateStarting, "recovering"
	default:
		h = s.ask(ctx, h)
	}
	if ph != nil {
		h.State, h.Reason = ph.state, ph.reason
	}
	return h
}

// shut tells of a primary that takes no clients: its barrier is not acknowledged, or it resigned.
func (a *Agent) shut() bool {
	p, m := a.memory.get()
	return m.Closed || p.ResignedTerm != 0 && p.ResignedTerm == p.OwnTerm
}

func (a *Agent) stoppedReason() string {
	if !a.pg.HasData() {
		return "empty: waits for the admin"
	}
	if e, ok := a.pg.LastExit(); ok {
		return "postmaster ended: " + e.Status
	}
	return "not started"
}

// ask fills in what Postgres says.
func (s *sampler) ask(ctx context.Context, h catalog.Health) catalog.Health {
	err := s.query(ctx, &h)
	if err != nil {
		s.disconnect()
	}
	probed := s.a.probed.Load()
	switch {
	case probed != nil: // which is why the query, on a connection of its own, may have had no answer either
		h.State, h.Reason = catalog.StateUnreachable, "new connections are not answered: "+(*probed).Error()
	case err != nil:
		h.State, h.Reason = catalog.StateUnreachable, "no answer to the health query: "+err.Error()
	case s.a.selfFenced.Load() != 0:
		h.State, h.Reason = catalog.StateFenced, "fenced itself: nothing proves that it still leads"
	case h.Role == catalog.RolePrimary && s.a.shut():
		h.State, h.Reason = catalog.StateStarting, "takes no clients before its first commit is acknowledged"
	case h.Role == catalog.RoleReplica && !h.Streaming:
		h.State, h.Reason = catalog.StateCatchingUp, "not streaming from a primary"
	default:
		h.State = catalog.StateServing
	}
	return h
}

func (s *sampler) query(ctx context.Context, h *catalog.Health) error {
	ctx, cancel := context.WithTimeout(ctx, s.a.patience(queryTimeout))
	defer cancel()
	if err := s.connect(ctx); err != nil {
		return err
	}
	var recovery bool
	var flush, receive, replay *string
	var age float64
	err := s.conn.QueryRow(ctx, healthQuery).Scan(&recovery, &flush, &receive, &replay, &h.Streaming, &age, &h.Timeline)
	if err != nil {
		return err
	}
	now := time.Now()
	for _, f := range []struct {
		text *string
		to   *catalog.LSN
	}{{flush, &h.FlushLSN}, {receive, &h.ReceiveLSN}, {replay, &h.ReplayLSN}} {
		if f.text == nil {
			continue
		}
		if *f.to, err = catalog.ParseLSN(*f.text); err != nil {
			return err
		}
	}
	if !recovery {
		h.Role, h.Streaming, h.ReceiveLSN, h.ReplayLSN = catalog.RolePrimary, false, 0, 0
		s.received = catalog.Ring{}
		return nil
	}
	h.Role, h.LastMsgAge = catalog.RoleReplica, time.Duration(age*float64(time.Second))
	s.ownLag(h, now)
	return nil
}

// ownLag tells how far replay is behind what was received from a primary that is alive; else it stays unknown.
func (s *sampler) ownLag(h *catalog.Health, now time.Time) {
	if h.ReceiveLSN != 0 {
		s.received.Add(now, h.ReceiveLSN)
	}
	if !h.Streaming || h.LastMsgAge > freshFor {
		return
	}
	if lag, known := s.received.Lag(now, h.ReplayLSN); known {
		h.Lag = &lag
	}
}

// connect opens the health connection. It commits nothing, is never held up by synchronous replication, and sees no
// objects of users.
func (s *sampler) connect(ctx context.Context) error {
	if s.conn != nil && !s.conn.IsClosed() {
		return nil
	}
	var err error
	s.conn, err = s.a.connect(ctx, "postgres", queryTimeout)
	return err
}

// connect opens a superuser connection over the Unix socket.
func (a *Agent) connect(ctx context.Context, database string, timeout time.Duration) (*pgx.Conn, error) {
	cfg, err := a.connConfig(database, timeout)
	if err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, cfg)
}

// connConfig is how connect connects.
func (a *Agent) connConfig(database string, timeout time.Duration) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(a.pg.LocalDSN(database))
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		"application_name": "neki_agent", "search_path": "pg_catalog", "lc_messages": "C", "synchronous_commit": "local",
		"statement_timeout": fmt.Sprint(timeout.Milliseconds()), "default_transaction_read_only": "off",
	} {
		cfg.RuntimeParams[name] = value
	}
	return cfg, nil
}

func (s *sampler) disconnect() {
	if s.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = s.conn.Close(ctx) // the server may be gone
	s.conn = nil
}

// refreshUsage renews the slower figures when they are due.
func (s *sampler) refreshUsage(ctx context.Context) {
	now := time.Now()
	if now.Sub(s.usageAt) < usageEvery {
		return
	}
	s.usageAt = now
	pid := s.a.pg.Running()
	s.slow.CPU, s.slow.MemoryBytes = s.usage.processes(pid, now)
	s.slow.DiskTotal, s.slow.DiskFree = diskSpace(s.a.cfg.Dir)
	s.slow.ReadIOPS, s.slow.WriteIOPS = s.usage.volume(s.a.cfg.Dir, now)
	s.slow.PostgresVersion = s.a.cfg.Installation.Version
	if pid == 0 || s.conn == nil {
		s.slow.Connections = 0
		return
	}
	qctx, cancel := context.WithTimeout(ctx, s.a.patience(queryTimeout))
	defer cancel()
	err := s.conn.QueryRow(qctx, usageQuery).Scan(&s.slow.Connections, &s.slow.MaxConnections, &s.slow.PostgresVersion)
	if err == nil && now.Sub(s.sizeAt) >= sizeEvery {
		s.sizeAt = now
		var failures int64
		if err = s.conn.QueryRow(qctx, sizeQuery).Scan(&s.slow.SizeBytes, &failures); err == nil && failures > 0 {
			damage := fmt.Sprintf("%d pages failed their checksums", failures)
			s.a.damage.Store(&damage)
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		s.a.log.Debug("usage query failed", "error", err) // the health query says the rest
	}
}
