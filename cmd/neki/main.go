package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/urfave/cli/v2"

	"neki/internal/pgerr"
)

// Exit statuses.
const (
	exitOK        = 0
	exitFailed    = 1
	exitUsage     = 2
	exitSecondSig = 130
)

func main() { os.Exit(execute(os.Args, os.Stdout, os.Stderr)) }

// execute runs the command line and gives the exit status.
func execute(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signalContext(stderr)
	defer stop()
	app := newApp(stdout, stderr)
	err := app.RunContext(ctx, flagsFirst(app, args))
	if err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return exitOK
	}
	report(stderr, err)
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitFailed
}

// report writes an error as people read it: what is wrong, then what to do.
func report(w io.Writer, err error) {
	e, ok := errors.AsType[*pgerr.Error](err)
	if !ok {
		fmt.Fprintf(w, "neki: %v\n", err)
		return
	}
	fmt.Fprintf(w, "neki: %s\n", e.Message)
	if e.Detail != "" {
		fmt.Fprintf(w, "detail: %s\n", e.Detail)
	}
	if e.Hint != "" {
		fmt.Fprintf(w, "hint: %s\n", e.Hint)
	}
}

// usageError is a command line that says what can't be done.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// signalContext ends with the first SIGINT or SIGTERM. The second one ends the process: Postgres servers that still run
// are found by the next start.
func signalContext(stderr io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ended := make(chan struct{})
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		select {
		case <-signals:
			cancel()
		case <-ended:
			return
		}
		select {
		case s := <-signals:
			fmt.Fprintf(stderr, "neki: second %v, ending at once\n", s)
			os.Exit(exitSecondSig)
		case <-ended:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(ended)
		<-joined
		cancel()
	}
}

const description = `neki makes many PostgreSQL servers look like one PostgreSQL: shards with replicas behind gateways.

Start a whole cluster on this machine, then connect:

    neki dev
    . neki-data/dev.env && psql

The same parts run apart over an etcd of yours, each with a neki.yaml (docs/neki.example.yaml):

    neki admin --config admin.yaml
    neki agent --config agent.yaml
    neki gateway --config gateway.yaml`

func newApp(stdout, stderr io.Writer) *cli.App {
	app := &cli.App{
		Name: "neki", Usage: "sharded PostgreSQL that looks like one PostgreSQL", Description: description,
		Writer: stdout, ErrWriter: stderr, HideVersion: true, HideHelpCommand: true, DisableSliceFlagSeparator: true,
		ExitErrHandler: func(*cli.Context, error) {},
		Commands: slices.Concat(
			[]*cli.Command{devCommand(), gatewayCommand(), agentCommand(), adminCommand(), certCommand(), versionCommand(), helpCommand()},
			[]*cli.Command{statusCommand(), topologyCommand(), operationsCommand(), shardCommand(), replicaCommand(), profileCommand(), gatewayGroupCommand(), backupCommand()},
			nodeCommands(),
		),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "version", Aliases: []string{"v"}, Usage: "print the version", DisableDefaultText: true},
			cli.HelpFlag, // the library leaves it out where there is a command of that name
		},
		OnUsageError: onUsageError,
		Action: func(c *cli.Context) error {
			if c.Bool("version") {
				return printVersion(c)
			}
			if c.Args().Present() {
				return unknownCommand(c.App, c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
	}
	app.Commands = append(app.Commands, walCommands()...)
	for _, c := range app.Commands {
		c.OnUsageError = onUsageError
		c.HideHelpCommand = true
	}
	return app
}

func onUsageError(c *cli.Context, err error, _ bool) error {
	where := "neki"
	if c.Command != nil && c.Command.HelpName != "" {
		where = c.Command.HelpName
	}
	return usagef("%v; `%s --help` lists the flags", err, where)
}

// noArguments refuses words that no flag takes.
func noArguments(c *cli.Context) error {
	if c.Args().Present() {
		return usagef("%s takes no argument %q; `%[1]s --help` lists the flags", c.Command.HelpName, c.Args().First())
	}
	return nil
}
