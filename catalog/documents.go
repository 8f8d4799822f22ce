package catalog

import (
	"encoding/json"
	"time"
)

// What an operator or admin wants of a node (Node.Desired).
const (
	DesiredRun      = "run"
	DesiredFenced   = "fenced"
	DesiredRestore  = "restore"
	DesiredDraining = "draining"
	DesiredRemoved  = "removed" // it leaves the shard; without a Provider it stays as a free instance
)

// Shard is the document of a shard. ModRev is the store's revision of it, for compare-and-put.
type Shard struct {
	UID           string   `json:"uid"`
	Name          string   `json:"name"`
	Profile       string   `json:"profile,omitempty"`
	Primary       string   `json:"primary,omitempty"` // node id
	Term          int64    `json:"term,omitempty"`
	Durability    string   `json:"durability,omitempty"` // none or sync
	SystemID      string   `json:"system_id,omitempty"`  // once set, initdb is forbidden for ever
	Authoritative bool     `json:"authoritative,omitempty"`
	ReadOnly      bool     `json:"read_only,omitempty"`
	Paused        bool     `json:"paused,omitempty"`
	Maintenance   bool     `json:"maintenance,omitempty"`
	Ready         bool     `json:"ready,omitempty"`
	Groups        []string `json:"groups,omitempty"`
	ModRev        int64    `json:"-"`
}

