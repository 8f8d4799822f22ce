package plan

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"neki/catalog"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// schemaText makes a RelTable of CREATE statements, as the authoritative shard would have it.
type schemaText struct {
	builder *relBuilder
	oid     uint32
	types   map[string]uint32
}

var testTypes = map[string]uint32{
	"int2": datum.Int2OID, "int4": datum.Int4OID, "int8": datum.Int8OID, "text": datum.TextOID, "varchar": datum.VarcharOID,
	"numeric": datum.NumericOID, "float8": datum.Float8OID, "float4": datum.Float4OID, "bool": datum.BoolOID, "uuid": datum.UUIDOID,
	"date": datum.DateOID, "timestamp": datum.TimestampOID, "timestamptz": datum.TimestamptzOID, "bytea": datum.ByteaOID,
	"bpchar": datum.BPCharOID, "jsonb": datum.JSONBOID, "json": datum.JSONOID, "interval": datum.IntervalOID,
}

func readSchema(text string) (*RelTable, error) {
	s := &schemaText{builder: newRelBuilder(), oid: 20000, types: map[string]uint32{}}
	for name, oid := range testTypes {
		s.types[name] = oid
	}
	spans, err := sqlparse.Split(nil, text)
	if err != nil {
		return nil, err
	}
	for _, span := range spans {
		st, err := sqlparse.Parse(text[span.Start:span.End])
		if err != nil {
			return nil, err
		}
		if err := s.create(st); err != nil {
			return nil, err
		}
	}
	return s.builder.finish(0), nil
}

func (s *schemaText) create(st *sqlparse.Statement) error {
	s.oid++
	n := st.Tree.Stmts[0].Stmt
	switch {
	case n.GetCreateStmt() != nil:
		return s.table(n.GetCreateStmt())
	case n.GetViewStmt() != nil:
		return s.view(n.GetViewStmt())
	case n.GetCreateEnumStmt() != nil:
		name := lastName(n.GetCreateEnumStmt().TypeName)
		s.types[name] = s.oid
		return s.add("type", map[string]any{"OID": s.oid, "Schema": "public", "Name": name, "Kind": "e"})
	}
	return fmt.Errorf("no schema can have %s", st.Tag)
}

func (s *schemaText) add(what string, document map[string]any) error {
	text, err := json.Marshal(map[string]any{what: document})
	if err != nil {
		return err
	}
	return s.builder.add(text)
}

func (s *schemaText) view(v *sqlparse.ViewStmt) error {
	text, err := sqlparse.DeparseNode(v.Query)
	if err != nil {
		return err
	}
	var columns []map[string]any
	for i, t := range v.Query.GetSelectStmt().TargetList {
		name := firstOf(t.GetResTarget().Name, figureName(t.GetResTarget().Val))
		columns = append(columns, map[string]any{"Name": name, "Num": i + 1, "OID": datum.TextOID, "Typmod": -1, "Deterministic": true})
	}
	return s.add("rel", map[string]any{"OID": s.oid, "Schema": "public", "Name": v.View.Relname, "Kind": "v", "View": text, "Columns": columns})
}

func (s *schemaText) table(c *sqlparse.CreateStmt) error {
	var columns, keys []map[string]any
	number := map[string]int{}
	for _, e := range c.TableElts {
		if con := e.GetConstraint(); con != nil {
			keys = append(keys, s.key(con, number))
			continue
		}
		def := e.GetColumnDef()
		number[def.Colname] = len(columns) + 1
		col := map[string]any{"Name": def.Colname, "Num": len(columns) + 1, "Typmod": -1, "Deterministic": true}
		name := lastName(def.TypeName.Names)
		if name == "serial" || name == "bigserial" {
			seq := c.Relation.Relname + "_" + def.Colname + "_seq"
			col["Default"], col["Sequence"], name = "nextval('public."+seq+"'::regclass)", []string{"public", seq}, "int8"
		}
		oid := s.types[name]
		if oid == 0 {
			return fmt.Errorf("type %s", name)
		}
		col["OID"] = oid
		if isText(oid) || oid == datum.BPCharOID {
			col["Collation"], col["CollationName"] = 100, "C"
		}
		if def.CollClause != nil {
			col["Collation"], col["CollationName"] = 999, lastName(def.CollClause.Collname)
		}
		for _, n := range def.Constraints {
			if key := s.constrain(col, n.GetConstraint()); key {
				keys = append(keys, map[string]any{"Primary": n.GetConstraint().Contype == sqlparse.ConstrType_CONSTR_PRIMARY, "Columns": []int{len(columns) + 1}})
			}
		}
		columns = append(columns, col)
	}
	for _, k := range keys {
		for _, num := range k["Columns"].([]int) {
			if k["Primary"].(bool) {
				columns[num-1]["NotNull"] = true
			}
		}
	}
	return s.add("rel", map[string]any{
		"OID": s.oid, "Schema": firstOf(c.Relation.Schemaname, "public"), "Name": c.Relation.Relname, "Kind": "r", "Columns": columns, "Keys": keys,
	})
}

