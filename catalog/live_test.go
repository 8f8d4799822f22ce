package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"neki/catalog"
	"neki/catalog/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

const cluster = "main"

// world is a Live that runs on a memory store, in a synctest bubble.
type world struct {
	t     *testing.T
	store *memstore.Store
	live  *catalog.Live
}

// newWorld has one shard, sh1, of the primary p and the replicas r1 and r2.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, store: memstore.New()}
	w.putShard(catalog.Shard{UID: "sh1", Name: "one", Primary: "p", Term: 1})
	for _, id := range []string{"r2", "p", "r1"} {
		w.putNode(catalog.Node{ID: id, Shard: "sh1", Role: catalog.RoleReplica, Cell: "a"})
	}
	w.live = catalog.NewLive(w.store, cluster, quiet)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.live.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	<-w.live.Ready()
	return w
}

func (w *world) putShard(s catalog.Shard) {
	w.t.Helper()
	if _, err := catalog.PutShard(w.t.Context(), w.store, cluster, s, catalog.AnyRev); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) putNode(n catalog.Node) {
	w.t.Helper()
	if _, err := catalog.PutNode(w.t.Context(), w.store, cluster, n, catalog.AnyRev); err != nil {
		w.t.Fatal(err)
	}
}

// report hands reports over and gives the Snapshot that has them.
func (w *world) report(reports ...catalog.Health) *catalog.Snapshot {
	w.t.Helper()
	for _, h := range reports {
		w.live.Report(h)
	}
	synctest.Wait()
	return w.live.Snapshot()
}

func primary(flush catalog.LSN, ring ...catalog.Sample) catalog.Health {
	return catalog.Health{
		Node: "p", Role: catalog.RolePrimary, State: catalog.StateServing, Term: 1, Timeline: 1, SystemID: "7",
		FlushLSN: flush, Ring: ring,
	}
}

func replica(id string, replay catalog.LSN) catalog.Health {
	return catalog.Health{
		Node: id, Role: catalog.RoleReplica, State: catalog.StateServing, SystemID: "7",
		ReceiveLSN: replay, ReplayLSN: replay, Streaming: true, LastMsgAge: time.Second,
	}
}

func lagText(h *catalog.NodeHealth) string {
	switch {
	case h == nil:
		return "no report"
	case h.LagKnown:
		return h.Lag.String()
	}
	return "unknown: " + h.LagReason
}

func (w *world) wantLag(s *catalog.Snapshot, node, want string) {
	w.t.Helper()
	if got := lagText(s.Health(node)); !strings.HasPrefix(got, want) {
		w.t.Errorf("lag of %s: %s, want %s", node, got, want)
	}
}

