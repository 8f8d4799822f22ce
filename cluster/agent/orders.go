package agent

import (
	"time"

	"neki/cluster/decide"
	"neki/cluster/pgproc"
	"neki/internal/pgerr"

	"neki/catalog"
)

// Names of the cluster's own roles; they are the same on every shard.
const (
	RoleReplication = "neki_replication" // base backups and streaming between instances
	RoleGateway     = "neki_gateway"     // look-ups of gateways: verifiers, log positions, catalogs
	RoleViewer      = "neki_viewer"      // its members read the neki schema
	RoleOperator    = "neki_operator"    // its members call the neki schema's procedures
)

// Order is what every order carries.
type Order struct {
	Epoch int64  `json:"epoch"` // of the admin that gives it
	Term  int64  `json:"term"`  // of the shard
	Sub   int64  `json:"sub,omitempty"`
	OpID  string `json:"op_id"`
}

// Source is the instance that a standby copies and follows.
type Source struct {
	Node string `json:"node"`
	Host string `json:"host"`
	Port int    `json:"port"`
}

// Fill says where the data of an instance comes from.
type Fill struct {
	// Copy is whom to copy; nil = the source that is then followed.
	Copy *Source `json:"copy,omitempty"`
	// Backup: the newest backup is to be restored instead, if the archive reaches from it to SourceOldest.
	Backup bool `json:"backup,omitempty"`
	// SourceTimeline and SourceOldest are the source's timeline, and where the log in its files begins.
	SourceTimeline int32       `json:"source_tli,omitempty"`
	SourceOldest   catalog.LSN `json:"source_oldest,omitempty"`
	// Request is what the data is made for: done once, it is not done again. Requests sort by time.
	Request string `json:"request,omitempty"`
}

// ProvisionOrder fills an empty instance. Without a Source it becomes the shard's first primary.
type ProvisionOrder struct {
	Order
	Fill
	Source              *Source `json:"source,omitempty"`
	SystemID            string  `json:"system_id,omitempty"` // that the copy must have
	ReplicationPassword string  `json:"replication_password"`
	// Parameters are those of the instance's profile: a standby must not start with less than its primary has.
	Parameters map[string]string `json:"parameters,omitempty"`
}

// LeadOrder says what a primary keeps for the others.
type LeadOrder struct {
	Order
	Peers    []string `json:"peers"`    // nodes that need a slot
	Standbys []string `json:"standbys"` // nodes that may acknowledge commits
	// Acks is how many must: 0 for durability "none". More than Standbys has, no commit is acknowledged.
	Acks int `json:"acks"`
}

// FollowOrder says where a standby streams from.
type FollowOrder struct {
	Order
	Archive bool   `json:"archive,omitempty"` // it reads the archive, too
	Source  Source `json:"source"`
	// Timeline is the one that the node was seen on when this was decided: if it has gone on to a later one since, it may have
	// left the source's line. 0 = any.
	Timeline int32 `json:"tli,omitempty"`
}

// RoleSpec is a role that must exist.
type RoleSpec struct {
	Name        string   `json:"name"`
	Verifier    string   `json:"verifier,omitempty"` // SCRAM-SHA-256$...; the same text on every shard
	Login       bool     `json:"login,omitempty"`
	Superuser   bool     `json:"superuser,omitempty"`
	Replication bool     `json:"replication,omitempty"`
	MemberOf    []string `json:"member_of,omitempty"`
	// ReadVerifiers lets it read pg_authid, in database postgres.
	ReadVerifiers bool `json:"read_verifiers,omitempty"`
	// Keep leaves a role that exists as it is: its password belongs to its user.
	Keep bool `json:"keep,omitempty"`
}

// ApplyOrder says what must be in a primary's databases.
type ApplyOrder struct {
	Order
	Roles []RoleSpec  `json:"roles"`
	Stubs *StubSchema `json:"stubs,omitempty"`
}

// StubSchema is what each database that takes connections, template1 too, holds so that catalogues show the neki
// schema (package adminsql makes it).
type StubSchema struct {
	SQL     string `json:"sql"` // one transaction, its BEGIN and COMMIT included; it may be run again
	Version string `json:"version"`
	// VersionQuery gives the version that a database holds: one row, or none, or NULL.
	VersionQuery string `json:"version_query"`
}

