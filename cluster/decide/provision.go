package decide

import (
	"fmt"
	"slices"
	"time"

	"neki/catalog"
)

// Shard is what is known of a shard at one moment.
type Shard struct {
	Doc     catalog.Shard
	Rule    catalog.Rule // ModRev 0 = there is none
	Members []Member     // in the order of their ids
	Want    int          // instances that can lead or acknowledge: 1 + the profile's replicas
	// Patient: more members may still appear; wait for Want of them before the shard is begun or opened.
	Patient bool

	Op *catalog.Operation // nil = none
	// OpAge is how long this admin has seen Op, RuleAge how long the present rule and TermAge the present term.
	OpAge, RuleAge, TermAge time.Duration
	// Failovers is how many terms began in the last five minutes without anybody having asked for them, as this admin has
	// seen it.
	Failovers int
	// GatewaysReach: gateways say that they hear the leader, though this admin may not.
	GatewaysReach bool
	Timing        Timing
	// Flaws are bugs that the simulator's own tests put back in. The zero value has none.
	Flaws Flaws
}

// Kind is what an Action does.
type Kind uint8

// The kinds of actions.
const (
	Claim  Kind = iota + 1 // write Node as the shard's first primary, and a rule of phase bootstrap
	Init                   // have Node run initdb, and start
	Record                 // write the shard's system identifier
	Apply                  // have Node, the primary, make cluster roles and stubs
	Lead                   // have Node keep slots for Peers and wait for Acks of Standbys, by the rule's Term and Sub
	Clone                  // have Node, empty, be made from a backup or by a copy of Copy, and follow Source
	Follow                 // have Node follow Source, the leader of Term
	Grow                   // write Standbys as acknowledgers in the rule
	Open                   // declare the shard ready

	Write   // write Rule, and Doc, History and the end of Op with it, in one transaction
	Recruit // have Node promise to acknowledge nothing below Term, cut its receiver or kill its primary, and report
	Promote // have Node lead Term: promote, wait for Acks of Standbys, commit the barrier, then open to clients
	Fence   // have Node, the primary, drain its clients and then acknowledge nothing more in Term; it reports where
	Unfence // have Node, the primary, take clients again, once it has read that the rule is active in Term
	Start   // have Node start its stopped primary again, in place, by the restart rule
	Hold    // have Node stop Postgres, and keep it stopped
	Release // have Node start Postgres after Hold
	Rewind  // have Node, which isn't in the cohort, run pg_rewind from Source and follow it
	Rebuild // have Node, which isn't in the cohort, lay its data aside, and be made anew from a backup or by a copy of Copy
	Restart // have Node, whose Postgres hangs, kill it and start it again by HowToStart
	Resume  // have Node go on with replay: resume it when it is paused, end the queries that block it
	Want    // write in Node's document what is wanted of it: Desired
)

var kindNames = []string{
	"none", "claim", "init", "record", "apply", "lead", "clone", "follow", "grow", "open",
	"write", "recruit", "promote", "fence", "unfence", "start", "hold", "release", "rewind", "rebuild", "restart", "resume", "want",
}

// String gives the kind's name.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return kindNames[0]
}

// Action is one thing to do.
type Action struct {
	Kind     Kind
	Node     string
	Source   string
	SystemID string
	Timeline int32 // of Record: the shard's first; of Follow: the one that Node was seen on, 0 = any
	Peers    []string
	Standbys []string
	Acks     int
	Copy     string // of Clone and Rebuild: whom to copy if there is no backup that will do
	Backup   bool   // of Clone and Rebuild: a backup may be used
	Archive  bool   // of Follow: read the archive until it streams
	Request  string // of Clone and Rebuild: the member's
	Desired  string // of Want

	Term, Sub int64            // of the rule that an order follows from
	Rule      *catalog.Rule    // of Write; nil = as it is
	Doc       *catalog.Shard   // of Write; nil = as it is
	History   *catalog.History // of Write; nil = none
	EndOp     string           // of Write: how Op ended; "" = it goes on
	Why       string
}

