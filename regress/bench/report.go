package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report collects the figures and prints them.
type report struct {
	when    time.Time
	options options
	bed     *bed

	idle         []idleRow
	transactions []txRow
	large        []largeFigures
	connects     []connectRow
	sharded      *shardedFigures
}

type idleRow struct {
	target  string
	clients int
	before  float64 // KB per client
	after   float64 // the same after each has run a query
}

type txRow struct {
	mode                       string
	tls                        bool
	clients                    int
	bouncer, candidate         []pgbenchRun
	direct                     []pgbenchRun // with one client only
	ratios                     []float64    // candidate's CPU over PgBouncer's, round by round
	bouncerMode, candidateMode string
}

type largeFigures struct {
	target string
	cpu    []float64 // ms
	rate   []float64 // MB/s
}

type connectRow struct {
	way                string
	bouncer, candidate connectFigures
}

type connectFigures struct {
	perSecond, cpu []float64 // cpu in ms for one connect
	missing        bool
}

func (r *report) targets() []*target { return []*target{r.bed.bouncer, r.bed.candidate} }

func (r *report) measureIdle(ctx context.Context, o options, b *bed) error {
	for _, t := range r.targets() {
		plain, err := r.measureCrowds(ctx, t.name, t.at(false), o.idle)
		if err == nil { // beside the others, whose memory would be used again
			var secure crowd
			secure, err = r.measureCrowds(ctx, t.name+", TLS", t.at(true), o.idle[:1])
			secure.leave(ctx)
		}
		plain.leave(ctx)
		if err != nil {
			return err
		}
	}
	return nil
}

// measureCrowds measures the memory of a growing crowd of idle clients, which it gives back.
func (r *report) measureCrowds(ctx context.Context, name string, e *entrance, sizes []int) (all crowd, err error) {
	start, err := settled(ctx, e.pid)
	if err != nil {
		return nil, err
	}
	for _, n := range sizes {
		if all, err = all.gather(ctx, e.database, n); err != nil {
			return all, fmt.Errorf("%s, %d clients: %w", name, n, err)
		}
		before, err := settled(ctx, e.pid)
		if err != nil {
			return all, err
		}
		if err := all.query(ctx); err != nil {
			return all, err
		}
		after, err := settled(ctx, e.pid)
		if err != nil {
			return all, err
		}
		r.idle = append(r.idle, idleRow{name, n, kbPer(before-start, n), kbPer(after-start, n)})
	}
	return all, nil
}

func kbPer(bytes int64, clients int) float64 { return float64(bytes) / 1024 / float64(clients) }

