package catalog

import (
	"cmp"
	"slices"
)

// The part of the parser below databases.

func (p *topologyParser) database(name string, n *jsonNode) {
	d := &databasePlaces{schemas: map[string]*schemaPlaces{}}
	p.topology.databases[name] = d
	if !p.isKind(n, jsonObject) {
		return
	}
	p.known(n, "schemas", "default_shard_group", "global_secondary_indexes")
	d.fallback = p.defaultPlace(n, name, "")
	schemas := p.children(n.member("schemas"))
	for _, m := range schemas {
		if p.isKind(m.value, jsonObject) {
			d.schemas[m.name] = p.schema(name, m.name, m.value)
		}
	}
	for _, m := range p.children(n.member("global_secondary_indexes")) {
		p.gsi(name, m.name, m.value, d)
	}
	for _, m := range schemas {
		p.secondaryIndexes(name, m.name, m.value)
	}
}

// defaultPlace gives what stands for tables that a database or schema doesn't list; nil when it has no default. One that is
// wrong places nothing.
func (p *topologyParser) defaultPlace(n *jsonNode, database, schema string) *Table {
	at := n.member("default_shard_group")
	if at == nil {
		return nil
	}
	place := &Table{Database: database, Schema: schema, Group: p.groupNamed(n, "default_shard_group")}
	p.giveIndex(place, at, nil)
	return place
}

// giveIndex sets the index of a place: its own, or its group's. Rows of a group of several shards need one.
func (p *topologyParser) giveIndex(place *Table, at *jsonNode, own *Index) {
	g := place.Group
	if g == nil {
		return
	}
	switch {
	case own != nil:
		place.Index = own
	case len(g.Shards) > 1 && g.DefaultIndex != nil:
		place.Index = g.DefaultIndex
	case len(g.Shards) > 1:
		p.report(at, "group \"%s\" has several shards and no default_shard_index: a shard_index is needed", g.UID)
		place.Group = nil
	}
}

func (p *topologyParser) schema(database, name string, n *jsonNode) *schemaPlaces {
	p.known(n, "tables", "reference_tables", "sequences", "default_shard_group")
	s := &schemaPlaces{tables: map[string]*Table{}, sequences: map[string]*Sequence{}}
	s.fallback = p.defaultPlace(n, database, name)
	if isSystemSchema(name) {
		p.report(n, "relations of %s are on every shard: their place can't be chosen", name)
		return s
	}
	for _, m := range p.children(n.member("tables")) {
		p.table(s, &Table{Database: database, Schema: name, Name: m.name}, m.value, n)
	}
	for _, m := range p.children(n.member("reference_tables")) {
		p.referenceTable(s, &Table{Database: database, Schema: name, Name: m.name, Reference: true}, m.value)
	}
	for _, m := range p.children(n.member("sequences")) {
		p.sequence(s, &Sequence{Database: database, Schema: name, Name: m.name}, m.value)
	}
	return s
}

func (p *topologyParser) table(s *schemaPlaces, t *Table, n, schema *jsonNode) {
	s.tables[t.Name] = t // whatever is wrong with it: then it is not placed
	if !p.isKind(n, jsonObject) {
		return
	}
	p.known(n, "shard_group", "shard_index", "secondary_indexes")
	before := len(p.problems)
	if n.member("shard_group") == nil {
		t.Group = p.inheritedGroup(s, t.Database)
		if t.Group == nil {
			p.report(n, "needs \"shard_group\": neither schema, database nor document has a default that places it")
		}
	} else {
		t.Group = p.groupNamed(n, "shard_group")
	}
	own := p.indexNamed(n, "shard_index")
	if len(p.problems) > before {
		t.Group = nil
		return
	}
	p.giveIndex(t, n, own)
	if t.Group != nil {
		p.topology.Tables = append(p.topology.Tables, t)
	}
}