// StopOrder stops Postgres until a start order.
type StopOrder struct {
	Order
	Mode   pgproc.StopMode `json:"mode"`
	Reason string          `json:"reason,omitempty"`
}

// FenceOrder has a primary resign: it acknowledges nothing more.
type FenceOrder struct {
	Order
	Drain time.Duration `json:"drain_ns,omitempty"` // for transactions that are open
	// Gateways are those whose word is waited for, a moment, that they send nothing new.
	Gateways []string `json:"gateways,omitempty"`
}

// ReplaceOrder has a node's data replaced, so that it can follow the source.
type ReplaceOrder struct {
	Order
	Fill
	Source   Source `json:"source"`
	SystemID string `json:"system_id,omitempty"`
}

// Result is an order's answer.
type Result struct {
	OpID     string   `json:"op_id"`
	SystemID string   `json:"system_id,omitempty"`
	Done     []string `json:"done,omitempty"` // what was changed, in words; nothing when all was so already
	// Restart names parameters that are not in force before the server is restarted.
	Restart  []string      `json:"restart,omitempty"`
	Duration time.Duration `json:"duration_ns"`
	Steps    []Step        `json:"steps,omitempty"` // of an order on the way to another leader
}

// Step is a part of an order and how long it took.
type Step struct {
	What string        `json:"what"`
	Took time.Duration `json:"took_ns"`
}

// Status is what an agent says of itself.
type Status struct {
	Node     string         `json:"node"`
	Shard    string         `json:"shard"`
	Role     catalog.Role   `json:"role"` // wanted: replica or rdonly
	Empty    bool           `json:"empty"`
	Seed     bool           `json:"seed,omitempty"` // it holds restored data that belongs to no shard yet
	SystemID string         `json:"system_id,omitempty"`
	Standby  bool           `json:"standby"`
	PID      int            `json:"pid"`
	Promises Promises       `json:"promises"`
	Member   Member         `json:"member"`
	Health   catalog.Health `json:"health"`
	Server   Observation    `json:"server"` // of now; read after Promises

	Exited        bool          `json:"exited,omitempty"` // no process of Postgres is left
	Hung          bool          `json:"hung,omitempty"`
	Broken        bool          `json:"broken,omitempty"`
	Stalled       bool          `json:"stalled,omitempty"`  // the disk doesn't answer
	InForce       bool          `json:"in_force,omitempty"` // Member's Standbys and Acks are proven to be
	Writable      bool          `json:"writable,omitempty"`
	SelfFenced    bool          `json:"self_fenced,omitempty"`
	SelfFencedFor time.Duration `json:"self_fenced_for_ns,omitempty"`
	FencedLSN     catalog.LSN   `json:"fenced_lsn,omitempty"`

	Archived decide.Archived `json:"archived,omitempty"` // the archive's answer about what Server needs next
	Damage   string          `json:"damage,omitempty"`   // what is wrong with the data for good
	Work     *Work           `json:"work,omitempty"`     // an order that takes long is under way
	Filled   *Work           `json:"filled,omitempty"`   // what this agent made the data of last

	BinDir    string    `json:"bin_dir"`
	Version   string    `json:"version"`
	DataDir   string    `json:"data_dir"`
	LogTail   string    `json:"log_tail,omitempty"`
	StartedAt time.Time `json:"started_at"`
}

// Work is how far an order is that makes an instance's data.
type Work struct {
	Step      string    `json:"step"`
	Request   string    `json:"request,omitempty"`
	Done      int64     `json:"done,omitempty"`  // bytes
	Total     int64     `json:"total,omitempty"` // 0 = not known
	StartedAt time.Time `json:"started_at"`
}

// problem is an error on the wire.
type problem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Detail  string `json:"detail,omitempty"`
	Hint    string `json:"hint,omitempty"`
}

func problemOf(err error) problem {
	e := pgerr.From(err)
	return problem{Code: e.Code, Message: e.Message, Detail: e.Detail, Hint: e.Hint}
}

func (p problem) asError() *pgerr.Error {
	e := pgerr.New(p.Code, "%s", p.Message)
	e.Detail, e.Hint = p.Detail, p.Hint
	return e
}
