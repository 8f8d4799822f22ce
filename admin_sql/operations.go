package adminsql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
)

// Operations asks the leading admin for what it does to a shard, by the catalog.
type Operations interface {
	// PutOperation asks for an operation; catalog.ErrConflict while there is one.
	PutOperation(ctx context.Context, shard string, o catalog.Operation) error
	// Operation reads the one under way; catalog.ErrNotFound when there is none.
	Operation(ctx context.Context, shard string) (catalog.Operation, error)
	Rule(ctx context.Context, shard string) (catalog.Rule, error)
}

// operationLimit is how long an operation may wait until it can be begun.
const operationLimit = 30 * time.Second

// operationPoll is how often the catalog is asked whether it is done.
const operationPoll = 20 * time.Millisecond

func (s *Schema) operationProcedures() []*Procedure {
	shard := Argument{Name: "shard", Type: text, Comment: "the uid or name of a shard, as in neki.shards"}
	candidate := Argument{Name: "candidate", Type: text, Null: true, Comment: "the node that shall lead; NULL = the best"}
	return []*Procedure{
		{
			Name: "switchover", Comment: "Give the lead of a shard to another node, as planned: nothing is lost, clients wait",
			Args: []Argument{shard, candidate}, run: s.operation(catalog.OpSwitchover),
		},
		{
			Name: "failover", Comment: "Replace the primary of a shard by force: it is killed if it still lives; no acknowledged commit is lost",
			Args: []Argument{shard}, run: s.operation(catalog.OpFailover),
		},
	}
}

// operation asks for one and waits for its end.
func (s *Schema) operation(kind string) body {
	return func(ctx context.Context, c *call) error {
		if s.in.Operations == nil {
			return missing("operations on shards")
		}
		snap, err := s.snapshot()
		if err != nil {
			return err
		}
		if c.shard, err = shardArgument(snap, c.args[0]); err != nil {
			return err
		}
		o := catalog.Operation{Kind: kind, Timeout: operationLimit, By: c.by, At: time.Now().UTC()}
		if len(c.args) > 1 && c.args[1] != nil {
			if o.Candidate, err = candidateArgument(snap, c.shard, c.args[1]); err != nil {
				return err
			}
		}
		rule, err := s.in.Operations.Rule(ctx, c.shard)
		if err != nil {
			return err
		}
		o.FromTerm, o.ID = rule.Term, fmt.Sprintf("%s-%s-%d", kind, c.shard, o.At.UnixNano())
		c.node = rule.Leader
		err = s.in.Operations.PutOperation(ctx, c.shard, o)
		if errors.Is(err, catalog.ErrConflict) {
			return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "an operation on shard %s is under way", c.shard).
				WithHint("SELECT * FROM neki.events shows what was done last.")
		}
		if err != nil {
			return err
		}
		return s.awaitOperation(ctx, c, o, rule)
	}
}

func candidateArgument(snap *catalog.Snapshot, shard string, value any) (string, error) {
	var known []string
	for _, n := range snap.NodesOf(shard) {
		if n.ID == value {
			return n.ID, nil
		}
		if n.Role != catalog.RoleRdonly {
			known = append(known, n.ID)
		}
	}
	return "", invalidArgument("candidate", value, known)
}

// awaitOperation waits until the admin has ended the operation, and tells of each change of the shard's rule meanwhile.
func (s *Schema) awaitOperation(ctx context.Context, c *call, o catalog.Operation, before catalog.Rule) error {
	tick := time.NewTicker(operationPoll)
	defer tick.Stop()
	last := before
	for {
		now, err := s.in.Operations.Operation(ctx, c.shard)
		ended := errors.Is(err, catalog.ErrNotFound) || err == nil && now.ID != o.ID
		rule, ruleErr := s.in.Operations.Rule(ctx, c.shard)
		if ruleErr == nil && (rule.Term != last.Term || rule.Sub != last.Sub) {
			c.notice(pgerr.Notice("shard %s: term %d, %s%s", c.shard, rule.Term, rule.Phase, leaderWords(&rule)))
			last = rule
		}
		if ended && ruleErr == nil {
			return operationEnd(c, o, rule)
		}
		select {
		case <-ctx.Done():
			return pgerr.New(pgerr.QueryCanceled, "the %s of shard %s goes on: %w", o.Kind, c.shard, context.Cause(ctx)).
				WithHint("SELECT * FROM neki.events shows how it ends.")
		case <-tick.C:
		}
	}
}

func leaderWords(r *catalog.Rule) string {
	switch {
	case r.Leader == "":
		return ", its leader is being chosen"
	case r.Candidate != "" && r.Candidate != r.Leader:
		return ", " + r.Leader + " leads, " + r.Candidate + " is to"
	}
	return ", " + r.Leader + " leads"
}

func operationEnd(c *call, o catalog.Operation, rule catalog.Rule) error {
	if rule.Term <= o.FromTerm {
		return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "the %s of shard %s was not done: %s still leads", o.Kind, c.shard, rule.Leader).
			WithHint("SELECT * FROM neki.events says why.")
	}
	c.node = rule.Leader
	c.result = fmt.Sprintf("%s leads in term %d", rule.Leader, rule.Term)
	return nil
}
