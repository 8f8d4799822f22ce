package pooler

import "testing"

// TestShardSetting: __neki.shard sends statements straight to a shard, whatever the topology says.
func TestShardSetting(t *testing.T) {
	s := startShards(t, 2, twoShards, gatewayOptions{})
	s.everywhere("CREATE TABLE t (k int PRIMARY KEY)")
	conn := s.connect("")
	for shard, k := range map[string]string{"sh1": "2", "sh2": "1"} {
		simple(t, conn, "SET __neki.shard = '"+shard+"'")
		simple(t, conn, "INSERT INTO t VALUES ("+k+")")
	}
	for shard, k := range map[int]string{1: "2", 2: "1"} {
		if got := s.onShard(shard, "SELECT k FROM t"); len(got) != 1 || got[0][0] != k {
			t.Errorf("shard %d has %v, want %s", shard, got, k)
		}
	}
}
