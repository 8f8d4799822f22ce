package main

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

func TestBarLine(t *testing.T) {
	for _, c := range []struct {
		op    operation
		width int
		want  string
	}{
		{operation{State: "pending"}, 80, "[------------------------]   0 % waits for its turn"},
		{operation{State: "running", Progress: .5, Step: "copies"}, 80, "[############------------]  50 % copies"},
		{
			operation{State: "running", Progress: .25, Step: "copies", BytesDone: 1536, BytesTotal: 3 << 30},
			80,
			"[######------------------]  25 % 1.5 KB of 3.0 GB copies",
		},
		{operation{State: "running", Step: "waits", Error: "no answer"}, 80, "[------------------------]   0 % waits after: no answer"},
		{operation{State: "running", Progress: 1, Step: "a long story"}, 40, "[########################] 100 % a long "},
	} {
		if got := barLine(&c.op, c.width); got != c.want {
			t.Errorf("%+v:\n%q, not\n%q", c.op, got, c.want)
		}
	}
}

// Without a terminal each step is a line, once.
func TestDisplayOfSteps(t *testing.T) {
	var out bytes.Buffer
	d := newDisplay(&out)
	for _, op := range []operation{
		{State: "pending"},
		{State: "running", Progress: .1, Step: "one"},
		{State: "running", Progress: .2, Step: "one"},
		{State: "running", Progress: .5, Step: "two"},
		{State: "done", Progress: 1, Step: "three"},
	} {
		d.update(&op)
	}
	d.end()
	if diff := cmp.Diff(" 10 %  one\n 50 %  two\n", out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestRowsAsTableAndJSON(t *testing.T) {
	text := func(s string) []byte { return []byte(s) }
	result := &pgconn.Result{
		FieldDescriptions: []pgconn.FieldDescription{
			{Name: "name", DataTypeOID: pgtype.TextOID},
			{Name: "n", DataTypeOID: pgtype.Int4OID},
			{Name: "ok", DataTypeOID: pgtype.BoolOID},
			{Name: "list", DataTypeOID: pgtype.TextArrayOID},
			{Name: "doc", DataTypeOID: pgtype.JSONBOID},
			{Name: "x", DataTypeOID: pgtype.Float8OID},
		},
		Rows: [][][]byte{
			{text(`a"b`), text("5"), text("t"), text(`{one,"two words"}`), text(`{"a": 1}`), text("NaN")}, {nil, nil, text("f"), nil, nil, nil},
		},
	}
	var table, list bytes.Buffer
	if err := writeTable(&table, result); err != nil {
		t.Fatal(err)
	}
	if err := writeJSONRows(&list, pgtype.NewMap(), result); err != nil {
		t.Fatal(err)
	}
	const wantTable = "NAME  N  OK  LIST               DOC       X\na\"b   5  t   {one,\"two words\"}  {\"a\": 1}  NaN\n-     -  f   -                  -         -\n"
	if diff := cmp.Diff(wantTable, table.String()); diff != "" {
		t.Error(diff)
	}
	const wantList = `[
  {"name": "a\"b", "n": 5, "ok": true, "list": ["one","two words"], "doc": {"a": 1}, "x": "NaN"},
  {"name": null, "n": null, "ok": false, "list": null, "doc": null, "x": null}
]
`
	if diff := cmp.Diff(wantList, list.String()); diff != "" {
		t.Error(diff)
	}
}

func TestCallText(t *testing.T) {
	sql, values := callText("fence", []sqlArgument{{"node", "n1"}, {"reason", nil}, {"wait", false}})
	if want := `CALL neki.fence("node" => $1, "wait" => $2)`; sql != want || len(values) != 2 || values[1] != false {
		t.Errorf("%s %v", sql, values)
	}
}
