package adminsql

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"neki/catalog"
	"neki/internal/pgerr"
)

// Documents changes what the catalog says of shards, profiles and gateways. A change is in force for this gateway when a method returns.
type Documents interface {
	UpdateShard(ctx context.Context, uid string, change func(*catalog.Shard) error) error
	// CreateProfile makes one; catalog.ErrConflict when there is one of that name.
	CreateProfile(ctx context.Context, p catalog.Profile) error
	// DropProfile removes one that no shard has.
	DropProfile(ctx context.Context, name string) error
	// CreateGatewayGroup makes one; catalog.ErrConflict when there is one of that name.
	CreateGatewayGroup(ctx context.Context, g catalog.GatewayGroup) error
	// UpdateGatewayGroup changes one; catalog.ErrNotFound when there is none.
	UpdateGatewayGroup(ctx context.Context, name string, change func(*catalog.GatewayGroup) error) error
	// DropGatewayGroup removes one that no gateway is in.
	DropGatewayGroup(ctx context.Context, name string) error
	// PlaceGateway puts a gateway into a group, or for "" into none.
	PlaceGateway(ctx context.Context, gateway, group string) error
}

// nodeProcedures act on one instance, or on what the admin does to a shard.
func (s *Schema) nodeProcedures() []*Procedure {
	yes := "true"
	shard := Argument{Name: "shard", Type: text, Comment: "the uid or name of a shard, as in neki.shards"}
	node := Argument{Name: "node", Type: text, Comment: "an id of neki.nodes"}
	return []*Procedure{
		s.long(Procedure{
			Name: "fence", Comment: "Take an instance out of service and stop its Postgres, until neki.unfence; a primary gives its lead away first",
			Args: []Argument{node, {Name: "reason", Type: text, Null: true, Comment: "why, for neki.events"}},
		}, s.onNode("fence", nil, func(n *catalog.Node, c *call) any {
			return map[string]string{"reason": c.text(1)}
		})),
		s.long(Procedure{
			Name: "unfence", Comment: "Take a fenced instance back into service", Args: []Argument{node},
		}, s.onNode("unfence", nil, nil)),
		s.long(Procedure{
			Name: "restart_node", Comment: "Restart an instance's Postgres; a primary gives its lead away first", Args: []Argument{node},
		}, s.onNode("restart_node", nil, nil)),
		{
			Name: "maintenance", Comment: "Have the admin look after a shard without acting: no failover, no repair; false ends it",
			Args: []Argument{shard, {Name: "on", Type: boolean, Default: &yes, Comment: "false: the admin acts again"}},
			run:  s.maintenance,
		},
		{
			Name: "set_durability", Comment: "Say what a shard's commits wait for: sync (a replica has flushed them) or none",
			Args: []Argument{shard, {Name: "durability", Type: text, Comment: "sync or none; under none a failover may lose commits"}},
			run:  s.setDurability,
		},
	}
}

// setDurability changes what commits wait for. The admin brings the rule and the primary in line: with more to wait for the
// primary first, with less the rule first.
func (s *Schema) setDurability(ctx context.Context, c *call) error {
	if s.in.Documents == nil {
		return missing("the documents of the catalog")
	}
	if _, err := s.aboutShard(c); err != nil {
		return err
	}
	durability := strings.ToLower(c.text(1))
	if known := []string{"sync", "none"}; !slices.Contains(known, durability) {
		return invalidArgument("durability", c.args[1], known)
	}
	c.result = fmt.Sprintf("durability of shard %s is %s", c.shard, durability)
	err := s.in.Documents.UpdateShard(ctx, c.shard, func(sh *catalog.Shard) error {
		sh.Durability = durability
		return nil
	})
	if err != nil {
		return err
	}
	n := pgerr.Notice("%s", c.result)
	if durability == "none" {
		n = n.WithSeverity(pgerr.SeverityWarning).WithHint("Commits are acknowledged without a replica: losing the primary loses them.")
	}
	c.notice(n)
	return nil
}

// onNode asks for a job on an instance, unless check refuses it; both functions may be nil.
func (s *Schema) onNode(
	kind string, check func(context.Context, *catalog.Snapshot, *catalog.Node) error, args func(*catalog.Node, *call) any,
) func(context.Context, *call) (catalog.Job, error) {
	return func(ctx context.Context, c *call) (catalog.Job, error) {
		snap, err := s.snapshot()
		if err != nil {
			return catalog.Job{}, err
		}
		n, err := nodeArgument(snap, c.args[0])
		if err != nil {
			return catalog.Job{}, err
		}
		if check != nil {
			if err := check(ctx, snap, n); err != nil {
				return catalog.Job{}, err
			}
		}
		c.shard, c.node = n.Shard, n.ID
		if sh := snap.Shard(n.Shard); sh != nil && sh.Maintenance && kind != "restart_node" {
			return catalog.Job{}, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "shard %s is in maintenance: the admin does nothing to it", n.Shard).
				WithHint("CALL neki.maintenance('%s', false) ends it.", n.Shard)
		}
		var with any = struct{}{}
		if args != nil {
			with = args(n, c)
		}
		return s.putJob(ctx, c, catalog.Job{Kind: kind, Target: "node " + n.ID, Shard: n.Shard, Node: n.ID}, with)
	}
}

func nodeArgument(snap *catalog.Snapshot, value any) (*catalog.Node, error) {
	id, _ := value.(string)
	if n := snap.Node(id); n != nil {
		return n, nil
	}
	known := make([]string, len(snap.Nodes))
	for i := range snap.Nodes {
		known[i] = snap.Nodes[i].ID
	}
	return nil, invalidArgument("node", value, known)
}

func (s *Schema) maintenance(ctx context.Context, c *call) error {
	if s.in.Documents == nil {
		return missing("the documents of the catalog")
	}
	if _, err := s.aboutShard(c); err != nil {
		return err
	}
	on, _ := c.args[1].(bool)
	c.result = fmt.Sprintf("maintenance of shard %s is %s", c.shard, onOff(on))
	err := s.in.Documents.UpdateShard(ctx, c.shard, func(sh *catalog.Shard) error {
		sh.Maintenance = on
		return nil
	})
	if err == nil {
		c.notice(pgerr.Notice("%s", c.result))
	}
	return err
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
