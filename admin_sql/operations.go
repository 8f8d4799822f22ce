package adminsql

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"neki/catalog"
	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/settings"
)

// Operations asks the leading admin for long actions, by the catalog.
type Operations interface {
	// PutJob asks for a job. While one of the same Key goes on, that one is given, and fresh is false.
	PutJob(ctx context.Context, j catalog.Job) (_ catalog.Job, fresh bool, err error)
	// PutOperation asks for an operation on a shard's leadership, gives it an ID, and gives the job that shows it;
	// catalog.ErrConflict while there is one.
	PutOperation(ctx context.Context, shard string, o catalog.Operation) (catalog.Job, error)
	// FollowJob calls seen with each state of a job that this process sees, until seen gives false or ctx ends.
	// catalog.ErrNotFound: the job is not in the catalog any more.
	FollowJob(ctx context.Context, id string, seen func(*catalog.Job) bool) error
	// CancelJob asks for the end of a job and gives it as it was; catalog.ErrNotFound when there is none.
	CancelJob(ctx context.Context, id, by string) (catalog.Job, error)
	Rule(ctx context.Context, shard string) (catalog.Rule, error)
}

// operationLimit is how long a failover may wait until it can be begun; a switchover as long as planned-switchover-timeout says.
const operationLimit = 30 * time.Second

// Of progress, a NOTICE tells at most so often while the step is the same.
const noticeEvery = 5 * time.Second

// long makes a procedure of one that asks for a long action: it gives one row with the operation's id, and returns when
// that has ended unless wait is false. ask gives the operation's job, as it was put.
func (s *Schema) long(p Procedure, ask func(ctx context.Context, c *call) (catalog.Job, error)) *Procedure {
	yes := "true"
	waitAt := len(p.Args)
	p.Args = append(p.Args,
		Argument{Name: "wait", Type: boolean, Default: &yes, Comment: "false: return at once, with the operation's id"},
		Argument{Name: "operation", Type: text, Null: true, InOut: true, Comment: "gives the operation's id; what is put in does not matter"},
	)
	p.run = func(ctx context.Context, c *call) error {
		if s.in.Operations == nil {
			return missing("operations")
		}
		j, err := ask(ctx, c)
		if err != nil {
			return err
		}
		c.shard, c.node, c.operation, c.result = j.Shard, j.Node, j.ID, "operation "+j.ID
		if wait, _ := c.args[waitAt].(bool); !wait {
			return nil
		}
		return s.await(ctx, c, &j)
	}
	return &p
}

// putJob asks for a job of a kind. The same request while it goes on gives the one that is under way.
func (s *Schema) putJob(ctx context.Context, c *call, j catalog.Job, args any) (catalog.Job, error) {
	text, err := json.Marshal(args)
	if err != nil {
		return j, err
	}
	j.Args, j.By = text, c.by
	j.Key = fmt.Sprintf("%s %s %s %s", j.Kind, j.Shard, j.Node, text)
	j, fresh, err := s.in.Operations.PutJob(ctx, j)
	if err == nil && !fresh {
		c.notice(pgerr.Notice("operation %s does that already", j.ID))
	}
	return j, err
}

// await waits for a job's end and tells of its steps meanwhile. A cancel of the CALL leaves it running.
func (s *Schema) await(ctx context.Context, c *call, j *catalog.Job) error {
	if snap := s.in.Catalog.Snapshot(); snap != nil && snap.Leader() == nil {
		c.notice(pgerr.Notice("no admin leads at present: operation %s begins when one does", j.ID))
	}
	var said catalog.Job
	var saidAt time.Time
	var last catalog.Job
	err := s.in.Operations.FollowJob(ctx, j.ID, func(now *catalog.Job) bool {
		last = *now
		if now.State.Final() {
			return false
		}
		news := now.Step != said.Step || now.Error != said.Error || now.Progress != said.Progress && time.Since(saidAt) > noticeEvery
		if now.State == catalog.JobRunning && now.Step != "" && news {
			n := progressNotice(now)
			if now.Error != "" && now.Error != said.Error {
				n = n.WithDetail("%s", now.Error) // once: later steps may be of an attempt that it has not failed
			}
			said, saidAt = *now, time.Now()
			c.notice(n)
		}
		return true
	})
	switch {
	case ctx.Err() != nil:
		return pgerr.New(pgerr.QueryCanceled, "no longer waiting for operation %s, which goes on", j.ID).
			WithHint("SELECT * FROM neki.operations WHERE id = '%s' shows how it gets on; CALL neki.cancel_operation('%s') ends it.", j.ID, j.ID)
	case err != nil:
		return err
	}
	return jobEnd(c, &last)
}

