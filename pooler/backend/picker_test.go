package backend

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"neki/catalog"
	"neki/catalog/memstore"
	"neki/settings"
)

// cluster is a view of one shard, "sh1", made by hand.
type cluster struct {
	shard  catalog.Shard
	nodes  []*catalog.Node
	health map[string]*catalog.NodeHealth
}

func (c *cluster) Shard(uid string) *catalog.Shard {
	if uid != c.shard.UID {
		return nil
	}
	return &c.shard
}

func (c *cluster) Node(id string) *catalog.Node {
	for _, n := range c.nodes {
		if n.ID == id {
			return n
		}
	}
	return nil
}

func (c *cluster) NodesOf(string) []*catalog.Node         { return c.nodes }
func (c *cluster) Health(node string) *catalog.NodeHealth { return c.health[node] }
func (c *cluster) add(n *catalog.Node, h *catalog.NodeHealth) {
	c.nodes, c.health[n.ID] = append(c.nodes, n), h
}

// newCluster has the primary p, without which a shard is none.
func newCluster() *cluster {
	c := &cluster{shard: catalog.Shard{UID: "sh1", Name: "sh1", Primary: "p"}, health: map[string]*catalog.NodeHealth{}}
	c.add(&catalog.Node{ID: "p", Shard: "sh1", Role: catalog.RolePrimary, Cell: "az-a"},
		&catalog.NodeHealth{Health: catalog.Health{Role: catalog.RolePrimary, State: catalog.StateServing}, LagKnown: true})
	return c
}

// replica adds a serving replica and gives its parts to change.
func (c *cluster) replica(id, cell string, lag time.Duration) (*catalog.Node, *catalog.NodeHealth) {
	n := &catalog.Node{ID: id, Shard: "sh1", Role: catalog.RoleReplica, Cell: cell, Desired: catalog.DesiredRun}
	h := &catalog.NodeHealth{
		Health: catalog.Health{Node: id, Role: catalog.RoleReplica, State: catalog.StateServing, ReplayLSN: 0x3000148},
		Lag:    lag, LagKnown: true,
	}
	c.add(n, h)
	return n, h
}

func request(n settings.Neki) *Request {
	return &Request{
		Shard: "sh1", Role: catalog.RoleReplica, Neki: n, Lag: Lag{Min: 30 * time.Second, Max: 15 * time.Minute},
	}
}

// reasons runs the judgement and gives "node tier reason" in order.
func reasons(p *Picker, c *cluster, r *Request) []string {
	var out []string
	for _, k := range p.candidates(c, r) {
		line := k.Node + " " + k.Tier
		if k.Reason != "" {
			line += " " + k.Reason
		}
		out = append(out, line)
	}
	return out
}

