package build_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"neki/exec"
	"neki/exec/build"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/internal/testpg"
	"neki/sqlparse"
)

// relations are the tables that both engines have.
type relations map[string]exec.Source

func (r relations) Resolve(schema, name string) (exec.Source, bool) {
	s, ok := r[schema+"."+name]
	return s, ok
}

func (r relations) RelationNames(schema string) []string {
	var out []string
	for name := range r {
		if rest, ok := strings.CutPrefix(name, schema+"."); ok {
			out = append(out, rest)
		}
	}
	return out
}

const oracleZone = "Europe/Berlin"

// oracleTables makes the tables in Postgres; their rows are read back for the engine.
const oracleTables = `
CREATE SCHEMA neki;
CREATE TABLE neki.replicas (shard text, node text, role varchar(10), n int4, small int2, big int8, ok bool, lag interval,
  lsn pg_lsn, weight numeric, load float8, since timestamptz, at timestamp, day date, tags text[], nums int4[], nm name, id uuid, doc jsonb);
INSERT INTO neki.replicas VALUES
 ('sh1','n1','primary',1,1,10,true,'0','0/1000','1.50',0.5,'2024-03-01 12:00:00.25+00','2024-03-01 12:00:00','2024-02-29','{a,b}','{1,2,3}','nm1','00000000-0000-0000-0000-000000000001','{"a": 1, "b": {"c": [1, "x"]}}'),
 ('sh1','n2','replica',2,-3,20,true,'00:00:01.5','0/0FFF','2.25',1.25,'2024-03-31 00:30:00+00','2024-03-31 00:30:00','2024-03-31','{b,NULL,"x y"}','{3,NULL}','nm2','00000000-0000-0000-0000-000000000002','[1, 2.50, null]'),
 ('sh1','n3','rdonly',NULL,7,30,false,'2 days 03:04:05','0/0800',NULL,-0.75,'2023-12-31 23:59:59.999999+00','2023-12-31 23:59:59.999999','2023-12-31',NULL,NULL,'Nm3',NULL,NULL),
 ('sh2','n4','primary',4,100,-40,NULL,NULL,NULL,'-7.125',NULL,NULL,NULL,NULL,'{}','{}',NULL,'a0000000-0000-0000-0000-00000000000f','"str"'),
 ('sh2','n5','replica',4,NULL,9000000000,false,'-1 mons +2 days -03:00:00','1/0','10',1e20,'2000-01-01 00:00:00+00','2000-01-01 00:00:00','2000-01-01','{c}','{-5,5}','nm1',NULL,'{"a": "one"}'),
 ('sh3','n6','replica',-6,32767,NULL,true,'1 year 2 mons','0/1000','0.00',1.25,'2030-10-27 00:30:00+00','2030-10-27 01:30:00','1999-12-31','{"",a}','{7}','','00000000-0000-0000-0000-000000000001','true'),
 (NULL,'n7','',0,0,0,false,'1 day','FF/AB','100.0000',3,'2024-02-29 10:11:12.5+00','2024-02-29 10:11:12.5','2024-03-01','{A,a,Ä}','{2,2}','x','00000000-0000-0000-0000-0000000000ff','null'),
 ('Sh_4%','n8','replica',7,2,5,true,'24:00:00','0/2','3',0,'2024-02-29 10:11:12.5+00','2024-02-29 10:11:12.5','2024-03-01','{z}','{1}','y',NULL,'12');
CREATE TABLE neki.shards (shard text, profile text, n int4, ready bool, size numeric, prev text, opened timestamptz);
INSERT INTO neki.shards VALUES ('sh1','default',3,true,12.5,NULL,'2020-01-01 00:00:00+00'), ('sh2','big',2,false,1000,'sh1',NULL),
 ('sh3','default',1,true,NULL,'sh2','2021-06-15 12:30:00+00'), ('sh9','none',NULL,NULL,0,'sh1',NULL), ('sh3','dup',4,true,1,NULL,NULL);
CREATE TABLE neki.empty (a int4, b text);
`

type oracle struct {
	t      *testing.T
	conn   *pgx.Conn
	tables relations
	// typmods compares type modifiers too. Postgres sends those of folded constants, which need not be the plain rule's.
	typmods bool
}

func (o *oracle) column(name string, oid uint32, typmod int32) string {
	if !o.typmods {
		return fmt.Sprintf("%s:%d", name, oid)
	}
	return fmt.Sprintf("%s:%d:%d", name, oid, typmod)
}

