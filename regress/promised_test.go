package regress

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	adminsql "neki/admin_sql"
)

// promisedRelations are the relations and columns that programs may count on. There may be more of either.
var promisedRelations = map[string]string{
	"replicas": "shard text, node text, role text, cell text, host text, port int4, state text, lag interval, lag_bytes int8, receive_lsn pg_lsn, " +
		"replay_lsn pg_lsn, eligible bool, tier text, reason text, connections int4, reads int8, profile text, since timestamptz",
	"nodes": "shard text, node text, role text, cell text, host text, port int4, state text, lag interval, lag_bytes int8, receive_lsn pg_lsn, " +
		"replay_lsn pg_lsn, eligible bool, tier text, reason text, connections int4, reads int8, profile text, since timestamptz, " +
		"postgres_version text, term int8, timeline int4, cpu float8, memory_bytes int8, disk_total int8, disk_free int8, read_iops float8, " +
		"write_iops float8, last_seen timestamptz",
	"shards": "shard text, name text, profile text, primary_node text, replicas int4, rdonly int4, ready bool, read_only bool, durability text, " +
		"groups text[], authoritative bool, size_bytes int8",
	"profiles":       "profile text, replicas int4, rdonly int4, postgres_version text, parameters jsonb, is_default bool, shards text[]",
	"gateways":       "gateway text, cell text, address text, version text, clients int4, topology_revision int8, started_at timestamptz",
	"gateway_groups": "group text, cell text, parameters jsonb, gateways text[]",
	"admins":         "admin text, leader bool, since timestamptz",
	"sessions": "pid int4, user text, database text, application text, target text, state text, in_transaction bool, shards text[], query text, " +
		"wait_reason text, connected_at timestamptz, xact_start timestamptz, query_start timestamptz, replica_recency text, " +
		"replica_locality text, replica_affinity text, replica_consistency text",
	"pools":            "node text, user text, database text, capacity int4, active int4, idle int4, waiting int4, max_wait interval",
	"settings":         "name text, value text, default text, source text, allowed text[], description text",
	"parameters":       "scope text, name text, value text, default text, source text, description text",
	"topology":         "revision int8, document jsonb, comment text, by text, at timestamptz",
	"topology_history": "revision int8, document jsonb, comment text, by text, at timestamptz",
	"shard_groups":     "group text, shards text[]",
	"key_ranges":       "group text, shard text, start text, end text",
	"shard_indexes":    "index text, type text, column text",
	"tables":           "database text, schema text, table text, kind text, group text, index text, column text",
	"sequences":        "database text, schema text, sequence text, group text, shard text",
	"backups": "id text, shard text, kind text, state text, started_at timestamptz, finished_at timestamptz, size_bytes int8, wal_start pg_lsn, " +
		"wal_stop pg_lsn, expires_at timestamptz, protected bool",
	"operations":               "id text, kind text, target text, state text, progress float8, step text, started_at timestamptz, error text",
	"events":                   "at timestamptz, shard text, node text, kind text, detail text, by text, duration interval",
	"plans":                    "fingerprint text, query text, kind text, fanout text, tables text[], hits int8, bytes int8",
	"statements":               "fingerprint text, query text, calls int8, errors int8, rows int8, shard_calls int8, p50_ms float8, p95_ms float8, p99_ms float8",
	"metrics":                  "name text, labels jsonb, value float8, help text",
	"replica_choice":           "node text, eligible bool, tier text, reason text, lag interval",
	"shard_for":                "shard_for text",
	"__neki.list_shards":       "uid text, name text",
	"__neki.get_data_topology": "revision int8, document jsonb",
	"__neki.set_data_topology": "revision int8", "__neki.wait_for_data_topology": "wait_for_data_topology int8",
	"__neki.list_sidecar_statuses": "shard text, node text, role text, state text",
	"__neki.stat_get_activity":     "pid int4, user text, database text, state text, query text",
	"__neki.list_metafuncs":        "name text, arguments text", "__neki.wait_for_ddl": "wait_for_ddl int8",
}

