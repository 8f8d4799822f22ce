package admin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"neki/catalog"
	"neki/cluster/agent"
	"neki/internal/pgerr"
)

// Times of a restart.
const (
	restartLimit = 5 * time.Minute // until it serves again
	restartPoll  = 100 * time.Millisecond
	givenUpLimit = 30 * time.Second // from when a switchover that can't be begun is given up until that is seen
)

// restartNode restarts an instance. One that leads its shard gives the lead away first, when there is another.
func (l *leader) restartNode(ctx context.Context, j catalog.Job, r *Report) error {
	return l.restart(ctx, &restart{job: j, report: r, shard: j.Shard, node: j.Node, memo: "pid", from: 0, to: 1})
}

// restart is one instance's, within a job.
type restart struct {
	job         catalog.Job
	report      *Report
	shard, node string
	memo        string  // under which the job remembers what ran before
	from, to    float64 // of the job's progress
}

func (s *restart) step(part float64, format string, args ...any) {
	s.report.Step(s.from+(s.to-s.from)*part, format, args...)
}

func (l *leader) restart(ctx context.Context, s *restart) error {
	n, err := catalog.GetNode(ctx, l.a.cfg.Store, l.a.cfg.Cluster, s.shard, s.node)
	if errors.Is(err, catalog.ErrNotFound) {
		return giveUp(pgerr.New(pgerr.UndefinedObject, "node %s is not there any more", s.node))
	}
	if err != nil {
		return err
	}
	if n.Desired != "" && n.Desired != catalog.DesiredRun {
		return giveUp(pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s is %s", n.ID, n.Desired).
			WithHint("CALL neki.unfence('%s') starts it.", n.ID))
	}
	st, err := l.a.client(&n).Status(ctx)
	if err != nil {
		return err
	}
	before, begun := s.job.Memo[s.memo]
	if !begun {
		before = strconv.Itoa(st.PID)
		if err := s.report.Remember(ctx, s.memo, before); err != nil {
			return err
		}
	}
	if strconv.Itoa(st.PID) == before {
		if err := l.restartNow(ctx, s, &n); err != nil {
			return err
		}
	}
	return l.awaitServing(ctx, s, &n, before)
}

func (l *leader) restartNow(ctx context.Context, s *restart, n *catalog.Node) error {
	rule, err := l.switchAway(ctx, s, n.ID)
	if err != nil {
		return err
	}
	s.step(.5, "%s restarts", n.ID)
	limited, cancel := context.WithTimeout(ctx, restartLimit)
	defer cancel()
	_, err = l.a.client(n).Restart(limited, l.a.order(l.epoch, rule.Term, s.shard+"-restart"))
	if err == nil || ctx.Err() != nil {
		return err
	}
	if st, statusErr := l.a.client(n).Status(ctx); statusErr == nil && st.PID == 0 { // it was stopped, and does not start
		return giveUp(pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s does not start: %s", n.ID, pgerr.From(err).Message).
			WithDetail("%s", st.LogTail))
	}
	return err
}

// awaitServing waits until the restarted instance is up, and a standby streams.
func (l *leader) awaitServing(ctx context.Context, s *restart, n *catalog.Node, before string) error {
	s.step(.7, "%s comes up", n.ID)
	limited, cancel := context.WithTimeout(ctx, restartLimit)
	defer cancel()
	for {
		st, err := l.a.client(n).Status(limited)
		if err == nil && st.Member.Hold == "" && st.Server.Up && strconv.Itoa(st.PID) != before && serves(&st) {
			s.step(1, "%s serves again", n.ID)
			return nil
		}
		sleep(limited, restartPoll)
		if limited.Err() != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return giveUp(notServing(n, &st, err))
		}
	}
}

func notServing(n *catalog.Node, st *agent.Status, err error) error {
	e := pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s does not serve within %v", n.ID, restartLimit).
		WithHint("SELECT * FROM neki.nodes WHERE node = '%s' shows its state.", n.ID)
	switch {
	case err != nil:
		return e.WithDetail("%v", err)
	case st.LogTail != "":
		return e.WithDetail("%s", st.LogTail)
	}
	return e
}

func serves(st *agent.Status) bool { return st.Server.Primary || st.Server.Streaming }

// switchAway has another lead the shard if the node does, and gives the rule. In a shard of one it has the node lead on.
func (l *leader) switchAway(ctx context.Context, s *restart, node string) (catalog.Rule, error) {
	store, cluster := l.a.cfg.Store, l.a.cfg.Cluster
	rule, err := catalog.GetRule(ctx, store, cluster, s.shard)
	if err != nil || rule.Leader != node || len(rule.Cohort) < 2 {
		return rule, err
	}
	now := time.Now().UTC()
	o := catalog.Operation{
		ID: catalog.NewJobID(now), Kind: catalog.OpSwitchover, FromTerm: rule.Term, By: s.job.By, At: now,
	}
	s.step(.1, "%s gives the lead away", node)
	if _, err := catalog.PutOperation(ctx, store, cluster, s.shard, o); err != nil {
		return rule, err // one that is under way already: this is tried again
	}
	limited, cancel := context.WithTimeout(ctx, l.tuned().SwitchoverTimeout+givenUpLimit)
	defer cancel()
	ended, err := l.awaitJob(limited, o.ID)
	if err != nil {
		return rule, err
	}
	if ended.State != catalog.JobDone {
		return rule, fmt.Errorf("the lead of shard %s was not given away: %s", s.shard, ended.Error)
	}
	return catalog.GetRule(ctx, store, cluster, s.shard)
}

// awaitJob waits for the end of a job that another goroutine carries out.
func (l *leader) awaitJob(ctx context.Context, id string) (*catalog.Job, error) {
	for {
		changed := l.a.live.Changed()
		if j := l.a.live.Snapshot().Job(id); j != nil && j.State.Final() {
			return j, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