func newOracle(t *testing.T) *oracle {
	t.Helper()
	server := testpg.Start(t)
	server.Exec("CREATE DATABASE oracle TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C.UTF-8'")
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, server.DSNFor(testpg.Superuser, testpg.Password, "oracle"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	setup := oracleTables +
		"SET search_path = neki, pg_catalog; SET timezone = '" + oracleZone + "'; SET statement_timeout = '5s'; SET jit = off"
	if _, err := conn.PgConn().Exec(ctx, setup).ReadAll(); err != nil {
		t.Fatal(err)
	}
	o := &oracle{t: t, conn: conn, tables: relations{}}
	for _, name := range []string{"replicas", "shards", "empty"} {
		o.load(name)
	}
	return o
}

// load reads a table's rows in binary, so that the engine starts from undecoded values.
func (o *oracle) load(name string) {
	o.t.Helper()
	res := o.conn.PgConn().ExecParams(o.t.Context(), "SELECT * FROM neki."+name, nil, nil, nil, []int16{1})
	var rows [][]any
	for res.NextRow() {
		row := make([]any, len(res.Values()))
		for i, v := range res.Values() {
			if v != nil {
				row[i] = datum.WireBinary(bytes.Clone(v))
			}
		}
		rows = append(rows, row)
	}
	var columns []exec.Column
	for _, f := range res.FieldDescriptions() {
		columns = append(columns, exec.Column{Name: f.Name, Type: datum.Type{OID: f.DataTypeOID, Typmod: f.TypeModifier}})
	}
	if _, err := res.Close(); err != nil {
		o.t.Fatal(err)
	}
	source := exec.NewTable(columns, func(context.Context) ([][]any, error) { return rows, nil })
	o.tables["."+name], o.tables["neki."+name] = source, source
}

// answer is what an engine said.
type answer struct {
	columns []string // name:oid[:typmod]
	rows    []string
	code    string
	text    string // of the error
}

func (o *oracle) postgres(sql string) answer {
	res := o.conn.PgConn().ExecParams(o.t.Context(), sql, nil, nil, nil, nil)
	var a answer
	for res.NextRow() {
		a.rows = append(a.rows, joinRow(res.Values()))
	}
	for _, f := range res.FieldDescriptions() {
		a.columns = append(a.columns, o.column(f.Name, f.DataTypeOID, f.TypeModifier))
	}
	if _, err := res.Close(); err != nil {
		var pg *pgconn.PgError
		if !errors.As(err, &pg) {
			o.t.Fatalf("%s: %v", sql, err)
		}
		return answer{code: pg.Code, text: fmt.Sprintf("%s (at %d)", pg.Message, pg.Position)}
	}
	return a
}

func joinRow(values [][]byte) string {
	var b strings.Builder
	for i, v := range values {
		if i > 0 {
			b.WriteString(" | ")
		}
		if v == nil {
			b.WriteString("∅")
		} else {
			b.WriteString(strings.ReplaceAll(string(v), "\n", `\n`))
		}
	}
	return b.String()
}

func (o *oracle) engine(sql string) (a answer) {
	fail := func(err error) answer {
		e := pgerr.From(err)
		return answer{code: e.Code, text: fmt.Sprintf("%s (at %d)", e.Message, e.Position)}
	}
	stmt, err := sqlparse.Parse(sql)
	if err != nil {
		return fail(err)
	}
	spec, err := build.Query(stmt, o.tables, nil)
	if err != nil {
		return fail(err)
	}
	zone, err := datum.ParseZone(oracleZone)
	if err != nil {
		o.t.Fatal(err)
	}
	env := &exec.Env{Now: time.Now(), Zone: zone, Budget: exec.NewBudget(64 << 20), User: "postgres", SessionUser: "postgres", Database: "oracle"}
	rows, err := spec.All(o.t.Context(), env)
	if err != nil {
		return fail(err)
	}
	if used := env.Budget.Used(); used != 0 {
		o.t.Errorf("%s: %d bytes of the budget were not given back", sql, used)
	}
	session := &datum.Session{Zone: zone, Now: env.Now}
	for _, c := range spec.Columns() {
		a.columns = append(a.columns, o.column(c.Name, c.Type.OID, c.Type.Typmod))
	}
	for _, r := range rows {
		values := make([][]byte, len(r))
		for i, d := range r {
			if d.IsNull() {
				continue
			}
			if values[i], err = datum.AppendText([]byte{}, spec.Columns()[i].Type.OID, d, session); err != nil {
				return fail(err)
			}
		}
		a.rows = append(a.rows, joinRow(values))
	}
	return a
}

// compare gives what differs, "" for nothing; refused says that the engine refused what Postgres can do.
func compare(pg, own answer, ordered bool) (diff string, refused bool) {
	if own.code == pgerr.FeatureNotSupported {
		return "", pg.code != own.code
	}
	if pg.code != own.code {
		return fmt.Sprintf("error\n  postgres %s %s\n  engine   %s %s", pg.code, pg.text, own.code, own.text), false
	}
	if !slices.Equal(pg.columns, own.columns) {
		return fmt.Sprintf("columns\n  postgres %v\n  engine   %v", pg.columns, own.columns), false
	}
	a, b := slices.Clone(pg.rows), slices.Clone(own.rows)
	if !ordered {
		slices.Sort(a)
		slices.Sort(b)
	}
	if !slices.Equal(a, b) {
		return fmt.Sprintf("rows\n  postgres %q\n  engine   %q", a, b), false
	}
	return "", false
}

func TestAgainstPostgres(t *testing.T) {
	o := newOracle(t)
	o.typmods = true
	text, err := os.ReadFile("testdata/queries.sql")
	if err != nil {
		t.Fatal(err)
	}
	mayRefuse := false
	for line := range strings.SplitSeq(string(text), "\n") {
		switch {
		case strings.HasPrefix(line, "-- refused"):
			mayRefuse = true
			continue
		case strings.HasPrefix(line, "--") || strings.TrimSpace(line) == "":
			continue
		}
		pg, own := o.postgres(line), o.engine(line)
		diff, refused := compare(pg, own, strings.Contains(line, "ORDER BY 1, 2"))
		if pg.code != "" && pg.code == own.code && pg.text != own.text {
			t.Errorf("%s\n  postgres %s\n  engine   %s", line, pg.text, own.text)
		}
		if diff != "" {
			t.Errorf("%s\n %s", line, diff)
		}
		if refused != mayRefuse && (refused || pg.code == "") {
			t.Errorf("%s\n refused: %v (%s)", line, refused, own.text)
		}
	}
}
