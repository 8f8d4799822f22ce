package exec

import (
	"context"
	"io"
	"regexp"
	"time"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// Column is a named column of a relation or result.
type Column struct {
	Name string
	Type datum.Type
}

// Node is one run of an operator. Next gives io.EOF after the last batch and may give empty batches before it.
type Node interface {
	Next(ctx context.Context) (*Batch, error)
	Close() error
}

// Need tells a Source what of it is used. All of it is advice but Columns' order: a source may give more rows than
// asked for, and cells of unneeded columns may be NULL.
type Need struct {
	// Columns marks the columns that are used, by position.
	Columns []bool
	// Equal are conditions column = value that every useful row meets.
	Equal []Equality
	// Limit is how many rows are enough; 0 means all.
	Limit int64
	// Env is the run's environment; the source reads its Caller to know for whom it works.
	Env *Env
}

// Equality is one pushed-down condition.
type Equality struct {
	Column int
	Value  datum.Datum
}

// Source is a relation. It must be safe for concurrent Opens, each of which gives its own rows.
type Source interface {
	Columns() []Column
	Open(ctx context.Context, need Need) (Node, error)
}

// Env is what one run is given. It must not be changed while the run lasts.
type Env struct {
	// Params are the values of $1, $2, ... in the types of Spec.ParamTypes.
	Params []datum.Datum
	// Now is the start of the transaction: now(), current_timestamp. Statement is the start of the statement
	// (statement_timestamp()); zero: the same as Now.
	Now, Statement time.Time
	// Zone is the session's time zone; nil: UTC.
	Zone *time.Location
	// Budget bounds memory; nil: unbounded.
	Budget *Budget
	// Vars answers current_setting; ok is false for a parameter that does not exist. nil: none exists.
	Vars func(name string) (value string, ok bool)
	// VarNames lists parameters that an unknown name may be a misspelling of; nil: none.
	VarNames func() []string
	// User, SessionUser, Database and Schema answer current_user, session_user, current_database() and
	// current_schema ("" is NULL). Version answers version().
	User, SessionUser, Database, Schema, Version string
	// PID answers pg_backend_pid().
	PID int32
	// Backends answers pg_cancel_backend() and its like; nil: they are refused.
	Backends Backends
	// Caller is passed through to sources in Need.Env: whatever their maker needs to know about the session.
	Caller any
}

func (e *Env) session() *datum.Session { return &datum.Session{Zone: e.Zone, Now: e.Now} }

// Spec describes a query. It is immutable.
type Spec struct {
	root    Operator
	columns []Column
	params  []uint32
}

// NewSpec makes a Spec of an operator tree. exec/build is its caller.
func NewSpec(root Operator, columns []Column, params []uint32) *Spec {
	return &Spec{root: root, columns: columns, params: params}
}

// Columns gives the result's columns.
func (s *Spec) Columns() []Column { return s.columns }

// ParamTypes gives the types of $1, $2, ... as given or inferred.
func (s *Spec) ParamTypes() []uint32 { return s.params }

// Operator describes one step of a query; it is immutable. The implementations are this package's.
type Operator interface {
	width() int
	open(f *frame) (Node, error)
}

// Width gives the number of an operator's columns.
func Width(o Operator) int { return o.width() }

// run is what all nodes of one execution share.
type run struct {
	ctx     context.Context
	env     *Env
	session *datum.Session
	memo    map[Operator]*subqueryResult // uncorrelated subqueries: run once
	memory  account
	stack   []datum.Datum // arguments of the calls being evaluated
	regexes map[string]*regexp.Regexp
}

// frame is one activation of a query level: the values a correlated subquery got from outside, and its CTEs.
type frame struct {
	*run
	parent *frame
	args   []datum.Datum
	ctes   map[*CTE]*cteState
	memo   map[Operator]*subqueryResult // of Local subqueries
}

// Open starts a run. ctx must live until the node is closed.
func (s *Spec) Open(ctx context.Context, env *Env) (Node, error) {
	if len(env.Params) < len(s.params) {
		return nil, pgerr.New(pgerr.ProtocolViolation, "bind message supplies %d parameters, but the statement requires %d",
			len(env.Params), len(s.params))
	}
	r := &run{ctx: ctx, env: env, session: env.session(), memo: map[Operator]*subqueryResult{}}
	r.memory.budget = env.Budget
	f := &frame{run: r}
	node, err := s.root.open(f)
	if err != nil {
		f.close()
		r.memory.close()
		return nil, err
	}
	return &rootNode{Node: node, frame: f}, nil
}

// rootNode closes what the run's frame holds after the tree.
type rootNode struct {
	Node
	frame *frame
}

func (n *rootNode) Next(ctx context.Context) (*Batch, error) {
	if n.frame == nil {
		return nil, io.EOF
	}
	return n.Node.Next(ctx)
}

func (n *rootNode) Close() error {
	if n.frame == nil {
		return nil
	}
	err := n.Node.Close()
	n.frame.close()
	n.frame.memory.close()
	n.frame = nil
	return err
}

func (f *frame) close() {
	for _, c := range f.ctes {
		c.memory.close()
	}
	f.ctes = nil
}

// All runs the spec to its end and gives every row: for small results.
func (s *Spec) All(ctx context.Context, env *Env) ([][]datum.Datum, error) {
	node, err := s.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	rows, err := collect(ctx, node, nil)
	if closeErr := node.Close(); err == nil {
		err = closeErr
	}
	return rows, err
}

// collect reads a node to its end, paying for each row when mem is not nil.
func collect(ctx context.Context, node Node, mem *account) ([][]datum.Datum, error) {
	var rows [][]datum.Datum
	for {
		b, err := node.Next(ctx)
		if err == io.EOF {
			return rows, nil
		}
		if err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, pgerr.From(err)
		}
		cells := append([]datum.Datum(nil), b.cells...)
		for i := range b.Len() {
			row := cells[i*b.width : (i+1)*b.width : (i+1)*b.width]
			if mem != nil {
				if err := mem.take(rowSize(row)); err != nil {
					return nil, err
				}
			}
			rows = append(rows, row)
		}
	}
}