// promisedProcedures are the procedures and arguments that programs may count on, each with a call that this test makes of it
// and what it is answered with: the name of what is missing, or nothing. What they do when they do something is the business
// of tests of their own.
var promisedProcedures = []struct{ name, args, call, state string }{
	{"add_replica", "profile text, shard text, cell text, role text, wait bool", "(shard => 'nosuch')", "22023"},
	{"remove_replica", "node text, wait bool", "('nosuch')", "22023"},
	{"set_replicas", "profile text, count int4, role text, wait bool", "('default', -1)", "22023"},
	{"restore_replica", "node text, wait bool", "('nosuch')", "22023"},
	{"switchover", "shard text, candidate text, wait bool", "('nosuch')", "22023"},
	{"failover", "shard text, wait bool", "('nosuch')", "22023"},
	{"fence", "node text, reason text, wait bool", "('nosuch')", "22023"},
	{"unfence", "node text, wait bool", "('nosuch')", "22023"},
	{"restart_node", "node text, wait bool", "('nosuch')", "22023"},
	{"create_profile", "profile text, replicas int4, rdonly int4, parameters jsonb", "('promised')", ""},
	{"alter_profile", "profile text, parameters jsonb, wait bool", "('promised', parameters => '{}')", ""},
	{"assign_profile", "shard text, profile text, wait bool", "('nosuch', 'promised')", "22023"},
	{"drop_profile", "profile text", "('promised')", ""},
	{"create_gateway_group", "gateway_group text, cell text, parameters jsonb", "('promised', parameters => '{\"pool-capacity\": 5}')", ""},
	{"alter_gateway_group", "gateway_group text, cell text, parameters jsonb", "('promised', cell => 'az-z')", ""},
	{"assign_gateway", "gateway text, gateway_group text", "('gw1', 'nosuch')", "22023"},
	{"drop_gateway_group", "gateway_group text", "('promised')", ""},
	{"create_shard", "profile text, count int4, wait bool", "(count => 0)", "22023"},
	{"rename_shard", "shard text, name text", "('nosuch', 'x')", "22023"},
	{"drop_shard", "shard text, wait bool", "('nosuch')", "22023"},
	{"set_topology", "document text, expected_revision int8, comment text, force bool", "('{', expected_revision => 0)", "22023"},
	{"backup", "shard text, retention interval, wait bool", "('nosuch')", "22023"},
	{"delete_backup", "id text, wait bool", "('nosuch')", "22023"},
	{"protect_backup", "id text, on bool, wait bool", "('nosuch', on => false)", "22023"},
	{"restore_cluster", "target_time timestamptz, into text, wait bool", "(target_time => now(), into => 'relative')", "22023"},
	{"set_parameter", "scope text, name text, value text", "('gateway', 'nosuch', '1')", "42704"},
	{"reload", "", "()", ""},
	{"pause", "shard text", "('nosuch')", "22023"},
	{"resume", "shard text", "('nosuch')", "22023"},
	{"maintenance", "shard text, on bool", "('nosuch')", "22023"},
	{"drain", "gateway text", "('nosuch')", "22023"},
	{"cancel_query", "pid int4", "(1)", "22023"},
	{"kill_session", "pid int4", "(1)", "22023"},
	{"flush_plans", "", "()", ""},
	{"cancel_operation", "operation text", "('nosuch')", "22023"},
	{"set_durability", "shard text, durability text", "('nosuch', 'sync')", "22023"},
}

func columnsText(columns []adminsql.Column) []string {
	var list []string
	for _, c := range columns {
		list = append(list, c.Name+" "+adminsql.TypeName(c.Type))
	}
	return list
}

// lacks lists what of a promise is not there.
func lacks(promised string, have []string) (missing []string) {
	for p := range strings.SplitSeq(promised, ", ") {
		if p != "" && !slices.Contains(have, p) {
			missing = append(missing, p)
		}
	}
	return missing
}