func TestCandidates(t *testing.T) {
	type tweak func(c *cluster, r *Request)
	for _, tc := range []struct {
		name  string
		neki  settings.Neki
		tweak tweak
		want  []string
		wait  bool
	}{
		{name: "recency, then locality", want: []string{"a preferred", "b preferred", "c tolerable"}},
		{
			name: "recency require", neki: settings.Neki{Recency: settings.Require},
			want: []string{"a preferred", "b preferred", "c excluded lag 2m > 30s (replica_recency require)"},
		},
		{
			name: "recency off leaves locality", neki: settings.Neki{Recency: settings.Off},
			want: []string{"a preferred", "c preferred", "b preferred"},
		},
		{
			name: "locality off", neki: settings.Neki{Locality: settings.Off},
			want: []string{"a preferred", "b preferred", "c tolerable"},
		},
		{
			name: "locality require", neki: settings.Neki{Locality: settings.Require},
			want: []string{"a preferred", "c tolerable", "b excluded wrong cell az-b"},
		},
		{
			name: "above max, whatever recency says", neki: settings.Neki{Recency: settings.Off},
			tweak: func(c *cluster, _ *Request) { c.health["a"].Lag = 17 * time.Minute },
			want:  []string{"c preferred", "b preferred", "a excluded lag 17m > 15m"},
		},
		{
			name:  "exactly at the limits",
			tweak: func(c *cluster, _ *Request) { c.health["a"].Lag, c.health["c"].Lag = 30*time.Second, 15*time.Minute },
			want:  []string{"a preferred", "b preferred", "c tolerable"},
		},
		{
			name: "unknown lag",
			tweak: func(c *cluster, _ *Request) {
				c.health["a"].LagKnown, c.health["a"].LagReason = false, "the receiver is down"
				c.health["b"].LagKnown = false
			},
			want: []string{"c tolerable", "a excluded lag unknown: the receiver is down", "b excluded lag unknown"},
		},
		{
			name: "states",
			tweak: func(c *cluster, _ *Request) {
				c.nodes[1].Desired, c.nodes[1].Reason = catalog.DesiredFenced, "disk check"
				c.health["b"].State, c.health["b"].Reason = catalog.StateUnreachable, "no report from the agent"
				delete(c.health, "c")
			},
			want: []string{
				"a excluded fenced: disk check", "b excluded unreachable: no report from the agent",
				"c excluded unreachable: no health report",
			},
		},
		{
			name: "a primary is no replica",
			tweak: func(c *cluster, _ *Request) {
				c.shard.Primary = "a"
				c.health["b"].Role = catalog.RolePrimary
			},
			want: []string{"c tolerable", "b excluded not in recovery", "p excluded role primary, not replica"},
		},
		{
			name:  "rdonly does not serve target replica",
			tweak: func(c *cluster, _ *Request) { c.nodes[1].Role = catalog.RoleRdonly },
			want:  []string{"b preferred", "c tolerable", "a excluded role rdonly, not replica"},
		},
		{
			name: "target rdonly",
			tweak: func(c *cluster, r *Request) {
				r.Role = catalog.RoleRdonly
				c.nodes[1].Role, c.nodes[3].Role = catalog.RoleRdonly, catalog.RoleRdonly
			},
			want: []string{"a preferred", "c tolerable", "b excluded role replica, not rdonly"},
		},
		{
			name: "floor", neki: settings.Neki{Consistency: settings.SessionConsistency},
			tweak: func(c *cluster, r *Request) {
				r.Floor = 0x3000148
				c.health["a"].ReplayLSN--
			},
			want: []string{"b preferred", "c tolerable", "a excluded not caught up to 0/3000148"},
		},
		{
			name: "nobody has caught up: waiting helps", neki: settings.Neki{Consistency: settings.SessionConsistency},
			tweak: func(c *cluster, r *Request) {
				r.Floor = 0x3000149
				c.health["b"].LagKnown = false
			},
			want: []string{
				"a excluded not caught up to 0/3000149", "b excluded lag unknown", "c excluded not caught up to 0/3000149",
			},
			wait: true,
		},
		{
			name: "waiting does not help one of another cell",
			neki: settings.Neki{Consistency: settings.SessionConsistency, Locality: settings.Require},
			tweak: func(c *cluster, r *Request) {
				r.Floor = 0x3000149
				c.nodes[1].Cell, c.nodes[3].Cell = "az-b", "az-c"
			},
			want: []string{"a excluded wrong cell az-b", "b excluded wrong cell az-b", "c excluded wrong cell az-c"},
		},
		{
			name: "bounded", neki: settings.Neki{Consistency: settings.Bounded, Bound: 5 * time.Second},
			want: []string{
				"a preferred", "b excluded lag 6s > 5s (replica_consistency bounded)",
				"c excluded lag 2m > 5s (replica_consistency bounded)",
			},
			tweak: func(c *cluster, _ *Request) { c.health["b"].Lag = 6 * time.Second },
		},
		{
			name:  "the one that failed is avoided",
			tweak: func(_ *cluster, r *Request) { r.Avoid = "a" },
			want:  []string{"b preferred", "c tolerable", "a excluded failed this statement"},
		},
		{
			name: "the session's own comes first", neki: settings.Neki{Affinity: settings.AffinitySession},
			tweak: func(_ *cluster, r *Request) { r.Sticky = "c" },
			want:  []string{"c tolerable", "a preferred", "b preferred"},
		},
		{
			name: "primary", tweak: func(_ *cluster, r *Request) { r.Role = catalog.RolePrimary },
			want: []string{"p preferred"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster()
			c.replica("a", "az-a", 0)
			c.replica("b", "az-b", time.Second)
			c.replica("c", "az-a", 2*time.Minute)
			r := request(tc.neki)
			if tc.tweak != nil {
				tc.tweak(c, r)
			}
			p := &Picker{Cell: "az-a"}
			got := reasons(p, c, r)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			choice := p.pick(c, r)
			if choice.Wait != tc.wait {
				t.Errorf("Wait = %v, want %v", choice.Wait, tc.wait)
			}
			if first := p.candidates(c, r)[0]; first.Eligible() != (choice.Node != nil) {
				t.Errorf("picked %v, first candidate is %+v", choice.Node, first)
			}
		})
	}
}

