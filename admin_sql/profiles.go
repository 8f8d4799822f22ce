package adminsql

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strconv"
	"strings"

	"neki/catalog"
	"neki/internal/pgerr"
)

func (s *Schema) profiles() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "profiles", Comment: "Kinds of shards: how many instances they have and with what Postgres parameters",
		Columns: []Column{
			{"profile", text, "name"},
			{"replicas", int4, "replicas that each shard shall have"},
			{"rdonly", int4, "rdonly instances that each shard shall have"},
			{"postgres_version", text, "version that is wanted; NULL: any"},
			{"parameters", jsonb, "Postgres parameters of the instances, over neki's defaults"},
			{"is_default", boolean, "for shards that name none"},
			{"shards", textArray, "uids of the shards that have it"},
		},
		rows: ignoreArgs(func(context.Context) ([][]any, error) {
			snap, err := s.snapshot()
			if err != nil {
				return nil, err
			}
			return collect(snap.Profiles, func(p catalog.Profile) []any {
				return []any{
					p.Name, int32(p.Replicas), int32(p.Rdonly), orNull(p.PostgresVersion), parametersJSON(p.Parameters), p.Default,
					snap.ShardsOfProfile(&p),
				}
			}), nil
		}),
	}
}

func parametersJSON(parameters map[string]string) string {
	if parameters == nil {
		return "{}"
	}
	doc, _ := json.Marshal(parameters) // texts only
	return string(doc)
}

func (s *Schema) profileProcedures() []*Procedure {
	two, none := "2", "0"
	profile := Argument{Name: "profile", Type: text, Comment: "a name of neki.profiles"}
	parameters := Argument{Name: "parameters", Type: jsonb, Null: true, Comment: `an object of Postgres parameters, for example '{"work_mem": "16MB"}'`}
	return []*Procedure{
		{
			Name: "create_profile", Comment: "Make a profile for shards",
			Args: []Argument{
				{Name: "profile", Type: text, Comment: "letters, digits, '_', '-' and '.', at most 63"},
				{Name: "replicas", Type: int4, Default: &two, Comment: "replicas of each shard, 0 to 24"},
				{Name: "rdonly", Type: int4, Default: &none, Comment: "rdonly instances of each shard, 0 to 24"},
				parameters,
			},
			run: s.createProfile,
		},
		s.long(Procedure{
			Name:    "alter_profile",
			Comment: "Change Postgres parameters of a profile; null takes one back to its default. Replicas first; a primary gives its lead away before it is restarted",
			Args:    []Argument{profile, parameters},
		}, s.alterProfile),
		{
			Name: "drop_profile", Comment: "Remove a profile that no shard has", Args: []Argument{profile}, run: s.dropProfile,
		},
		s.long(Procedure{
			Name: "assign_profile", Comment: "Give a shard another profile, and its instances that profile's parameters",
			Args: []Argument{{Name: "shard", Type: text, Comment: "the uid or name of a shard, as in neki.shards"}, profile},
		}, s.assignProfile),
	}
}

func (s *Schema) createProfile(ctx context.Context, c *call) error {
	if s.in.Documents == nil {
		return missing("the documents of the catalog")
	}
	p := catalog.Profile{Name: c.text(0)}
	if !catalog.ValidName(p.Name) || p.Name == "gateway" || p.Name == "admin" { // scopes of neki.parameters
		return pgerr.New(pgerr.InvalidParameterValue, "invalid value for argument \"profile\": \"%s\"", p.Name).
			WithHint("A name has letters, digits, '_', '-' and '.', at most 63, and is not gateway or admin.")
	}
	for i, into := range []*int{&p.Replicas, &p.Rdonly} {
		n, _ := c.args[1+i].(int32)
		if n < 0 || n > mostReplicas {
			return pgerr.New(pgerr.InvalidParameterValue, "invalid value for argument \"%s\": %d", []string{"replicas", "rdonly"}[i], n).
				WithHint("Allowed values: 0 to %d.", mostReplicas)
		}
		*into = int(n)
	}
	change, err := parametersArgument(c.args[3])
	if err != nil {
		return err
	}
	p.Parameters = map[string]string{}
	for name, value := range change {
		if value != nil {
			p.Parameters[name] = *value
		}
	}
	err = s.in.Documents.CreateProfile(ctx, p)
	if errors.Is(err, catalog.ErrConflict) {
		snap, snapErr := s.snapshot()
		if snapErr == nil && sameProfile(snap.Profile(p.Name), &p) {
			c.notice(pgerr.Notice("profile %s is there already", p.Name))
			return nil
		}
		return pgerr.New(pgerr.DuplicateObject, "profile \"%s\" already exists", p.Name).
			WithHint("CALL neki.alter_profile(...) changes it.")
	}
	return err
}

