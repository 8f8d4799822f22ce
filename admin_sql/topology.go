package adminsql

import (
	"context"

	"neki/catalog"
	"neki/internal/pgerr"
)

// The relations that show the catalog: replicas, nodes, shards, gateways, admins.

// nodeColumns are the columns neki.replicas and neki.nodes share; the former has no others.
func nodeColumns() []Column {
	return []Column{
		{"shard", text, "uid of the shard"},
		{"node", text, "id of the instance"},
		{"role", text, "primary, replica or rdonly"},
		{"cell", text, "availability zone"},
		{"host", text, "where Postgres listens"},
		{"port", int4, "where Postgres listens"},
		{"state", text, "serving, catching_up, restoring, fenced, draining, unreachable, starting or stopped"},
		{"lag", interval, "how far replay is behind the primary; zero when all is replayed and the stream is up"},
		{"lag_bytes", int8, "WAL of the primary not yet replayed"},
		{"receive_lsn", pgLSN, "end of the WAL received"},
		{"replay_lsn", pgLSN, "end of the WAL replayed"},
		{"eligible", boolean, "whether reads for its role may use it, under the default settings"},
		{"tier", text, "preferred, tolerable or excluded, by lag"},
		{"reason", text, "why it is excluded; of a primary, what is wrong with it"},
		{"connections", int4, "client connections Postgres has"},
		{"reads", int8, "reads this gateway sent to it since the gateway started"},
		{"profile", text, "configuration profile"},
		{"since", timestamptz, "since when it is a member of the shard"},
	}
}

func (s *Schema) replicas() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "replicas", Comment: "Replicas of every shard: state, lag and whether reads use them",
		Columns: nodeColumns(),
		rows: ignoreArgs(func(context.Context) ([][]any, error) {
			return s.nodeRows(func(role catalog.Role) bool { return role != catalog.RolePrimary }, nil)
		}),
	}
}

func (s *Schema) nodes() *Relation {
	extra := []Column{
		{"postgres_version", text, "version of the running server"},
		{"term", int8, "failover term the instance has recorded"},
		{"timeline", int4, "WAL timeline"},
		{"flush_lsn", pgLSN, "end of the WAL flushed, on a primary"},
		{"max_connections", int4, "as Postgres is configured"},
		{"cpu", float8, "CPU used, in cores"},
		{"memory_bytes", int8, "memory used by Postgres"},
		{"disk_total", int8, "bytes of the file system that holds the data"},
		{"disk_free", int8, "bytes free there"},
		{"read_iops", float8, "reads from disk per second"},
		{"write_iops", float8, "writes to disk per second"},
		{"size_bytes", int8, "size of the databases"},
		{"last_seen", timestamptz, "when its last report came"},
	}
	return &Relation{
		Schema: SchemaName, Name: "nodes", Comment: "Every Postgres instance, primaries too",
		Columns: append(nodeColumns(), extra...),
		rows: ignoreArgs(func(context.Context) ([][]any, error) {
			return s.nodeRows(func(catalog.Role) bool { return true }, nodeFigures)
		}),
	}
}

// roleOf gives the role a node has now. The shard says which one is its primary; Node.Role is what it was made as.
func roleOf(snap *catalog.Snapshot, n *catalog.Node) catalog.Role {
	if sh := snap.Shard(n.Shard); sh != nil && sh.Primary == n.ID {
		return catalog.RolePrimary
	}
	if n.Role == catalog.RoleRdonly {
		return catalog.RoleRdonly
	}
	return catalog.RoleReplica
}

