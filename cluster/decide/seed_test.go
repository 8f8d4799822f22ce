package decide

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"neki/catalog"
)

// TestRestoredDataBecomesTheShard: the member that holds restored data leads, whatever the others' names; two such
// members, or one with data of unknown origin, are for people to look at.
func TestRestoredDataBecomesTheShard(t *testing.T) {
	empty := func(id string) Member { return Member{ID: id, Known: true, Empty: true} }
	seed := func(id string) Member { return Member{ID: id, Known: true, Seed: true, SystemID: "7"} }
	for _, tc := range []struct {
		name    string
		doc     catalog.Shard
		members []Member
		want    []string
	}{
		{"claimed", catalog.Shard{}, []Member{empty("a"), seed("b"), empty("c")}, []string{"claim b"}},
		{"two", catalog.Shard{}, []Member{seed("a"), seed("b"), empty("c")}, nil},
		{"beside other data", catalog.Shard{}, []Member{seed("a"), {ID: "b", Known: true, SystemID: "8"}, empty("c")}, nil},
		{"taken over", catalog.Shard{Primary: "b", Term: 1}, []Member{empty("a"), seed("b"), empty("c")}, []string{"init b"}},
		{
			"recorded",
			catalog.Shard{Primary: "b", Term: 1},
			[]Member{empty("a"), {ID: "b", Known: true, Up: true, Primary: true, SystemID: "7", OwnTerm: 1, Timeline: 3}, empty("c")},
			[]string{"record system 7"},
		},
	} {
		v := Provision(Shard{Doc: tc.doc, Members: tc.members, Want: 3})
		var got []string
		for _, a := range v.Actions {
			got = append(got, a.String())
			if a.Kind == Record && a.Timeline != 3 {
				t.Errorf("%s: timeline %d", tc.name, a.Timeline)
			}
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s: %s (problems %v)", tc.name, d, v.Problems)
		}
	}
}
