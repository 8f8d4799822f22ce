package pooler

import (
	"context"
	"strings"
	"time"

	admin "neki/admin_sql"
	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/settings"
)

// facts is a Server as the neki schema asks it. All answers come from memory.
type facts struct{ *Server }

// Facts gives the inputs of the neki schema that a gateway has.
func (s *Server) Facts() interface {
	admin.Sessions
	admin.Pools
	admin.Plans
	admin.Statements
	admin.ReplicaChoice
	admin.Gateways
	admin.Controls
	TopologyChecks
} {
	return facts{s}
}

// Sessions lists the gateway's clients.
func (f facts) Sessions(context.Context) ([]admin.SessionRow, error) {
	var rows []admin.SessionRow
	f.sessions.each(func(c *Session) { rows = append(rows, c.row()) })
	return rows, nil
}

// row describes the session. It is called by other goroutines than the session's.
func (c *Session) row() admin.SessionRow {
	state := sessionState(c.state.Load())
	since := time.Unix(0, c.since.Load())
	r := admin.SessionRow{
		Gateway: c.srv.cfg.ID, PID: int32(c.pid), User: c.user, Database: c.db.name,
		ClientAddr: strings.TrimPrefix(c.addr, "@"), // of a Unix socket: unknown
		State:      state.String(), InTx: state == stateIdleInTx || state == stateIdleInFailedTx,
		ConnectedAt: c.connected, StateChange: since, Settings: map[string]string{},
	}
	if state == stateActive {
		r.QueryStart = since
	}
	if shard := c.leasedShard.Load(); shard != nil {
		r.Shards = []string{*shard}
	}
	if p := c.lastPlan.Load(); p != nil {
		r.Query = p.Query
	}
	c.mu.Lock()
	public := c.public
	if state == stateActive && c.text != nil {
		r.Query = string(c.text)
	}
	if c.queued {
		r.WaitReason = "waits for a server connection"
		if shard, paused := c.ticket.Paused(); paused {
			r.WaitReason = "shard " + shard + " is paused"
		}
	}
	c.mu.Unlock()
	r.Pinned = public.pins.Reasons()
	vars := public.vars
	if vars == nil {
		vars = c.defaults
	}
	if app, ok := vars.GUC("application_name"); ok {
		r.Application = app
	}
	for _, s := range settings.All() {
		r.Settings[s.Name] = s.Format(vars.Neki())
	}
	return r
}

// publish shows what neki.sessions tells of the session, when it has changed.
func (c *Session) publish() {
	held := c.keptPID()
	if c.public.vars == c.vars && c.public.pins == c.pins && c.public.held == held { // only this goroutine writes it
		return
	}
	c.mu.Lock()
	c.public = publicState{vars: c.vars, pins: c.pins, held: held}
	c.mu.Unlock()
}

// keptPID gives the server process that the session keeps for its next statement, 0 when it keeps none.
func (c *Session) keptPID() uint32 {
	switch {
	case c.lease != nil:
		return c.lease.PID()
	case c.home != nil:
		return c.home.PID()
	}
	return 0
}

// Pools lists the pools.
func (f facts) Pools(context.Context) ([]admin.PoolRow, error) {
	stats := f.pools.Stats()
	rows := make([]admin.PoolRow, len(stats))
	for i, p := range stats {
		rows[i] = admin.PoolRow{
			Node: p.Node, User: p.User, Database: p.Database, Capacity: int32(p.Capacity), Active: int32(p.Active),
			Idle: int32(p.Idle), Waiting: int32(p.Waiting), MaxWait: p.MaxWait,
		}
	}
	return rows, nil
}

// Reads counts the reads sent to an instance.
func (f facts) Reads(node string) (int64, bool) {
	return f.pools.Node(node).Reads.Load(), true
}

// Plans lists the plan cache.
func (f facts) Plans(context.Context) ([]admin.PlanRow, error) {
	plans := f.planner.Plans()
	rows := make([]admin.PlanRow, len(plans))
	for i, p := range plans {
		rows[i] = admin.PlanRow{
			Fingerprint: p.Fingerprint, Query: p.Query, Kind: p.Route.Kind.String(), Fanout: "single",
			Tables: p.Tables, Hits: p.Hits(), Bytes: p.Bytes(),
		}
	}
	return rows, nil
}

