package build_test

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"neki/exec"
	"neki/exec/build"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

type resolver struct {
	relations
	functions map[string][]build.Function
}

func (r resolver) Functions(schema, name string) []build.Function {
	return r.functions[schema+"."+name]
}

func text(name string) exec.Column { return exec.Column{Name: name, Type: datum.Of(datum.TextOID)} }

func nekiSchema() resolver {
	replicas := exec.NewTable([]exec.Column{
		text("shard"), text("node"),
		{Name: "lag", Type: datum.Of(datum.IntervalOID)},
		{Name: "connections", Type: datum.Of(datum.Int4OID)},
		{Name: "replay_lsn", Type: datum.Of(datum.LSNOID)},
		{Name: "groups", Type: datum.Of(datum.TextArrayOID)},
		{Name: "since", Type: datum.Of(datum.TimestamptzOID)},
	}, func(context.Context) ([][]any, error) {
		since := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
		return [][]any{
			{"sh1", "n1", 1500 * time.Millisecond, int32(3), "0/3000148", []string{"a", "b"}, since},
			{"sh1", "n2", nil, int32(0), nil, nil, time.Time{}},
			{"sh2", "n3", time.Hour, int32(7), "1/0", []string{}, since},
		}, nil
	})
	return resolver{
		relations: relations{"neki.replicas": replicas},
		functions: map[string][]build.Function{
			"neki.replica_choice": {{
				Args: []uint32{datum.TextOID}, ArgNames: []string{"shard"}, Required: 1,
				Columns: []exec.Column{text("candidate")},
				Table: func(_ context.Context, env *exec.Env, args []datum.Datum) (exec.Source, error) {
					return exec.NewTable([]exec.Column{text("candidate")}, func(context.Context) ([][]any, error) {
						return [][]any{{args[0].Text() + "-" + env.User}}, nil
					}), nil
				},
			}},
			"__neki.twice": {{
				Args: []uint32{datum.Int4OID, datum.Int4OID}, ArgNames: []string{"n", "plus"}, Required: 1, Result: datum.Int4OID,
				Scalar: func(_ context.Context, _ *exec.Env, args []datum.Datum) (datum.Datum, error) {
					return datum.Int(2*args[0].Int() + args[1].Int()), nil
				},
			}},
		},
	}
}

func prepare(t *testing.T, sql string, params ...uint32) (*exec.Spec, error) {
	t.Helper()
	stmt, err := sqlparse.Parse(sql)
	if err != nil {
		t.Fatal(err)
	}
	return build.Query(stmt, nekiSchema(), params)
}

func run(t *testing.T, sql string, env *exec.Env) ([]string, error) {
	t.Helper()
	spec, err := prepare(t, sql)
	if err != nil {
		return nil, err
	}
	rows, err := spec.All(t.Context(), env)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, r := range rows {
		var cells []string
		for i, d := range r {
			text, err := datum.Format(spec.Columns()[i].Type.OID, d, &datum.Session{Zone: env.Zone})
			if err != nil {
				t.Fatal(err)
			}
			if d.IsNull() {
				text = "∅"
			}
			cells = append(cells, text)
		}
		out = append(out, strings.Join(cells, " "))
	}
	return out, nil
}

func TestRelationsOfGoRows(t *testing.T) {
	env := &exec.Env{User: "ann", Now: time.Unix(1e9, 0)}
	for _, tc := range []struct {
		sql  string
		want []string
	}{
		{"SELECT shard, max(lag) FROM neki.replicas GROUP BY 1 ORDER BY 2 DESC", []string{"sh2 01:00:00", "sh1 00:00:01.5"}},
		{
			"SELECT node, replay_lsn, groups, since FROM neki.replicas WHERE node <> 'n3'",
			[]string{"n1 0/3000148 {a,b} 2024-05-06 07:08:09+00", "n2 ∅ ∅ ∅"},
		},
		{"SELECT * FROM neki.replica_choice('sh1')", []string{"sh1-ann"}},
		{"SELECT r.node, c.candidate FROM neki.replicas r, neki.replica_choice(shard => r.shard) c WHERE connections > 5", []string{"n3 sh2-ann"}},
		// an argument left out is NULL, which this function takes for 0
		{"SELECT __neki.twice(21), __neki.twice(plus => 1, n => 2)", []string{"42 5"}},
	} {
		got, err := run(t, tc.sql, env)
		if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", tc.sql, err, diff)
		}
	}
}