// nodeRows makes a row of each node whose role keep accepts; extra, if any, adds columns.
func (s *Schema) nodeRows(keep func(catalog.Role) bool, extra func(*catalog.NodeHealth) []any) ([][]any, error) {
	snap, err := s.snapshot()
	if err != nil {
		return nil, err
	}
	judged := map[string]map[string]Candidate{} // shard -> node
	var rows [][]any
	for i := range snap.Nodes {
		n := &snap.Nodes[i]
		if !keep(roleOf(snap, n)) {
			continue
		}
		if judged[n.Shard] == nil {
			judged[n.Shard] = s.judge(snap, n.Shard)
		}
		candidate, known := judged[n.Shard][n.ID]
		row := s.nodeRow(snap, n, candidate, known)
		if extra != nil {
			row = append(row, extra(snap.Health(n.ID))...)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (s *Schema) judge(snap *catalog.Snapshot, shard string) map[string]Candidate {
	byNode := map[string]Candidate{}
	if s.in.Choice == nil {
		return byNode
	}
	for _, c := range s.in.Choice.Judge(snap, shard) {
		byNode[c.Node] = c
	}
	return byNode
}

func (s *Schema) nodeRow(snap *catalog.Snapshot, n *catalog.Node, c Candidate, judged bool) []any {
	health, role := snap.Health(n.ID), roleOf(snap, n)
	row := []any{
		n.Shard, n.ID, role.String(), orNull(n.Cell), orNull(n.Host), orNull(int32(n.Port)), nodeState(n, health),
	}
	row = append(row, replicationFigures(role, health)...)
	switch {
	case judged:
		row = append(row, c.Reason == "", orNull(c.Tier), orNull(c.Reason))
	case health != nil: // a primary is no candidate; its agent may say what is wrong with it
		row = append(row, nil, nil, orNull(health.Reason))
	default:
		row = append(row, nil, nil, nil)
	}
	return append(row, connectionsOf(health), s.readsOf(n.ID), orNull(n.Profile), timeOrNull(n.Since))
}

// nodeState prefers what the cluster wants of a node (fenced, draining) to what the node says of itself, because a
// fenced node that still runs reports serving.
func nodeState(n *catalog.Node, h *catalog.NodeHealth) any {
	switch {
	case h == nil:
		return catalog.StateUnreachable.String()
	case h.State == catalog.StateUnreachable: // what it was told can't be known to be done
	case n.Desired == catalog.DesiredFenced:
		return catalog.StateFenced.String()
	case n.Desired == catalog.DesiredRestore:
		return catalog.StateRestoring.String()
	case n.Desired == catalog.DesiredDraining, n.Desired == catalog.DesiredRemoved:
		return catalog.StateDraining.String()
	case h.State == catalog.StateUnknown:
		return nil
	}
	return h.State.String()
}

// replicationFigures are lag, lag_bytes, receive_lsn and replay_lsn; all NULL for a primary.
func replicationFigures(role catalog.Role, h *catalog.NodeHealth) []any {
	figures := make([]any, 4)
	if h == nil || role == catalog.RolePrimary {
		return figures
	}
	if h.LagKnown {
		figures[0] = h.Lag
	}
	if h.LagBytesKnown {
		figures[1] = h.LagBytes
	}
	figures[2], figures[3] = lsn(h.ReceiveLSN), lsn(h.ReplayLSN)
	return figures
}

func lsn(l catalog.LSN) any {
	if l == 0 {
		return nil
	}
	return l.String()
}

func connectionsOf(h *catalog.NodeHealth) any {
	if h == nil || h.MaxConnections == 0 { // an agent that can't ask Postgres reports neither
		return nil
	}
	return h.Connections
}

func (s *Schema) readsOf(node string) any {
	if s.in.Pools == nil {
		return nil
	}
	if n, ok := s.in.Pools.Reads(node); ok {
		return n
	}
	return nil
}

// nodeFigures are the columns only neki.nodes has, in order.
func nodeFigures(h *catalog.NodeHealth) []any {
	if h == nil {
		return make([]any, 13)
	}
	// What may be zero though it is known is told from the unknown by a figure that is measured with it.
	var cpu, free, reads, writes any
	if h.MemoryBytes > 0 {
		cpu, reads, writes = h.CPU, h.ReadIOPS, h.WriteIOPS
	}
	if h.DiskTotal > 0 {
		free = h.DiskFree
	}
	return []any{
		orNull(h.PostgresVersion), orNull(h.Term), orNull(h.Timeline), lsn(h.FlushLSN), orNull(h.MaxConnections),
		cpu, orNull(h.MemoryBytes), orNull(h.DiskTotal), free, reads, writes, orNull(h.SizeBytes),
		timeOrNull(h.ReceivedAt),
	}
}

func (s *Schema) shards() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "shards", Comment: "Shards of the cluster",
		Columns: []Column{
			{"shard", text, "uid, as __neki.shard takes it"},
			{"name", text, "changeable name"},
			{"profile", text, "configuration profile"},
			{"primary_node", text, "id of the primary instance"},
			{"replicas", int4, "replicas the shard has, rdonly ones not counted"},
			{"rdonly", int4, "rdonly instances the shard has"},
			{"ready", boolean, "whether it has been provisioned and takes traffic"},
			{"read_only", boolean, "writes refused because a disk is low"},
			{"durability", text, "sync or none"},
			{"groups", textArray, "shard groups that refer to it"},
			{"authoritative", boolean, "source of schema and types"},
			{"size_bytes", int8, "size of its databases on the primary"},
			{"term", int8, "failover term"},
			{"paused", boolean, "client traffic held by neki.pause"},
			{"maintenance", boolean, "the admin analyses but does not act"},
		},
		rows: ignoreArgs(func(context.Context) ([][]any, error) {
			snap, err := s.snapshot()
			if err != nil {
				return nil, err
			}
			rows := make([][]any, 0, len(snap.Shards))
			for i := range snap.Shards {
				rows = append(rows, shardRow(snap, &snap.Shards[i]))
			}
			return rows, nil
		}),
	}
}

func shardRow(snap *catalog.Snapshot, sh *catalog.Shard) []any {
	var replicas, rdonly int32
	for _, n := range snap.NodesOf(sh.UID) {
		switch roleOf(snap, n) {
		case catalog.RoleRdonly:
			rdonly++
		case catalog.RoleReplica:
			replicas++
		}
	}
	var size any
	if h := snap.Health(sh.Primary); h != nil {
		size = orNull(h.SizeBytes)
	}
	return []any{
		sh.UID, orNull(sh.Name), orNull(sh.Profile), orNull(sh.Primary), replicas, rdonly, sh.Ready, sh.ReadOnly,
		orNull(sh.Durability), notNil(snap.Topology().GroupsOf(sh.UID)), sh.Authoritative, size, orNull(sh.Term), sh.Paused,
		sh.Maintenance,
	}
}

func (s *Schema) gateways() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "gateways", Comment: "Gateways that are up",
		Columns: []Column{
			{"gateway", text, "id"},
			{"cell", text, "availability zone"},
			{"address", text, "where clients connect"},
			{"version", text, "version of neki"},
			{"state", text, "serving, draining, or unreachable: it did not answer this gateway"},
			{"clients", int4, "clients connected; NULL when it is unreachable"},
			{"topology_revision", int8, "revision of the data topology it works with"},
			{"started_at", timestamptz, "start of the process"},
		},
		rows: ignoreArgs(func(ctx context.Context) ([][]any, error) {
			snap, err := s.snapshot()
			if err != nil {
				return nil, err
			}
			if s.in.Gateways == nil {
				return nil, missing("gateways")
			}
			statuses := s.in.Gateways.GatewayStatuses(ctx)
			return collect(snap.Gateways, func(g catalog.Gateway) []any {
				st, known := statuses[g.ID]
				g.Cell = snap.CellOfGateway(g.ID, g.Cell)
				return gatewayRow(g, st, known)
			}), nil
		}),
	}
}

