package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Rows of the tables over four shards, and of the one beside them that is on the first shard alone.
const (
	shardedRows = 1_000_000
	shardCount  = 4
)

// shardedTopology lays bench_keyed over all shards, and leaves bench_plain on the first.
const shardedTopology = `{"authoritative_shard_group": "one", "default_shard_group": "one",
"shard_groups": [{"uid": "one", "key_ranges": [{"shard_uid": "sh1"}]},
 {"uid": "all", "default_shard_index": "by_id", "key_ranges": [{"shard_uid": "sh1", "end": "40"},
 {"shard_uid": "sh2", "start": "40", "end": "80"}, {"shard_uid": "sh3", "start": "80", "end": "c0"}, {"shard_uid": "sh4", "start": "c0"}]}],
"shard_indexes": {"by_id": {"type": "xxhash", "columns": ["id"]}},
"databases": {"postgres": {"schemas": {"public": {"tables": {"bench_keyed": {"shard_group": "all"}}}}}}}`

// shardedBed is a cluster of four shards and its gateway.
type shardedBed struct {
	bed
	gateway database
	pid     int
	idleCPU float64
	shards  []database // their primaries
}

// shardedFigures are what is measured on it.
type shardedFigures struct {
	keyed []keyedRow

	count, slowestLeg time.Duration // of count(*): through the gateway, and the slowest of its legs run at once
	limitRows         int
	limitGrowth       int64 // bytes by which ORDER BY ... LIMIT 10 raised the gateway's memory at its highest
	mergeRate, oneRow float64
	mergeGrowth       int64
}

// keyedRow compares a statement whose shard is found by its key with the same on an unsharded table.
type keyedRow struct {
	mode         string
	plain, keyed []pgbenchRun
	ratios       []float64
}

func (r *report) measureSharded(ctx context.Context, o options, b *bed) (err error) {
	if o.candidate == "pgbouncer" {
		return nil
	}
	s := &shardedBed{bed: bed{bin: b.bin}}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.start(ctx, o); err != nil {
		return err
	}
	f := &shardedFigures{}
	for _, step := range []func(context.Context, options, *shardedFigures) error{s.measureKeyed, s.measureCount, s.measureLimit, s.measureMerge} {
		if err := step(ctx, o, f); err != nil {
			return err
		}
	}
	r.sharded = f
	return nil
}

func (s *shardedBed) start(ctx context.Context, o options) error {
	if err := s.makeDir(); err != nil {
		return err
	}
	d, err := s.launchDev(ctx, o, "--shards", strconv.Itoa(shardCount), "--replicas", "0")
	if err != nil {
		return err
	}
	o.config = filepath.Join(s.dir, "neki", "gateway.yaml")
	gateway, err := s.startGateway(ctx, o, &d)
	if err != nil {
		return err
	}
	s.gateway, s.pid = d, gateway.pid()
	s.gateway.tls = "disable"
	if err := s.fillShards(ctx, o); err != nil {
		return err
	}
	s.idleCPU, err = idleCPU(ctx, s.pid)
	return err
}

// fillShards makes the tables. Both have the same rows.
func (s *shardedBed) fillShards(ctx context.Context, o options) error {
	if err := setPool(ctx, s.gateway, o.pool); err != nil {
		return err
	}
	if err := s.gateway.exec(ctx, "CALL neki.set_topology(document => '"+shardedTopology+"')"); err != nil {
		return err
	}
	conn, err := s.gateway.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing hangs on it any more
	for _, table := range []string{"bench_plain", "bench_keyed"} {
		if _, err := conn.Exec(ctx, "CREATE TABLE "+table+" (id int8 PRIMARY KEY, v text)").ReadAll(); err != nil {
			return err
		}
		if _, err := conn.CopyFrom(ctx, &rowSource{rows: shardedRows}, "COPY "+table+" FROM STDIN"); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "VACUUM ANALYZE "+table).ReadAll(); err != nil {
			return err
		}
	}
	for i := range shardCount {
		row, err := s.gateway.row(ctx, fmt.Sprintf(
			"SELECT n.host, n.port FROM neki.nodes n JOIN neki.shards s ON s.primary_node = n.node WHERE s.shard = 'sh%d'", i+1))
		if err != nil {
			return err
		}
		d := s.gateway
		d.host = row[0]
		if d.port, err = strconv.Atoi(row[1]); err != nil {
			return err
		}
		s.shards = append(s.shards, d)
	}
	return nil
}

