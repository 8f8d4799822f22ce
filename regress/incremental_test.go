package regress

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"neki/internal/testpg"
)

// With PostgreSQL 17 a cluster's backups are incremental ones where they may be, and so they are with pgBackRest: replicas and a
// cluster at a point in time are made of the chain, and what others build on is not deleted. NEKI_LONG runs it: an idle server takes
// half a minute to summarise its log.
func TestIncrementalBackups(t *testing.T) {
	if os.Getenv("NEKI_LONG") == "" {
		t.Skip("set NEKI_LONG")
	}
	t.Run("native", func(t *testing.T) { incrementalBackups(t, "--postgres-bin", testpg.Newer(t, 17)) })
	t.Run("pgbackrest", func(t *testing.T) {
		if _, err := exec.LookPath("pgbackrest"); err != nil {
			t.Skip("pgbackrest is not installed")
		}
		incrementalBackups(t, "--backup-engine", "pgbackrest")
	})
}

func incrementalBackups(t *testing.T, args ...string) {
	c := ownCluster(t, append([]string{"--shards", "1", "--replicas", "1", "--backup-interval", "0", "--backup-incremental", "2"}, args...)...)
	conn := login(t, c)
	run(t, conn, "CREATE TABLE t AS SELECT i AS id, repeat('x', 500) AS pad FROM generate_series(1, 20000) i")
	for i := range 4 {
		run(t, conn, "INSERT INTO t VALUES ($1, 'later')", -i)
		run(t, conn, "CALL neki.backup('sh1')")
	}
	got := rowsOf(t, conn, "SELECT base IS NULL, object FROM neki.backups ORDER BY id")
	if len(got) != 4 || !strings.HasPrefix(got[0], "true") || !strings.HasPrefix(got[1], "false") || !strings.HasPrefix(got[2], "false") ||
		!strings.HasPrefix(got[3], "true") {
		t.Fatalf("backups: %q", got)
	}
	ids := rowsOf(t, conn, "SELECT id FROM neki.backups ORDER BY id")
	if _, err := conn.Exec(t.Context(), "CALL neki.delete_backup('"+ids[0]+"')"); err == nil || !strings.Contains(err.Error(), "is needed by backup "+ids[1]) {
		t.Errorf("deleting what others build on: %v", err)
	}
	run(t, conn, "CALL neki.delete_backup('"+ids[3]+"')")
	run(t, conn, "CALL neki.add_replica(shard => 'sh1')")
	step := mustQuery[string](t, conn, "SELECT step FROM neki.operations WHERE kind = 'add_replica'")
	if object := mustQuery[string](t, conn, "SELECT object FROM neki.backups WHERE id = $1", ids[2]); !strings.Contains(step, "restored from backup "+object) {
		t.Errorf("add_replica: %s", step)
	}
	run(t, conn, "INSERT INTO t VALUES (-4, 'last')")
	at := mustQuery[string](t, conn, "SELECT clock_timestamp()::text")
	run(t, conn, "INSERT INTO t VALUES (-5, 'too late')")
	into := filepath.Join(c.dir, "restored")
	run(t, conn, "CALL neki.restore_cluster('"+at+"', '"+into+"')")
	restored := &devCluster{dir: into, data: into, args: append([]string{"--replicas", "2", "--backup-interval", "0"}, args...)}
	program, err := nekiProgram()
	if err == nil {
		err = restored.start(program)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := restored.stop(); err != nil {
			t.Error(err)
		}
	})
	if n := mustQuery[int](t, login(t, restored), "SELECT count(*) FROM t"); n != 20005 {
		t.Errorf("%d rows were restored", n)
	}
}
