package settings

import (
	"strings"
	"time"

	"neki/internal/pgerr"
)

// Prefix starts the name of every session setting of neki's own.
const Prefix = "__neki."

// Target is the kind of instance that serves a session's reads (__neki.target).
type Target uint8

// The targets; only TargetPrimary and TargetAuto accept writes.
const (
	TargetPrimary Target = iota
	TargetReplica
	TargetRdonly
	TargetAuto
)

// Policy says how much a wish counts (__neki.replica_recency, __neki.replica_locality).
type Policy uint8

// The policies.
const (
	Prefer Policy = iota
	Require
	Off
)

// Affinity says for how long a replica, once chosen, is kept (__neki.replica_affinity).
type Affinity uint8

// The affinities.
const (
	AffinityNone Affinity = iota
	AffinitySession
)

// Consistency says what a replica must have replayed before it may serve a read (__neki.replica_consistency).
type Consistency uint8

// The consistencies; with Bounded, Neki.Bound holds the greatest lag allowed.
const (
	Eventual Consistency = iota
	SessionConsistency
	Bounded
)

// Fanout is how far a statement may reach (__neki.fanout).
type Fanout uint8

// The fan-outs, from the widest to the narrowest.
const (
	FanoutScatter Fanout = iota
	FanoutMulti
	FanoutSingle
)

// TxMode says how a transaction may span shards (__neki.tx_mode).
type TxMode uint8

// The transaction modes.
const (
	TxMulti TxMode = iota
	TxSingle
	TxAtomic
)

// The words of each enumerated setting, in the order of its constants.
var (
	targetWords      = []string{"primary", "replica", "rdonly", "auto"}
	policyWords      = []string{"prefer", "require", "off"}
	affinityWords    = []string{"none", "session"}
	consistencyWords = []string{"eventual", "session", "bounded"}
	fanoutWords      = []string{"scatter", "multi", "single"}
	txModeWords      = []string{"multi", "single", "atomic"}
)

func word(words []string, i uint8) string {
	if int(i) < len(words) {
		return words[i]
	}
	return "unknown"
}

// String gives the value's word, as SHOW does.
func (t Target) String() string { return word(targetWords, uint8(t)) }

// String gives the value's word, as SHOW does.
func (p Policy) String() string { return word(policyWords, uint8(p)) }

// String gives the value's word, as SHOW does.
func (a Affinity) String() string { return word(affinityWords, uint8(a)) }

// String gives the value's word, as SHOW does; the interval of Bounded is not part of it.
func (c Consistency) String() string { return word(consistencyWords, uint8(c)) }

// String gives the value's word, as SHOW does.
func (f Fanout) String() string { return word(fanoutWords, uint8(f)) }

// String gives the value's word, as SHOW does.
func (m TxMode) String() string { return word(txModeWords, uint8(m)) }

// Writes reports whether statements that write are accepted under this target.
func (t Target) Writes() bool { return t == TargetPrimary || t == TargetAuto }

// Neki holds the __neki.* values of one session. It is comparable. The zero value is not the default: see Default.
type Neki struct {
	Target      Target
	Recency     Policy
	Locality    Policy
	Affinity    Affinity
	Consistency Consistency
	Fanout      Fanout
	TxMode      TxMode
	Bound       time.Duration // with Bounded only, else 0
	Wait        time.Duration
	Shard       string // uid of the shard that data statements go to; "" = as routed
}

// Default gives the values that a session has when nobody set anything.
func Default() Neki { return Neki{Wait: time.Second} }

// IsNeki reports whether name is in neki's own namespace, known or not. A known one without the underscores, such as
// neki.target, is there too and unknown: Postgres would take it as a parameter of nobody's, and reads that the user means
// for a replica would go on to the primary.
func IsNeki(name string) bool {
	if len(name) >= len(Prefix) && strings.EqualFold(name[:len(Prefix)], Prefix) {
		return true
	}
	_, short := withoutUnderscores(name)
	return short
}

// withoutUnderscores gives the setting that name is meant for, when it lacks only the underscores of its prefix.
func withoutUnderscores(name string) (string, bool) {
	const bare = len(Prefix) - len("__")
	if len(name) < bare || !strings.EqualFold(name[:bare], Prefix[len("__"):]) {
		return "", false
	}
	for i := range table {
		if full := table[i].Name; strings.EqualFold(name, full[len("__"):]) {
			return full, true
		}
	}
	return "", false
}

// Set returns n with the named setting changed to the text: 42704 for a name that is not there, 22023 for a bad value.
func (n Neki) Set(name, value string) (Neki, error) {
	s, ok := Find(name)
	if !ok {
		return n, unknownSetting(name)
	}
	err := s.Parse(&n, value)
	return n, err
}

// Get gives the text of the named setting, as SHOW does.
func (n Neki) Get(name string) (string, error) {
	s, ok := Find(name)
	if !ok {
		return "", unknownSetting(name)
	}
	return s.Format(n), nil
}

// Reset returns n with the named setting at its default.
func (n Neki) Reset(name string) (Neki, error) { return n.ResetTo(name, Default()) }

// ResetTo returns n with the named setting as in defaults: the values that the client gave at startup.
func (n Neki) ResetTo(name string, defaults Neki) (Neki, error) {
	s, ok := Find(name)
	if !ok {
		return n, unknownSetting(name)
	}
	err := s.Parse(&n, s.Format(defaults))
	return n, err
}

// Names lists the settings' names, in order.
func Names() []string {
	names := make([]string, 0, len(table))
	for i := range table {
		names = append(names, table[i].Name)
	}
	return names
}

func unknownSetting(name string) error {
	e := pgerr.New(pgerr.UndefinedObject, "unrecognized configuration parameter \"%s\"", name)
	if meant, ok := withoutUnderscores(name); ok {
		return e.WithHint("Perhaps you meant \"%s\".", meant)
	}
	names := Names()
	if near := pgerr.Nearest(name, names); near != "" {
		return e.WithHint("Perhaps you meant \"%s\".", near)
	}
	return e.WithHint("The settings of neki are: %s.", strings.Join(names, ", "))
}
