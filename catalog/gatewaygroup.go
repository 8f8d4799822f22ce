package catalog

import (
	"context"
	"errors"
)

// GatewayGroup is gateways that have something in common: a cell, and parameters over those of all gateways.
type GatewayGroup struct {
	Name       string            `json:"name"`
	Cell       string            `json:"cell,omitempty"` // "" = each gateway has its own
	Parameters map[string]string `json:"parameters,omitempty"`
	ModRev     int64             `json:"-"`
}

// GatewayPlace says which group a gateway is in. It outlasts the gateway: a successor of the same id is in the group, too.
type GatewayPlace struct {
	Gateway string `json:"gateway"`
	Group   string `json:"group"`
}

// GatewayGroupKey gives the key of a GatewayGroup.
func GatewayGroupKey(cluster, group string) string {
	return Prefix(cluster) + "gateway_groups/" + group
}

// GatewayPlaceKey gives the key of a GatewayPlace.
func GatewayPlaceKey(cluster, gateway string) string {
	return Prefix(cluster) + "gateway_places/" + gateway
}

// GatewayGroup gives the group of that name, nil when there is none.
func (s *Snapshot) GatewayGroup(name string) *GatewayGroup {
	for i := range s.GatewayGroups {
		if g := &s.GatewayGroups[i]; g.Name == name {
			return g
		}
	}
	return nil
}

// GroupOfGateway gives the group that a gateway is in, nil when it is in none.
func (s *Snapshot) GroupOfGateway(gateway string) *GatewayGroup {
	for i := range s.GatewayPlaces {
		if p := &s.GatewayPlaces[i]; p.Gateway == gateway {
			return s.GatewayGroup(p.Group)
		}
	}
	return nil
}

// GatewaysOfGroup lists the ids of the gateways that are in a group, whether they run or not.
func (s *Snapshot) GatewaysOfGroup(group string) []string {
	ids := []string{}
	for i := range s.GatewayPlaces {
		if p := &s.GatewayPlaces[i]; p.Group == group {
			ids = append(ids, p.Gateway)
		}
	}
	return ids
}

// CellOfGateway gives a gateway's cell: its group's, or else its own.
func (s *Snapshot) CellOfGateway(gateway, own string) string {
	if g := s.GroupOfGateway(gateway); g != nil && g.Cell != "" {
		return g.Cell
	}
	return own
}

// CreateGatewayGroup writes a new group; ErrConflict when there is one of that name.
func CreateGatewayGroup(ctx context.Context, store Store, cluster string, g GatewayGroup) (int64, error) {
	if err := checkNames(cluster, g.Name); err != nil {
		return 0, err
	}
	return putJSON(ctx, store, GatewayGroupKey(cluster, g.Name), g, 0)
}

// UpdateGatewayGroup is UpdateShard for a group.
func UpdateGatewayGroup(ctx context.Context, store Store, cluster, name string, change func(*GatewayGroup) error) (GatewayGroup, error) {
	for {
		var g GatewayGroup
		e, err := getJSON(ctx, store, GatewayGroupKey(cluster, name), &g)
		if err != nil {
			return g, err
		}
		if err := change(&g); err != nil {
			return g, err
		}
		rev, err := putJSON(ctx, store, GatewayGroupKey(cluster, name), g, e.ModRev)
		if errors.Is(err, ErrConflict) {
			continue
		}
		g.ModRev = rev
		return g, err
	}
}

// DropGatewayGroup removes a group.
func DropGatewayGroup(ctx context.Context, store Store, cluster, name string) (int64, error) {
	return store.Delete(ctx, GatewayGroupKey(cluster, name), Always())
}

// PlaceGateway puts a gateway into a group, or for "" into none.
func PlaceGateway(ctx context.Context, store Store, cluster string, p GatewayPlace) (int64, error) {
	if err := checkNames(cluster, p.Gateway); err != nil {
		return 0, err
	}
	if p.Group == "" {
		return store.Delete(ctx, GatewayPlaceKey(cluster, p.Gateway), Always())
	}
	return putJSON(ctx, store, GatewayPlaceKey(cluster, p.Gateway), p, AnyRev)
}
