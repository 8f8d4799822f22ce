package decide

import (
	"time"

	"neki/catalog"
)

// Promises are what a node must remember whatever happens to its data directory. They are on disk, outside it, before
// an order is answered. Accept and the other functions on them are the only ones that make new ones.
type Promises struct {
	SystemID string `json:"sysid,omitempty"`
	Epoch    int64  `json:"epoch"` // highest of any admin that gave an order
	OpID     string `json:"op_id,omitempty"`
	// OwnTerm is the newest term in which this node was told to lead; 0 = it never was.
	OwnTerm int64 `json:"own_term"`
	// OwnSub is the newest Sub of OwnTerm's rule that an order brought: older Lead, Fence and Unfence orders are refused.
	OwnSub int64 `json:"own_sub,omitempty"`
	// RevokedBelowTerm: this node acknowledges nothing to a leader of a lower term, never again.
	RevokedBelowTerm int64 `json:"revoked_below_term,omitempty"`
	// ResignedTerm: as leader of this term it acknowledges nothing, until an Unfence order and a linearizable read.
	ResignedTerm int64 `json:"resigned_term,omitempty"`
	// BarrierTerm: the barrier of this term, as its leader, was acknowledged.
	BarrierTerm int64 `json:"barrier_term,omitempty"`
	// RecruitFloor is the highest position that this node may have acknowledged before its data was replaced: it counts
	// in no quorum until it is past it.
	RecruitFloor *Floor `json:"recruit_floor,omitempty"`
	// RewindInProgress: the data directory is not usable unless this is false again.
	RewindInProgress bool `json:"rewind_in_progress,omitempty"`
}

// Floor is a position that a node must have passed to count in a quorum.
type Floor struct {
	Term     int64       `json:"term,omitempty"`
	Timeline int32       `json:"tli"`
	LSN      catalog.LSN `json:"lsn"`
}

// TermRow is the newest row of neki.term_log that a node has replayed: the barrier of a term.
type TermRow struct {
	Term     int64 `json:"term"`
	Timeline int32 `json:"tli"`
}

// Switch is one line of a timeline's history file: that timeline was left at LSN.
type Switch struct {
	Timeline int32       `json:"tli"`
	LSN      catalog.LSN `json:"lsn"`
}

// Member is what is known of one instance: what its agent's status said last.
type Member struct {
	ID      string
	Rdonly  bool
	Cell    string
	Desired string // one of catalog's Desired constants; "" = run
	Reason  string // for Desired
	Request string // who asked for Desired, and when: ids sort by time. "" = nobody yet
	Tries   int    // how often it was to be restored since it was whole last
	Address string // host:port of its Postgres
	Known   bool   // its agent has answered this look; the rest is what it said
	Empty   bool
	// Seed: it holds data that was restored from another cluster's backups, for a shard that doesn't exist yet.
	Seed     bool
	SystemID string
	OwnTerm  int64  // in which it was told to lead
	Standby  bool   // it has standby.signal
	Source   string // node that it follows, and where that is; "" = none, its receiver is cut
	SourceAt string
	Peers    []string // slots that it was told to keep
	Standbys []string // synchronous standbys that it was told, with Acks
	Acks     int
	Ordered  bool // Standbys and Acks were told at all
	// InForce: what was told is proven to be in force at every walsender, and a commit after that was acknowledged.
	InForce bool

	Up        bool // Postgres answers
	Primary   bool // and is not in recovery
	Streaming bool // its receiver is up
	Timeline  int32
	Busy      bool // an order that takes long is under way

	Promises Promises
	Exited   bool // there is no postmaster, nor any process of one
	Held     bool // Postgres is to stay stopped: fenced by an operator
	// Hung: Postgres runs, but neither the old nor a new connection was answered in three probes. A commit that waits for
	// synchronous replication is no sign of it.
	Hung       bool
	SelfFenced bool // a primary that took itself out: it could not prove that it still leads
	Stalled    bool // its fsync probe hangs: the disk doesn't answer
	Writable   bool // a primary that acknowledges commits: not fenced, not self-fenced
	// Broken: the data directory can't be used: an interrupted rewind, a damaged control file.
	Broken bool

	FollowTerm int64         // term of the leader that Source is to be
	LastMsg    time.Duration // of a standby: age of its receiver's last message; meaningless unless Streaming
	// ReceiveLSN is the end of what is flushed: the receiver's or, without one, of the local log; of a primary its flush
	// LSN. This and what follows are known of a Postgres that is Up only.
	ReceiveLSN catalog.LSN
	ReplayLSN  catalog.LSN
	Replayed   bool // all that is local is replayed
	// ReplayPaused and ReplayBlocked: what is local isn't replayed because an operator, or a query, holds it up.
	ReplayPaused, ReplayBlocked bool
	Row                         TermRow
	Rows                        []TermRow     // all of them, Row too; of a leader. nil = not known
	History                     []Switch      // of Timeline, oldest first
	Acknowledgers               []Walsender   // of a primary: pg_stat_replication
	OldestLSN                   catalog.LSN   // where the contiguous log in its files begins; 0 = not known
	LostSlots                   []string      // of a primary: nodes whose slot has lost its WAL, and slots of nobody
	Archived                    Archived      // of a standby that doesn't stream: the archive's answer
	Archive                     bool          // it reads the archive, and is in no quorum meanwhile
	Restored                    string        // the Request for which its data was made anew last
	Damage                      string        // what is wrong with its data for good; "" = nothing known
	FencedLSN                   catalog.LSN   // of a resigned primary: nothing beyond was acknowledged, and nothing will be
	SelfFencedFor               time.Duration // how long SelfFenced
	DiskFree, DiskTotal         int64

	// SilentBefore is how long the admin has not heard of its agent by other ways than asking. A new leader that was watching all the
	// time need not count anew; like all times here, it decides how soon, not whether.
	SilentBefore time.Duration

	// What Watch adds: since when, by the admin's clock.
	SilentFor    time.Duration // its agent has not answered; 0 when Known
	ExitedFor    time.Duration
	HungFor      time.Duration
	StreamingFor time.Duration // seen by the leader as streaming
	MissingFor   time.Duration // not so
	GapFor       time.Duration // no source has the WAL that it needs
	ChangedAgo   time.Duration // its last coming to or going from the cohort; Never when it has not been seen
}

// Walsender is one row of a primary's pg_stat_replication.
type Walsender struct {
	Node      string        `json:"node"` // application_name
	Streaming bool          `json:"streaming"`
	Sync      bool          `json:"sync"` // sync_priority > 0
	Flush     catalog.LSN   `json:"flush"`
	ReplyAge  time.Duration `json:"reply_age_ns"`
}

// Never is a duration that stands for "has not happened".
const Never = time.Duration(1<<63 - 1)
