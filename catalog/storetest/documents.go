package storetest

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"neki/catalog"
)

// The typed accessors, run on a real store, so that a fake can't hide what a real one refuses.

func testAccessors(t *testing.T, h Harness, _ string) {
	ctx, s, cluster := t.Context(), h.Store, "accessors"
	sh := catalog.Shard{UID: "sh1", Name: "one", Durability: "sync", Groups: []string{"main"}, Authoritative: true}
	sh.ModRev = must[int64](t)(catalog.PutShard(ctx, s, cluster, sh, 0))
	_, err := catalog.PutShard(ctx, s, cluster, sh, 0)
	wantErr(t, "PutShard over one that is there", err, catalog.ErrConflict)
	if diff := cmp.Diff(sh, must[catalog.Shard](t)(catalog.GetShard(ctx, s, cluster, "sh1"))); diff != "" {
		t.Error(diff)
	}
	got := must[catalog.Shard](t)(catalog.UpdateShard(ctx, s, cluster, "sh1", func(sh *catalog.Shard) error {
		sh.Primary, sh.Term = "n1", 2
		return nil
	}))
	if got.Primary != "n1" || got.ModRev <= sh.ModRev {
		t.Errorf("%+v", got)
	}
	n := catalog.Node{ID: "n1", Shard: "sh1", Role: catalog.RoleReplica, Cell: "a", Port: 5432, Since: time.Unix(7, 0).UTC()}
	n.ModRev = must[int64](t)(catalog.PutNode(ctx, s, cluster, n, catalog.AnyRev))
	if diff := cmp.Diff(n, must[catalog.Node](t)(catalog.GetNode(ctx, s, cluster, "sh1", "n1"))); diff != "" {
		t.Error(diff)
	}
	r := catalog.Rule{Term: 3, Phase: "active", Leader: "n1", Cohort: []string{"n1", "n2"}, W: 1, SwitchLSN: 0x3000148}
	r.ModRev = must[int64](t)(catalog.PutRule(ctx, s, cluster, "sh1", r, 0))
	if diff := cmp.Diff(r, must[catalog.Rule](t)(catalog.GetRule(ctx, s, cluster, "sh1"))); diff != "" {
		t.Error(diff)
	}
	if _, err := catalog.PutShard(ctx, s, cluster, catalog.Shard{UID: "a/b"}, 0); err == nil {
		t.Error("a name with a slash was accepted")
	}
	if err := catalog.DeleteNode(ctx, s, cluster, "sh1", "n1", n.ModRev); err != nil {
		t.Error(err)
	}
	_, err = catalog.GetNode(ctx, s, cluster, "sh1", "n1")
	wantErr(t, "GetNode of the deleted", err, catalog.ErrNotFound)
}

func testGatewayIndex(t *testing.T, h Harness, _ string) {
	const n = 5
	indexes := make([]int, n)
	leases := make([]catalog.Lease, n)
	var wg sync.WaitGroup
	for i := range n {
		leases[i] = must[catalog.Lease](t)(h.Store.Lease(t.Context(), 10*time.Second))
		wg.Go(func() {
			g := catalog.Gateway{ID: string(rune('a' + i))}
			g, err := catalog.RegisterGateway(t.Context(), h.Store, leases[i], "gateways", g)
			if err != nil {
				t.Error(err)
			}
			indexes[i] = g.Index
		})
	}
	wg.Wait()
	seen := map[int]bool{}
	for _, index := range indexes {
		if index < 0 || index >= n || seen[index] {
			t.Fatalf("indexes %v", indexes)
		}
		seen[index] = true
	}
	if err := leases[2].Close(); err != nil {
		t.Fatal(err)
	}
	lease := must[catalog.Lease](t)(h.Store.Lease(t.Context(), 10*time.Second))
	g := must[catalog.Gateway](t)(catalog.RegisterGateway(t.Context(), h.Store, lease, "gateways", catalog.Gateway{ID: "new"}))
	if g.Index != indexes[2] {
		t.Errorf("index %d, the free one is %d", g.Index, indexes[2])
	}
}

func testLeader(t *testing.T, h Harness, p string) {
	const cluster = "leader"
	first := must[catalog.Lease](t)(h.Store.Lease(t.Context(), 10*time.Second))
	second := must[catalog.Lease](t)(h.Store.Lease(t.Context(), 10*time.Second))
	epoch := must[int64](t)(catalog.AcquireLeader(t.Context(), first, cluster, catalog.Admin{ID: "a"}))
	_, err := catalog.AcquireLeader(t.Context(), second, cluster, catalog.Admin{ID: "b"})
	wantErr(t, "a second leader", err, catalog.ErrConflict)
	guard := []catalog.Cond{catalog.LeaderCond(cluster, epoch)}
	must[int64](t)(h.Store.Txn(t.Context(), guard, []catalog.Op{catalog.PutOp(p+"x", nil)}))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	next := must[int64](t)(catalog.AcquireLeader(t.Context(), second, cluster, catalog.Admin{ID: "b"}))
	if next <= epoch {
		t.Errorf("epoch %d after %d", next, epoch)
	}
	_, err = h.Store.Txn(t.Context(), guard, []catalog.Op{catalog.PutOp(p+"x", nil)})
	wantErr(t, "a deposed leader's write", err, catalog.ErrConflict)
}

func testEvents(t *testing.T, h Harness, _ string) {
	const cluster = "events"
	at := time.Unix(1000, 0).UTC()
	for _, kind := range []string{"first", "second", "third"} {
		// All at one time: each gets a key of its own.
		must[catalog.Event](t)(catalog.AppendEvent(t.Context(), h.Store, cluster, catalog.Event{At: at, Kind: kind}))
	}
	kinds := func() (got []string) {
		for _, e := range must[[]catalog.Event](t)(catalog.ListEvents(t.Context(), h.Store, cluster, 2)) {
			got = append(got, e.Kind)
		}
		return got
	}
	if diff := cmp.Diff([]string{"third", "second"}, kinds()); diff != "" {
		t.Error(diff)
	}
	if err := catalog.TrimEvents(t.Context(), h.Store, cluster, 1); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"third"}, kinds()); diff != "" {
		t.Error(diff)
	}
}
