package adminsql

import (
	"context"
	"slices"
	"strings"

	"neki/catalog"
	"neki/internal/pgerr"
)

func (s *Schema) replicaChoice() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "replica_choice", Function: true,
		Comment: "How this session's next read of a shard would choose among its replicas, best first",
		Args:    []Argument{{Name: "shard", Type: text, Comment: "the uid or name of a shard, as in neki.shards"}},
		Columns: []Column{
			{"position", int4, "1 = best"},
			{"node", text, "id of the instance"},
			{"eligible", boolean, "whether it may serve this session"},
			{"tier", text, "preferred, tolerable or excluded"},
			{"role", text, "replica or rdonly"},
			{"cell", text, "availability zone"},
			{"sticky", boolean, "the session's own by affinity"},
			{"is_local", boolean, "in the gateway's own cell"},
			{"lag", interval, "replication lag"},
			{"replay_lsn", pgLSN, "end of the WAL replayed"},
			{"outstanding", int4, "statements of this gateway running there"},
			{"reason", text, "why it is excluded"},
		},
		rows: s.choiceRows,
	}
}

func (s *Schema) choiceRows(ctx context.Context, sess Session, args []any) ([][]any, error) {
	snap, err := s.snapshot()
	if err != nil {
		return nil, err
	}
	if s.in.Choice == nil {
		return nil, missing("replica choices")
	}
	uid, err := shardArgument(snap, args[0])
	if err != nil {
		return nil, err
	}
	candidates, err := s.in.Choice.Choose(ctx, sess, snap, uid)
	if err != nil {
		return nil, err
	}
	rows := make([][]any, 0, len(candidates))
	for i, c := range candidates {
		rows = append(rows, choiceRow(snap, int32(i+1), c))
	}
	return rows, nil
}

func choiceRow(snap *catalog.Snapshot, position int32, c Candidate) []any {
	var role, cell, lag, replay any
	if n := snap.Node(c.Node); n != nil {
		role, cell = roleOf(snap, n).String(), orNull(n.Cell)
		figures := replicationFigures(roleOf(snap, n), snap.Health(c.Node))
		lag, replay = figures[0], figures[3]
	}
	return []any{
		position, c.Node, c.Reason == "", orNull(c.Tier), role, cell, c.Sticky, c.Local, lag, replay, c.Outstanding,
		orNull(c.Reason),
	}
}

// shardArgument checks that a value names a shard, by uid or by name, and gives its uid.
func shardArgument(snap *catalog.Snapshot, value any) (string, error) {
	name, _ := value.(string)
	if snap.Shard(name) != nil {
		return name, nil
	}
	known := make([]string, 0, len(snap.Shards))
	for i := range snap.Shards {
		if snap.Shards[i].Name == name && name != "" {
			return snap.Shards[i].UID, nil
		}
		known = append(known, snap.Shards[i].UID)
	}
	return "", invalidArgument("shard", value, known)
}

// aboutShard finds the shard that a call's first argument names, and notes that the call is about it.
func (s *Schema) aboutShard(c *call) (*catalog.Snapshot, error) {
	snap, err := s.snapshot()
	if err != nil {
		return nil, err
	}
	c.shard, err = shardArgument(snap, c.args[0])
	return snap, err
}

// invalidArgument is 22023 with the allowed values in the HINT.
func invalidArgument(name string, value any, allowed []string) error {
	err := pgerr.New(pgerr.InvalidParameterValue, "invalid value for argument \"%s\": \"%v\"", name, value)
	if value == nil {
		err = pgerr.New(pgerr.InvalidParameterValue, "argument \"%s\" must not be null", name)
	}
	slices.Sort(allowed)
	return err.WithHint("Allowed values: %s.", strings.Join(allowed, ", "))
}
