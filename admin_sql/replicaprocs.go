package adminsql

import (
	"context"
	"fmt"

	"neki/catalog"
	"neki/internal/pgerr"
)

// mostReplicas bounds a typing error: each takes a whole copy of the shard.
const mostReplicas = 24

// replicaRequest is what the admin reads of a job on replicas.
type replicaRequest struct {
	Profile string       `json:"profile,omitempty"`
	Cell    string       `json:"cell,omitempty"`
	Role    catalog.Role `json:"role"`
	Count   int32        `json:"count,omitempty"`
}

// replicaProcedures add, remove and repair replicas.
func (s *Schema) replicaProcedures() []*Procedure {
	replica := catalog.RoleReplica.String()
	role := Argument{Name: "role", Type: text, Default: &replica, Comment: "replica: acknowledges commits, can lead; rdonly: reads only"}
	node := Argument{Name: "node", Type: text, Comment: "an id of neki.replicas"}
	return []*Procedure{
		s.long(Procedure{
			Name:    "add_replica",
			Comment: "Give a shard, or each shard of a profile, one replica more: made from the shard's last backup, then joined",
			Args: []Argument{
				{Name: "profile", Type: text, Null: true, Comment: "each of its shards gets one; its own number grows by one"},
				{Name: "shard", Type: text, Null: true, Comment: "the uid or name of one shard, instead"},
				{Name: "cell", Type: text, Null: true, Comment: "where; NULL = the cell that has the fewest of the shard"},
				role,
			},
		}, s.addReplica),
		s.long(Procedure{
			Name: "remove_replica", Comment: "Take a replica out of its shard; its instance goes where neki made it", Args: []Argument{node},
		}, s.onReplica("remove_replica")),
		s.long(Procedure{
			Name: "set_replicas", Comment: "Set how many replicas each shard of a profile has, its primary aside; they are added or removed",
			Args: []Argument{
				{Name: "profile", Type: text, Comment: "a name of neki.profiles"},
				{Name: "count", Type: int4, Comment: "0 to 24"},
				role,
			},
		}, s.setReplicas),
		s.long(Procedure{
			Name:    "restore_replica",
			Comment: "Make a replica's data anew: from the last backup, else by a copy of another replica", Args: []Argument{node},
		}, s.onReplica("restore_replica")),
	}
}

func (s *Schema) addReplica(ctx context.Context, c *call) (catalog.Job, error) {
	var none catalog.Job
	snap, err := s.snapshot()
	if err != nil {
		return none, err
	}
	with := replicaRequest{Cell: c.text(2)}
	if with.Role, err = replicaRole(c.args[3]); err != nil {
		return none, err
	}
	if with.Cell != "" && !catalog.ValidName(with.Cell) {
		return none, pgerr.New(pgerr.InvalidParameterValue, "invalid value for argument \"cell\": \"%s\"", with.Cell).
			WithHint("Allowed are letters, digits, underscores, hyphens and dots.")
	}
	j := catalog.Job{Kind: "add_replica"}
	switch {
	case (c.args[0] == nil) == (c.args[1] == nil):
		return none, pgerr.New(pgerr.InvalidParameterValue, "add_replica takes either a profile or a shard").
			WithHint("CALL neki.add_replica(shard => 'sh1'), or CALL neki.add_replica(profile => 'default') for each shard of the profile.")
	case c.args[1] != nil:
		if j.Shard, err = shardArgument(snap, c.args[1]); err != nil {
			return none, err
		}
		j.Target = "shard " + j.Shard
	default:
		if with.Profile, err = profileArgument(snap, c.args[0]); err != nil {
			return none, err
		}
		j.Target = "profile " + with.Profile
	}
	return s.putJob(ctx, c, j, with)
}

func (s *Schema) setReplicas(ctx context.Context, c *call) (catalog.Job, error) {
	var none catalog.Job
	snap, err := s.snapshot()
	if err != nil {
		return none, err
	}
	with := replicaRequest{}
	if with.Profile, err = profileArgument(snap, c.args[0]); err != nil {
		return none, err
	}
	if with.Role, err = replicaRole(c.args[2]); err != nil {
		return none, err
	}
	count, given := c.args[1].(int32)
	if !given || count < 0 || count > mostReplicas {
		return none, invalidArgument("count", c.args[1], []string{fmt.Sprintf("0 to %d", mostReplicas)})
	}
	with.Count = count
	if with.Role == catalog.RoleReplica && count == 0 {
		for i := range snap.Shards {
			if sh := &snap.Shards[i]; sh.Profile == with.Profile && sh.Durability != "none" {
				return none, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "shard %s has durability %s: a commit waits for a replica", sh.UID, sh.Durability).
					WithHint("Leave at least one replica.")
			}
		}
	}
	return s.putJob(ctx, c, catalog.Job{Kind: "set_replicas", Target: "profile " + with.Profile}, with)
}

// onReplica asks for a job on an instance that is no primary.
func (s *Schema) onReplica(kind string) func(context.Context, *call) (catalog.Job, error) {
	return s.onNode(kind, func(ctx context.Context, snap *catalog.Snapshot, n *catalog.Node) error {
		return s.mayDoWithout(ctx, snap, n, kind)
	}, func(n *catalog.Node, _ *call) any { return replicaRequest{Role: n.Role} })
}

// mayDoWithout refuses what the shard can't do without: its primary, and its last acknowledger.
func (s *Schema) mayDoWithout(ctx context.Context, snap *catalog.Snapshot, n *catalog.Node, kind string) error {
	if s.in.Operations == nil {
		return missing("operations")
	}
	rule, err := s.in.Operations.Rule(ctx, n.Shard)
	if err != nil {
		return err
	}
	if rule.Leader == n.ID {
		return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "%s: node %s is the primary of shard %s", kind, n.ID, n.Shard).
			WithHint("CALL neki.switchover('%s') gives the lead to another first.", n.Shard)
	}
	others, in := 0, false
	for _, id := range rule.Cohort {
		if id != rule.Leader && id != n.ID && snap.Node(id) != nil {
			others++
		}
		in = in || id == n.ID
	}
	if in && rule.W > others {
		return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "%s: node %s is needed: no other replica of shard %s acknowledges commits", kind, n.ID, n.Shard).
			WithHint("CALL neki.add_replica(shard => '%s') first.", n.Shard)
	}
	return nil
}

func replicaRole(value any) (catalog.Role, error) {
	switch value {
	case catalog.RoleReplica.String():
		return catalog.RoleReplica, nil
	case catalog.RoleRdonly.String():
		return catalog.RoleRdonly, nil
	}
	return catalog.RoleUnknown, invalidArgument("role", value, []string{catalog.RoleReplica.String(), catalog.RoleRdonly.String()})
}

func profileArgument(snap *catalog.Snapshot, value any) (string, error) {
	name, _ := value.(string)
	known := make([]string, len(snap.Profiles))
	for i := range snap.Profiles {
		if known[i] = snap.Profiles[i].Name; known[i] == name {
			return name, nil
		}
	}
	return "", invalidArgument("profile", value, known)
}
