package sqlparse

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"

	"neki/internal/pgerr"
)

// TestClassify holds the classification of every kind of statement against testdata/classify. Each case is one
// statement a line; -rewrite makes the answers anew, for review as a diff.
func TestClassify(t *testing.T) {
	datadriven.Walk(t, "testdata/classify", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var b strings.Builder
			for sql := range strings.Lines(d.Input) {
				sql = strings.TrimSpace(sql)
				s, err := Parse(sql)
				if err != nil {
					fmt.Fprintf(&b, "%s\n  error at %d: %v\n", sql, pgerr.From(err).Position, err)
					continue
				}
				fmt.Fprintf(&b, "%s\n  %s\n", sql, describe(s))
			}
			return b.String()
		})
	})
}

// describe writes what matters of a statement on one line.
func describe(s *Statement) string {
	parts := []string{s.Kind.String(), "tag " + s.Tag}
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+" "+value)
		}
	}
	add("effects", s.Effects.String())
	add("functions", join(s.Functions, func(f FuncRef) string { return fmt.Sprintf("%s/%d", f, f.NArgs) }))
	add("relations", join(s.Relations, func(r RelRef) string {
		text := r.String()
		if r.Alias != "" {
			text += " as " + r.Alias
		}
		if r.Write {
			text += "!"
		}
		return text
	}))
	if s.Params > 0 {
		add("params", fmt.Sprint(s.Params))
	}
	add("show", s.Show)
	add("set", describeSet(s.Set))
	add("tx", describeTx(s.Tx))
	add("config", join(s.SetConfigs, func(c SetConfig) string { return fmt.Sprintf("%+v", c) }))
	if s.Discard != nil {
		add("discard", fmt.Sprint(s.Discard.Target))
	}
	if s.Channel != nil {
		add("channel", fmt.Sprintf("%+v", *s.Channel))
	}
	return strings.Join(append(parts, describeNested(s)...), "; ")
}

func join[T any](items []T, text func(T) string) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = text(item)
	}
	return strings.Join(texts, ", ")
}

func describeSet(s *SetStmt) string {
	switch {
	case s == nil:
		return ""
	case s.All:
		return "all to default"
	case s.Special != SpecialNone:
		return fmt.Sprintf("special %d %s %s", s.Special, describeTx(s.Tx), s.Snapshot)
	}
	text := s.Name + " to default"
	if !s.Default {
		text = fmt.Sprintf("%s to %q", s.Name, s.Value)
	}
	if s.Local {
		text += " local"
	}
	if s.OneValueOnly() {
		text += " (too many values)"
	}
	return text
}

func describeTx(x *TxStmt) string {
	if x == nil {
		return ""
	}
	text := fmt.Sprintf("{isolation %q savepoint %q gid %q chain %t", x.Isolation, x.Savepoint, x.GID, x.Chain)
	if x.ReadOnly != nil {
		text += fmt.Sprintf(" readonly %t", *x.ReadOnly)
	}
	if x.Deferrable != nil {
		text += fmt.Sprintf(" deferrable %t", *x.Deferrable)
	}
	return text + "}"
}

func describeNested(s *Statement) (parts []string) {
	inner := func(q *Statement) string {
		if q == nil {
			return ""
		}
		return fmt.Sprintf(" [%s: %s]", q.Text, describe(q))
	}
	if e := s.Explain; e != nil {
		parts = append(parts, fmt.Sprintf("explain %+v analyze %t format %s offset %d%s", e.Options, e.Analyze, e.Format, e.Offset, inner(e.Query)))
	}
	if p := s.Prepared; p != nil {
		params := join(p.Params, func(sp Span) string { return sp.Of(s.Text) })
		parts = append(parts, fmt.Sprintf("prepared %q all %t types %q params (%s) offset %d%s", p.Name, p.All, p.Types, params, p.Offset, inner(p.Query)))
	}
	if c := s.Cursor; c != nil {
		parts = append(parts, fmt.Sprintf("cursor %q all %t hold %t move %t offset %d%s", c.Name, c.All, c.Hold, c.Move, c.Offset, inner(c.Query)))
	}
	if c := s.Copy; c != nil {
		parts = append(parts, fmt.Sprintf("copy from %t client %t program %t file %q columns %q options %+v where %t%s",
			c.From, c.Client, c.Program, c.Filename, c.Columns, c.Options, c.Where, inner(c.Query)))
	}
	if c := s.Call; c != nil {
		args := join(c.Args, func(a CallArg) string {
			return fmt.Sprintf("%s=%q kind %d cast %q constant %t", a.Name, a.Value, a.Kind, a.Cast, a.Constant)
		})
		parts = append(parts, fmt.Sprintf("call %s (%s)", qualified(c.Schema, c.Name), args))
	}
	return parts
}

func TestReadOnly(t *testing.T) {
	volatile := func(f FuncRef) bool { return f.Name == "do_things" || f.Name == "random" && f.Schema == "public" }
	for sql, want := range map[string]bool{
		"select 1": true, "select random()": true, "select public.random()": false, "select do_things()": false,
		"select * from t for update": false, "select a into b from c": false, "explain select do_things()": true,
		"explain analyze select do_things()": false, "explain (analyze off) delete from t": true,
		"explain analyze delete from t": false, "show all": true, "values (1)": true, "table t": true,
		"with x as (delete from t returning *) select * from x": false, "copy t to stdout": true,
		"copy (select do_things()) to stdout": false, "copy t from stdin": false, "execute p": false, "do 'x'": false,
		"declare c cursor for select 1": true, "declare c cursor for select * from t for share": false,
		"begin": true, "commit": true, "set a.b = 1": true, "select nextval('s')": false, "": true,
		"select pg_catalog.pg_try_advisory_xact_lock(1)": false, "listen a": false, "fetch c": true, "call p()": false,
		"select lo_get(1)": true, "select lo_put(1, 0, 'a')": false, "vacuum": false, "prepare transaction 'a'": false,
	} {
		s, err := Parse(sql)
		if err != nil {
			t.Errorf("%s: %v", sql, err)
			continue
		}
		if got := s.ReadOnly(volatile); got != want {
			t.Errorf("%s: ReadOnly = %t, want %t", sql, got, want)
		}
	}
	s, err := Parse("select f()")
	if err != nil {
		t.Fatal(err)
	}
	if s.ReadOnly(nil) {
		t.Error("a function nothing is known of counts as harmless")
	}
}

func TestQuote(t *testing.T) {
	idents := map[string]string{
		"a": "a", "A": `"A"`, "a b": `"a b"`, `a"b`: `"a""b"`, "select": `"select"`, "": `""`, "1a": `"1a"`, "_a1": "_a1",
		"abort": "abort", "é": `"é"`, "json_table": `"json_table"`,
	}
	for in, want := range idents {
		if diff := cmp.Diff(want, QuoteIdent(in)); diff != "" {
			t.Errorf("QuoteIdent(%q): %s", in, diff)
		}
	}
	literals := map[string]string{"": "''", "a'b": "'a''b'", `a\b'`: `E'a\\b'''`}
	for in, want := range literals {
		if diff := cmp.Diff(want, QuoteLiteral(in)); diff != "" {
			t.Errorf("QuoteLiteral(%q): %s", in, diff)
		}
	}
}
