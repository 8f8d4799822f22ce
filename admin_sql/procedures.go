package adminsql

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"neki/catalog"
	"neki/internal/pgerr"
)

// call is one execution of a Procedure.
type call struct {
	args   []any
	notice func(*pgerr.Error)
	by     string

	// set by the body for the event
	shard, node string
	result      string

	operation string // id of the operation it asked for

	revision int64 // what neki.set_topology made
}

func (c *call) text(i int) string {
	s, _ := c.args[i].(string)
	return s
}

func (s *Schema) defineProcedures() []*Procedure {
	all := []*Procedure{
		{
			Name: "cancel_query", Comment: "Cancel the running statement of a session",
			Args: []Argument{{Name: "pid", Type: int4, Comment: "a pid of neki.sessions"}},
			run:  s.controlSession("cancel_query", Controls.CancelQuery),
		},
		{
			Name: "kill_session", Comment: "End a session, its transaction rolled back",
			Args: []Argument{{Name: "pid", Type: int4, Comment: "a pid of neki.sessions"}},
			run:  s.controlSession("kill_session", Controls.KillSession),
		},
		{
			Name: "set_parameter", Comment: "Set a parameter of the gateways, the admins or a profile, without a restart",
			Args: []Argument{
				{Name: "scope", Type: text, Comment: "gateway, admin or a profile's name"},
				{Name: "name", Type: text, Comment: "a name of neki.parameters"},
				{Name: "value", Type: text, Comment: "the new value as text, for example '10s'; neki.parameters shows the default"},
			},
			run: s.setParameter,
		},
		{
			Name: "reload", Comment: "Read the configuration file, stored parameters, roles and functions again",
			run: s.control(func(ctx context.Context, controls Controls, _ *call) error { return controls.Reload(ctx) }),
		},
		{
			Name: "pause", Comment: "Hold the client traffic of a shard at the gateways; returns when none is left running",
			Args: []Argument{{Name: "shard", Type: text, Comment: "the uid or name of a shard, as in neki.shards"}},
			run:  s.controlShard(Controls.Pause),
		},
		{
			Name: "resume", Comment: "Let the traffic of a paused shard go on",
			Args: []Argument{{Name: "shard", Type: text, Comment: "the uid or name of a shard, as in neki.shards"}},
			run:  s.controlShard(Controls.Resume),
		},
		{
			Name: "drain", Comment: "Let a gateway end its sessions as they become idle and accept no others",
			Args: []Argument{{Name: "gateway", Type: text, Comment: "the id of a gateway, as in neki.gateways"}},
			run:  s.drain(),
		},
		{
			Name: "flush_plans", Comment: "Empty the plan cache of this gateway",
			run: s.control(func(ctx context.Context, controls Controls, c *call) error {
				err := controls.FlushPlans(ctx)
				if err == nil {
					c.notice(pgerr.Notice("plans flushed"))
				}
				return err
			}),
		},
	}
	all = append(all, s.setTopologyProcedure())
	all = append(all, s.operationProcedures()...)
	all = append(all, s.nodeProcedures()...)
	all = append(all, s.backupProcedures()...)
	all = append(all, s.replicaProcedures()...)
	all = append(all, s.profileProcedures()...)
	all = append(all, s.shardProcedures()...)
	all = append(all, s.gatewayGroupProcedures()...)
	slices.SortFunc(all, func(a, b *Procedure) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

type body = func(ctx context.Context, c *call) error

// control runs a body that needs Controls.
func (s *Schema) control(run func(ctx context.Context, controls Controls, c *call) error) body {
	return func(ctx context.Context, c *call) error {
		if s.in.Controls == nil {
			return missing("sessions and pools")
		}
		return run(ctx, s.in.Controls, c)
	}
}

func (s *Schema) controlSession(name string, act func(Controls, context.Context, int32) (bool, error)) body {
	return s.control(func(ctx context.Context, controls Controls, c *call) error {
		pid, _ := c.args[0].(int32)
		found, err := act(controls, ctx, pid)
		if err != nil || found {
			return err
		}
		return pgerr.New(pgerr.InvalidParameterValue, "%s: no session has pid %d", name, pid).
			WithHint("Allowed values: those of SELECT pid FROM neki.sessions.")
	})
}

func (s *Schema) controlShard(act func(Controls, context.Context, string) error) body {
	return s.control(func(ctx context.Context, controls Controls, c *call) error {
		if _, err := s.aboutShard(c); err != nil {
			return err
		}
		return act(controls, ctx, c.shard)
	})
}

func (s *Schema) drain() body {
	return s.control(func(ctx context.Context, controls Controls, c *call) error {
		snap, err := s.snapshot()
		if err != nil {
			return err
		}
		known := make([]string, 0, len(snap.Gateways))
		for _, g := range snap.Gateways {
			known = append(known, g.ID)
		}
		if !slices.Contains(known, c.text(0)) {
			return invalidArgument("gateway", c.args[0], known)
		}
		if err := controls.Drain(ctx, c.text(0)); err != nil {
			return err
		}
		c.notice(pgerr.Notice("gateway %s takes no clients until it is restarted", c.text(0)))
		return nil
	})
}

func (s *Schema) setParameter(ctx context.Context, c *call) error {
	if s.in.Parameters == nil {
		return missing("parameters")
	}
	return s.in.Parameters.SetParameter(ctx, strings.ToLower(c.text(0)), strings.ToLower(c.text(1)), c.text(2))
}

// execute checks the arguments for NULL, runs the body and records the event. A call refused for its rights or arguments is
// none: nothing was done.
func (s *Schema) execute(
	ctx context.Context, p *Procedure, sess Session, args []any, notice func(*pgerr.Error),
) (*call, error) {
	for i, a := range p.Args {
		if args[i] == nil && !a.Null {
			return nil, pgerr.New(pgerr.InvalidParameterValue, "argument \"%s\" of neki.%s must not be null", a.Name, p.Name).
				WithHint("It takes %s.", a.Comment)
		}
	}
	c := &call{args: args, notice: notice, by: sess.User()}
	start := time.Now()
	err := p.run(ctx, c)
	if pgerr.Code(err) == pgerr.InvalidParameterValue || pgerr.Code(err) == pgerr.UndefinedObject {
		return nil, err
	}
	s.record(ctx, p, sess, c, start, err)
	return c, err
}

func (s *Schema) record(ctx context.Context, p *Procedure, sess Session, c *call, start time.Time, err error) {
	if s.in.Events == nil {
		return
	}
	detail := describeCall(p, c.args)
	if c.result != "" {
		detail += ": " + c.result
	}
	if err != nil {
		detail += " failed: " + pgerr.From(err).Message
	}
	e := catalog.Event{
		At: start, Shard: c.shard, Node: c.node, Kind: p.Name, Detail: detail, By: sess.User(),
		Duration: time.Since(start),
	}
	// What was done stays done, even when the event store is away or the client has cancelled meanwhile.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := s.in.Events.Record(ctx, e); err != nil {
		c.notice(pgerr.New(pgerr.Warning, "the event of this call was not recorded: %w", err).
			WithSeverity(pgerr.SeverityWarning))
	}
}

const recordTimeout = 2 * time.Second

// describeCall writes the call as SQL.
func describeCall(p *Procedure, args []any) string {
	parts := make([]string, 0, len(args))
	for i, a := range args {
		name := p.Args[i].SQLName()
		switch v := a.(type) {
		case nil:
			if !p.Args[i].InOut {
				parts = append(parts, name+" => NULL")
			}
		case string:
			parts = append(parts, name+" => "+quoteLiteral(shorten(v)))
		default:
			parts = append(parts, fmt.Sprintf("%s => %v", name, v))
		}
	}
	return "neki." + p.Name + "(" + strings.Join(parts, ", ") + ")"
}

// shorten cuts what would make an event unreadable, at a character boundary.
func shorten(s string) string {
	const longest = 200
	if len(s) <= longest {
		return s
	}
	n := longest
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// unknownProcedure is 42883 with the nearest name.
func (s *Schema) unknownProcedure(schema, name string) *pgerr.Error {
	err := pgerr.New(pgerr.UndefinedFunction, "procedure %s.%s does not exist", schema, name)
	if _, ok := s.Function(SchemaName, name); ok {
		return err.WithHint("neki.%s is a function: use SELECT * FROM neki.%s(...).", name, name)
	}
	names := make([]string, 0, len(s.procedures))
	for _, p := range s.procedures {
		names = append(names, p.Name)
	}
	if near := pgerr.Nearest(name, names); near != "" {
		return err.WithHint("Perhaps you meant the procedure \"neki.%s\".", near)
	}
	return err.WithHint("\\df neki.* lists the procedures.")
}
