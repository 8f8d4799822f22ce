package pooler

import (
	"context"
	"io"

	"neki/catalog"
	"neki/exec"
	"neki/pooler/fanout"
	"neki/pooler/plan"
)

// lookUp reads the shard keys on which the shards of a statement depend from lookup tables: in the statement's transaction,
// or by the statement's rules for the choice of an instance.
func (c *Session) lookUp(p *plan.Plan, lookups []*plan.Lookup, v *plan.Values, snap *catalog.Snapshot) error {
	if len(lookups) == 0 {
		return nil
	}
	v.Session = c.valueSession()
	if v.Found == nil {
		v.Found = make(map[string]plan.Found, len(lookups))
	}
	role, refused := plan.Access(p, c.vars.Neki(), c.txState())
	if refused != nil {
		return refused
	}
	s := &spread{c: c, plan: p, values: v, role: role, budget: exec.NewBudget(spreadBudget)}
	s.begin()
	if p.Spread == nil {
		s.plan = p.AsSpread()
	}
	if err := s.enterTransaction(); err != nil {
		s.close()
		return err
	}
	for _, l := range lookups {
		if err := s.findKeys(l, p, snap); err != nil {
			return s.failed(err)
		}
	}
	s.close()
	return nil
}

// findKeys makes one lookup.
func (s *spread) findKeys(l *plan.Lookup, p *plan.Plan, snap *catalog.Snapshot) error {
	q := p.AskLookup(l, s.values)
	found := plan.Found{All: q.All}
	if len(q.Shards) > 0 {
		if err := s.lease(q.Shards, snap); err != nil {
			return err
		}
		asked := &spread{values: &plan.Values{Params: q.Params, Formats: q.Formats}, types: q.OIDs}
		out := asked.request(q.SQL, formats{1})
		var reqs []fanout.Request
		for _, shard := range q.Shards {
			m := s.lane(shard)
			m.sc.SetUnnamed(0)
			reqs = append(reqs, fanout.Request{Conn: m.sc, Out: out})
		}
		s.calls += int64(len(reqs))
		err := readRows(s.ctx, fanout.Start(reqs, true), func(_ int, row [][]byte) error {
			if row[0] != nil {
				found.Keys = append(found.Keys, row[0])
			}
			return s.budget.Take(int64(len(row[0])))
		})
		if err != nil {
			return err
		}
	}
	s.values.Found[l.Text] = found
	return nil
}

// readRows reads the rows of legs to their end, and gives each with the number of its leg. A row's bytes stay valid.
func readRows(ctx context.Context, legs *fanout.Legs, row func(leg int, values [][]byte) error) error {
	defer legs.Close()
	for {
		p, err := legs.Next(ctx)
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case p.Kind == fanout.Failed:
			return p.Err.WithPosition(0)
		case p.Kind != fanout.Rows:
			continue
		}
		for rest := p.Data; len(rest) > 0; {
			var frame []byte
			frame, rest, _ = splitRows(rest, 1)
			if err := row(p.Leg, rowTexts(frame)); err != nil {
				return err
			}
		}
	}
}
