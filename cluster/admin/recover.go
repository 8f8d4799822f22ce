package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"neki/catalog"
	"neki/cluster/agent"
	"neki/cluster/decide"
)

// carryOut does what was decided for a shard that has led once: orders to different nodes go out at once and those to
// one node in order, and none holds up the next look, which comes when one is done. A write is the last of a decision.
func (s *shardLoop) carryOut(ctx context.Context, v *view, decision decide.Verdict) (settled bool, err error) {
	settled = true
	orders := map[string][]decide.Action{}
	for _, action := range decision.Actions {
		switch {
		case action.Kind == decide.Write:
			err = s.writeRule(ctx, v, action)
			s.nudge() // whatever became of it
			settled = false
		case action.Kind == decide.Want:
			err = errors.Join(err, s.want(ctx, v, action))
			s.nudge()
			settled = false
		case action.Kind == decide.Apply && s.applied(action.Node):
		default:
			orders[action.Node] = append(orders[action.Node], action)
			settled = settled && action.Kind == decide.Apply
		}
	}
	for node, list := range orders {
		s.send(ctx, v, node, list)
	}
	return settled, err
}

// send gives a node its orders beside the loop, unless earlier ones are still on their way.
func (s *shardLoop) send(ctx context.Context, v *view, node string, list []decide.Action) {
	s.mu.Lock()
	if s.out[node] || v.nodes[node] == nil {
		s.mu.Unlock()
		return
	}
	s.out[node] = true
	s.mu.Unlock()
	if list[0].Kind == decide.Apply {
		s.appliedAt, s.appliedTo = time.Now(), node
	}
	s.jobs.Go(func() {
		defer s.nudge()
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.out, node)
		}()
		for _, action := range list {
			if err := s.order(ctx, v, action); err != nil {
				if ctx.Err() == nil {
					s.refused(ctx, action, err)
				}
				return
			}
		}
	})
}

// refused notes an order that failed. The next look decides anew; until then a moment passes.
func (s *shardLoop) refused(ctx context.Context, action decide.Action, err error) {
	if what := action.String() + ": " + err.Error(); s.newRefusal(action.Node, what) { // else it was logged already
		s.l.a.log.Warn("order not carried out", "shard", s.uid, "order", action.String(), "error", err)
	}
	if action.Kind != decide.Apply && action.Kind != decide.Lead {
		s.l.a.record(ctx, catalog.Event{
			Kind: action.Kind.String(), Shard: s.uid, Node: action.Node, Detail: fmt.Sprintf("term %d: failed: %v", action.Term, err),
		})
	}
	rest := 100 * time.Millisecond
	if action.Kind == decide.Promote { // it waits for an acknowledger, which the next look lets in
		rest = recoverRest
	}
	sleep(ctx, rest)
}

// recoverRest is how long a chosen leader that could not take over yet is left alone.
const recoverRest = 20 * time.Millisecond

// newRefusal reports whether an order of a node failed for another reason than its last one.
func (s *shardLoop) newRefusal(node, what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusals[node] == what {
		return false
	}
	s.refusals[node] = what
	return true
}

// slow tells of orders that replace a node's data.
func slow(k decide.Kind) bool { return k == decide.Clone || k == decide.Rewind || k == decide.Rebuild }

// order gives one order and records what came of it.
func (s *shardLoop) order(ctx context.Context, v *view, action decide.Action) error {
	if slow(action.Kind) {
		return s.fill(ctx, v, action)
	}
	return s.giveWithin(ctx, v, action, actTimeout)
}

// giveWithin gives one order and records what came of it.
func (s *shardLoop) giveWithin(ctx context.Context, v *view, action decide.Action, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := s.give(ctx, v, action)
	if err != nil {
		return err
	}
	s.l.a.metrics.note(action.Kind.String(), r.Steps)
	if len(r.Done) > 0 {
		s.l.a.record(ctx, catalog.Event{
			Kind: action.Kind.String(), Shard: s.uid, Node: action.Node, Duration: r.Duration,
			Detail: fmt.Sprintf("term %d: %s%s", action.Term, strings.Join(r.Done, ", "), describeSteps(r.Steps)),
		})
	}
	return nil
}

// gateways are those that live.
func (s *shardLoop) gateways() []string {
	snap := s.l.a.live.Snapshot()
	list := make([]string, len(snap.Gateways))
	for i := range snap.Gateways {
		list[i] = snap.Gateways[i].ID
	}
	return list
}