func (p *topologyParser) inheritedGroup(s *schemaPlaces, database string) *Group {
	for _, place := range []*Table{s.fallback, p.topology.databases[database].fallback, p.topology.fallback} {
		if place != nil {
			return place.Group
		}
	}
	return nil
}

func (p *topologyParser) referenceTable(s *schemaPlaces, t *Table, n *jsonNode) {
	if s.tables[t.Name] != nil {
		p.report(n, "\"%s\" stands under tables too", t.Name)
		return
	}
	s.tables[t.Name] = t
	if !p.isKind(n, jsonObject) {
		return
	}
	p.known(n, "shard_groups")
	names := p.stringsOf(n, "shard_groups", true)
	before := len(p.problems)
	for i, name := range names {
		g := p.groupOf(n.member("shard_groups").items[i], name)
		if g == nil {
			continue
		}
		if t.Group == nil {
			t.Group = g
		}
		for _, shard := range g.Shards {
			if !slices.Contains(t.Copies, shard) {
				t.Copies = append(t.Copies, shard)
			}
		}
	}
	slices.Sort(t.Copies)
	if len(p.problems) > before {
		t.Group, t.Copies = nil, nil
	}
	if t.Group != nil {
		p.topology.Tables = append(p.topology.Tables, t)
	}
}

func (p *topologyParser) sequence(s *schemaPlaces, q *Sequence, n *jsonNode) {
	if !p.isKind(n, jsonObject) {
		return
	}
	p.known(n, "shard_group")
	p.stringOf(n, "shard_group", true)
	if q.Group = p.groupNamed(n, "shard_group"); q.Group == nil {
		return
	}
	if len(q.Group.Shards) != 1 {
		p.report(n.member("shard_group"), "a sequence needs a group of one shard; \"%s\" has %d", q.Group.UID, len(q.Group.Shards))
		return
	}
	s.sequences[q.Name] = q
	p.topology.Sequences = append(p.topology.Sequences, q)
}

func (p *topologyParser) gsi(database, name string, n *jsonNode, d *databasePlaces) {
	if !p.isKind(n, jsonObject) {
		return
	}
	p.known(n, "schema", "table", "owner_table", "columns", "owner_sk_columns", "owner_pk_columns",
		"unique", "ignore_null", "enabled")
	before := len(p.problems)
	g := &GSI{
		Name: name, Database: database, Schema: p.stringOf(n, "schema", true), Lookup: p.stringOf(n, "table", true),
		Owner: p.stringOf(n, "owner_table", true), Columns: p.stringsOf(n, "columns", true),
		OwnerShardKey: p.stringsOf(n, "owner_sk_columns", true), OwnerPrimaryKey: p.stringsOf(n, "owner_pk_columns", false),
		Unique: p.boolOf(n, "unique", false), IgnoreNull: p.boolOf(n, "ignore_null", false), Enabled: p.boolOf(n, "enabled", true),
	}
	if !g.Unique && len(g.OwnerPrimaryKey) == 0 {
		p.report(n, "a global secondary index that is not unique needs \"owner_pk_columns\"")
	}
	if len(p.problems) > before {
		return
	}
	var owner, lookup *Table
	if s := d.schemas[g.Schema]; s != nil {
		owner, lookup = s.tables[g.Owner], s.tables[g.Lookup]
	}
	if p.gsiTables(g, n, owner, lookup); len(p.problems) > before {
		return
	}
	lookup.Lookup, lookup.LookupOf = true, g
	owner.GSIs = append(owner.GSIs, g)
	p.topology.GSIs = append(p.topology.GSIs, g)
}