func (s *schemaText) key(con *sqlparse.Constraint, number map[string]int) map[string]any {
	var nums []int
	for _, name := range nameParts(con.Keys) {
		nums = append(nums, number[name])
	}
	return map[string]any{"Primary": con.Contype == sqlparse.ConstrType_CONSTR_PRIMARY, "Columns": nums}
}

func (s *schemaText) constrain(col map[string]any, con *sqlparse.Constraint) (key bool) {
	switch con.Contype { //nolint:exhaustive // the rest does not matter to planning
	case sqlparse.ConstrType_CONSTR_NOTNULL:
		col["NotNull"] = true
	case sqlparse.ConstrType_CONSTR_DEFAULT:
		text, _ := sqlparse.DeparseNode(selectOf(con.RawExpr))
		col["Default"] = strings.TrimPrefix(text, "SELECT ")
	case sqlparse.ConstrType_CONSTR_IDENTITY:
		col["Identity"], col["Sequence"] = 'a', []string{"public", col["Name"].(string) + "_ident"}
	case sqlparse.ConstrType_CONSTR_PRIMARY, sqlparse.ConstrType_CONSTR_UNIQUE:
		return true
	}
	return false
}

func selectOf(e *sqlparse.Node) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_SelectStmt{SelectStmt: &sqlparse.SelectStmt{
		LimitOption: sqlparse.LimitOption_LIMIT_OPTION_DEFAULT, Op: sqlparse.SetOperation_SETOP_NONE,
		TargetList: []*sqlparse.Node{{Node: &sqlparse.Node_ResTarget{ResTarget: &sqlparse.ResTarget{Val: e}}}},
	}}}
}

// shardedSession plans under a topology and a schema.
type shardedSession struct {
	planner *Planner
	snap    *catalog.Snapshot
	schema  *RelTable
	env     *Env
}

func newShardedSession(t testing.TB, topology, schema string) *shardedSession {
	t.Helper()
	pl, err := New(Options{Virtual: names{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pl.Close)
	table, err := readSchema(schema)
	if err != nil {
		t.Fatal(err)
	}
	s := &shardedSession{planner: pl, schema: table, snap: snapshotWith(t, topology)}
	rels := NewRelCatalog(nil, nil)
	rels.table.Store(table)
	s.env = NewEnv("db", "alice", DefaultSearchPath, loaded(t)).WithRelations(rels)
	return s
}

// describe writes a plan as text.
func (s *shardedSession) describe(text string, v Values) string {
	parts, err := s.planner.PlanAll(nil, []byte(text), s.snap, s.env)
	if err != nil {
		return describeError(err)
	}
	p := parts[0].Plan
	if p.Explain != nil && p.Explain.Neki {
		return strings.Join(Render(p.Explain, Explained{Target: "primary"}), "\n") + "\n"
	}
	v.Text, v.Session = []byte(text), &datum.Session{}
	var b strings.Builder
	fmt.Fprintf(&b, "%s", p.Route.Kind)
	shards, err := p.Shards(nil, &v)
	if err != nil {
		return describeError(err)
	}
	fmt.Fprintf(&b, " -> %s\n", strings.Join(shards, " "))
	if p.SpreadByText && len(shards) > 1 {
		if p, err = s.planner.Spread(p, []byte(text), s.snap, s.env); err != nil {
			return b.String() + describeError(err)
		}
	}
	if p.Spread != nil {
		b.WriteString(p.Spread.String())
	}
	if in := p.CopyIn; in != nil {
		fmt.Fprintf(&b, "rows: key is field %d\n", in.Key.At+1)
		if in.Values != nil {
			fmt.Fprintf(&b, "%s\nas: %s\n", in.Values, in.SQL)
		}
	}
	if p.CopyOut != nil {
		b.WriteString("rows are written by the gateway\n")
	}
	return b.String()
}

func describeError(err error) string {
	e := pgerr.From(err)
	out := fmt.Sprintf("%s: %s\n", e.Code, e.Message)
	if e.Detail != "" {
		out += "DETAIL: " + e.Detail + "\n"
	}
	if e.Hint != "" {
		out += "HINT: " + e.Hint + "\n"
	}
	return out
}

// TestShardedPlans: golden files of plans over shards.
func TestShardedPlans(t *testing.T) {
	datadriven.Walk(t, "testdata/sharded", func(t *testing.T, path string) {
		var topology, schema string
		var s *shardedSession
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "topology":
				topology, s = d.Input, nil
				return ""
			case "schema":
				schema, s = d.Input, nil
				return ""
			}
			if s == nil {
				s = newShardedSession(t, topology, schema)
			}
			return s.command(t, d)
		})
	})
}