// rowSource gives rows as COPY reads them: a number and a text of 20 letters.
type rowSource struct {
	rows, next int
	rest       []byte
}

func (r *rowSource) Read(p []byte) (n int, err error) {
	for len(r.rest) < len(p) && r.next < r.rows {
		r.next++
		r.rest = strconv.AppendInt(r.rest, int64(r.next), 10)
		r.rest = append(r.rest, '\t')
		r.rest = append(append(r.rest, bytes.Repeat([]byte{'a' + byte(r.next%26)}, 20)...), '\n')
	}
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n = copy(p, r.rest)
	r.rest = append(r.rest[:0], r.rest[n:]...)
	return n, nil
}

// measureKeyed has pgbench read rows by their key from both tables in turn.
func (s *shardedBed) measureKeyed(ctx context.Context, o options, f *shardedFigures) error {
	scripts := map[string]string{}
	for _, table := range []string{"bench_plain", "bench_keyed"} {
		scripts[table] = filepath.Join(s.dir, table+".sql")
		text := fmt.Sprintf("\\set id random(1, %d)\nSELECT v FROM %s WHERE id = :id;\n", shardedRows, table)
		if err := os.WriteFile(scripts[table], []byte(text), 0o644); err != nil {
			return err
		}
	}
	for _, mode := range []string{"simple", "extended", "prepared"} {
		row := keyedRow{mode: mode}
		for range o.rounds {
			plain, err := s.pgbenchScript(ctx, s.gateway, s.pid, s.idleCPU, mode, 16, o.seconds, scripts["bench_plain"])
			if err != nil {
				return err
			}
			keyed, err := s.pgbenchScript(ctx, s.gateway, s.pid, s.idleCPU, mode, 16, o.seconds, scripts["bench_keyed"])
			if err != nil {
				return err
			}
			row.plain, row.keyed = append(row.plain, plain), append(row.keyed, keyed)
			row.ratios = append(row.ratios, float64(keyed.cpu)/float64(max(plain.cpu, 1)))
		}
		say("  keyed, %s: %.2f", mode, median(row.ratios))
		f.keyed = append(f.keyed, row)
	}
	return nil
}

// measureCount compares a count over all shards with its slowest leg, all legs being asked at once as the gateway does.
func (s *shardedBed) measureCount(ctx context.Context, o options, f *shardedFigures) error {
	const sql = "SELECT count(*) FROM bench_keyed"
	var whole, legs []float64
	for range 3 * o.rounds {
		took, err := s.timed(ctx, s.gateway, sql)
		if err != nil {
			return err
		}
		whole = append(whole, float64(took))
		slowest, err := s.slowest(ctx, sql)
		if err != nil {
			return err
		}
		legs = append(legs, float64(slowest))
	}
	f.count, f.slowestLeg = time.Duration(median(whole)), time.Duration(median(legs))
	return nil
}

// slowest runs a query on all shards at once and gives the longest time.
func (s *shardedBed) slowest(ctx context.Context, sql string) (time.Duration, error) {
	took := make([]time.Duration, len(s.shards))
	errs := make(chan error, len(s.shards))
	for i := range s.shards {
		go func() { // joined below
			var err error
			took[i], err = s.timed(ctx, s.shards[i], sql)
			errs <- err
		}()
	}
	var all error
	var longest time.Duration
	for range s.shards {
		all = errors.Join(all, <-errs)
	}
	for _, t := range took {
		longest = max(longest, t)
	}
	return longest, all
}

// timed gives the time of a query on a connection that has run it once before.
func (s *shardedBed) timed(ctx context.Context, d database, sql string) (time.Duration, error) {
	conn, err := d.connect(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx) //nolint:errcheck // a reader's
	var begin time.Time
	for range 2 {
		begin = time.Now()
		if _, err := conn.Exec(ctx, sql).ReadAll(); err != nil {
			return 0, err
		}
	}
	return time.Since(begin), nil
}

