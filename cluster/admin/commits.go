package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"neki/catalog"
	"neki/cluster/agent"
)

// Times of looking after commits over several shards.
const (
	commitsEvery  = 4 * time.Second // while nothing is left over
	commitsAgain  = time.Second     // while something is
	preparedLimit = 12 * time.Second
	// patience is how long a gateway that lives may take from the first PREPARE TRANSACTION to the last COMMIT PREPARED.
	commitPatience = 15 * time.Second
)

// Resolver ends transactions that were prepared on several shards and left there, because a gateway or a shard was lost:
// by their decision where there is one, else by rolling back. See catalog.Coordinator. One goroutine calls Pass.
type Resolver struct {
	Store   catalog.Store
	Cluster string
	// Shards names the shards to look at.
	Shards func() []string
	// Ask has the primary of a shard end transactions and list what is prepared.
	Ask func(ctx context.Context, shard string, o agent.PreparedOrder) (agent.PreparedStatus, error)
	// Record tells what was done.
	Record func(ctx context.Context, e catalog.Event)
	// Show tells of a transaction that has yet to end on a shard, at each pass; nil: nobody wants to know.
	Show func(ctx context.Context, shard, gid string)

	known   map[string]bool // decisions that were there at the pass before
	waiting map[string]bool // what was found and could not be ended, so as to tell of it once
}

// verdict is what is to become of one prepared transaction.
type verdict uint8

const (
	wait verdict = iota // its gateway lives and is at it
	rollBack
	commit
	abort // decide against it first
)

// judge says what is to become of a transaction that was prepared before the view was taken.
func judge(t agent.PreparedTransaction, view *catalog.Commits) verdict {
	_, _, incarnation, ok := catalog.ParseGID(t.GID)
	if !ok {
		return wait
	}
	d, decided := view.Decisions[t.GID]
	switch {
	case view.Live[incarnation] && t.Age < commitPatience:
		return wait
	case decided && !d.Aborted:
		return commit
	case decided || !view.Live[incarnation]:
		return rollBack
	}
	return abort
}

// Pass looks once. left says that something is left over.
func (r *Resolver) Pass(ctx context.Context) (left bool, err error) {
	shards := r.Shards()
	prepared, failed := r.ask(ctx, shards, len(r.known) > 0)
	// Only now: who decides on what was prepared by then is in the view, if it may still decide.
	view, err := catalog.ListCommits(ctx, r.Store, r.Cluster)
	if err != nil {
		return true, err
	}
	left = len(failed) > 0
	orders := map[string][]agent.FinishPrepared{}
	found := map[string]bool{}
	for shard, status := range prepared {
		for _, t := range status.Transactions {
			if cluster, _, _, ok := catalog.ParseGID(t.GID); !ok || cluster != r.Cluster {
				continue
			}
			v, err := r.decide(ctx, t, &view)
			if err != nil {
				return true, err
			}
			if v == wait {
				continue
			}
			left, found[shard+" "+t.GID] = true, true
			orders[shard] = append(orders[shard], agent.FinishPrepared{GID: t.GID, Database: t.Database, Commit: v == commit})
		}
	}
	r.finish(ctx, orders)
	r.waiting = found
	return r.forget(ctx, &view, prepared) || left, errors.Join(slices.Collect(maps.Values(failed))...)
}

// decide is judge, and makes sure that the coordinator can't decide otherwise.
func (r *Resolver) decide(ctx context.Context, t agent.PreparedTransaction, view *catalog.Commits) (verdict, error) {
	v := judge(t, view)
	if v != abort {
		return v, nil
	}
	err := catalog.Abort(ctx, r.Store, r.Cluster, t.GID)
	switch {
	case err == nil:
		return rollBack, nil
	case errors.Is(err, catalog.ErrConflict): // it was decided meanwhile: the next pass sees how
		return wait, nil
	}
	return wait, err
}

// ask asks all shards at once.
func (r *Resolver) ask(ctx context.Context, shards []string, settle bool) (map[string]agent.PreparedStatus, map[string]error) {
	var mu sync.Mutex
	var asking sync.WaitGroup
	prepared, failed := map[string]agent.PreparedStatus{}, map[string]error{}
	for _, shard := range shards {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, preparedLimit)
			defer cancel()
			status, err := r.Ask(ctx, shard, agent.PreparedOrder{Settle: settle})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[shard] = fmt.Errorf("shard %s: %w", shard, err)
				return
			}
			prepared[shard] = status
		})
	}
	asking.Wait()
	return prepared, failed
}

