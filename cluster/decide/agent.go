package decide

import (
	"fmt"
	"slices"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
)

// Head is what every order carries.
type Head struct {
	Epoch int64 // of the admin that gives it: the revision that made the leader's key
	Term  int64
	Sub   int64 // of the rule that the order follows from
	OpID  string
}

// Accept checks an order against what the node promised, and gives the promises that must be on disk before the order
// is begun. The agent calls it, and carries orders out, one at a time.
func Accept(p Promises, kind Kind, h Head, f Flaws) (Promises, error) {
	switch {
	case h.OpID == "":
		return p, pgerr.New(pgerr.InvalidParameterValue, "an order needs an op_id")
	case h.Epoch < p.Epoch:
		return p, refusal("order of epoch %d refused: epoch %d has given orders", h.Epoch, p.Epoch)
	case h.Term < max(p.OwnTerm, p.RevokedBelowTerm):
		return p, refusal("order of term %d refused: this node is in term %d", h.Term, max(p.OwnTerm, p.RevokedBelowTerm))
	}
	next := p
	next.Epoch, next.OpID = max(p.Epoch, h.Epoch), h.OpID
	var err error
	switch kind {
	case Lead, Fence, Unfence:
		next, err = acceptAsLeader(next, kind, h, f)
	case Promote:
		next, err = acceptPromotion(next, h, f)
	case Follow, Rewind, Rebuild, Clone:
		if h.Term == p.OwnTerm && kind != Clone {
			err = refusal("order to follow in term %d refused: this node was told to lead in it", h.Term)
		}
		next.RevokedBelowTerm = h.Term
	default: // the rest changes no promise, Recruit not before its cut: see Pledge
	}
	if err != nil {
		return p, err
	}
	return next, nil
}

// acceptAsLeader: orders to a leader are carried out in the order of the rule's versions only; one that was delayed on
// its way must not undo a newer one.
func acceptAsLeader(p Promises, kind Kind, h Head, f Flaws) (Promises, error) {
	switch {
	case h.Term != p.OwnTerm || p.RevokedBelowTerm > p.OwnTerm:
		return p, refusal("order to the leader of term %d refused: this node was not told to lead in it", h.Term)
	case h.Sub < p.OwnSub && !f.IgnoreOrderOfLead:
		return p, refusal("order of rule %d.%d refused: %d.%d is known", h.Term, h.Sub, p.OwnTerm, p.OwnSub)
	}
	p.OwnSub = h.Sub
	if kind == Fence {
		p.ResignedTerm = h.Term
	}
	return p, nil
}

func acceptPromotion(p Promises, h Head, f Flaws) (Promises, error) {
	switch {
	case p.RewindInProgress:
		return p, refusal("promotion refused: this node's data is being replaced")
	case p.RevokedBelowTerm != h.Term && !f.NoPledge:
		return p, refusal("promotion in term %d refused: this node has promised term %d", h.Term, p.RevokedBelowTerm)
	case p.OwnTerm == h.Term && h.Sub < p.OwnSub && !f.IgnoreOrderOfLead:
		return p, refusal("promotion by rule %d.%d refused: %d.%d is known", h.Term, h.Sub, p.OwnTerm, p.OwnSub)
	}
	if p.OwnTerm != h.Term {
		p.ResignedTerm = 0
	}
	p.OwnTerm, p.OwnSub = h.Term, h.Sub
	return p, nil
}

func refusal(format string, args ...any) error {
	return pgerr.New(pgerr.ObjectNotInPrerequisiteState, format, args...)
}

// Pledge gives the promises of a recruit. They go to disk when its receiver is gone, or its primary killed, and before
// the answer: a promise that others can read always means that nothing is acknowledged any more.
func Pledge(p Promises, term int64) Promises {
	p.RevokedBelowTerm = max(p.RevokedBelowTerm, term)
	return p
}

// Replace gives the promises that must be on disk before the data directory is touched by a Rewind or Rebuild: where the
// node stood, which it must pass again before it counts, and that the data can't be used meanwhile.
func Replace(p Promises, at Position, timeline int32) Promises {
	f := Floor{Term: at.Term, Timeline: timeline, LSN: at.LSN}
	if old := p.RecruitFloor; old == nil || at.Compare(Position{old.Term, old.LSN}) > 0 {
		p.RecruitFloor = &f
	}
	p.RewindInProgress = true
	return p
}

// Replaced gives the promises once the data directory is whole again.
func Replaced(p Promises) Promises {
	p.RewindInProgress = false
	return p
}

// StartAs is how a node's Postgres is started.
type StartAs uint8