func TestParameters(t *testing.T) {
	for _, tc := range []struct {
		sql   string
		given []uint32
		want  []uint32
		code  string
	}{
		{sql: "SELECT * FROM neki.replicas WHERE connections > $1 AND node = $2", want: []uint32{datum.Int4OID, datum.TextOID}},
		{sql: "SELECT $1", want: []uint32{datum.TextOID}},
		{sql: "SELECT $1::int + $1", want: []uint32{datum.Int4OID}},
		{sql: "SELECT $2 || 'x', $1 + 1.5", want: []uint32{datum.NumericOID, datum.TextOID}},
		{sql: "SELECT node FROM neki.replicas WHERE node = ANY ($1) LIMIT $2", want: []uint32{datum.TextArrayOID, datum.Int8OID}},
		{sql: "SELECT $1 + 1", given: []uint32{datum.Int8OID}, want: []uint32{datum.Int8OID}},
		{sql: "SELECT now() - $1 < lag FROM neki.replicas", want: []uint32{datum.TimestamptzOID}},
		{sql: "SELECT $2::int", code: pgerr.IndeterminateDatatype},
	} {
		spec, err := prepare(t, tc.sql, tc.given...)
		if pgerr.Code(err) != tc.code {
			t.Errorf("%s: %v", tc.sql, err)
			continue
		}
		if err == nil {
			if diff := cmp.Diff(tc.want, spec.ParamTypes()); diff != "" {
				t.Errorf("%s: %s", tc.sql, diff)
			}
		}
	}
}

func TestParameterValues(t *testing.T) {
	spec, err := prepare(t, "SELECT $1::int + 1, $2::text || '!', $3::interval")
	if err != nil {
		t.Fatal(err)
	}
	one, err := datum.ParseBinary(datum.Int4OID, binary.BigEndian.AppendUint32(nil, 41))
	if err != nil {
		t.Fatal(err)
	}
	env := &exec.Env{Params: []datum.Datum{one, datum.WireText([]byte("hi")), datum.WireText([]byte("1 day"))}}
	rows, err := spec.All(t.Context(), env)
	if err != nil {
		t.Fatal(err)
	}
	if got := rows[0]; got[0].Int() != 42 || got[1].Text() != "hi!" || got[2].Interval().Days != 1 {
		t.Errorf("got %v", got)
	}
	if _, err := spec.All(t.Context(), &exec.Env{}); pgerr.Code(err) != pgerr.ProtocolViolation {
		t.Errorf("without values: %v", err)
	}
}

func TestErrorsPointAtTheirCause(t *testing.T) {
	for _, tc := range []struct {
		sql, code, hint string
		position        int32
	}{
		{"SELECT  nod FROM neki.replicas", pgerr.UndefinedColumn, `Perhaps you meant to reference the column "node".`, 9},
		{"SELECT 'ä', nod FROM neki.replicas", pgerr.UndefinedColumn, `Perhaps you meant to reference the column "node".`, 13},
		{"SELECT * FROM neki.replcas", pgerr.UndefinedTable, `Perhaps you meant "neki.replicas".`, 15},
		{"SELECT 1 + 'x'", pgerr.InvalidTextRepresentation, "", 12},
		{"SELECT node, count(*) FROM neki.replicas", pgerr.GroupingError, "", 8},
		{"SELECT ln(2.0)", pgerr.FeatureNotSupported, "", 8},
		{
			"SELECT node FROM neki.replicas WHERE connections ~ 'x'", pgerr.UndefinedFunction,
			"No operator matches the given name and argument types. You might need to add explicit type casts.", 50,
		},
		{"SELECT node FROM neki.replicas WHERE lag > 'soon'", pgerr.InvalidDatetimeFormat, "", 44},
	} {
		_, err := prepare(t, tc.sql)
		var e *pgerr.Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %v", tc.sql, err)
			continue
		}
		if e.Code != tc.code || e.Position != tc.position || e.Hint != tc.hint {
			t.Errorf("%s: %s at %d, hint %q: %s", tc.sql, e.Code, e.Position, e.Hint, e.Message)
		}
	}
}