func progressNotice(j *catalog.Job) *pgerr.Error {
	if j.BytesTotal > 0 {
		return pgerr.Notice("%s: %.0f %%, %s, %d of %d MB", j.Target, 100*j.Progress, j.Step, j.BytesDone>>20, j.BytesTotal>>20)
	}
	return pgerr.Notice("%s: %.0f %%, %s", j.Target, 100*j.Progress, j.Step)
}

// jobEnd is what the CALL says of a job that has ended.
func jobEnd(c *call, j *catalog.Job) error {
	c.node = j.Node
	switch j.State {
	case catalog.JobDone:
		if j.Step != "" {
			c.result += ": " + j.Step
			c.notice(pgerr.Notice("%s: %s", j.Target, j.Step))
		}
		return nil
	case catalog.JobCancelled:
		return pgerr.New(pgerr.QueryCanceled, "operation %s, %s of %s, was %s", j.ID, j.Kind, j.Target, j.Error)
	}
	if j.Code != "" {
		return pgerr.New(j.Code, "%s", j.Error).WithHint("%s", j.Hint)
	}
	err := pgerr.New(pgerr.ObjectNotInPrerequisiteState, "the %s of %s was not done: %s", j.Kind, j.Target, j.Error)
	if j.Hint != "" {
		return err.WithHint("%s", j.Hint)
	}
	return err.WithHint("SELECT * FROM neki.events shows what was tried.")
}

// operationRow is the row that a long procedure gives.
func operationRow(ctx context.Context, id string) (exec.Node, error) {
	table := exec.NewTable(operationColumns(), func(context.Context) ([][]any, error) { return [][]any{{id}}, nil })
	return table.Open(ctx, exec.Need{})
}

func operationColumns() []exec.Column {
	return []exec.Column{{Name: "operation", Type: datum.Of(text)}}
}

func (s *Schema) operationProcedures() []*Procedure {
	shard := Argument{Name: "shard", Type: text, Comment: "the uid or name of a shard, as in neki.shards"}
	candidate := Argument{Name: "candidate", Type: text, Null: true, Comment: "the node that shall lead; NULL = the best"}
	return []*Procedure{
		s.long(Procedure{
			Name: "switchover", Comment: "Give the lead of a shard to another node, as planned: nothing is lost, clients wait",
			Args: []Argument{shard, candidate},
		}, s.leadership(catalog.OpSwitchover)),
		s.long(Procedure{
			Name: "failover", Comment: "Replace the primary of a shard by force: it is killed if it still lives; no acknowledged commit is lost",
			Args: []Argument{shard},
		}, s.leadership(catalog.OpFailover)),
		{
			Name: "cancel_operation", Comment: "End a long action that is under way; what it has done stays done",
			Args: []Argument{{Name: "operation", Type: text, Comment: "an id of neki.operations"}}, run: s.cancelOperation,
		},
	}
}