// The ways of starting.
const (
	StartNothing StartAs = iota // there is nothing that could be started, or it is held
	StartStandby                // standby.signal is written first
	StartPrimary                // in its own term; closed to clients until the barrier is acknowledged
	StartWait                   // a primary's data, and the catalog doesn't say whether it leads
)

// Self is what an agent sees of its own instance.
type Self struct {
	Node    string
	HasData bool
	Standby bool // standby.signal is there
	Held    bool
	// DownFor is how long ago the primary ended.
	DownFor time.Duration
}

// Patience is how long a leader that died leaves the admin to choose another before it starts again in place.
const Patience = 3 * time.Second

// HowToStart decides how to start Postgres. rule is what a linearizable read gave just now, nil when the catalog didn't
// answer; it is not needed for a standby. ordered says that the admin asked for a start in place.
func HowToStart(p Promises, self Self, rule *catalog.Rule, ordered bool, f Flaws) (StartAs, string) {
	switch {
	case !self.HasData:
		return StartNothing, "no data"
	case self.Held:
		return StartNothing, "held"
	case p.RewindInProgress:
		return StartNothing, "the data directory was not replaced whole: it must be made anew"
	case self.Standby:
		return StartStandby, ""
	case f.StartFromMemory && p.OwnTerm > 0:
		return StartPrimary, ""
	case p.RevokedBelowTerm > p.OwnTerm:
		return StartStandby, fmt.Sprintf("it has promised term %d", p.RevokedBelowTerm)
	case rule == nil:
		return StartWait, "waits for the catalog to say whether this node leads"
	case rule.Term == p.OwnTerm && rule.Leader == self.Node && rule.Phase == PhaseSwitching:
		return StartWait, "a switchover is under way"
	case rule.Term == p.OwnTerm && rule.Leader == self.Node:
		if alone := len(rule.Cohort) < 2; rule.Phase == PhaseActive && self.DownFor < Patience && !ordered && !alone {
			return StartWait, "leaves the admin time to choose another leader"
		}
		return StartPrimary, ""
	}
	return StartStandby, fmt.Sprintf("%s leads in term %d", rule.Leader, rule.Term)
}

// Proof is what a primary knows of its right to serve. Ages are of the clock that goes on while the machine sleeps.
type Proof struct {
	Confirmed time.Duration   // age of the start of the last linearizable read that said: this node, this term. Never = none
	Replies   []time.Duration // ages of the last replies of the standbys in force that are still connected
	Acks      int
}

// Serves decides whether a primary may serve, or has to fence itself: it must have been confirmed by the catalog, or by
// enough of its acknowledgers, within the isolation timeout. A promotion elsewhere needs all but fewer than Acks of them
// to have cut their receivers, so enough that still reply are proof that there was none.
func Serves(pr Proof, isolation time.Duration) bool {
	if pr.Confirmed <= isolation {
		return true
	}
	fresh := 0
	for _, age := range pr.Replies {
		if age <= isolation {
			fresh++
		}
	}
	return pr.Acks > 0 && fresh >= pr.Acks
}

// Confirms tells whether a rule that was just read, linearizably, says that the node leads in its own term. It is also
// what a node that fenced itself needs before it serves again.
func Confirms(p Promises, node string, rule *catalog.Rule) bool {
	return rule != nil && rule.Leader == node && rule.Term == p.OwnTerm && p.RevokedBelowTerm <= p.OwnTerm
}

// MayUnfence decides whether a primary that resigned may take clients again, by an order and a rule that was read just
// now. The order alone doesn't do: the answer to it may have been lost, and the term moved on.
func MayUnfence(p Promises, node string, h Head, rule *catalog.Rule, f Flaws) error {
	switch {
	case f.UnfenceFromMemory:
		return nil
	case !Confirms(p, node, rule):
		return refusal("unfence refused: the catalog does not say that %s leads in term %d", node, p.OwnTerm)
	case rule.Phase != PhaseActive || rule.Sub < h.Sub:
		return refusal("unfence refused: the rule is %s, %d.%d", rule.Phase, rule.Term, rule.Sub)
	}
	return nil
}

// Sources decides whether a standby's receiver may be pointed at a source: one of a lower term than was promised never.
func Sources(p Promises, followTerm int64) bool { return followTerm >= p.RevokedBelowTerm }

// Demands gives synchronous_standby_names of a primary for what was ordered, ok false when nobody may acknowledge: it has
// resigned, fenced itself, or was never told.
func Demands(p Promises, ordered bool, standbys []string, acks int, selfFenced bool) (names []string, n int, ok bool) {
	if !ordered || selfFenced || p.ResignedTerm == p.OwnTerm && p.OwnTerm > 0 || p.RevokedBelowTerm > p.OwnTerm {
		return nil, 0, false
	}
	return slices.Clone(standbys), acks, true
}
