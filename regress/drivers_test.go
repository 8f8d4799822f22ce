package regress

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"neki/regress/plainpg"
)

const driverDeadline = 2 * time.Minute

// driver is a program in another language that drives a database as its users do.
type driver struct {
	name    string
	runtime string   // the program that must be there
	needs   string   // a file that must be there
	args    []string // after the runtime, before the mode
	env     []string
}

// drivers lists the programs. A program leaves nothing behind that the next would trip over, here and on the server.
func drivers(t *testing.T) []driver {
	t.Helper()
	const jar = "/usr/share/java/postgresql.jar"
	all := []driver{
		{
			name: "jdbc", runtime: "java", needs: jar,
			// A short run: little compiling, no threads for it.
			args: []string{"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", jar, "drivers/jdbc/Drive.java"},
		},
		{name: "ruby-pg", runtime: "/usr/bin/ruby", needs: "/usr/share/doc/ruby-pg", args: []string{"drivers/ruby/drive.rb"}},
		{name: "DBD-Pg", runtime: "/usr/bin/perl", needs: "/usr/share/doc/libdbd-pg-perl", args: []string{"drivers/perl/drive.pl"}},
		{name: "PDO", runtime: "php", needs: "/usr/share/doc/php-pgsql", args: []string{"drivers/php/drive.php"}},
		{name: "ODBC", runtime: "/usr/bin/python3", needs: "/usr/share/doc/odbc-postgresql", args: []string{"drivers/odbc/drive.py"}},
	}
	for _, program := range []string{"psql", "pgbench", "pg_dump"} {
		all = append(all, driver{
			name: program, runtime: "bash", needs: filepath.Join(binDir(t), program),
			args: []string{"drivers/" + program + "/drive.sh"}, env: []string{"PATH=" + binDir(t) + ":" + os.Getenv("PATH")},
		})
	}
	const python = "/usr/lib/python3/dist-packages"
	for file, module := range map[string]string{
		"psycopg3": "psycopg", "psycopg2_": "psycopg2", "asyncpg_": "asyncpg", "sqlalchemy_": "sqlalchemy",
	} {
		all = append(all, driver{
			name: strings.Trim(file, "_"), runtime: "/usr/bin/python3", needs: filepath.Join(python, module),
			args: []string{"drivers/python/" + file + ".py"}, env: []string{"PYTHONDONTWRITEBYTECODE=1"},
		})
	}
	return append(all, nodeDrivers(t)...)
}

func nodeDrivers(t *testing.T) []driver {
	t.Helper()
	modules, err := filepath.Abs("../.cache/drivers/node/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	var all []driver
	for file, module := range map[string]string{
		"pg": "pg", "postgresjs": "postgres", "drizzle": "drizzle-orm", "kysely": "kysely", "knex": "knex",
		"sequelize": "sequelize", "typeorm": "typeorm",
	} {
		all = append(all, driver{
			name: file, runtime: "node", needs: filepath.Join(modules, module),
			args: []string{"drivers/node/" + file + ".js"}, env: []string{"NODE_PATH=" + modules},
		})
	}
	return all
}

// driversPool is the size of the pool that all programs share: what one of them left in a connection, the next would
// find, and its own connections take turns.
const driversPool = "2"

// TestDrivers runs each driver's program against the cluster over TLS, and those that bring their own TLS without too.
func TestDrivers(t *testing.T) {
	c := cluster(t)
	conn := c.mustConnect(t)
	mustExec(t, conn, "CALL neki.set_parameter(scope => 'gateway', name => 'pool-capacity', value => '"+driversPool+"')")
	t.Cleanup(func() {
		_, _ = conn.Exec(context.Background(), "CALL neki.set_parameter(scope => 'gateway', name => 'pool-capacity', value => '20')")
	})
	for _, d := range drivers(t) {
		t.Run(d.name+"/tls", func(t *testing.T) { d.run(t, c.environ(), "neki") })
		switch d.name {
		case "pg", "jdbc", "psycopg3", "asyncpg", "postgresjs":
			t.Run(d.name+"/plain", func(t *testing.T) { d.run(t, c.environ("PGSSLMODE=disable"), "neki") })
		}
	}
}

// TestDriversOnPlainPostgres proves that the programs ask nothing that Postgres would not do.
func TestDriversOnPlainPostgres(t *testing.T) {
	server := startPlain(t)
	env := append(os.Environ(), "PGHOST=127.0.0.1", "PGPORT="+strconv.Itoa(server.Port), "PGUSER="+plainpg.Superuser,
		"PGPASSWORD="+plainpg.Password, "PGDATABASE=postgres", "PGSSLMODE=disable")
	for _, d := range drivers(t) {
		t.Run(d.name, func(t *testing.T) { d.run(t, env, "postgres") })
	}
}

func (d driver) run(t *testing.T, env []string, mode string) {
	path, err := exec.LookPath(d.runtime)
	if err == nil {
		_, err = os.Stat(d.needs)
	}
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%v: scripts/setup.sh test installs it", err)
		}
		t.Skipf("%v: scripts/setup.sh test installs it", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), driverDeadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, append(d.args, mode)...)
	cmd.Env = append(env, d.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
