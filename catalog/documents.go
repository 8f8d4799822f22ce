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
	ID       string    `json:"id"`
	Shard    string    `json:"shard"` // uid
	Role     Role      `json:"role"`  // as desired; which one is the primary, the Shard says
	Cell     string    `json:"cell,omitempty"`
	Host     string    `json:"host,omitempty"`
	Port     int       `json:"port,omitempty"`
	AgentURL string    `json:"agent_url,omitempty"`
	Desired  string    `json:"desired,omitempty"` // one of the Desired constants; "" = run
	Reason   string    `json:"reason,omitempty"`
	Profile  string    `json:"profile,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	ModRev   int64     `json:"-"`
	Live     bool      `json:"-"` // its agent's lease is there: a hint, no proof
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
	ModRev    int64     `json:"-"`
}

// Admin is what an admin writes under its lease.
type Admin struct {
	ID     string    `json:"id"`
	URL    string    `json:"url,omitempty"`
	Leader bool      `json:"-"` // it holds the leader key
	Since  time.Time `json:"since,omitzero"`
	ModRev int64     `json:"-"`
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

// Topology is the data topology document, as spec'd in the manual, with what goes with a revision of it.
type Topology struct {
	Document json.RawMessage `json:"document"`
	By       string          `json:"by,omitempty"`
	Comment  string          `json:"comment,omitempty"`
	At       time.Time       `json:"at,omitzero"`
	ModRev   int64           `json:"-"` // its revision, as users see it
}

// Rule says who leads a shard and who must acknowledge its commits (spec: high availability).
type Rule struct {
	Term      int64    `json:"term"`
	Sub       int64    `json:"sub"`
	Phase     string   `json:"phase"` // active, promoting, switching or bootstrap
	Leader    string   `json:"leader,omitempty"`
	Cohort    []string `json:"cohort,omitempty"`
	Policy    string   `json:"policy,omitempty"`
	W         int      `json:"w"`
	Timeline  int32    `json:"tli,omitempty"`
	SwitchLSN LSN      `json:"switch_lsn,omitempty"`
	Prev      *Rule    `json:"prev,omitempty"`
	OpID      string   `json:"op_id,omitempty"`
	SystemID  string   `json:"sysid,omitempty"`
	ModRev    int64    `json:"-"`
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
