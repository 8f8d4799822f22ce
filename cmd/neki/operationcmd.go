package main

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"
)

// procedureCommand is a command that calls one procedure of schema neki through a gateway: the procedure checks and does
// everything.
type procedureCommand struct {
	name, usage string
	args        []string // words it takes, as SHARD or [CANDIDATE]: values of the procedure's arguments of these names
	procedure   string   // "" = the name
	long        bool     // it gives an operation, which the command follows
	flags       []cli.Flag
	// more gives further arguments, by the flags and the words.
	more func(c *cli.Context) ([]sqlArgument, error)
}

// sqlArgument is a named argument of a CALL. A nil value is left out.
type sqlArgument struct {
	name  string
	value any
}

const categoryOperate = "operate a cluster (SQL through a gateway)"

func uriFlag() cli.Flag {
	return &cli.StringFlag{Name: "uri", Usage: "connection `URI` of a gateway; the PG* variables tell what it does not"}
}

func jsonFlag() cli.Flag {
	return &cli.BoolFlag{Name: "json", Usage: "print JSON"}
}

func (p procedureCommand) command() *cli.Command {
	if p.procedure == "" {
		p.procedure = p.name
	}
	flags := append([]cli.Flag{uriFlag()}, p.flags...)
	if p.long {
		flags = append(flags, jsonFlag(), &cli.BoolFlag{Name: "no-wait", Usage: "return at once, with the operation's id"})
	}
	return &cli.Command{
		Name: p.name, Usage: p.usage, ArgsUsage: p.words(), OnUsageError: onUsageError, HideHelpCommand: true,
		Flags: flags,
		Action: func(c *cli.Context) error {
			args, err := p.arguments(c)
			if err != nil {
				return err
			}
			return withGateway(c, func(c *cli.Context, conn *pgx.Conn) error { return p.call(c, conn, args) })
		},
	}
}

// words are what it takes, as help shows them: "#" marks one that more reads.
func (p procedureCommand) words() string {
	return strings.ReplaceAll(strings.Join(p.args, " "), "#", "")
}

func (p procedureCommand) arguments(c *cli.Context) ([]sqlArgument, error) {
	least := 0
	for _, a := range p.args {
		if !strings.HasPrefix(a, "[") {
			least++
		}
	}
	many := len(p.args) > 0 && strings.HasSuffix(p.args[len(p.args)-1], "...]")
	if n := c.NArg(); n < least || n > len(p.args) && !many {
		words := p.words()
		if words == "" {
			words = "no argument"
		}
		return nil, usagef("`%s` takes %s", commandPath(c), words)
	}
	var args []sqlArgument
	for i, word := range c.Args().Slice() {
		if i >= len(p.args) || strings.ContainsAny(p.args[i], "|.#") { // more says what it means
			break
		}
		args = append(args, sqlArgument{strings.ToLower(strings.Trim(p.args[i], "[]")), word})
	}
	if p.more == nil {
		return args, nil
	}
	more, err := p.more(c)
	return append(args, more...), err
}

func commandPath(c *cli.Context) string {
	return strings.TrimSpace("neki " + strings.TrimPrefix(c.Command.HelpName, "neki "))
}

func (p procedureCommand) call(c *cli.Context, conn *pgx.Conn, args []sqlArgument) error {
	if p.long {
		return callLong(c, conn, p.procedure, args)
	}
	sql, values := callText(p.procedure, args)
	_, err := conn.Exec(c.Context, sql, values...) // its NOTICEs say what was done
	return err
}

// callText writes a CALL.
func callText(procedure string, args []sqlArgument) (string, []any) {
	var parts []string
	var values []any
	for _, a := range args {
		if a.value == nil {
			continue
		}
		values = append(values, a.value)
		parts = append(parts, fmt.Sprintf(`"%s" => $%d`, a.name, len(values)))
	}
	return "CALL neki." + procedure + "(" + strings.Join(parts, ", ") + ")", values
}

// flagText gives a flag's text, nil when it is not given.
func flagText(c *cli.Context, name string) any {
	if !c.IsSet(name) {
		return nil
	}
	return c.String(name)
}

// flagInt gives a flag's number, nil when it is not given.
func flagInt(c *cli.Context, name string) any {
	if !c.IsSet(name) {
		return nil
	}
	return int32(c.Int(name))
}

// nodeCommands act on one instance or shard.
func nodeCommands() []*cli.Command {
	list := []procedureCommand{
		{name: "switchover", usage: "give the lead of a shard to another node, as planned", args: []string{"SHARD", "[CANDIDATE]"}, long: true},
		{name: "failover", usage: "replace the primary of a shard by force", args: []string{"SHARD"}, long: true},
		{
			name: "fence", usage: "take an instance out of service and stop its Postgres", args: []string{"NODE"}, long: true,
			flags: []cli.Flag{&cli.StringFlag{Name: "reason", Usage: "`TEXT` for neki.events"}},
			more: func(c *cli.Context) ([]sqlArgument, error) {
				return []sqlArgument{{"reason", flagText(c, "reason")}}, nil
			},
		},
		{name: "unfence", usage: "take a fenced instance back into service", args: []string{"NODE"}, long: true},
		{name: "restart", usage: "restart an instance's Postgres; a primary gives its lead away first", args: []string{"NODE"}, procedure: "restart_node", long: true},
		{name: "drain", usage: "let a gateway end its sessions as they become idle and accept no others", args: []string{"GATEWAY"}},
		{
			name: "maintenance", usage: "have the admin look after a shard without acting: on or off", args: []string{"SHARD", "[on|off]"},
			more: maintenanceArguments,
		},
	}
	commands := make([]*cli.Command, len(list))
	for i, p := range list {
		commands[i] = p.command()
		commands[i].Category = categoryOperate
	}
	return commands
}

// maintenanceArguments gives what the second word means.
func maintenanceArguments(c *cli.Context) ([]sqlArgument, error) {
	switch word := c.Args().Get(1); word {
	case "on", "":
		return []sqlArgument{{"on", true}}, nil
	case "off":
		return []sqlArgument{{"on", false}}, nil
	default:
		return nil, usagef("`neki maintenance SHARD %s`: on or off are meant", word)
	}
}
