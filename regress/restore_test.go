package regress

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// restoreTopology spreads table t over both shards.
const restoreTopology = `{"shard_groups": [{"uid": "main", "key_ranges": [{"shard_uid": "sh1"}]},
	{"uid": "data", "default_shard_index": "by_id", "key_ranges": [{"shard_uid": "sh1", "end": "80"}, {"shard_uid": "sh2", "start": "80"}]}],
	"shard_indexes": {"by_id": {"type": "xxhash", "columns": ["id"]}}, "default_shard_group": "main", "authoritative_shard_group": "main",
	"databases": {"postgres": {"schemas": {"public": {"tables": {"t": {"shard_group": "data"}}}}}}}`

// ownCluster starts a cluster for one test.
func ownCluster(t *testing.T, args ...string) *devCluster {
	t.Helper()
	if os.Getenv("NEKI_BIN") == "" {
		t.Skip("needs NEKI_BIN: run make regress")
	}
	c, err := launch(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// login connects to a cluster as its superuser.
func login(t *testing.T, c *devCluster) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(fmt.Sprintf("host=%s port=%s user=%s password=%s dbname=%s sslmode=%s sslrootcert=%s", c.env["PGHOST"],
		c.env["PGPORT"], c.env["PGUSER"], c.env["PGPASSWORD"], c.env["PGDATABASE"], c.env["PGSSLMODE"], c.env["PGSSLROOTCERT"]))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the cluster may be gone
	return conn
}

func run(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if _, err := conn.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// rowsOf gives a query's rows as text.
func rowsOf(t *testing.T, conn *pgx.Conn, sql string, args ...any) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		values, err := row.Values()
		return strings.Trim(fmt.Sprint(values), "[]"), err
	})
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return list
}

// TestRestoreCluster restores two shards as they were between two transactions, and uses what came of it.
func TestRestoreCluster(t *testing.T) {
	c := ownCluster(t, "--shards", "2", "--replicas", "0", "--backup-interval", "0")
	conn := login(t, c)
	run(t, conn, "CALL neki.set_topology($1)", restoreTopology)
	run(t, conn, "CREATE TABLE t (id int PRIMARY KEY, v text)")
	run(t, conn, "CREATE TABLE plain (v text)")
	for id := range 20 {
		run(t, conn, "INSERT INTO t VALUES ($1, 'backup')", id)
	}
	run(t, conn, "CALL neki.backup()")
	if got := rowsOf(t, conn, "SELECT shard, kind, state FROM neki.backups ORDER BY shard"); !cmp.Equal(got, []string{"sh1 manual done", "sh2 manual done"}) {
		t.Fatalf("backups: %q", got)
	}
	for id := 100; id < 120; id++ {
		run(t, conn, "INSERT INTO t VALUES ($1, 'before')", id)
	}
	run(t, conn, "INSERT INTO plain VALUES ('before')")
	run(t, conn, "UPDATE t SET v = 'changed' WHERE id < 10")
	direct := c.mustConnect(t, "port="+strings.Join(rowsOf(t, conn, "SELECT port FROM neki.nodes WHERE node = 'sh1-a'"), ""), "sslmode=prefer")
	for _, gid := range []string{"mine", "neki:dev:gw:1:1"} { // the second one as a gateway does; the running cluster ends it soon
		run(t, direct, "BEGIN; INSERT INTO plain VALUES ('in doubt'); PREPARE TRANSACTION '"+gid+"'")
	}
	var between time.Time
	if err := conn.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&between); err != nil {
		t.Fatal(err)
	}
	for id := 200; id < 220; id++ {
		run(t, conn, "INSERT INTO t VALUES ($1, 'after')", id)
	}
	run(t, conn, "DELETE FROM t WHERE id < 5")
	run(t, conn, "INSERT INTO plain VALUES ('after')")
	run(t, direct, "ROLLBACK PREPARED 'mine'")

	into := filepath.Join(c.dir, "restored")
	run(t, conn, "CALL neki.restore_cluster($1, $2)", between, into)
	run(t, conn, "CALL neki.restore_cluster($1, $2)", between, into) // the same again does no harm
	if _, err := conn.Exec(t.Context(), "CALL neki.restore_cluster(now(), $1)", into); err == nil {
		t.Error("another point in time was restored over it")
	}
	r := &devCluster{dir: into, data: into, args: []string{"--replicas", "1", "--backup-interval", "0"}}
	bin, err := nekiProgram()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.start(bin); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	checkRestored(t, login(t, r))
	if got := rowsOf(t, conn, "SELECT count(*) FROM t WHERE v = 'after'"); !cmp.Equal(got, []string{"20"}) {
		t.Errorf("the cluster that was restored from has %q", got)
	}
}

func checkRestored(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	want := []string{"backup 10", "before 20", "changed 10"}
	if d := cmp.Diff(want, rowsOf(t, conn, "SELECT v, count(*) FROM t GROUP BY v ORDER BY v")); d != "" {
		t.Errorf("rows of t: %s", d)
	}
	if d := cmp.Diff([]string{"before"}, rowsOf(t, conn, "SELECT v FROM plain")); d != "" {
		t.Errorf("rows of plain: %s", d)
	}
	if d := cmp.Diff([]string{"mine"}, rowsOf(t, conn, "SELECT gid FROM pg_prepared_xacts")); d != "" {
		t.Errorf("prepared transactions: %s", d)
	}
	for id := 300; id < 320; id++ {
		run(t, conn, "INSERT INTO t VALUES ($1, 'new')", id)
	}
	if got := rowsOf(t, conn, "SELECT count(*) FROM t WHERE v = 'new'"); !cmp.Equal(got, []string{"20"}) {
		t.Errorf("new rows: %q", got)
	}
	run(t, conn, "CALL neki.backup()") // into an archive of its own
}