// describeSteps tells how long the parts of an order took.
func describeSteps(steps []agent.Step) string {
	if len(steps) == 0 {
		return ""
	}
	text := make([]string, len(steps))
	for i, s := range steps {
		text[i] = fmt.Sprintf("%s %d ms", s.What, s.Took.Milliseconds())
	}
	return " (" + strings.Join(text, ", ") + ")"
}

// give calls the node's agent.
func (s *shardLoop) give(ctx context.Context, v *view, action decide.Action) (agent.Result, error) {
	client := s.l.a.client(v.nodes[action.Node])
	head := s.l.a.order(s.l.epoch, action.Term, s.uid+"-"+action.Kind.String())
	head.Sub = action.Sub
	if action.Kind == decide.Apply {
		head.Term = v.shard.Rule.Term
	}
	var source agent.Source
	if action.Source != "" {
		n := v.nodes[action.Source]
		if n == nil {
			return agent.Result{}, fmt.Errorf("node %s, the source, is not known", action.Source)
		}
		source = *sourceOf(n)
	}
	lead := agent.LeadOrder{Order: head, Peers: action.Peers, Standbys: action.Standbys, Acks: action.Acks}
	replace := agent.ReplaceOrder{Order: head, Source: source, SystemID: v.shard.Doc.SystemID, Fill: fillOf(v, action)}
	switch action.Kind {
	case decide.Apply:
		return client.Apply(ctx, agent.ApplyOrder{Order: head, Roles: s.l.secrets.roles(s.l.a.cfg.Superuser), Stubs: s.l.a.cfg.Stubs})
	case decide.Lead:
		return client.Lead(ctx, lead)
	case decide.Clone:
		return client.Provision(ctx, agent.ProvisionOrder{
			Order: head, Source: &source, SystemID: v.shard.Doc.SystemID, Fill: replace.Fill, ReplicationPassword: s.l.secrets.Replication.Password,
			Parameters: s.parameters(v),
		})
	case decide.Follow:
		return client.Follow(ctx, agent.FollowOrder{Order: head, Source: source, Archive: action.Archive, Timeline: action.Timeline})
	case decide.Recruit:
		return client.Recruit(ctx, head)
	case decide.Promote:
		return client.Promote(ctx, lead)
	case decide.Fence:
		return client.Fence(ctx, agent.FenceOrder{Order: head, Gateways: s.gateways()})
	case decide.Unfence:
		return client.Unfence(ctx, lead)
	case decide.Start, decide.Release:
		return client.Start(ctx, head)
	case decide.Hold:
		return client.Stop(ctx, agent.StopOrder{Order: head, Reason: action.Why})
	case decide.Rewind:
		return client.Rewind(ctx, replace)
	case decide.Rebuild:
		return client.Rebuild(ctx, replace)
	case decide.Restart:
		return client.Restart(ctx, head)
	case decide.Resume:
		return client.Resume(ctx, head)
	default:
		return agent.Result{}, fmt.Errorf("%s is no order", action)
	}
}

// writeRule carries out a Write: one transaction, if this admin still leads and all that was looked at is as it was.
func (s *shardLoop) writeRule(ctx context.Context, v *view, action decide.Action) error {
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	cluster := s.l.a.cfg.Cluster
	docKey, ruleKey, opKey := catalog.ShardKey(cluster, s.uid), catalog.RuleKey(cluster, s.uid), catalog.OpKey(cluster, s.uid)
	var opRev int64
	if v.shard.Op != nil {
		opRev = v.shard.Op.ModRev
	}
	conds := []catalog.Cond{
		catalog.LeaderCond(cluster, s.l.epoch), catalog.ModRev(docKey, v.shard.Doc.ModRev),
		catalog.ModRev(ruleKey, v.shard.Rule.ModRev), catalog.ModRev(opKey, opRev),
	}
	var ops []catalog.Op
	put := func(key string, doc any) error {
		text, err := json.Marshal(doc)
		ops = append(ops, catalog.PutOp(key, text))
		return err
	}
	if action.Rule != nil {
		if err := put(ruleKey, action.Rule); err != nil {
			return err
		}
	}
	if action.Doc != nil {
		if err := put(docKey, action.Doc); err != nil {
			return err
		}
	}
	if action.History != nil {
		h := *action.History
		h.At = time.Now().UTC()
		if err := put(catalog.HistoryKey(cluster, s.uid, h.Term), h); err != nil {
			return err
		}
	}
	if op := v.shard.Op; op != nil {
		if err := put(catalog.JobKey(cluster, op.ID), jobOf(s.uid, op, &v.shard.Rule, action)); err != nil {
			return err
		}
		if action.EndOp != "" {
			ops = append(ops, catalog.DeleteOp(opKey))
		}
	}
	rev, err := s.l.a.cfg.Store.Txn(ctx, conds, ops)
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	v.written = rev
	s.noteWrite(ctx, v, action)
	return nil
}