// settled is the memory of a process once it has had a moment.
func settled(ctx context.Context, pid int) (int64, error) {
	select {
	case <-time.After(2 * time.Second):
		return memoryOf(pid)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (r *report) measureTransactions(ctx context.Context, o options, b *bed) error {
	for _, row := range r.txRows(o, b) {
		for round := range o.rounds {
			if err := r.round(ctx, o, b, &row, round); err != nil {
				return err
			}
		}
		say("  %s, %d clients: %.2f", row.name(), row.clients, median(row.ratios))
		r.transactions = append(r.transactions, row)
	}
	return nil
}

// txRows gives the measurements of transactions to make; under TLS those with many clients only.
func (r *report) txRows(o options, b *bed) []txRow {
	var rows []txRow
	for _, mode := range []string{"simple", "extended", "prepared"} {
		row := txRow{mode: mode, bouncerMode: mode, candidateMode: mode}
		if mode == "prepared" && !b.bouncer.prepared {
			row.bouncerMode = "extended"
		}
		if mode == "prepared" && !b.candidate.prepared {
			row.candidateMode = "extended"
		}
		for _, row.clients = range o.clients {
			rows = append(rows, row)
		}
	}
	for _, row := range rows[:len(rows)-len(o.clients)] {
		if row.clients > 1 {
			row.tls = true
			rows = append(rows, row)
		}
	}
	return rows
}

func (row *txRow) name() string {
	if row.tls {
		return row.mode + ", TLS"
	}
	return row.mode
}

// round runs the targets in turn, in the other order every second time.
func (r *report) round(ctx context.Context, o options, b *bed, row *txRow, round int) error {
	var bouncer, candidate pgbenchRun
	var err error
	old, mine := b.bouncer.at(row.tls), b.candidate.at(row.tls)
	runBouncer := func() {
		if err == nil {
			bouncer, err = b.pgbench(ctx, old.database, old.pid, 0, row.bouncerMode, row.clients, o.seconds)
		}
	}
	runCandidate := func() {
		if err == nil {
			candidate, err = b.pgbench(ctx, mine.database, mine.pid, b.candidate.idleCPU, row.candidateMode, row.clients, o.seconds)
		}
	}
	if round%2 == 0 {
		runBouncer()
		runCandidate()
	} else {
		runCandidate()
		runBouncer()
	}
	if err == nil && row.clients == 1 {
		var direct pgbenchRun
		direct, err = b.pgbench(ctx, b.direct, 0, 0, row.mode, 1, o.seconds)
		row.direct = append(row.direct, direct)
	}
	if err != nil {
		return err
	}
	row.bouncer, row.candidate = append(row.bouncer, bouncer), append(row.candidate, candidate)
	if bouncer.cpu > 0 {
		row.ratios = append(row.ratios, float64(candidate.cpu)/float64(bouncer.cpu))
	}
	return nil
}

func (r *report) measureLarge(ctx context.Context, o options, b *bed) error {
	for _, t := range r.targets() {
		r.large = append(r.large, largeFigures{target: t.name})
	}
	for range o.rounds {
		for i, t := range r.targets() {
			cpu, took, err := large(ctx, t)
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			r.large[i].cpu = append(r.large[i].cpu, float64(cpu.Milliseconds()))
			r.large[i].rate = append(r.large[i].rate, float64(largeRows)*1000/1e6/took.Seconds())
		}
	}
	return nil
}

func (r *report) measureConnects(ctx context.Context, o options, b *bed) error {
	for _, way := range []struct {
		name               string
		bouncer, candidate *entrance
	}{
		{"trust", b.bouncer.trust, b.candidate.trust},
		{"SCRAM", b.bouncer.scram, b.candidate.scram},
		{"SCRAM and TLS", b.bouncer.tls, b.candidate.tls},
	} {
		row := connectRow{way: way.name}
		for range o.rounds {
			if err := row.bouncer.add(ctx, way.bouncer, 0, o); err != nil {
				return fmt.Errorf("%s: %s: %w", b.bouncer.name, way.name, err)
			}
			if err := row.candidate.add(ctx, way.candidate, b.candidate.idleCPU, o); err != nil {
				return fmt.Errorf("%s: %s: %w", b.candidate.name, way.name, err)
			}
		}
		r.connects = append(r.connects, row)
	}
	return nil
}

func (f *connectFigures) add(ctx context.Context, e *entrance, idle float64, o options) error {
	if e == nil {
		f.missing = true
		return nil
	}
	perSecond, cpu, err := connects(ctx, e, idle, time.Duration(o.seconds)*time.Second)
	f.perSecond = append(f.perSecond, perSecond)
	f.cpu = append(f.cpu, float64(cpu.Microseconds())/1000)
	return err
}

func (f connectFigures) String() string {
	if f.missing {
		return "- | -"
	}
	return fmt.Sprintf("%.0f | %.2f", median(f.perSecond), median(f.cpu))
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

func medianOf(runs []pgbenchRun, figure func(pgbenchRun) float64) float64 {
	var values []float64
	for _, run := range runs {
		values = append(values, figure(run))
	}
	return median(values)
}

func cpuMicros(run pgbenchRun) float64 { return float64(run.cpu.Nanoseconds()) / 1000 }

func latencyMicros(run pgbenchRun) float64 { return float64(run.latency.Nanoseconds()) / 1000 }

func tps(run pgbenchRun) float64 { return run.tps }

func (r *report) markdown() string {
	var b strings.Builder
	name, other := r.bed.candidate.name, r.bed.bouncer.name
	fmt.Fprintf(&b, "# Performance\n\nWritten by `make bench` on %s: %d cores (%s), %s, %s, pgbench -S at scale %d over the loopback, without TLS\nwhere nothing else is said, "+
		"%d server connections for each proxy, %d rounds of %d s in turn.\n\n",
		r.when.Format(time.DateOnly), runtime.NumCPU(), cpuModel(), r.bed.versions, runtime.Version(), r.options.scale,
		r.options.pool, r.options.rounds, r.options.seconds)
	b.WriteString("What counts is the ratio of the proxies' CPU per transaction (user and system, all threads), the median over rounds in\n" +
		"which both ran. Times and transactions per second depend on what else the machine does: differences under 20 % are noise.\n\n")
	r.writeTransactions(&b, name, other)
	r.writeRest(&b, name, other)
	fmt.Fprintf(&b, "\nNotes\n- A PgBouncer that knows no named statements in transaction mode runs `extended` where the table says `prepared`.\n"+
		"- %s keeps a process for each way of logging in; its figures for transactions are those of `trust`.\n", other)
	if r.bed.candidate.idleCPU > 0 {
		fmt.Fprintf(&b, "- The %s process uses %.1f %% of a core when no client does anything; that is taken off its CPU.\n", name, 100*r.bed.candidate.idleCPU)
	}
	return b.String()
}

func (r *report) writeTransactions(b *strings.Builder, name, other string) {
	fmt.Fprintf(b, "## CPU per transaction\n\n| protocol | clients | %s µs | %s µs | **ratio** | %s tps | %s tps |\n|---|---|---|---|---|---|---|\n", other, name, other, name)
	for _, row := range r.transactions {
		fmt.Fprintf(b, "| %s | %d | %.1f | %.1f | **%.2f** | %.0f | %.0f |\n", row.name(), row.clients,
			medianOf(row.bouncer, cpuMicros), medianOf(row.candidate, cpuMicros), median(row.ratios),
			medianOf(row.bouncer, tps), medianOf(row.candidate, tps))
	}
	fmt.Fprintf(b, "\n## Latency at one client, µs\n\n| protocol | Postgres itself | %s | %s |\n|---|---|---|---|\n", other, name)
	for _, row := range r.transactions {
		if row.clients == 1 {
			fmt.Fprintf(b, "| %s | %.0f | %.0f | %.0f |\n", row.mode, medianOf(row.direct, latencyMicros),
				medianOf(row.bouncer, latencyMicros), medianOf(row.candidate, latencyMicros))
		}
	}
}

func (r *report) writeRest(b *strings.Builder, name, other string) {
	b.WriteString("\n## Idle clients, KB each\n\n| | clients | after connecting | after a query each |\n|---|---|---|---|\n")
	for _, row := range r.idle {
		fmt.Fprintf(b, "| %s | %d | %.1f | %.1f |\n", row.target, row.clients, row.before, row.after)
	}
	b.WriteString("\n## A result of 100 MB\n\n| | CPU ms | MB/s |\n|---|---|---|\n")
	for _, row := range r.large {
		fmt.Fprintf(b, "| %s | %.0f | %.0f |\n", row.target, median(row.cpu), median(row.rate))
	}
	fmt.Fprintf(b, "\n## Connects\n\nWith 8 clients that connect and leave; the clients' own work is in the rate, so compare the CPU too.\n\n"+
		"| login | %s /s | CPU ms each | %s /s | CPU ms each |\n|---|---|---|---|---|\n", other, name)
	for _, row := range r.connects {
		fmt.Fprintf(b, "| %s | %s | %s |\n", row.way, row.bouncer, row.candidate)
	}
	if r.sharded != nil {
		r.sharded.write(b)
	}
}

func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
