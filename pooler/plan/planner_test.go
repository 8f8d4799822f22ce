package plan

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"neki/catalog"
	"neki/sqlparse"
)

// planned plans text and waits until the cache has taken it in.
func planned(t testing.TB, pl *Planner, text string, snap *catalog.Snapshot, env *Env) *Plan {
	t.Helper()
	p, err := pl.Plan([]byte(text), snap, env)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	pl.cache.plans.Wait()
	return p
}

func TestCacheHits(t *testing.T) {
	pl := newPlanner(t, Options{})
	funcs := loaded(t)
	snap, env := twoShards(), NewEnv("db", "alice", DefaultSearchPath, funcs)
	first := planned(t, pl, "SELECT * FROM t WHERE id = 12", snap, env)
	for _, same := range []string{
		"SELECT * FROM t WHERE id = 13", "select  *  from T where id=99 -- comment", "SELECT * FROM t WHERE id = 12;",
	} {
		if planned(t, pl, same, snap, env) != first {
			t.Errorf("%q is planned anew", same)
		}
	}
	if first.Hits() != 3 {
		t.Errorf("%d hits", first.Hits())
	}
	differ := func(what string, text string, snap *catalog.Snapshot, env *Env) {
		t.Helper()
		if planned(t, pl, text, snap, env) == first {
			t.Errorf("the same plan for %s", what)
		}
	}
	text := "SELECT * FROM t WHERE id = 12"
	differ("another column", "SELECT * FROM t WHERE i = 12", snap, env)
	differ("another kind of literal", "SELECT * FROM t WHERE id = '12'", snap, env)
	differ("another role", text, snap, NewEnv("db", "bob", DefaultSearchPath, funcs))
	differ("another database", text, snap, NewEnv("other", "alice", DefaultSearchPath, funcs))
	differ("another search_path", text, snap, NewEnv("db", "alice", "a", funcs))
	if planned(t, pl, text, snap, NewEnv("db", "alice", DefaultSearchPath, funcs)) != first {
		t.Error("an equal Env finds another plan")
	}
	later := twoShards()
	later.PlanVersion++
	differ("another catalog", text, later, env)
}

func TestFunctionsChangePlans(t *testing.T) {
	pl := newPlanner(t, Options{})
	funcs := loaded(t)
	snap, env := twoShards(), NewEnv("db", "alice", DefaultSearchPath, funcs)
	text := "SELECT pure(1) FROM t"
	if p := planned(t, pl, text, snap, env); p.Verdict != Read {
		t.Fatalf("%v %s", p.Verdict, p.Why)
	}
	funcs.Invalidate()
	if p := planned(t, pl, text, snap, env); p.Verdict != Unproven {
		t.Errorf("after Invalidate: %v", p.Verdict)
	}
	if p := planned(t, pl, "SELECT concat('A') FROM t", snap, env); p.Verdict != Read {
		t.Errorf("a built-in function after Invalidate: %v %s", p.Verdict, p.Why)
	}
	if err := funcs.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := planned(t, pl, text, snap, env); p.Verdict != Read {
		t.Errorf("after Refresh: %v %s", p.Verdict, p.Why)
	}
}

// TestPlansThatDependOnLiterals: plans whose meaning is in a literal must not be shared by shape.
func TestPlansThatDependOnLiterals(t *testing.T) {
	pl := newPlanner(t, Options{})
	snap, env := twoShards(), NewEnv("db", "alice", DefaultSearchPath, loaded(t))
	for _, pair := range [][2]string{
		{"SET x.y = 'a'", "SET x.y = 'b'"},
		{"SELECT set_config('x.y', 'a', false)", "SELECT set_config('x.y', 'b', false)"},
		{"SELECT * FROM neki.replicas WHERE shard = 'a'", "SELECT * FROM neki.replicas WHERE shard = 'b'"},
		{"SELECT current_setting('__neki.target')", "SELECT current_setting('__neki.shard')"},
		{"CALL neki.reload('a')", "CALL neki.reload('b')"},
		{"COMMIT PREPARED 'a'", "COMMIT PREPARED 'b'"},
		{"EXPLAIN (NEKI_PLAN) SELECT * FROM neki.shards WHERE shard = 'a'", "EXPLAIN (NEKI_PLAN) SELECT * FROM neki.shards WHERE shard = 'b'"},
		{"SELECT set_config('x.y', 'a', false), 1", "SELECT set_config('x.y', 'b', false), 1"},
	} {
		for range 2 { // the second time from the cache
			a, b := planned(t, pl, pair[0], snap, env), planned(t, pl, pair[1], snap, env)
			if a == b {
				t.Errorf("one plan for %q and %q", pair[0], pair[1])
			}
			for i, p := range []*Plan{a, b} {
				if p.Statement != nil && p.Statement.Text != pair[i] {
					t.Errorf("%q has the statement %q", pair[i], p.Statement.Text)
				}
			}
		}
		if again := planned(t, pl, pair[0], snap, env); again.Hits() == 0 {
			t.Errorf("%q is never found in the cache", pair[0])
		}
	}
}

