package adminsql

import (
	"context"
	"testing"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// knownEmpty are the columns in which the empty string is a value: __neki.shard is empty by default, and functions
// without arguments exist.
var knownEmpty = map[string]bool{"settings.value": true, "settings.default": true, "list_metafuncs.arguments": true}

// exampleArgs are arguments of the functions that take some.
var exampleArgs = map[string][]any{
	"replica_choice": {"sh1"}, "wait_for_data_topology": {int64(2)}, "set_data_topology": {fixtureTopology, true, ""},
	"check_data_topology": {"{}"},
}

// TestRowsFitColumns reads every relation and function: each row has a value of the right Go type for each column, and
// each relation of the fixture has rows.
func TestRowsFitColumns(t *testing.T) {
	schema := newFixture(t).schema()
	for _, r := range schema.Relations() {
		if r.overloads != nil {
			continue // testdata/topology.txt calls it
		}
		rows, err := r.Rows(t.Context(), people["vera"], exampleArgs[r.Name]...)
		if err != nil {
			t.Errorf("%s: %v", r.FullName(), err)
		}
		if len(rows) == 0 {
			t.Errorf("%s has no rows", r.FullName())
		}
		for _, row := range rows {
			if len(row) != len(r.Columns) {
				t.Fatalf("%s: %d values for %d columns", r.FullName(), len(row), len(r.Columns))
			}
			for i, c := range r.Columns {
				if _, err := datum.FromGo(c.Type, row[i]); err != nil {
					t.Errorf("%s.%s = %T %v: %v", r.FullName(), c.Name, row[i], row[i], err)
				}
				if row[i] == "" && !knownEmpty[r.Name+"."+c.Name] {
					t.Errorf("%s.%s is the empty string, not NULL", r.FullName(), c.Name)
				}
			}
		}
	}
}

// TestDefinitions holds every name, type and comment to the rules of the registry.
func TestDefinitions(t *testing.T) {
	schema := New(Inputs{})
	names := map[string]bool{}
	unique := func(name, comment string) {
		if names[name] || comment == "" {
			t.Errorf("%s is defined twice or has no comment", name)
		}
		names[name] = true
	}
	for _, r := range schema.Relations() {
		unique(r.FullName(), r.Comment)
		for _, c := range r.Columns {
			unique(r.FullName()+"."+c.Name, c.Comment)
			if TypeName(c.Type) == "" {
				t.Errorf("%s.%s: type %d has no name", r.FullName(), c.Name, c.Type)
			}
		}
	}
	for _, p := range schema.Procedures() {
		unique("procedure "+p.Name, p.Comment)
		for _, a := range p.Args {
			unique("procedure "+p.Name+"."+a.Name, a.Comment)
		}
	}
}

// TestMissingInputs: a process that lacks the facts says so; it neither panics nor shows nothing.
func TestMissingInputs(t *testing.T) {
	schema := New(Inputs{})
	for _, r := range schema.Relations() {
		if r.overloads != nil {
			continue
		}
		_, err := r.Rows(t.Context(), people["postgres"], exampleArgs[r.Name]...)
		switch r.Name {
		case "settings", "list_metafuncs": // need no input
			if err != nil {
				t.Errorf("%s: %v", r.Name, err)
			}
		default:
			if pgerr.Code(err) != pgerr.ObjectNotInPrerequisiteState {
				t.Errorf("%s: %v", r.Name, err)
			}
		}
	}
	for _, p := range schema.Procedures() {
		c := &call{args: []any{"gateway", "a", "b", false}, notice: func(*pgerr.Error) {}}
		if err := p.run(context.Background(), c); pgerr.Code(err) != pgerr.ObjectNotInPrerequisiteState {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
}
