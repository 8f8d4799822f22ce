package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/urfave/cli/v2"

	"neki/internal/pgerr"
)

// topologyCommand shows and changes the data topology by SQL, through a gateway.
func topologyCommand() *cli.Command {
	uri := &cli.StringFlag{Name: "uri", Usage: "connection `URI` of a gateway; the PG* variables tell what it does not"}
	command := func(name, usage, args string, run func(*cli.Context, *pgx.Conn) error, flags ...cli.Flag) *cli.Command {
		return &cli.Command{
			Name: name, Usage: usage, ArgsUsage: args, Flags: append([]cli.Flag{uri}, flags...), OnUsageError: onUsageError, HideHelpCommand: true,
			Action: func(c *cli.Context) error { return withGateway(c, run) },
		}
	}
	list := command("ls", "list every revision, newest first", "", topologyList)
	list.Aliases = []string{"list"}
	return &cli.Command{
		Name: "topology", Category: categoryOperate, Usage: "show and change the data topology: which shards hold which rows",
		Description: "The document is JSON, replaced as a whole:\n\n" +
			"    neki topology get > topology.json\n" +
			"    neki topology check topology.json\n" +
			"    neki topology set --expected-revision 3 --comment 'orders on four shards' topology.json",
		Subcommands: []*cli.Command{
			command("get", "print the document in force; its revision goes to standard error", "", topologyGet),
			command("set", "replace the document, from FILE or standard input", "[FILE]", topologySet,
				&cli.Int64Flag{Name: "expected-revision", Usage: "revision `N` that the change was made on, 0 = none yet"},
				&cli.StringFlag{Name: "comment", Usage: "`TEXT` kept with the revision"},
				&cli.BoolFlag{Name: "force", Usage: "set it despite what is wrong with it"}),
			list,
			command("check", "tell what is wrong with a document, from FILE or standard input", "[FILE]", topologyCheck),
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usagef("unknown command %q; `neki topology --help` lists the commands", c.Args().First())
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
}

// gatewayConnect bounds the login of a command.
const gatewayConnect = 10 * time.Second

// withGateway connects and runs a command. Notices go to standard error.
func withGateway(c *cli.Context, run func(*cli.Context, *pgx.Conn) error) error {
	cfg, err := pgx.ParseConfig(c.String("uri"))
	if err != nil {
		return usagef("%v", err)
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = gatewayConnect
	}
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		fmt.Fprintf(c.App.ErrWriter, "neki: %s\n", n.Message)
		if n.Detail != "" {
			fmt.Fprintln(c.App.ErrWriter, n.Detail)
		}
	}
	conn, err := pgx.ConnectConfig(c.Context, cfg)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context), gatewayConnect)
		defer cancel()
		_ = conn.Close(ctx) // what was asked for is done
	}()
	if err := run(c, conn); err != nil {
		if e := pgerr.From(err); e.Code != pgerr.InternalError {
			return e
		}
		return err
	}
	return nil
}

func topologyGet(c *cli.Context, conn *pgx.Conn) error {
	if err := noArguments(c); err != nil {
		return err
	}
	var revision *int64
	var document string
	if err := conn.QueryRow(c.Context, "SELECT revision, document::text FROM neki.topology").Scan(&revision, &document); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, []byte(document), "", "  "); err != nil {
		return err
	}
	if revision == nil {
		fmt.Fprintln(c.App.ErrWriter, "neki: no topology was ever set (revision 0): this is what holds")
	} else {
		fmt.Fprintf(c.App.ErrWriter, "neki: revision %d\n", *revision)
	}
	_, err := fmt.Fprintln(c.App.Writer, out.String())
	return err
}

// documentOf reads the one argument, or standard input.
func documentOf(c *cli.Context) (string, error) {
	switch name := c.Args().First(); {
	case c.NArg() > 1:
		return "", usagef("neki topology %s takes one file", c.Command.Name)
	case name == "" || name == "-":
		text, err := io.ReadAll(c.App.Reader)
		return string(text), err
	default:
		text, err := os.ReadFile(name)
		return string(text), err
	}
}

func topologySet(c *cli.Context, conn *pgx.Conn) error {
	document, err := documentOf(c)
	if err != nil {
		return err
	}
	var expected *int64
	if c.IsSet("expected-revision") {
		expected = new(c.Int64("expected-revision"))
	}
	var comment *string
	if c.IsSet("comment") {
		comment = new(c.String("comment"))
	}
	_, err = conn.Exec(c.Context, "CALL neki.set_topology($1, $2, $3, $4)", document, expected, comment, c.Bool("force"))
	return err
}

func topologyList(c *cli.Context, conn *pgx.Conn) error {
	if err := noArguments(c); err != nil {
		return err
	}
	rows, err := conn.Query(c.Context, `SELECT revision, at, coalesce("by", ''), coalesce(comment, '') FROM neki.topology_history`)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "REVISION\tAT\tBY\tCOMMENT")
	var revision int64
	var at time.Time
	var by, comment string
	_, err = pgx.ForEachRow(rows, []any{&revision, &at, &by, &comment}, func() error {
		_, err := fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", revision, at.UTC().Format(time.RFC3339), by, comment)
		return err
	})
	if err != nil {
		return err
	}
	return w.Flush()
}

func topologyCheck(c *cli.Context, conn *pgx.Conn) error {
	document, err := documentOf(c)
	if err != nil {
		return err
	}
	rows, err := conn.Query(c.Context, "SELECT path, problem FROM __neki.check_data_topology($1)", document)
	if err != nil {
		return err
	}
	problems := 0
	var path, problem string
	_, err = pgx.ForEachRow(rows, []any{&path, &problem}, func() error {
		problems++
		_, err := fmt.Fprintf(c.App.Writer, "%s: %s\n", path, problem)
		return err
	})
	if err != nil {
		return err
	}
	if problems > 0 {
		return fmt.Errorf("the data topology has problems (%d)", problems)
	}
	return nil
}