// gsiTables checks the two tables of a GSI.
func (p *topologyParser) gsiTables(g *GSI, n *jsonNode, owner, lookup *Table) {
	switch {
	case owner == nil || owner.Reference:
		p.report(n.member("owner_table"), "\"%s\" is not listed under the tables of schema \"%s\"", g.Owner, g.Schema)
	case owner.Index == nil:
		p.report(n.member("owner_table"), "\"%s\" is not sharded: it needs no global secondary index", g.Owner)
	case len(g.OwnerShardKey) != 1 || g.OwnerShardKey[0] != owner.Index.Column:
		p.report(n.member("owner_sk_columns"), "must be the shard key of \"%s\": [\"%s\"]", g.Owner, owner.Index.Column)
	}
	switch {
	case g.Owner == g.Lookup:
		p.report(n.member("table"), "a table can't be its own lookup table")
	case lookup == nil || lookup.Reference:
		p.report(n.member("table"), "\"%s\" is not listed under the tables of schema \"%s\"", g.Lookup, g.Schema)
	case lookup.Lookup:
		p.report(n.member("table"), "\"%s\" is the lookup table of another global secondary index", g.Lookup)
	case lookup.Sharded() && lookup.Index.Column != g.Columns[0]:
		p.report(n.member("table"), "\"%s\" must be sharded by \"%s\", the first of the columns it looks up, or not at all",
			g.Lookup, g.Columns[0])
	}
}

// secondaryIndexes checks that each owner table lists its GSIs, and no others.
func (p *topologyParser) secondaryIndexes(database, schema string, n *jsonNode) {
	for _, m := range p.children(n.member("tables")) {
		t := p.topology.Table(database, schema, m.name)
		if t == nil || t.Group == nil || m.value.kind != jsonObject {
			continue
		}
		listed := p.listedGSIs(t, m.value)
		for _, g := range t.GSIs {
			if !slices.Contains(listed, g.Name) {
				p.report(m.value, "needs \"secondary_indexes\": [{\"name\": \"%s\"}] for its global secondary index", g.Name)
			}
		}
	}
}

func (p *topologyParser) listedGSIs(t *Table, n *jsonNode) []string {
	list := n.member("secondary_indexes")
	if list == nil || !p.isKind(list, jsonArray) {
		return nil
	}
	var names []string
	for _, item := range list.items {
		if !p.isKind(item, jsonObject) {
			continue
		}
		p.known(item, "name", "columns")
		name, columns := p.stringOf(item, "name", true), p.stringsOf(item, "columns", false)
		i := slices.IndexFunc(t.GSIs, func(g *GSI) bool { return g.Name == name })
		switch {
		case name == "":
		case i < 0:
			p.report(item, "no global secondary index \"%s\" has this table as its owner", name)
		case columns != nil && !slices.Equal(columns, t.GSIs[i].Columns):
			p.report(item.member("columns"), "are not those of the global secondary index")
		}
		names = append(names, name)
	}
	return names
}

// finish sorts what is listed and computes what is asked often.
func (t *Topology) finish() {
	slices.SortFunc(t.Indexes, func(a, b *Index) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(t.Tables, func(a, b *Table) int {
		return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.Schema, b.Schema), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(t.Sequences, func(a, b *Sequence) int {
		return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.Schema, b.Schema), cmp.Compare(a.Name, b.Name))
	})
	for _, d := range t.databases {
		d.only = t.onlyShard(d)
	}
}

// onlyShard gives the authoritative shard when nothing of a database can be elsewhere, or unplaced.
func (t *Topology) onlyShard(d *databasePlaces) string {
	only := t.Authoritative.Shards[0]
	alone := func(place *Table) bool {
		return place != nil && place.Group != nil && !place.Lookup &&
			!slices.ContainsFunc(place.Shards(), func(shard string) bool { return shard != only })
	}
	if fallback := cmp.Or(d.fallback, t.fallback); !alone(fallback) {
		return ""
	}
	for _, s := range d.schemas {
		if s.fallback != nil && !alone(s.fallback) {
			return ""
		}
		for _, table := range s.tables {
			if !alone(table) {
				return ""
			}
		}
		for _, q := range s.sequences {
			if q.Group.Shards[0] != only {
				return ""
			}
		}
	}
	return only
}
