package catalog

import (
	"maps"
	"slices"

	"neki/internal/pgerr"
)

// Topology is the data topology: which shards hold which rows of which table. It is immutable; lookups allocate nothing.
type Topology struct {
	Revision      int64 // 0: no document was ever set
	Authoritative *Group
	Default       *Group   // nil, or Authoritative
	Groups        []*Group // in the order of the document
	Indexes       []*Index // the rest sorted by name
	Tables        []*Table
	Sequences     []*Sequence
	GSIs          []*GSI

	databases map[string]*databasePlaces
	system    *Table // what stands for relations of pg_catalog and information_schema
	fallback  *Table // what stands for relations that nothing lists; nil: NK006
}

type databasePlaces struct {
	schemas  map[string]*schemaPlaces
	fallback *Table
	only     string // the shard that has everything of this database; "" when there are several
}

type schemaPlaces struct {
	tables    map[string]*Table
	sequences map[string]*Sequence
	fallback  *Table
}

// Table says where a table's rows are. One with an empty Name stands for all tables that the document doesn't list and
// that a default places.
type Table struct {
	Database, Schema, Name string
	Group                  *Group // of a reference table: the first that has a copy
	Index                  *Index // nil: unsharded, or a reference table
	Reference              bool
	Copies                 []string // of a reference table: uids of the shards that have one, sorted
	GSIs                   []*GSI   // of which it is the owner
	Lookup                 bool     // a GSI's lookup table
	LookupOf               *GSI     // whose
}

// Sharded reports whether the table's rows are on several shards, by key.
func (t *Table) Sharded() bool { return !t.Reference && len(t.Group.Shards) > 1 }

// Shards gives the uids of the shards that have the table. The slice must not be written to.
func (t *Table) Shards() []string {
	if t.Reference {
		return t.Copies
	}
	return t.Group.Shards
}

// Group is a layout of key ranges. Together they cover every key once.
type Group struct {
	UID          string
	Ranges       []KeyRange // sorted
	Shards       []string   // uids, distinct, in the order of the ranges
	DefaultIndex *Index     // nil: none

	starts []uint64
}

// KeyRange is the keys from Start up to but not including End, which 0 makes unbounded.
type KeyRange struct {
	Shard      string
	Start, End uint64
}

// ShardOf gives the uid of the shard that has a key.
func (g *Group) ShardOf(key uint64) string {
	if len(g.starts) == 1 {
		return g.Ranges[0].Shard
	}
	i, found := slices.BinarySearch(g.starts, key)
	if !found {
		i-- // the first start is 0, so there is one before
	}
	return g.Ranges[i].Shard
}

// Sequence says where a sequence is kept.
type Sequence struct {
	Database, Schema, Name string
	Group                  *Group // of one shard
}

// GSI is a global secondary index: a lookup table from other columns of its owner to the owner's shard key.
type GSI struct {
	Name, Database, Schema string
	Lookup, Owner          string // tables of that schema
	Columns                []string
	OwnerShardKey          []string
	OwnerPrimaryKey        []string // of a non-unique one
	Unique, IgnoreNull     bool
	Enabled                bool
}

// Table gives a table that the document lists, nil for any other.
func (t *Topology) Table(database, schema, name string) *Table {
	if d := t.databases[database]; d != nil {
		if s := d.schemas[schema]; s != nil {
			return s.tables[name]
		}
	}
	return nil
}

// Place gives the place of any table, listed or not; NK006 when nothing places it.
func (t *Topology) Place(database, schema, name string) (*Table, error) {
	place := t.fallback
	if d := t.databases[database]; d != nil {
		if d.fallback != nil {
			place = d.fallback
		}
		if s := d.schemas[schema]; s != nil {
			if s.fallback != nil {
				place = s.fallback
			}
			if table, listed := s.tables[name]; listed {
				place = table
			}
		}
	}
	if isSystemSchema(schema) {
		place = t.system
	}
	if place == nil || place.Group == nil {
		return nil, notPlaced(database, schema, name)
	}
	return place, nil
}

func isSystemSchema(schema string) bool {
	return schema == "pg_catalog" || schema == "information_schema"
}

func notPlaced(database, schema, name string) error {
	return pgerr.New(pgerr.TableNotPlaced, "the topology does not place table \"%s.%s\"", schema, name).
		WithDetail("Database \"%s\" has neither an entry for it nor a default shard group.", database).
		WithHint("List the table under databases.%s.schemas.%s.tables, or give a default_shard_group.", database, schema)
}

// GroupOf gives the group of any table, listed or not; NK006 when there is none.
func (t *Topology) GroupOf(database, schema, name string) (*Group, error) {
	place, err := t.Place(database, schema, name)
	if err != nil {
		return nil, err
	}
	return place.Group, nil
}

// SequenceGroup gives the group, of one shard, on which a sequence is kept: its own when it is listed, that of the table
// which owns it when that one is unsharded, else the authoritative one. owner is "" for a sequence that no table owns.
func (t *Topology) SequenceGroup(database, schema, name, ownerSchema, owner string) *Group {
	if d := t.databases[database]; d != nil {
		if s := d.schemas[schema]; s != nil && s.sequences[name] != nil {
			return s.sequences[name].Group
		}
	}
	if owner != "" {
		if place, err := t.Place(database, ownerSchema, owner); err == nil && !place.Reference && len(place.Group.Shards) == 1 {
			return place.Group
		}
	}
	return t.Authoritative
}