// Statements lists the statistics.
func (f facts) Statements(context.Context) ([]admin.StatementRow, error) {
	list := f.planner.Statistics().List()
	rows := make([]admin.StatementRow, len(list))
	for i, st := range list {
		rows[i] = admin.StatementRow{
			Fingerprint: st.Fingerprint, Query: st.Query, Calls: st.Calls, Errors: st.Errors, Rows: st.Rows,
			ShardCalls: st.ShardCalls, P50: st.P50, P95: st.P95, P99: st.P99,
		}
	}
	return rows, nil
}

// Judge judges every replica and rdonly instance of a shard under the default settings, each for reads of its own role.
func (f facts) Judge(snap *catalog.Snapshot, shard string) []admin.Candidate {
	var out []admin.Candidate
	for _, role := range []catalog.Role{catalog.RoleReplica, catalog.RoleRdonly} {
		req := backend.Request{Shard: shard, Role: role, Neki: settings.Default(), Lag: f.lag()}
		for _, k := range f.picker.Candidates(snap, &req) {
			if k.Role == role {
				out = append(out, f.candidate(k))
			}
		}
	}
	return out
}

func (f facts) candidate(k backend.Candidate) admin.Candidate {
	return admin.Candidate{
		Node: k.Node, Tier: k.Tier, Reason: k.Reason, Sticky: k.Sticky, Local: k.Cell == f.cell(),
		Outstanding: int32(k.Load),
	}
}

// Choose tells how the session's next read from a replica would choose.
func (f facts) Choose(_ context.Context, sess admin.Session, snap *catalog.Snapshot, shard string) ([]admin.Candidate, error) {
	v, ok := sess.(*virtualSession)
	if !ok {
		return nil, pgerr.New(pgerr.InternalError, "not a session of this gateway")
	}
	c := (*Session)(v)
	role := catalog.RoleReplica
	if c.vars.Neki().Target == settings.TargetRdonly {
		role = catalog.RoleRdonly
	}
	st := c.shardState(shard)
	req := backend.Request{Shard: shard, Role: role, Neki: c.vars.Neki(), Lag: f.lag(), Sticky: st.sticky, Floor: st.floor}
	candidates := f.picker.Candidates(snap, &req)
	out := make([]admin.Candidate, len(candidates))
	for i, k := range candidates {
		out[i] = f.candidate(k)
	}
	return out, nil
}

// GatewayStatuses tells of this gateway.
func (f facts) GatewayStatuses(context.Context) map[string]admin.GatewayStatus {
	return map[string]admin.GatewayStatus{f.cfg.ID: {
		Clients: int32(f.sessions.len()), TopologyRevision: f.cfg.Cluster.Snapshot().Revision, Draining: f.Draining(),
	}}
}

// CancelQuery cancels what a session runs.
func (f facts) CancelQuery(_ context.Context, pid int32) (bool, error) {
	return f.Server.CancelQuery(uint32(pid)), nil
}

// KillSession ends a session.
func (f facts) KillSession(_ context.Context, pid int32) (bool, error) {
	return f.Server.KillSession(uint32(pid)), nil
}

// Reload reads roles and functions anew.
func (f facts) Reload(ctx context.Context) error {
	f.roles.invalidate()
	f.dbs.reload(ctx)
	if f.cfg.Reload != nil {
		return f.cfg.Reload(ctx)
	}
	return nil
}

// Drain takes this gateway out of service.
func (f facts) Drain(_ context.Context, gateway string) error {
	if gateway != f.cfg.ID {
		return pgerr.New(pgerr.InvalidParameterValue, "this is gateway %s, not %s", f.cfg.ID, gateway)
	}
	f.Server.Drain()
	return nil
}

// FlushPlans forgets the cached plans.
func (f facts) FlushPlans(context.Context) error {
	f.planner.Flush()
	return nil
}
