package chaos

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"neki/regress/chaos/check"
)

// outage is one way in which a primary is lost, to be measured.
type outage struct {
	name    string
	do      func(c *cluster, leader *node)
	undo    func(c *cluster, leader *node)
	planned bool // what counts is how much longer than else one statement or transaction took
}

var outages = []outage{
	{name: "kill -9 of the postmaster", do: func(c *cluster, n *node) { c.killServer(n) }},
	{name: "kill -9 of server and agent", do: func(c *cluster, n *node) { c.loseHost(n) }, undo: func(c *cluster, n *node) { c.startAgent(n) }},
	{name: "SIGSTOP of the whole server", do: func(c *cluster, n *node) { c.freeze(n) }, undo: func(c *cluster, n *node) { c.thaw(n) }},
	{name: "cut from all others", do: func(c *cluster, n *node) { c.isolate(n) }, undo: func(c *cluster, n *node) { c.rejoin(n) }},
	{name: "CALL neki.switchover", planned: true, do: func(c *cluster, n *node) {
		ctx, cancel := context.WithTimeout(context.Background(), failoverLimit)
		defer cancel()
		c.must(failoverLimit, "switchover", func() error {
			return c.call(ctx, fmt.Sprintf("CALL neki.switchover('%s')", n.shard)) // one that left lately may not join again at once
		})
	}},
}

// TestOutages measures how long nothing is acknowledged when a primary is lost, at some 300 inserts a second, and how much a
// planned switchover adds to the longest statement or transaction: NEKI_CHAOS_RUNS times each way, of NEKI_CHAOS_WAYS
// (numbers; all without it), until NEKI_CHAOS_SECONDS have passed. It says what it found, and fails only for what is lost.
// Figures are added to those in the file NEKI_CHAOS_RECORD, so that a long series can be taken in slices; with
// NEKI_CHAOS_EVENTS it says what was done when.
func TestOutages(t *testing.T) {
	runs := int(setting(t, "NEKI_CHAOS_RUNS", 2))
	long(t)
	ends := time.Now().Add(time.Duration(setting(t, "NEKI_CHAOS_SECONDS", 3600)) * time.Second)
	for i, o := range outages {
		if ways := os.Getenv("NEKI_CHAOS_WAYS"); ways != "" && !strings.Contains(ways, fmt.Sprint(i)) {
			continue
		}
		t.Run(o.name, func(t *testing.T) { measure(t, o, runs, ends) })
	}
}

func measure(t *testing.T, o outage, runs int, ends time.Time) {
	c := oneShard(t)
	c.sample()
	w := newClients(c, 20*time.Millisecond)
	w.run(6, 1, insert)
	if o.planned {
		w.run(4, 2, inTransaction)
	}
	w.progress(100, failoverLimit)
	before, stolenBefore := processors()
	var all []figure
	for run := 0; run < runs && time.Now().Before(ends); run++ {
		all = append(all, measureOnce(c, w, o, run))
	}
	now, stolen := processors()
	all, err := recorded(o.name, all)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%s: %s; load %s, steal %.1f %%", o.name, summary(all), loadAverage(), 100*(stolen-stolenBefore)/max(now-before, 1))
	c.mustBeWhole()
	w.finish()
}

// measureOnce breaks the primary once, and lets the cluster become whole before it returns.
func measureOnce(c *cluster, w *clients, o outage, run int) figure {
	if !o.planned {
		c.freshAdmins()
	}
	c.mustBeWhole()
	if o.planned {
		c.must(failoverLimit, "cohort of all members", c.allAcknowledge)
	}
	pause(500 * time.Millisecond) // a second's half of the same load
	w.progress(20, failoverLimit)
	w.takeAdded()
	leader, term := c.leader(shard)
	first, began := w.count(), time.Now()
	o.do(c, leader)
	c.laterLeader(shard, term, failoverLimit)
	took := w.progress(50, failoverLimit)
	if o.planned {
		took = noteHeld(c.t, o, w.takeAdded())
	}
	f := figure{took: took}
	f.failed, f.unknown = w.errorsSince(first)
	c.t.Logf("run %d: %v, %d failed, %d in doubt; load %s", run+1, took.Round(time.Millisecond), f.failed, f.unknown, loadAverage())
	w.verify()
	if o.undo != nil {
		o.undo(c, leader)
	}
	c.mustBeWhole()
	if os.Getenv("NEKI_CHAOS_EVENTS") != "" { // where the time went
		for _, e := range slices.Backward(c.events(60)) {
			if e.At.After(began) {
				c.t.Logf("%8.3f s %-6s %-10s %s", e.At.Sub(began).Seconds(), e.Node, e.Kind, e.Detail)
			}
		}
	}
	return f
}

