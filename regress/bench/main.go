// Command bench measures the gateway beside PgBouncer in front of the same PostgreSQL and writes the figures as a
// page of the manual. `make bench` runs it; docs/performance.md is what it writes.
//
// On a shared machine times vary by a factor of two or three from minute to minute, so runs are short, the targets
// take turns within a round, and what counts is the ratio of the proxies' CPU per transaction within rounds.
//
// The targets are child processes of this one; it stops them all before it ends, on SIGINT too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type options struct {
	neki      string
	config    string
	candidate string
	output    string
	clients   []int
	idle      []int
	rounds    int
	seconds   int
	pool      int
	scale     int
	only      string
}

func main() {
	var o options
	var clients, idle string
	flag.StringVar(&o.neki, "neki", "bin/neki", "the binary to measure")
	flag.StringVar(&o.config, "gateway-config", "", "neki.yaml of the gateway to measure; empty: the one that `neki dev` "+
		"writes for a second gateway, which then is a process of its own")
	flag.StringVar(&o.candidate, "candidate", "neki", "neki, or pgbouncer to measure PgBouncer beside itself")
	flag.StringVar(&o.output, "output", "docs/performance.md", "file to write; - for standard output")
	flag.StringVar(&clients, "clients", "1,16,64", "numbers of clients")
	flag.StringVar(&idle, "idle", "1000,5000", "numbers of idle clients")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of each measurement")
	flag.IntVar(&o.seconds, "seconds", 2, "seconds of each pgbench run")
	flag.IntVar(&o.pool, "pool", 20, "server connections of each proxy")
	flag.IntVar(&o.scale, "scale", 10, "pgbench scale")
	flag.StringVar(&o.only, "only", "", "measure only this, and print it: idle, transactions, large, connects or sharded")
	flag.Parse()
	err := errors.Join(numbers(clients, &o.clients), numbers(idle, &o.idle))
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = run(ctx, o)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func numbers(text string, into *[]int) error {
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return err
		}
		*into = append(*into, n)
	}
	return nil
}

func run(ctx context.Context, o options) (err error) {
	if err := raiseFileLimit(); err != nil {
		return err
	}
	var b bed
	defer func() { err = errors.Join(err, b.stop()) }()
	say("starting Postgres, PgBouncer and the candidate")
	if err := b.start(ctx, o); err != nil {
		return err
	}
	r := &report{when: time.Now(), options: o, bed: &b}
	// Memory first: the processes have done nothing yet.
	for _, step := range []struct {
		key, name string
		run       func(context.Context, options, *bed) error
	}{
		{"idle", "idle clients", r.measureIdle},
		{"transactions", "transactions", r.measureTransactions},
		{"large", "large result", r.measureLarge},
		{"connects", "connects", r.measureConnects},
		{"sharded", "over shards", r.measureSharded},
	} {
		if o.only != "" && o.only != step.key {
			continue
		}
		say("measuring: %s", step.name)
		if err := step.run(ctx, o, &b); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	text := r.markdown()
	if o.output == "-" || o.only != "" {
		fmt.Print(text)
		return nil
	}
	say("writing %s", o.output)
	return os.WriteFile(o.output, []byte(text), 0o644)
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// raiseFileLimit lets this process and its children hold thousands of connections.
func raiseFileLimit() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}
