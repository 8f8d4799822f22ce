package pooler

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/plan"
)

// What the databases say to a data topology that is to be set.

// TopologyChecks are what the databases say.
type TopologyChecks interface {
	CheckTopology(ctx context.Context, t *catalog.Topology) []catalog.Problem
	KeyType(ctx context.Context, t *catalog.Topology, ix *catalog.Index) (oid uint32, ok bool)
}

// CheckTopology tells what stands against a topology in the databases as they are: key columns that are missing or can't be
// keys, and tables whose rows would be on the wrong shards.
func (f facts) CheckTopology(ctx context.Context, next *catalog.Topology) []catalog.Problem {
	check := topologyCheck{ctx: ctx, srv: f.Server, snap: f.cfg.Cluster.Snapshot(), next: next}
	names, err := f.dbs.names(ctx)
	if err != nil {
		check.report("$.databases", "the databases can't be read, so key columns and rows are not checked: %s", pgerr.From(err).Message)
	}
	for _, name := range names {
		check.database(name)
	}
	return check.problems
}

// KeyType gives the type of an index's key column, as the first table tells that has one.
func (f facts) KeyType(_ context.Context, t *catalog.Topology, ix *catalog.Index) (uint32, bool) {
	for _, place := range t.Tables {
		if place.Index != ix {
			continue
		}
		table, err := f.dbs.relations(place.Database).Table()
		if err != nil {
			continue
		}
		if r := table.Rel(place.Schema, place.Name, nil); r != nil && r.Column(ix.Column) != nil {
			return table.KeyOID(r.Column(ix.Column).Type.OID), true
		}
	}
	return 0, false
}

// relations gives what knows the relations of a database: that of its sessions, or one for this time, for a database of
// the name need not exist.
func (d *databases) relations(name string) *plan.RelCatalog {
	d.mu.Lock()
	defer d.mu.Unlock()
	if db := d.known[name]; db != nil {
		return db.relations
	}
	return plan.NewRelCatalog(func(scan func([]byte) error) error { return d.loadRelations(name, scan) }, nil)
}

// names lists the databases that clients can use.
func (d *databases) names(ctx context.Context) (names []string, err error) {
	const query = `SELECT datname::pg_catalog.text FROM pg_catalog.pg_database WHERE datallowconn AND NOT datistemplate`
	err = d.srv.control.query(ctx, "", query, nil, func(rows pgx.Rows) error {
		var name string
		if err := rows.Scan(&name); err != nil {
			return err
		}
		names = append(names, name)
		return nil
	})
	slices.Sort(names)
	return slices.Compact(names), err
}

// topologyCheck collects problems.
type topologyCheck struct {
	ctx      context.Context
	there    map[string]map[plan.Relation]bool // the tables of a database on shards that are to get rows of it
	srv      *Server
	snap     *catalog.Snapshot
	next     *catalog.Topology
	problems []catalog.Problem
}

func (k *topologyCheck) report(path, format string, args ...any) {
	k.problems = append(k.problems, catalog.Problem{Path: path, Text: pgerr.New("", format, args...).Message})
}

func (k *topologyCheck) database(name string) {
	now := k.snap.Topology()
	if only := k.next.OnlyShard(name); only != "" && only == now.OnlyShard(name) {
		return // nothing is anywhere else, and nothing was
	}
	rels := plan.NewRelCatalog(func(scan func([]byte) error) error { return k.srv.dbs.loadRelations(name, scan) }, nil)
	table, err := rels.Table()
	if err != nil {
		k.report(catalog.PathOf(name, "", ""), "its tables can't be read, so key columns and rows are not checked: %s", pgerr.From(err).Message)
		return
	}
	k.there = make(map[string]map[plan.Relation]bool)
	all := slices.SortedFunc(table.Rels, func(a, b *plan.Rel) int {
		return strings.Compare(a.Schema+"\x00"+a.Name, b.Schema+"\x00"+b.Name)
	})
	for _, r := range all {
		if r.Kind != plan.RelOrdinary && r.Kind != plan.RelPartitioned {
			continue
		}
		place, err := k.next.Place(name, r.Schema, r.Name)
		if err != nil {
			place = nil
		}
		if place != nil && place.Index != nil {
			if err := table.CheckKey(r, place.Index); err != nil {
				e := pgerr.From(err)
				k.report(catalog.PathOf(name, r.Schema, r.Name), "%s", strings.TrimSpace(e.Message+" "+e.Detail))
				continue
			}
		}
		k.rows(name, r, place)
		k.joined(name, r, place)
	}
	k.indexes(name, table)
}

