package main

import (
	"context"

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

// seen waits until this gateway sees a write.
func (d documents) seen(ctx context.Context, rev int64) error {
	if seenRevision(ctx, d.live, rev) {
		return nil
	}
	return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "the catalog has it, but this gateway has not seen it yet").
		WithHint("It comes into force when the gateway reaches the catalog again.")
}
