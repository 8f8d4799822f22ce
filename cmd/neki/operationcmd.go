package main

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"
)

func switchoverCommand() *cli.Command {
	return shardCommand("switchover", "give the lead of a shard to another node, as planned", "SHARD [CANDIDATE]", 2)
}

func failoverCommand() *cli.Command {
	return shardCommand("failover", "replace the primary of a shard by force", "SHARD", 1)
}

// shardCommand calls the procedure of its name through a gateway.
func shardCommand(name, usage, args string, most int) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, ArgsUsage: args, OnUsageError: onUsageError,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "uri", Usage: "connection `URI` of a gateway; the PG* variables tell what it does not"},
		},
		Action: func(c *cli.Context) error {
			if n := c.Args().Len(); n < 1 || n > most {
				return usagef("`neki %s` takes %s", name, args)
			}
			return withGateway(c, func(c *cli.Context, conn *pgx.Conn) error {
				call := "CALL neki." + name + "(" + quoteSQL(c.Args().First())
				if c.Args().Len() > 1 {
					call += ", " + quoteSQL(c.Args().Get(1))
				}
				if _, err := conn.PgConn().Exec(c.Context, call+")").ReadAll(); err != nil {
					return err
				}
				_, err := fmt.Fprintf(c.App.Writer, "%s of shard %s done\n", name, c.Args().First())
				return err
			})
		},
	}
}

func quoteSQL(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
