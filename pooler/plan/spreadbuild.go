package plan

import (
	"slices"
	"strings"

	"neki/sqlparse"
)

// spread plans a statement that is not on one shard.
func (s *sharding) spread() error {
	s.plan.SpreadByText = false
	if s.change != nil {
		return s.spreadChange()
	}
	return s.spreadQuery()
}

// plain reports whether every leg is the client's own text, so that the spread doesn't depend on literals.
func (s *Spread) plain() bool {
	for i := range s.Legs {
		if s.Legs[i].SQL != "" || len(s.Legs[i].Fills) > 0 || s.Legs[i].Rows != nil {
			return false
		}
	}
	return s.Spec == nil && s.Eval == nil && (s.Upkeep == nil || s.Upkeep.Before == nil)
}

// routeOf gives the route of a leg that reads tables, all of them joined by key: the shards that any of them may have rows on.
func (s *sharding) routeOf(r rows) Route {
	switch r.kind {
	case oneShard:
		return Route{Kind: RouteOne, Shard: r.shard}
	case anywhere:
		out := Route{Kind: RouteReference, Shard: homeShard(s.snap), All: r.copies}
		if len(r.copies) > 0 {
			out.Shard = r.copies[0]
		}
		return out
	default:
	}
	all := Route{Kind: RouteScatter, All: r.place.Group.Shards}
	var pins []Pin
	equal := true
	for _, i := range r.tables {
		t := s.a.tables[i]
		if len(t.pins) == 0 {
			return all
		}
		next, single := pinsOfTable(i, t)
		equal = equal && single
		if !slices.ContainsFunc(pins, func(have Pin) bool { return samePins(pins, have.Relation, next) }) {
			pins = append(pins, next...)
		}
	}
	return Route{Kind: kindOf(pins, equal), Pins: pins}
}

// kindOf gives the kind of a route by pins; equal means that each table has one of a single value.
func kindOf(pins []Pin, equal bool) RouteKind {
	r := Route{Pins: pins}
	switch {
	case len(r.lookups(nil)) > 0:
		return RouteLookup
	case equal:
		return RouteEqual
	}
	return RouteIn
}

// reach shows the route of a plan that has a Spread: that of its legs, when they agree.
func (s *sharding) reach(sp *Spread) {
	s.plan.Spread = sp
	if len(sp.Legs) == 0 {
		return
	}
	if len(s.plan.Route.Pins) > 0 { // as routed by its pins
		return
	}
	route := sp.Legs[0].Route
	for i := range sp.Legs {
		if sp.Legs[i].Route.Kind == RouteScatter {
			route = sp.Legs[i].Route
		}
	}
	s.plan.Route = route
	if len(sp.Legs) > 1 {
		s.plan.Route.Kind = RouteScatter
	}
}

// RefuseState refuses a statement over several shards for what it would leave in the connections.
func RefuseState(pins Pins) error {
	if pins == 0 {
		return nil
	}
	return unplanned(numberState, "a statement over several shards that leaves state in the connection").
		WithDetail("It leaves: %s.", strings.Join(pins.Reasons(), ", "))
}

// checkQuery refuses what no query over several shards can do.
func (s *sharding) checkQuery() error {
	changes := slices.ContainsFunc(s.st.Relations, func(r sqlparse.RelRef) bool { return r.Write })
	if s.st.Effects.Any(sqlparse.EffectLocks) && !changes {
		return nil
	}
	if err := RefuseState(pinsOf(s.st)); err != nil {
		return err
	}
	if s.st.Effects.Any(writeEffects) {
		return unplanned(numberChangeInWith, "a change of rows inside a query over several shards").
			WithHint("Give every table its shard key, or run the change by itself.")
	}
	return nil
}

// spreadQuery plans a query over several shards.
func (s *sharding) spreadQuery() error {
	if err := s.checkQuery(); err != nil {
		return err
	}
	q := s.query
	if q.rows.kind == byKey && len(q.stmt.SortClause) == 0 {
		s.reach(&Spread{Legs: []Leg{{Route: s.routeOf(q.rows)}}, Pass: passAll})
		return nil
	}
	s.a.spellGroups()
	if done, err := s.mergeQuery(); done || err != nil {
		return err
	}
	return s.engineQuery()
}

// passAll is Spread.Pass of all of a leg's columns.
const passAll = 1 << 30

// spreadChange plans a change of rows on several shards.
func (s *sharding) spreadChange() error {
	c := s.change
	if s.st.Kind == sqlparse.KindMerge {
		return unplanned(numberMerge, "MERGE on several shards").
			WithHint("Give the shard key of each table in the ON condition.")
	}
	if c.table == nil {
		return nil
	}
	if c.table.kind == RelView {
		return unplanned(numberChangeElsewhere, "a change of rows through the view \"%s\" over several shards", c.table.name)
	}
	switch {
	case c.insert != nil:
		return s.spreadInsert()
	case c.table.place.Reference:
		return s.changeCopies()
	case c.rows.kind == byKey && c.target.rows.kind == byKey:
		s.reach(&Spread{Legs: []Leg{{Route: s.routeOf(c.rows)}}, Pass: passAll, Write: true})
		return nil
	}
	return unplanned(numberChangeElsewhere, "a change of rows that depends on rows of other shards").
		WithDetail("The tables are not joined by their shard keys.").
		WithHint("Join the tables by their shard keys, or read the rows first.")
}