func sameProfile(a, b *catalog.Profile) bool {
	return a != nil && a.Replicas == b.Replicas && a.Rdonly == b.Rdonly && maps.Equal(a.Parameters, b.Parameters)
}

func (s *Schema) alterProfile(ctx context.Context, c *call) (catalog.Job, error) {
	snap, err := s.snapshot()
	if err != nil {
		return catalog.Job{}, err
	}
	p, err := namedProfile(snap, c.args[0])
	if err != nil {
		return catalog.Job{}, err
	}
	change, err := parametersArgument(c.args[1])
	if err != nil {
		return catalog.Job{}, err
	}
	return s.putJob(ctx, c, catalog.Job{Kind: "alter_profile", Target: "profile " + p.Name},
		profileChange{Profile: p.Name, Parameters: change})
}

// profileChange is what the admin is asked to do: admin.ProfileChange.
type profileChange struct {
	Profile    string             `json:"profile"`
	Parameters map[string]*string `json:"parameters,omitempty"`
}

func (s *Schema) assignProfile(ctx context.Context, c *call) (catalog.Job, error) {
	snap, err := s.aboutShard(c)
	if err != nil {
		return catalog.Job{}, err
	}
	p, err := namedProfile(snap, c.args[1])
	if err != nil {
		return catalog.Job{}, err
	}
	if have, want := len(snap.NodesOf(c.shard))-1, p.Replicas+p.Rdonly; have != want {
		c.notice(pgerr.Notice("profile %s has %d replicas and %d rdonly instances; shard %s has %d in all", p.Name, p.Replicas, p.Rdonly, c.shard, have).
			WithHint("CALL neki.add_replica(shard => '%s') or neki.remove_replica(node) brings that in line.", c.shard))
	}
	return s.putJob(ctx, c, catalog.Job{Kind: "assign_profile", Target: "shard " + c.shard, Shard: c.shard}, profileChange{Profile: p.Name})
}

func (s *Schema) dropProfile(ctx context.Context, c *call) error {
	if s.in.Documents == nil {
		return missing("the documents of the catalog")
	}
	snap, err := s.snapshot()
	if err != nil {
		return err
	}
	p, err := namedProfile(snap, c.args[0])
	if err != nil {
		return err
	}
	if shards := snap.ShardsOfProfile(p); len(shards) > 0 {
		return pgerr.New(pgerr.DependentObjectsStillExist, "cannot drop profile \"%s\": shards have it", p.Name).
			WithDetail("Shards: %s.", strings.Join(shards, ", ")).
			WithHint("CALL neki.assign_profile(shard, profile) gives them another one.")
	}
	if p.Default {
		return pgerr.New(pgerr.DependentObjectsStillExist, "cannot drop profile \"%s\": it is the default", p.Name)
	}
	return s.in.Documents.DropProfile(ctx, p.Name)
}

// namedProfile gives the profile that an argument names.
func namedProfile(snap *catalog.Snapshot, value any) (*catalog.Profile, error) {
	name, err := profileArgument(snap, value)
	if err != nil {
		return nil, err
	}
	return snap.Profile(name), nil
}

// parametersArgument reads an object of parameters; nil values are to be taken back.
func parametersArgument(value any) (map[string]*string, error) {
	doc, ok := value.(string)
	if !ok {
		return nil, nil
	}
	var raw map[string]any
	decoder := json.NewDecoder(strings.NewReader(doc))
	decoder.UseNumber()
	if err := decoder.Decode(&raw); err != nil {
		return nil, wrongParameters(doc)
	}
	change := map[string]*string{}
	for name, v := range raw {
		switch v := v.(type) {
		case nil:
			change[strings.ToLower(name)] = nil
		case string:
			change[strings.ToLower(name)] = &v
		case json.Number:
			change[strings.ToLower(name)] = new(v.String())
		case bool:
			change[strings.ToLower(name)] = new(strconv.FormatBool(v))
		default:
			return nil, wrongParameters(doc)
		}
	}
	return change, nil
}

func wrongParameters(doc string) error {
	return pgerr.New(pgerr.InvalidParameterValue, "invalid value for argument \"parameters\": %s", shorten(doc)).
		WithHint(`It takes an object of texts, numbers, booleans and nulls, for example '{"work_mem": "16MB"}'.`)
}