// jobOf gives the job that shows an operation after a write.
func jobOf(shard string, op *catalog.Operation, before *catalog.Rule, action decide.Action) catalog.Job {
	j := catalog.JobOf(shard, op)
	r := cmp.Or(action.Rule, before)
	switch j.Node = r.Leader; {
	case r.Phase == decide.PhaseSwitching:
		j.Progress, j.Step = 0.2, r.Leader+" hands over to "+r.Candidate
	case r.Phase == decide.PhasePromoting && r.Leader == "":
		j.Progress, j.Step = 0.4, "the next leader is chosen"
	case r.Phase == decide.PhasePromoting:
		j.Progress, j.Step = 0.6, r.Leader+" is promoted"
	case r.Term > op.FromTerm:
		j.Progress, j.Step = 0.9, r.Leader+" leads"
	}
	if action.EndOp == "" {
		return j
	}
	j.FinishedAt = time.Now().UTC()
	if how, done := strings.CutPrefix(action.EndOp, "done: "); done {
		j.State, j.Progress, j.Step = catalog.JobDone, 1, how
	} else {
		j.State, j.Error, j.Step = catalog.JobFailed, action.EndOp, ""
	}
	return j
}

// noteWrite records what was written, beside the loop.
func (s *shardLoop) noteWrite(ctx context.Context, v *view, action decide.Action) {
	ctx = context.WithoutCancel(ctx)
	took := v.shard.TermAge
	s.jobs.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, actTimeout)
		defer cancel()
		if r := action.Rule; r != nil {
			e := catalog.Event{Kind: "rule", Shard: s.uid, Node: r.Leader, Detail: describeRule(r, action.Why)}
			switch {
			case r.Phase == decide.PhasePromoting && r.Leader == "":
				e.Kind = "failover"
			case r.Phase == decide.PhasePromoting:
				e.Kind = "chosen"
			case r.Phase == decide.PhaseSwitching:
				e.Kind = "switchover"
			case action.History != nil:
				e.Kind, e.Duration = "promoted", took
				s.l.a.metrics.changed(s.uid, took)
			}
			s.l.a.record(ctx, e)
		}
		if action.Rule == nil && action.Doc != nil && action.Doc.ReadOnly != v.shard.Doc.ReadOnly {
			s.l.a.record(ctx, catalog.Event{Kind: "read_only", Shard: s.uid, Detail: action.Why})
		}
		if action.EndOp != "" && v.shard.Op != nil {
			s.l.a.record(ctx, catalog.Event{
				Kind: v.shard.Op.Kind, Shard: s.uid, Detail: "operation " + v.shard.Op.ID + " " + action.EndOp, Duration: v.shard.OpAge,
			})
		}
	})
}

func describeRule(r *catalog.Rule, why string) string {
	text := fmt.Sprintf("term %d.%d %s", r.Term, r.Sub, r.Phase)
	if r.Leader != "" {
		text += fmt.Sprintf(", %s leads, cohort %s, %d must acknowledge", r.Leader, strings.Join(r.Cohort, " "), r.W)
	}
	return text + ": " + why
}

// alert records problems when their kinds change: what stands in the way of a shard is to be found in the events.
func (s *shardLoop) alert(ctx context.Context, problems []string) {
	var kinds []string
	for _, p := range problems {
		kind, _, _ := strings.Cut(p, ":")
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	now := strings.Join(slices.Compact(kinds), "; ")
	if now == s.alarm {
		return
	}
	s.alarm = now
	e := catalog.Event{Kind: "problem", Shard: s.uid, Detail: strings.Join(problems, "; ")}
	if now == "" {
		e.Kind, e.Detail = "whole", "nothing is wrong any more"
	}
	s.jobs.Go(func() { s.l.a.record(ctx, e) })
}
