package adminsql

import (
	"context"
	"slices"
	"strings"

	"neki/catalog"
	"neki/exec"
	"neki/exec/build"
	"neki/internal/datum"
	"neki/internal/pgerr"
)

// shardForTypes are the types of values that neki.shard_for takes.
var shardForTypes = [...]uint32{
	datum.TextOID, datum.Int4OID, datum.Int8OID, datum.NumericOID, datum.Float8OID, datum.BoolOID, datum.DateOID, datum.TimestampOID,
	datum.TimestamptzOID, datum.UUIDOID,
}

// shardFor is neki.shard_for(index, value, group): the uid of the shard that has rows with the value.
func (s *Schema) shardFor() *Relation {
	r := &Relation{
		Schema: SchemaName, Name: "shard_for", Function: true, Scalar: true,
		Comment: "Shard that has the rows of which a shard index makes the same key as of a value",
		Args: []Argument{
			{Name: "index", Type: text, Comment: "neki.shard_indexes.index"},
			{Name: "value", Type: datum.AnyElementOID, Comment: "value of the key column; text is read as that column's type"},
			{Name: "group", Type: text, Null: true, Comment: "neki.shard_groups.group; needed where the index is used in several"},
		},
		Columns: []Column{{"shard_for", text, "uid of the shard"}},
		rows: func(context.Context, Session, []any) ([][]any, error) {
			return nil, pgerr.New(pgerr.InternalError, "neki.shard_for is called by its overloads")
		},
	}
	for _, oid := range shardForTypes {
		r.overloads = append(r.overloads, build.Function{
			Args: []uint32{text, oid, text}, ArgNames: []string{"index", "value", "group"}, Required: 2, Result: text,
			Scalar: func(ctx context.Context, env *exec.Env, args []datum.Datum) (datum.Datum, error) {
				if args[0].IsNull() || args[1].IsNull() {
					return datum.Null, nil
				}
				uid, err := s.shardOf(ctx, env, args[0].Text(), oid, args[1], args[2])
				return datum.Text(uid), err
			},
		})
	}
	return r
}

func (s *Schema) shardOf(ctx context.Context, env *exec.Env, name string, oid uint32, value, group datum.Datum) (string, error) {
	snap, err := s.snapshot()
	if err != nil {
		return "", err
	}
	t := snap.Topology()
	ix := t.Index(name)
	if ix == nil {
		names := make([]string, len(t.Indexes))
		for i := range t.Indexes {
			names[i] = t.Indexes[i].Name
		}
		return "", invalidArgument("index", name, names)
	}
	key, err := s.keyOf(ctx, env, t, ix, oid, value)
	if err != nil {
		return "", err
	}
	groups, err := groupsFor(t, ix, group)
	if err != nil {
		return "", err
	}
	uid := groups[0].ShardOf(key)
	for _, g := range groups[1:] {
		if g.ShardOf(key) != uid {
			return "", pgerr.New(pgerr.InvalidParameterValue, "index \"%s\" is used in several groups, which have the key on different shards", name).
				WithHint("Name the group: neki.shard_for('%s', ..., '%s').", name, g.UID)
		}
	}
	return uid, nil
}

// keyOf makes the key of a value, as of the type of the column that the index is over where a table tells it.
func (s *Schema) keyOf(
	ctx context.Context, env *exec.Env, t *catalog.Topology, ix *catalog.Index, oid uint32, value datum.Datum,
) (uint64, error) {
	want, known := uint32(0), false
	if s.in.Topologies != nil {
		want, known = s.in.Topologies.KeyType(ctx, t, ix)
	}
	switch {
	case !known || catalog.FamilyOf(want) == catalog.FamilyOf(oid):
		if err := ix.CheckType(oid); err != nil && !known {
			return 0, err
		}
		return ix.Key(oid, value)
	case oid == datum.TextOID:
		return ix.KeyText(want, []byte(value.Text()), &datum.Session{Zone: env.Zone, Now: env.Now})
	}
	return 0, pgerr.New(pgerr.DatatypeMismatch, "index \"%s\" is over a column of another type", ix.Name).
		WithHint("Give the value as text or cast it to the column's type.")
}

// groupsFor gives the groups in which an index is used, or the one that is named.
func groupsFor(t *catalog.Topology, ix *catalog.Index, named datum.Datum) ([]*catalog.Group, error) {
	if !named.IsNull() {
		if g := t.Group(named.Text()); g != nil {
			return []*catalog.Group{g}, nil
		}
		uids := make([]string, len(t.Groups))
		for i, g := range t.Groups {
			uids[i] = g.UID
		}
		return nil, invalidArgument("group", named.Text(), uids)
	}
	var groups []*catalog.Group
	for place := range t.Places {
		if place.Index == ix && !slices.Contains(groups, place.Group) {
			groups = append(groups, place.Group)
		}
	}
	for _, g := range t.Groups {
		if g.DefaultIndex == ix && !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
	}
	if len(groups) == 0 {
		return nil, pgerr.New(pgerr.InvalidParameterValue, "index \"%s\" is used by no group and no table", ix.Name).
			WithHint("Name a group: neki.shard_for('%s', ..., 'group').", strings.ReplaceAll(ix.Name, "'", "''"))
	}
	return groups, nil
}
