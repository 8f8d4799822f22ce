package pooler

import (
	"context"
	"io"
	"strings"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/internal/pgwire"
	"neki/pooler/backend"
	"neki/pooler/fanout"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// everywhere reports whether p runs on every shard: LOCK, VACUUM, ANALYZE, and DDL: the shards of a database have the same schema, whatever
// rows are on which, and all shards have the same roles and databases.
func (c *Session) everywhere(p *plan.Plan) bool {
	switch p.Kind {
	case sqlparse.KindDDL, sqlparse.KindLock, sqlparse.KindVacuum:
	default:
		return false
	}
	if p.Pins&plan.PinTempObject != 0 || c.vars.Neki().Shard != "" {
		return false
	}
	snap := c.srv.cfg.Cluster.Snapshot()
	if len(snap.Shards) < 2 {
		return false
	}
	return isClusterWide(p.Tag) || snap.Topology() != nil && snap.Topology().OnlyShard(c.db.name) == ""
}

// isClusterWide reports whether DDL of the tag is about what all databases of a server share.
func isClusterWide(tag string) bool {
	for _, word := range []string{" ROLE", " DATABASE", " USER", " GROUP"} {
		if strings.HasSuffix(tag, word) {
			return true
		}
	}
	return tag == "GRANT ROLE" || tag == "REVOKE ROLE"
}

// takesRows reports whether DDL of the tag fills a table with the rows of a query: each shard would take its own.
func takesRows(tag string) bool {
	switch tag {
	case "CREATE TABLE AS", "SELECT INTO", "CREATE MATERIALIZED VIEW", "REFRESH MATERIALIZED VIEW":
		return true
	}
	return false
}

// runsAlone reports whether a server refuses the DDL inside a transaction block.
func runsAlone(p *plan.Plan) bool {
	switch p.Tag {
	case "VACUUM", "CREATE DATABASE", "DROP DATABASE", "ALTER SYSTEM", "CREATE TABLESPACE", "DROP TABLESPACE", "CREATE SUBSCRIPTION",
		"DROP SUBSCRIPTION", "REINDEX":
		return true
	}
	return strings.Contains(strings.ToUpper(p.Text()), "CONCURRENTLY")
}

// define runs DDL on every shard.
func (c *Session) define(p *plan.Plan, text []byte) (answer, error) {
	if takesRows(p.Tag) {
		return answer{}, pgerr.New(pgerr.NotImplemented, "not implemented: [119] %s in a database on several shards", p.Tag).
			WithDetail("Each shard would fill it with its own rows.").
			WithHint("CREATE TABLE, then INSERT ... SELECT.")
	}
	if _, refused := plan.Access(p, c.vars.Neki(), c.txState()); refused != nil {
		return answer{}, refused
	}
	sql, err := withVerifier(p, string(text))
	if err != nil {
		return answer{}, err
	}
	snap := c.srv.cfg.Cluster.Snapshot()
	if runsAlone(p) {
		return c.defineOneByOne(p, sql, snap)
	}
	outside := c.stx == nil
	if outside && p.Kind == sqlparse.KindLock {
		return answer{}, pgerr.New("25P01", "LOCK TABLE can only be used in transaction blocks")
	}
	if outside {
		if c.lease != nil {
			return answer{}, errSecondShard(c.place.shard, "every shard")
		}
		c.beginImplicit()
		c.stx.atomic = c.srv.cfg.Commits != nil // shards whose schemas differ would have to be mended by hand
	}
	tag, err := c.defineOnAll(p, sql, snap)
	if err != nil {
		err = pgerr.From(err)
	} else {
		c.follow(p, nil)
	}
	return answer{tag: tag}, c.endOutside(err, outside)
}

// defineOnAll runs DDL on every shard, in the transaction that is open.
func (c *Session) defineOnAll(p *plan.Plan, sql string, snap *catalog.Snapshot) (tag string, err error) {
	c.note(p)
	var members []*member
	for i := range snap.Shards {
		if err := c.enter(catalog.RolePrimary, snap.Shards[i].UID, snap); err != nil {
			return "", err
		}
		m := c.currentMember()
		if err := m.sc.Apply(c.vars, c.work.answers); err != nil {
			c.dropLease()
			return "", err
		}
		members = append(members, m)
		c.park()
	}
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // ended by a cancel request, or below
	defer cancel()
	defer c.cancelOnInterrupt(cancel)()
	reqs := make([]fanout.Request, len(members))
	for i, m := range members {
		m.sc.SetUnnamed(0)
		reqs[i] = fanout.Request{Conn: m.sc, Out: backend.AppendQuery(nil, sql)}
	}
	c.shardCalls += int64(len(reqs))
	legs := fanout.StartInOrder(reqs)
	tag, failedOn, err := c.readTags(ctx, legs)
	legs.Close()
	if err == nil {
		return tag, nil
	}
	for _, m := range members {
		if m.sc.Unfit() {
			c.use(m)
			c.dropLease()
		}
	}
	if failedOn >= 0 && !members[failedOn].sc.Unfit() {
		c.use(members[failedOn])
		c.status = 'E'
		e := pgerr.From(err)
		if e.Detail == "" {
			e = e.WithDetail("Shard \"%s\" refused; no shard has the change.", members[failedOn].place.shard)
		}
		return "", e
	}
	c.status = 'E'
	return "", err
}

// readTags reads answers without rows: the tag and the notices of the first shard, and the first error.
func (c *Session) readTags(ctx context.Context, legs *fanout.Legs) (tag string, failedOn int, err error) {
	for {
		p, err := legs.Next(ctx)
		switch {
		case err == io.EOF:
			return tag, -1, nil
		case err != nil:
			return "", -1, c.cancellation()
		case p.Kind == fanout.Failed:
			return "", p.Leg, p.Err
		case p.Kind == fanout.Completed && p.Leg == 0:
			tag = string(p.Data)
		case p.Kind == fanout.Notice && p.Leg == 0:
			frame := endMessage(append([]byte{'N', 0, 0, 0, 0}, p.Data...), 0)
			if _, err := c.conn.Write(frame); err != nil {
				return "", -1, err
			}
		}
	}
}

// defineOneByOne runs DDL that can't be part of a transaction, on one shard after the other.
func (c *Session) defineOneByOne(p *plan.Plan, sql string, snap *catalog.Snapshot) (answer, error) {
	if c.stx != nil && !c.stx.implicit || c.status != 'I' && c.stx == nil {
		return answer{}, pgerr.New(pgerr.ActiveSQLTransaction, "%s cannot run inside a transaction block", p.Tag)
	}
	if c.stx != nil {
		return answer{}, pgerr.New(pgerr.ActiveSQLTransaction, "%s cannot be executed within a pipeline", p.Tag)
	}
	c.note(p)
	var done []string
	for i := range snap.Shards {
		uid := snap.Shards[i].UID
		sc, err := c.connection(catalog.RolePrimary, uid, snap, 0)
		if err == nil {
			_, err = sc.Exec(sql, c.work.answers)
			c.endActive()
			if err == nil {
				c.release()
			} else {
				c.releaseOrDrop()
			}
		}
		if err != nil {
			return answer{}, definedOnSome(pgerr.From(err), uid, done, snap.Shards[i+1:])
		}
		done = append(done, uid)
		c.shardCalls++
	}
	c.follow(p, nil)
	c.schemaChanged()
	return answer{tag: p.Tag}, nil
}

// releaseOrDrop gives the lease back after an error of the server, or up after a failure of the connection.
func (c *Session) releaseOrDrop() {
	if c.lease == nil {
		return
	}
	if c.lease.Unfit() {
		c.dropLease()
		return
	}
	c.release()
}

// definedOnSome tells which shards have a change that one of them refused.
func definedOnSome(err *pgerr.Error, shard string, done []string, rest []catalog.Shard) *pgerr.Error {
	if len(done) == 0 {
		return err
	}
	var left []string
	for i := range rest {
		left = append(left, rest[i].UID)
	}
	return err.WithDetail("Shard \"%s\" refused. It is done on: %s; not tried on: %s.", shard, list(done), list(left)).
		WithHint("Set right what is wrong, and make the shards alike with __neki.shard.")
}

// schemaChanged has all gateways plan anew.
func (c *Session) schemaChanged() {
	if c.newSchema {
		c.newSchema = false
		c.db.relations.Invalidate()
	}
	if c.srv.cfg.SchemaChanged == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), schemaChangedLimit) //nolint:forbidigo // bounded here
	defer cancel()
	if err := c.srv.cfg.SchemaChanged(ctx); err != nil {
		c.srv.log.Warn("other gateways may plan by the old schema for a while", "error", err)
	}
}

// schemaChangedLimit bounds how long DDL waits for the catalog.
const schemaChangedLimit = 2 * time.Second

// withVerifier gives CREATE or ALTER ROLE with the password's verifier in place of the password: each shard would make
// one with a salt of its own, and a client's proof fits only one.
func withVerifier(p *plan.Plan, text string) (string, error) {
	if !strings.HasSuffix(p.Tag, " ROLE") && !strings.HasSuffix(p.Tag, " USER") && !strings.HasSuffix(p.Tag, " GROUP") {
		return text, nil
	}
	at, password, end, err := sqlparse.PasswordOf(text)
	if err != nil {
		return "", pgerr.From(err)
	}
	if at < 0 {
		return text, nil
	}
	if _, err := pgwire.ParseVerifier(password); err == nil {
		return text, nil
	}
	verifier := pgwire.NewVerifier(password, verifierIterations).Text()
	return text[:at] + sqlparse.QuoteLiteral(verifier) + text[end:], nil
}

// verifierIterations is Postgres's own number.
const verifierIterations = 4096
