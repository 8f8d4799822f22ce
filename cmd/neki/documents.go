package main

import (
	"context"
	"errors"

	"neki/catalog"
	"neki/internal/pgerr"
)

// documents changes the catalog's documents for operators.
type documents struct {
	store   catalog.Store
	cluster string
	live    *catalog.Live
}

// UpdateShard changes a shard's document and waits until this gateway sees it.
func (d documents) UpdateShard(ctx context.Context, uid string, change func(*catalog.Shard) error) error {
	writing, cancel := context.WithTimeout(ctx, catalogWait)
	defer cancel()
	doc, err := catalog.UpdateShard(writing, d.store, d.cluster, uid, change)
	if err != nil {
		return unavailable(err)
	}
	return d.seen(ctx, doc.ModRev)
}

// CreateProfile makes a profile.
func (d documents) CreateProfile(ctx context.Context, p catalog.Profile) error {
	writing, cancel := context.WithTimeout(ctx, catalogWait)
	defer cancel()
	rev, err := catalog.PutProfile(writing, d.store, d.cluster, p, 0)
	if errors.Is(err, catalog.ErrConflict) {
		return err
	}
	if err != nil {
		return unavailable(err)
	}
	return d.seen(ctx, rev)
}

// DropProfile removes a profile. A shard that was given it meanwhile keeps its instances as they are.
func (d documents) DropProfile(ctx context.Context, name string) error {
	writing, cancel := context.WithTimeout(ctx, catalogWait)
	defer cancel()
	rev, err := d.store.Delete(writing, catalog.ProfileKey(d.cluster, name), catalog.Always())
	if err != nil {
		return unavailable(err)
	}
	return d.seen(ctx, rev)
}

// CreateGatewayGroup makes a group of gateways.
func (d documents) CreateGatewayGroup(ctx context.Context, g catalog.GatewayGroup) error {
	return d.write(ctx, func(ctx context.Context) (int64, error) {
		return catalog.CreateGatewayGroup(ctx, d.store, d.cluster, g)
	})
}

// UpdateGatewayGroup changes a group of gateways.
func (d documents) UpdateGatewayGroup(ctx context.Context, name string, change func(*catalog.GatewayGroup) error) error {
	return d.write(ctx, func(ctx context.Context) (int64, error) {
		g, err := catalog.UpdateGatewayGroup(ctx, d.store, d.cluster, name, change)
		return g.ModRev, err
	})
}

// DropGatewayGroup removes a group of gateways. A gateway that was put into it meanwhile is in none then.
func (d documents) DropGatewayGroup(ctx context.Context, name string) error {
	return d.write(ctx, func(ctx context.Context) (int64, error) {
		return catalog.DropGatewayGroup(ctx, d.store, d.cluster, name)
	})
}

// PlaceGateway puts a gateway into a group.
func (d documents) PlaceGateway(ctx context.Context, gateway, group string) error {
	return d.write(ctx, func(ctx context.Context) (int64, error) {
		return catalog.PlaceGateway(ctx, d.store, d.cluster, catalog.GatewayPlace{Gateway: gateway, Group: group})
	})
}

// write writes to the catalog and waits until this gateway sees it. What the caller decides by passes as it is.
func (d documents) write(ctx context.Context, write func(context.Context) (int64, error)) error {
	writing, cancel := context.WithTimeout(ctx, catalogWait)
	defer cancel()
	rev, err := write(writing)
	switch {
	case errors.Is(err, catalog.ErrConflict), errors.Is(err, catalog.ErrNotFound):
		return err
	case err != nil:
		return unavailable(err)
	}
	return d.seen(ctx, rev)
}

// seen waits until this gateway sees a write.
func (d documents) seen(ctx context.Context, rev int64) error {
	if seenRevision(ctx, d.live, rev) {
		return nil
	}
	return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "the catalog has it, but this gateway has not seen it yet").
		WithHint("It comes into force when the gateway reaches the catalog again.")
}
