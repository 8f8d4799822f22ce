package pooler

import (
	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// guard refuses what would be answered by one shard although its rows are on several, and can't be split yet.
func (c *Session) guard(p *plan.Plan, snap *catalog.Snapshot) *pgerr.Error {
	switch p.Kind {
	case sqlparse.KindExplain:
	default:
		return nil
	}
	if !c.isSharded(snap) {
		return nil
	}
	switch p.Kind {
	case sqlparse.KindExplain:
		if p.Explain != nil && !p.Explain.Neki && overShards(p.Explain.Inner) {
			return pgerr.New(pgerr.ExplainNeedsGateway, "the plan of this statement is the gateway's").
				WithHint("EXPLAIN (NEKI_PLAN) shows it.")
		}
	}
	return nil
}

func notImplemented(what, hint string) *pgerr.Error {
	return pgerr.New(pgerr.NotImplemented, "not implemented: %s", what).WithHint("%s", hint)
}

// overShards reports whether p's rows lie by key, or as copies, on several shards.
func overShards(p *plan.Plan) bool { return keyed(p) || p.Spread != nil }

// scattered reports whether the rows of a query, which is part of another statement, lie on several shards. A query that
// can't be planned may be of that kind.
func (c *Session) scattered(query string, snap *catalog.Snapshot) bool {
	p, err := c.srv.planner.Plan([]byte(query), snap, c.planEnv())
	return err != nil || overShards(p)
}