func (s *shardedSession) command(t *testing.T, d *datadriven.TestData) string {
	var v Values
	for _, arg := range d.CmdArgs {
		if arg.Key == "params" {
			for _, val := range arg.Vals {
				if val == "null" {
					v.Params = append(v.Params, nil)
				} else {
					v.Params = append(v.Params, []byte(val))
				}
			}
		}
	}
	if d.Cmd != "plan" {
		t.Fatalf("unknown command %s", d.Cmd)
	}
	return s.describe(d.Input, v)
}

func snapshotWith(t testing.TB, topology string) *catalog.Snapshot {
	t.Helper()
	top, problems := catalog.ParseTopology([]byte(topology))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	snap := &catalog.Snapshot{PlanVersion: 1}
	for _, uid := range []string{"s1", "s2", "s3", "s4"} {
		snap.Shards = append(snap.Shards, catalog.Shard{UID: uid, Authoritative: uid == "s1"})
	}
	return snap.WithTopology(top)
}

// TestKeysOfOneStatement: texts that differ in their key alone share a plan, and finding the shard costs no allocation.
func TestKeysOfOneStatement(t *testing.T) {
	s := newShardedSession(t, routeTopology, "CREATE TABLE t (k int4 PRIMARY KEY, v text)")
	var m Memo
	text := []byte("SELECT v FROM t WHERE k = 12")
	parts, err := s.planner.PlanAll(nil, text, s.snap, s.env)
	if err != nil {
		t.Fatal(err)
	}
	p := parts[0].Plan
	s.planner.cache.plans.Wait()
	m.Keep(p, s.env)
	seen := map[string]bool{}
	dst := make([]string, 0, 4)
	v := Values{Session: &datum.Session{}}
	for _, other := range []string{"12", "13", "7", "100", "8", "99999"} {
		v.Text = []byte("SELECT v FROM t WHERE k = " + other)
		if s.planner.Recall(&m, v.Text, s.snap, s.env) != p {
			t.Fatalf("k = %s has another plan", other)
		}
		shards, err := p.Shards(dst[:0], &v)
		if err != nil || len(shards) != 1 {
			t.Fatal(shards, err)
		}
		seen[shards[0]] = true
		if n := testing.AllocsPerRun(100, func() { _, _ = p.Shards(dst[:0], &v) }); n != 0 && !raceEnabled {
			t.Errorf("%v allocations", n)
		}
	}
	if len(seen) < 2 {
		t.Error("all keys on one shard")
	}
	p, err = s.planner.Plan([]byte("SELECT v FROM t WHERE k = $1"), s.snap, s.env)
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []int16{0, 1} {
		v = Values{Session: v.Session, Params: [][]byte{{0, 0, 0, 12}}, Formats: []int16{format}, OIDs: []uint32{datum.Int4OID}}
		if format == 0 {
			v.Params[0] = []byte("12")
		}
		shards, err := p.Shards(dst[:0], &v)
		if err != nil || len(shards) != 1 || shards[0] != "s3" {
			t.Error(shards, err)
		}
		if n := testing.AllocsPerRun(100, func() { _, _ = p.Shards(dst[:0], &v) }); n != 0 && !raceEnabled {
			t.Errorf("%v allocations", n)
		}
	}
}

const routeTopology = `{"authoritative_shard_group": "main", "default_shard_group": "main", "shard_groups": [
 {"uid": "main", "key_ranges": [{"shard_uid": "s1"}]},
 {"uid": "g", "key_ranges": [{"shard_uid": "s1", "end": "4000000000000000"},
  {"shard_uid": "s2", "start": "4000000000000000", "end": "8000000000000000"},
  {"shard_uid": "s3", "start": "8000000000000000", "end": "c000000000000000"}, {"shard_uid": "s4", "start": "c000000000000000"}]}],
 "shard_indexes": {"by_k": {"type": "xxhash", "columns": ["k"]}},
 "databases": {"db": {"schemas": {"public": {"tables": {"t": {"shard_group": "g", "shard_index": "by_k"}}}}}}}`