// leadership asks for an operation on a shard's leadership.
func (s *Schema) leadership(kind string) func(ctx context.Context, c *call) (catalog.Job, error) {
	return func(ctx context.Context, c *call) (catalog.Job, error) {
		var none catalog.Job
		snap, err := s.aboutShard(c)
		if err != nil {
			return none, err
		}
		o := catalog.Operation{Kind: kind, By: c.by}
		if kind == catalog.OpFailover {
			o.Timeout = operationLimit
		}
		if kind == catalog.OpSwitchover && c.args[1] != nil {
			if o.Candidate, err = candidateArgument(snap, c.shard, c.args[1]); err != nil {
				return none, err
			}
		}
		rule, err := s.in.Operations.Rule(ctx, c.shard)
		if err != nil {
			return none, err
		}
		o.FromTerm, c.node = rule.Term, rule.Leader
		j, err := s.in.Operations.PutOperation(ctx, c.shard, o)
		if errors.Is(err, catalog.ErrConflict) {
			return none, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "an operation on shard %s is under way", c.shard).
				WithHint("SELECT * FROM neki.operations WHERE shard = '%s' AND state = 'running' shows it.", c.shard)
		}
		return j, err
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

func (s *Schema) cancelOperation(ctx context.Context, c *call) error {
	if s.in.Operations == nil {
		return missing("operations")
	}
	snap, err := s.snapshot()
	if err != nil {
		return err
	}
	if j := snap.Job(c.text(0)); j != nil && !j.State.Final() && (j.Kind == catalog.OpSwitchover || j.Kind == catalog.OpFailover) {
		limit := "what parameter " + settings.SwitchoverTimeout + " says"
		if j.Kind == catalog.OpFailover {
			limit = operationLimit.String()
		}
		return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "a %s can't be cancelled", j.Kind).
			WithHint("It is given up by itself when it can't be begun within %s.", limit)
	}
	j, err := s.in.Operations.CancelJob(ctx, c.text(0), c.by)
	if errors.Is(err, catalog.ErrNotFound) {
		return pgerr.New(pgerr.InvalidParameterValue, "no operation has the id \"%s\"", c.text(0)).
			WithHint("Allowed values: those of SELECT id FROM neki.operations WHERE state IN ('pending', 'running').")
	}
	if err != nil {
		return err
	}
	c.shard, c.node = j.Shard, j.Node
	if j.State.Final() {
		c.notice(pgerr.Notice("operation %s has ended already: %s", j.ID, j.State))
	}
	return nil
}

func (s *Schema) operations() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "operations", Comment: "Long actions, newest first: those under way, and the last 200 that have ended",
		Columns: []Column{
			{"id", text, "what neki.cancel_operation takes"},
			{"kind", text, "the procedure that asked for it, or what the admin does by itself"},
			{"target", text, "what it is about"},
			{"shard", text, "shard concerned"},
			{"node", text, "instance concerned"},
			{"state", text, "pending, running, done, failed or cancelled"},
			{"progress", float8, "0 to 1"},
			{"step", text, "what it does now, or did last"},
			{"bytes_done", int8, "of what is copied"},
			{"bytes_total", int8, "of what is copied"},
			{"attempts", int4, "times it failed and was tried again"},
			{"error", text, "why it failed; while it runs, why the last attempt did"},
			{"by", text, "role that asked for it, or admin"},
			{"args", jsonb, "what it was asked with"},
			{"requested_at", timestamptz, "when it was asked for"},
			{"started_at", timestamptz, "when it was begun"},
			{"finished_at", timestamptz, "when it ended"},
		},
		rows: ignoreArgs(func(context.Context) ([][]any, error) {
			snap, err := s.snapshot()
			if err != nil {
				return nil, err
			}
			rows := make([][]any, 0, len(snap.Jobs))
			for i := len(snap.Jobs) - 1; i >= 0; i-- {
				rows = append(rows, jobRow(snap.Jobs[i]))
			}
			return rows, nil
		}),
	}
}

func jobRow(j *catalog.Job) []any {
	var args any
	if len(j.Args) > 0 {
		args = string(j.Args)
	}
	return []any{
		j.ID, j.Kind, orNull(j.Target), orNull(j.Shard), orNull(j.Node), string(j.State), j.Progress, orNull(j.Step),
		orNull(j.BytesDone), orNull(j.BytesTotal), int32(j.Attempts), orNull(j.Error), orNull(j.By), args,
		timeOrNull(j.At), timeOrNull(j.StartedAt), timeOrNull(j.FinishedAt),
	}
}
