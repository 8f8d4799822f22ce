package catalog_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"neki/catalog"
	"neki/internal/pgerr"
)

// TestTopology reads the documents of testdata/topology. After "parse" come the problems; then "place" gives where a table
// is, and "shard" the shard of a key in a group.
func TestTopology(t *testing.T) {
	datadriven.Walk(t, "testdata/topology", func(t *testing.T, path string) {
		var top *catalog.Topology
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var b strings.Builder
			switch d.Cmd {
			case "parse":
				var problems []catalog.Problem
				top, problems = catalog.ParseTopology([]byte(d.Input))
				for _, p := range problems {
					fmt.Fprintln(&b, p)
				}
				if top == nil {
					fmt.Fprintln(&b, "no topology")
				}
			case "place":
				for line := range strings.Lines(d.Input) {
					fmt.Fprintln(&b, placeText(top, strings.Fields(line)))
				}
			case "shard":
				var group string
				d.ScanArgs(t, "group", &group)
				for line := range strings.Lines(d.Input) {
					var key uint64
					if _, err := fmt.Sscanf(line, "%x", &key); err != nil {
						t.Fatal(err)
					}
					fmt.Fprintln(&b, top.Group(group).ShardOf(key))
				}
			default:
				t.Fatal(d.Cmd)
			}
			if b.Len() == 0 {
				return "ok\n"
			}
			return b.String()
		})
	})
}

func placeText(top *catalog.Topology, name []string) string {
	if len(name) == 1 {
		return fmt.Sprintf("%s: only shard %q", name[0], top.OnlyShard(name[0]))
	}
	place, err := top.Place(name[0], name[1], name[2])
	if err != nil {
		return pgerr.Code(err) + " " + pgerr.From(err).Message
	}
	text := fmt.Sprintf("%s: group %s, shards %s", strings.Join(name, "."), place.Group.UID, place.Shards())
	if place.Index != nil {
		text += fmt.Sprintf(", index %s (%s of %s)", place.Index.Name, place.Index.Type, place.Index.Column)
	}
	for _, g := range place.GSIs {
		text += ", gsi " + g.Name
	}
	for what, is := range map[string]bool{", reference": place.Reference, ", lookup": place.Lookup} {
		if is {
			text += what
		}
	}
	return text
}

// TestEveryKeyHasOneShard makes layouts at random and asks for keys at and beside the bounds.
func TestEveryKeyHasOneShard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bounds := rapid.SliceOfNDistinct(rapid.Uint64Range(1, 1<<63), 0, 12, rapid.ID).Draw(t, "bounds")
		top, problems := catalog.ParseTopology(layout(bounds))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		g := top.Group("g")
		for _, key := range append(bounds, 0, 1, 1<<63, ^uint64(0), rapid.Uint64().Draw(t, "key")) {
			for _, k := range []uint64{key - 1, key, key + 1} {
				var owners []string
				for _, r := range g.Ranges {
					if k >= r.Start && (r.End == 0 || k < r.End) {
						owners = append(owners, r.Shard)
					}
				}
				if len(owners) != 1 || owners[0] != g.ShardOf(k) {
					t.Errorf("key %x: %v, ShardOf gives %s", k, owners, g.ShardOf(k))
				}
			}
		}
	})
}

// layout writes a document whose group g has one shard for each range between bounds, in no order.
func layout(bounds []uint64) []byte {
	next := func(after uint64) (found uint64) {
		for _, b := range bounds {
			if b > after && (found == 0 || b < found) {
				found = b
			}
		}
		return found
	}
	var ranges []string
	for i, start := range append(bounds, 0) {
		r := fmt.Sprintf(`{"shard_uid": "s%d"`, i)
		if start > 0 {
			r += fmt.Sprintf(`, "start": %q`, catalog.BoundText(start))
		}
		if end := next(start); end > 0 {
			r += fmt.Sprintf(`, "end": "%016x"`, end)
		}
		ranges = append(ranges, r+"}")
	}
	return fmt.Appendf(nil, `{"authoritative_shard_group": "a", "shard_groups": [
		{"uid": "a", "key_ranges": [{"shard_uid": "s"}]}, {"uid": "g", "key_ranges": [%s]}]}`, strings.Join(ranges, ", "))
}

func TestColocated(t *testing.T) {
	top, problems := catalog.ParseTopology([]byte(`{
		"authoritative_shard_group": "a", "default_shard_group": "a",
		"shard_groups": [
			{"uid": "a", "key_ranges": [{"shard_uid": "s1"}]},
			{"uid": "g", "default_shard_index": "user", "key_ranges": [{"shard_uid": "s1", "end": "80"}, {"shard_uid": "s2", "start": "80"}]},
			{"uid": "h", "default_shard_index": "user", "key_ranges": [{"shard_uid": "s1", "end": "80"}, {"shard_uid": "s2", "start": "80"}]}],
		"shard_indexes": {
			"user": {"type": "xxhash", "columns": ["user_id"]}, "id": {"type": "xxhash", "columns": ["id"]},
			"mail": {"type": "xxhash", "columns": ["lower(mail)"]},
			"four": {"type": "modulo", "columns": ["id"], "index_params": {"modulus": 4}},
			"five": {"type": "modulo", "columns": ["id"], "index_params": {"modulus": 5}}},
		"databases": {"d": {"schemas": {"public": {
			"tables": {
				"users": {"shard_group": "g", "shard_index": "id"}, "orders": {"shard_group": "g"}, "items": {"shard_group": "g"},
				"mails": {"shard_group": "g", "shard_index": "mail"}, "other": {"shard_group": "h"}, "one": {"shard_group": "a"},
				"two": {"shard_group": "a"}, "m4": {"shard_group": "g", "shard_index": "four"},
				"m5": {"shard_group": "g", "shard_index": "five"}},
			"reference_tables": {"ref": {"shard_groups": ["g"]}}}}}}}`))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	for pair, want := range map[string]bool{
		"orders items": true, "users orders": true, "users mails": false, "orders other": false, "one two": true,
		"one orders": false, "ref ref": false, "ref orders": false, "m4 m5": false, "m4 m4": true, "users m4": false,
	} {
		names := strings.Fields(pair)
		a, b := top.Table("d", "public", names[0]), top.Table("d", "public", names[1])
		if got := catalog.Colocated(a, b); got != want || catalog.Colocated(b, a) != want {
			t.Errorf("%s: %t", pair, got)
		}
	}
}

