package main

import (
	"context"
	"errors"
	"time"

	"neki/catalog"
)

// operations are the long actions that operators ask for.
type operations struct {
	store   catalog.Store
	cluster string
	live    *catalog.Live
}

// PutJob asks for a long action.
func (o operations) PutJob(ctx context.Context, j catalog.Job) (catalog.Job, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, catalogWait)
	defer cancel()
	j, fresh, err := catalog.PutJob(ctx, o.store, o.cluster, j)
	return j, fresh, unavailable(err)
}

// FollowJob tells of each state of a job that this process sees.
func (o operations) FollowJob(ctx context.Context, id string, seen func(*catalog.Job) bool) error {
	var last int64
	for {
		changed := o.live.Changed()
		j := o.live.Snapshot().Job(id)
		switch {
		case j == nil && last != 0:
			return unavailable(catalog.ErrNotFound)
		case j != nil && j.ModRev != last:
			if last = j.ModRev; !seen(j) {
				return nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// CancelJob asks for the end of one.
func (o operations) CancelJob(ctx context.Context, id, by string) (catalog.Job, error) {
	ctx, cancel := context.WithTimeout(ctx, catalogWait)
	defer cancel()
	j, err := catalog.CancelJob(ctx, o.store, o.cluster, id, by)
	if errors.Is(err, catalog.ErrNotFound) {
		return j, err
	}
	return j, unavailable(err)
}

// PutOperation asks for an operation on a shard's leadership.
func (o operations) PutOperation(ctx context.Context, shard string, op catalog.Operation) (catalog.Job, error) {
	ctx, cancel := context.WithTimeout(ctx, catalogWait)
	defer cancel()
	op.At = time.Now().UTC()
	op.ID = catalog.NewJobID(op.At)
	_, err := catalog.PutOperation(ctx, o.store, o.cluster, shard, op)
	if errors.Is(err, catalog.ErrConflict) {
		return catalog.Job{}, err
	}
	return catalog.JobOf(shard, &op), unavailable(err)
}

// Rule reads who leads.
func (o operations) Rule(ctx context.Context, shard string) (catalog.Rule, error) {
	ctx, cancel := context.WithTimeout(ctx, catalogWait)
	defer cancel()
	r, err := catalog.GetRule(ctx, o.store, o.cluster, shard)
	return r, unavailable(err)
}
