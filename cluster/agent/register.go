package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"neki/catalog"
)

// leaseTTL is how long the agent counts as alive without a sign. Liveness is a hint; nothing is decided by it alone.
const leaseTTL = 5 * time.Second

// register keeps the node's document and its leased sign of life in the catalog, for as long as ctx lasts. The catalog
// may come and go meanwhile: the instance serves on.
func (a *Agent) register(ctx context.Context) error {
	outage := catalog.Outage{Log: a.log, What: "registration in the catalog"}
	for wait := 100 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, 5*time.Second) {
		began := time.Now()
		err := a.registered(ctx, outage.Worked)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > leaseTTL {
			wait = 100 * time.Millisecond
		}
		outage.Failed(err)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

// registered registers, calls done, and returns when the lease is lost or ctx ends.
func (a *Agent) registered(ctx context.Context, done func()) error {
	if err := a.putNode(ctx); err != nil {
		return err
	}
	lease, err := a.cfg.Store.Lease(ctx, leaseTTL)
	if err != nil {
		return err
	}
	defer lease.Close() //nolint:errcheck // it expires by itself
	err = catalog.PutLiveness(ctx, lease, a.cfg.Cluster, catalog.Liveness{
		Node: a.cfg.Node, Shard: a.cfg.Shard, URL: *a.url.Load(), Version: a.cfg.Version, StartedAt: a.started,
	})
	if err != nil {
		return err
	}
	a.log.Debug("registered", "url", *a.url.Load())
	done()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-lease.Lost():
		return catalog.ErrLeaseLost
	}
}

// putNode writes the node's document if it is new or the node has moved. What admins and operators want of the node
// stays as it is.
func (a *Agent) putNode(ctx context.Context) error {
	c := &a.cfg
	old, err := catalog.GetNode(ctx, c.Store, c.Cluster, c.Shard, c.Node)
	if err != nil && !errors.Is(err, catalog.ErrNotFound) {
		return err
	}
	n := old
	if err != nil {
		n = catalog.Node{ID: c.Node, Shard: c.Shard, Desired: catalog.DesiredRun, Since: time.Now().UTC()}
	}
	n.Role, n.Cell, n.Host, n.Port, n.AgentURL, n.Profile = c.Role, c.Cell, c.Host, c.Port, *a.url.Load(), c.Profile
	if n == old {
		return nil
	}
	if _, err := catalog.PutNode(ctx, c.Store, c.Cluster, n, old.ModRev); err != nil {
		return fmt.Errorf("register node %s: %w", c.Node, err)
	}
	return nil
}
