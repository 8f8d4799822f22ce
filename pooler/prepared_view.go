package pooler

import (
	"maps"
	"slices"

	"neki/pooler/backend"
	"neki/pooler/plan"
)

// showPrepared has sc hold the client's prepared statements under their own names, and no others, when one of parts
// reads pg_prepared_statements. They are taken away when the connection is given up.
func (c *Session) showPrepared(sc *backend.ServerConn, parts []plan.Part) error {
	if c.open || c.status == 'E' || !slices.ContainsFunc(parts, func(p plan.Part) bool { return p.Plan.ShowsPrepared }) {
		return nil
	}
	w := c.work
	if err := sc.DeallocateAll(w.answers); err != nil {
		return err
	}
	if len(c.statements) == 0 {
		return nil
	}
	sc.HoldsOthers()
	failed := c.failed
	for _, name := range slices.Sorted(maps.Keys(c.statements)) {
		if err := c.prepareAs(sc, c.statements[name]); err != nil {
			return err
		}
	}
	c.failed = failed
	return nil
}

// prepareAs has sc prepare s under the client's name. One that can't be prepared any more is not shown; inside a
// transaction that ends it, as using it would.
func (c *Session) prepareAs(sc *backend.ServerConn, s *preparedStatement) error {
	w := c.work
	w.relay.Begin()
	defer w.relay.Begin()
	if s.sql == nil {
		w.out = s.original().AppendParse(w.out[:0], s.name)
		w.relay.Expect('P', backend.Swallow)
		_, err := c.runUnseen(sc)
		return err
	}
	w.out = backend.AppendQuery(w.out[:0], string(s.sql))
	w.relay.Expect('Q', backend.Swallow)
	w.relay.Rewrite = func(int, []byte) []byte { return nil }
	sc.SetUnnamed(0)
	if err := w.relay.Run(sc, w.out, w.answers); err != nil {
		return err
	}
	c.status = w.relay.Status
	sc.SetStatus(c.status)
	return nil
}
