package main

import (
	"context"
	"errors"
	"sync/atomic"

	"neki/catalog"
	"neki/pooler"
)

// topologies are those in the catalog. What the databases say to one, the server tells.
type topologies struct {
	store   catalog.Store
	cluster string
	pooler.TopologyChecks
}

// TopologyHistory gives every revision, newest first.
func (t topologies) TopologyHistory(ctx context.Context) ([]catalog.TopologyDocument, error) {
	ctx, cancel := context.WithTimeout(ctx, catalogWait)
	defer cancel()
	all, err := catalog.TopologyHistory(ctx, t.store, t.cluster)
	return all, unavailable(err)
}

// PutTopology writes a revision.
func (t topologies) PutTopology(ctx context.Context, doc catalog.TopologyDocument, expected int64) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, catalogWait)
	defer cancel()
	rev, err := catalog.PutTopology(ctx, t.store, t.cluster, doc, expected)
	if errors.Is(err, catalog.ErrConflict) {
		return 0, err
	}
	return rev, unavailable(err)
}

// registration is what the gateway's lease keeps in the catalog.
type registration struct {
	lease catalog.Lease
	self  catalog.Gateway
}

// announceTopology keeps the revisions of the topology and of the schema that this gateway works with in the catalog, until
// ctx ends.
func (g *gateway) announceTopology(ctx context.Context, registered *atomic.Pointer[registration]) {
	said := registration{}
	for {
		changed := g.cfg.Live.Changed()
		r := registered.Load()
		snap := g.cfg.Live.Snapshot()
		revision, schema := snap.Topology().Revision, snap.SchemaRev
		if r != nil && (r.lease != said.lease || revision != said.self.TopologyRevision || schema != said.self.SchemaRevision) {
			next := registration{r.lease, r.self}
			next.self.TopologyRevision, next.self.SchemaRevision = revision, schema
			put, cancel := context.WithTimeout(ctx, catalogWait)
			err := catalog.AnnounceGateway(put, next.lease, g.cfg.Cluster, next.self)
			cancel()
			if err == nil {
				said = next
			} else if ctx.Err() == nil {
				g.log.Warn("the revisions in use of the data topology and the schema were not announced", "revision", revision, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}
