package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"neki/catalog"
	"neki/cluster/agent"
	"neki/cluster/decide"
)

// act does one action. Those on the catalog compare the leader's key and the documents that were looked at.
func (s *shardLoop) act(ctx context.Context, v *view, action decide.Action) error {
	limit := actTimeout
	if action.Kind == decide.Init {
		limit = fillTimeout
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	switch action.Kind {
	case decide.Claim:
		return s.claim(limited, v, action)
	case decide.Init:
		return s.initialise(limited, v, action)
	case decide.Record:
		return s.recordSystem(limited, v, action)
	case decide.Apply:
		return s.apply(limited, v, action)
	case decide.Lead:
		return s.leadOrder(limited, v, action)
	case decide.Clone:
		s.clone(ctx, v, action)
		return nil
	case decide.Follow:
		return s.follow(limited, v, action)
	case decide.Grow:
		return s.grow(limited, v, action)
	case decide.Open:
		return s.open(limited, v)
	}
	return fmt.Errorf("no such action")
}

// write puts the shard's document and its rule, if both are still as they were looked at and this admin still leads.
func (s *shardLoop) write(ctx context.Context, v *view, doc catalog.Shard, rule catalog.Rule) error {
	cluster := s.l.a.cfg.Cluster
	docText, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	ruleText, err := json.Marshal(rule)
	if err != nil {
		return err
	}
	docKey, ruleKey := catalog.ShardKey(cluster, s.uid), catalog.RuleKey(cluster, s.uid)
	_, err = s.l.a.cfg.Store.Txn(ctx, []catalog.Cond{
		catalog.LeaderCond(cluster, s.l.epoch),
		catalog.ModRev(docKey, v.shard.Doc.ModRev), catalog.ModRev(ruleKey, v.shard.Rule.ModRev),
	}, []catalog.Op{catalog.PutOp(docKey, docText), catalog.PutOp(ruleKey, ruleText)})
	return err
}

// claim names the first primary, before any initdb: from here on no other can be initialised.
func (s *shardLoop) claim(ctx context.Context, v *view, action decide.Action) error {
	doc := v.shard.Doc
	doc.Primary, doc.Term = action.Node, doc.Term+1
	rule := catalog.Rule{
		Term: doc.Term, Phase: decide.PhaseBootstrap, Leader: action.Node, Cohort: []string{action.Node},
		Policy: doc.Durability, W: decide.Acks(doc.Durability), Timeline: 1,
	}
	if v.shard.Want == 1 { // there is nobody to acknowledge
		doc.Durability, rule.Policy, rule.W = decide.PolicyNone, decide.PolicyNone, 0
	}
	return s.write(ctx, v, doc, rule)
}

func (s *shardLoop) initialise(ctx context.Context, v *view, action decide.Action) error {
	s.progress("%s: makes the data of shard %s", action.Node, s.uid)
	_, err := s.l.a.client(v.nodes[action.Node]).Provision(ctx, agent.ProvisionOrder{
		Order: s.orderOf(v, "init"), ReplicationPassword: s.l.secrets.Replication.Password, Parameters: s.parameters(v),
	})
	return err
}

func (s *shardLoop) recordSystem(ctx context.Context, v *view, action decide.Action) error {
	doc, rule := v.shard.Doc, v.shard.Rule
	doc.SystemID, rule.SystemID = action.SystemID, action.SystemID
	rule.Timeline = max(action.Timeline, 1)
	if err := s.write(ctx, v, doc, rule); err != nil {
		return err
	}
	s.l.a.record(ctx, catalog.Event{
		Kind: "initialised", Shard: s.uid, Node: doc.Primary, Detail: "database system " + action.SystemID,
	})
	return nil
}

func (s *shardLoop) apply(ctx context.Context, v *view, action decide.Action) error {
	r, err := s.l.a.client(v.nodes[action.Node]).Apply(ctx, agent.ApplyOrder{
		Order: s.orderOf(v, "apply"), Roles: s.l.secrets.roles(s.l.a.cfg.Superuser), Stubs: s.l.a.cfg.Stubs,
	})
	if err != nil {
		return err
	}
	s.appliedAt, s.appliedTo = time.Now(), action.Node
	if len(r.Done) > 0 {
		s.l.a.record(ctx, catalog.Event{
			Kind: "applied", Shard: s.uid, Node: action.Node, Detail: strings.Join(r.Done, ", "), Duration: r.Duration,
		})
	}
	return nil
}

func (s *shardLoop) leadOrder(ctx context.Context, v *view, action decide.Action) error {
	r, err := s.l.a.client(v.nodes[action.Node]).Lead(ctx, agent.LeadOrder{
		Order: s.orderOf(v, "lead"), Peers: action.Peers, Standbys: action.Standbys, Acks: action.Acks,
	})
	if err == nil && len(r.Done) > 0 {
		s.l.a.record(ctx, catalog.Event{Kind: "replication", Shard: s.uid, Node: action.Node, Detail: strings.Join(r.Done, ", ")})
	}
	return err
}

func (s *shardLoop) follow(ctx context.Context, v *view, action decide.Action) error {
	_, err := s.l.a.client(v.nodes[action.Node]).Follow(ctx, agent.FollowOrder{
		Order: s.orderOf(v, "follow"), Source: *sourceOf(v.nodes[action.Source]),
	})
	if err == nil {
		s.l.a.record(ctx, catalog.Event{Kind: "follows", Shard: s.uid, Node: action.Node, Detail: "from " + action.Source})
	}
	return err
}

func sourceOf(n *catalog.Node) *agent.Source {
	return &agent.Source{Node: n.ID, Host: n.Host, Port: n.Port}
}

// clone copies the primary beside the loop, a few at once in the whole cluster.
func (s *shardLoop) clone(ctx context.Context, v *view, action decide.Action) {
	s.setBusy(action.Node, true)
	order := agent.ProvisionOrder{
		Order: s.orderOf(v, "clone-"+action.Node), Source: sourceOf(v.nodes[action.Source]),
		SystemID: v.shard.Doc.SystemID, ReplicationPassword: s.l.secrets.Replication.Password, Parameters: s.parameters(v),
	}
	node := v.nodes[action.Node]
	s.jobs.Go(func() {
		defer s.nudge()
		defer s.setBusy(action.Node, false)
		r, err := s.copy(ctx, node, action.Source, order)
		if err != nil {
			if ctx.Err() == nil {
				s.l.a.log.Warn("replica not made", "shard", s.uid, "node", action.Node, "error", err)
			}
			sleep(ctx, s.failed(action.Node)) // busy meanwhile
			return
		}
		s.succeeded(action.Node)
		s.l.a.record(ctx, catalog.Event{
			Kind: "provisioned", Shard: s.uid, Node: action.Node, Detail: "copied from " + action.Source, Duration: r.Duration,
		})
	})
}

// copy waits for its turn and has the node copy the source.
func (s *shardLoop) copy(ctx context.Context, node *catalog.Node, source string, order agent.ProvisionOrder) (agent.Result, error) {
	if err := s.l.a.copies.Acquire(ctx, 1); err != nil {
		return agent.Result{}, err
	}
	defer s.l.a.copies.Release(1)
	ctx, cancel := context.WithTimeout(ctx, copyTimeout)
	defer cancel()
	s.progress("%s: copies %s", node.ID, source)
	return s.l.a.client(node).Provision(ctx, order)
}

func (s *shardLoop) grow(ctx context.Context, v *view, action decide.Action) error {
	rule := v.shard.Rule
	rule.Sub++
	rule.Cohort = append([]string{rule.Leader}, action.Standbys...)
	if err := s.write(ctx, v, v.shard.Doc, rule); err != nil {
		return err
	}
	// Later actions of this look compare what is there now.
	fresh, err := s.look(ctx)
	if err != nil {
		return err
	}
	*v = *fresh
	s.l.a.record(ctx, catalog.Event{Kind: "cohort", Shard: s.uid, Detail: "commits are acknowledged by " + strings.Join(action.Standbys, ", ")})
	return nil
}

func (s *shardLoop) open(ctx context.Context, v *view) error {
	if err := s.likeOthers(ctx, v); err != nil {
		s.notLikeOthers(ctx, v, err)
		return err
	}
	doc, rule := v.shard.Doc, v.shard.Rule
	doc.Ready, rule.Phase = true, decide.PhaseActive
	if err := s.write(ctx, v, doc, rule); err != nil {
		return err
	}
	s.l.a.record(ctx, catalog.Event{
		Kind: "ready", Shard: s.uid, Node: doc.Primary, Detail: "serves clients", Duration: time.Since(s.began),
	})
	s.progress("shard %s is ready, primary %s", s.uid, doc.Primary)
	if err := s.likeOthers(ctx, v); err != nil { // what somebody made while it was opened
		s.l.a.log.Warn("roles and databases were not compared again", "shard", s.uid, "error", err)
	}
	return nil
}

func (s *shardLoop) progress(format string, args ...any) {
	s.l.a.cfg.Progress(fmt.Sprintf(format, args...))
}
