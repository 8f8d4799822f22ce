package settings

import (
	"strconv"
	"strings"
	"time"

	"neki/internal/pgerr"
)

// Parameters are the values that operators tune without a restart, of gateways and admins. It is a comparable value
// and never changed once made: Set returns another. The zero value is not the default: see DefaultParameters.
type Parameters struct {
	// Gateways.
	LagMin, LagMax    time.Duration // tiers of replicas by lag; LagMin <= LagMax
	IdleSession       time.Duration // 0 = off
	IdleInTransaction time.Duration // 0 = off
	ClientWrite       time.Duration // 0 = off
	DrainWait         time.Duration // how long a gateway that ends lets clients leave by themselves
	BufferWindow      time.Duration // longest hold of a statement during a switchover or failover; 0 = none
	PoolCapacity      int           // connections per instance, role and database
	PoolMinConns      int           // <= PoolCapacity
	PoolMaxLifetime   time.Duration // 0 = off; each connection lives between once and twice as long
	PoolMaxWait       time.Duration // 0 = off
	PoolIdle          time.Duration // 0 = off
	TxIdle            time.Duration // 0 = off

	// Admins.
	DiscoveryPoll     time.Duration
	RecoveryPoll      time.Duration
	AcceptableLag     time.Duration
	SwitchoverTimeout time.Duration
	BackupInterval    time.Duration // 0 = none by schedule
	BackupRetention   time.Duration
	ReplaceAfter      time.Duration // 0 = never
}

// Parameter describes one of Parameters.
type Parameter struct {
	Name        string
	Default     string
	Type        string // "interval" or "integer"
	Scope       string // "gateway" or "admin"
	Description string
	interval    func(*Parameters) *time.Duration // nil for a count
	count       func(*Parameters) *int           // nil for an interval
	min         int64                            // least value; for an interval in ns
	max         int64
}

// Longest interval and largest count that any parameter takes.
const (
	longest = 365 * 24 * time.Hour
	most    = 100_000
)