func TestBudget(t *testing.T) {
	for _, sql := range []string{
		"SELECT g FROM generate_series(1, 1000000) g ORDER BY g DESC",
		"SELECT g, count(*) FROM generate_series(1, 1000000) g GROUP BY g",
		"SELECT DISTINCT g FROM generate_series(1, 1000000) g",
		"SELECT a FROM generate_series(1, 3000) a JOIN generate_series(1, 1000000) b ON a = b",
		"WITH c AS (SELECT g FROM generate_series(1, 1000000) g) SELECT count(*) FROM c",
		"SELECT array_agg(g) FROM generate_series(1, 1000000) g",
		"SELECT string_agg(repeat('x', 1000), '') FROM generate_series(1, 20000) g",
		"WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t) SELECT * FROM t",
		"SELECT 1 IN (SELECT g FROM generate_series(1, 1000000) g)",
		"SELECT a FROM generate_series(1, 1000000) a EXCEPT SELECT 1",
		"SELECT row_number() OVER () FROM generate_series(1, 1000000) g",
	} {
		env := &exec.Env{Budget: exec.NewBudget(1 << 20)}
		_, err := run(t, sql, env)
		if pgerr.Code(err) != pgerr.OutOfMemory {
			t.Errorf("%s: %v", sql, err)
		}
		if used := env.Budget.Used(); used != 0 {
			t.Errorf("%s: %d bytes were not given back", sql, used)
		}
	}
}

func TestCancel(t *testing.T) {
	spec, err := prepare(t, "SELECT count(*) FROM generate_series(1, 2000) a, generate_series(1, 2000) b, generate_series(1, 2000) c")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := spec.All(ctx, &exec.Env{}); pgerr.Code(err) != pgerr.QueryCanceled {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestSpecIsShared(t *testing.T) {
	spec, err := prepare(t, "WITH c AS (SELECT * FROM neki.replicas) SELECT shard, count(*), (SELECT max(node) FROM c x WHERE x.shard = c.shard) FROM c GROUP BY shard ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	for range 8 {
		go func() {
			for range 20 {
				rows, err := spec.All(context.Background(), &exec.Env{})
				if err == nil && (len(rows) != 2 || rows[0][2].Text() != "n2") {
					err = errors.New("wrong rows")
				}
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestSourceIsTold checks what a relation learns of the query and of who asks.
func TestSourceIsTold(t *testing.T) {
	var got exec.Need
	source := exec.NewTableFunc([]exec.Column{text("a"), {Name: "n", Type: datum.Of(datum.Int4OID)}},
		func(_ context.Context, need exec.Need) ([][]any, error) {
			got = need
			return [][]any{{"x", 1}, {"y", 2}}, nil
		})
	stmt, err := sqlparse.Parse("SELECT n FROM neki.t WHERE a = $1 AND n > 0 AND 2 = n")
	if err != nil {
		t.Fatal(err)
	}
	spec, err := build.Query(stmt, relations{"neki.t": source}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := spec.All(t.Context(), &exec.Env{Params: []datum.Datum{datum.Text("y")}, Caller: "me"})
	if err != nil || len(rows) != 1 || rows[0][0].Int() != 2 {
		t.Errorf("rows %v, %v", rows, err)
	}
	if got.Env.Caller != "me" || len(got.Equal) != 2 || got.Equal[0].Column != 0 || got.Equal[0].Value.Text() != "y" ||
		got.Equal[1].Column != 1 || got.Equal[1].Value.Int() != 2 {
		t.Errorf("the source was told %+v", got)
	}
}
