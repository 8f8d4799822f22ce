package pooler

import (
	"io"
	"slices"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/fanout"
	"neki/pooler/plan"
)

// measure collects what EXPLAIN (ANALYZE) shows of the shards' work. Its methods do nothing for nil.
type measure struct {
	calls *[]plan.Call
	reads bool // of the query whose rows an INSERT moves
	wait  *time.Duration
	tags  map[tagOf]string
}

type tagOf struct {
	leg   *legNode
	shard int
}

func newMeasure() *measure {
	return &measure{calls: &[]plan.Call{}, wait: new(time.Duration), tags: map[tagOf]string{}}
}

// ofQuery is the measure of a query that the measured statement runs first.
func (m *measure) ofQuery() *measure {
	if m == nil {
		return nil
	}
	out := *m
	out.reads = true
	return &out
}

// waited counts the time since start as spent on getting connections.
func (m *measure) waited(start time.Time) {
	if m != nil {
		*m.wait += time.Since(start)
	}
}

// completed keeps the command tag of a shard.
func (m *measure) completed(l *legNode, p fanout.Piece) {
	if m != nil && l.spread.plan.Spread.Write {
		m.tags[tagOf{l, p.Leg}] = string(p.Data)
	}
}

// ended adds the calls of a leg, whose goroutines have ended.
func (m *measure) ended(l *legNode) {
	if m == nil || l.counted {
		return
	}
	l.counted = true
	for i, stat := range l.legs.Stats() {
		if stat.Ran {
			call := l.call(i)
			call.Rows, call.Duration, call.Tag = stat.Rows, stat.Took, m.tags[tagOf{l, i}]
			call.Reads = m.reads
			*m.calls = append(*m.calls, call)
		}
	}
}

// call gives the call of a leg's shard, without figures.
func (l *legNode) call(i int) plan.Call {
	return plan.Call{
		Leg: min(l.index, len(l.spread.plan.Spread.Legs)-1), Shard: l.shards[i], Node: l.spread.lane(l.shards[i]).place.node.ID,
	}
}

// explainedShard gives the shard of a statement that one runs as it is written; "" when there are several, or when its keys
// are not known here.
func (c *Session) explainedShard(e *plan.Explain, v *plan.Values) string {
	if e.Inner.Spread != nil {
		return ""
	}
	shards, err := e.Inner.Shards(nil, v)
	if err != nil || len(shards) == 0 || len(shards) > 1 && e.Inner.SpreadByText {
		return ""
	}
	return c.oneOf(shards)
}

// explainSpread makes the rows of EXPLAIN (NEKI_PLAN) of a statement that the gateway runs on several shards.
func (c *Session) explainSpread(e *plan.Explain, x plan.Explained, v *plan.Values, snap *catalog.Snapshot) ([]string, error) {
	if !e.Analyze && !e.PGPlan {
		return plan.Render(e, x), nil
	}
	if e.Inner.Spread == nil {
		return nil, pgerr.New(pgerr.FeatureNotSupported, "the shards of a statement with parameters are known only when it runs").
			WithHint("Write constants in their places.")
	}
	outside, before := c.stx == nil, c.current
	err := c.explainRunning(e, &x, v, snap)
	c.current = before
	if err := c.endOutside(err, outside); err != nil {
		return nil, err
	}
	return plan.Render(e, x), nil
}

// explainRunning has the shards explain their legs, and for ANALYZE runs the statement.
func (c *Session) explainRunning(e *plan.Explain, x *plan.Explained, v *plan.Values, snap *catalog.Snapshot) error {
	start := time.Now()
	s, _, err := c.makeSpread(e.Inner, v, nil, snap)
	if err != nil {
		return err
	}
	s.measured = newMeasure()
	s.begin()
	if err = s.explain(e, x, snap); err != nil {
		return s.failed(err)
	}
	s.close()
	x.Calls = append(x.Calls, *s.measured.calls...)
	if e.Analyze {
		x.Actual = &plan.Actual{Rows: s.rows, Duration: time.Since(start), Wait: *s.measured.wait}
		x.RemoteCalls = s.calls
		for _, call := range *s.measured.calls {
			if call.Reads {
				x.RemoteCalls++
			}
		}
	}
	return nil
}

func (s *spread) explain(e *plan.Explain, x *plan.Explained, snap *catalog.Snapshot) error {
	if !e.Analyze {
		if err := s.prepareUnrun(snap); err != nil {
			return err
		}
		return s.explainLegs(e, x, false)
	}
	if err := s.prepare(snap); err != nil {
		return err
	}
	twice := s.plan.Proven() // what only reads may run once more, for the shards to measure
	if e.PGPlan && !twice {
		if err := s.explainLegs(e, x, false); err != nil {
			return err
		}
	}
	for {
		_, n, err := s.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		s.rows += int64(n)
	}
	for _, l := range s.legs {
		l.end()
	}
	if e.PGPlan && twice {
		return s.explainLegs(e, x, true)
	}
	return nil
}

// prepareUnrun makes the legs of a statement that is not to run.
func (s *spread) prepareUnrun(snap *catalog.Snapshot) error {
	sp := s.plan.Spread
	if sp.Move != nil || sp.Eval != nil && (len(sp.Eval.Sequences) > 0 || sp.Legs[0].Rows != nil) {
		return pgerr.New(pgerr.FeatureNotSupported, "what the shards are sent is known only when the statement runs").
			WithHint("Add ANALYZE, which runs it, or leave NEKI_PG_PLAN out.")
	}
	if sp.Eval != nil {
		s.values.Eval = make([][]byte, sp.Eval.Columns)
	}
	if err := s.enterTransaction(); err != nil {
		return err
	}
	return s.makeLegs(snap)
}

// explainLegs has each shard explain what it is sent.
func (s *spread) explainLegs(e *plan.Explain, x *plan.Explained, analyze bool) error {
	if s.running != nil {
		if err := s.running.keepRest(); err != nil {
			return err
		}
	}
	for _, l := range s.legs {
		reqs := make([]fanout.Request, len(l.shards))
		for i, shard := range l.shards {
			sc := s.lane(shard).sc
			sc.SetUnnamed(0)
			reqs[i] = fanout.Request{Conn: sc, Out: s.request(explainHead(e, analyze)+l.texts[i], nil)}
		}
		plans, err := s.explainOn(reqs)
		if err != nil {
			return err
		}
		for i := range plans {
			call := l.call(i)
			call.PGPlan = plans[i]
			x.Calls = append(x.Calls, call)
		}
	}
	return nil
}

// explainOn gives the lines that each server answers.
func (s *spread) explainOn(reqs []fanout.Request) ([][]string, error) {
	out := make([][]string, len(reqs))
	err := readRows(s.ctx, fanout.Start(reqs, true), func(leg int, row [][]byte) error {
		out[leg] = append(out[leg], string(slices.Concat(row...)))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
