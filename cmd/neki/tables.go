package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/urfave/cli/v2"
)

// queryCommand prints what a query over schema neki gives: a table, or with --json an array of objects.
func queryCommand(name, usage, sql string, flags ...cli.Flag) *cli.Command {
	return &cli.Command{
		Name: name, Aliases: []string{"list"}, Usage: usage, OnUsageError: onUsageError, HideHelpCommand: true,
		Flags: append([]cli.Flag{uriFlag(), jsonFlag()}, flags...),
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			return withGateway(c, func(c *cli.Context, conn *pgx.Conn) error { return printQuery(c, conn, sql) })
		},
	}
}

// printQuery runs a query and prints its rows.
func printQuery(c *cli.Context, conn *pgx.Conn, sql string) error {
	result, err := readQuery(c, conn, sql)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return writeJSONRows(c.App.Writer, conn.TypeMap(), result)
	}
	return writeTable(c.App.Writer, result)
}

// readQuery gives the rows in text form. The description is there without any row, too.
func readQuery(c *cli.Context, conn *pgx.Conn, sql string) (*pgconn.Result, error) {
	reader := conn.PgConn().ExecParams(c.Context, sql, nil, nil, nil, nil)
	result := &pgconn.Result{}
	for reader.NextRow() {
		row := make([][]byte, len(reader.Values()))
		for i, v := range reader.Values() {
			row[i] = bytes.Clone(v)
		}
		result.Rows = append(result.Rows, row)
	}
	result.FieldDescriptions = reader.FieldDescriptions()
	_, err := reader.Close()
	return result, err
}

func writeTable(out io.Writer, result *pgconn.Result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	names := make([]string, len(result.FieldDescriptions))
	for i, f := range result.FieldDescriptions {
		names[i] = strings.ToUpper(f.Name)
	}
	fmt.Fprintln(w, strings.Join(names, "\t"))
	for _, row := range result.Rows {
		cells := make([]string, len(row))
		for i, v := range row {
			if cells[i] = string(v); v == nil {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	return w.Flush()
}

// writeJSONRows keeps the order of the columns, which a map would not.
func writeJSONRows(out io.Writer, types *pgtype.Map, result *pgconn.Result) error {
	var b bytes.Buffer
	b.WriteString("[")
	for r, row := range result.Rows {
		if r > 0 {
			b.WriteString(",")
		}
		b.WriteString("\n  {")
		for i, v := range row {
			if i > 0 {
				b.WriteString(", ")
			}
			value, err := jsonValue(types, result.FieldDescriptions[i].DataTypeOID, v)
			if err != nil {
				return err
			}
			name, _ := json.Marshal(result.FieldDescriptions[i].Name) // a string is always valid
			fmt.Fprintf(&b, "%s: %s", name, value)
		}
		b.WriteString("}")
	}
	b.WriteString("\n]\n")
	_, err := out.Write(b.Bytes())
	return err
}

// jsonValue turns a value in text form into JSON.
func jsonValue(types *pgtype.Map, oid uint32, text []byte) ([]byte, error) {
	if text == nil {
		return []byte("null"), nil
	}
	switch oid {
	case pgtype.BoolOID:
		return json.Marshal(string(text) == "t")
	case pgtype.JSONBOID, pgtype.JSONOID:
		return text, nil
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.Float8OID:
		if json.Valid(text) { // NaN is not
			return text, nil
		}
	case pgtype.TextArrayOID:
		var list []string
		if err := types.Scan(oid, pgtype.TextFormatCode, text, &list); err != nil {
			return nil, err
		}
		return json.Marshal(list)
	}
	return json.Marshal(string(text))
}

// groupCommand is a command with commands of its own.
func groupCommand(name, usage, description string, commands ...*cli.Command) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, Description: description, Category: categoryOperate, Subcommands: commands,
		OnUsageError: onUsageError, HideHelpCommand: true, UsageText: "neki " + name + " COMMAND [command options]",
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usagef("unknown command %q; `neki %s --help` lists the commands", c.Args().First(), name)
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
}

func operationsCommand() *cli.Command {
	const columns = `SELECT id, kind, target, state, round(progress * 100)::int4 || ' %' AS progress, step, error, "by",
		date_trunc('second', coalesce(started_at, requested_at)) AS started FROM neki.operations`
	list := queryCommand("ls", "list those under way, and the last that have ended", columns+" LIMIT 20")
	one := func(name, usage string, run func(*cli.Context, *pgx.Conn, string) error) *cli.Command {
		return &cli.Command{
			Name: name, Usage: usage, ArgsUsage: "ID", Flags: []cli.Flag{uriFlag(), jsonFlag()}, OnUsageError: onUsageError,
			HideHelpCommand: true,
			Action: func(c *cli.Context) error {
				if c.NArg() != 1 {
					return usagef("`neki operations %s` takes the ID of one", name)
				}
				return withGateway(c, func(c *cli.Context, conn *pgx.Conn) error { return run(c, conn, c.Args().First()) })
			},
		}
	}
	return groupCommand("operations", "list long actions, follow and cancel them", "",
		list,
		one("wait", "show the progress of one until it ends", follow),
		one("cancel", "end one; what it has done stays done", func(c *cli.Context, conn *pgx.Conn, id string) error {
			_, err := conn.Exec(c.Context, "CALL neki.cancel_operation($1)", id)
			return err
		}))
}
