package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"neki/catalog"
	"neki/cluster/agent"
	"neki/cluster/decide"
)

// hosts lets one long order at a time through to each host: two copies would take each other's disk.
type hosts struct {
	mu    sync.Mutex
	turns map[string]chan struct{}
}

// enter waits for a host's turn; leave gives it back.
func (h *hosts) enter(ctx context.Context, host string) (leave func(), err error) {
	h.mu.Lock()
	if h.turns == nil {
		h.turns = map[string]chan struct{}{}
	}
	turn := h.turns[host]
	if turn == nil {
		turn = make(chan struct{}, 1)
		h.turns[host] = turn
	}
	h.mu.Unlock()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// fill gives an order that makes a node's data: one at a time for each host, but for a rewind. When it fails, the next try waits, twice as
// long each time; the node is busy meanwhile.
func (s *shardLoop) fill(ctx context.Context, v *view, action decide.Action) error {
	s.setBusy(action.Node, true)
	defer s.setBusy(action.Node, false)
	if action.Kind != decide.Rewind { // which a promotion may wait for
		leave, err := s.l.a.hosts.enter(ctx, v.nodes[action.Node].Host)
		if err != nil {
			return err
		}
		defer leave()
	}
	if err := s.l.a.copies.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.l.a.copies.Release(1)
	began := time.Now()
	if err := s.giveWithin(ctx, v, action, copyTimeout); err != nil {
		wait := s.failed(action.Node)
		if ctx.Err() == nil {
			s.l.a.log.Warn("order not carried out", "shard", s.uid, "order", action.String(), "error", err)
			s.l.a.record(ctx, catalog.Event{
				Kind: action.Kind.String(), Shard: s.uid, Node: action.Node, Duration: time.Since(began),
				Detail: fmt.Sprintf("term %d: failed, next try in %v: %v", action.Term, wait, err),
			})
		}
		sleep(ctx, wait)
		return nil
	}
	s.succeeded(action.Node)
	return nil
}

// fillOf says where the data of an order comes from.
func fillOf(v *view, action decide.Action) agent.Fill {
	f := agent.Fill{Backup: action.Backup, Request: action.Request}
	if n := v.nodes[action.Copy]; n != nil && action.Copy != action.Source {
		f.Copy = sourceOf(n)
	}
	for i := range v.shard.Members {
		if m := &v.shard.Members[i]; m.ID == action.Source {
			f.SourceTimeline, f.SourceOldest = m.Timeline, m.OldestLSN
		}
	}
	return f
}

// want writes what is wanted of a node, if its document is as it was looked at and this admin still leads. A restore has
// a request of its own each time: an order that comes late can't be taken for it.
func (s *shardLoop) want(ctx context.Context, v *view, action decide.Action) error {
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	n := *v.nodes[action.Node]
	took := time.Duration(0)
	kind := "restored"
	if action.Desired == catalog.DesiredRestore {
		kind = "fenced"
		n.Request, n.Tries = catalog.NewRequest(time.Now(), n.Request), n.Tries+1
	} else {
		n.Tries = 0
		if began, ok := catalog.RequestTime(n.Request); ok {
			took = time.Since(began)
		}
	}
	n.Desired, n.Reason = action.Desired, action.Why
	if n.Desired == catalog.DesiredRun {
		n.Reason = ""
	}
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	cluster := s.l.a.cfg.Cluster
	key := catalog.NodeKey(cluster, s.uid, n.ID)
	if _, err := s.l.a.cfg.Store.Txn(ctx, []catalog.Cond{
		catalog.LeaderCond(cluster, s.l.epoch), catalog.ModRev(key, n.ModRev),
	}, []catalog.Op{catalog.PutOp(key, text)}); errors.Is(err, catalog.ErrConflict) {
		return nil // the next look sees what is there
	} else if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	detail := "to be restored: " + action.Why
	if kind == "restored" {
		detail = "whole again, and takes reads"
	}
	s.l.a.record(ctx, catalog.Event{Kind: kind, Shard: s.uid, Node: n.ID, Detail: detail, Duration: took})
	if action.Desired == catalog.DesiredRestore {
		return s.show(ctx, &n)
	}
	return nil
}

// show puts a job that shows how a restore gets on, unless an operator's does already.
func (s *shardLoop) show(ctx context.Context, n *catalog.Node) error {
	const kind = "restore_replica"
	for _, j := range s.l.a.live.Snapshot().Jobs {
		if j.Kind == kind && j.Node == n.ID && !j.State.Final() {
			return nil
		}
	}
	args, err := json.Marshal(replicaArgs{Role: n.Role, Request: n.Request})
	if err != nil {
		return err
	}
	_, _, err = catalog.PutJob(ctx, s.l.a.cfg.Store, s.l.a.cfg.Cluster, catalog.Job{
		Kind: kind, Target: "node " + n.ID, Shard: s.uid, Node: n.ID, Args: args, By: "admin " + s.l.a.cfg.ID, Key: kind + " " + n.ID,
	})
	return err
}
