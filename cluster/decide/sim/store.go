package sim

import (
	"time"

	"neki/catalog"
)

// Keys of the store.
const (
	ruleKey = iota
	docKey
	opKey
	leaderKey
	keyCount
)

// store is the catalog: linearizable, with revisions, and away now and then.
type store struct {
	w      *world
	host   int
	rev    int64
	values [keyCount]any
	mod    [keyCount]int64
	create [keyCount]int64
	// renewed is when the leader's lease was kept alive last.
	renewed time.Duration
	termAt  time.Duration // since when the rule has its term
	down    int
	desired [maxNodes]string // of nodes, as operators and admins want them
	request [maxNodes]string // who asked for it
	asked   int              // counts requests
}

func newStore(w *world, host int) *store { return &store{w: w, host: host} }

func (s *store) put(key int, v any) int64 {
	s.rev++
	if s.mod[key] == 0 {
		s.create[key] = s.rev
	}
	s.mod[key] = s.rev
	if v == nil {
		s.mod[key], s.create[key] = 0, 0
	}
	s.values[key] = v
	return s.rev
}

func (s *store) rule() catalog.Rule {
	r := s.values[ruleKey].(catalog.Rule)
	r.ModRev = s.mod[ruleKey]
	return r
}

func (s *store) doc() catalog.Shard {
	d := s.values[docKey].(catalog.Shard)
	d.ModRev = s.mod[docKey]
	return d
}

func (s *store) op() *catalog.Operation {
	if s.values[opKey] == nil {
		return nil
	}
	o := s.values[opKey].(catalog.Operation)
	o.ModRev = s.mod[opKey]
	return &o
}

// over tells whether a term had been followed by another before a time.
func (s *store) over(term int64, before time.Duration) bool {
	return s.rule().Term > term && s.termAt < before
}

// ask has the store do something for a host and brings the answer back. It is done when the message comes, once.
func (s *store) ask(from int, do func() func()) {
	done := false
	s.w.send(from, s.host, func() {
		if s.down > 0 || done {
			return
		}
		done = true
		reply := do()
		s.w.send(s.host, from, reply)
	})
}

// txn is a write of an admin with its conditions.
type txn struct {
	epoch                  int64
	ruleRev, docRev, opRev int64
	rule                   *catalog.Rule
	doc                    *catalog.Shard
	endOp                  bool
}

func (s *store) txn(t txn) bool {
	if !s.w.flaws.UnconditionalWrites &&
		(s.create[leaderKey] != t.epoch || s.mod[ruleKey] != t.ruleRev || s.mod[docKey] != t.docRev || t.endOp && s.mod[opKey] != t.opRev) {
		return false
	}
	if t.rule != nil {
		if t.rule.Term != s.rule().Term {
			s.termAt = s.w.now
		}
		s.put(ruleKey, *t.rule)
		s.w.say("catalog: rule %d.%d %s leader %q cohort %v leaving %v w %d (%s)",
			t.rule.Term, t.rule.Sub, t.rule.Phase, t.rule.Leader, t.rule.Cohort, t.rule.Leaving, t.rule.W, t.rule.Reason)
		s.w.checkStandbys()
	}
	if t.doc != nil {
		d := *t.doc
		s.put(docKey, d)
	}
	if t.endOp {
		s.put(opKey, nil)
	}
	return true
}

// leaseTime is how long a leader may be silent.
const leaseTime = 5 * time.Second

// lead lets an admin lead, if nobody does; 0 = another does.
func (s *store) lead(admin int) int64 {
	if s.values[leaderKey] != nil && s.w.now-s.renewed <= leaseTime {
		return 0
	}
	if s.values[leaderKey] != nil {
		s.put(leaderKey, nil)
	}
	s.renewed = s.w.now
	return s.put(leaderKey, admin)
}

// renew keeps the leader's lease alive.
func (s *store) renew(epoch int64) bool {
	if s.create[leaderKey] != epoch || s.w.now-s.renewed > leaseTime {
		return false
	}
	s.renewed = s.w.now
	return true
}
