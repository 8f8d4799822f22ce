package plan

import (
	"slices"

	"neki/sqlparse"
)

// shardCursor plans DECLARE in a database that is on several shards: a cursor over the rows of one shard is that server's, one
// over several is the gateway's, which runs the query as by itself.
func (m maker) shardCursor(p *Plan, st *sqlparse.Statement) error {
	schema, err := m.placed()
	if err != nil || schema == nil || st.Cursor.Query == nil {
		return err
	}
	inner, err := m.spreadInside(p, st.Cursor.Query)
	if err != nil || inner == nil {
		return err
	}
	p.Route, p.planner = inner.Route, inner.planner
	p.Pins = p.Pins&^PinHoldCursor | inner.Pins // its rows are kept by the gateway
	p.Spread = inner.Spread.ofQuery(st.Cursor.Query.Text)
	return nil
}

// ofQuery gives the spread of a query whose text is a part of the client's.
func (s *Spread) ofQuery(text string) *Spread {
	own := *s
	own.Legs = slices.Clone(s.Legs)
	for i := range own.Legs {
		if own.Legs[i].SQL == "" {
			own.Legs[i].SQL = text
		}
	}
	return &own
}
