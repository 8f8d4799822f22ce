package regress

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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

func drivers(t *testing.T) []driver {
	t.Helper()
	modules, err := filepath.Abs("../.cache/drivers/node/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	const jar = "/usr/share/java/postgresql.jar"
	return []driver{
		{
			name: "node", runtime: "node", needs: filepath.Join(modules, "pg"),
			args: []string{"drivers/node/drive.js"}, env: []string{"NODE_PATH=" + modules},
		},
		{
			name: "psycopg", runtime: "/usr/bin/python3", needs: "/usr/lib/python3/dist-packages/psycopg",
			args: []string{"drivers/psycopg/drive.py"},
		},
		{
			name: "jdbc", runtime: "java", needs: jar,
			args: []string{"-Xint", "-cp", jar, "drivers/jdbc/Drive.java"}, // a short run: no compiling at run time
		},
	}
}

// TestDrivers runs each driver's program against the cluster, over TLS and without.
func TestDrivers(t *testing.T) {
	c := cluster(t)
	for _, d := range drivers(t) {
		t.Run(d.name+"/tls", func(t *testing.T) { d.run(t, c.environ(), "neki") })
		t.Run(d.name+"/plain", func(t *testing.T) { d.run(t, c.environ("PGSSLMODE=disable"), "neki") })
	}
}

// TestDriversOnPlainPostgres proves that the programs ask nothing that Postgres would not do.
func TestDriversOnPlainPostgres(t *testing.T) {
	server, err := plainpg.Start(t.Context(), nil, nil)
	if errors.Is(err, plainpg.ErrNoBinaries) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}()
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
