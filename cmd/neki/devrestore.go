package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"neki/catalog"
	"neki/cluster/admin"
	"neki/cluster/agent"
)

// restored makes a directory with restored shards one that `neki dev` starts from: the same shards, with as many
// instances, the same superuser and password.
func (d *dev) restored(into string, shards []admin.RestoredShard) (string, error) {
	next := devState{Password: d.state.Password, Cell: d.state.Cell}
	d.instances.Lock()
	nodes := slices.Clone(d.state.Nodes)
	d.instances.Unlock()
	for _, n := range nodes {
		if slices.ContainsFunc(shards, func(s admin.RestoredShard) bool { return s.Shard == n.Shard }) {
			n.Port = 0
			next.Nodes = append(next.Nodes, n)
		}
	}
	path := filepath.Join(into, stateFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := next.save(path); err != nil {
			return "", err
		}
	} else if err != nil {
		return "", err
	}
	return fmt.Sprintf("start it: neki dev --data %s --listen 127.0.0.1:6433 --http 127.0.0.1:8433", shown(into)), nil
}

// restoreTopology sets the data topology that came with restored data, in a catalog that has none.
func (d *dev) restoreTopology(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(d.o.data, agent.TopologyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	history, err := catalog.TopologyHistory(ctx, d.store, devCluster)
	if err != nil || len(history) > 0 {
		return err
	}
	_, err = catalog.PutTopology(ctx, d.store, devCluster, catalog.TopologyDocument{
		Document: text, By: devSuperuser, Comment: "of the restored cluster",
	}, catalog.AnyRev)
	return err
}