// finish carries verdicts out, on all shards at once.
func (r *Resolver) finish(ctx context.Context, orders map[string][]agent.FinishPrepared) {
	var asking sync.WaitGroup
	for shard, finish := range orders {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, preparedLimit)
			defer cancel()
			status, err := r.Ask(ctx, shard, agent.PreparedOrder{Finish: finish})
			for _, f := range finish {
				if err != nil || slices.ContainsFunc(status.Failed, func(s string) bool { return strings.HasPrefix(s, f.GID+": ") }) {
					r.show(ctx, shard, f.GID)
					if !r.waiting[shard+" "+f.GID] {
						r.Record(ctx, catalog.Event{Kind: "commit", Shard: shard, Detail: f.GID + " can't be ended yet"})
					}
					continue
				}
				word := "rolled back"
				if f.Commit {
					word = "committed, as was decided"
				}
				r.Record(ctx, catalog.Event{Kind: "commit", Shard: shard, Detail: f.GID + " " + word})
			}
		})
	}
	asking.Wait()
}

// forget deletes decisions that nobody needs any more: all their shards have carried them out, durably. It counts what
// was known before the shards were asked, for only that was prepared everywhere by then.
func (r *Resolver) forget(ctx context.Context, view *catalog.Commits, prepared map[string]agent.PreparedStatus) (left bool) {
	next := map[string]bool{}
	for gid, d := range view.Decisions {
		_, _, incarnation, _ := catalog.ParseGID(gid)
		over := d.Aborted && !view.Live[incarnation]
		if !d.Aborted {
			over = r.known[gid] && !slices.ContainsFunc(d.Shards, func(shard string) bool {
				status, ok := prepared[shard]
				return !ok || !status.Settled ||
					slices.ContainsFunc(status.Transactions, func(t agent.PreparedTransaction) bool { return t.GID == gid })
			})
		}
		if over && catalog.ForgetDecision(ctx, r.Store, r.Cluster, d) == nil {
			continue
		}
		if d.Aborted {
			continue
		}
		next[gid], left = true, true
		for _, shard := range d.Shards {
			if _, answered := prepared[shard]; !answered && r.known[gid] && !view.Live[incarnation] {
				r.show(ctx, shard, gid)
			}
		}
	}
	r.known = next
	return left
}

func (r *Resolver) show(ctx context.Context, shard, gid string) {
	if r.Show != nil {
		r.Show(ctx, shard, gid)
	}
}

// endTransaction is the kind of jobs that show a transaction that has yet to end on a shard.
const endTransaction = "end_transaction"

// showTransaction makes the job of one, unless there is one.
func (l *leader) showTransaction(ctx context.Context, shard, gid string) {
	_, _, err := catalog.PutJob(ctx, l.a.cfg.Store, l.a.cfg.Cluster, catalog.Job{
		Kind: endTransaction, Target: gid, Shard: shard, Key: endTransaction + " " + shard + " " + gid, By: "admin " + l.a.cfg.ID,
	})
	if err != nil && ctx.Err() == nil {
		l.a.log.Warn("a transaction that has yet to end is not shown", "gid", gid, "shard", shard, "error", err)
	}
}

// awaitTransaction is the job: followCommits ends the transaction, as soon as the shard lets it.
func (l *leader) awaitTransaction(ctx context.Context, j catalog.Job, r *Report) error {
	for ctx.Err() == nil {
		status, err := l.askPrepared(ctx, j.Shard, agent.PreparedOrder{})
		switch {
		case err != nil:
			r.Step(0, "shard %s can't be asked: %v", j.Shard, err)
		case !slices.ContainsFunc(status.Transactions, func(t agent.PreparedTransaction) bool { return t.GID == j.Target }):
			return nil
		default:
			r.Step(0, "it is prepared there")
		}
		sleep(ctx, commitsAgain)
	}
	return ctx.Err()
}

// followCommits looks after commits over several shards, for as long as the admin leads.
func (l *leader) followCommits(ctx context.Context) {
	r := &Resolver{
		Store: l.a.cfg.Store, Cluster: l.a.cfg.Cluster, Record: l.a.record, Ask: l.askPrepared, Show: l.showTransaction,
		Shards: func() []string {
			var uids []string
			for _, s := range l.a.live.Snapshot().Shards {
				uids = append(uids, s.UID)
			}
			return uids
		},
	}
	outage := catalog.Outage{Log: l.a.log, What: "looking after commits over several shards"}
	for ctx.Err() == nil {
		pause := commitsEvery
		left, err := r.Pass(ctx)
		if err != nil && ctx.Err() == nil {
			outage.Failed(err)
		} else {
			outage.Worked()
		}
		if left {
			pause = commitsAgain
		}
		sleep(ctx, pause)
	}
}

// askPrepared asks the agent of a shard's primary.
func (l *leader) askPrepared(ctx context.Context, shard string, o agent.PreparedOrder) (agent.PreparedStatus, error) {
	node := l.a.live.Snapshot().ServingPrimary(shard)
	if node == nil || node.AgentURL == "" {
		return agent.PreparedStatus{}, errors.New("no primary serves")
	}
	return l.a.client(node).Prepared(ctx, o)
}