func TestLookupsAllocateNothing(t *testing.T) {
	top, _ := catalog.ParseTopology(layout([]uint64{1 << 62, 1 << 61, 1 << 60, 1 << 59}))
	g := top.Group("g")
	allocs := testing.AllocsPerRun(100, func() {
		_ = g.ShardOf(1 << 61)
		_ = top.Table("d", "s", "t")
		_ = top.OnlyShard("d")
		if _, err := top.Place("d", "pg_catalog", "t"); err != nil {
			t.Error(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func TestTopologyRevisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx := t.Context()
		if s := w.live.Snapshot(); s.Topology() == nil || s.Topology().OnlyShard("any") != s.Authoritative().UID || s.Topology().Revision != 0 {
			t.Errorf("without a document: %+v", s.Topology())
		}
		doc := func(comment string) catalog.TopologyDocument {
			return catalog.TopologyDocument{Document: layout([]uint64{1 << 63}), By: "ada", Comment: comment}
		}
		for _, tc := range []struct {
			comment  string
			expected int64
			want     int64 // 0: a conflict
		}{{"first", 1, 0}, {"first", 0, 1}, {"again", 0, 0}, {"second", 1, 2}, {"late", 1, 0}, {"third", catalog.AnyRev, 3}} {
			rev, err := catalog.PutTopology(ctx, w.store, cluster, doc(tc.comment), tc.expected)
			if rev != tc.want || errors.Is(err, catalog.ErrConflict) != (tc.want == 0) {
				t.Errorf("%s on %d: %d, %v", tc.comment, tc.expected, rev, err)
			}
		}
		synctest.Wait()
		s := w.live.Snapshot()
		if s.Topology().Revision != 3 || s.Topology().Group("g") == nil || s.TopologyDocument.Comment != "third" {
			t.Errorf("%+v", s.TopologyDocument)
		}
		w.putShard(catalog.Shard{UID: "sh9"})
		synctest.Wait()
		if w.live.Snapshot().Topology() != s.Topology() {
			t.Error("the topology was compiled again for nothing")
		}
		history, err := catalog.TopologyHistory(ctx, w.store, cluster)
		if err != nil || len(history) != 3 || history[0].Comment != "third" || history[2].Revision != 1 || history[2].At.IsZero() {
			t.Errorf("%+v, %v", history, err)
		}
	})
}

// TestForcedTopology: what is wrong with a document that was put all the same is not placed, and the rest is.
func TestForcedTopology(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, tc := range []struct{ document, code string }{
			{`{"authoritative_shard_group": "a", "default_shard_group": "a", "shard_groups": [{"uid": "a", "key_ranges": [{"shard_uid": "s"}]}],
				"databases": {"d": {"schemas": {"s": {"tables": {"t": {"shard_group": "nowhere"}}}}}}}`, pgerr.TableNotPlaced},
			{`[]`, pgerr.TableNotPlaced},
		} {
			if _, err := catalog.PutTopology(t.Context(), w.store, cluster,
				catalog.TopologyDocument{Document: []byte(tc.document)}, catalog.AnyRev); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			top := w.live.Snapshot().Topology()
			if _, err := top.GroupOf("d", "s", "t"); pgerr.Code(err) != tc.code {
				t.Errorf("%s: %v", tc.document, err)
			}
			if top.OnlyShard("d") != "" {
				t.Error("one shard for all, and a table of it has no place")
			}
		}
	})
}

func FuzzParseTopology(f *testing.F) {
	f.Add(layout([]uint64{1 << 63}))
	f.Add([]byte(`{"shard_groups": [{"uid": "a", "key_ranges": [{"start": "zz"}]}]}`))
	f.Add([]byte(`{"databases": {"d": {"schemas": {"s": {"tables": {"t": null}, "sequences": {"q": []}}}}}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		top, problems := catalog.ParseTopology(doc)
		if top == nil && len(problems) == 0 {
			t.Fatal("neither a topology nor a problem")
		}
		if top == nil {
			return
		}
		if _, err := top.GroupOf("d", "s", "t"); err != nil && pgerr.Code(err) != pgerr.TableNotPlaced {
			t.Fatal(err)
		}
		_ = top.OnlyShard("d")
		for _, g := range top.Groups {
			if g.ShardOf(0) == "" || g.ShardOf(^uint64(0)) == "" {
				t.Fatal("a key without a shard")
			}
		}
	})
}