func gatewayRow(g catalog.Gateway, st GatewayStatus, known bool) []any {
	state := "serving"
	var clients any
	switch {
	case !known:
		state = "unreachable"
	case st.Draining:
		state = "draining"
	}
	if known {
		clients = st.Clients
	}
	return []any{
		g.ID, orNull(g.Cell), orNull(g.Address), orNull(g.Version), state, clients, orNull(g.TopologyRevision), timeOrNull(g.StartedAt),
	}
}

func (s *Schema) admins() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "admins", Comment: "Admins that are up; one leads",
		Columns: []Column{
			{"admin", text, "id"},
			{"leader", boolean, "whether it leads"},
			{"since", timestamptz, "since when it is up or leads"},
		},
		rows: ignoreArgs(func(context.Context) ([][]any, error) {
			snap, err := s.snapshot()
			if err != nil {
				return nil, err
			}
			return collect(snap.Admins, func(a catalog.Admin) []any {
				return []any{a.ID, a.Leader, timeOrNull(a.Since)}
			}), nil
		}),
	}
}

func (s *Schema) snapshot() (*catalog.Snapshot, error) {
	if s.in.Catalog == nil {
		return nil, missing("shards and nodes")
	}
	snap := s.in.Catalog.Snapshot()
	if snap == nil {
		return nil, pgerr.New(pgerr.CannotConnectNow, "the catalog of the cluster has not been read yet")
	}
	return snap, nil
}
