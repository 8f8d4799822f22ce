package regress

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"neki/regress/plainpg"
)

var update = flag.Bool("update", false, "write what the suites answer into expected/")

// plainSuites hold only statements that plain Postgres knows: their expected output is its output.
var plainSuites = []string{"session_state", "transactions", "errors"}

// startPlain starts a plain Postgres for the time of the test.
func startPlain(t *testing.T) *plainpg.Server {
	t.Helper()
	server, err := plainpg.Start(t.Context(), nil, nil)
	if errors.Is(err, plainpg.ErrNoBinaries) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// TestSuitesOnPlainPostgres proves that the expected output of the plain suites is what Postgres answers.
func TestSuitesOnPlainPostgres(t *testing.T) {
	server := startPlain(t)
	env := append(os.Environ(), "PGPASSWORD="+plainpg.Password, "PGSSLMODE=disable")
	target := regressTarget{host: "127.0.0.1", port: strconv.Itoa(server.Port), user: plainpg.Superuser, database: "postgres", env: env}
	target.run(t, "plain", plainSuites)
}

// TestSuites runs every suite of the schedule through the gateway.
func TestSuites(t *testing.T) {
	c := cluster(t)
	env := c.environ()
	target := regressTarget{
		host: c.env["PGHOST"], port: c.env["PGPORT"], user: c.env["PGUSER"], database: c.env["PGDATABASE"], env: env,
	}
	suites := strings.Fields(os.Getenv("NEKI_SUITES"))
	if len(suites) == 0 {
		suites = scheduled(t)
	}
	target.run(t, "gateway", suites)
}

// scheduled lists the suites of the file schedule, which pg_regress could read too.
func scheduled(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("schedule")
	if err != nil {
		t.Fatal(err)
	}
	var suites []string
	for line := range strings.Lines(string(text)) {
		if names, ok := strings.CutPrefix(line, "test:"); ok {
			suites = append(suites, strings.Fields(names)...)
		}
	}
	return suites
}

// regressTarget is a server that pg_regress is pointed at.
type regressTarget struct {
	host, port, user, database string
	env                        []string
}

// run runs each suite as a subtest, by a pg_regress of its own, so that one can be picked with -run.
func (r regressTarget) run(t *testing.T, name string, suites []string) {
	program := pgRegress(t)
	out, err := filepath.Abs(filepath.Join("out", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, suite := range suites {
		t.Run(suite, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), program, "--use-existing", "--host", r.host, "--port", r.port,
				"--user", r.user, "--dbname", r.database, "--bindir", binDir(t), "--inputdir", ".",
				"--outputdir", out, "--max-connections", "1", suite)
			cmd.Env = r.env
			text, err := cmd.CombinedOutput()
			if err == nil {
				return
			}
			if *update {
				keep(t, filepath.Join(out, "results", suite+".out"), filepath.Join("expected", suite+".out"))
				return
			}
			diffs, _ := os.ReadFile(filepath.Join(out, "regression.diffs"))
			t.Errorf("%v\n%s\n%s", err, text, head(diffs, 20_000))
		})
	}
}

func keep(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("wrote %s", to)
}

func head(text []byte, limit int) []byte {
	if len(text) <= limit {
		return text
	}
	return append(bytes.Clone(text[:limit]), "\n...\n"...)
}

// pgRegress finds the program, which distributions keep outside PATH.
func pgRegress(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("NEKI_PG_REGRESS"); path != "" {
		return path
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/lib/pgxs/src/test/regress/pg_regress",
		"/usr/local/pgsql/lib/pgxs/src/test/regress/pg_regress",
	} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("pg_regress was not found: scripts/setup.sh test installs it")
	}
	t.Skip("pg_regress was not found: scripts/setup.sh test installs it")
	return ""
}

// binDir is where psql is; server binaries named by NEKI_POSTGRES_BIN may come without one.
func binDir(t *testing.T) string {
	t.Helper()
	bin, err := plainpg.Bin()
	if err != nil {
		t.Skip(err)
	}
	if _, err := os.Stat(filepath.Join(bin, "psql")); err == nil {
		return bin
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/psql")
	if len(found) == 0 {
		t.Fatal("no psql in " + bin + " or /usr/lib/postgresql")
	}
	return filepath.Dir(found[len(found)-1])
}