func TestNoReplicaError(t *testing.T) {
	c := newCluster()
	c.replica("a", "az-a", 17*time.Minute)
	_, h := c.replica("b", "az-a", 0)
	h.LagKnown = false
	r := request(settings.Default())
	p := &Picker{Cell: "az-a"}
	err := NoReplicaError(&c.shard, r, p.candidates(c, r))
	if err.Code != "NK001" || err.Message != `no eligible replica for shard "sh1"` {
		t.Errorf("got %v", err)
	}
	if want := "a: lag 17m > 15m\nb: lag unknown"; err.Detail != want {
		t.Errorf("detail %q, want %q", err.Detail, want)
	}
	if err.Hint == "" {
		t.Error("no hint")
	}
	r.Role = catalog.RoleRdonly
	err = NoReplicaError(&c.shard, r, p.candidates(c, r))
	if want := "Shard sh1 has none: `neki dev --rdonly 1` makes one; or SET __neki.target = 'replica'."; err.Hint != want {
		t.Errorf("hint %q, want %q", err.Hint, want)
	}
}

func TestShortDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1500 * time.Microsecond: "1ms", 1234 * time.Millisecond: "1.234s", 17*time.Minute + 300*time.Millisecond: "17m",
		90 * time.Second: "1m30s", 2 * time.Hour: "2h", 20 * time.Minute: "20m", 3*time.Hour + 5*time.Second: "3h0m5s",
	} {
		if got := shortDuration(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

// drawCluster makes any shard with up to eight replicas.
func drawCluster(t *rapid.T) *cluster {
	c := newCluster()
	for i := range rapid.IntRange(0, 8).Draw(t, "replicas") {
		n, h := c.replica(fmt.Sprintf("r%d", i), rapid.SampledFrom([]string{"az-a", "az-b"}).Draw(t, "cell"),
			rapid.SampledFrom([]time.Duration{0, time.Second, 30 * time.Second, time.Minute, time.Hour}).Draw(t, "lag"))
		h.LagKnown = rapid.IntRange(0, 9).Draw(t, "lag known") > 0
		h.ReplayLSN = catalog.LSN(rapid.IntRange(90, 110).Draw(t, "replay"))
		n.Role = rapid.SampledFrom([]catalog.Role{catalog.RoleReplica, catalog.RoleReplica, catalog.RoleRdonly}).Draw(t, "role")
		n.Desired = rapid.SampledFrom([]string{"", "run", "run", "run", "fenced"}).Draw(t, "desired")
		h.State = rapid.SampledFrom([]catalog.State{
			catalog.StateServing, catalog.StateServing, catalog.StateServing, catalog.StateCatchingUp,
		}).Draw(t, "state")
	}
	return c
}

func drawRequest(t *rapid.T) *Request {
	policy := rapid.SampledFrom([]settings.Policy{settings.Prefer, settings.Require, settings.Off})
	r := request(settings.Neki{
		Recency: policy.Draw(t, "recency"), Locality: policy.Draw(t, "locality"),
		Affinity:    rapid.SampledFrom([]settings.Affinity{settings.AffinityNone, settings.AffinitySession}).Draw(t, "affinity"),
		Consistency: rapid.SampledFrom([]settings.Consistency{settings.Eventual, settings.SessionConsistency, settings.Bounded}).Draw(t, "consistency"),
		Bound:       time.Second,
	})
	r.Role = rapid.SampledFrom([]catalog.Role{catalog.RoleReplica, catalog.RoleRdonly}).Draw(t, "asked")
	if r.Neki.Consistency == settings.SessionConsistency {
		r.Floor = catalog.LSN(rapid.IntRange(0, 110).Draw(t, "floor"))
	}
	r.Sticky = rapid.SampledFrom([]string{"", "r0", "r1", "p"}).Draw(t, "sticky")
	return r
}

// eligibleBySpec restates who is eligible, straight from the text of the settings.
func eligibleBySpec(c *cluster, n *catalog.Node, r *Request) bool {
	h := c.health[n.ID]
	return n.Role == r.Role && n.ID != c.shard.Primary && (n.Desired == "" || n.Desired == "run") &&
		h.State == catalog.StateServing && h.LagKnown && h.Lag <= r.Lag.Max && h.ReplayLSN >= r.Floor &&
		(r.Neki.Recency != settings.Require || h.Lag <= r.Lag.Min) &&
		(r.Neki.Locality != settings.Require || n.Cell == "az-a") &&
		(r.Neki.Consistency != settings.Bounded || h.Lag <= r.Neki.Bound)
}

// groupBySpec orders eligible nodes; smaller is better.
func groupBySpec(c *cluster, n *catalog.Node, r *Request) int {
	group := 0
	if r.Neki.Recency == settings.Prefer && c.health[n.ID].Lag > r.Lag.Min {
		group = 2
	}
	if r.Neki.Locality == settings.Prefer && n.Cell != "az-a" {
		group++
	}
	return group
}

func TestPickProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, r := drawCluster(t), drawRequest(t)
		source := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
		loads := map[string]int{}
		for _, n := range c.nodes {
			loads[n.ID] = rapid.IntRange(0, 3).Draw(t, "load")
		}
		p := &Picker{Cell: "az-a", Rand: source.Uint64, Load: func(n *catalog.Node) int { return loads[n.ID] }}
		got := p.pick(c, r).Node
		best, eligible, sticky := 99, 0, false
		honoured := r.Neki.Affinity == settings.AffinitySession || r.Neki.Consistency == settings.SessionConsistency
		for _, n := range c.nodes {
			if eligibleBySpec(c, n, r) {
				eligible++
				best = min(best, groupBySpec(c, n, r))
				sticky = sticky || honoured && n.ID == r.Sticky
			}
		}
		switch {
		case got == nil:
			if eligible > 0 {
				t.Fatalf("picked none of %d eligible", eligible)
			}
			return
		case !eligibleBySpec(c, got, r):
			t.Fatalf("picked %s, which is not eligible", got.ID)
		case sticky && got.ID != r.Sticky:
			t.Fatalf("picked %s, not the session's own %s", got.ID, r.Sticky)
		case sticky:
			return
		case groupBySpec(c, got, r) != best:
			t.Fatalf("picked %s of group %d, the best is %d", got.ID, groupBySpec(c, got, r), best)
		}
		var group []*catalog.Node
		for _, n := range c.nodes {
			if eligibleBySpec(c, n, r) && groupBySpec(c, n, r) == best {
				group = append(group, n)
			}
		}
		if len(group) == 2 && loads[got.ID] > min(loads[group[0].ID], loads[group[1].ID]) {
			t.Fatalf("of %s and %s, picked the one with more outstanding statements", group[0].ID, group[1].ID)
		}
	})
}

