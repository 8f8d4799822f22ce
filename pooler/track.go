package pooler

import (
	"encoding/binary"
	"os"
	"strings"
	"time"

	"neki/internal/pgerr"
	"neki/internal/pgwire"
	"neki/pooler/backend"
	"neki/pooler/plan"
	"neki/settings"
	"neki/sqlparse"
)

// ParameterChanged notes a ParameterStatus. The client is told before ReadyForQuery, of what differs from what it knows.
func (c *Session) ParameterChanged(name, value []byte) (forward bool) {
	if c.lease != nil {
		c.lease.Reported(name, value)
	}
	return false
}

// Completed notes the end of a statement, and what it has changed.
func (c *Session) Completed(index, nth int, tag []byte) {
	w := c.work
	var p *plan.Plan
	switch {
	case index < len(w.plans):
		p = w.plans[index]
	case nth < len(w.parts):
		p = w.parts[nth].Plan
	}
	if p != nil {
		c.follow(p, tag)
	}
	if c.hit.Load() && c.muffled() { // whether it was the commit's wait that was cancelled can't be told
		w.relay.Unreplicated = true
	}
}

// Failed notes an error of the server.
func (c *Session) Failed(index int, code []byte, fatal bool) {
	c.failed = true
	c.recollect()
	c.countError()
	if len(c.parsing) > 0 {
		c.unparse(index)
	}
	if string(code) == pgerr.FeatureNotSupported {
		c.renewAt(index)
	}
	c.failedAt(index)
	c.dropPreparing()
	for i := range c.work.parts {
		c.pinFailed(c.work.parts[i].Plan, code)
	}
	if c.current != nil {
		c.pinFailed(c.current, code)
	}
}

// Ready notes a ReadyForQuery that is about to reach the client.
func (c *Session) Ready(_ int, _ byte) {
	c.afterReady()
	r := c.work.relay
	if c.lease != nil && c.lease.Params() != c.shown && c.effective(c.lease.Params()) != c.effective(c.shown) {
		r.Append(c.appendParameterChanges(nil))
	}
	if c.sub != nil {
		r.Append(c.takeNotifications())
	}
}

// afterReady takes the transaction status over and settles what the statements have changed.
func (c *Session) afterReady() {
	status := c.work.relay.Status
	c.open = false
	if status == 'I' {
		if c.newSchema { // whether it was committed or not
			c.newSchema = false
			c.db.relations.Invalidate()
		}
		if c.failed {
			c.tx.rolledBack(c)
		} else {
			c.tx.committed(c)
		}
		c.stx = nil // it was on one shard
		c.settleNotifications()
	}
	c.status = status
	if c.lease != nil {
		c.lease.SetStatus(status)
	}
}

// endStatement settles the session after a statement in which a server has no last word.
func (c *Session) endStatement() {
	c.now = c.srv.now()
	if c.status == 'I' && !c.open {
		if c.failed {
			c.tx.rolledBack(c)
		}
		c.endPortals()
	}
	c.endActive()
	if c.work != nil {
		c.releaseIfFree()
	}
	c.record(c.now)
}

// endPortals forgets the portals: they end with their transaction.
func (c *Session) endPortals() {
	c.portal = nil
	c.portalAt, c.describing = portalPlace{}, nil
	if c.suspended != nil {
		c.dropSuspended()
	}
	if len(c.portalsAt) > 0 {
		clear(c.portalsAt)
	}
	if len(c.portals) > 0 {
		clear(c.portals)
	}
	if len(c.ownPortals) > 0 {
		clear(c.ownPortals)
	}
}

// finish ends a statement or segment whose answers have all come.
func (c *Session) finish(now time.Time) error {
	c.now = now
	c.endActive()
	if c.status == 'I' {
		c.endPortals()
	}
	c.dropUnpinned()
	c.releaseIfFree()
	c.record(now)
	c.settle(now)
	c.calm = c.resting()
	if c.dying {
		return os.ErrDeadlineExceeded // as if it had come to its wait for the client
	}
	if c.leaving.Load() {
		return c.leave()
	}
	return nil
}

// dropUnpinned gives the pinned connection back once nothing pins it any more.
func (c *Session) dropUnpinned() {
	if c.home == nil || c.pins != 0 {
		return
	}
	sc := c.home
	c.home = nil
	if sc != c.lease {
		c.letGo(sc)
	}
}

// note makes p the statement that the session is seen running.
func (c *Session) note(p *plan.Plan) {
	c.current = p
	if c.lease != nil && mayDraw(p) {
		c.drew = true
	}
	if c.lastPlan.Load() != p {
		c.lastPlan.Store(p)
	}
}

