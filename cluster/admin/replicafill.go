package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
)

// awaitJoined waits until a new instance serves and, as a replica, acknowledges; it reports how it gets there.
func (l *leader) awaitJoined(ctx context.Context, r *Report, shard, node string, role catalog.Role, p part) error {
	began := time.Now()
	var f filling
	for ctx.Err() == nil {
		snap := l.a.live.Snapshot()
		rule := snap.Rule(shard)
		n, err := l.node(ctx, shard, node)
		switch {
		case err != nil:
			return err
		case n == nil && time.Since(began) > registerLimit:
			return fmt.Errorf("the agent of %s has not registered within %v", node, registerLimit)
		case n == nil:
			r.Step(p.at(.04), "%s: its agent starts", node)
		case n.Desired == catalog.DesiredRemoved || n.Desired == catalog.DesiredFenced:
			return giveUp(pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s is %s meanwhile: %s", node, n.Desired, n.Reason))
		case l.joined(snap, n, rule, role):
			r.Step(p.at(1), "%s is a %s of shard %s%s", node, role, shard, l.filled(ctx, r, n, p))
			return nil
		default:
			l.reportFilling(ctx, r, n, &f, p)
		}
		sleep(ctx, restartPoll)
	}
	return context.Cause(ctx)
}

// joined tells whether a node is all that it should be.
func (l *leader) joined(snap *catalog.Snapshot, n *catalog.Node, rule *catalog.Rule, role catalog.Role) bool {
	h := snap.Health(n.ID)
	if h == nil || h.Stale || h.State != catalog.StateServing || n.Desired != "" && n.Desired != catalog.DesiredRun {
		return false
	}
	if rule != nil && rule.Leader == n.ID {
		return true
	}
	return h.Streaming && (role == catalog.RoleRdonly || rule != nil && slices.Contains(rule.Cohort, n.ID))
}

// filling is what is remembered of a node that is being made: from where it replays.
type filling struct{ from catalog.LSN }

// replayed tells which part of the log since its data a node has replayed, up to what its shard's primary has.
func (f *filling) replayed(snap *catalog.Snapshot, n *catalog.Node, at catalog.LSN) float64 {
	p := snap.PrimaryOf(n.Shard)
	if f.from == 0 {
		f.from = at
	}
	if p == nil || snap.Health(p.ID) == nil || at == 0 {
		return 0
	}
	end := snap.Health(p.ID).FlushLSN
	if end <= f.from {
		return 1
	}
	return min(float64(at-f.from)/float64(end-f.from), 1)
}

// reportFilling tells how far the data of a node is, by what its agent says.
func (l *leader) reportFilling(ctx context.Context, r *Report, n *catalog.Node, f *filling, p part) {
	st, err := l.status(ctx, n)
	const filled, replayed = .8, .95 // of the whole: the data is there; it streams
	at := filled + (replayed-filled)*f.replayed(l.a.live.Snapshot(), n, st.Server.ReplayLSN)
	switch {
	case err != nil:
		r.Step(p.at(.05), "%s: its agent does not answer", n.ID)
	case st.Work != nil:
		r.Step(p.at(.05), "%s: %s", n.ID, st.Work.Step)
		r.Bytes(st.Work.Done, st.Work.Total, p.at(.05), p.at(filled))
	case st.Empty:
		r.Step(p.at(.05), "%s: waits for its turn", n.ID)
	case !st.Server.Streaming && st.Member.Archive:
		r.Step(p.at(at), "%s: replays the archive", n.ID)
	case !st.Server.Streaming:
		r.Step(p.at(at), "%s: catches up", n.ID)
	default:
		r.Step(p.at(replayed), "%s: streams, and joins", n.ID)
	}
}

// restoreReplica has a node's data made anew. What the shard's loop began by itself is only told of.
func (l *leader) restoreReplica(ctx context.Context, j catalog.Job, r *Report) error {
	args, err := argsOf(&j)
	if err != nil {
		return err
	}
	request := cmp.Or(j.Memo["request"], args.Request)
	if request == "" {
		n := l.a.live.Snapshot().Node(j.Node)
		if n == nil {
			return giveUp(pgerr.New(pgerr.UndefinedObject, "node %s is not there any more", j.Node))
		}
		request = catalog.NewRequest(time.Now(), n.Request)
		if err := r.Remember(ctx, "request", request); err != nil {
			return err
		}
	}
	if args.Request == "" {
		if err := l.requestRestore(ctx, &j, request); err != nil {
			return err
		}
	}
	return l.awaitRestored(ctx, r, &j, request)
}

// requestRestore writes that a node is to be restored, once.
func (l *leader) requestRestore(ctx context.Context, j *catalog.Job, request string) error {
	cfg := &l.a.cfg
	rule, err := catalog.GetRule(ctx, cfg.Store, cfg.Cluster, j.Shard)
	if err != nil {
		return err
	}
	if rule.Leader == j.Node {
		return giveUp(pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s is the primary of shard %s", j.Node, j.Shard).
			WithHint("CALL neki.switchover('%s') gives the lead to another first.", j.Shard))
	}
	_, err = catalog.UpdateNode(ctx, cfg.Store, cfg.Cluster, j.Shard, j.Node, func(n *catalog.Node) error {
		switch {
		case n.Request >= request: // it was written before
		case n.Desired == "" || n.Desired == catalog.DesiredRun || n.Desired == catalog.DesiredRestore:
			n.Desired, n.Reason, n.Request, n.Tries = catalog.DesiredRestore, "asked for by "+j.By, request, 1
		default:
			return giveUp(pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s is to be %s: %s", n.ID, n.Desired, n.Reason).
				WithHint("CALL neki.unfence('%s') takes it back first.", n.ID))
		}
		return nil
	})
	return err
}

func (l *leader) awaitRestored(ctx context.Context, r *Report, j *catalog.Job, request string) error {
	var f filling
	for ctx.Err() == nil {
		snap := l.a.live.Snapshot()
		rule := snap.Rule(j.Shard)
		n, err := l.node(ctx, j.Shard, j.Node)
		switch {
		case err != nil:
			return err
		case n == nil:
			return giveUp(pgerr.New(pgerr.UndefinedObject, "node %s is not there any more", j.Node))
		case n.Desired == catalog.DesiredRun && l.joined(snap, n, rule, n.Role):
			r.Step(1, "%s is whole again%s", n.ID, l.filled(ctx, r, n, part{0, 1}))
			return nil
		case n.Desired != catalog.DesiredRun && n.Desired != catalog.DesiredRestore:
			return giveUp(pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s is to be %s now: %s", n.ID, n.Desired, n.Reason))
		case rule != nil && slices.Contains(rule.Cohort, n.ID) && n.Desired == catalog.DesiredRestore:
			r.Step(.02, "%s is to acknowledge no commits any more", n.ID)
		default:
			l.reportFilling(ctx, r, n, &f, part{0, 1})
		}
		sleep(ctx, restartPoll)
	}
	return context.Cause(ctx)
}