func TestLag(t *testing.T) {
	old := func(change func(*catalog.Health)) func(catalog.Health) catalog.Health {
		return func(h catalog.Health) catalog.Health { change(&h); return h }
	}
	ring := []catalog.Sample{{Age: 0, LSN: 300}, {Age: 5 * time.Second, LSN: 200}, {Age: 20 * time.Second, LSN: 100}}
	for _, tc := range []struct {
		name    string
		primary func(catalog.Health) catalog.Health
		replica func(catalog.Health) catalog.Health
		replay  catalog.LSN
		want    string
		bytes   int64
	}{
		{"caught up", nil, nil, 300, "0s", 0},
		{"ahead of the last sample", nil, nil, 310, "0s", 0},
		{"behind", nil, nil, 150, "20s", 150}, // no sample for 15 s after 100: at worst that old
		{"before the ring", nil, nil, 50, "unknown: more than 20s", 250},
		{"receiver down", nil, old(func(h *catalog.Health) { h.Streaming = false }), 300, "unknown: the receiver is down", 0},
		{
			"link cut, caught up", nil, old(func(h *catalog.Health) { h.LastMsgAge = 3100 * time.Millisecond }), 300,
			"unknown: the receiver's last message is 3.1s old", 0,
		},
		{"last message at the bound", nil, old(func(h *catalog.Health) { h.LastMsgAge = 3 * time.Second }), 300, "0s", 0},
		{
			"primary stopped", old(func(h *catalog.Health) { h.State = catalog.StateStopped }), nil, 300,
			"unknown: the primary is stopped", 0,
		},
		{
			"primary fenced", old(func(h *catalog.Health) { h.State = catalog.StateFenced }), nil, 300,
			"unknown: the primary is fenced", 0,
		},
		{"no replay position", nil, nil, 0, "unknown: the instance has not reported", 300},
		{"another system", nil, old(func(h *catalog.Health) { h.SystemID = "8" }), 300, "unknown: the instance is not a copy", 0},
		{
			"a second primary", nil, old(func(h *catalog.Health) { h.Role, h.FlushLSN = catalog.RolePrimary, 300 }), 0,
			"unknown: the instance is itself a primary", 0,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p, r := primary(300, ring...), replica("r1", tc.replay)
				if tc.primary != nil {
					p = tc.primary(p)
				}
				if tc.replica != nil {
					r = tc.replica(r)
				}
				s := w.report(p, r)
				w.wantLag(s, "r1", tc.want)
				if got := s.Health("r1").LagBytes; got != tc.bytes {
					t.Errorf("%d bytes, want %d", got, tc.bytes)
				}
				if tc.primary == nil {
					w.wantLag(s, "p", "0s")
				}
				if s.Health("r2") != nil {
					t.Error("health of a node that never reported")
				}
			})
		})
	}
}

// TestLagOverTime follows one shard: the ring is filled by reports that hold what is new only.
func TestLagOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		flush := catalog.LSN(1000)
		tick := func(replay catalog.LSN) *catalog.Snapshot {
			time.Sleep(time.Second)
			flush += 10
			return w.report(primary(flush, catalog.Sample{LSN: flush}), replica("r1", replay))
		}
		w.report(primary(flush), replica("r1", flush))
		for range 30 {
			w.wantLag(tick(flush+10), "r1", "0s")
		}
		stuck := flush
		for i := range 600 {
			want := time.Duration(i) * time.Second
			got := tick(stuck).Health("r1")
			if !got.LagKnown || got.Lag < want || got.Lag > want+want/20+time.Second {
				t.Fatalf("after %s: %s", want, lagText(got))
			}
		}
		w.wantLag(tick(flush+10), "r1", "0s")
	})
}

func TestIdlePrimary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for range 1000 {
			time.Sleep(time.Second)
			w.wantLag(w.report(primary(500), replica("r1", 500)), "r1", "0s")
		}
		time.Sleep(time.Second)
		// The first write after an hour of idling must not look like an hour of lag.
		s := w.report(primary(600), replica("r1", 500))
		if h := s.Health("r1"); !h.LagKnown || h.Lag > time.Second {
			t.Error(lagText(h))
		}
	})
}

func TestStaleReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.report(primary(300), replica("r1", 300), replica("r2", 300))
		time.Sleep(2 * time.Second)
		w.report(primary(300), replica("r2", 300))
		changed := w.live.Changed()
		time.Sleep(1100 * time.Millisecond) // r1's report is 3.1 s old; nothing has come since
		synctest.Wait()
		select {
		case <-changed:
		default:
			t.Fatal("nobody is told that a report is stale")
		}
		s := w.live.Snapshot()
		w.wantLag(s, "r1", "unknown: no report from the agent")
		w.wantLag(s, "r2", "0s")
		if h := s.Health("r1"); !h.Stale || h.State != catalog.StateUnreachable || h.ReplayLSN != 300 {
			t.Errorf("%+v", h)
		}
		time.Sleep(1500 * time.Millisecond)
		// The primary's own report is 3.5 s old now, r2's is new.
		time.Sleep(time.Second)
		s = w.report(replica("r2", 300))
		w.wantLag(s, "r2", "unknown: no report from the primary's agent")
		w.wantLag(s, "p", "unknown")
		s = w.report(primary(300))
		w.wantLag(s, "r2", "0s")
	})
}