// parameterTable is in the order in which it is documented. It is never written.
var parameterTable = []Parameter{
	interval("replication-lag-tolerable-min", "30s", "gateway", 0, func(p *Parameters) *time.Duration { return &p.LagMin },
		"Replicas with at most this lag are the preferred tier."),
	interval("replication-lag-tolerable-max", "15min", "gateway", 0, func(p *Parameters) *time.Duration { return &p.LagMax },
		"Replicas with more lag than this, or with unknown lag, are never eligible."),
	interval("idle-session-timeout", "30min", "gateway", 0, func(p *Parameters) *time.Duration { return &p.IdleSession },
		"A client that is idle outside a transaction for longer is disconnected (57P05); 0 = never."),
	interval("idle-in-transaction-session-timeout", "5min", "gateway", 0,
		func(p *Parameters) *time.Duration { return &p.IdleInTransaction },
		"A client that is idle in a transaction for longer is disconnected (25P03); 0 = never."),
	interval("client-write-timeout", "5min", "gateway", 0, func(p *Parameters) *time.Duration { return &p.ClientWrite },
		"A client that takes nothing of what is sent to it for this long is disconnected, and its statement cancelled; "+
			"0 = never."),
	interval("buffer-window", "10s", "gateway", 0, func(p *Parameters) *time.Duration { return &p.BufferWindow },
		"The longest time that a statement is held during a switchover or failover before it fails (NK002)."),
	interval("drain-wait", "5s", "gateway", 0, func(p *Parameters) *time.Duration { return &p.DrainWait },
		"How long a gateway that is told to end lets clients leave by themselves before it ends their sessions between "+
			"transactions."),
	count("pool-capacity", 20, 1, func(p *Parameters) *int { return &p.PoolCapacity },
		"The most connections to one instance for one role and database."),
	count("pool-min-conns", 1, 0, func(p *Parameters) *int { return &p.PoolMinConns },
		"How many of them are kept open when idle; at most pool-capacity."),
	interval("pool-max-lifetime", "1h", "gateway", 0, func(p *Parameters) *time.Duration { return &p.PoolMaxLifetime },
		"A connection is closed once it is older than this, up to twice as long by chance so that not all go at once; "+
			"0 = never."),
	interval("pool-max-wait-time", "30s", "gateway", 0, func(p *Parameters) *time.Duration { return &p.PoolMaxWait },
		"How long a statement waits for a connection before it fails (53300); 0 = for ever."),
	interval("pool-idle-timeout", "10min", "gateway", 0, func(p *Parameters) *time.Duration { return &p.PoolIdle },
		"A connection above pool-min-conns that nobody used for this long is closed; 0 = never."),
	interval("tx-idle-timeout", "0", "gateway", 0, func(p *Parameters) *time.Duration { return &p.TxIdle },
		"A connection held by a transaction whose client sends nothing for this long is rolled back and taken away; "+
			"the client's session stays. 0 = never."),
	interval(DiscoveryPoll, "5s", "admin", 100*time.Millisecond,
		func(p *Parameters) *time.Duration { return &p.DiscoveryPoll },
		"How often the admin looks at every instance, whatever events it had."),
	interval(RecoveryPoll, "10s", "admin", 100*time.Millisecond,
		func(p *Parameters) *time.Duration { return &p.RecoveryPoll },
		"How often the admin looks for replicas that lag, and for lost ones that are to be replaced."),
	interval(AcceptableLag, "10s", "admin", 0,
		func(p *Parameters) *time.Duration { return &p.AcceptableLag },
		"A replica with more lag than this is reported as lagging, by an event."),
	interval(SwitchoverTimeout, "1min", "admin", time.Second,
		func(p *Parameters) *time.Duration { return &p.SwitchoverTimeout },
		"How long a planned switchover may wait until it can be begun. Once clients are held it is undone after 5 seconds, "+
			"whatever this says."),
	interval(BackupInterval, defaultBackupInterval, "admin", 0, func(p *Parameters) *time.Duration { return &p.BackupInterval },
		"From one scheduled backup of the cluster to the next, where there is a place for backups; 0 = none by schedule."),
	interval(BackupRetention, "2d", "admin", time.Minute, func(p *Parameters) *time.Duration { return &p.BackupRetention },
		"How long backups are kept that do not say so themselves; those that are there keep their time."),
	interval(ReplaceAfter, "10min", "admin", 0, func(p *Parameters) *time.Duration { return &p.ReplaceAfter },
		"A replica that has not been heard of for this long is replaced by another one, where an instance can be started or an "+
			"agent is free; 0 = never."),
}

// Names of parameters that the leading admin reads from the catalog.
const (
	DiscoveryPoll     = "discovery-poll-interval"
	RecoveryPoll      = "recovery-poll-interval"
	AcceptableLag     = "acceptable-replication-lag"
	SwitchoverTimeout = "planned-switchover-timeout"
	BackupInterval    = "backup-interval"
	BackupRetention   = "backup-retention"
	ReplaceAfter      = "replica-replace-after"
)

func interval(name, def, scope string, least time.Duration, field func(*Parameters) *time.Duration, text string) Parameter {
	return Parameter{
		Name: name, Default: def, Type: "interval", Scope: scope, Description: text,
		interval: field, min: int64(least), max: int64(longest),
	}
}

func count(name string, def, least int, field func(*Parameters) *int, text string) Parameter {
	return Parameter{
		Name: name, Default: strconv.Itoa(def), Type: "integer", Scope: "gateway", Description: text,
		count: field, min: int64(least), max: most,
	}
}

// ParameterTable gives every parameter, in the order of the manual. The slice is the caller's.
func ParameterTable() []Parameter { return append([]Parameter(nil), parameterTable...) }

// FindParameter gives the parameter of that name, in any case.
func FindParameter(name string) (Parameter, bool) {
	for i := range parameterTable {
		if strings.EqualFold(parameterTable[i].Name, name) {
			return parameterTable[i], true
		}
	}
	return Parameter{}, false
}

// DefaultParameters gives every parameter at its default.
func DefaultParameters() Parameters {
	var p Parameters
	for i := range parameterTable {
		row := &parameterTable[i]
		if row.interval != nil {
			*row.interval(&p), _ = ParseInterval(row.Default)
		} else {
			*row.count(&p), _ = strconv.Atoi(row.Default)
		}
	}
	return p
}

