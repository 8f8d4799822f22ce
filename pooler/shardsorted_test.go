package pooler

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"
)

// TestShardsMergedInConstantMemory: the ten first rows of four big tables, and all of their rows in order, are merged as they
// come. NEKI_MERGED_ROWS is the number of rows on each shard.
func TestShardsMergedInConstantMemory(t *testing.T) {
	rows := envInt("NEKI_MERGED_ROWS", 250_000)
	if raceEnabled {
		rows = min(rows, 10_000)
	}
	s := startShards(t, 4, `{
 "databases": {"DB": {"default_shard_group": "main", "schemas": {"public": {"tables": {"big": {"shard_group": "data", "shard_index": "by_k"}}}}}},
 "shard_groups": [{"uid": "main", "key_ranges": [{"shard_uid": "sh1"}]}, `+fourRanges+`],
 "shard_indexes": {"by_k": {"type": "xxhash", "columns": ["k"]}}, "authoritative_shard_group": "main"}`, gatewayOptions{})
	for i := range s.servers {
		s.onShard(i+1, "CREATE TABLE big (k int8 PRIMARY KEY, other int8, pad text)")
		s.onShard(i+1, fmt.Sprintf("INSERT INTO big SELECT g * 4 + %d, hashint8(g), 'row ' || g FROM generate_series(0, %d) g", i, rows-1))
		s.onShard(i+1, "ANALYZE big")
	}
	s.learnOf("public", "big")
	conn := s.connect("").PgConn()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	const bound = 24 << 20
	before := heap()
	for _, sql := range []string{
		"SELECT k, pad FROM big ORDER BY k LIMIT 10", "SELECT k, pad FROM big ORDER BY other, k LIMIT 10",
		"SELECT k FROM big ORDER BY k DESC LIMIT 10 OFFSET 1000",
	} {
		r := conn.ExecParams(ctx, sql, nil, nil, nil, nil).Read()
		if r.Err != nil || len(r.Rows) != 10 {
			t.Fatalf("%s: %d rows, %v", sql, len(r.Rows), r.Err)
		}
		if used := heap() - before; used > bound {
			t.Errorf("%s leaves %d more bytes", sql, used)
		}
	}
	n, last := 0, ""
	result := conn.ExecParams(ctx, "SELECT k, pad FROM big ORDER BY k", nil, nil, nil, nil)
	for result.NextRow() {
		if n%4 == 0 && n < 4*100 || n == 4*rows-1 {
			last = string(result.Values()[0])
			if last != fmt.Sprint(n) {
				t.Fatalf("row %d is %s", n, last)
			}
		}
		if n++; n%200_000 == 0 {
			if used := heap() - before; used > bound {
				t.Fatalf("after %d rows there are %d more bytes", n, used)
			}
		}
	}
	if _, err := result.Close(); err != nil || n != 4*rows {
		t.Errorf("%d rows, %v", n, err)
	}
}

// heap gives the bytes that are reachable.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
