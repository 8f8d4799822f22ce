package pooler

import (
	"slices"
	"strings"
	"testing"

	"neki/catalog"
)

// TestShardsThatJoin: a topology that gives a shard rows of tables which it does not have is told what is missing there.
func TestShardsThatJoin(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	simple(t, s.connect(""), "SELECT 1")
	s.onShard(2, "DROP TABLE home; CREATE TABLE child (k int)")
	check := func(change func(document string) string) (out []string) {
		t.Helper()
		next, problems := catalog.ParseTopology([]byte(change(strings.ReplaceAll(twoShards, `"DB"`, `"`+s.dbname+`"`))))
		if next == nil || len(problems) > 0 {
			t.Fatal(problems)
		}
		for _, p := range s.server.Facts().CheckTopology(t.Context(), next) {
			if p.Hint == "" {
				t.Errorf("%s has no hint", p)
			}
			out = append(out, p.String())
		}
		return out
	}
	same := func(document string) string { return document }
	joined := func(document string) string { // home goes to both, as a copy
		return strings.Replace(document, `"ref": {"shard_groups": ["data"]}`, `"ref": {"shard_groups": ["data"]}, "home": {"shard_groups": ["data"]}`, 1)
	}
	if got := check(same); len(got) > 0 {
		t.Errorf("as it is: %q", got)
	}
	want := []string{"$.databases." + s.dbname + `.schemas.public.tables.home: it is missing on shard "sh2", which is to have rows of it`}
	if got := check(joined); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	s.onShard(2, "CREATE TABLE home (id int PRIMARY KEY, v text)")
	if got := check(joined); len(got) > 0 {
		t.Errorf("when it is there: %q", got)
	}
}

// TestSchemaReadWhileLocked: a session that has emptied a table with defaults plans the next statement on it although the schema
// has changed meanwhile, as a parallel pg_restore does: what is read of the schema waits for no table.
func TestSchemaReadWhileLocked(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	a, b := s.connect(""), s.connect("")
	simple(t, a, "BEGIN; TRUNCATE w")
	simple(t, b, "CREATE TABLE meanwhile (id int PRIMARY KEY, at timestamptz DEFAULT now())")
	if got := copiedIn(a, "COPY w (name) FROM STDIN", strings.NewReader("x\ny\nz\n")); got != "COPY 3" {
		t.Error(got)
	}
	simple(t, a, "INSERT INTO w (name) VALUES ('1'), ('2'), ('3')")
	simple(t, a, "COMMIT")
	if got := one(t, b, "SELECT count(*) FROM w WHERE at <= now()"); got != "6" {
		t.Errorf("%s rows", got)
	}
}
