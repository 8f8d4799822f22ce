package sqlparse

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSketch(t *testing.T) {
	table := func(tag, schema, name string) Outline {
		return Outline{Kind: KindDDL, Tag: tag, Relation: RelRef{Schema: schema, Name: name, Write: true}}
	}
	for sql, want := range map[string]Outline{
		"CREATE TABLE t (a int, b int GENERATED ALWAYS AS (a) VIRTUAL)":     table("CREATE TABLE", "", "t"),
		`create unlogged table if not exists S."T""x" (a int not enforced)`: table("CREATE TABLE", "s", `T"x`),
		"alter table if exists only a.b.c add not null d":                   table("ALTER TABLE", "b", "c"),
		"/* x */ drop table t":      table("DROP TABLE", "", "t"),
		"create view v as select 1": {Kind: KindDDL},
		"create table":              {Kind: KindDDL, Tag: "CREATE TABLE"},
		"merge into t using u on true when matched then delete returning *": {Kind: KindMerge},
		"vacuum only t":           {Kind: KindVacuum},
		"select * from Neki.x":    {Kind: KindSelect, Neki: true},
		`foo "__neki"`:            {Kind: KindOther, Neki: true},
		"select 'neki', \"Neki\"": {Kind: KindSelect},
		`"select" 1`:              {Kind: KindOther},
		"":                        {Kind: KindOther},
		"'open":                   {Kind: KindOther},
		"with x as (select 1) y":  {Kind: KindOther},
	} {
		if diff := cmp.Diff(want, Sketch(sql)); diff != "" {
			t.Errorf("%s: %s", sql, diff)
		}
	}
}

// TestSketchAgreesWithParse: what both can read, both read alike.
func TestSketchAgreesWithParse(t *testing.T) {
	for _, text := range corpus(t) {
		s, err := Parse(text)
		o := Sketch(text)
		if err != nil || s.Kind == KindEmpty || o.Kind == KindOther {
			continue
		}
		prefix := s.Kind == KindPrepareTransaction
		if o.Kind != s.Kind && !prefix && s.Tag != "SET CONSTRAINTS" {
			t.Errorf("%s: kind %v, Parse says %v", text, o.Kind, s.Kind)
		}
		if o.Tag != "" && o.Relation.Name != "all" && len(s.Relations) > 0 {
			found := false
			for _, r := range s.Relations {
				found = found || r.Schema == o.Relation.Schema && r.Name == o.Relation.Name && r.Write
			}
			if !found {
				t.Errorf("%s: relation %v, Parse says %v", text, o.Relation, s.Relations)
			}
		}
	}
}
