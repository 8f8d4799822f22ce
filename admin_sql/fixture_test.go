package adminsql

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"neki/catalog"
	"neki/catalog/memstore"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/settings"
)

// fixture is a small cluster as one moment of it looked: all facts that the relations show, and a record of what the
// procedures did.
type fixture struct {
	job catalog.Job // the last one asked for

	snap     *catalog.Snapshot
	sessions []SessionRow
	events   []catalog.Event
	done     []string // controls called
	fails    error    // what every control answers
}

// moment is when the fixture was taken: the start of a synctest bubble.
var moment = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// newFixture lets a real catalog.Live make the snapshot from documents and reports. The bubble's clock makes it the
// same each time.
func newFixture(t *testing.T) *fixture {
	f := &fixture{}
	synctest.Test(t, func(t *testing.T) { f.snap = fixtureSnapshot(t) })
	f.sessions = []SessionRow{
		{
			Gateway: "gw1", PID: 8388609, User: "alice", Database: "app", Application: "psql", State: "active", InTx: true,
			Shards: []string{"sh1"}, Query: "SELECT pg_sleep(60)", ConnectedAt: moment, QueryStart: moment,
			Settings: map[string]string{"__neki.target": "replica", "__neki.replica_wait": "1s"},
		},
		{
			Gateway: "gw1", PID: 8388610, User: "bob", Database: "app", State: "idle", ConnectedAt: moment,
			Settings: map[string]string{"__neki.target": "primary"},
		},
	}
	f.events = []catalog.Event{
		{At: moment.Add(time.Minute), Shard: "sh1", Node: "sh1-b", Kind: "fenced", Detail: "no WAL", By: "admin1"},
		{At: moment, Shard: "sh2", Kind: "switchover", By: "oscar", Duration: 1500 * time.Millisecond},
	}
	return f
}

