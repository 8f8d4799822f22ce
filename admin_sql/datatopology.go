package adminsql

import (
	"context"

	"neki/catalog"
)

// The relations that show the data topology: topology, topology_history, shard_groups, key_ranges, shard_indexes, tables
// and sequences.

func topologyColumns() []Column {
	return []Column{
		{"revision", int8, "1, 2, 3 ...; NULL: none was ever set, and all is on one shard"},
		{"document", jsonb, "the document"},
		{"comment", text, "what neki.set_topology was told"},
		{"by", text, "role that set it"},
		{"at", timestamptz, "when"},
	}
}

func topologyRow(d catalog.TopologyDocument) []any {
	return []any{orNull(d.Revision), string(d.Document), orNull(d.Comment), orNull(d.By), timeOrNull(d.At)}
}

func (s *Schema) dataTopology() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "topology", Comment: "The data topology in force",
		Columns: topologyColumns(),
		rows: ignoreArgs(func(context.Context) ([][]any, error) {
			snap, err := s.snapshot()
			if err != nil {
				return nil, err
			}
			return [][]any{topologyRow(snap.CurrentTopology())}, nil
		}),
	}
}

func (s *Schema) topologyHistory() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "topology_history", Comment: "Every revision of the data topology, newest first",
		Columns: topologyColumns(),
		rows: ignoreArgs(func(ctx context.Context) ([][]any, error) {
			if s.in.Topologies == nil {
				return nil, missing("revisions of the data topology")
			}
			all, err := s.in.Topologies.TopologyHistory(ctx)
			return collect(all, topologyRow), err
		}),
	}
}

// ofTopology makes a relation's scan of the compiled topology.
func (s *Schema) ofTopology(rows func(*catalog.Topology) [][]any) func(context.Context, Session, []any) ([][]any, error) {
	return ignoreArgs(func(context.Context) ([][]any, error) {
		snap, err := s.snapshot()
		if err != nil {
			return nil, err
		}
		return rows(snap.Topology()), nil
	})
}

func (s *Schema) shardGroups() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "shard_groups", Comment: "Layouts of key ranges that tables are placed by",
		Columns: []Column{
			{"group", text, "uid of the group"},
			{"shards", textArray, "uids of its shards, in the order of their first range"},
			{"ranges", int4, "key ranges it has"},
			{"default_index", text, "index of tables that name none"},
			{"authoritative", boolean, "source of schema and types"},
			{"is_default", boolean, "where tables are that nothing else places"},
		},
		rows: s.ofTopology(func(t *catalog.Topology) [][]any {
			return collect(t.Groups, func(g *catalog.Group) []any {
				var index any
				if g.DefaultIndex != nil {
					index = g.DefaultIndex.Name
				}
				return []any{g.UID, notNil(g.Shards), int32(len(g.Ranges)), index, g == t.Authoritative, g == t.Default}
			})
		}),
	}
}

func (s *Schema) keyRanges() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "key_ranges", Comment: "Key ranges of the shard groups",
		Columns: []Column{
			{"group", text, "uid of the group"},
			{"shard", text, "uid of the shard that has these keys"},
			{"start", text, "first key, in hexadecimal; NULL: no bound"},
			{"end", text, "first key that is not of the range; NULL: no bound"},
		},
		rows: s.ofTopology(func(t *catalog.Topology) [][]any {
			var rows [][]any
			for _, g := range t.Groups {
				for _, r := range g.Ranges {
					rows = append(rows, []any{g.UID, r.Shard, boundOrNull(r.Start), boundOrNull(r.End)})
				}
			}
			return rows
		}),
	}
}

func boundOrNull(bound uint64) any {
	if bound == 0 {
		return nil
	}
	return catalog.BoundText(bound)
}

func (s *Schema) shardIndexes() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "shard_indexes", Comment: "How keys are made of rows",
		Columns: []Column{
			{"index", text, "name of the index"},
			{"type", text, "xxhash, modulo or range"},
			{"column", text, "column it is over"},
			{"expression", text, "expression over the column, when the key is made of one"},
			{"modulus", int8, "of type modulo"},
		},
		rows: s.ofTopology(func(t *catalog.Topology) [][]any {
			return collect(t.Indexes, func(ix *catalog.Index) []any {
				return []any{ix.Name, ix.Type.String(), ix.Column, orNull(ix.Expr), orNull(ix.Modulus)}
			})
		}),
	}
}

func (s *Schema) placedTables() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "tables", Comment: "Tables that the data topology lists, and its defaults for the others",
		Columns: []Column{
			{"database", text, "NULL: all that are not listed"},
			{"schema", text, "NULL: all that are not listed"},
			{"table", text, "NULL: all that are not listed"},
			{"kind", text, "sharded, unsharded, reference or lookup"},
			{"group", text, "uid of its shard group; of a reference table, the first"},
			{"index", text, "shard index"},
			{"column", text, "column that the shard index is over"},
			{"shards", textArray, "uids of the shards that have it"},
		},
		rows: s.ofTopology(func(t *catalog.Topology) [][]any {
			var rows [][]any
			for place := range t.Places {
				rows = append(rows, placeRow(place))
			}
			return rows
		}),
	}
}

func placeRow(t *catalog.Table) []any {
	var index, column any
	if t.Index != nil {
		index, column = t.Index.Name, t.Index.Column
	}
	return []any{
		orNull(t.Database), orNull(t.Schema), orNull(t.Name), placeKind(t), t.Group.UID, index, column, notNil(t.Shards()),
	}
}

func placeKind(t *catalog.Table) string {
	switch {
	case t.Reference:
		return "reference"
	case t.Lookup:
		return "lookup"
	case t.Index != nil:
		return "sharded"
	}
	return "unsharded"
}

func (s *Schema) placedSequences() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "sequences", Comment: "Sequences that the data topology lists",
		Columns: []Column{
			{"database", text, "database"},
			{"schema", text, "schema"},
			{"sequence", text, "name"},
			{"group", text, "uid of the shard group that has it"},
			{"shard", text, "uid of that group's shard"},
		},
		rows: s.ofTopology(func(t *catalog.Topology) [][]any {
			return collect(t.Sequences, func(q *catalog.Sequence) []any {
				return []any{q.Database, q.Schema, q.Name, q.Group.UID, q.Group.Shards[0]}
			})
		}),
	}
}