func TestSetPlansKeepTheirValue(t *testing.T) {
	pl := newPlanner(t, Options{})
	snap, env := twoShards(), NewEnv("db", "alice", DefaultSearchPath, nil)
	for range 3 {
		for _, value := range []string{"a", "b", "it''s"} {
			p := planned(t, pl, "SET x.y TO '"+value+"'", snap, env)
			if want := strings.ReplaceAll(value, "''", "'"); p.Set.Value != want {
				t.Errorf("%q, want %q", p.Set.Value, want)
			}
		}
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	pl := newPlanner(t, Options{})
	snap, env := twoShards(), NewEnv("db", "alice", DefaultSearchPath, nil)
	p := planned(t, pl, "ALTER USER bob PASSWORD 'hunter2'", snap, env)
	pl.Statistics().Record(p, Observation{})
	for _, shown := range pl.Plans() {
		if strings.Contains(shown.Query, "hunter2") {
			t.Errorf("neki.plans shows %q", shown.Query)
		}
	}
	for _, s := range pl.Statistics().List() {
		if strings.Contains(s.Query, "hunter2") {
			t.Errorf("neki.statements shows %q", s.Query)
		}
	}
}

func TestFlushAndList(t *testing.T) {
	pl := newPlanner(t, Options{})
	snap, env := twoShards(), NewEnv("db", "alice", DefaultSearchPath, nil)
	for i := range 20 {
		planned(t, pl, fmt.Sprintf("SELECT c%d FROM t", i), snap, env)
	}
	planned(t, pl, "SET x.y = 'a'", snap, env)
	if n := len(pl.Plans()); n != 21 {
		t.Errorf("%d plans", n)
	}
	if s := pl.CacheState(); s.Plans != 21 || s.Misses != 21 || s.Bytes <= 0 {
		t.Errorf("%+v", s)
	}
	pl.Flush()
	if n := len(pl.Plans()); n != 0 {
		t.Errorf("%d plans after Flush", n)
	}
	planned(t, pl, "SELECT c1 FROM t", snap, env)
	if s := pl.CacheState(); s.Plans != 1 {
		t.Errorf("%+v", s)
	}
}

func TestCacheIsBounded(t *testing.T) {
	const limit = 64 << 10
	pl := newPlanner(t, Options{CacheBytes: limit})
	snap, env := twoShards(), NewEnv("db", "alice", DefaultSearchPath, nil)
	for i := range 2000 {
		if _, err := pl.Plan(fmt.Appendf(nil, "SELECT c%d FROM t", i), snap, env); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			pl.cache.plans.Wait()
		}
	}
	pl.cache.plans.Wait()
	var held int64
	for _, p := range pl.Plans() {
		held += p.Bytes()
	}
	if s := pl.CacheState(); held > limit || s.Plans == 0 || s.Evictions == 0 {
		t.Errorf("%d bytes held of %d, %+v", held, limit, s)
	}
}

// TestCollision: a plan found under a hash is given out only if its text is the one asked for.
func TestCollision(t *testing.T) {
	c, err := newCache(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	p := &Plan{key: "select a", bytes: 100}
	c.put(1, p)
	c.plans.Wait()
	if c.get(1, []byte("select a"), version{}) != p {
		t.Error("not found")
	}
	if c.get(1, []byte("select b"), version{}) != nil {
		t.Error("found for another text")
	}
	if c.get(1, []byte("select a"), version{catalog: 1}) != nil {
		t.Error("found for another version")
	}
}

// TestConcurrentUse is for the race detector.
func TestConcurrentUse(t *testing.T) {
	pl := newPlanner(t, Options{CacheBytes: 32 << 10, StatisticBytes: 64 << 10})
	funcs := loaded(t)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			env := NewEnv("db", "alice", DefaultSearchPath, funcs)
			for i := range 500 {
				parts, err := pl.PlanAll(nil, fmt.Appendf(nil, "SELECT c%d, lower('x') FROM t; SET x.y = '%d'", i%40, i), twoShards(), env)
				if err != nil || len(parts) != 2 {
					t.Errorf("%d parts, %v", len(parts), err)
					return
				}
				pl.Statistics().Record(parts[0].Plan, Observation{Duration: 1000, Rows: 1})
				switch {
				case g == 0 && i%100 == 0:
					pl.Flush()
				case g == 1 && i%50 == 0:
					pl.Plans()
					pl.Statistics().List()
				case g == 2 && i%100 == 0:
					funcs.Invalidate()
				}
			}
		})
	}
	wg.Wait()
}

