package adminsql

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/settings"
)

func (s *Schema) gatewayGroups() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "gateway_groups", Comment: "Groups of gateways: their cell and parameters",
		Columns: []Column{
			{"group", text, "name"},
			{"cell", text, "cell of its gateways; NULL: each has its own"},
			{"parameters", jsonb, "gateway parameters, over those of all gateways"},
			{"gateways", textArray, "ids of the gateways in it, whether they run or not"},
		},
		rows: ignoreArgs(func(context.Context) ([][]any, error) {
			snap, err := s.snapshot()
			if err != nil {
				return nil, err
			}
			return collect(snap.GatewayGroups, func(g catalog.GatewayGroup) []any {
				return []any{g.Name, orNull(g.Cell), parametersJSON(g.Parameters), snap.GatewaysOfGroup(g.Name)}
			}), nil
		}),
	}
}

func (s *Schema) gatewayGroupProcedures() []*Procedure {
	group := Argument{Name: "gateway_group", Type: text, Comment: "a name of neki.gateway_groups"}
	cell := Argument{Name: "cell", Type: text, Null: true, Comment: "cell of its gateways"}
	parameters := Argument{Name: "parameters", Type: jsonb, Null: true, Comment: `an object of gateway parameters, for example '{"pool-capacity": 50}'`}
	return []*Procedure{
		{
			Name: "create_gateway_group", Comment: "Make a group of gateways",
			Args: []Argument{{Name: "gateway_group", Type: text, Comment: "letters, digits, '_', '-' and '.', at most 63"}, cell, parameters},
			run:  s.createGatewayGroup,
		},
		{
			Name:    "alter_gateway_group",
			Comment: "Change a group's cell, '' for none, and its parameters, null for one that is to be as for all gateways; at once and without a restart",
			Args:    []Argument{group, cell, parameters}, run: s.alterGatewayGroup,
		},
		{Name: "drop_gateway_group", Comment: "Remove a group that no gateway is in", Args: []Argument{group}, run: s.dropGatewayGroup},
		{
			Name: "assign_gateway", Comment: "Put a gateway into a group, or into none; one that is to start may be named, too",
			Args: []Argument{
				{Name: "gateway", Type: text, Comment: "the id of a gateway, as in neki.gateways"},
				{Name: "gateway_group", Type: text, Null: true, Comment: "a name of neki.gateway_groups; NULL: none"},
			},
			run: s.assignGateway,
		},
	}
}

func (s *Schema) createGatewayGroup(ctx context.Context, c *call) error {
	if s.in.Documents == nil {
		return missing("the documents of the catalog")
	}
	g := catalog.GatewayGroup{Name: c.text(0)}
	if !catalog.ValidName(g.Name) {
		return pgerr.New(pgerr.InvalidParameterValue, "invalid value for argument \"gateway_group\": \"%s\"", g.Name).
			WithHint("A name has letters, digits, '_', '-' and '.', at most 63.")
	}
	change, err := gatewayParameters(c.args[2])
	if err != nil {
		return err
	}
	if err := changeGroup(&g, c.args[1], change); err != nil {
		return err
	}
	err = s.in.Documents.CreateGatewayGroup(ctx, g)
	if !errors.Is(err, catalog.ErrConflict) {
		return err
	}
	snap, snapErr := s.snapshot()
	if snapErr == nil {
		if have := snap.GatewayGroup(g.Name); have != nil && have.Cell == g.Cell && maps.Equal(have.Parameters, g.Parameters) {
			c.notice(pgerr.Notice("gateway group %s is there already", g.Name))
			return nil
		}
	}
	return pgerr.New(pgerr.DuplicateObject, "gateway group \"%s\" already exists", g.Name).
		WithHint("CALL neki.alter_gateway_group(...) changes it.")
}

// changeGroup applies the arguments cell and parameters to a group.
func changeGroup(g *catalog.GatewayGroup, cell any, change map[string]*string) error {
	if name, ok := cell.(string); ok {
		if name != "" && !catalog.ValidName(name) {
			return pgerr.New(pgerr.InvalidParameterValue, "invalid value for argument \"cell\": \"%s\"", name).
				WithHint("A name has letters, digits, '_', '-' and '.', at most 63.")
		}
		g.Cell = name
	}
	next := maps.Clone(g.Parameters)
	if next == nil {
		next = map[string]string{}
	}
	for name, value := range change {
		if value == nil {
			delete(next, name)
		} else {
			next[name] = *value
		}
	}
	g.Parameters = next
	var pairs []settings.Pair
	for name, value := range next {
		pairs = append(pairs, settings.Pair{Name: name, Value: value})
	}
	_, err := settings.DefaultParameters().SetAll(pairs)
	return err
}

