// Package psqldiff runs psql scripts against two servers and compares what psql printed: plain Postgres and the gateway,
// which must not be told apart.
//
// A Runner starts one psql after the other and waits for each, without goroutines of its own; it is not safe for
// concurrent use. All scripts run on one target before the first runs on the other, in the order given, because later
// scripts of a folder may need what earlier ones made, and because both targets may share a server.
//
// Manual: https://www.postgresql.org/docs/current/app-psql.html and
// https://www.postgresql.org/docs/current/regress-run.html
package psqldiff

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"time"
)

// Target is a server that scripts run against.
type Target struct {
	Name string   // of the folder that takes its outputs
	Env  []string // PG* variables
	// Fresh is the database to connect to for dropping the scripts' own and making it anew from template0; empty: it
	// is used as it is.
	Fresh string
	// Settings are ALTER DATABASE ... SET clauses for a fresh database, "name TO value".
	Settings []string
}

// Runner runs scripts.
type Runner struct {
	Psql    string        // path of the program
	Dir     string        // where scripts are, and where psql runs
	Out     string        // takes one folder for each target
	Timeout time.Duration // of one script
	Env     []string      // for psql, after the process's own and the target's
	Args    []string      // for psql, before the script
	Masks   []Mask
}

// Mask replaces what differs between any two runs, in both outputs.
type Mask struct {
	Pattern *regexp.Regexp
	With    string
}

// ProcessIDs hides the process ids of notifications, which are never the same twice.
var ProcessIDs = Mask{regexp.MustCompile(`from server process with PID \d+`), "from server process with PID N"}

// Sources hides where in Postgres's code an error was raised.
var Sources = Mask{regexp.MustCompile(`(?m)^LOCATION:  .*$`), "LOCATION:  somewhere"}

// Result is what came of one script.
type Result struct {
	Script string
	Diff   string // empty: the same output
}

// Compare runs the scripts on both targets. Scripts are paths below Dir without ".sql".
func (r *Runner) Compare(ctx context.Context, direct, through Target, scripts []string) ([]Result, error) {
	for _, target := range []Target{direct, through} {
		if err := r.runAll(ctx, target, scripts); err != nil {
			return nil, fmt.Errorf("%s: %w", target.Name, err)
		}
	}
	var results []Result
	for _, script := range scripts {
		diff, err := r.diff(ctx, r.output(direct, script), r.output(through, script))
		if err != nil {
			return nil, err
		}
		results = append(results, Result{script, diff})
	}
	return results, nil
}

func (r *Runner) output(t Target, script string) string {
	return filepath.Join(r.Out, t.Name, script+".out")
}

func (r *Runner) runAll(ctx context.Context, target Target, scripts []string) error {
	if target.Fresh != "" {
		if err := r.makeDatabase(ctx, target); err != nil {
			return err
		}
	}
	for _, script := range scripts {
		out := r.output(target, script)
		if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
			return err
		}
		text, err := r.run(ctx, target, script)
		if err != nil {
			return fmt.Errorf("%s: %w", script, err)
		}
		for _, m := range r.Masks {
			text = m.Pattern.ReplaceAll(text, []byte(m.With))
		}
		if err := os.WriteFile(out, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// run gives what psql printed. That psql ended badly is output too: a script may end its session.
func (r *Runner) run(ctx context.Context, target Target, script string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout, errTooLong)
	defer cancel()
	in, err := os.Open(filepath.Join(r.Dir, script+".sql"))
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var out bytes.Buffer
	cmd := r.command(ctx, target, append([]string{"-a", "-q"}, r.Args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &out
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case context.Cause(ctx) == errTooLong:
		out.WriteString("\npsqldiff: no end within " + r.Timeout.String() + "\n")
	case errors.As(err, &exit):
		fmt.Fprintf(&out, "\npsqldiff: psql ended with %s\n", exit)
	case err != nil:
		return nil, err
	}
	return out.Bytes(), nil
}

var errTooLong = errors.New("script takes too long")

func (r *Runner) command(ctx context.Context, target Target, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.Psql, append([]string{"-X"}, args...)...)
	cmd.Dir = r.Dir
	cmd.Env = append(append(os.Environ(), target.Env...), r.Env...)
	cmd.WaitDelay = time.Second
	return cmd
}

func (r *Runner) makeDatabase(ctx context.Context, target Target) error {
	name := os.Getenv("PGDATABASE")
	for _, pair := range target.Env {
		if value, ok := strings.CutPrefix(pair, "PGDATABASE="); ok {
			name = value
		}
	}
	if name == "" {
		return errors.New("PGDATABASE does not say which database to make")
	}
	quoted := `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
	args := []string{
		"-q", "-v", "ON_ERROR_STOP=1", "-d", target.Fresh,
		"-c", "DROP DATABASE IF EXISTS " + quoted + " WITH (FORCE)",
		"-c", "CREATE DATABASE " + quoted + " TEMPLATE template0",
	}
	for _, setting := range target.Settings {
		args = append(args, "-c", "ALTER DATABASE "+quoted+" SET "+setting)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if out, err := r.command(ctx, target, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("making database %s: %w: %s", name, err, out)
	}
	return nil
}

// diff gives the unified difference of two files; diff(1) answers 1 when there is one.
func (r *Runner) diff(ctx context.Context, a, b string) (string, error) {
	out, err := exec.CommandContext(ctx, "diff", "-U3", a, b).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return string(out), nil
	}
	return "", err
}

// Scripts lists the .sql files of a folder by name.
func Scripts(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.sql"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, file := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".sql"))
	}
	sort.Strings(names)
	return names, nil
}

// Scheduled lists the scripts of a pg_regress schedule, in its order.
func Scheduled(file string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		if list, ok := strings.CutPrefix(line, "test:"); ok {
			names = append(names, strings.Fields(list)...)
		}
	}
	return names, nil
}

// FindPsql finds psql in PATH or among Debian's versions.
func FindPsql() (string, error) {
	if path, err := exec.LookPath("psql"); err == nil {
		return path, nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/psql")
	if len(found) == 0 {
		return "", errors.New("no psql in PATH or /usr/lib/postgresql")
	}
	return found[len(found)-1], nil
}
