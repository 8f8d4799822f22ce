package chaos

import (
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
	name string
	do   func(c *cluster, leader *node)
	undo func(c *cluster, leader *node)
}

var outages = []outage{
	{"kill -9 of the postmaster", func(c *cluster, n *node) { c.killServer(n) }, nil},
	{"kill -9 of server and agent", func(c *cluster, n *node) { c.loseHost(n) }, func(c *cluster, n *node) { c.startAgent(n) }},
	{"SIGSTOP of the whole server", func(c *cluster, n *node) { c.freeze(n) }, func(c *cluster, n *node) { c.thaw(n) }},
	{"cut from all others", func(c *cluster, n *node) { c.isolate(n) }, func(c *cluster, n *node) { c.rejoin(n) }},
	{"CALL neki.switchover", func(c *cluster, n *node) {
		ctx, cancel := context.WithTimeout(context.Background(), failoverLimit)
		defer cancel()
		c.must(failoverLimit, "switchover", func() error {
			return c.call(ctx, fmt.Sprintf("CALL neki.switchover('%s', '%s')", n.shard, c.others(n)[0].id))
		})
	}, nil},
}

// TestOutages measures how long nothing is acknowledged when a primary is lost, at some 300 inserts a second:
// NEKI_CHAOS_RUNS times each way, of NEKI_CHAOS_WAYS (numbers; all without it). It says what it found, and fails only for
// what is lost.
func TestOutages(t *testing.T) {
	runs := int(setting(t, "NEKI_CHAOS_RUNS", 2))
	long(t)
	for i, o := range outages {
		if ways := os.Getenv("NEKI_CHAOS_WAYS"); ways != "" && !strings.Contains(ways, fmt.Sprint(i)) {
			continue
		}
		t.Run(o.name, func(t *testing.T) { measure(t, o, runs) })
	}
}

func measure(t *testing.T, o outage, runs int) {
	c := oneShard(t)
	c.sample()
	w := newClients(c, 20*time.Millisecond)
	w.run(6, 1, insert)
	w.progress(100, failoverLimit)
	before, stolenBefore := processors()
	var gaps []time.Duration
	failed, unknown := 0, 0
	for run := range runs {
		c.freshAdmins()
		pause(500 * time.Millisecond) // a second's half of the same load
		w.progress(20, failoverLimit)
		leader, term := c.leader(shard)
		first := w.count()
		o.do(c, leader)
		c.laterLeader(shard, term, failoverLimit)
		gap := w.progress(50, failoverLimit)
		gaps = append(gaps, gap)
		f, u := w.errorsSince(first)
		failed, unknown = failed+f, unknown+u
		t.Logf("run %d: outage %v, %d failed, %d in doubt; load %s", run+1, gap.Round(time.Millisecond), f, u, loadAverage())
		w.verify()
		if o.undo != nil {
			o.undo(c, leader)
		}
		c.mustBeWhole()
	}
	all, stolenAll := processors()
	stolen := 100 * (stolenAll - stolenBefore) / max(all-before, 1)
	slices.Sort(gaps)
	at := func(q float64) time.Duration {
		return gaps[min(len(gaps)-1, int(q*float64(len(gaps))))].Round(time.Millisecond)
	}
	t.Logf("%s: %d runs, outage median %v, p90 %v, p99 %v, longest %v; %d statements failed, %d in doubt; load %s, steal %.1f %%",
		o.name, runs, at(0.5), at(0.9), at(0.99), gaps[len(gaps)-1].Round(time.Millisecond), failed, unknown, loadAverage(), stolen)
	w.finish()
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
