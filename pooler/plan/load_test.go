package plan

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"neki/internal/testpg"
)

func TestListsAreSorted(t *testing.T) {
	for name, list := range map[string][]string{
		"harmless": harmless, "effective": effective, "writers": writers, "gatewayRun": gatewayRun,
	} {
		if !slices.IsSorted(list) {
			t.Errorf("%s is not sorted", name)
		}
	}
	for _, name := range harmless {
		if contains(writers, name) || contains(effective, name) {
			t.Errorf("%s is harmless and has effects", name)
		}
	}
}

// TestQueries reads a real pg_proc and asks a server's statements of it.
func TestQueries(t *testing.T) {
	srv := testpg.Start(t)
	conn := srv.Conn(t.Context())
	srv.Exec(`CREATE SCHEMA app;
		CREATE TABLE app.sessions (a int);
		CREATE FUNCTION app.v(int DEFAULT 1) RETURNS int LANGUAGE sql VOLATILE AS 'select 1';
		CREATE FUNCTION app.s(VARIADIC int[]) RETURNS int LANGUAGE sql STABLE AS 'select 1';`)
	f := NewFunctions(loadFrom(conn, []string{"sessions", "replicas"}))
	if err := f.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	version := f.Version()
	if err := f.Refresh(t.Context()); err != nil || f.Version() != version {
		t.Errorf("nothing has changed, but the version: %d, then %d, %v", version, f.Version(), err)
	}
	if exists, known := f.Relation("app", "sessions"); !exists || !known {
		t.Error("app.sessions is not known")
	}
	if exists, known := f.Relation("app", "replicas"); exists || !known {
		t.Error("app.replicas is there")
	}
	pl := newPlanner(t, Options{})
	env := NewEnv("postgres", "alice", "app, public", f)
	for text, want := range map[string]Verdict{
		"select count(*), count(a), max(a), string_agg('a', ',' order by a) from app.sessions":                       Read,
		"select lower('A'), now(), random(), clock_timestamp(), pg_is_in_recovery(), gen_random_uuid()":              Read,
		"select percentile_cont(0.5) within group (order by a), grouping(a) from sessions group by a":                Read,
		"select row_number() over (), concat('a', 1, 2), format('%s', 'a'), coalesce(1, 2), greatest(1,2)":           Read,
		"select * from generate_series(1, 10), unnest(array[1]), json_each('{}')":                                    Read,
		"select extract(year from now()), trim('a'), position('a' in 'b'), substring('abc' from 2 for 1)":            Read,
		"select pg_relation_size('a'), pg_size_pretty(1::bigint), pg_last_wal_replay_lsn()":                          Read,
		"select s(1, 2, 3), s(variadic array[1])":                                                                    Read,
		"select c.relname, pg_catalog.pg_table_is_visible(c.oid) from pg_catalog.pg_class c":                         Read,
		"select current_user, current_date, session_user, now() at time zone 'utc', overlay('a' placing 'b' from 1)": Read,
		"select v()": Unproven, "select app.v(2)": Unproven, "select v(1, 2)": Unproven, "select pg_reload_conf()": Unproven,
		"select pg_current_wal_lsn()": Unproven, "select * from pg_lock_status()": Unproven, "select pg_my_temp_schema()": Unproven,
		"select pg_stat_reset()": Unproven, "select setseed(0)": Unproven, "select set_config('a.b', 'c', false)": Unproven,
		"select nextval('s')": Write, "select txid_current()": Write, "select pg_advisory_xact_lock(1)": Write,
		"select pg_notify('a', 'b')": Write, "select lo_create(1)": Write,
	} {
		p, err := pl.Plan([]byte(text), twoShards(), env)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if p.Verdict != want {
			t.Errorf("%s: %v (%s), want %v", text, p.Verdict, p.Why, want)
		}
	}
	srv.Exec(`ALTER FUNCTION app.s STABLE; ALTER FUNCTION app.v STABLE`)
	if err := f.Refresh(t.Context()); err != nil || f.Version() == version {
		t.Errorf("version %d as before, %v", f.Version(), err)
	}
	if volatile, known := f.Volatile("", "v", 0, []string{"app"}); volatile || !known {
		t.Error("v is still volatile")
	}
}

// TestEveryVolatileBuiltinIsUnproven: what is taken for harmless is what is in the list, on whatever server.
func TestEveryVolatileBuiltinIsUnproven(t *testing.T) {
	srv := testpg.Start(t)
	f := NewFunctions(loadFrom(srv.Conn(t.Context()), nil))
	if err := f.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	rows, err := srv.Conn(t.Context()).Query(t.Context(),
		`SELECT proname::text, pronargs FROM pg_proc WHERE provolatile = 'v' AND pronamespace = 'pg_catalog'::regnamespace`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	volatiles := 0
	for rows.Next() {
		var name string
		var nargs int
		if err := rows.Scan(&name, &nargs); err != nil {
			t.Fatal(err)
		}
		volatiles++
		volatile, known := f.Volatile("pg_catalog", name, nargs, nil)
		if !known || volatile == isHarmless(name) {
			t.Errorf("%s/%d: volatile %t, known %t", name, nargs, volatile, known)
		}
	}
	if err := rows.Err(); err != nil || volatiles < 200 {
		t.Errorf("%d volatile functions, %v", volatiles, err)
	}
}

// loadFrom reads over one connection.
func loadFrom(conn *pgx.Conn, virtual []string) Load {
	return func(ctx context.Context) ([]Function, []Relation, error) {
		rows, err := conn.Query(ctx, FunctionsQuery)
		if err != nil {
			return nil, nil, err
		}
		functions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Function])
		if err != nil {
			return nil, nil, err
		}
		rows, err = conn.Query(ctx, RelationsQuery, virtual)
		if err != nil {
			return nil, nil, err
		}
		relations, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Relation])
		return functions, relations, err
	}
}
