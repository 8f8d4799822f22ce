package pooler

import (
	"context"
	"errors"
	"slices"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/settings"
	"neki/sqlparse"
)

// Times of a commit over several shards.
const (
	prepareLimit = 15 * time.Second // for a shard to prepare, and for another one to carry out what was decided
	decideLimit  = 10 * time.Second // for the catalog to take the decision
)

// twoPhase is the commit of one transaction on several shards: all of them prepare it, then the catalog takes the
// decision, then all commit. What a crash leaves is settled by the leading admin; see catalog.Coordinator.
//
// See https://www.postgresql.org/docs/current/sql-prepare-transaction.html
type twoPhase struct {
	c       *Session
	commit  catalog.Commit
	writers []*member
	states  []prepareState // of the writers
}

// prepareState is what is known of one writer.
type prepareState struct {
	prepared bool
	// before is how to give the connection back the settings that would let its COMMIT PREPARED return too early, or say
	// nothing of it; "" when they are fit.
	before string
	clean  bool // committed, and acknowledged as every commit
	err    error
}

// prepareSQL reads the settings that matter, has the server wait for its standbys whatever the client wants for itself,
// and makes the session's own role the one that may commit.
const prepareSQL = `SELECT pg_catalog.current_setting('synchronous_commit'), pg_catalog.current_setting('client_min_messages'),
pg_catalog.set_config('synchronous_commit', CASE pg_catalog.current_setting('synchronous_commit')
  WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true), pg_catalog.set_config('role', 'none', true); PREPARE TRANSACTION `

// commitAtomic commits on all writers or on none.
func (c *Session) commitAtomic(writers, readers []*member) error {
	var commit catalog.Commit
	var err error = errNoCommits
	if commits := c.srv.cfg.Commits; commits != nil {
		commit, err = commits.Begin()
	}
	if err == nil {
		err = c.execAll(readers, "COMMIT") // before anything is decided: it may be refused
	}
	if err != nil {
		c.rollbackShards()
		return err
	}
	c.park()
	t := &twoPhase{c: c, commit: commit, writers: writers, states: make([]prepareState, len(writers))}
	if err := t.prepare(); err != nil {
		t.undo()
		return err
	}
	if err := t.decide(); err != nil {
		return err
	}
	t.finish()
	return nil
}

var errNoCommits = pgerr.New(pgerr.ObjectNotInPrerequisiteState, "this gateway has no catalog to decide on commits over several shards").
	WithHint("SET __neki.tx_mode = 'multi'.")

// step is a place where tests stop the gateway.
func (t *twoPhase) step(name string) {
	if at := t.c.srv.atCommitStep; at != nil {
		at(name)
	}
}

// prepare prepares on all writers; its error is the first one of theirs.
func (t *twoPhase) prepare() error {
	t.step("begin")
	sql := prepareSQL + sqlparse.QuoteLiteral(t.commit.GID)
	errs := eachMember(t.writers, func(m *member, buf []byte) error {
		t.step("prepare " + m.place.shard)
		m.sc.Bound(time.Now().Add(prepareLimit))
		rows, err := m.sc.Exec(sql, buf)
		m.sc.Bound(time.Time{})
		if err == nil && m.sc.Status() != 'I' {
			err = pgerr.New(pgerr.InternalError, "shard \"%s\" did not prepare the transaction", m.place.shard)
		}
		s := t.state(m)
		s.prepared = err == nil
		if err == nil && len(rows) == 1 {
			s.before = restoring(rows[0][0], rows[0][1])
		}
		t.step("prepared " + m.place.shard)
		return err
	})
	for i, err := range errs {
		if err == nil {
			continue
		}
		if pgerr.Code(err) == "" {
			return lostConnection(t.writers[i].place.node.ID, err, false)
		}
		e := pgerr.From(err)
		if e.Detail == "" {
			e = e.WithDetail("Shard \"%s\" can't prepare the transaction; it is rolled back on all shards.", t.writers[i].place.shard)
		}
		return e
	}
	return nil
}

func (t *twoPhase) state(m *member) *prepareState { return &t.states[slices.Index(t.writers, m)] }

// restoring gives the statement that sets again what a COMMIT PREPARED must not run under.
func restoring(synchronous, messages string) string {
	weak := slices.Contains([]string{"off", "local", "remote_write"}, synchronous)
	silent := slices.Contains([]string{"error", "fatal", "panic"}, messages)
	if !weak && !silent {
		return ""
	}
	return "SET synchronous_commit = " + synchronous + "; SET client_min_messages = " + messages
}

// undo rolls back on all shards. What can't be reached is rolled back by the admin, for there is no decision.
func (t *twoPhase) undo() {
	t.step("undo")
	sql := "ROLLBACK PREPARED " + sqlparse.QuoteLiteral(t.commit.GID)
	errs := eachMember(t.writers, func(m *member, buf []byte) error {
		if !t.state(m).prepared {
			return nil
		}
		_, err := t.onPrepared(m, sql, buf)
		return err
	})
	kept := make([]*settings.Vars, len(t.writers)) // PREPARE TRANSACTION has made what was SET the session's
	for i, m := range t.writers {
		kept[i] = m.sc.Vars()
	}
	for i, err := range errs {
		if err != nil {
			t.c.srv.log.Warn("a prepared transaction is left for the admin", "gid", t.commit.GID, "shard", t.writers[i].place.shard, "error", err)
		}
	}
	t.c.rollbackShards()
	for i, m := range t.writers {
		if t.states[i].prepared {
			m.sc.SetVars(kept[i])
		}
	}
}

