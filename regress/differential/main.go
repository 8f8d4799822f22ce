// Command differential runs a folder of psql scripts on a Postgres and through the gateway, and shows where the outputs
// differ. It ends with code 1 when they do.
//
//	go run ./regress/differential -dir FOLDER -direct 'PGPORT=5432 ...' -through 'PGPORT=6432 ...'
//
// Each target is a list of PG* variables on top of the environment. With -fresh the database named by PGDATABASE is
// made anew on each target before the scripts run there. -core sets what pg_regress sets for Postgres's own suite.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"neki/regress/psqldiff"
)

// options are the flags.
type options struct {
	dir, schedule, out, libdir string
	direct, through, fresh     string
	core, show                 bool
	timeout                    time.Duration
	scripts                    []string
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", ".", "folder of .sql files; psql runs there")
	flag.StringVar(&o.schedule, "schedule", "", "file with the order of scripts, as pg_regress reads it (default: all, by name)")
	flag.StringVar(&o.out, "out", ".cache/differential", "folder for outputs")
	flag.StringVar(&o.direct, "direct", "", "PG* variables of the Postgres")
	flag.StringVar(&o.through, "through", "", "PG* variables of the gateway")
	flag.StringVar(&o.fresh, "fresh", "", "database to connect to for making PGDATABASE anew")
	flag.BoolVar(&o.core, "core", false, "the folder is src/test/regress of Postgres: scripts are in sql/, settings are pg_regress's")
	flag.StringVar(&o.libdir, "libdir", "", "with -core: folder of regress.so")
	flag.BoolVar(&o.show, "diff", false, "print the differences, not only which scripts have some")
	flag.DurationVar(&o.timeout, "timeout", 2*time.Minute, "for one script")
	flag.Parse()
	o.scripts = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	differ, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "differential:", err)
		os.Exit(2)
	}
	if differ {
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (differ bool, err error) {
	runner, err := o.runner()
	if err != nil {
		return false, err
	}
	scripts := o.scripts
	switch {
	case len(scripts) > 0:
	case o.schedule != "":
		scripts, err = psqldiff.Scheduled(o.schedule)
	default:
		scripts, err = psqldiff.Scripts(runner.Dir)
	}
	if err != nil {
		return false, err
	}
	results, err := runner.Compare(ctx, o.target("direct", o.direct), o.target("through", o.through), scripts)
	if err != nil {
		return false, err
	}
	same := 0
	for _, r := range results {
		if r.Diff == "" {
			same++
			continue
		}
		fmt.Printf("differs: %s (%d lines)\n", r.Script, strings.Count(r.Diff, "\n"))
		if o.show {
			fmt.Println(r.Diff)
		}
	}
	fmt.Printf("%d scripts: %d the same, %d differ; outputs in %s\n", len(results), same, len(results)-same, runner.Out)
	return same < len(results), nil
}

func (o options) target(name, env string) psqldiff.Target {
	t := psqldiff.Target{Name: name, Env: strings.Fields(env), Fresh: o.fresh}
	if o.core { // as pg_regress makes its database
		for _, setting := range []string{"lc_messages", "lc_monetary", "lc_numeric", "lc_time"} {
			t.Settings = append(t.Settings, setting+" TO 'C'")
		}
		t.Settings = append(t.Settings, "bytea_output TO 'hex'", "timezone_abbreviations TO 'Default'")
	}
	return t
}

func (o options) runner() (*psqldiff.Runner, error) {
	psql, err := psqldiff.FindPsql()
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return nil, err
	}
	out, err := filepath.Abs(o.out)
	if err != nil {
		return nil, err
	}
	r := &psqldiff.Runner{Psql: psql, Dir: dir, Out: out, Timeout: o.timeout, Masks: []psqldiff.Mask{psqldiff.ProcessIDs}}
	if o.core {
		r.Dir = filepath.Join(dir, "sql")
		r.Args = []string{"-v", "HIDE_TABLEAM=on", "-v", "HIDE_TOAST_COMPRESSION=on"}
		r.Env = slices.Concat(r.Env, []string{
			"PGAPPNAME=pg_regress", "PGTZ=PST8PDT", "PGDATESTYLE=Postgres, MDY", "PGOPTIONS=-c intervalstyle=postgres_verbose",
			"PG_ABS_SRCDIR=" + dir, "PG_ABS_BUILDDIR=" + out, "PG_LIBDIR=" + o.libdir, "PG_DLSUFFIX=.so", "LC_MESSAGES=C",
		})
	}
	return r, nil
}