func TestSchemaIsAsPromised(t *testing.T) {
	schema := adminsql.New(adminsql.Inputs{})
	for name, promised := range promisedRelations {
		in, short, found := strings.Cut(name, ".")
		if !found {
			in, short = adminsql.SchemaName, name
		}
		r, ok := schema.Relation(in, short)
		if !ok {
			r, ok = schema.Function(in, short)
		}
		if !ok {
			t.Errorf("there is no %s", name)
			continue
		}
		if missing := lacks(promised, columnsText(r.Columns)); len(missing) > 0 {
			t.Errorf("%s lacks %v", name, missing)
		}
	}
	var promised []string
	for _, p := range promisedProcedures {
		promised = append(promised, p.name)
		have, ok := schema.Procedure(p.name)
		if !ok {
			t.Errorf("there is no procedure %s", p.name)
			continue
		}
		var args []string
		for _, a := range have.Args {
			args = append(args, a.Name+" "+adminsql.TypeName(a.Type))
		}
		if missing := lacks(p.args, args); len(missing) > 0 {
			t.Errorf("procedure %s lacks %v", p.name, missing)
		}
	}
	for _, p := range schema.Procedures() {
		if !slices.Contains(promised, p.Name) {
			t.Errorf("procedure %s is called by no test of regress: give it a line", p.Name)
		}
	}
}

// Every relation gives rows of the columns that its stub shows, and the catalogs list just what there is.
func TestEveryRelationAnswers(t *testing.T) {
	conn := cluster(t).mustConnect(t)
	var have, want []string
	for _, r := range adminsql.New(adminsql.Inputs{}).Relations() {
		if r.Function {
			continue
		}
		want = append(want, r.Name)
		t.Run(r.Name, func(t *testing.T) { sameColumns(t, conn, r) })
	}
	have = rowsOf(t, conn, `SELECT relname::text FROM pg_class WHERE relnamespace = 'neki'::regnamespace AND relkind = 'v' AND relname !~ '^_' ORDER BY 1`)
	slices.Sort(want)
	if d := cmp.Diff(want, have); d != "" {
		t.Errorf("\\dv neki.*: %s", d)
	}
	want = nil
	for _, p := range adminsql.New(adminsql.Inputs{}).Procedures() {
		want = append(want, p.Name)
	}
	have = rowsOf(t, conn, `SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = 'neki'::regnamespace AND prokind = 'p' ORDER BY 1`)
	slices.Sort(want)
	if d := cmp.Diff(want, have); d != "" {
		t.Errorf("\\df neki.*: %s", d)
	}
}

func sameColumns(t *testing.T, conn *pgx.Conn, r *adminsql.Relation) {
	rows, err := conn.Query(t.Context(), "SELECT * FROM "+pgx.Identifier{r.Schema, r.Name}.Sanitize())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range rows.FieldDescriptions() {
		got = append(got, f.Name+" "+adminsql.TypeName(f.DataTypeOID))
	}
	for rows.Next() {
		if _, err := rows.Values(); err != nil {
			t.Error(err)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(columnsText(r.Columns), got); d != "" {
		t.Errorf("the gateway's columns: %s", d)
	}
	stub := rowsOf(t, conn, `SELECT attname::text FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 ORDER BY attnum`, r.FullName())
	for i, c := range r.Columns {
		if i >= len(stub) || stub[i] != c.Name {
			t.Errorf("the stub's columns: %v", stub)
			break
		}
	}
}

// Every procedure is called.
func TestEveryProcedureAnswers(t *testing.T) {
	conn := cluster(t).mustConnect(t)
	for _, p := range promisedProcedures {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := conn.Exec(ctx, "CALL neki."+p.name+p.call)
		cancel()
		state := ""
		var e *pgconn.PgError
		if errors.As(err, &e) {
			state = e.Code
		} else if err != nil {
			t.Fatal(err)
		}
		if state != p.state {
			t.Errorf("%s%s: %v, want %q", p.name, p.call, err, p.state)
		}
		if state == "22023" && e.Hint == "" && e.Detail == "" {
			t.Errorf("%s%s: neither hint nor detail: %v", p.name, p.call, err)
		}
	}
}