// String gives the action in one line.
func (a Action) String() string {
	s := a.Kind.String()
	if a.Node != "" {
		s += " " + a.Node
	}
	if a.Source != "" {
		s += " from " + a.Source
	}
	if a.Copy != "" && a.Copy != a.Source {
		s += " copy " + a.Copy
	}
	if a.Backup {
		s += " backup"
	}
	if a.Archive {
		s += " by the archive"
	}
	if a.Request != "" {
		s += " request " + a.Request
	}
	if a.Kind == Want {
		return s + " " + a.Desired + " (" + a.Why + ")"
	}
	if a.SystemID != "" {
		s += " system " + a.SystemID
	}
	if a.Kind == Lead {
		s += fmt.Sprintf(" slots %v", a.Peers)
	}
	if a.Kind == Lead || a.Kind == Grow || a.Kind == Promote {
		s += fmt.Sprintf(" %d of %v", a.Acks, a.Standbys)
	}
	if a.Kind > Open && a.Kind != Write {
		s += fmt.Sprintf(" term %d", a.Term)
	}
	if a.Kind == Write {
		s += a.writes()
	}
	if a.Why != "" {
		s += " (" + a.Why + ")"
	}
	return s
}

// writes tells what a Write writes.
func (a Action) writes() string {
	var s string
	if r := a.Rule; r != nil {
		s += fmt.Sprintf(" rule %d.%d %s leader %q cohort %v w %d", r.Term, r.Sub, r.Phase, r.Leader, r.Cohort, r.W)
		if len(r.Leaving) > 0 {
			s += fmt.Sprintf(" leaving %v", r.Leaving)
		}
		if r.NextW > 0 {
			s += fmt.Sprintf(" next w %d", r.NextW)
		}
		for p := r.Prev; p != nil; p = p.Prev {
			s += fmt.Sprintf(" after %d.%d", p.Term, p.Sub)
		}
	}
	if d := a.Doc; d != nil {
		s += fmt.Sprintf(" shard primary %s term %d", d.Primary, d.Term)
		if d.ReadOnly {
			s += " read-only"
		}
	}
	if a.EndOp != "" {
		s += " end of operation: " + a.EndOp
	}
	return s
}

// Verdict is what to do now and what stands in the way of more. Orders to different nodes are given at once, those to
// one node in order. A Write is the last of a Verdict (but for Grow, of provisioning): the next step needs a new look.
type Verdict struct {
	Actions  []Action
	Problems []string
	// Soon: look again after this time, without an event; 0 = at the next poll.
	Soon time.Duration
}

func (v *Verdict) do(a Action) { v.Actions = append(v.Actions, a) }

func (v *Verdict) problem(format string, args ...any) {
	v.Problems = append(v.Problems, fmt.Sprintf(format, args...))
}

// Phases of a rule.
const (
	PhaseBootstrap = catalog.PhaseBootstrap
	PhaseActive    = catalog.PhaseActive
	PhaseSwitching = catalog.PhaseSwitching // active still, but the leader is to be fenced for a planned switchover
	PhasePromoting = catalog.PhasePromoting // a leader of the term is looked for or, once Leader is set, promoted
)

// Durability policies.
const (
	PolicyNone = "none"
	PolicySync = "sync"
)

// Provision decides the next steps towards a shard that is whole.
func Provision(s Shard) Verdict {
	var v Verdict
	switch {
	case s.Doc.Primary == "":
		begin(s, &v)
	case s.Doc.SystemID == "":
		initialise(s, &v)
	default:
		complete(s, &v)
	}
	return v
}

// Acks is how many acknowledgers a commit needs under the policy.
func Acks(policy string) int {
	if policy == PolicyNone {
		return 0
	}
	return 1
}

// begin chooses the first primary: the member that holds the shard's restored data, or else among empty ones.
func begin(s Shard, v *Verdict) {
	if s.Doc.SystemID != "" {
		v.problem("the shard has data (system %s) but no primary", s.Doc.SystemID)
		return
	}
	able, first, seeded := 0, "", false
	for _, m := range s.Members {
		switch {
		case !m.Known:
			v.problem("node %s doesn't answer: it may hold data", m.ID)
		case m.Seed && seeded:
			v.problem("node %s holds restored data, and so does another", m.ID)
		case m.Seed:
			able, first, seeded = able+1, m.ID, true
		case !m.Empty:
			v.problem("node %s holds data (system %s) that the shard doesn't know of", m.ID, m.SystemID)
		case !m.Rdonly:
			if able++; first == "" {
				first = m.ID
			}
		}
	}
	if len(v.Problems) > 0 {
		return
	}
	if able == 0 || s.Patient && able < s.Want {
		v.problem("waits for agents: %d of %d are there", able, s.Want)
		return
	}
	v.do(Action{Kind: Claim, Node: first})
}

