package pooler

import (
	"slices"

	"neki/catalog"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// copyOut gives the plan by which COPY ... TO STDOUT gives the rows of all shards, one shard's after another's; nil when
// one shard has them all, or when their texts can't just be joined.
func (c *Session) copyOut(p *plan.Plan, snap *catalog.Snapshot) *plan.Plan {
	if p.Kind != sqlparse.KindCopy || p.Copy == nil || p.Copy.From || !p.Copy.Client || c.vars.Neki().Shard != "" ||
		!joinable(p.Copy) || !c.isSharded(snap) {
		return nil
	}
	inner, err := c.srv.planner.Plan([]byte(copiedQuery(p.Copy)), snap, c.planEnv())
	if err != nil || inner.Spread == nil || inner.Route.Kind != plan.RouteScatter || inner.Pins != 0 {
		return nil
	}
	sp := inner.Spread
	if sp.Spec != nil || sp.Write || sp.Eval != nil || len(sp.Legs) != 1 {
		return nil
	}
	leg := &sp.Legs[0]
	if leg.SQL != "" || leg.Rows != nil || len(leg.Merge) > 0 || leg.Route.Kind != plan.RouteScatter {
		return nil
	}
	return &plan.Plan{
		Query: p.Query, Fingerprint: p.Fingerprint, Kind: p.Kind, Tag: p.Tag, Verdict: inner.Verdict, Route: inner.Route,
		Spread: &plan.Spread{Legs: []plan.Leg{{Route: leg.Route}}},
	}
}

// joinable reports whether the texts of several shards make one when they are put one behind the other.
func joinable(copy *sqlparse.CopyStmt) bool {
	for _, o := range copy.Options {
		switch o.Name {
		case "header":
			return false
		case "format":
			if !slices.Contains([]string{"text", "csv"}, o.Value) {
				return false
			}
		case "binary":
			return false
		}
	}
	return true
}

// copiedQuery gives a query for the rows that a COPY takes or gives.
func copiedQuery(copy *sqlparse.CopyStmt) string {
	if copy.Query != nil {
		return copy.Query.Text
	}
	return "SELECT * FROM " + relationText(copy.Relation)
}

// isSharded reports whether the rows of the session's database are on several shards.
func (c *Session) isSharded(snap *catalog.Snapshot) bool {
	return len(snap.Shards) > 1 && snap.Topology() != nil && snap.Topology().OnlyShard(c.db.name) == ""
}
