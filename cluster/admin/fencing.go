package admin

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
)

// fenceLimit is how long a node may be needed where it is until fencing it is given up.
const fenceLimit = time.Minute

// fenceNode has an instance stopped and kept so. What that takes - another leader, a cohort without it - the shard's loop
// decides; this only says what is wanted, and takes that back when it can't be had.
func (l *leader) fenceNode(ctx context.Context, j catalog.Job, r *Report) error {
	var args struct{ Reason string }
	if err := json.Unmarshal(j.Args, &args); err != nil {
		return giveUp(err)
	}
	if args.Reason == "" {
		args.Reason = "fenced by " + j.By
	}
	n, err := l.want(ctx, &j, catalog.DesiredFenced, args.Reason)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, fenceLimit)
	defer cancel()
	for limited.Err() == nil {
		rule, err := catalog.GetRule(limited, l.a.cfg.Store, l.a.cfg.Cluster, j.Shard)
		if err == nil && l.fenced(limited, &n, &rule, r) {
			return nil
		}
		sleep(limited, restartPoll)
	}
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errJobCancelled) {
		return context.Cause(ctx) // the next leader goes on
	}
	back, cancelBack := context.WithTimeout(context.WithoutCancel(ctx), jobWrites)
	defer cancelBack()
	if _, err := l.want(back, &j, catalog.DesiredRun, ""); err != nil {
		return err
	}
	return giveUp(pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s was not fenced: the shard can't do without it", n.ID).
		WithHint("SELECT * FROM neki.events WHERE shard = '%s' AND kind = 'problem' says why; another replica must be able to take its place.", j.Shard))
}

// fenced tells whether a node is out of service, and reports what it waits for.
func (l *leader) fenced(ctx context.Context, n *catalog.Node, rule *catalog.Rule, r *Report) bool {
	st, err := l.a.client(n).Status(ctx)
	switch {
	case rule.Leader == n.ID:
		r.Step(.2, "%s gives the lead away", n.ID)
	case slices.Contains(rule.Cohort, n.ID):
		r.Step(.5, "%s is to acknowledge no commits any more", n.ID)
	case err != nil:
		r.Step(1, "%s is fenced; its agent does not answer, and stops Postgres when it does", n.ID)
		return true
	case st.Member.Hold != "" && st.PID == 0:
		r.Step(1, "%s is fenced", n.ID)
		return true
	default:
		r.Step(.8, "%s stops", n.ID)
	}
	return false
}

// unfenceNode takes an instance back into service.
func (l *leader) unfenceNode(ctx context.Context, j catalog.Job, r *Report) error {
	n, err := l.want(ctx, &j, catalog.DesiredRun, "")
	if err != nil {
		return err
	}
	return l.awaitServing(ctx, &restart{job: j, report: r, shard: j.Shard, node: j.Node, to: 1}, &n, "")
}

// want writes what is wanted of a job's node.
func (l *leader) want(ctx context.Context, j *catalog.Job, desired, reason string) (catalog.Node, error) {
	n, err := catalog.UpdateNode(ctx, l.a.cfg.Store, l.a.cfg.Cluster, j.Shard, j.Node, func(n *catalog.Node) error {
		if n.Desired == catalog.DesiredRestore {
			return giveUp(pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s is being restored", n.ID).
				WithHint("SELECT * FROM neki.operations WHERE node = '%s' shows how far it is.", n.ID))
		}
		n.Desired, n.Reason = desired, reason
		return nil
	})
	if errors.Is(err, catalog.ErrNotFound) {
		err = giveUp(pgerr.New(pgerr.UndefinedObject, "node %s is not there any more", j.Node))
	}
	return n, err
}
