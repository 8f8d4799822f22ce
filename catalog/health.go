package catalog

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Role is what an instance is in its shard.
type Role uint8

// The roles.
const (
	RoleUnknown Role = iota
	RolePrimary
	RoleReplica // may acknowledge commits and be promoted
	RoleRdonly  // never acknowledges, never promoted
)

var roleWords = []string{"unknown", "primary", "replica", "rdonly"}

// String gives the role's word, as the neki schema shows it.
func (r Role) String() string { return wordOf(roleWords, uint8(r)) }

// MarshalText gives the role's word.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the role's word; one of a newer version is RoleUnknown.
func (r *Role) UnmarshalText(text []byte) error {
	*r = Role(indexOf(roleWords, text))
	return nil
}

// State is what an instance does.
type State uint8

// The states.
const (
	StateUnknown State = iota
	StateServing
	StateCatchingUp
	StateRestoring
	StateFenced
	StateDraining
	StateUnreachable
	StateStarting
	StateStopped
)

var stateWords = []string{
	"unknown", "serving", "catching_up", "restoring", "fenced", "draining", "unreachable", "starting", "stopped",
}

// String gives the state's word, as the neki schema shows it.
func (s State) String() string { return wordOf(stateWords, uint8(s)) }

// MarshalText gives the state's word.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the state's word; one of a newer version is StateUnknown.
func (s *State) UnmarshalText(text []byte) error {
	*s = State(indexOf(stateWords, text))
	return nil
}

func wordOf(words []string, i uint8) string {
	if int(i) < len(words) {
		return words[i]
	}
	return words[0]
}

func indexOf(words []string, text []byte) uint8 {
	for i, w := range words {
		if w == string(text) {
			return uint8(i)
		}
	}
	return 0
}

// LSN is a position in the write-ahead log; 0 is none.
type LSN uint64

// String gives Postgres's form, 0/3000148.
func (l LSN) String() string { return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l)) }

// ParseLSN reads Postgres's form.
func ParseLSN(s string) (LSN, error) {
	high, low, ok := strings.Cut(s, "/")
	h, errHigh := strconv.ParseUint(high, 16, 32)
	l, errLow := strconv.ParseUint(low, 16, 32)
	if !ok || errHigh != nil || errLow != nil {
		return 0, fmt.Errorf("%q is not a log sequence number", s)
	}
	return LSN(h<<32 | l), nil
}

// MarshalText gives Postgres's form.
func (l LSN) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads Postgres's form.
func (l *LSN) UnmarshalText(text []byte) (err error) {
	*l, err = ParseLSN(string(text))
	return err
}

// Health is one report of an agent about its instance. Times in it are spans, measured at the agent; there is no clock
// time in it and none is ever compared with it.
type Health struct {
	Node            string `json:"node"`
	Seq             uint64 `json:"seq"`
	Role            Role   `json:"role"` // as Postgres says it: one in recovery is a replica
	State           State  `json:"state"`
	Reason          string `json:"reason,omitempty"`
	Term            int64  `json:"term,omitempty"`
	Timeline        int32  `json:"timeline,omitempty"`
	SystemID        string `json:"system_id,omitempty"`
	PostgresVersion string `json:"postgres_version,omitempty"`

	ReceiveLSN LSN           `json:"receive_lsn"`
	ReplayLSN  LSN           `json:"replay_lsn"`
	FlushLSN   LSN           `json:"flush_lsn"`       // of a primary
	Streaming  bool          `json:"streaming"`       // the receiver is up
	LastMsgAge time.Duration `json:"last_msg_age_ns"` // age of last_msg_receipt_time
	// Lag is the agent's own idea, for people who read its stream; nothing here is computed from it. nil = unknown.
	Lag *time.Duration `json:"lag_ns,omitempty"`
	// Ring: of a primary, its latest samples, newest first and the newest with Age near 0 in every report. The first
	// report of a stream should hold all of Ring.Samples, later ones what is new.
	Ring []Sample `json:"ring,omitempty"`

	Connections    int32   `json:"connections,omitempty"`
	MaxConnections int32   `json:"max_connections,omitempty"`
	CPU            float64 `json:"cpu,omitempty"` // cores
	MemoryBytes    int64   `json:"memory_bytes,omitempty"`
	DiskTotal      int64   `json:"disk_total,omitempty"`
	DiskFree       int64   `json:"disk_free,omitempty"`
	ReadIOPS       float64 `json:"read_iops,omitempty"`
	WriteIOPS      float64 `json:"write_iops,omitempty"`
	SizeBytes      int64   `json:"size_bytes,omitempty"`
}

// Sample says that a primary had flushed its log up to LSN, Age ago.
type Sample struct {
	Age time.Duration `json:"age_ns"`
	LSN LSN           `json:"lsn"`
}

// NodeHealth is an agent's last report with what this process makes of it. It is immutable.
type NodeHealth struct {
	Health
	ReceivedAt time.Time // by this process's clock; its monotonic part counts
	// Stale: the last report is older than StaleAfter. State is then StateUnreachable, Reason says so, and the lag is
	// unknown; all else is as last reported.
	Stale    bool
	Lag      time.Duration // 0 on a primary; unless LagKnown, a lower bound
	LagKnown bool
	// LagReason says why the lag is unknown, in words for users; "" when it is known.
	LagReason     string
	LagBytes      int64 // log that the primary has flushed and this one has not replayed
	LagBytesKnown bool
}