// OnlyShard gives the uid of the shard that has everything of a database: "" when several have, or when nothing places
// its tables.
func (t *Topology) OnlyShard(database string) string {
	if d := t.databases[database]; d != nil {
		return d.only
	}
	if t.fallback == nil {
		return ""
	}
	return t.fallback.Group.Shards[0]
}

// Places gives the tables that are listed, in the order of their names, then what stands for those that are not.
func (t *Topology) Places(yield func(*Table) bool) {
	for _, table := range t.Tables {
		if !yield(table) {
			return
		}
	}
	for _, place := range t.fallbacks() {
		if !yield(place) {
			return
		}
	}
}

// fallbacks gives the defaults in the order of their names, that of the document first.
func (t *Topology) fallbacks() []*Table {
	var all []*Table
	add := func(place *Table) {
		if place != nil && place.Group != nil {
			all = append(all, place)
		}
	}
	add(t.fallback)
	for _, database := range slices.Sorted(maps.Keys(t.databases)) {
		d := t.databases[database]
		add(d.fallback)
		for _, schema := range slices.Sorted(maps.Keys(d.schemas)) {
			add(d.schemas[schema].fallback)
		}
	}
	return all
}

// CheckShards tells what stands against a topology in the cluster as it is: shards that are not there, and an authoritative
// group on another shard than the authoritative one, which has schema and types and can't be changed.
func (t *Topology) CheckShards(s *Snapshot) []Problem {
	var problems []Problem
	names := make([]string, len(s.Shards))
	for i := range s.Shards {
		names[i] = s.Shards[i].UID
	}
	for _, g := range t.Groups {
		for _, shard := range g.Shards {
			if s.Shard(shard) == nil {
				text := "there is no shard \"" + shard + "\""
				if near := pgerr.Nearest(shard, names); near != "" {
					text += ": perhaps \"" + near + "\" is meant"
				}
				problems = append(problems, Problem{Path: "$.shard_groups." + g.UID, Text: text})
			}
		}
	}
	if home := s.Authoritative(); home != nil && t.Authoritative.Shards[0] != home.UID {
		problems = append(problems, Problem{
			Path: "$.authoritative_shard_group", Text: "must be on shard \"" + home.UID + "\": the authoritative shard can't be changed",
		})
	}
	return problems
}

// Index gives the index of that name, nil when there is none.
func (t *Topology) Index(name string) *Index {
	for _, ix := range t.Indexes {
		if ix.Name == name {
			return ix
		}
	}
	return nil
}

// Group gives the group of that uid, nil when there is none.
func (t *Topology) Group(uid string) *Group {
	for _, g := range t.Groups {
		if g.UID == uid {
			return g
		}
	}
	return nil
}

// GroupsOf gives the uids of the groups that refer to a shard, in the order of the document.
func (t *Topology) GroupsOf(shard string) []string {
	var uids []string
	for _, g := range t.Groups {
		if slices.Contains(g.Shards, shard) {
			uids = append(uids, g.UID)
		}
	}
	return uids
}

// Colocated reports whether rows of two tables with equal keys are on one shard: both are in one group, and their
// indexes compute the same of their columns. Whether the keys can be equal is for the types of the columns to say: see
// FamilyOf.
func Colocated(a, b *Table) bool {
	if a.Group != b.Group || a.Reference || b.Reference {
		return false
	}
	if len(a.Group.Shards) == 1 {
		return true
	}
	return a.Index != nil && b.Index != nil && a.Index.sameFunction(b.Index)
}

// SamePlace reports whether rows that are where a says are where b says.
func SamePlace(a, b *Table) bool {
	if a.Reference || b.Reference {
		return a.Reference == b.Reference && slices.Equal(a.Copies, b.Copies)
	}
	if len(a.Group.Shards) == 1 && len(b.Group.Shards) == 1 {
		return a.Group.Shards[0] == b.Group.Shards[0]
	}
	return slices.Equal(a.Group.Ranges, b.Group.Ranges) && a.Index != nil && b.Index != nil &&
		a.Index.Column == b.Index.Column && a.Index.sameFunction(b.Index)
}

// PathOf gives where a topology document speaks of a table, or of a database.
func PathOf(database, schema, table string) string {
	path := "$.databases" + pathStep(database)
	if table != "" {
		path += ".schemas" + pathStep(schema) + ".tables" + pathStep(table)
	}
	return path
}

// implicitTopology is that of a cluster which was never given a document: everything is on the authoritative shard.
func implicitTopology(shard string) *Topology {
	g := &Group{UID: implicitGroup, Ranges: []KeyRange{{Shard: shard}}, Shards: []string{shard}, starts: []uint64{0}}
	t := &Topology{Authoritative: g, Default: g, Groups: []*Group{g}}
	t.system = &Table{Group: g}
	t.fallback = t.system
	return t
}

const implicitGroup = "default"
