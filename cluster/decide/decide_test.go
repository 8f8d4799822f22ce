package decide

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"neki/catalog"
)

// TestDecisions runs testdata: each case describes a shard, and what Decide says to it. The first lines are of the shard,
// in key=value words; the others are of one member each:
//
//	rule 2.0 promoting leader= cohort= w=1 prev=1:a:a,b,c age=5s
//	a: primary streams=b,c        b: standby lsn=90
func TestDecisions(t *testing.T) {
	datadriven.Walk(t, "testdata/decide", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s := parseShard(t, d)
			v := Decide(s)
			var b strings.Builder
			for _, a := range v.Actions {
				if a.Kind != Apply {
					fmt.Fprintln(&b, a)
				}
			}
			for _, p := range v.Problems {
				fmt.Fprintln(&b, "!", p)
			}
			if b.Len() == 0 {
				return "nothing\n"
			}
			return b.String()
		})
	})
}

// words splits a line into its key=value words.
func words(line string) (names []string, values map[string]string) {
	values = map[string]string{}
	for _, w := range strings.Fields(line) {
		k, v, _ := strings.Cut(w, "=")
		names = append(names, k)
		values[k] = v
	}
	return names, values
}

func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func span(t *testing.T, text string) time.Duration {
	t.Helper()
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func parseShard(t *testing.T, d *datadriven.TestData) Shard {
	t.Helper()
	s := Shard{Want: 3, Timing: DefaultTiming(), RuleAge: time.Hour, TermAge: time.Hour}
	s.Doc = catalog.Shard{SystemID: "7", Ready: true, Durability: PolicySync}
	s.Rule = catalog.Rule{Term: 1, Phase: PhaseActive, Leader: "a", Cohort: []string{"a", "b", "c"}, Policy: PolicySync, W: 1, ModRev: 1}
	s.Doc.Primary, s.Doc.Term = "a", 1
	for _, line := range strings.Split(d.Input, "\n") {
		head, rest, _ := strings.Cut(line, " ")
		names, values := words(rest)
		switch {
		case head == "rule":
			parseRule(t, &s, names, values)
		case head == "shard":
			parseDoc(t, &s, names, values)
		case head == "op":
			s.Op = &catalog.Operation{ID: "op1", Kind: names[0], Candidate: values["candidate"], FromTerm: s.Rule.Term}
			if from := values["from"]; from != "" {
				s.Op.FromTerm = number(t, from)
			}
			_, s.Op.AcceptLoss = values["accept-loss"]
			s.OpAge = span(t, values["age"])
		case strings.HasSuffix(head, ":"):
			s.Members = append(s.Members, parseMember(t, &s, strings.TrimSuffix(head, ":"), names, values))
		default:
			d.Fatalf(t, "what is %q?", line)
		}
	}
	for i := range s.Members {
		if m := &s.Members[i]; m.Primary {
			m.Peers = s.peers(m.ID)
		}
	}
	return s
}

func parseRule(t *testing.T, s *Shard, names []string, values map[string]string) {
	t.Helper()
	r := &s.Rule
	r.Leader, r.Cohort = "", nil
	term, sub, _ := strings.Cut(names[0], ".")
	r.Term, r.Sub, r.Phase = number(t, term), number(t, sub), names[1]
	for k, v := range values {
		switch k {
		case "leader":
			r.Leader = v
		case "cohort":
			r.Cohort = list(v)
		case "leaving":
			r.Leaving = list(v)
		case "w":
			r.W = int(number(t, v))
		case "nextw":
			r.NextW = int(number(t, v))
		case "candidate":
			r.Candidate = v
		case "accept-loss":
			r.AcceptLoss = true
		case "prev":
			p := strings.Split(v, ":")
			r.Prev = &catalog.Rule{Term: number(t, p[0]), Phase: PhaseActive, Leader: p[1], Cohort: list(p[2]), W: 1}
		case "age":
			s.RuleAge, s.TermAge = span(t, v), span(t, v)
		}
	}
	if r.Phase != PhasePromoting {
		s.Doc.Primary, s.Doc.Term = r.Leader, r.Term
	}
}

func parseDoc(t *testing.T, s *Shard, names []string, values map[string]string) {
	t.Helper()
	for _, n := range names {
		switch v := values[n]; n {
		case "maintenance":
			s.Doc.Maintenance = true
		case "read-only":
			s.Doc.ReadOnly = true
		case "durability":
			s.Doc.Durability = v
		case "failovers":
			s.Failovers = int(number(t, v))
		case "gateways-reach":
			s.GatewaysReach = true
		default:
			t.Fatalf("what is %q of a shard?", n)
		}
	}
}

func parseMember(t *testing.T, s *Shard, id string, names []string, values map[string]string) Member {
	t.Helper()
	m := Member{ID: id, Address: id + ":1", SystemID: "7", Timeline: 1, ReceiveLSN: 100, ReplayLSN: 100, Replayed: true, ChangedAgo: Never}
	for _, n := range names {
		setMember(t, s, &m, n, values[n])
	}
	return m
}

// setMember changes one thing of a member; the first word of a line says what it is on the whole.
func setMember(t *testing.T, s *Shard, m *Member, name, v string) {
	t.Helper()
	switch name {
	case "primary":
		term := s.Rule.Term
		if v != "" {
			term = number(t, v)
		}
		m.Known, m.Up, m.Primary, m.Writable, m.OwnTerm = true, true, true, true, term
		m.Promises.OwnTerm, m.Promises.BarrierTerm, m.Promises.OwnSub = term, term, s.Rule.Sub
		m.Ordered, m.InForce, m.Standbys, m.Acks = true, true, Standbys(s.Rule), Demand(s.Rule)
	case "standby":
		m.Known, m.Up, m.Standby, m.Streaming, m.FollowTerm = true, true, true, true, s.Rule.Term
		m.Source, m.SourceAt, m.StreamingFor = s.Rule.Leader, s.Rule.Leader+":1", time.Hour
	case "recruit": // a standby that has promised the rule's term
		m.Known, m.Up, m.Standby, m.Promises.RevokedBelowTerm = true, true, true, s.Rule.Term
	case "silent":
		*m = Member{ID: m.ID, Address: m.Address, ChangedAgo: Never, SilentFor: span(t, v), MissingFor: span(t, v)}
	case "streams":
		m.Acknowledgers = nil
		for _, id := range list(v) {
			m.Acknowledgers = append(m.Acknowledgers, Walsender{Node: id, Streaming: true, Sync: true, Flush: m.ReceiveLSN})
		}
	case "standbys":
		m.Standbys = list(v)
	case "rdonly":
		m.Rdonly = true
	case "cut":
		m.Streaming, m.Source, m.SourceAt, m.FollowTerm = false, "", "", 0
	case "down": // its receiver
		m.Streaming = false
	case "exited":
		m.Exited, m.Up, m.Primary, m.Writable, m.Streaming, m.ExitedFor = true, false, false, false, false, span(t, v)
	case "hung":
		m.Hung, m.Up, m.HungFor = true, false, span(t, v)
	case "starting":
		m.Up = false
	case "self-fenced":
		m.SelfFenced, m.Writable, m.SelfFencedFor = true, false, span(t, v)
	case "stalled", "broken", "empty", "held", "busy", "paused", "blocked", "archive", "unreplayed", "not-in-force":
		flag := map[string]*bool{
			"stalled": &m.Stalled, "broken": &m.Broken, "empty": &m.Empty, "held": &m.Held, "busy": &m.Busy, "paused": &m.ReplayPaused, "blocked": &m.ReplayBlocked,
			"archive": &m.Archive, "unreplayed": &m.Replayed, "not-in-force": &m.InForce,
		}[name]
		*flag = name != "unreplayed" && name != "not-in-force"
	case "desired":
		m.Desired = v
	case "request", "restored", "tries", "damage", "archived", "gap", "lost-slots":
		setRestore(t, m, name, v)
	case "follow":
		m.FollowTerm = number(t, v)
	case "missing":
		m.MissingFor, m.StreamingFor = span(t, v), 0
	case "streaming":
		m.StreamingFor = span(t, v)
	case "last-msg":
		m.LastMsg = span(t, v)
	case "changed":
		m.ChangedAgo = span(t, v)
	default:
		setLog(t, m, name, v)
	}
}

// setRestore changes what has to do with restores.
func setRestore(t *testing.T, m *Member, name, v string) {
	t.Helper()
	switch name {
	case "request":
		m.Request, m.Reason = v, "why"
	case "restored":
		m.Restored = v
	case "tries":
		m.Tries = int(number(t, v))
	case "damage":
		m.Damage = v
	case "archived":
		m.Archived = map[string]Archived{"has": ArchiveHas, "lacks": ArchiveLacks, "silent": ArchiveSilent}[v]
	case "gap": // no source has its WAL, for so long
		m.GapFor = span(t, v)
	case "lost-slots":
		m.LostSlots = list(v)
	}
}

// setLog changes where a member's log stands, what it promised, or its disk.
func setLog(t *testing.T, m *Member, name, v string) {
	t.Helper()
	a, b, _ := strings.Cut(v, "/")
	switch name {
	case "lsn":
		m.ReceiveLSN, m.ReplayLSN = catalog.LSN(number(t, v)), catalog.LSN(number(t, v))
	case "oldest": // segments that are gone
		m.OldestLSN = catalog.LSN(number(t, v) * segmentBytes)
	case "replay":
		m.ReplayLSN, m.Replayed = catalog.LSN(number(t, v)), false
	case "tli":
		m.Timeline = int32(number(t, v))
	case "row": // term/timeline
		m.Row = TermRow{number(t, a), int32(number(t, b))}
	case "history": // timeline/lsn,...
		for _, text := range list(v) {
			tli, lsn, _ := strings.Cut(text, "/")
			m.History = append(m.History, Switch{int32(number(t, tli)), catalog.LSN(number(t, lsn))})
		}
	case "promise":
		m.Promises.RevokedBelowTerm = number(t, v)
	case "own":
		m.OwnTerm, m.Promises.OwnTerm = number(t, v), number(t, v)
	case "barrier":
		m.Promises.BarrierTerm = number(t, v)
	case "resigned": // term/fenced at
		m.Promises.ResignedTerm, m.FencedLSN, m.Writable = number(t, a), catalog.LSN(number(t, b)), false
	case "floor": // term/lsn
		m.Promises.RecruitFloor = &Floor{Term: number(t, a), LSN: catalog.LSN(number(t, b))}
	case "disk": // free/total
		m.DiskFree, m.DiskTotal = number(t, a), number(t, b)
	default:
		t.Fatalf("what is %q of a member?", name)
	}
}

// TestPruneKeepsTheChainShort promotes many times in vain: the chain must not grow with the tries.
func TestPruneKeepsTheChainShort(t *testing.T) {
	r := catalog.Rule{Term: 1, Phase: PhaseActive, Leader: "a", Cohort: []string{"a", "b", "c"}, W: 1}
	cohorts := [][]string{{"b", "c"}, {"c", "b"}, {"b"}, {"c"}, {"b", "c", "a"}}
	for i := range 200 {
		r = nextTerm(r, Flaws{})
		cohort := cohorts[i%len(cohorts)]
		r.Leader, r.Cohort = cohort[0], slices.Clone(cohort)
	}
	if n := len(Chain(&r)); n > len(cohorts)+2 {
		t.Fatalf("the chain has %d rules", n)
	}
	last := r
	for last.Prev != nil {
		last = *last.Prev
	}
	if last.Term != 1 {
		t.Fatalf("the last active rule is forgotten; the oldest is of term %d", last.Term)
	}
}
