package plan

import (
	"strconv"
	"time"
)

// describeSpread shows what is done with several shards.
func describeSpread(d *document, e *Explain, sp *Spread, calls []Call) {
	if sp == nil {
		return
	}
	if sp.Eval != nil {
		d.add("Computed First", sp.Eval.String())
	}
	if sp.Move != nil {
		describeLegs(d, "Legs Read", e, sp.Move.Query.Spread, calls, true)
	}
	describeLegs(d, "Legs", e, sp, calls, false)
	if sp.Upkeep != nil {
		d.list("Index Upkeep", sp.Upkeep.lines())
	}
	switch {
	case sp.Copies:
		d.add("Combine", "every copy changes alike")
	case sp.Write:
		d.add("Combine", "counts are added up, rows concatenated")
	case sp.Spec == nil:
		d.add("Combine", "rows concatenated")
	}
	if len(sp.Steps) > 0 {
		d.list("Gateway Query", sp.Steps)
	}
}

func describeLegs(d *document, title string, e *Explain, sp *Spread, calls []Call, reads bool) {
	for i := range sp.Legs {
		leg := &sp.Legs[i]
		item := d.item(title, leg.line())
		item.add("Route", leg.Route.String())
		item.add("Query", leg.text())
		if len(leg.Merge) > 0 {
			item.add("Merge", leg.order())
		}
		for j := range calls {
			if c := &calls[j]; c.Leg == i && c.Reads == reads {
				c.describe(item, e.Costs)
			}
		}
	}
}

// Call is what one shard did for a leg.
type Call struct {
	Leg         int
	Reads       bool // the leg is one of Spread.Move's query
	Shard, Node string
	Rows        int64
	Tag         string // of a change
	Duration    time.Duration
	PGPlan      []string // the shard's own plan, instead of the figures
}

func (c *Call) describe(leg *document, times bool) {
	if c.PGPlan != nil {
		item := leg.item("Postgres Plans", c.Shard+" ("+c.Node+"):")
		item.add("Shard", c.Shard)
		item.add("Node", c.Node)
		item.list("Postgres Plan", c.PGPlan)
		return
	}
	item := leg.item("Calls", c.line(times))
	item.add("Shard", c.Shard)
	item.add("Node", c.Node)
	item.addBare("Actual Rows", strconv.FormatInt(c.Rows, 10), "")
	if c.Tag != "" {
		item.add("Command Tag", c.Tag)
	}
	if times {
		item.addBare("Actual Time", milliseconds(c.Duration), " ms")
	}
}

// line is the call in FORMAT TEXT.
func (c *Call) line(times bool) string {
	line := c.Shard + " (" + c.Node + "): " + strconv.FormatInt(c.Rows, 10) + " rows"
	if c.Tag != "" {
		line += ", " + c.Tag
	}
	if times {
		line += ", " + milliseconds(c.Duration) + " ms"
	}
	return line
}
