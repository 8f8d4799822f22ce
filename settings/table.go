package settings

import (
	"strings"
	"time"

	"neki/internal/pgerr"
)

// Setting is one session setting: a row of the table that SET, SHOW, neki.settings and the manual are made from.
type Setting struct {
	Name        string // with the prefix, lower case
	Type        string // enum, interval or text
	Default     string
	Allowed     []string // allowed values as shown to users; nil when the type says it all
	Description string
	parse       func(n *Neki, text string) bool
	format      func(n Neki) string
}

// Parse sets the setting in n to the text. A value that is not allowed is 22023 and leaves n as it was.
func (s Setting) Parse(n *Neki, text string) error {
	if s.parse(n, strings.TrimSpace(text)) {
		return nil
	}
	e := pgerr.New(pgerr.InvalidParameterValue, "invalid value for parameter \"%s\": \"%s\"", s.Name, text)
	return e.WithHint("%s", s.allowedHint(text))
}

// Format gives the setting's text in n.
func (s Setting) Format(n Neki) string { return s.format(n) }

func (s Setting) allowedHint(text string) string {
	switch {
	case s.Allowed != nil:
		return "Available values: " + strings.Join(s.Allowed, ", ") + "."
	case s.Type == "interval":
		return intervalHintFor(text)
	}
	return "Allowed are up to 63 letters, digits, underscores, hyphens and dots."
}

// All gives every setting in the order of their names. The slice is the caller's.
func All() []Setting { return append([]Setting(nil), table...) }

// Find gives the setting of that full name, in any case.
func Find(name string) (Setting, bool) {
	for i := range table {
		if strings.EqualFold(table[i].Name, name) {
			return table[i], true
		}
	}
	return Setting{}, false
}

// table is in name order; a test holds it to that. It is never written.
var table = []Setting{
	enum("__neki.fanout", fanoutWords, func(n *Neki) *Fanout { return &n.Fanout },
		"How far a statement may reach: several shards by scatter, several by key, or one. "+
			"A statement whose plan reaches further fails with NK003. DDL is exempt."),
	enum("__neki.replica_affinity", affinityWords, func(n *Neki) *Affinity { return &n.Affinity },
		"none: a replica is chosen anew for every statement; session: the session stays on the same replica of "+
			"each shard while that one stays eligible."),
	{
		Name: "__neki.replica_consistency", Type: "enum", Default: "eventual",
		Allowed: []string{"eventual", "session", "bounded:<interval>"},
		Description: "What a replica must have replayed before it serves a read. session: all that this session has " +
			"written or seen on the shard; bounded:5s: no replica whose lag is above 5 s.",
		parse: parseConsistency, format: formatConsistency,
	},
	enum("__neki.replica_locality", policyWords, func(n *Neki) *Policy { return &n.Locality },
		"Whether replicas in the gateway's own cell come first, are the only ones, or count like all others."),
	enum("__neki.replica_recency", policyWords, func(n *Neki) *Policy { return &n.Recency },
		"Whether replicas with lag up to replication-lag-tolerable-min come first, are the only ones, or count like "+
			"all others. Lag above replication-lag-tolerable-max, or unknown, is never eligible."),
	{
		Name: "__neki.replica_wait", Type: "interval", Default: "1s",
		Description: "How long a read waits for a replica to become consistent enough.",
		parse:       func(n *Neki, text string) bool { return parseIntervalInto(&n.Wait, text) },
		format:      func(n Neki) string { return FormatInterval(n.Wait) },
	},
	{
		Name: "__neki.shard", Type: "text",
		Description: "uid of the shard that data statements go to, whatever their keys; empty: as routed.",
		parse:       parseShard, format: func(n Neki) string { return n.Shard },
	},
	enum("__neki.target", targetWords, func(n *Neki) *Target { return &n.Target },
		"The kind of instance that serves reads. auto: a statement proven read-only goes to a replica unless a "+
			"read-write transaction is open, all else to the primary. Under replica and rdonly writes fail with 25006."),
	enum("__neki.tx_mode", txModeWords, func(n *Neki) *TxMode { return &n.TxMode },
		"How a transaction may span shards: each commits for itself, no second shard (NK004), or all together by "+
			"two-phase commit."),
}

func enum[T ~uint8](name string, words []string, field func(*Neki) *T, description string) Setting {
	return Setting{
		Name: name, Type: "enum", Default: words[0], Allowed: words, Description: description,
		parse: func(n *Neki, text string) bool {
			for i, w := range words {
				if strings.EqualFold(w, text) {
					*field(n) = T(i)
					return true
				}
			}
			return false
		},
		format: func(n Neki) string { return word(words, uint8(*field(&n))) },
	}
}

const boundedPrefix = "bounded:"

func parseConsistency(n *Neki, text string) bool {
	switch {
	case strings.EqualFold(text, "eventual"):
		n.Consistency, n.Bound = Eventual, 0
	case strings.EqualFold(text, "session"):
		n.Consistency, n.Bound = SessionConsistency, 0
	case len(text) > len(boundedPrefix) && strings.EqualFold(text[:len(boundedPrefix)], boundedPrefix):
		var bound time.Duration
		if !parseIntervalInto(&bound, text[len(boundedPrefix):]) {
			return false
		}
		n.Consistency, n.Bound = Bounded, bound
	default:
		return false
	}
	return true
}

func formatConsistency(n Neki) string {
	if n.Consistency == Bounded {
		return boundedPrefix + FormatInterval(n.Bound)
	}
	return n.Consistency.String()
}

// parseShard checks the form only: whether the shard is there is known when a statement is routed.
func parseShard(n *Neki, text string) bool {
	if len(text) > 63 {
		return false
	}
	for _, c := range []byte(text) {
		if !isWordByte(c) && c != '-' && c != '.' {
			return false
		}
	}
	n.Shard = strings.Clone(text)
	return true
}

func isWordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}