func fixtureSnapshot(t *testing.T) *catalog.Snapshot {
	ctx, cancel := context.WithCancel(t.Context())
	store := memstore.New()
	check := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, sh := range []catalog.Shard{
		{
			UID: "sh1", Name: "first", Profile: "default", Primary: "sh1-a", Term: 3, Durability: "sync", Ready: true,
			Authoritative: true, Groups: []string{"main", "ref"},
		},
		{UID: "sh2", Name: "second", Profile: "default", Primary: "sh2-a", Durability: "none", Ready: true, Paused: true},
	} {
		check(catalog.PutShard(ctx, store, "c", sh, 0))
	}
	for _, n := range []catalog.Node{
		{ID: "sh1-a", Shard: "sh1", Role: catalog.RolePrimary, Cell: "az-a", Host: "10.0.0.1", Port: 5432, Since: moment},
		{ID: "sh1-b", Shard: "sh1", Role: catalog.RoleReplica, Cell: "az-b", Host: "10.0.0.2", Port: 5432, Since: moment},
		{ID: "sh1-c", Shard: "sh1", Role: catalog.RoleReplica, Cell: "az-a", Host: "10.0.0.3", Port: 5432},
		{ID: "sh1-d", Shard: "sh1", Role: catalog.RoleRdonly, Cell: "az-a", Desired: catalog.DesiredFenced},
		{ID: "sh2-a", Shard: "sh2", Role: catalog.RoleReplica, Cell: "az-a", Profile: "default"},
		{ID: "sh2-b", Shard: "sh2", Role: catalog.RolePrimary, Cell: "az-b"}, // lost its place in a failover
	} {
		check(catalog.PutNode(ctx, store, "c", n, 0))
	}
	for _, doc := range []catalog.TopologyDocument{
		{Document: []byte(fixtureTopology), By: "oscar", Comment: "first", At: moment},
		{Document: []byte(fixtureTopology), By: "postgres", At: moment.Add(time.Hour)},
	} {
		check(catalog.PutTopology(ctx, store, "c", doc, catalog.AnyRev))
	}
	for _, p := range []catalog.Profile{
		{Name: "default", Replicas: 2, Default: true}, {Name: "big", Replicas: 2, Rdonly: 1, Parameters: map[string]string{"work_mem": "64MB"}},
	} {
		check(catalog.PutProfile(ctx, store, "c", p, 0))
	}
	for _, g := range []catalog.GatewayGroup{
		{Name: "reports", Cell: "az-b", Parameters: map[string]string{"pool-capacity": "5"}}, {Name: "spare"},
	} {
		check(catalog.CreateGatewayGroup(ctx, store, "c", g))
	}
	check(catalog.PlaceGateway(ctx, store, "c", catalog.GatewayPlace{Gateway: "gw2", Group: "reports"}))
	for _, j := range fixtureJobs() {
		_, _, err := catalog.PutJob(ctx, store, "c", j)
		check(nil, err)
	}
	for _, b := range fixtureBackups() {
		check(catalog.UpdateBackup(ctx, store, "c", b.Shard, b.ID, func(to *catalog.Backup) { *to = b }))
	}
	lease, err := store.Lease(ctx, time.Minute)
	check(nil, err)
	check(catalog.RegisterGateway(ctx, store, lease, "c", catalog.Gateway{
		ID: "gw1", Cell: "az-a", Address: "10.0.0.9:5432", Version: "0.1", StartedAt: moment,
		TopologyRevision: 2,
	}))
	check(catalog.RegisterGateway(ctx, store, lease, "c", catalog.Gateway{ID: "gw2", TopologyRevision: 2}))
	check(nil, catalog.PutAdmin(ctx, lease, "c", catalog.Admin{ID: "admin1", Since: moment}))
	check(catalog.AcquireLeader(ctx, lease, "c", catalog.Admin{ID: "admin1"}))

	live := catalog.NewLive(store, "c", slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	go func() { ended <- live.Run(ctx) }()
	<-live.Ready()
	for _, h := range fixtureReports() {
		live.Report(h)
	}
	synctest.Wait()
	snap := live.Snapshot()
	cancel()
	<-ended
	return snap
}

// fixtureTopology spreads users over both shards.
const fixtureTopology = `{"authoritative_shard_group": "main", "default_shard_group": "main", "shard_groups": [
	{"uid": "main", "key_ranges": [{"shard_uid": "sh1"}]},
	{"uid": "data", "default_shard_index": "by_id", "key_ranges": [{"shard_uid": "sh1", "end": "80"}, {"shard_uid": "sh2", "start": "80"}]}],
	"shard_indexes": {"by_id": {"type": "xxhash", "columns": ["id"]}, "by_mail": {"type": "xxhash", "columns": ["lower(mail)"]},
		"by_day": {"type": "modulo", "columns": ["day"], "index_params": {"modulus": 7}}},
	"databases": {"app": {"schemas": {"public": {
		"tables": {"users": {"shard_group": "data"}, "mails": {"shard_group": "data", "shard_index": "by_mail"}},
		"reference_tables": {"countries": {"shard_groups": ["data"]}}, "sequences": {"ids": {"shard_group": "main"}}}}},
		"logs": {"default_shard_group": "data"}}}`

// fixtureReports: sh1-a is a primary, sh1-b is caught up, sh1-c is behind, sh1-d runs though it is fenced, sh2-b has
// lost its receiver, sh2-a has never reported.
func fixtureReports() []catalog.Health {
	const gib = 1 << 30
	return []catalog.Health{
		{
			Node: "sh1-a", Role: catalog.RolePrimary, State: catalog.StateServing, Term: 3, Timeline: 2,
			PostgresVersion: "15.18", FlushLSN: 0x5000000, Connections: 7, MaxConnections: 100, CPU: 0.5,
			MemoryBytes: gib, DiskTotal: 10 * gib, SizeBytes: 7777777, WriteIOPS: 12.5,
			Ring: []catalog.Sample{{LSN: 0x5000000}, {Age: 20 * time.Second, LSN: 0x4800000}, {Age: 40 * time.Second, LSN: 0x4000000}},
		},
		{
			Node: "sh1-b", Role: catalog.RoleReplica, State: catalog.StateServing, Term: 3, Timeline: 2, Streaming: true,
			ReceiveLSN: 0x5000000, ReplayLSN: 0x5000000, Connections: 0, MaxConnections: 100,
		},
		{
			Node: "sh1-c", Role: catalog.RoleReplica, State: catalog.StateCatchingUp, Term: 3, Timeline: 2, Streaming: true,
			ReceiveLSN: 0x5000000, ReplayLSN: 0x4000000,
		},
		{
			Node: "sh1-d", Role: catalog.RoleReplica, State: catalog.StateServing, Streaming: true,
			ReceiveLSN: 0x5000000, ReplayLSN: 0x5000000,
		},
		{Node: "sh2-b", Role: catalog.RoleReplica, State: catalog.StateServing, ReceiveLSN: 0x100},
	}
}

func (f *fixture) schema() *Schema {
	registry := prometheus.NewRegistry()
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "neki_requests_total", Help: "requests"},
		[]string{"kind", "to"})
	requests.WithLabelValues("read", `a"b<c`).Add(5)
	wait := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "neki_wait_seconds", Buckets: []float64{0.1, 1}})
	wait.Observe(0.5)
	registry.MustRegister(requests, wait)
	return New(Inputs{
		Catalog: f, Sessions: f, Pools: f, Plans: f, Statements: f, Metrics: registry, Parameters: f, Events: f, Choice: f,
		Gateways: f, Controls: f, Topologies: f, Operations: f, Documents: f,
	})
}

