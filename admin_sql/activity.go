package adminsql

import (
	"context"
	"time"

	"neki/catalog"
	"neki/settings"
)

// The relations that show what goes on: sessions, pools, plans, statements, events.

// sessionSettings are the columns of neki.sessions that show a session's settings, by setting.
var sessionSettings = []struct{ column, setting string }{
	{"target", "__neki.target"},
	{"replica_recency", "__neki.replica_recency"},
	{"replica_locality", "__neki.replica_locality"},
	{"replica_affinity", "__neki.replica_affinity"},
	{"replica_consistency", "__neki.replica_consistency"},
	{"replica_wait", "__neki.replica_wait"},
	{"fanout", "__neki.fanout"},
	{"tx_mode", "__neki.tx_mode"},
	{"shard", "__neki.shard"},
}

func sessionColumns() []Column {
	columns := []Column{
		{"gateway", text, "id of the gateway it is connected to"},
		{"pid", int4, "process id the client was told; what neki.cancel_query takes"},
		{"user", text, "role logged in"},
		{"database", text, "database"},
		{"application", text, "application_name"},
		{"client_addr", text, "address and port of the client; NULL for a Unix socket"},
	}
	for _, s := range sessionSettings {
		columns = append(columns, Column{s.column, text, "value of " + s.setting})
	}
	return append(columns,
		Column{"state", text, "active, idle, idle in transaction or idle in transaction (aborted)"},
		Column{"in_transaction", boolean, "inside a transaction block"},
		Column{"shards", textArray, "shards on which it holds a server connection"},
		Column{"pinned", textArray, "why its server connection can't be given back between transactions"},
		Column{"query", text, "running statement as it was sent, at most 1024 bytes; or the last one, its constants replaced by $n"},
		Column{"wait_reason", text, "what it waits for"},
		Column{"connected_at", timestamptz, "start of the session"},
		Column{"xact_start", timestamptz, "start of the transaction"},
		Column{"query_start", timestamptz, "start of the running or last statement"},
		Column{"state_change", timestamptz, "when state last changed"},
	)
}

func (s *Schema) sessions() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "sessions", Comment: "Clients of the gateways; without neki_viewer only your own",
		Columns: sessionColumns(), Open: true, rows: s.sessionRows,
	}
}

func (s *Schema) sessionRows(ctx context.Context, sess Session, _ []any) ([][]any, error) {
	if s.in.Sessions == nil {
		return nil, missing("sessions")
	}
	all, err := s.in.Sessions.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	rows := make([][]any, 0, len(all))
	for i := range all {
		if r := &all[i]; mayView(sess) || r.User == sess.User() {
			rows = append(rows, sessionRow(r))
		}
	}
	return rows, nil
}

func sessionRow(r *SessionRow) []any {
	row := []any{
		orNull(r.Gateway), r.PID, orNull(r.User), orNull(r.Database), orNull(r.Application), orNull(r.ClientAddr),
	}
	for _, s := range sessionSettings {
		value, ok := r.Settings[s.setting]
		if !ok || value == "" {
			row = append(row, nil)
			continue
		}
		row = append(row, value)
	}
	return append(row, orNull(r.State), r.InTx, notNil(r.Shards), notNil(r.Pinned), orNull(r.Query),
		orNull(r.WaitReason), timeOrNull(r.ConnectedAt), timeOrNull(r.TxStart), timeOrNull(r.QueryStart),
		timeOrNull(r.StateChange))
}

// notNil keeps a known empty list apart from NULL.
func notNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

func (s *Schema) pools() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "pools", Comment: "Server connection pools of this gateway",
		Columns: []Column{
			{"node", text, "instance"},
			{"user", text, "role"},
			{"database", text, "database"},
			{"capacity", int4, "most connections"},
			{"active", int4, "connections in use"},
			{"idle", int4, "connections at rest"},
			{"waiting", int4, "sessions that wait for one"},
			{"max_wait", interval, "longest wait of those that wait now; NULL when none does"},
		},
		rows: ignoreArgs(func(ctx context.Context) ([][]any, error) {
			if s.in.Pools == nil {
				return nil, missing("pools")
			}
			all, err := s.in.Pools.Pools(ctx)
			return collect(all, func(p PoolRow) []any {
				return []any{
					p.Node, orNull(p.User), orNull(p.Database), p.Capacity, p.Active, p.Idle, p.Waiting, orNull(p.MaxWait),
				}
			}), err
		}),
	}
}

