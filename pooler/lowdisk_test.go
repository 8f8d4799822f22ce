package pooler

import (
	"testing"

	"neki/catalog"
	"neki/internal/pgerr"
)

// TestLowDisk: a shard whose disk is low takes no writes, but reads and what gives space back, until there is space again.
func TestLowDisk(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	conn := g.connect("")
	simple(t, conn, "CREATE TABLE t (k int); CREATE TABLE gone (k int)")
	low := func(on bool) {
		t.Helper()
		if _, err := catalog.UpdateShard(t.Context(), g.store, testCluster, "sh1", func(s *catalog.Shard) error { s.ReadOnly = on; return nil }); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the gateway knows", func() bool { return g.live.Snapshot().ReadOnly == on })
	}
	low(true)
	for name, run := range runners {
		for sql, code := range map[string]string{
			"INSERT INTO t VALUES (1)": pgerr.ShardReadOnly, "UPDATE t SET k = 2": pgerr.ShardReadOnly,
			"CREATE TABLE u (k int)": pgerr.ShardReadOnly, "SELECT count(*) FROM t": "", "TRUNCATE t": "", "DROP TABLE IF EXISTS gone": "",
		} {
			if err := run(conn, sql); pgerr.Code(err) != code {
				t.Errorf("%s, %s: %v, want %q", name, sql, err, code)
			}
		}
	}
	simple(t, conn, "BEGIN")
	if err := runners["simple"](conn, "INSERT INTO t VALUES (1)"); pgerr.Code(err) != pgerr.ShardReadOnly {
		t.Errorf("in a transaction: %v", err)
	}
	simple(t, conn, "ROLLBACK")
	low(false)
	for name, run := range runners {
		if err := run(conn, "INSERT INTO t VALUES (1)"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