func TestTwoReportsBetweenSnapshots(t *testing.T) {
	// Run not started yet: the samples of both reports must be there once it is.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.report(primary(100))
		time.Sleep(time.Second)
		w.live.Report(primary(200, catalog.Sample{LSN: 200}))
		w.live.Report(primary(300, catalog.Sample{LSN: 300}))
		s := w.report(replica("r1", 100))
		w.wantLag(s, "r1", "0s") // went past 100 just now
		time.Sleep(time.Second)
		s = w.report(replica("r1", 250))
		w.wantLag(s, "r1", "1s")
	})
}

func TestFoldDocuments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx := t.Context()
		before := w.live.Snapshot()
		lease, err := w.store.Lease(ctx, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{
			catalog.PutLiveness(ctx, lease, cluster, catalog.Liveness{Node: "r1", Shard: "sh1"}),
			catalog.PutAdmin(ctx, lease, cluster, catalog.Admin{ID: "adm2"}),
			catalog.PutAdmin(ctx, lease, cluster, catalog.Admin{ID: "adm1"}),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		catalog.AcquireLeader(ctx, lease, cluster, catalog.Admin{ID: "adm2"})
		catalog.RegisterGateway(ctx, w.store, lease, cluster, catalog.Gateway{ID: "gw1"})
		catalog.PutProfile(ctx, w.store, cluster, catalog.Profile{Name: "default", Default: true, Replicas: 2}, 0)
		catalog.PutParameter(ctx, w.store, cluster, "gateway", "buffer-window", "5s")
		synctest.Wait()
		s := w.live.Snapshot()
		if !s.Node("r1").Live || s.Node("r2").Live {
			t.Error("liveness")
		}
		if len(s.Admins) != 2 || s.Leader() == nil || s.Leader().ID != "adm2" || s.Gateway("gw1") == nil {
			t.Errorf("%+v %+v", s.Admins, s.Gateways)
		}
		if p := s.Profile(""); p == nil || p.Name != "default" || s.Profile("none") != nil {
			t.Errorf("%+v", p)
		}
		if v, ok := s.Parameter("gateway", "buffer-window"); !ok || v != "5s" {
			t.Errorf("%q", v)
		}
		if s.PlanVersion != before.PlanVersion {
			t.Error("plans became invalid for nothing")
		}
		if len(before.Admins) != 0 {
			t.Error("an old Snapshot was changed")
		}
		lease.Close()
		synctest.Wait()
		if s := w.live.Snapshot(); len(s.Admins) != 0 || s.Node("r1").Live || s.Leader() != nil {
			t.Error("what was leased is still there")
		}
	})
}

func TestLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.putShard(catalog.Shard{UID: "sh0", Name: "zero", Authoritative: true})
		w.putNode(catalog.Node{ID: "z", Shard: "sh0"})
		s := w.report(primary(1))
		var ids []string
		for _, n := range s.NodesOf("sh1") {
			ids = append(ids, n.ID)
		}
		if diff := cmp.Diff([]string{"p", "r1", "r2"}, ids); diff != "" {
			t.Error(diff)
		}
		if s.Shard("none") != nil || s.Node("none") != nil || s.NodesOf("none") != nil || s.Health("none") != nil {
			t.Error("found what is not there")
		}
		if s.Authoritative().UID != "sh0" || s.PrimaryOf("sh1").ID != "p" || s.PrimaryOf("sh0") != nil {
			t.Error("authoritative shard or primary")
		}
		allocs := testing.AllocsPerRun(100, func() {
			if s.Shard("sh1") == nil || s.Node("r1") == nil || len(s.NodesOf("sh1")) != 3 || s.Health("p") == nil ||
				s.PrimaryOf("sh1") == nil || w.live.Snapshot() == nil || w.live.Changed() == nil {
				t.Error("not found")
			}
		})
		if allocs != 0 {
			t.Errorf("%v allocations", allocs)
		}
	})
}

func TestPlanVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		last := w.live.Snapshot().PlanVersion
		for _, tc := range []struct {
			name    string
			do      func() error
			changes bool
		}{
			{"health", func() error { w.live.Report(primary(1)); return nil }, false},
			{"a shard's primary", func() error {
				w.putShard(catalog.Shard{UID: "sh1", Name: "one", Primary: "r1", Term: 2})
				return nil
			}, false},
			{"a node", func() error { w.putNode(catalog.Node{ID: "r3", Shard: "sh1"}); return nil }, false},
			{"a shard's name", func() error { w.putShard(catalog.Shard{UID: "sh1", Name: "uno"}); return nil }, true},
			{"a new shard", func() error { w.putShard(catalog.Shard{UID: "sh2"}); return nil }, true},
			{"DDL", func() error { _, err := catalog.TouchSchema(t.Context(), w.store, cluster); return err }, true},
			{"DDL again", func() error { _, err := catalog.TouchSchema(t.Context(), w.store, cluster); return err }, true},
			{"topology", func() error {
				_, err := catalog.PutTopology(t.Context(), w.store, cluster, catalog.TopologyDocument{Document: []byte(`{}`)}, 0)
				return err
			}, true},
		} {
			if err := tc.do(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			now := w.live.Snapshot().PlanVersion
			if (now > last) != tc.changes {
				t.Errorf("%s: version %d after %d", tc.name, now, last)
			}
			last = now
		}
	})
}

func TestRuleLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		put := func(r catalog.Rule) *catalog.Snapshot {
			if _, err := catalog.PutRule(t.Context(), w.store, cluster, "sh1", r, catalog.AnyRev); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return w.live.Snapshot()
		}
		if w.live.Snapshot().Rule("sh1") != nil {
			t.Error("a rule from nowhere")
		}
		s := put(catalog.Rule{Term: 2, Leader: "r1"})
		if sh := s.Shard("sh1"); sh.Primary != "r1" || sh.Term != 2 || s.Rule("sh1").Leader != "r1" {
			t.Errorf("%+v", sh)
		}
		// A promoted instance is known by its own report before the store says so; an older term is not.
		h := replica("r2", 0)
		h.Role, h.Term, h.FlushLSN = catalog.RolePrimary, 3, 10
		s = w.report(h)
		if sh := s.Shard("sh1"); sh.Primary != "r2" || sh.Term != 3 {
			t.Errorf("%+v", sh)
		}
		h.Term = 1
		if sh := w.report(h).Shard("sh1"); sh.Primary != "r1" || sh.Term != 2 {
			t.Errorf("%+v", sh)
		}
	})
}

func TestBadDocumentIsLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.store.Put(t.Context(), catalog.ShardKey(cluster, "bad"), []byte("{"), catalog.Always())
		w.store.Put(t.Context(), catalog.Prefix(cluster)+"unheard/of", []byte("{"), catalog.Always())
		w.putShard(catalog.Shard{UID: "sh2"})
		synctest.Wait()
		s := w.live.Snapshot()
		if s.Shard("bad") != nil || s.Shard("sh2") == nil || s.Shard("sh1") == nil {
			t.Errorf("%+v", s.Shards)
		}
	})
}

func TestStoreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		away := errors.New("away")
		w.store.Interrupt(away)
		time.Sleep(time.Hour)
		synctest.Wait()
		if !errors.Is(w.live.StoreError(), away) {
			t.Errorf("store error %v", w.live.StoreError())
		}
		s := w.report(primary(300), replica("r1", 300)) // health goes on
		w.wantLag(s, "r1", "0s")
		if s.Shard("sh1") == nil || len(s.Nodes) != 3 {
			t.Error("what was known is gone")
		}
		w.store.Interrupt(nil)
		w.putShard(catalog.Shard{UID: "sh2"})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if w.live.Snapshot().Shard("sh2") == nil || w.live.StoreError() != nil {
			t.Errorf("not back: %v", w.live.StoreError())
		}
	})
}

func TestStoreAwayAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		store.Interrupt(errors.New("away"))
		live := catalog.NewLive(store, cluster, quiet)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- live.Run(ctx) }()
		time.Sleep(time.Minute)
		if live.Snapshot() != nil {
			t.Error("a Snapshot of nothing")
		}
		store.Interrupt(nil)
		<-live.Ready()
		if live.Snapshot() == nil {
			t.Error("ready without a Snapshot")
		}
		cancel()
		<-done
	})
}

func TestCompactionMeansListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.store.Interrupt(errors.New("away")) // the watch hears nothing meanwhile
		synctest.Wait()
		w.store.Interrupt(nil)
		for i := range 50 {
			w.putShard(catalog.Shard{UID: fmt.Sprint("s", i)})
			w.store.Compact(1 << 40)
		}
		w.store.Delete(t.Context(), catalog.ShardKey(cluster, "sh1"), catalog.Always())
		w.store.Compact(1 << 40)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if s := w.live.Snapshot(); len(s.Shards) != 50 || s.Shard("sh1") != nil {
			t.Errorf("%d shards", len(s.Shards))
		}
	})
}

// switching is a Store that can be replaced by another behind the back of its user: a restored or emptied etcd.
type switching struct {
	catalog.Store // not used
	now           atomic.Pointer[memstore.Store]
}

func (s *switching) List(ctx context.Context, prefix string) ([]catalog.Entry, int64, error) {
	return s.now.Load().List(ctx, prefix)
}

func (s *switching) Watch(ctx context.Context, prefix string, from int64) iter.Seq2[catalog.Batch, error] {
	return s.now.Load().Watch(ctx, prefix, from)
}

func TestStoreThatWentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := memstore.New()
		for i := range 5 {
			catalog.PutShard(t.Context(), full, cluster, catalog.Shard{UID: fmt.Sprint("s", i)}, 0)
		}
		store := &switching{}
		store.now.Store(full)
		live := catalog.NewLive(store, cluster, quiet)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- live.Run(ctx) }()
		<-live.Ready()
		synctest.Wait()
		store.now.Store(memstore.New())
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(live.Snapshot().Shards) != 5 || live.StoreError() == nil {
			t.Errorf("%d shards, %v", len(live.Snapshot().Shards), live.StoreError())
		}
		cancel()
		<-done
	})
}

func TestKeepRegistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		ctx, cancel := context.WithCancel(t.Context())
		var ids []int64
		done := make(chan error, 1)
		go func() {
			done <- catalog.KeepRegistered(ctx, store, 5*time.Second, quiet, func(ctx context.Context, l catalog.Lease) error {
				ids = append(ids, l.ID())
				_, err := l.Put(ctx, "/a", nil, catalog.Absent(""))
				return err
			})
		}()
		there := func() bool {
			synctest.Wait()
			_, err := store.Get(t.Context(), "/a")
			return err == nil
		}
		if !there() {
			t.Fatal("not registered")
		}
		store.ExpireLease(ids[0])
		if there() {
			t.Error("the lost lease's key is there")
		}
		time.Sleep(time.Second)
		if !there() || len(ids) != 2 {
			t.Error("not registered again")
		}
		store.Interrupt(errors.New("away"))
		store.ExpireLease(ids[1])
		time.Sleep(time.Minute)
		store.Interrupt(nil)
		time.Sleep(10 * time.Second)
		if !there() {
			t.Error("not registered again after the store was away")
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || there() {
			t.Errorf("%v, still there: %t", err, there())
		}
	})
}
