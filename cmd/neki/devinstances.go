package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"neki/cluster/admin"
	"neki/cluster/agent"
)

// startAgent starts the agent of an instance. The caller holds instances.
func (d *dev) startAgent(n devNode) error {
	profile := n.Profile
	if profile == "" {
		profile = devProfile
	}
	a, err := agent.New(agent.Config{
		Cluster: devCluster, Node: n.ID, Shard: n.Shard, Role: n.Role, Cell: n.Cell, Profile: profile,
		Dir: nodeDir(d.o.data, n.ID), Port: n.Port, Installation: d.installation, Account: d.account, Token: d.token,
		Store: d.store, Archive: d.archive, StopPostgres: true, Version: version(), Log: d.log,
		Progress: func(step string) { d.out.step("%s", step) },
	})
	if err != nil {
		return err
	}
	d.running[n.ID] = d.parts.start("instance "+n.ID, a.Run)
	return nil
}

// StartInstance makes an instance for the admin. It is remembered before it runs, so that the next `neki dev` has it, too.
func (d *dev) StartInstance(_ context.Context, in admin.Instance) error {
	d.instances.Lock()
	defer d.instances.Unlock()
	if d.running[in.ID] != nil {
		return nil
	}
	at := slices.IndexFunc(d.state.Nodes, func(n devNode) bool { return n.ID == in.ID })
	if at < 0 {
		port, err := unusedPort()
		if err != nil {
			return err
		}
		next := d.state
		next.Nodes = append(slices.Clone(d.state.Nodes), devNode{
			ID: in.ID, Shard: in.Shard, Role: in.Role, Cell: in.Cell, Profile: in.Profile, Port: port, Added: true,
		})
		if err := next.save(filepath.Join(d.o.data, stateFile)); err != nil {
			return err
		}
		d.state, at = next, len(next.Nodes)-1
	}
	return d.startAgent(d.state.Nodes[at])
}

// RemoveInstance ends an instance and removes its directory.
func (d *dev) RemoveInstance(_ context.Context, node string) error {
	d.instances.Lock()
	defer d.instances.Unlock()
	if p := d.running[node]; p != nil {
		if err := p.stop(); err != nil {
			d.log.Warn("the instance did not stop as it should", "node", node, "error", err)
		}
		delete(d.running, node)
	}
	if err := os.RemoveAll(nodeDir(d.o.data, node)); err != nil {
		return err
	}
	next := d.state
	next.Nodes = slices.DeleteFunc(slices.Clone(d.state.Nodes), func(n devNode) bool { return n.ID == node })
	if err := next.save(filepath.Join(d.o.data, stateFile)); err != nil {
		return err
	}
	d.state = next
	d.out.step("%s: removed", node)
	return nil
}