// record counts the statement that has ended.
func (c *Session) record(now time.Time) {
	p := c.current
	if p == nil {
		return
	}
	c.current = nil
	o := plan.Observation{Duration: now.Sub(c.begun), Failed: c.failed}
	if c.work != nil {
		o.Rows = int64(c.work.relay.Rows)
	}
	if p.Route.Backend() {
		o.ShardCalls = max(c.shardCalls, 1)
	}
	c.shardCalls = 0
	c.srv.planner.Statistics().Record(p, o)
	c.srv.metrics.statements.Inc()
}

func (c *Session) countError() { c.srv.metrics.errors.Inc() }

// effective is the part of a set of parameters that the client is told: under target auto a session hops between the
// primary and replicas, and whether the present one is a standby is nothing it could go by.
func (c *Session) effective(s *backend.ParamSet) *backend.ParamSet {
	if s != nil && c.vars.Neki().Target == settings.TargetAuto {
		return s.Served()
	}
	return s
}

// appendParameterChanges appends a ParameterStatus for each parameter of the server in use that the client does not
// know yet.
func (c *Session) appendParameterChanges(dst []byte) []byte {
	now := c.reports
	c.reports = nil
	if c.lease != nil {
		now = c.lease.Params()
	}
	if now == nil {
		return dst
	}
	from, to := c.effective(c.shown), c.effective(now)
	if from == to || from == nil {
		return dst
	}
	from.Changes(to, func(p pgwire.Pair) { dst = appendParameter(dst, p) })
	c.shown = now
	return dst
}

func appendParameter(dst []byte, p pgwire.Pair) []byte {
	dst = append(dst, 'S')
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+len(p.Name)+1+len(p.Value)+1))
	dst = append(append(dst, p.Name...), 0)
	return append(append(dst, p.Value...), 0)
}

// follow remembers what a completed statement has changed in the session.
func (c *Session) follow(p *plan.Plan, tag []byte) {
	if c.stx != nil {
		c.followShards(p)
	}
	if p.Kind.IsTransaction() {
		c.tx.control(c, p, tag)
		return
	}
	if mayDraw(p) {
		c.drew = true
	}
	if p.Set != nil {
		c.followSet(p.Set)
	}
	for i := range p.SetConfigs {
		c.followSetConfig(&p.SetConfigs[i])
	}
	if p.Pins != 0 {
		c.pin(p.Pins)
	}
	c.followSequences(p)
	switch p.Kind {
	case sqlparse.KindShow:
		if p.Show == "all" {
			c.work.relay.Append(c.appendOwnSettings(nil))
		}
	case sqlparse.KindListen, sqlparse.KindUnlisten:
		c.listened(p)
	case sqlparse.KindDiscard:
		c.followDiscard(p.Discard)
	case sqlparse.KindPrepare:
		c.keepPrepared()
	case sqlparse.KindDeallocate:
		if p.Prepared.All {
			c.lease.ForgetAll()
			clear(c.statements)
		}
	case sqlparse.KindDDL:
		c.followDDL(p)
	}
	if p.ChangesFunctions {
		c.db.functions.Invalidate()
	}
	c.newSchema = c.newSchema || changesSchema(p)
}

// changesSchema reports whether relations or types may have changed. What a function or procedure changes is learned with the
// next refresh: every call of one would else make all plans be made again.
func changesSchema(p *plan.Plan) bool {
	return p.Kind == sqlparse.KindDDL || p.Kind == sqlparse.KindDo || p.ChangesFunctions || p.Tag == "SELECT INTO" ||
		p.Effects.Any(sqlparse.EffectTempObject)
}

// pin keeps the connection in use for this client. When another one is kept already, this one is closed after use: what
// is left in it must not reach anybody.
func (c *Session) pin(pins plan.Pins) {
	c.pins |= pins
	if c.home != nil && c.home != c.lease && c.lease != nil && pins != plan.PinListen { // the hub takes that
		c.lease.Broken()
	}
}

// pinFailed pins for what p may have done before it, or the string that it is part of, failed: a rollback does not take
// these back. A text that the server can't parse either has done nothing.
func (c *Session) pinFailed(p *plan.Plan, code []byte) {
	if p.ParseError != nil && string(code) == pgerr.SyntaxError {
		return
	}
	if pins := p.Pins & (plan.PinOpaque | plan.PinAdvisoryLock | plan.PinSetSeed | plan.PinLoad); pins != 0 {
		c.pin(pins)
	}
}

