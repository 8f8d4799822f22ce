package adminsql

import (
	"context"
	"slices"

	"neki/catalog"
	"neki/internal/pgerr"
)

// mostShards bounds a typing error.
const mostShards = 16

// shardProcedures make, rename and drop shards.
func (s *Schema) shardProcedures() []*Procedure {
	one := "1"
	shard := Argument{Name: "shard", Type: text, Comment: "the uid or name of a shard, as in neki.shards"}
	return []*Procedure{
		s.long(Procedure{
			Name: "create_shard", Comment: "Make empty shards with the instances that their profile asks for; neki.set_topology puts them to use",
			Args: []Argument{
				{Name: "profile", Type: text, Null: true, Comment: "a name of neki.profiles; NULL = the default one"},
				{Name: "count", Type: int4, Default: &one, Comment: "how many shards, 1 to 16"},
			},
		}, s.createShard),
		{
			Name: "rename_shard", Comment: "Give a shard another name; its uid, which the data topology uses, stays",
			Args: []Argument{shard, {Name: "name", Type: text, Comment: "letters, digits, '_', '-' and '.', at most 63"}}, run: s.renameShard,
		},
		s.long(Procedure{
			Name: "drop_shard", Comment: "Remove a shard that the data topology does not refer to, with its instances and data; backups stay",
			Args: []Argument{shard},
		}, s.dropShard),
	}
}

func (s *Schema) createShard(ctx context.Context, c *call) (catalog.Job, error) {
	snap, err := s.snapshot()
	if err != nil {
		return catalog.Job{}, err
	}
	name := ""
	if c.args[0] != nil {
		if name, err = profileArgument(snap, c.args[0]); err != nil {
			return catalog.Job{}, err
		}
	}
	p := snap.Profile(name)
	if p == nil {
		return catalog.Job{}, pgerr.New(pgerr.InvalidParameterValue, "there is no default profile").
			WithHint("Name one: SELECT profile FROM neki.profiles.")
	}
	count, _ := c.args[1].(int32)
	if count < 1 || count > mostShards {
		return catalog.Job{}, pgerr.New(pgerr.InvalidParameterValue, "invalid value for argument \"count\": %d", count).
			WithHint("Allowed values: 1 to %d.", mostShards)
	}
	target := "a new shard"
	if count > 1 {
		target = "new shards"
	}
	return s.putJob(ctx, c, catalog.Job{Kind: "create_shard", Target: target}, struct {
		Profile string `json:"profile"`
		Count   int32  `json:"count"`
	}{p.Name, count})
}

func (s *Schema) renameShard(ctx context.Context, c *call) error {
	if s.in.Documents == nil {
		return missing("the documents of the catalog")
	}
	snap, err := s.aboutShard(c)
	if err != nil {
		return err
	}
	name := c.text(1)
	if !catalog.ValidName(name) {
		return pgerr.New(pgerr.InvalidParameterValue, "invalid value for argument \"name\": \"%s\"", name).
			WithHint("A name has letters, digits, '_', '-' and '.', at most 63.")
	}
	for i := range snap.Shards {
		if sh := &snap.Shards[i]; sh.UID != c.shard && (sh.UID == name || sh.Name == name) {
			return pgerr.New(pgerr.InvalidParameterValue, "shard %s has the name \"%s\" already", sh.UID, name)
		}
	}
	return s.in.Documents.UpdateShard(ctx, c.shard, func(sh *catalog.Shard) error {
		sh.Name = name
		return nil
	})
}

func (s *Schema) dropShard(ctx context.Context, c *call) (catalog.Job, error) {
	snap, err := s.aboutShard(c)
	if err != nil {
		return catalog.Job{}, err
	}
	if home := snap.Authoritative(); home != nil && home.UID == c.shard {
		return catalog.Job{}, pgerr.New(pgerr.DependentObjectsStillExist, "cannot drop shard \"%s\": it is the authoritative one", c.shard)
	}
	for _, g := range snap.Topology().Groups {
		if slices.Contains(g.Shards, c.shard) {
			return catalog.Job{}, pgerr.New(pgerr.DependentObjectsStillExist, "cannot drop shard \"%s\": shard group \"%s\" has it", c.shard, g.UID).
				WithHint("CALL neki.set_topology(...) with a document that does not name it.")
		}
	}
	return s.putJob(ctx, c, catalog.Job{Kind: "drop_shard", Target: "shard " + c.shard, Shard: c.shard}, struct{}{})
}