// TestPickAgreesWithCandidates: nobody is picked that the list for people calls excluded, and the list is whole.
func TestPickAgreesWithCandidates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, r := drawCluster(t), drawRequest(t)
		p := &Picker{Cell: "az-a"}
		list := p.candidates(c, r)
		if len(list) != len(c.nodes)-1 {
			t.Fatalf("%d candidates of %d replicas", len(list), len(c.nodes)-1)
		}
		got := p.pick(c, r)
		excludedSeen, picked := false, got.Node == nil
		for _, k := range list {
			if (k.Tier == "excluded") == k.Eligible() {
				t.Fatalf("tier and reason disagree: %+v", k)
			}
			if excludedSeen && k.Eligible() {
				t.Fatal("an eligible one stands behind an excluded one")
			}
			excludedSeen = excludedSeen || !k.Eligible()
			if got.Node != nil && k.Node == got.Node.ID {
				picked = k.Eligible()
			}
		}
		if !picked || got.Node == nil && len(list) > 0 && list[0].Eligible() {
			t.Fatalf("picked %v of %+v", got.Node, list)
		}
	})
}

func TestSpreadUnderEqualLoad(t *testing.T) {
	for replicas := 2; replicas <= 5; replicas++ {
		c := newCluster()
		for i := range replicas {
			c.replica(fmt.Sprintf("r%d", i), "az-a", 0)
		}
		c.replica("far", "az-b", 0)
		source := rand.New(rand.NewPCG(7, uint64(replicas)))
		p := &Picker{Cell: "az-a", Rand: source.Uint64, Load: func(*catalog.Node) int { return 0 }}
		const picks = 20_000
		counts := map[string]int{}
		for range picks {
			counts[p.pick(c, request(settings.Default())).Node.ID]++
		}
		even := picks / replicas
		for i := range replicas {
			if n := counts[fmt.Sprintf("r%d", i)]; n < even*9/10 || n > even*11/10 {
				t.Errorf("%d replicas: r%d got %d of %d, even is %d", replicas, i, n, picks, even)
			}
		}
		if counts["far"] > 0 {
			t.Errorf("the other cell got %d", counts["far"])
		}
	}
}