func (f *fixture) Snapshot() *catalog.Snapshot { return f.snap }

func (f *fixture) Sessions(context.Context) ([]SessionRow, error) { return f.sessions, nil }

func (f *fixture) Pools(context.Context) ([]PoolRow, error) {
	return []PoolRow{{
		Node: "sh1-a", User: "alice", Database: "app", Capacity: 20, Active: 1, Idle: 2, Waiting: 3,
		MaxWait: 250 * time.Millisecond,
	}}, nil
}

func (f *fixture) Reads(node string) (int64, bool) { return 42, node == "sh1-b" }

func (f *fixture) Plans(context.Context) ([]PlanRow, error) {
	return []PlanRow{{
		Fingerprint: "f1", Query: "SELECT * FROM t WHERE id = ?", Kind: "One", Fanout: "single", Tables: []string{"t"},
		Hits: 9, Bytes: 512,
	}}, nil
}

func (f *fixture) Statements(context.Context) ([]StatementRow, error) {
	return []StatementRow{{
		Fingerprint: "f1", Query: "SELECT ?", Calls: 10, Errors: 1, Rows: 9, ShardCalls: 10, P50: time.Millisecond,
		P95: 2500 * time.Microsecond, P99: -1,
	}}, nil
}

func (f *fixture) Parameters(context.Context) ([]ParameterRow, error) {
	return []ParameterRow{{
		Scope: "gateway", Name: "buffer-window", Value: "10s", Default: "10s", Source: "default", Text: "longest hold",
	}}, nil
}

func (f *fixture) SetParameter(_ context.Context, scope, name, value string) error {
	if name != "buffer-window" {
		return pgerr.New(pgerr.UndefinedObject, "unrecognized parameter \"%s\"", name)
	}
	return f.do("set " + scope + " " + name + " " + value)
}

func (f *fixture) Events(context.Context) ([]catalog.Event, error) { return f.events, nil }

func (f *fixture) Record(_ context.Context, e catalog.Event) error {
	f.events = slices.Insert(f.events, 0, e)
	return nil
}

func (f *fixture) Judge(snap *catalog.Snapshot, shard string) []Candidate {
	var all []Candidate
	for _, n := range snap.NodesOf(shard) {
		c := Candidate{Node: n.ID, Tier: "excluded", Local: n.Cell == "az-a"}
		switch h := snap.Health(n.ID); {
		case roleOf(snap, n) == catalog.RolePrimary:
			continue
		case n.Desired == catalog.DesiredFenced:
			c.Reason = "fenced"
		case h == nil || !h.LagKnown:
			c.Reason = "lag unknown"
		case h.Lag > 30*time.Second:
			c.Tier = "tolerable"
		default:
			c.Tier = "preferred"
		}
		all = append(all, c)
	}
	return all
}