// gatewayParameters reads an object of parameters that gateways have.
func gatewayParameters(value any) (map[string]*string, error) {
	change, err := parametersArgument(value)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(change)) {
		row, ok := settings.FindParameter(name)
		if ok && row.Scope != "gateway" {
			return nil, pgerr.New(pgerr.InvalidParameterValue, "parameter \"%s\" is not one of gateways", row.Name).
				WithHint("Its scope is \"%s\".", row.Scope)
		}
		if !ok && change[name] == nil { // any other one is refused with its value
			_, err := settings.DefaultParameters().Get(name)
			return nil, err
		}
	}
	return change, nil
}

func (s *Schema) alterGatewayGroup(ctx context.Context, c *call) error {
	if s.in.Documents == nil {
		return missing("the documents of the catalog")
	}
	name, err := s.groupArgument(c.args[0])
	if err != nil {
		return err
	}
	change, err := gatewayParameters(c.args[2])
	if err != nil {
		return err
	}
	err = s.in.Documents.UpdateGatewayGroup(ctx, name, func(g *catalog.GatewayGroup) error {
		return changeGroup(g, c.args[1], change)
	})
	if errors.Is(err, catalog.ErrNotFound) { // dropped meanwhile
		return noGroup(name, nil)
	}
	return err
}

func (s *Schema) dropGatewayGroup(ctx context.Context, c *call) error {
	if s.in.Documents == nil {
		return missing("the documents of the catalog")
	}
	name, err := s.groupArgument(c.args[0])
	if err != nil {
		return err
	}
	snap, err := s.snapshot()
	if err != nil {
		return err
	}
	if in := snap.GatewaysOfGroup(name); len(in) > 0 {
		return pgerr.New(pgerr.DependentObjectsStillExist, "cannot drop gateway group \"%s\": gateways are in it", name).
			WithDetail("Gateways: %s.", strings.Join(in, ", ")).
			WithHint("CALL neki.assign_gateway(gateway, group) puts them into another one, or into none.")
	}
	return s.in.Documents.DropGatewayGroup(ctx, name)
}

func (s *Schema) assignGateway(ctx context.Context, c *call) error {
	if s.in.Documents == nil {
		return missing("the documents of the catalog")
	}
	gateway := c.text(0)
	if !catalog.ValidName(gateway) {
		return pgerr.New(pgerr.InvalidParameterValue, "invalid value for argument \"gateway\": \"%s\"", gateway).
			WithHint("Allowed values: those of SELECT gateway FROM neki.gateways, or the id of one to come.")
	}
	group := ""
	if c.args[1] != nil {
		var err error
		if group, err = s.groupArgument(c.args[1]); err != nil {
			return err
		}
	}
	snap, err := s.snapshot()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(snap.Gateways, func(g catalog.Gateway) bool { return g.ID == gateway }) {
		c.notice(pgerr.Notice("no gateway %s is up; it will be in its group when it starts", gateway))
	}
	return s.in.Documents.PlaceGateway(ctx, gateway, group)
}

// groupArgument gives the name of the group that an argument names.
func (s *Schema) groupArgument(value any) (string, error) {
	snap, err := s.snapshot()
	if err != nil {
		return "", err
	}
	name, _ := value.(string)
	if snap.GatewayGroup(name) != nil {
		return name, nil
	}
	var names []string
	for i := range snap.GatewayGroups {
		names = append(names, snap.GatewayGroups[i].Name)
	}
	return "", noGroup(name, names)
}

func noGroup(name string, names []string) error {
	e := pgerr.New(pgerr.InvalidParameterValue, "gateway group \"%s\" does not exist", name)
	if len(names) == 0 {
		return e.WithHint("There is none; CALL neki.create_gateway_group(...) makes one.")
	}
	return e.WithHint("Allowed values: %s.", strings.Join(names, ", "))
}
