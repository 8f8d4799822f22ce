package regress

import (
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"neki/regress/plainpg"
	"neki/regress/psqldiff"
)

// TestSameAsPostgres runs the scripts of diff/ on a plain Postgres and through the gateway: the same must be printed.
func TestSameAsPostgres(t *testing.T) {
	c := cluster(t)
	server := startPlain(t)
	scripts, err := psqldiff.Scripts("diff")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("scripts: %v, %v", scripts, err)
	}
	dir, err := filepath.Abs("diff")
	if err != nil {
		t.Fatal(err)
	}
	r := psqldiff.Runner{
		Psql: filepath.Join(binDir(t), "psql"), Dir: dir, Out: t.TempDir(), Timeout: time.Minute,
		Masks: []psqldiff.Mask{psqldiff.ProcessIDs, psqldiff.Sources},
		Env:   []string{"PGTZ=UTC", "LC_ALL=C"}, Args: []string{"-v", "VERBOSITY=default"},
	}
	results, err := r.Compare(t.Context(), psqldiff.Target{Name: "direct", Env: []string{
		"PGHOST=127.0.0.1", "PGPORT=" + strconv.Itoa(server.Port), "PGUSER=" + plainpg.Superuser,
		"PGPASSWORD=" + plainpg.Password, "PGDATABASE=postgres", "PGSSLMODE=disable",
	}}, psqldiff.Target{Name: "through", Env: c.environ()}, scripts)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Diff != "" {
			t.Errorf("%s:\n%s", r.Script, r.Diff)
		}
	}
}