func (f *fixture) Choose(_ context.Context, sess Session, snap *catalog.Snapshot, shard string) ([]Candidate, error) {
	all := f.Judge(snap, shard)
	for i := range all {
		all[i].Sticky = all[i].Reason == "" && sess.User() == "alice"
		all[i].Outstanding = int32(i)
	}
	return all, nil
}

func (f *fixture) GatewayStatuses(context.Context) map[string]GatewayStatus {
	return map[string]GatewayStatus{"gw1": {Clients: 2, TopologyRevision: 11}}
}

func (f *fixture) TopologyHistory(context.Context) ([]catalog.TopologyDocument, error) {
	return []catalog.TopologyDocument{f.snap.TopologyDocument, {Revision: 1, Document: []byte("{}"), By: "oscar", Comment: "first"}}, nil
}

// PutTopology writes nothing: the snapshot stays at revision 2.
func (f *fixture) PutTopology(_ context.Context, doc catalog.TopologyDocument, expected int64) (int64, error) {
	if expected != catalog.AnyRev && expected != 1 {
		return 0, catalog.ErrConflict
	}
	return 2, f.do(fmt.Sprintf("put %d bytes by %s: %s", len(doc.Document), doc.By, doc.Comment))
}

func (f *fixture) CheckTopology(_ context.Context, t *catalog.Topology) []catalog.Problem {
	if t.Table("app", "public", "full") != nil {
		return []catalog.Problem{{Path: "$.databases.app.schemas.public.tables.full", Text: "has rows"}}
	}
	if t.Table("app", "public", "elsewhere") != nil {
		return []catalog.Problem{{Path: "$.databases.app.schemas.public.tables.elsewhere", Text: "is missing on shard \"s2\"", Hint: "Make the tables there first."}}
	}
	return nil
}

func (f *fixture) KeyType(_ context.Context, _ *catalog.Topology, ix *catalog.Index) (uint32, bool) {
	return datum.Int8OID, ix.Name == "by_id"
}

func (f *fixture) do(what string) error {
	if f.fails != nil {
		return f.fails
	}
	f.done = append(f.done, what)
	return nil
}

func (f *fixture) known(pid int32) bool {
	return slices.ContainsFunc(f.sessions, func(r SessionRow) bool { return r.PID == pid })
}

func (f *fixture) CancelQuery(_ context.Context, pid int32) (bool, error) {
	if !f.known(pid) {
		return false, nil
	}
	return true, f.do("cancel")
}

func (f *fixture) KillSession(_ context.Context, pid int32) (bool, error) {
	if !f.known(pid) {
		return false, nil
	}
	return true, f.do("kill")
}

func (f *fixture) Reload(context.Context) error                 { return f.do("reload") }
func (f *fixture) Pause(_ context.Context, shard string) error  { return f.do("pause " + shard) }
func (f *fixture) Resume(_ context.Context, shard string) error { return f.do("resume " + shard) }
func (f *fixture) Drain(_ context.Context, gw string) error     { return f.do("drain " + gw) }

func (f *fixture) FlushPlans(context.Context) error { return f.do("flush") }

// role is a client's session: its user and what it is a member of.
type role struct {
	name    string
	super   bool
	member  []string
	changed map[string]string
}

// people are the roles of the tests.
var people = map[string]role{
	"postgres": {name: "postgres", super: true},
	"vera":     {name: "vera", member: []string{ViewerRole}},
	"oscar":    {name: "oscar", member: []string{OperatorRole}},
	"alice":    {name: "alice", changed: map[string]string{"__neki.target": "replica"}},
}

func (r role) User() string               { return r.name }
func (r role) IsSuperuser() bool          { return r.super }
func (r role) MemberOf(group string) bool { return slices.Contains(r.member, group) }

func (r role) Setting(name string) (value, source string) {
	if v, ok := r.changed[name]; ok {
		return v, "session"
	}
	s, _ := settings.Find(name)
	return s.Default, "default"
}
