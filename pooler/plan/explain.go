package plan

import (
	"strconv"
	"time"

	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// Explain is an EXPLAIN statement. When Neki is false it goes to the shard as it is. When it is true the session answers
// it: by Access and Destination of Inner, and with ANALYZE by executing Inner's text before.
type Explain struct {
	Inner   *Plan // of the statement explained
	Offset  int   // where its text begins in the text of the EXPLAIN
	Neki    bool  // NEKI_PLAN or NEKI_PG_PLAN: the session answers it by Render
	PGPlan  bool  // NEKI_PG_PLAN: with the shard's own plan
	Analyze bool
	Costs   bool   // figures that change from one run to the next are shown
	Format  string // text, json, yaml or xml
}

const (
	optionPlan   = "neki_plan"
	optionPGPlan = "neki_pg_plan"
)

func nekiExplain(e *sqlparse.ExplainStmt) bool { return e.Option(optionPlan) || e.Option(optionPGPlan) }

// explain plans an EXPLAIN; p is its own plan, already judged.
func (m maker) explain(p *Plan, st *sqlparse.Statement) (*Explain, error) {
	in := st.Explain
	e := &Explain{
		Offset: in.Offset, Neki: nekiExplain(in), PGPlan: in.Option(optionPGPlan), Analyze: in.Analyze, Costs: true,
		Format: in.Format,
	}
	for _, o := range in.Options {
		if o.Name == "costs" {
			e.Costs = in.Option("costs")
		}
	}
	inner, err := m.insideFor(in.Query)
	if err != nil {
		return nil, err
	}
	e.Inner = inner
	if !e.Neki {
		return e, nil
	}
	switch e.Format {
	case "text", "json", "yaml", "xml":
	default:
		return nil, pgerr.New(pgerr.InvalidParameterValue,
			"unrecognized value for EXPLAIN option \"format\": \"%s\"", e.Format).
			WithHint("Available values: text, json, yaml, xml.")
	}
	p.neutral(RouteLocal, "EXPLAIN of the gateway's plan")
	p.Route.Shard = ""
	return e, nil
}

// explainOneRoute routes a plain EXPLAIN as the statement that it explains. Postgres has no plan of what several shards do.
func (p *Plan) explainOneRoute() error {
	in := p.Explain.Inner
	if in.Spread != nil || in.SpreadByText && !in.alwaysOne() {
		return pgerr.New(pgerr.ExplainNeedsGateway, "EXPLAIN can't show the plan of a statement that runs on several shards").
			WithHint("Use EXPLAIN (NEKI_PLAN).")
	}
	switch in.Route.Kind {
	case RouteEqual, RouteIn, RouteNone, RouteReference, RouteOne:
		p.Route, p.planner = in.Route, in.planner
	default:
	}
	return nil
}

// alwaysOne reports whether every execution comes to one shard: the keys are constants that do.
func (p *Plan) alwaysOne() bool {
	if !p.constantKeys() {
		return false
	}
	shards, err := p.Shards(nil, &Values{Session: &datum.Session{}})
	return err == nil && len(shards) == 1
}

// constantKeys reports whether the keys stand in the plan.
func (p *Plan) constantKeys() bool {
	for _, pin := range p.Route.Pins {
		for _, k := range pin.Keys {
			if k.Source != KeyConst {
				return false
			}
		}
	}
	return true
}

// Instance is a candidate as EXPLAIN shows it: what backend.Candidate holds.
type Instance struct {
	Node, Role, Cell string
	Tier             string // preferred, tolerable or excluded
	Reason           string // why excluded
	Load             int    // outstanding statements
	Chosen           bool
}

// Actual is what EXPLAIN (NEKI_PLAN, ANALYZE) measured.
type Actual struct {
	Rows     int64
	Duration time.Duration
	Wait     time.Duration // for a connection and for a replica to catch up
}

// Explained is what the session knows beside the plan.
type Explained struct {
	Target    string // of __neki.target
	Access    string // the kind of instance that Access gave; "" when refused
	Refused   error  // the error of Access, Destination or of the choice of a replica
	Shard     string // uid by Destination; "" for plans without a shard
	Instances []Instance
	Actual    *Actual  // with ANALYZE
	PGPlan    []string // lines of the shard's own plan, with NEKI_PG_PLAN
	Engine    []string // lines of the engine's plan, for the virtual schema; may be nil

	Calls       []Call // of a statement over several shards
	RemoteCalls int64  // how many statements the shards ran for it, with ANALYZE
}

// Render gives the rows of EXPLAIN (NEKI_PLAN): one for each line of text, one document in the other formats.
func Render(e *Explain, x Explained) []string {
	doc := describe(e, x)
	switch e.Format {
	case "json":
		return []string{doc.json()}
	case "yaml":
		return []string{doc.yaml()}
	case "xml":
		return []string{doc.xml()}
	}
	return doc.text()
}

// describe builds the document that all formats show.
func describe(e *Explain, x Explained) *document {
	p := e.Inner
	d := newDocument()
	d.add("Route", p.Route.Kind.String())
	d.add("Statement", p.Tag)
	d.add("Class", class(p))
	if len(p.Tables) > 0 {
		d.list("Relations", p.Tables)
	}
	if pins := p.Pins.Reasons(); len(pins) > 0 {
		d.list("Pins", pins)
	}
	if x.Shard != "" {
		d.add("Shard", x.Shard)
	}
	describeRoute(d, p)
	describeSpread(d, e, p.Spread, x.Calls)
	if p.Route.Backend() {
		d.add("Target", x.Target)
		describeInstances(d, e, x)
	}
	if x.Refused != nil {
		err := pgerr.From(x.Refused)
		d.add("Refused", err.Message+" ("+err.Code+")")
	}
	if x.Actual != nil {
		describeActual(d, e, x)
	}
	if len(x.Engine) > 0 {
		d.list("Engine", x.Engine)
	}
	if len(x.PGPlan) > 0 {
		d.list("Postgres Plan", x.PGPlan)
	}
	return d
}

// describeRoute shows what the shards of a route are computed from.
func describeRoute(d *document, p *Plan) {
	var keys []string
	for i := range p.Route.Pins {
		keys = append(keys, p.Route.Pins[i].String())
	}
	if len(keys) > 0 {
		d.list("Keys", keys)
		var lookups []string
		for _, l := range p.Lookups() {
			lookups = append(lookups, l.String())
		}
		if len(lookups) > 0 {
			d.list("Lookups", lookups)
		}
		if shards, err := p.Shards(nil, &Values{Session: &datum.Session{}}); err == nil && p.constantKeys() {
			d.list("Shards", shards)
		}
	} else if len(p.Route.All) > 0 {
		d.list("Shards", p.Route.All)
	}
}

// class gives the verdict and the reason for it.
func class(p *Plan) string {
	switch {
	case p.Verdict == Read && !p.Proven():
		return "write: a replica refused it before"
	case p.Verdict == Unproven:
		return "write, unproven: " + p.Why
	case p.Why != "":
		return p.Verdict.String() + ": " + p.Why
	}
	return p.Verdict.String()
}

func describeInstances(d *document, e *Explain, x Explained) {
	if x.Access != "" {
		d.add("Instance Kind", x.Access)
	}
	for _, in := range x.Instances {
		if in.Chosen {
			d.add("Instance", in.Node)
		}
	}
	for _, in := range x.Instances {
		item := d.item("Candidates", in.line(e.Costs))
		item.add("Node", in.Node)
		item.add("Role", in.Role)
		if in.Cell != "" {
			item.add("Cell", in.Cell)
		}
		item.add("Tier", in.Tier)
		if in.Reason != "" {
			item.add("Reason", in.Reason)
		}
		item.addBare("Chosen", strconv.FormatBool(in.Chosen), "")
		if e.Costs {
			item.addBare("Outstanding", strconv.Itoa(in.Load), "")
		}
	}
}

// line is the instance in FORMAT TEXT.
func (in Instance) line(costs bool) string {
	line := in.Node + ": " + in.Tier
	if in.Reason != "" {
		line += ": " + in.Reason
	}
	if in.Chosen {
		line += ", chosen"
	}
	line += ", " + in.Role
	if in.Cell != "" {
		line += ", cell " + in.Cell
	}
	if costs && in.Reason == "" {
		line += ", " + strconv.Itoa(in.Load) + " outstanding"
	}
	return line
}

func describeActual(d *document, e *Explain, x Explained) {
	a := x.Actual
	d.addBare("Actual Rows", strconv.FormatInt(a.Rows, 10), "")
	if x.RemoteCalls > 0 {
		d.addBare("Remote Calls", strconv.FormatInt(x.RemoteCalls, 10), "")
	}
	if e.Costs {
		d.addBare("Actual Time", milliseconds(a.Duration), " ms")
		d.addBare("Waited", milliseconds(a.Wait), " ms")
	}
}

func milliseconds(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 3, 64)
}
