package plan

import (
	"neki/catalog"
	"neki/sqlparse"
)

// Plain reports whether the statement is a SELECT or a change of rows on one shard that leaves nothing behind, neither on
// its connection nor in the gateway: a session need not look at more of it than where it goes. Its Route may be by key.
func (p *Plan) Plain() bool { return p.plain }

// isPlain decides Plain, of a plan that is otherwise made.
func (p *Plan) isPlain() bool {
	switch p.Route.Kind {
	case RouteOne, RouteAny:
		if p.Route.Shard == "" {
			return false
		}
	case RouteEqual:
	default:
		return false
	}
	return (p.Kind == sqlparse.KindSelect || p.Kind.IsDML()) && p.Effects&^(sqlparse.EffectWrites|sqlparse.EffectLocks) == 0 &&
		p.Pins == 0 && p.Spread == nil && !p.SpreadByText && len(p.SetConfigs) == 0 && p.Runs == "" && p.ParseError == nil &&
		!p.ShowsPrepared && !p.ChangesDefaults && !p.ChangesFunctions && !p.Secret && p.Tag != "SELECT INTO" &&
		p.Set == nil && p.Tx == nil && p.Copy == nil && p.CopyOut == nil && p.CopyIn == nil && p.Prepared == nil &&
		p.Discard == nil && p.Cursor == nil && p.Channel == nil && p.Call == nil && p.Explain == nil && p.Inner == nil
}

// Keyed reports whether the shard depends on the values of each execution.
func (p *Plan) Keyed() bool { return p.Route.Kind >= RouteEqual }

// RecallPlain is Recall for plain statements alone.
func (pl *Planner) RecallPlain(m *Memo, text []byte, snap *catalog.Snapshot, env *Env) *Plan {
	if m.epoch != pl.epoch.Load() {
		return nil
	}
	for i := range m.entries {
		e := &m.entries[i]
		if e.plan == nil || !e.plan.plain || e.env != env || !e.plan.template.matches(text) || !e.plan.Fresh(snap, env) {
			continue
		}
		pl.Reuse(e.plan)
		return e.plan
	}
	return nil
}

// Reuse counts the use of a plan that was kept elsewhere as a hit of the cache.
func (pl *Planner) Reuse(p *Plan) {
	p.hits.Add(1)
	add(&pl.cache.hits)
}

// Keeps reports whether the memo has p, made under env, as Recall would give it.
func (pl *Planner) Keeps(m *Memo, p *Plan, env *Env) bool {
	if m.epoch != pl.epoch.Load() {
		return false
	}
	for i := range m.entries {
		if e := &m.entries[i]; e.plan == p && e.env == env {
			return p != nil
		}
	}
	return false
}