// Node is the document of an instance.
type Node struct {
	ID       string `json:"id"`
	Shard    string `json:"shard"` // uid
	Role     Role   `json:"role"`  // as desired; which one is the primary, the Shard says
	Cell     string `json:"cell,omitempty"`
	Host     string `json:"host,omitempty"`
	Port     int    `json:"port,omitempty"`
	AgentURL string `json:"agent_url,omitempty"`
	Desired  string `json:"desired,omitempty"` // one of the Desired constants; "" = run
	Reason   string `json:"reason,omitempty"`
	// Request is the operation that wrote Desired; ids sort by time. Tries counts restores since the node was whole last.
	Request string    `json:"request,omitempty"`
	Tries   int       `json:"tries,omitempty"`
	Profile string    `json:"profile,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	ModRev  int64     `json:"-"`
	Live    bool      `json:"-"` // its agent's lease is there: a hint, no proof
}

// Liveness is what an agent writes under its lease.
type Liveness struct {
	Node      string    `json:"node"`
	Shard     string    `json:"shard"`
	URL       string    `json:"url,omitempty"`
	Version   string    `json:"version,omitempty"`
	StartedAt time.Time `json:"started_at,omitzero"`
}

// Gateway is what a gateway writes under its lease.
type Gateway struct {
	ID        string    `json:"id"`
	Cell      string    `json:"cell,omitempty"`
	Address   string    `json:"address,omitempty"`
	Version   string    `json:"version,omitempty"`
	Index     int       `json:"index"` // smallest that no other live gateway has; in the high bits of virtual pids
	StartedAt time.Time `json:"started_at,omitzero"`
	AdminURL  string    `json:"admin_url,omitempty"`
	// TopologyRevision is that of the data topology it works with: see AnnounceGateway.
	TopologyRevision int64 `json:"topology_revision,omitempty"`
	// SchemaRevision is that of the schema: Snapshot.SchemaRev.
	SchemaRevision int64 `json:"schema_revision,omitempty"`
	ModRev         int64 `json:"-"`
}

// Admin is what an admin writes under its lease.
type Admin struct {
	ID     string    `json:"id"`
	URL    string    `json:"url,omitempty"`
	Leader bool      `json:"-"` // it holds the leader key
	Since  time.Time `json:"since,omitzero"`
	ModRev int64     `json:"-"`
	// Parameters are those that its configuration gives, by name.
	Parameters map[string]string `json:"parameters,omitempty"`
}

// Profile is a kind of shard: how many instances it has and with what Postgres parameters.
type Profile struct {
	Name            string            `json:"name"`
	Replicas        int               `json:"replicas"`
	Rdonly          int               `json:"rdonly"`
	PostgresVersion string            `json:"postgres_version,omitempty"`
	Parameters      map[string]string `json:"parameters,omitempty"`
	Default         bool              `json:"default,omitempty"`
	ModRev          int64             `json:"-"`
}

// TopologyDocument is one revision of the data topology as it is stored, with what goes with it.
type TopologyDocument struct {
	Revision int64           `json:"revision"` // 1, 2, 3 ...: what users see and expect
	Document json.RawMessage `json:"document"`
	By       string          `json:"by,omitempty"`
	Comment  string          `json:"comment,omitempty"`
	At       time.Time       `json:"at,omitzero"`
	ModRev   int64           `json:"-"` // of the store
}

// Phases of a rule.
const (
	PhaseBootstrap = "bootstrap"
	PhaseActive    = "active"
	PhaseSwitching = "switching"
	PhasePromoting = "promoting"
)

// Rule says who leads a shard and who must acknowledge its commits (spec: high availability). Postgres is told to wait
// for the acknowledgers that are not Leaving, and for the greater of W and NextW of them; a promotion counts all of
// them, and W. So what Postgres demands is never less than what promotions rely on.
type Rule struct {
	Term      int64    `json:"term"`              // grows with each change of the leader
	Sub       int64    `json:"sub"`               // grows with each other change, within the term
	Phase     string   `json:"phase"`             // active, promoting, switching or bootstrap
	Leader    string   `json:"leader,omitempty"`  // of the term; "" while it is not chosen; never changed within a term
	Cohort    []string `json:"cohort,omitempty"`  // leader and acknowledgers; while no leader is chosen: none
	Leaving   []string `json:"leaving,omitempty"` // of the cohort: Postgres is to wait for them no longer
	Policy    string   `json:"policy,omitempty"`
	W         int      `json:"w"`
	NextW     int      `json:"next_w,omitempty"` // while W is being raised
	Timeline  int32    `json:"tli,omitempty"`
	SwitchLSN LSN      `json:"switch_lsn,omitempty"`
	// Prev is, while promoting, the rule before: its commits must be found, too.
	Prev *Rule `json:"prev,omitempty"`
	// Candidate is whom an operator wants to lead, "" = the best.
	Candidate string `json:"candidate,omitempty"`
	// AcceptLoss: an operator has given up commits that can't be found.
	AcceptLoss bool   `json:"accept_loss,omitempty"`
	OpID       string `json:"op_id,omitempty"`
	Reason     string `json:"reason,omitempty"` // for the term
	SystemID   string `json:"sysid,omitempty"`
	ModRev     int64  `json:"-"`
}

// History is what is known of one term of a shard. It is written once, with the rule that makes the term active.
type History struct {
	Term      int64     `json:"term"`
	Leader    string    `json:"leader"`
	Timeline  int32     `json:"tli"`
	Parent    int32     `json:"parent_tli,omitempty"`
	SwitchLSN LSN       `json:"switch_lsn"` // where the timeline left its parent
	Reason    string    `json:"reason,omitempty"`
	At        time.Time `json:"at,omitzero"`
}

// Kinds of an Operation.
const (
	OpSwitchover = "switchover" // planned: nothing is lost, no client sees an error
	OpFailover   = "failover"   // forced: the leader is killed if it still lives
)

// Operation is what an operator asked for of a shard: one at a time, until it is done or given up.
type Operation struct {
	ID         string        `json:"op_id"` // of its Job, too: NewJobID
	Kind       string        `json:"kind"`
	Candidate  string        `json:"candidate,omitempty"` // "" = the best
	AcceptLoss bool          `json:"accept_loss,omitempty"`
	FromTerm   int64         `json:"from_term"` // it is done when a later term is active
	Timeout    time.Duration `json:"timeout_ns,omitempty"`
	By         string        `json:"by,omitempty"`
	At         time.Time     `json:"at,omitzero"`
	ModRev     int64         `json:"-"`
}

// Event is what the admin or an operator did, for neki.events.
type Event struct {
	ID       string        `json:"id"` // made by AppendEvent; sorts by time
	At       time.Time     `json:"at"`
	Shard    string        `json:"shard,omitempty"`
	Node     string        `json:"node,omitempty"`
	Kind     string        `json:"kind"`
	Detail   string        `json:"detail,omitempty"`
	By       string        `json:"by,omitempty"`
	Duration time.Duration `json:"duration_ns,omitempty"`
}