func (s *Schema) plans() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "plans", Comment: "Plan cache of this gateway",
		Columns: []Column{
			{"fingerprint", text, "identifies the statement's shape"},
			{"query", text, "statement with its constants replaced by $n"},
			{"kind", text, "route of the plan"},
			{"fanout", text, "single, multi or scatter"},
			{"tables", textArray, "relations it names"},
			{"hits", int8, "times it was used again"},
			{"bytes", int8, "memory it holds"},
		},
		rows: ignoreArgs(func(ctx context.Context) ([][]any, error) {
			if s.in.Plans == nil {
				return nil, missing("plans")
			}
			all, err := s.in.Plans.Plans(ctx)
			return collect(all, func(p PlanRow) []any {
				return []any{
					p.Fingerprint, orNull(p.Query), orNull(p.Kind), orNull(p.Fanout), notNil(p.Tables), p.Hits, p.Bytes,
				}
			}), err
		}),
	}
}

func (s *Schema) statements() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "statements", Comment: "Statistics of this gateway per statement shape",
		Columns: []Column{
			{"fingerprint", text, "identifies the statement's shape"},
			{"query", text, "statement with its constants replaced by $n"},
			{"calls", int8, "executions"},
			{"errors", int8, "executions that failed"},
			{"rows", int8, "rows returned or changed"},
			{"shard_calls", int8, "statements sent to shards for it"},
			{"p50_ms", float8, "median time in milliseconds"},
			{"p95_ms", float8, "95th percentile"},
			{"p99_ms", float8, "99th percentile"},
		},
		rows: ignoreArgs(func(ctx context.Context) ([][]any, error) {
			if s.in.Statements == nil {
				return nil, missing("statement statistics")
			}
			all, err := s.in.Statements.Statements(ctx)
			return collect(all, func(r StatementRow) []any {
				return []any{
					r.Fingerprint, orNull(r.Query), r.Calls, r.Errors, r.Rows, r.ShardCalls,
					milliseconds(r.P50), milliseconds(r.P95), milliseconds(r.P99),
				}
			}), err
		}),
	}
}

func milliseconds(d time.Duration) any {
	if d < 0 {
		return nil
	}
	return float64(d.Nanoseconds()) / 1e6
}

func (s *Schema) events() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "events", Comment: "What the admin and operators did, newest first",
		Columns: []Column{
			{"at", timestamptz, "when"},
			{"shard", text, "shard concerned"},
			{"node", text, "instance concerned"},
			{"kind", text, "what happened: leader, initialised, provisioned, follows, applied, replication, cohort, ready, up, down; or the procedure that was called"},
			{"detail", text, "what was done or asked for"},
			{"by", text, "admin, or role that called the procedure"},
			{"duration", interval, "how long it took"},
		},
		rows: ignoreArgs(func(ctx context.Context) ([][]any, error) {
			if s.in.Events == nil {
				return nil, missing("events")
			}
			all, err := s.in.Events.Events(ctx)
			return collect(all, func(e catalog.Event) []any {
				return []any{
					timeOrNull(e.At), orNull(e.Shard), orNull(e.Node), orNull(e.Kind), orNull(e.Detail), orNull(e.By),
					orNull(e.Duration),
				}
			}), err
		}),
	}
}

func (s *Schema) settings() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "settings", Comment: "Settings of this session under __neki", Open: true,
		Columns: []Column{
			{"name", text, "name for SET and SHOW"},
			{"value", text, "value in this session"},
			{"default", text, "value after RESET"},
			{"source", text, "default, startup or session"},
			{"allowed", textArray, "values it takes; NULL when its type says it all"},
			{"description", text, "what it does"},
		},
		rows: func(_ context.Context, sess Session, _ []any) ([][]any, error) {
			return collect(settings.All(), func(st settings.Setting) []any {
				value, source := sess.Setting(st.Name)
				var allowed any
				if st.Allowed != nil {
					allowed = st.Allowed
				}
				return []any{st.Name, value, st.Default, orNull(source), allowed, orNull(st.Description)}
			}), nil
		},
	}
}

func (s *Schema) parameters() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "parameters", Comment: "Parameters of gateways, admins and profiles",
		Columns: []Column{
			{"scope", text, "gateway, admin or the profile's name"},
			{"name", text, "name, as neki.set_parameter takes it"},
			{"value", text, "value in force"},
			{"default", text, "value when nothing sets it"},
			{"type", text, "interval (a number with its unit, as 5s or 15min) or integer; NULL for a parameter of Postgres"},
			{"source", text, "default, file, sql or group: that of this gateway"},
			{"description", text, "what it does"},
		},
		rows: ignoreArgs(func(ctx context.Context) ([][]any, error) {
			if s.in.Parameters == nil {
				return nil, missing("parameters")
			}
			all, err := s.in.Parameters.Parameters(ctx)
			return collect(all, func(p ParameterRow) []any {
				return []any{p.Scope, p.Name, p.Value, p.Default, orNull(p.Type), orNull(p.Source), orNull(p.Text)}
			}), err
		}),
	}
}