// initialise has the claimed primary make the shard's data, and records what system it is.
func initialise(s Shard, v *Verdict) {
	for _, m := range s.Members {
		if m.ID != s.Doc.Primary && m.Known && !m.Empty {
			v.problem("node %s holds data (system %s) before the shard was initialised", m.ID, m.SystemID)
		}
	}
	p := s.member(s.Doc.Primary)
	switch {
	case len(v.Problems) > 0:
	case p == nil || !p.Known:
		v.problem("node %s, chosen as the first primary, doesn't answer", s.Doc.Primary)
	case !p.Empty && !p.Seed && p.OwnTerm != s.Doc.Term:
		v.problem("node %s, chosen as the first primary, holds data (system %s) of another origin", p.ID, p.SystemID)
	case p.Busy:
	case p.Empty || p.Seed:
		v.do(Action{Kind: Init, Node: p.ID})
	case !p.Up: // its agent starts it by itself
		v.problem("node %s, the first primary, is not up yet", p.ID)
	default:
		v.do(Action{Kind: Record, SystemID: p.SystemID, Timeline: p.Timeline})
	}
}

// complete adds what is missing around a primary that has data.
func complete(s Shard, v *Verdict) {
	p := s.member(s.Doc.Primary)
	switch {
	case p == nil || !p.Known:
		v.problem("the agent of the primary, %s, doesn't answer", s.Doc.Primary)
		return
	case p.SystemID != s.Doc.SystemID:
		v.problem("the primary, %s, holds system %q, not the shard's %s", p.ID, p.SystemID, s.Doc.SystemID)
		return
	case !p.Up || !p.Primary:
		v.problem("the primary, %s, is not serving", p.ID)
		return
	}
	v.do(Action{Kind: Apply, Node: p.ID})
	keepStandbys(s, p, v)
	for _, m := range s.Members {
		if m.ID != p.ID {
			join(s, p, m, v)
		}
	}
}

// join makes a member a standby of the primary. It is copied only once its slot keeps the WAL that it will need.
func join(s Shard, p *Member, m Member, v *Verdict) {
	switch {
	case !m.Known:
		v.problem("node %s doesn't answer", m.ID)
	case m.Busy:
	case m.Empty:
		if slices.Contains(p.Peers, m.ID) {
			v.do(Action{Kind: Clone, Node: m.ID, Source: p.ID})
		}
	case m.SystemID != s.Doc.SystemID:
		v.problem("node %s holds system %q, not the shard's %s", m.ID, m.SystemID, s.Doc.SystemID)
	case !m.Standby:
		v.problem("node %s holds data of a primary", m.ID)
	case m.Source != p.ID || m.SourceAt != p.Address:
		v.do(Action{Kind: Follow, Node: m.ID, Source: p.ID})
	}
}

// keepStandbys brings rule, synchronous standbys and slots together, the rule first.
func keepStandbys(s Shard, p *Member, v *Verdict) {
	peers, acking := []string{}, ackers(s)
	var ready []string
	for _, m := range s.Members {
		if m.ID == p.ID {
			continue
		}
		peers = append(peers, m.ID)
		if !m.Rdonly && m.Known && m.Up && m.Streaming && m.SystemID == s.Doc.SystemID && m.Timeline == p.Timeline {
			ready = append(ready, m.ID)
		}
	}
	acks := Acks(s.Rule.Policy)
	if grown := union(acking, ready); s.mayGrow(ready) && len(grown) > len(acking) {
		v.do(Action{Kind: Grow, Standbys: grown, Acks: acks})
		acking = grown
	}
	told := p.Ordered && p.Acks == acks && slices.Equal(p.Standbys, acking)
	if !told || !slices.Equal(p.Peers, peers) {
		v.do(Action{Kind: Lead, Node: p.ID, Peers: peers, Standbys: acking, Acks: acks})
		return
	}
	if s.Rule.Phase == PhaseBootstrap && len(ready) >= acks && (len(ready)+1 >= s.Want || !s.Patient) {
		v.do(Action{Kind: Open})
	}
}

// mayGrow: while the shard is made, wait for all the acknowledgers that it should have, for the rule is then written
// once; later each is taken in as it comes.
func (s Shard) mayGrow(ready []string) bool {
	return s.Rule.Phase != PhaseBootstrap || !s.Patient || len(ready)+1 >= s.Want
}

// ackers are the members of the rule's cohort but for the leader.
func ackers(s Shard) []string {
	list := []string{}
	for _, id := range s.Rule.Cohort {
		if id != s.Rule.Leader {
			list = append(list, id)
		}
	}
	slices.Sort(list)
	return list
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

func (s Shard) member(id string) *Member {
	for i := range s.Members {
		if s.Members[i].ID == id {
			return &s.Members[i]
		}
	}
	return nil
}
