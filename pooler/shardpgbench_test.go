package pooler

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"neki/internal/testpg"
	"neki/settings"
)

// tpcbTopology places pgbench's tables by account, teller and branch, and its history by account.
const tpcbTopology = `{
 "databases": {"DB": {"default_shard_group": "main", "schemas": {"public": {"tables": {
   "pgbench_accounts": {"shard_group": "data", "shard_index": "by_aid"}, "pgbench_history": {"shard_group": "data", "shard_index": "by_aid"},
   "pgbench_tellers": {"shard_group": "data", "shard_index": "by_tid"}, "pgbench_branches": {"shard_group": "data", "shard_index": "by_bid"}}}}}},
 "shard_groups": [{"uid": "main", "key_ranges": [{"shard_uid": "sh1"}]}, RANGES],
 "shard_indexes": {"by_aid": {"type": "xxhash", "columns": ["aid"]}, "by_tid": {"type": "xxhash", "columns": ["tid"]}, "by_bid": {"type": "xxhash", "columns": ["bid"]}},
 "authoritative_shard_group": "main"}`

// program runs one of Postgres's own against the gateway and gives what it printed.
func (g *gateway) program(t *testing.T, options string, name string, args ...string) string {
	t.Helper()
	out, err := g.tryProgram(t, options, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func (g *gateway) tryProgram(t *testing.T, options string, name string, args ...string) (string, error) {
	t.Helper()
	installation, _ := testpg.Installation(t)
	path := filepath.Join(installation.BinDir, name)
	if filepath.IsAbs(name) {
		path = name
	}
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%v: scripts/setup.sh test installs it", err)
		}
		t.Skipf("%v: scripts/setup.sh test installs it", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	host, port, err := net.SplitHostPort(g.addr)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "PGHOST="+host, "PGPORT="+port, "PGUSER="+testpg.Superuser, "PGPASSWORD="+testpg.Password, "PGDATABASE="+g.dbname,
		"PGSSLMODE=disable", "PGOPTIONS="+options, "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestShardsTPCB: pgbench makes its tables over four shards, and its transactions by 32 clients in each of its modes leave
// the balances equal.
func TestShardsTPCB(t *testing.T) {
	s := startShards(t, 4, strings.Replace(tpcbTopology, "RANGES", fourRanges, 1), gatewayOptions{parameters: func(p *settings.Parameters) { p.PoolCapacity = 36 }})
	s.program(t, "", "pgbench", "-i", "-I", "dtgvp", "-q")
	for i := range s.servers {
		if n := s.onShard(i+1, "SELECT count(*) FROM pgbench_accounts")[0][0]; len(n) != 5 {
			t.Errorf("shard %d has %s of 100000 accounts", i+1, n)
		}
	}
	want := 0
	for _, run := range []struct{ mode, tx string }{{"simple", "multi"}, {"extended", "multi"}, {"prepared", "multi"}, {"simple", "atomic"}} {
		out := s.program(t, "-c __neki.tx_mode="+run.tx, "pgbench", "-n", "-c", "32", "-j", "2", "-t", "4", "-M", run.mode)
		if want += 32 * 4; !strings.Contains(out, "128/128") {
			t.Errorf("%v: %s", run, out)
		}
	}
	conn := s.connect("")
	got := simple(t, conn, `SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
		(SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history), (SELECT count(*) FROM pgbench_history)`)[0]
	if got[0] != got[1] || got[1] != got[2] || got[2] != got[3] || got[4] != "512" {
		t.Errorf("accounts, tellers, branches, history and its rows: %v", got)
	}
}
