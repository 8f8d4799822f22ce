package pooler

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// explain makes the rows of EXPLAIN (NEKI_PLAN) of the SQL text.
func (c *Session) explain(e *plan.Explain, text []byte, snap *catalog.Snapshot) ([]string, error) {
	x := plan.Explained{Target: c.vars.Neki().Target.String()}
	inner := e.Inner
	if inner.Runs != "" {
		running, err := c.explainRun(e)
		if err != nil {
			return nil, err
		}
		e, inner = running, running.Inner
	}
	keyed := overShards(inner) && c.vars.Neki().Shard == ""
	if keyed {
		v := &plan.Values{Text: explainedText(e, text), Session: c.valueSession()}
		if x.Shard = c.explainedShard(e, v); x.Shard == "" {
			return c.explainSpread(e, x, v, snap)
		}
	}
	if !inner.Route.Backend() {
		if e.Analyze || e.PGPlan {
			return nil, pgerr.New(pgerr.FeatureNotSupported, "no shard runs this statement, so there is nothing to measure").
				WithHint("Leave ANALYZE and NEKI_PG_PLAN out.")
		}
		return plan.Render(e, x), nil
	}
	var role catalog.Role
	var refused *pgerr.Error
	if !keyed {
		x.Shard, refused = plan.Destination(inner, c.vars.Neki(), snap)
	}
	if refused == nil {
		role, refused = plan.Access(inner, c.vars.Neki(), c.txState())
	}
	if refused != nil {
		x.Refused = refused
		return plan.Render(e, x), nil
	}
	if x.Shard == "" {
		x.Shard = homeShard(snap)
	}
	x.Access = role.String()
	if err := c.explainChoice(&x, role); err != nil {
		return nil, err
	}
	if (e.Analyze || e.PGPlan) && x.Refused == nil {
		if err := c.explainOnShard(&x, e, role, text, snap); err != nil {
			return nil, err
		}
	}
	return plan.Render(e, x), nil
}

// explainChoice fills in which instance the statement would go to, and why not to the others. It waits as the statement
// would for a replica that is consistent enough.
func (c *Session) explainChoice(x *plan.Explained, role catalog.Role) error {
	deadline := time.Now().Add(c.vars.Neki().Wait)
	req, err := c.request(role, x.Shard, deadline)
	var chosen *catalog.Node
	switch {
	case err != nil:
	case c.lease != nil && c.place.node != nil: // a transaction stays where it is
		chosen = c.place.node
	case role == catalog.RolePrimary:
		chosen = c.srv.picker.Pick(c.srv.cfg.Cluster.Snapshot(), &req).Node
	default:
		chosen, err = c.chooseReplica(&req, deadline)
	}
	if err != nil && pgerr.Code(err) != pgerr.NoEligibleReplica {
		return err
	}
	x.Refused = err
	snap := c.srv.cfg.Cluster.Snapshot()
	candidates := c.srv.picker.Candidates(snap, &req)
	for _, k := range candidates {
		x.Instances = append(x.Instances, plan.Instance{
			Node: k.Node, Role: k.Role.String(), Cell: k.Cell, Tier: k.Tier, Reason: k.Reason, Load: k.Load,
			Chosen: chosen != nil && chosen.ID == k.Node,
		})
	}
	return nil
}

// explainOnShard has the shard explain the statement, and run it for ANALYZE.
func (c *Session) explainOnShard(x *plan.Explained, e *plan.Explain, role catalog.Role, text []byte, snap *catalog.Snapshot) error {
	start := time.Now()
	sc, err := c.connection(role, x.Shard, snap, 0)
	if err != nil {
		return err
	}
	waited := time.Since(start)
	inner := string(explainedText(e, text))
	if inner, err = c.nameExplained(e.Inner, inner, sc); err != nil {
		return err
	}
	start = time.Now()
	rows, err := sc.Exec(explainHead(e, e.Analyze)+inner, c.work.answers)
	took := time.Since(start)
	c.status = sc.Status()
	if err != nil {
		return c.explainFailed(err)
	}
	c.releaseIfFree()
	var lines []string
	for _, row := range rows {
		lines = append(lines, row[0])
	}
	if e.PGPlan {
		x.PGPlan = lines
	}
	if e.Analyze {
		x.Actual = &plan.Actual{Rows: actualRows(lines), Duration: took, Wait: waited}
	}
	return nil
}

// explainedText gives the text of the statement that is explained.
func explainedText(e *plan.Explain, text []byte) []byte {
	return bytes.TrimRight(text[min(e.Offset, len(text)):], "; \t\r\n")
}

// explainHead begins an EXPLAIN for a shard. Without costs it gives nothing that differs from run to run.
func explainHead(e *plan.Explain, analyze bool) string {
	head := "EXPLAIN (COSTS " + strings.ToUpper(onOff(e.Costs))
	if analyze {
		head += ", ANALYZE"
		if !e.Costs {
			head += ", TIMING OFF, SUMMARY OFF"
		}
	}
	return head + ") "
}

// explainFailed passes the shard's error on, without the position, which is one in another text.
func (c *Session) explainFailed(err error) error {
	if c.lease != nil {
		c.releaseIfFree()
	}
	return pgerr.From(err).WithPosition(0)
}

// actualRows reads the rows that the top node of a plan gave.
func actualRows(lines []string) int64 {
	if len(lines) == 0 {
		return 0
	}
	m := actualRowsPattern.FindStringSubmatch(lines[0])
	if m == nil {
		return 0
	}
	n, _ := strconv.ParseFloat(m[1], 64)
	return int64(n)
}

var actualRowsPattern = regexp.MustCompile(`actual .*rows=([0-9.]+)`)

// explainRun gives the EXPLAIN (NEKI_PLAN) of an EXECUTE as one of the statement that it runs.
func (c *Session) explainRun(e *plan.Explain) (*plan.Explain, error) {
	s := c.prepared(e.Inner.Runs)
	if s == nil {
		return nil, noPrepared(e.Inner.Runs)
	}
	if err := c.executable(s); err != nil {
		return nil, err
	}
	running := *e
	running.Inner = s.execute(e.Inner)
	return &running, nil
}

// nameExplained gives the text of an explained statement with the server's name of what it runs, once sc knows that.
func (c *Session) nameExplained(p *plan.Plan, text string, sc *backend.ServerConn) (string, error) {
	s := c.statements[p.Runs]
	span, ok := sqlparse.PreparedName(text)
	if s == nil || !ok {
		return text, nil
	}
	c.work.sql.begin()
	c.work.sql.needed = append(c.work.sql.needed, s)
	refused, err := c.ensure(sc)
	if err != nil {
		return "", err
	}
	if refused != nil {
		return "", refused
	}
	return string(backend.AppendRenamed(nil, []byte(text), span.Start, span.End, s.shared.Name())), nil
}