// measureLimit watches the gateway's memory while it merges sorted rows of all shards up to a LIMIT.
func (s *shardedBed) measureLimit(ctx context.Context, _ options, f *shardedFigures) error {
	for range 2 { // the first leaves buffers behind
		before, err := s.watchMemory()
		if err != nil {
			return err
		}
		conn, err := s.gateway.connect(ctx)
		if err != nil {
			return err
		}
		results, err := conn.Exec(ctx, "SELECT id, v FROM bench_keyed ORDER BY id + 0 LIMIT 10").ReadAll()
		if err := errors.Join(err, conn.Close(ctx)); err != nil {
			return err
		}
		f.limitRows = len(results[0].Rows)
		if f.limitGrowth, err = s.grown(before); err != nil {
			return err
		}
	}
	if f.limitRows != 10 {
		return fmt.Errorf("ORDER BY ... LIMIT 10 gave %d rows", f.limitRows)
	}
	return nil
}

// measureMerge compares a million rows merged from all shards with as many that one shard has sorted.
func (s *shardedBed) measureMerge(ctx context.Context, o options, f *shardedFigures) error {
	var merged, one []float64
	for range o.rounds {
		before, err := s.watchMemory()
		if err != nil {
			return err
		}
		took, err := s.drained(ctx, "SELECT id, v FROM bench_keyed ORDER BY id")
		if err != nil {
			return err
		}
		merged = append(merged, shardedRows/took.Seconds())
		if f.mergeGrowth, err = s.grown(before); err != nil {
			return err
		}
		if took, err = s.drained(ctx, "SELECT id, v FROM bench_plain ORDER BY id"); err != nil {
			return err
		}
		one = append(one, shardedRows/took.Seconds())
	}
	f.mergeRate, f.oneRow = median(merged), median(one)
	return nil
}

// drained reads all rows of a query through the gateway without decoding them.
func (s *shardedBed) drained(ctx context.Context, sql string) (time.Duration, error) {
	conn, err := s.gateway.connect(ctx)
	if err != nil {
		return 0, err
	}
	hijacked, err := conn.Hijack()
	if err != nil {
		return 0, err
	}
	defer hijacked.Conn.Close()
	query, err := (&pgproto3.Query{String: sql}).Encode(nil)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if _, err := hijacked.Conn.Write(query); err != nil {
		return 0, err
	}
	rows, err := drain(hijacked.Conn)
	if err == nil && rows != shardedRows {
		err = fmt.Errorf("%s: %d rows, want %d", sql, rows, shardedRows)
	}
	return time.Since(begin), err
}

// watchMemory has the kernel note the gateway's highest memory from now on, and gives what it holds.
func (s *shardedBed) watchMemory() (int64, error) {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.pid), []byte("5"), 0); err != nil {
		return 0, err
	}
	return memoryOf(s.pid)
}

// grown is how much more than before the gateway has held at its highest.
func (s *shardedBed) grown(before int64) (int64, error) {
	highest, err := statusKB(s.pid, "VmHWM:")
	return max(0, highest-before), err
}

func (f *shardedFigures) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n## Over %d shards\n\nA row by its key at 16 clients, CPU of the gateway per transaction.\n\n"+
		"| protocol | unsharded µs | keyed µs | **ratio** |\n|---|---|---|---|\n", shardCount)
	for _, row := range f.keyed {
		fmt.Fprintf(b, "| %s | %.1f | %.1f | **%.2f** |\n", row.mode, medianOf(row.plain, cpuMicros), medianOf(row.keyed, cpuMicros), median(row.ratios))
	}
	fmt.Fprintf(b, "\n| %d rows on %d shards | | beside | | ratio |\n|---|---|---|---|---|\n", shardedRows, shardCount)
	fmt.Fprintf(b, "| `count(*)` | %.0f ms | its slowest leg, all run at once | %.0f ms | **%.2f** |\n",
		f.count.Seconds()*1000, f.slowestLeg.Seconds()*1000, float64(f.count)/float64(f.slowestLeg))
	fmt.Fprintf(b, "| all, merged by ORDER BY | %.0f rows/s | the same rows of one shard, sorted there | %.0f rows/s | **%.2f** |\n",
		f.mergeRate, f.oneRow, f.mergeRate/f.oneRow)
	fmt.Fprintf(b, "\nThe gateway's memory grows by %.1f MB at most while `ORDER BY ... LIMIT 10` sorts all rows on the shards, and by %.1f MB while it "+
		"merges all of them.\n", float64(f.limitGrowth)/(1<<20), float64(f.mergeGrowth)/(1<<20))
}
