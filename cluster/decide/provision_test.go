package decide

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"neki/catalog"
)

// empty is a member whose agent waits for orders.
func empty(id string) Member { return Member{ID: id, Address: id + ":1", Known: true, Empty: true} }

// primary is a member that leads shard system "7" in term 1, as made.
func primary(id string) Member {
	return Member{
		ID: id, Address: id + ":1", Known: true, SystemID: "7", OwnTerm: 1, Up: true, Primary: true, Timeline: 1,
	}
}

func replica(id, source string) Member {
	return Member{
		ID: id, Address: id + ":1", Known: true, SystemID: "7", Standby: true, Source: source, SourceAt: source + ":1",
		Up: true, Streaming: true, Timeline: 1,
	}
}

func TestProvision(t *testing.T) {
	claimed := catalog.Shard{Primary: "a", Term: 1}
	made := catalog.Shard{Primary: "a", Term: 1, SystemID: "7"}
	boot := catalog.Rule{Phase: PhaseBootstrap, Leader: "a", Cohort: []string{"a"}, Policy: PolicySync}
	active := catalog.Rule{Phase: PhaseActive, Leader: "a", Cohort: []string{"a", "b"}, Policy: PolicySync}
	led := func(m Member, acks int, peers, standbys []string) Member {
		m.Ordered, m.Acks, m.Peers, m.Standbys = true, acks, peers, standbys
		return m
	}
	with := func(m Member, change func(*Member)) Member { change(&m); return m }
	cases := []struct {
		name  string
		shard Shard
		want  string // actions, then problems after "!"
	}{
		{"nobody", Shard{Want: 3, Patient: true}, "! waits for agents: 0 of 3 are there"},
		{"too few yet", Shard{Want: 3, Patient: true, Members: []Member{empty("a")}}, "! waits for agents: 1 of 3 are there"},
		{"too few, no more patience", Shard{Want: 3, Members: []Member{empty("b"), empty("c")}}, "claim b"},
		{
			"rdonly never leads",
			Shard{Want: 1, Members: []Member{with(empty("a"), func(m *Member) { m.Rdonly = true })}},
			"! waits for agents: 0 of 1 are there",
		},
		{"one doesn't answer", Shard{Want: 1, Members: []Member{empty("a"), {ID: "b"}}}, "! node b doesn't answer: it may hold data"},
		{
			"one has data",
			Shard{Want: 1, Members: []Member{empty("a"), replica("b", "x")}},
			"! node b holds data (system 7) that the shard doesn't know of",
		},
		{
			"data but no primary",
			Shard{Doc: catalog.Shard{SystemID: "7"}, Want: 1, Members: []Member{empty("a")}},
			"! the shard has data (system 7) but no primary",
		},
		{"initdb", Shard{Doc: claimed, Rule: boot, Want: 2, Members: []Member{empty("a"), empty("b")}}, "init a"},
		{
			"initdb with data elsewhere",
			Shard{Doc: claimed, Rule: boot, Want: 2, Members: []Member{empty("a"), replica("b", "x")}},
			"! node b holds data (system 7) before the shard was initialised",
		},
		{
			"data of another origin",
			Shard{
				Doc: claimed, Rule: boot, Want: 1,
				Members: []Member{with(primary("a"), func(m *Member) { m.OwnTerm = 0 })},
			},
			"! node a, chosen as the first primary, holds data (system 7) of another origin",
		},
		{"made", Shard{Doc: claimed, Rule: boot, Want: 2, Members: []Member{primary("a"), empty("b")}}, "record system 7"},
		{
			"never initdb again",
			Shard{Doc: made, Rule: boot, Want: 2, Members: []Member{empty("a"), empty("b")}},
			`! the primary, a, holds system "", not the shard's 7`,
		},
		{
			"slots come before copies",
			Shard{Doc: made, Rule: boot, Want: 2, Patient: true, Members: []Member{primary("a"), empty("b")}},
			"apply a; lead a slots [b] 1 of []",
		},
		{"copy", Shard{
			Doc: made, Rule: boot, Want: 2, Patient: true,
			Members: []Member{led(primary("a"), 1, []string{"b"}, []string{}), empty("b")},
		}, "apply a; clone b from a"},
		{"copying", Shard{Doc: made, Rule: boot, Want: 2, Patient: true, Members: []Member{
			led(primary("a"), 1, []string{"b"}, []string{}), with(empty("b"), func(m *Member) { m.Busy = true }),
		}}, "apply a"},
		{
			"rule before Postgres",
			Shard{
				Doc: made, Rule: boot, Want: 2, Patient: true,
				Members: []Member{led(primary("a"), 1, []string{"b"}, []string{}), replica("b", "a")},
			},
			"apply a; grow 1 of [b]; lead a slots [b] 1 of [b]",
		},
		{"opened last", Shard{
			Doc: made, Want: 2, Rule: catalog.Rule{
				Phase: PhaseBootstrap, Leader: "a", Cohort: []string{"a", "b"}, Policy: PolicySync,
			},
			Members: []Member{led(primary("a"), 1, []string{"b"}, []string{"b"}), replica("b", "a")},
		}, "apply a; open"},
		{"alone", Shard{
			Doc: made, Want: 1, Rule: catalog.Rule{
				Phase: PhaseBootstrap, Leader: "a", Cohort: []string{"a"}, Policy: PolicyNone,
			},
			Members: []Member{led(primary("a"), 0, []string{}, []string{})},
		}, "apply a; open"},
		{"whole", Shard{
			Doc: made, Rule: active, Want: 2,
			Members: []Member{led(primary("a"), 1, []string{"b"}, []string{"b"}), replica("b", "a")},
		}, "apply a"},
		{"an acknowledger that went stays", Shard{
			Doc: made, Rule: active, Want: 2,
			Members: []Member{led(primary("a"), 1, []string{"b"}, []string{"b"}), {ID: "b"}},
		}, "apply a! node b doesn't answer"},
		{
			"the primary has moved",
			Shard{Doc: made, Rule: active, Want: 2, Members: []Member{
				with(led(primary("a"), 1, []string{"b"}, []string{"b"}), func(m *Member) { m.Address = "new:1" }), replica("b", "a"),
			}},
			"apply a; follow b from a",
		},
		{
			"another system",
			Shard{Doc: made, Rule: active, Want: 2, Members: []Member{
				led(primary("a"), 1, []string{"b"}, []string{"b"}), with(replica("b", "a"), func(m *Member) { m.SystemID = "8" }),
			}},
			`apply a! node b holds system "8", not the shard's 7`,
		},
		{"rdonly doesn't acknowledge", Shard{Doc: made, Rule: active, Want: 2, Members: []Member{
			led(primary("a"), 1, []string{"b", "r"}, []string{"b"}), replica("b", "a"),
			with(replica("r", "a"), func(m *Member) { m.Rdonly = true }),
		}}, "apply a"},
		{"the primary is down", Shard{Doc: made, Rule: active, Want: 2, Members: []Member{
			with(primary("a"), func(m *Member) { m.Up = false }), replica("b", "a"),
		}}, "! the primary, a, is not serving"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			v := Provision(c.shard)
			var actions []string
			for _, a := range v.Actions {
				actions = append(actions, a.String())
			}
			got := strings.Join(actions, "; ")
			if len(v.Problems) > 0 {
				got += "! " + strings.Join(v.Problems, "; ")
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// sim is a shard whose actions may fail before or after their effect, and whose members come, go and stop streaming.
type sim struct {
	t       *rapid.T
	s       Shard
	system  int
	inits   int
	hidden  map[string]Member // as they are while they don't answer
	growing [][]string
}

// act has an action's effect. Whether the admin hears of it is another matter.
func (m *sim) act(a Action) {
	node := m.s.member(a.Node)
	switch a.Kind {
	case Claim:
		m.s.Doc.Primary, m.s.Doc.Term = a.Node, 1
		m.s.Rule = catalog.Rule{Phase: PhaseBootstrap, Leader: a.Node, Cohort: []string{a.Node}, Policy: PolicySync, ModRev: 1}
	case Init:
		m.inits++
		m.system++
		if !node.Empty || m.s.Doc.SystemID != "" {
			m.t.Fatalf("initdb over data, or of a shard that was initialised: %+v", m.s)
		}
		node.Empty, node.SystemID, node.OwnTerm, node.Up = false, fmt.Sprint(m.system), 1, true
		node.Primary, node.Timeline = true, 1
	case Record:
		m.s.Doc.SystemID = a.SystemID
	case Lead:
		for _, id := range a.Standbys {
			if !slices.Contains(m.s.Rule.Cohort, id) {
				m.t.Fatalf("Postgres would wait for %s, which the rule %v doesn't name", id, m.s.Rule.Cohort)
			}
		}
		node.Ordered, node.Peers, node.Standbys, node.Acks = true, a.Peers, a.Standbys, a.Acks
	case Clone:
		if !node.Empty || !slices.Contains(m.s.member(a.Source).Peers, a.Node) {
			m.t.Fatalf("copied over data, or without a slot: %+v", m.s)
		}
		src := m.s.member(a.Source)
		node.Empty, node.SystemID, node.Standby, node.Source, node.SourceAt = false, src.SystemID, true, src.ID, src.Address
		node.Up, node.Streaming, node.Timeline = true, true, 1
	case Follow:
		node.Source, node.SourceAt = a.Source, m.s.member(a.Source).Address
	case Grow:
		m.growing = append(m.growing, a.Standbys)
		m.s.Rule.Cohort = append([]string{m.s.Rule.Leader}, a.Standbys...)
	case Open:
		m.s.Doc.Ready, m.s.Rule.Phase = true, PhaseActive
	}
}

func (m *sim) disturb() {
	id := rapid.SampledFrom(m.s.Members).Draw(m.t, "who").ID
	node := m.s.member(id)
	was, gone := m.hidden[id]
	switch rapid.SampledFrom([]string{"go", "stream", "move", "patience"}).Draw(m.t, "what") {
	case "go":
		if gone {
			*node = was
			delete(m.hidden, id)
		} else {
			m.hidden[id] = *node
			*node = Member{ID: id, Rdonly: node.Rdonly, Address: node.Address}
		}
	case "stream":
		node.Streaming = node.Standby && node.Known && !node.Streaming
	case "move":
		if !gone {
			node.Address += "'"
		}
	case "patience":
		m.s.Patient = false
	}
}

// settle brings all members back, and everything must then come to a whole shard.
func (m *sim) settle() {
	for id, was := range m.hidden {
		*m.s.member(id) = was
	}
	for range 20 {
		for i := range m.s.Members {
			n := &m.s.Members[i]
			n.Streaming = n.Standby
		}
		for _, a := range Provision(m.s).Actions {
			m.act(a)
		}
	}
}

func TestProvisionUnderFailures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &sim{t: t, hidden: map[string]Member{}, s: Shard{Want: 3, Patient: true}}
		for _, id := range []string{"a", "b", "c", "r"} {
			e := empty(id)
			e.Rdonly = id == "r"
			m.s.Members = append(m.s.Members, e)
		}
		steps := rapid.IntRange(0, 60).Draw(t, "steps")
		for range steps {
			if rapid.IntRange(0, 3).Draw(t, "disturb") == 0 {
				m.disturb()
				continue
			}
			v := Provision(m.s)
			stop := rapid.IntRange(0, len(v.Actions)).Draw(t, "crash after")
			for _, a := range v.Actions[:stop] {
				m.act(a)
			}
		}
		m.settle()
		if m.inits != 1 || !m.s.Doc.Ready || m.s.Rule.Phase != PhaseActive || len(m.s.Rule.Cohort) != 3 {
			t.Fatalf("after %d initdb: %+v", m.inits, m.s)
		}
		for _, list := range m.growing {
			if slices.Contains(list, "r") {
				t.Fatalf("an rdonly member acknowledges: %v", list)
			}
		}
		for _, n := range m.s.Members {
			if n.SystemID != m.s.Doc.SystemID {
				t.Fatalf("member %s has system %q", n.ID, n.SystemID)
			}
		}
	})
}
