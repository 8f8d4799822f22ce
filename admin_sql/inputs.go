package adminsql

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"neki/catalog"
)

// Inputs are the facts and controls behind the schema, each given by its owner. All must be safe for concurrent use
// and must answer from memory, or from another process of the cluster within the context's deadline; none may need a
// Postgres.
type Inputs struct {
	Catalog    Catalog
	Sessions   Sessions
	Pools      Pools
	Plans      Plans
	Statements Statements
	Metrics    prometheus.Gatherer
	Parameters Parameters
	Events     Events
	Choice     ReplicaChoice
	Gateways   Gateways
	Controls   Controls
	Topologies Topologies
	Operations Operations
	Documents  Documents
}

// Catalog gives the newest view of the cluster; *catalog.Live is one.
type Catalog interface {
	Snapshot() *catalog.Snapshot
}

// Sessions lists the clients of the gateways; those of one that does not answer in time are left out.
type Sessions interface {
	Sessions(ctx context.Context) ([]SessionRow, error)
}

// SessionRow is a row of neki.sessions. Empty strings and zero times are unknown (NULL).
type SessionRow struct {
	Gateway     string
	PID         int32
	User        string
	Database    string
	Application string
	ClientAddr  string
	Settings    map[string]string // by full name, e.g. "__neki.target"
	State       string            // active | idle | idle in transaction | idle in transaction (aborted) | ...
	InTx        bool
	Shards      []string // holding a server connection now; empty = none
	Pinned      []string // why the server connection can't be given back
	Query       string   // the running or last statement
	WaitReason  string
	ConnectedAt time.Time
	TxStart     time.Time
	QueryStart  time.Time
	StateChange time.Time
}

// Pools lists the server connection pools and what was read from each instance.
type Pools interface {
	Pools(ctx context.Context) ([]PoolRow, error)
	// Reads is the number of statements this gateway sent to node as reads since it started; false = not counted.
	Reads(node string) (int64, bool)
}

// PoolRow is a row of neki.pools.
type PoolRow struct {
	Node, User, Database            string
	Capacity, Active, Idle, Waiting int32
	MaxWait                         time.Duration // of those waiting now; 0 = nobody does
}

// Plans lists the plan cache.
type Plans interface {
	Plans(ctx context.Context) ([]PlanRow, error)
}

// PlanRow is a row of neki.plans.
type PlanRow struct {
	Fingerprint string
	Query       string
	Kind        string
	Fanout      string
	Tables      []string
	Hits        int64
	Bytes       int64
}

// Statements lists the statistics per fingerprint.
type Statements interface {
	Statements(ctx context.Context) ([]StatementRow, error)
}

// StatementRow is a row of neki.statements. A negative time is unknown (NULL).
type StatementRow struct {
	Fingerprint                     string
	Query                           string
	Calls, Errors, Rows, ShardCalls int64
	P50, P95, P99                   time.Duration
}

// Parameters reads and changes the gateway, admin and profile parameters.
type Parameters interface {
	Parameters(ctx context.Context) ([]ParameterRow, error)
	// SetParameter changes one for the whole cluster; a wrong scope, name or value is 22023 or 42704 with a HINT.
	SetParameter(ctx context.Context, scope, name, value string) error
}

// ParameterRow is a row of neki.parameters.
type ParameterRow struct {
	Scope   string // gateway | admin | a profile's name
	Name    string
	Value   string
	Default string
	Type    string // interval | integer; empty = unknown
	Source  string // default | file | sql
	Text    string // description
}

// Events keeps what the admin and operators did.
type Events interface {
	// Events lists them, newest first.
	Events(ctx context.Context) ([]catalog.Event, error)
	Record(ctx context.Context, e catalog.Event) error
}

// ReplicaChoice shows how replicas are chosen; the pooler implements it by its Picker.
type ReplicaChoice interface {
	// Judge tells for each replica and rdonly instance of a shard whether reads for its role may use it, under the
	// default settings, in any order. neki.replicas shows it.
	Judge(snap *catalog.Snapshot, shard string) []Candidate
	// Choose tells how the session's next read from a replica of shard would choose: best candidate first, its floor
	// and affinity counted. neki.replica_choice shows it.
	Choose(ctx context.Context, sess Session, snap *catalog.Snapshot, shard string) ([]Candidate, error)
}

// Candidate is one instance as the Picker sees it.
type Candidate struct {
	Node        string
	Tier        string // preferred | tolerable | excluded
	Reason      string // why excluded; "" when it may serve
	Sticky      bool   // the session's replica by affinity
	Local       bool   // in the gateway's cell
	Outstanding int32  // statements of this gateway running there
}

// Gateways asks the gateways of the catalog what they know of themselves. One that does not answer in time is not in the
// map.
type Gateways interface {
	GatewayStatuses(ctx context.Context) map[string]GatewayStatus
}

// GatewayStatus is the live part of a row of neki.gateways.
type GatewayStatus struct {
	Clients          int32
	TopologyRevision int64 // of the catalog
	Draining         bool
}

// Controls are the actions of the procedures. found is false when the pid is no session's.
type Controls interface {
	CancelQuery(ctx context.Context, pid int32) (found bool, err error)
	KillSession(ctx context.Context, pid int32) (found bool, err error)
	Reload(ctx context.Context) error
	Pause(ctx context.Context, shard string) error // returns when no transaction is left on the shard
	Resume(ctx context.Context, shard string) error
	Drain(ctx context.Context, gateway string) error
	FlushPlans(ctx context.Context) error
}
