package adminsql

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
)

// Topologies reads and changes the data topology.
type Topologies interface {
	// TopologyHistory gives every revision, newest first.
	TopologyHistory(ctx context.Context) ([]catalog.TopologyDocument, error)
	// PutTopology writes a revision on top of the one expected (catalog.AnyRev: of any) and gives its number;
	// catalog.ErrConflict when it is another.
	PutTopology(ctx context.Context, doc catalog.TopologyDocument, expected int64) (int64, error)
	// CheckTopology tells what stands against a topology in the databases as they are: key columns that are missing or
	// of types that can't be keys, and tables whose rows would be on the wrong shards.
	CheckTopology(ctx context.Context, t *catalog.Topology) []catalog.Problem
	// KeyType gives the type of an index's key column, for catalog.Index.Key; false when no table tells.
	KeyType(ctx context.Context, t *catalog.Topology, ix *catalog.Index) (oid uint32, ok bool)
}

func (s *Schema) setTopologyProcedure() *Procedure {
	return &Procedure{
		Name: "set_topology", Comment: "Replace the data topology as a whole",
		Args: []Argument{
			{Name: "document", Type: text, Comment: "JSON, as neki.topology shows it"},
			{
				Name: "expected_revision", Type: int8, Null: true,
				Comment: "revision that the change was made on, 0 = none yet; NULL = whatever there is",
			},
			{Name: "comment", Type: text, Null: true, Comment: "kept with the revision"},
			{Name: "force", Type: boolean, Default: new("false"), Comment: "set it despite what is wrong with it"},
		},
		run: s.setTopology,
	}
}

// maxDocument is well below what etcd takes in one transaction.
const maxDocument = 512 << 10

func (s *Schema) setTopology(ctx context.Context, c *call) error {
	if s.in.Topologies == nil {
		return missing("data topologies")
	}
	snap, err := s.snapshot()
	if err != nil {
		return err
	}
	force, _ := c.args[3].(bool)
	if err := s.checkDocument(ctx, snap, c, force); err != nil {
		return err
	}
	expected := catalog.AnyRev
	if rev, ok := c.args[1].(int64); ok {
		expected = rev
	}
	doc := catalog.TopologyDocument{Document: []byte(c.text(0)), By: c.by, Comment: c.text(2)}
	rev, err := s.in.Topologies.PutTopology(ctx, doc, expected)
	if err != nil {
		return topologyConflict(err, expected)
	}
	c.revision = rev
	c.result = "revision " + strconv.FormatInt(rev, 10)
	c.notice(pgerr.Notice("the data topology is at revision %d", rev))
	if behind, err := s.awaitTopology(ctx, rev, followLimit); err != nil || len(behind) > 0 {
		c.notice(pgerr.New(pgerr.Warning, "not all gateways have the revision yet: %s", strings.Join(behind, ", ")).
			WithHint("SELECT __neki.wait_for_data_topology(%d) waits for them.", rev).WithSeverity(pgerr.SeverityWarning))
	}
	return nil
}

// followLimit is how long a change of the topology waits for the gateways.
const followLimit = 5 * time.Second

func topologyConflict(err error, expected int64) error {
	if !errors.Is(err, catalog.ErrConflict) {
		return err
	}
	return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "the data topology is not at revision %d", expected).
		WithHint("Read it again, make the change on what it is now, and give its revision.")
}

// checkDocument refuses a document with problems; with force, only one that is no topology at all.
func (s *Schema) checkDocument(ctx context.Context, snap *catalog.Snapshot, c *call, force bool) error {
	if len(c.text(0)) > maxDocument {
		return pgerr.New(pgerr.InvalidParameterValue, "the data topology is larger than %d kB", maxDocument>>10)
	}
	problems, usable := s.topologyProblems(ctx, snap, []byte(c.text(0)))
	switch {
	case len(problems) == 0:
		return nil
	case force && usable:
		c.notice(pgerr.New(pgerr.Warning, "the data topology is set despite its problems (%d)", len(problems)).WithDetail("%s", problemLines(problems)).WithSeverity(pgerr.SeverityWarning))
		return nil
	}
	err := pgerr.New(pgerr.InvalidParameterValue, "the data topology has problems (%d)", len(problems)).
		WithDetail("%s", problemLines(problems))
	if !usable {
		return err
	}
	hint := "force => true sets it despite them."
	for _, p := range problems {
		if p.Hint != "" {
			hint = p.Hint + " " + hint
			break
		}
	}
	return err.WithHint("%s", hint)
}

// topologyProblems is all that stands against a document; usable is false when it is no topology at all.
func (s *Schema) topologyProblems(ctx context.Context, snap *catalog.Snapshot, doc []byte) (all []catalog.Problem, usable bool) {
	t, problems := catalog.ParseTopology(doc)
	if t == nil {
		return problems, false
	}
	problems = append(problems, t.CheckShards(snap)...)
	if len(problems) == 0 && s.in.Topologies != nil {
		problems = s.in.Topologies.CheckTopology(ctx, t)
	}
	return problems, true
}

// problemLimit bounds the lines of an error.
const problemLimit = 50