// Format gives the parameter's text in p.
func (r Parameter) Format(p Parameters) string {
	if r.interval != nil {
		return FormatInterval(*r.interval(&p))
	}
	return strconv.Itoa(*r.count(&p))
}

// Parse sets the parameter in p to the text: 22023 when the text is not of its type or out of its range. What several
// parameters must fulfil together is Check's.
func (r Parameter) Parse(p *Parameters, text string) error {
	var value int64
	var ok bool
	if r.interval != nil {
		var d time.Duration
		d, ok = ParseInterval(text)
		value = int64(d)
	} else {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		value, ok = int64(n), err == nil
	}
	if !ok {
		return pgerr.New(pgerr.InvalidParameterValue, "invalid value for parameter \"%s\": \"%s\"", r.Name, text).
			WithHint("%s", r.hint(text))
	}
	if value < r.min || value > r.max {
		return pgerr.New(pgerr.InvalidParameterValue, "%s is outside the valid range for parameter \"%s\" (%s .. %s)",
			r.show(value), r.Name, r.show(r.min), r.show(r.max)).WithHint("%s", r.hint(""))
	}
	if r.interval != nil {
		*r.interval(p) = time.Duration(value)
	} else {
		*r.count(p) = int(value)
	}
	return nil
}

func (r Parameter) show(value int64) string {
	if r.interval != nil {
		return FormatInterval(time.Duration(value))
	}
	return strconv.FormatInt(value, 10)
}

func (r Parameter) hint(text string) string {
	if r.interval != nil {
		return intervalHintFor(text)
	}
	return "Allowed are whole numbers from " + r.show(r.min) + " to " + r.show(r.max) + "."
}

// Set returns p with one parameter changed: 42704 for a name that is not there, 22023 for a value that is bad by
// itself or beside the others.
func (p Parameters) Set(name, text string) (Parameters, error) {
	return p.SetAll([]Pair{{name, text}})
}

// SetAll returns p with several parameters changed; what they must fulfil together is checked once all are set.
func (p Parameters) SetAll(pairs []Pair) (Parameters, error) {
	next := p
	for _, pair := range pairs {
		row, ok := FindParameter(pair.Name)
		if !ok {
			return p, unknownParameter(pair.Name)
		}
		if err := row.Parse(&next, pair.Value); err != nil {
			return p, err
		}
	}
	if err := next.Check(); err != nil {
		return p, err
	}
	return next, nil
}

// Get gives the text of one parameter.
func (p Parameters) Get(name string) (string, error) {
	row, ok := FindParameter(name)
	if !ok {
		return "", unknownParameter(name)
	}
	return row.Format(p), nil
}

// Check tells whether the parameters fit together.
func (p Parameters) Check() error {
	if p.LagMin > p.LagMax {
		return pgerr.New(pgerr.InvalidParameterValue,
			"replication-lag-tolerable-min (%s) is greater than replication-lag-tolerable-max (%s)",
			FormatInterval(p.LagMin), FormatInterval(p.LagMax)).
			WithHint("Raise replication-lag-tolerable-max first, or lower replication-lag-tolerable-min.")
	}
	if p.PoolMinConns > p.PoolCapacity {
		return pgerr.New(pgerr.InvalidParameterValue, "pool-min-conns (%d) is greater than pool-capacity (%d)",
			p.PoolMinConns, p.PoolCapacity).WithHint("Raise pool-capacity first, or lower pool-min-conns.")
	}
	return nil
}

func unknownParameter(name string) error {
	e := pgerr.New(pgerr.UndefinedObject, "unrecognized gateway or admin parameter \"%s\"", name)
	names := make([]string, 0, len(parameterTable))
	for i := range parameterTable {
		names = append(names, parameterTable[i].Name)
	}
	if near := pgerr.Nearest(name, names); near != "" {
		return e.WithHint("Perhaps you meant \"%s\".", near)
	}
	return e.WithHint("The parameters are: %s.", strings.Join(names, ", "))
}