// allAcknowledge is nil when every member of the shard is in its cohort, as before a switchover that was planned.
func (c *cluster) allAcknowledge() error {
	r, err := c.rule(shard)
	if err == nil && (len(r.Cohort) < len(c.membersOf(shard)) || len(r.Leaving) > 0) {
		err = fmt.Errorf("the cohort is %v, leaving %v", r.Cohort, r.Leaving)
	}
	return err
}

// noteHeld records each statement and transaction that a switchover has held up, and gives the longest delay.
func noteHeld(t testing.TB, o outage, added []time.Duration) time.Duration {
	const usual = 30 * time.Millisecond // a commit takes less where nothing holds it
	var held []figure
	for _, d := range added {
		if d > usual {
			held = append(held, figure{took: d})
		}
	}
	all, err := recorded(o.name+", each that was held", held)
	if err != nil {
		t.Error(err)
	}
	t.Logf("held so far: %s", summary(all))
	return slices.Max(added)
}

// figure is what one run came to.
type figure struct {
	took            time.Duration
	failed, unknown int // inserts
}

// recorded adds figures to those of earlier slices, and gives all.
func recorded(name string, list []figure) ([]figure, error) {
	path := os.Getenv("NEKI_CHAOS_RECORD")
	if path == "" {
		return list, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return list, err
	}
	defer f.Close()
	for _, one := range list {
		if _, err := fmt.Fprintf(f, "%d\t%d\t%d\t%s\n", one.took, one.failed, one.unknown, name); err != nil {
			return list, err
		}
	}
	text, err := os.ReadFile(path)
	list = nil
	for line := range strings.Lines(string(text)) {
		if fields := strings.SplitN(strings.TrimSpace(line), "\t", 4); len(fields) == 4 && fields[3] == name {
			var one figure
			_, _ = fmt.Sscan(strings.Join(fields[:3], " "), &one.took, &one.failed, &one.unknown)
			list = append(list, one)
		}
	}
	return list, err
}

func summary(list []figure) string {
	if len(list) == 0 {
		return "no run"
	}
	slices.SortFunc(list, func(a, b figure) int { return cmp.Compare(a.took, b.took) })
	at := func(q float64) time.Duration {
		return list[min(len(list)-1, int(q*float64(len(list))))].took.Round(time.Millisecond)
	}
	failed, unknown := 0, 0
	for _, one := range list {
		failed, unknown = failed+one.failed, unknown+one.unknown
	}
	return fmt.Sprintf("%d, median %v, p90 %v, p99 %v, longest %v; %d inserts failed, %d in doubt", len(list), at(0.5), at(0.9), at(0.99),
		list[len(list)-1].took.Round(time.Millisecond), failed, unknown)
}

// count is how many inserts were noted.
func (w *clients) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.inserts)
}

// errorsSince counts the inserts that failed or are in doubt, from one on.
func (w *clients) errorsSince(first int) (failed, unknown int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, in := range w.inserts[first:] {
		if in.Ended == 0 { // it is under way
			continue
		}
		switch in.Outcome {
		case check.Failed:
			failed++
		case check.Unknown:
			unknown++
		case check.OK:
		}
	}
	return failed, unknown
}

func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// processors gives the time of all processors, and what of it others took.
func processors() (all, stolen float64) {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	for i, f := range strings.Fields(line)[1:] {
		var n float64
		_, _ = fmt.Sscan(f, &n)
		if all += n; i == 7 {
			stolen = n
		}
	}
	return all, stolen
}
