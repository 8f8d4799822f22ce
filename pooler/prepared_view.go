package pooler

import (
	"maps"
	"slices"
	"strings"

	"neki/pooler/backend"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// makeReady gives sc the state that parts are to see.
func (c *Session) makeReady(sc *backend.ServerConn, parts []plan.Part) error {
	if err := c.startAlone(sc, parts); err != nil {
		return err
	}
	return c.showPrepared(sc, parts)
}

// showPrepared has sc hold the client's prepared statements under their own names, and no others, when one of parts
// reads pg_prepared_statements. They are taken away when the connection is given up.
func (c *Session) showPrepared(sc *backend.ServerConn, parts []plan.Part) error {
	if c.open || c.status == 'E' || !slices.ContainsFunc(parts, func(p plan.Part) bool { return p.Plan.ShowsPrepared }) {
		return nil
	}
	if err := c.hideNames(sc); err != nil {
		return err
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

// hideNames has sc drop the prepared statements that the gateway gave names, and those that showPrepared has left. What
// the client made unseen stays.
func (c *Session) hideNames(sc *backend.ServerConn) error {
	if c.pins&plan.PinOpaque == 0 {
		return sc.DeallocateAll(c.work.answers)
	}
	rows, err := sc.Exec(`SELECT name FROM pg_catalog.pg_prepared_statements`, c.work.answers)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if !strings.HasPrefix(row[0], backend.NamePrefix) && row[0] != backend.Preparing && c.statements[row[0]] == nil {
			continue
		}
		if _, err := sc.Exec("DEALLOCATE "+sqlparse.QuoteIdent(row[0]), c.work.answers); err != nil {
			return err
		}
	}
	sc.ForgetAll()
	return nil
}

// startAlone has sc forget other clients' sequences before the session asks for the current value of one. What a
// session asks for it must have drawn on this very connection; from then on it keeps the connection.
func (c *Session) startAlone(sc *backend.ServerConn, parts []plan.Part) error {
	if !c.usedByOthers || c.open || c.status != 'I' || sc == c.home {
		return nil
	}
	if !slices.ContainsFunc(parts, func(p plan.Part) bool { return p.Plan.Pins&plan.PinSequence != 0 }) {
		return nil
	}
	c.usedByOthers = false // from here on what the connection keeps of sequences is the session's
	_, err := sc.Exec("DISCARD SEQUENCES", c.work.answers)
	return err
}
