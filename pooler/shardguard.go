package pooler

import (
	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// guard refuses what would be answered by one shard although its rows are on several.
func (c *Session) guard(p *plan.Plan, snap *catalog.Snapshot) *pgerr.Error {
	if p.Kind != sqlparse.KindExplain || p.Explain == nil || p.Explain.Neki || !c.isSharded(snap) || !overShards(p.Explain.Inner) {
		return nil
	}
	return pgerr.New(pgerr.ExplainNeedsGateway, "the plan of this statement is the gateway's").
		WithHint("EXPLAIN (NEKI_PLAN) shows it.")
}

func notImplemented(what, hint string) *pgerr.Error {
	return pgerr.New(pgerr.NotImplemented, "not implemented: %s", what).WithHint("%s", hint)
}

// overShards reports whether p's rows lie by key, or as copies, on several shards.
func overShards(p *plan.Plan) bool { return keyed(p) || p.Spread != nil }