func TestHitAllocatesNothing(t *testing.T) {
	pl := newPlanner(t, Options{})
	snap, env := twoShards(), NewEnv("db", "alice", DefaultSearchPath, loaded(t))
	for _, text := range []string{
		"SELECT abalance FROM pgbench_accounts WHERE aid = 12345",
		"SET search_path = 'a'",
		"SELECT set_config('x.y', 'a', false), 1",
	} {
		b := []byte(text)
		planned(t, pl, text, snap, env)
		var parts [1]Part
		run := func() {
			out, err := pl.PlanAll(parts[:0], b, snap, env)
			if err != nil {
				t.Fatal(err)
			}
			pl.Statistics().Record(out[0].Plan, Observation{Duration: 100_000, Rows: 1, ShardCalls: 1})
		}
		run()
		if n := testing.AllocsPerRun(1000, run); n != 0 && !raceEnabled {
			t.Errorf("%q: %v allocations", text, n)
		}
		p := planned(t, pl, text, snap, env)
		if p.Hits() < 1000 {
			t.Errorf("%q: %d hits", text, p.Hits())
		}
	}
}

// FuzzPlan: any text has a plan or an error, twice the same, and never one of another text.
func FuzzPlan(f *testing.F) {
	for _, seed := range []string{
		"select 1", "set a.b = 'c'; select nextval('x')", "explain (neki_plan) select * from neki.replicas",
		"copy (select 1) to stdout", "declare c cursor with hold for select 1", "prepare a as select $1", "'", "begin;;",
	} {
		f.Add([]byte(seed))
	}
	pl := newPlanner(f, Options{})
	env := NewEnv("db", "alice", "neki, public", loaded(f))
	snap := twoShards()
	f.Fuzz(func(t *testing.T, text []byte) {
		before := bytes.Clone(text)
		a, errA := pl.PlanAll(nil, text, snap, env)
		pl.cache.plans.Wait()
		b, errB := pl.PlanAll(nil, text, snap, env)
		if !bytes.Equal(before, text) {
			t.Fatal("the text was changed")
		}
		if (errA == nil) != (errB == nil) || len(a) != len(b) {
			t.Fatalf("%d parts %v, then %d parts %v", len(a), errA, len(b), errB)
		}
		for i := range a {
			p, q := a[i].Plan, b[i].Plan
			if p.Kind != q.Kind || p.Verdict != q.Verdict || p.Route.Kind != q.Route.Kind || p.Route.Shard != q.Route.Shard || p.Pins != q.Pins || p.Why != q.Why {
				t.Fatalf("%+v, from the cache %+v", p, q)
			}
			if p.Kind != sqlparse.KindEmpty && p.Route.Backend() && p.Route.Shard == "" {
				t.Fatalf("no shard: %+v", p)
			}
		}
	})
}

func BenchmarkHit(b *testing.B) {
	pl := newPlanner(b, Options{})
	snap, env := twoShards(), NewEnv("db", "alice", DefaultSearchPath, loaded(b))
	text := "SELECT abalance FROM pgbench_accounts WHERE aid = 12345"
	planned(b, pl, text, snap, env)
	raw := []byte(text)
	var parts [1]Part
	b.Run("shape and cache", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := pl.PlanAll(parts[:0], raw, snap, env); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("cache", func(b *testing.B) {
		sh, err := sqlparse.NewShaper(0).Shape(text)
		if err != nil {
			b.Fatal(err)
		}
		p := &Plan{key: string(sh.Text), bytes: 100}
		pl.cache.put(1, p)
		pl.cache.plans.Wait()
		b.ReportAllocs()
		for b.Loop() {
			if pl.cache.get(1, sh.Text, version{}) == nil {
				b.Fatal("missing")
			}
		}
	})
	b.Run("record", func(b *testing.B) {
		p := planned(b, pl, text, snap, env)
		b.ReportAllocs()
		for b.Loop() {
			pl.Statistics().Record(p, Observation{Duration: 100_000, Rows: 1, ShardCalls: 1})
		}
	})
}

func BenchmarkMiss(b *testing.B) {
	pl := newPlanner(b, Options{})
	env := NewEnv("db", "alice", DefaultSearchPath, loaded(b))
	snap := twoShards()
	text := []byte("SELECT abalance FROM pgbench_accounts WHERE aid = 12345")
	b.ReportAllocs()
	for b.Loop() {
		snap.PlanVersion++
		if _, err := pl.Plan(text, snap, env); err != nil {
			b.Fatal(err)
		}
	}
}