// indexes reports global secondary indexes whose tables are not as they need them, and those that would be read without being
// filled.
func (k *topologyCheck) indexes(database string, table *plan.RelTable) {
	for _, g := range k.next.GSIs {
		if g.Database != database {
			continue
		}
		path := catalog.PathOf(database, "", "") + ".global_secondary_indexes." + g.Name
		if err := table.CheckIndex(g); err != nil {
			e := pgerr.From(err)
			k.report(path, "%s", strings.TrimSpace(e.Message+" "+e.Detail))
			continue
		}
		kept := slices.ContainsFunc(k.snap.Topology().GSIs, func(now *catalog.GSI) bool {
			return now.Database == g.Database && now.Schema == g.Schema && now.Owner == g.Owner && now.Lookup == g.Lookup &&
				slices.Equal(now.Columns, g.Columns)
		})
		if owner := table.Rel(g.Schema, g.Owner, nil); g.Enabled && !kept && owner != nil {
			k.filled(path, database, owner)
		}
	}
}

// filled reports an index that nobody has kept before, if its table has rows.
func (k *topologyCheck) filled(path, database string, owner *plan.Rel) {
	place, err := k.snap.Topology().Place(database, owner.Schema, owner.Name)
	if err != nil {
		return
	}
	for _, shard := range place.Shards() {
		if some, err := k.someRows(shard, database, owner); err == nil && some {
			k.report(path, "table \"%s\" has rows (or had, until VACUUM), which the index lacks: set \"enabled\": false, fill it, then enable it", owner.Name)
			return
		}
	}
}

// rows reports a table that has rows and would get another place: rows don't move with it.
func (k *topologyCheck) rows(database string, r *plan.Rel, place *catalog.Table) {
	before, err := k.snap.Topology().Place(database, r.Schema, r.Name)
	if err != nil || place != nil && catalog.SamePlace(before, place) || r.Kind != plan.RelOrdinary {
		return
	}
	for _, shard := range before.Shards() {
		some, err := k.someRows(shard, database, r)
		switch {
		case err != nil && pgerr.Code(err) == pgerr.UndefinedTable:
		case err != nil:
			k.report(catalog.PathOf(database, r.Schema, r.Name), "whether it has rows on shard \"%s\", which don't move to its new place, can't be seen: %s",
				shard, pgerr.From(err).Message)
			return
		case some:
			k.report(catalog.PathOf(database, r.Schema, r.Name), "it has rows on shard \"%s\" (or had, until VACUUM), which don't move to its new place", shard)
			return
		}
	}
}

// joined reports a table that is missing on a shard which is to have it, and has not had it before.
func (k *topologyCheck) joined(database string, r *plan.Rel, place *catalog.Table) {
	if place == nil {
		return
	}
	var before []string
	if now, err := k.snap.Topology().Place(database, r.Schema, r.Name); err == nil {
		before = now.Shards()
	}
	for _, shard := range place.Shards() {
		if slices.Contains(before, shard) {
			continue
		}
		tables, known := k.there[shard]
		if !known {
			tables = k.tablesOf(shard, database)
			k.there[shard] = tables
		}
		if tables != nil && !tables[plan.Relation{Schema: r.Schema, Name: r.Name}] {
			k.problems = append(k.problems, catalog.Problem{
				Path: catalog.PathOf(database, r.Schema, r.Name),
				Text: "it is missing on shard \"" + shard + "\", which is to have rows of it",
				Hint: "Make the tables there first: load pg_dump -s of the first shard with __neki.shard set to the new one.",
			})
		}
	}
}

// tablesOf lists the tables that a database has on a shard; nil when that can't be told, which is reported.
func (k *topologyCheck) tablesOf(shard, database string) map[plan.Relation]bool {
	const query = `SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text FROM pg_catalog.pg_class AS c
		JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p')`
	tables := make(map[plan.Relation]bool)
	err := k.srv.control.queryNode(k.ctx, k.snap.PrimaryOf(shard), database, query, nil, func(rows pgx.Rows) error {
		var r plan.Relation
		if err := rows.Scan(&r.Schema, &r.Name); err != nil {
			return err
		}
		tables[r] = true
		return nil
	})
	if err != nil {
		k.report(catalog.PathOf(database, "", ""), "whether shard \"%s\" has its tables can't be seen: %s", shard, pgerr.From(err).Message)
		return nil
	}
	return tables
}

// someRows tells by its size, since the gateway's role may not read it: one whose rows were deleted counts until VACUUM.
func (k *topologyCheck) someRows(shard, database string, r *plan.Rel) (some bool, err error) {
	const query = "SELECT pg_catalog.pg_relation_size($1::pg_catalog.text::pg_catalog.regclass) > 0"
	err = k.srv.control.queryNode(k.ctx, k.snap.PrimaryOf(shard), database, query, []any{pgx.Identifier{r.Schema, r.Name}.Sanitize()},
		func(rows pgx.Rows) error { return rows.Scan(&some) })
	return some, err
}