// TestSpreadFollowsLoad: when each statement stays outstanding, nobody runs far ahead.
func TestSpreadFollowsLoad(t *testing.T) {
	c := newCluster()
	for i := range 4 {
		c.replica(fmt.Sprintf("r%d", i), "az-a", 0)
	}
	loads := map[string]int{"r0": 100}
	p := &Picker{Cell: "az-a", Load: func(n *catalog.Node) int { return loads[n.ID] }}
	for range 300 {
		loads[p.pick(c, request(settings.Default())).Node.ID]++
	}
	for id, n := range loads {
		if n < 80 || n > 120 {
			t.Errorf("%s has %d of 400", id, n)
		}
	}
}

func TestPickAllocatesNothing(t *testing.T) {
	c := newCluster()
	for i := range 6 {
		c.replica(fmt.Sprintf("r%d", i), "az-a", 0)
	}
	p := &Picker{Cell: "az-a", Load: func(*catalog.Node) int { return 0 }}
	r := request(settings.Default())
	if n := testing.AllocsPerRun(1000, func() { p.pick(c, r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	var snap catalog.Snapshot
	if n := testing.AllocsPerRun(1000, func() { p.Pick(&snap, r) }); n != 0 {
		t.Errorf("%v allocations for a Snapshot", n)
	}
}

// TestPickOnLiveSnapshot follows a real catalog: reads leave a replica whose receiver stops and one whose report gets old.
func TestPickOnLiveSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		put := func(_ int64, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		put(catalog.PutShard(t.Context(), store, "main", catalog.Shard{UID: "sh1", Name: "one", Primary: "p", Term: 1}, catalog.AnyRev))
		for _, id := range []string{"p", "r1", "r2"} { // which is the primary, the shard says
			n := catalog.Node{ID: id, Shard: "sh1", Role: catalog.RoleReplica, Cell: "az-a"}
			put(catalog.PutNode(t.Context(), store, "main", n, catalog.AnyRev))
		}
		live := catalog.NewLive(store, "main", slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- live.Run(ctx) }()
		<-live.Ready()
		p := &Picker{Cell: "az-a"}
		report := func(id string, role catalog.Role, streaming bool) {
			live.Report(catalog.Health{
				Node: id, Role: role, State: catalog.StateServing, FlushLSN: 100, ReplayLSN: 100, Streaming: streaming,
				Ring: []catalog.Sample{{LSN: 100}},
			})
		}
		check := func(want ...string) {
			t.Helper()
			synctest.Wait()
			snap := live.Snapshot()
			var got []string
			for _, c := range p.Candidates(snap, request(settings.Default())) {
				got = append(got, c.Node+" "+verdictOf(c))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			for range 50 {
				if n := p.Pick(snap, request(settings.Default())).Node; n != nil && !slices.Contains(want, n.ID+" preferred") {
					t.Errorf("picked %s", n.ID)
				}
			}
		}
		check("r1 unreachable: no health report", "r2 unreachable: no health report")
		report("p", catalog.RolePrimary, false)
		report("r1", catalog.RoleReplica, true)
		report("r2", catalog.RoleReplica, true)
		check("r1 preferred", "r2 preferred")
		report("r1", catalog.RoleReplica, false)
		check("r2 preferred", "r1 lag unknown: the receiver is down")
		time.Sleep(2 * time.Second)
		report("p", catalog.RolePrimary, false)
		report("r1", catalog.RoleReplica, true)
		time.Sleep(1500 * time.Millisecond)
		check("r1 preferred", "r2 unreachable: no report from the agent for more than 3s")
		cancel()
		<-done
	})
}

// verdictOf is the reason of an excluded candidate, else its tier.
func verdictOf(c Candidate) string {
	if c.Reason != "" {
		return c.Reason
	}
	return c.Tier
}

func BenchmarkPick(b *testing.B) {
	c := newCluster()
	for i := range 3 {
		c.replica(fmt.Sprintf("r%d", i), "az-a", 0)
	}
	p := &Picker{Cell: "az-a", Load: func(*catalog.Node) int { return 0 }}
	r := request(settings.Default())
	b.ReportAllocs()
	for b.Loop() {
		p.pick(c, r)
	}
}
