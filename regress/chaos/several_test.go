package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"neki/catalog"
)

// spread has the tables of clients spread over the shards, and waits until the gateway knows.
func (c *cluster) spread() {
	c.t.Helper()
	var ranges []string
	const hashes = 1 << 16
	for i, s := range c.shards {
		r := fmt.Sprintf(`{"shard_uid": %q`, s)
		if i > 0 {
			r += fmt.Sprintf(`, "start": "%04x"`, i*hashes/len(c.shards))
		}
		if i < len(c.shards)-1 {
			r += fmt.Sprintf(`, "end": "%04x"`, (i+1)*hashes/len(c.shards))
		}
		ranges = append(ranges, r+"}")
	}
	on := func(i int) string { return c.shards[i%len(c.shards)] }
	doc := fmt.Sprintf(`{"databases": {"postgres": {"default_shard_group": "main", "schemas": {"public": {"tables": {
		"acked": {"shard_group": "all", "shard_index": "by_id"}, "past": {"shard_group": "all", "shard_index": "by_id"},
		"register": {"shard_group": "all", "shard_index": "by_k"}, "lists": {"shard_group": "lists"}, "accounts": {"shard_group": "accounts"}}}}}},
		"shard_groups": [{"uid": "main", "key_ranges": [{"shard_uid": %q}]}, {"uid": "lists", "key_ranges": [{"shard_uid": %q}]},
			{"uid": "accounts", "key_ranges": [{"shard_uid": %q}]}, {"uid": "all", "key_ranges": [%s]}],
		"shard_indexes": {"by_id": {"type": "xxhash", "columns": ["id"]}, "by_k": {"type": "xxhash", "columns": ["k"]}},
		"authoritative_shard_group": "main"}`, on(0), on(1), on(2), strings.Join(ranges, ", "))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := catalog.PutTopology(ctx, c.store, clusterName, catalog.TopologyDocument{Document: []byte(doc)}, 0); err != nil {
		c.t.Fatal(err)
	}
	c.must(time.Minute, "topology at the gateway", func() error {
		if n := query[int](c, "SELECT count(*) FROM neki.shard_groups"); n != 4 {
			return fmt.Errorf("it knows %d groups", n)
		}
		return nil
	})
}

// hangArchive has what hands the node's log to the archive, or fetches from there, stand still until the faults are undone.
func (c *cluster) hangArchive(n *node) {
	if c.archive == "" || c.hung[n.id] != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			signalAll(couriersOf(n), unix.SIGSTOP)
			t := time.NewTimer(50 * time.Millisecond)
			select {
			case <-t.C:
			case <-ctx.Done():
			}
			t.Stop()
		}
		signalAll(couriersOf(n), unix.SIGCONT)
	}()
	if c.hung == nil {
		c.hung = map[string]func(){}
	}
	c.hung[n.id] = func() { stop(); <-ended }
	c.try(n, "SELECT pg_switch_wal() WHERE NOT pg_is_in_recovery()")
}

// couriersOf gives the processes that carry a node's log to and from the archive.
func couriersOf(n *node) (pids []int) {
	for _, pid := range serversIn(n.data()) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(line), "wal-push") || strings.Contains(string(line), "wal-fetch") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// loseLog has a replica miss log that no server has any more when the faults are undone: it must come from the archive, or the
// replica from a backup or another's data. Struck is the node, or another when it leads.
func (c *cluster) loseLog(n *node) {
	r, err := c.rule(n.shard)
	if c.archive == "" || err != nil || r.Leader == "" {
		return
	}
	leader := c.node(r.Leader)
	if n == leader {
		n = c.others(leader)[0]
	}
	c.cutWAL(n)
	for range 3 {
		c.try(leader, "SELECT pg_logical_emit_message(true, 'chaos', 'gap'), pg_switch_wal()")
	}
	for _, o := range c.membersOf(n.shard) {
		c.try(o, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '"+slotOf(n)+"' AND NOT active")
		c.try(o, "CHECKPOINT")
		if o != n {
			if err := forgetLog(o); err != nil {
				c.t.Logf("the log of %s stays: %v", o.id, err)
			}
		}
	}
}

func slotOf(n *node) string { return "neki_" + strings.ReplaceAll(n.id, "-", "_") }

// forgetLog removes the segments of a server that it needs for nothing itself.
func forgetLog(n *node) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := n.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // the query's error counts
	var first string
	if err := conn.QueryRow(ctx, "SELECT redo_wal_file FROM pg_control_checkpoint()").Scan(&first); err != nil {
		return err
	}
	list, err := os.ReadDir(filepath.Join(n.data(), "pg_wal"))
	if err != nil {
		return err
	}
	for _, f := range list {
		name := f.Name()
		if _, err := os.Stat(filepath.Join(n.data(), "pg_wal", "archive_status", name+".ready")); err == nil {
			continue // Postgres keeps what is not archived yet, too
		}
		if len(name) == len(first) && name[8:] < first[8:] {
			if err := os.Remove(filepath.Join(n.data(), "pg_wal", name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}