// followSet remembers a SET or RESET.
func (c *Session) followSet(s *sqlparse.SetStmt) {
	switch {
	case s.Local || s.Special == sqlparse.SpecialSnapshot:
	case s.Special == sqlparse.SpecialTransaction:
		if s.Tx.ReadOnly != nil || s.Tx.Isolation != "" {
			c.tx.state = plan.BeginState(s.Tx.ReadOnly != nil && *s.Tx.ReadOnly, s.Tx.Isolation)
		}
	case s.Special == sqlparse.SpecialCharacteristics:
		c.followCharacteristics(s.Tx)
	case s.All:
		c.vars = c.srv.interner.ResetAll(c.vars, c.defaults)
		c.serverVars(func(v *settings.Vars) *settings.Vars {
			return c.srv.interner.ResetAll(v, c.srv.interner.Empty())
		})
	case s.Default:
		c.reset(s.Name)
	default:
		c.set(s.Name, s.Value)
	}
}

func (c *Session) set(name, value string) {
	in := c.srv.interner
	c.resetRole(name)
	c.vars = in.With(c.vars, name, value)
	c.serverVars(func(v *settings.Vars) *settings.Vars { return in.With(v, name, value) })
}

// resetRole notes that SET SESSION AUTHORIZATION ends a SET ROLE.
func (c *Session) resetRole(name string) {
	if !strings.EqualFold(name, settings.SessionAuthorization) {
		return
	}
	none := func(v *settings.Vars) *settings.Vars {
		if _, ok := v.GUC("role"); !ok {
			return v
		}
		return c.srv.interner.With(v, "role", "none")
	}
	c.vars = none(c.vars)
	c.serverVars(none)
}

func (c *Session) reset(name string) {
	in := c.srv.interner
	c.resetRole(name)
	if v, err := in.Reset(c.vars, name, c.defaults); err == nil {
		c.vars = v
	}
	c.serverVars(func(v *settings.Vars) *settings.Vars { return in.Without(v, name) })
}

// serverVars notes that the server's settings have changed with the client's.
func (c *Session) serverVars(change func(*settings.Vars) *settings.Vars) {
	if c.lease != nil {
		c.lease.SetVars(change(c.lease.Vars()))
	}
}

func (c *Session) followCharacteristics(t *sqlparse.TxStmt) {
	if t.Isolation != "" {
		c.set("default_transaction_isolation", t.Isolation)
	}
	if t.ReadOnly != nil {
		c.set("default_transaction_read_only", onOff(*t.ReadOnly))
	}
	if t.Deferrable != nil {
		c.set("default_transaction_deferrable", onOff(*t.Deferrable))
	}
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

func (c *Session) followSetConfig(s *sqlparse.SetConfig) {
	switch {
	case s.Local && s.Constant:
	case !s.Constant:
		c.pin(plan.PinOpaque)
	case s.Null:
		c.reset(s.Name)
	default:
		c.set(s.Name, s.Value)
	}
}

func (c *Session) followDiscard(d *sqlparse.DiscardStmt) {
	switch d.Target {
	case sqlparse.DiscardAll:
		_ = c.closeCursors(false) // outside of a transaction: their rows are in memory
		c.vars = c.defaults
		c.pins &= plan.PinLoad | plan.PinSetSeed // those it leaves
		clear(c.statements)
		c.dropUnnamed()
		c.endPortals()
		c.unlisten([]*sqlparse.ChannelStmt{{All: true}})
		c.given.discard()
		if c.lease != nil {
			c.lease.SetVars(c.srv.interner.Empty())
			c.lease.ForgetAll()
		}
	case sqlparse.DiscardTemp:
		if c.home == nil || c.home == c.lease {
			c.pins &^= plan.PinTempObject
		}
	case sqlparse.DiscardSequences:
		c.given.discard()
	}
}

// followDDL makes known what other sessions must not go on believing.
func (c *Session) followDDL(p *plan.Plan) {
	if strings.HasPrefix(p.Tag, "ALTER ") || strings.HasPrefix(p.Tag, "DROP ") {
		c.db.changes.Add(1)
		c.tx.altered = true
	}
	switch {
	case p.ChangesDefaults:
		c.srv.pools.Retire("")
	case strings.HasSuffix(p.Tag, " ROLE"), strings.HasSuffix(p.Tag, " DATABASE"),
		strings.HasPrefix(p.Tag, "GRANT"), strings.HasPrefix(p.Tag, "REVOKE"):
		c.srv.roles.invalidate()
	}
}

// planEnv gives what plans depend on in this session.
func (c *Session) planEnv() *plan.Env {
	if c.envVars == c.vars && c.env != nil {
		return c.env
	}
	path, ok := c.vars.GUC("search_path")
	if !ok {
		path = plan.DefaultSearchPath
	}
	user := c.user
	if role, ok := c.vars.GUC("role"); ok && !strings.EqualFold(role, "none") {
		user = role
	} else if auth, ok := c.vars.GUC("session_authorization"); ok && auth != "" {
		user = auth
	}
	if c.env == nil || c.envPath != path || c.envUser != user {
		c.env = c.db.env(user, path)
		c.envPath, c.envUser = path, user
	}
	c.envVars = c.vars
	return c.env
}