// decide asks the catalog. After its error the outcome is known, unless it is 08007.
func (t *twoPhase) decide() error {
	t.step("decide")
	ctx, cancel := context.WithTimeout(context.Background(), decideLimit) //nolint:forbidigo // the commit must not end with the client
	defer cancel()
	var shards []string
	for _, m := range t.writers {
		shards = append(shards, m.place.shard)
	}
	err := t.c.srv.cfg.Commits.Decide(ctx, t.commit, t.c.db.name, shards)
	t.step("decided")
	switch {
	case err == nil:
		return nil
	case errors.Is(err, catalog.ErrAborted):
		t.undo()
		return pgerr.New(pgerr.SerializationFailure, "the transaction was rolled back on all shards, because its commit took too long").
			WithDetail("The gateway lost its place in the catalog, or the admin gave up waiting for it.").
			WithHint("Run the transaction again.")
	}
	t.c.srv.log.Warn("the outcome of a commit is not known", "gid", t.commit.GID, "error", err)
	return pgerr.New(pgerr.TransactionResolutionUnknown, "the catalog could not be reached while it decided on the commit").
		WithDetail("All shards will end alike, once it is back; how is not known yet: %v.", err).
		WithHint("Look before you run it again.")
}

// finish carries out what was decided. What can't be reached in time is left to the admin.
func (t *twoPhase) finish() {
	sql := "COMMIT PREPARED " + sqlparse.QuoteLiteral(t.commit.GID)
	each := eachMember
	if len(t.c.stx.order) > 0 {
		each = memberAfterMember
	}
	each(t.writers, func(m *member, buf []byte) error {
		t.step("commit " + m.place.shard)
		s := t.state(m)
		s.clean, s.err = t.onPrepared(m, sql, buf)
		t.step("committed " + m.place.shard)
		return nil
	})
	clean := true
	for i, m := range t.writers {
		s := &t.states[i]
		if s.err != nil && m.sc.Unfit() {
			s.err = t.again(m, sql)
		}
		if s.err != nil {
			t.late(m, s.err)
		}
		clean = clean && s.clean && s.err == nil
	}
	t.step("done")
	if clean {
		t.c.srv.cfg.Commits.Done(t.commit)
	}
}

// late tells the client that a shard is not there yet.
func (t *twoPhase) late(m *member, err error) {
	t.c.srv.log.Warn("a decided commit is left for the admin", "gid", t.commit.GID, "shard", m.place.shard, "error", err)
	t.c.notice(pgerr.New(pgerr.Warning, "the transaction is committed, but shard \"%s\" has yet to follow", m.place.shard).
		WithSeverity(pgerr.SeverityWarning).
		WithDetail("It does once it can be reached: %v.", err))
}

// onPrepared runs COMMIT PREPARED or ROLLBACK PREPARED, under settings with which its end can be believed.
func (t *twoPhase) onPrepared(m *member, sql string, buf []byte) (clean bool, err error) {
	m.sc.Bound(time.Now().Add(prepareLimit))
	defer m.sc.Bound(time.Time{})
	before := t.state(m).before
	if before != "" {
		if _, err := m.sc.Exec("SET synchronous_commit = on; SET client_min_messages = warning", buf); err != nil {
			m.sc.Broken()
			return false, err
		}
	}
	_, err = m.sc.Exec(sql, buf)
	clean = err == nil && !m.sc.Warned()
	if pgerr.Code(err) == pgerr.InsufficientPrivilege {
		clean, err = t.asSelf(m, sql, buf)
	}
	if before != "" {
		if _, err := m.sc.Exec(before, buf); err != nil {
			m.sc.Broken()
		}
	}
	return clean, err
}

// asSelf runs sql without the role that was SET: the transaction itself had another.
func (t *twoPhase) asSelf(m *member, sql string, buf []byte) (clean bool, err error) {
	rows, err := m.sc.Exec("SELECT pg_catalog.current_setting('role'), pg_catalog.set_config('role', 'none', false)", buf)
	if err != nil {
		m.sc.Broken()
		return false, err
	}
	_, err = m.sc.Exec(sql, buf)
	clean = err == nil && !m.sc.Warned()
	if _, back := m.sc.Exec("SELECT pg_catalog.set_config('role', "+sqlparse.QuoteLiteral(rows[0][0])+", false)", buf); back != nil {
		m.sc.Broken()
	}
	return clean, err
}

// again carries the decision out over a new connection to a shard, whose primary may have been replaced meanwhile.
func (t *twoPhase) again(m *member, sql string) error {
	c := t.c
	t.step("again " + m.place.shard)
	c.use(m)
	c.dropLease()
	c.begun = c.srv.now()
	if err := c.acquireFit(catalog.RolePrimary, m.place.shard, c.srv.cfg.Cluster.Snapshot(), 0); err != nil {
		return err
	}
	c.lease.Bound(time.Now().Add(prepareLimit))
	_, err := c.lease.Exec(sql, c.work.answers)
	c.lease.Bound(time.Time{})
	if pgerr.Code(err) == pgerr.UndefinedObject { // the lost connection's, or the admin's, had come to its end
		err = nil
	}
	if c.lease.Unfit() {
		c.dropLease()
	} else {
		c.release()
	}
	t.state(m).clean = false // the admin looks whether it is gone for good
	return err
}