func problemLines(problems []catalog.Problem) string {
	lines := make([]string, 0, len(problems))
	for i, p := range problems {
		if i == problemLimit {
			lines = append(lines, "...")
			break
		}
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// awaitTopology waits until every gateway that lives has a revision, and gives those that have not at the end.
func (s *Schema) awaitTopology(ctx context.Context, rev int64, limit time.Duration) (behind []string, err error) {
	return s.awaitGateways(ctx, limit, func(snap *catalog.Snapshot) bool { return snap.Topology().Revision >= rev },
		func(g *catalog.Gateway) bool { return g.TopologyRevision >= rev })
}

// awaitGateways waits until this process and every gateway that lives have something.
func (s *Schema) awaitGateways(
	ctx context.Context, limit time.Duration, here func(*catalog.Snapshot) bool, has func(*catalog.Gateway) bool,
) (behind []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(followPoll)
	defer tick.Stop()
	for {
		snap, err := s.snapshot()
		if err != nil {
			return nil, err
		}
		behind = behind[:0]
		for i := range snap.Gateways {
			if g := &snap.Gateways[i]; !has(g) {
				behind = append(behind, g.ID)
			}
		}
		if len(behind) == 0 && here(snap) {
			return nil, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if len(behind) == 0 {
				behind = append(behind, "this one")
			}
			return behind, nil
		}
	}
}

const followPoll = 10 * time.Millisecond

// topologyFunctions are the function forms.
func (s *Schema) topologyFunctions() []*Relation {
	return []*Relation{
		{
			Name: "get_data_topology", Comment: "The data topology, as neki.topology", Columns: topologyColumns(),
			rows: ignoreArgs(func(context.Context) ([][]any, error) {
				snap, err := s.snapshot()
				if err != nil {
					return nil, err
				}
				return [][]any{topologyRow(snap.CurrentTopology())}, nil
			}),
		},
		{
			Name: "set_data_topology", Comment: "Replace the data topology, as neki.set_topology", Operator: true,
			Args: []Argument{
				{Name: "document", Type: text, Comment: "JSON"},
				{Name: "overwrite", Type: boolean, Default: new("false"), Comment: "false: only where there is none yet"},
				{Name: "options", Type: text, Default: new("{}"), Comment: "JSON of comment, expected_revision and force"},
			},
			Columns: []Column{{"revision", int8, "its number"}},
			rows:    s.setDataTopology,
		},
		{
			Name: "check_data_topology", Comment: "What is wrong with a data topology that is not set yet",
			Args:    []Argument{{Name: "document", Type: text, Comment: "JSON"}},
			Columns: []Column{{"path", text, "where in the document"}, {"problem", text, "what is wrong there"}},
			rows: func(ctx context.Context, _ Session, args []any) ([][]any, error) {
				snap, err := s.snapshot()
				if err != nil {
					return nil, err
				}
				document, _ := args[0].(string)
				problems, _ := s.topologyProblems(ctx, snap, []byte(document))
				return collect(problems, func(p catalog.Problem) []any { return []any{p.Path, p.Text} }), nil
			},
		},
		{
			Name: "wait_for_data_topology", Comment: "Return once every gateway has a revision of the data topology", Scalar: true,
			Args:    []Argument{{Name: "revision", Type: int8, Comment: "neki.topology.revision"}},
			Columns: []Column{{"wait_for_data_topology", int8, "the revision"}},
			rows: func(ctx context.Context, _ Session, args []any) ([][]any, error) {
				rev, ok := args[0].(int64)
				if !ok {
					return [][]any{{nil}}, nil
				}
				behind, err := s.awaitTopology(ctx, rev, waitLimit)
				if err != nil {
					return nil, err
				}
				if len(behind) > 0 {
					return nil, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "not all gateways have revision %d: %s", rev, strings.Join(behind, ", "))
				}
				return [][]any{{rev}}, nil
			},
		},
		{
			Name: "wait_for_ddl", Comment: "Return once every gateway plans by the schema as it is now", Scalar: true,
			Columns: []Column{{"wait_for_ddl", int8, "the revision of the schema: it grows with each change by DDL"}},
			rows:    ignoreArgs(s.waitForDDL),
		},
	}
}

func (s *Schema) waitForDDL(ctx context.Context) ([][]any, error) {
	snap, err := s.snapshot()
	if err != nil {
		return nil, err
	}
	rev := snap.SchemaRev
	behind, err := s.awaitGateways(ctx, waitLimit, func(snap *catalog.Snapshot) bool { return snap.SchemaRev >= rev },
		func(g *catalog.Gateway) bool { return g.SchemaRevision >= rev })
	if err != nil {
		return nil, err
	}
	if len(behind) > 0 {
		return nil, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "not all gateways have the schema's revision %d: %s", rev, strings.Join(behind, ", "))
	}
	return [][]any{{rev}}, nil
}

const waitLimit = time.Minute

// setDataTopology brings its arguments into those of neki.set_topology.
func (s *Schema) setDataTopology(ctx context.Context, sess Session, args []any) ([][]any, error) {
	var options struct {
		Comment  *string `json:"comment"`
		Expected *int64  `json:"expected_revision"`
		Force    bool    `json:"force"`
	}
	if given, _ := args[2].(string); given != "" {
		dec := json.NewDecoder(strings.NewReader(given))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&options); err != nil {
			return nil, pgerr.New(pgerr.InvalidParameterValue, "options: %s", strings.TrimPrefix(err.Error(), "json: ")).
				WithHint("Allowed values: a JSON object of comment, expected_revision and force.")
		}
	}
	call := []any{args[0], nil, nil, options.Force}
	if overwrite, _ := args[1].(bool); !overwrite {
		call[1] = int64(0)
	}
	if options.Expected != nil {
		call[1] = *options.Expected
	}
	if options.Comment != nil {
		call[2] = *options.Comment
	}
	p, _ := s.Procedure("set_topology")
	c, err := s.execute(ctx, p, sess, call, func(*pgerr.Error) {})
	if err != nil {
		return nil, err
	}
	return [][]any{{c.revision}}, nil
}
