package pooler

import "testing"

// TestSchemaIsReadAgain: what DDL through the gateway has changed is known once its transaction has ended, and not before.
func TestSchemaIsReadAgain(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	conn := g.connect("")
	known := func(name string) bool {
		t.Helper()
		table, err := g.server.dbs.get("postgres").relations.Table()
		if err != nil {
			t.Fatal(err)
		}
		return table.Rel("public", name, nil) != nil
	}
	for _, step := range []struct {
		sql  string
		want map[string]bool
	}{
		{"SELECT 1", map[string]bool{"seen_a": false}},
		{"CREATE TABLE seen_a (k int)", map[string]bool{"seen_a": true}},
		{"BEGIN", nil},
		{"CREATE TABLE seen_b (k int)", map[string]bool{"seen_a": true, "seen_b": false}},
		{"COMMIT", map[string]bool{"seen_b": true}},
		{"SELECT 1 AS k INTO seen_c", map[string]bool{"seen_c": true}},
		{"DO 'BEGIN CREATE TABLE seen_d (k int); END'", map[string]bool{"seen_d": true}},
		{"DROP TABLE seen_a, seen_b, seen_c, seen_d", map[string]bool{"seen_a": false, "seen_d": false}},
	} {
		if _, err := conn.Exec(t.Context(), step.sql); err != nil {
			t.Fatalf("%s: %v", step.sql, err)
		}
		for name, want := range step.want {
			if known(name) != want {
				t.Errorf("after %s: %s is known: %t", step.sql, name, !want)
			}
		}
	}
}
