package main

import (
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"
)

// What the lists of shards and instances show.
const (
	shardsQuery = `SELECT shard, name, profile, primary_node AS primary, replicas, rdonly, ready, durability, read_only, maintenance,
		authoritative FROM neki.shards ORDER BY shard`
	nodesQuery    = `SELECT shard, node, role, cell, host, port, state, lag, reason FROM neki.nodes ORDER BY shard, node`
	replicasQuery = `SELECT shard, node, role, cell, state, lag, eligible, reason, profile FROM neki.replicas ORDER BY shard, node`
	underWay      = `SELECT id, kind, target, state, round(progress * 100)::int4 || ' %' AS progress, step FROM neki.operations
		WHERE state IN ('pending', 'running')`
)

// statusCommand shows the cluster at one look.
func statusCommand() *cli.Command {
	return &cli.Command{
		Name: "status", Usage: "show shards, instances and what is under way", Category: categoryOperate, OnUsageError: onUsageError,
		HideHelpCommand: true, Flags: []cli.Flag{uriFlag()},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			return withGateway(c, func(c *cli.Context, conn *pgx.Conn) error {
				for _, sql := range []string{shardsQuery, nodesQuery} {
					if err := printQuery(c, conn, sql); err != nil {
						return err
					}
					fmt.Fprintln(c.App.Writer)
				}
				jobs, err := readQuery(c, conn, underWay)
				if err != nil {
					return err
				}
				if len(jobs.Rows) == 0 {
					_, err = fmt.Fprintln(c.App.Writer, "No operation is under way.")
					return err
				}
				return writeTable(c.App.Writer, jobs)
			})
		},
	}
}

func shardCommand() *cli.Command {
	return groupCommand("shard", "list and change shards", "",
		queryCommand("ls", "list shards", shardsQuery),
		procedureCommand{
			name: "create", usage: "make empty shards, with the instances that their profile asks for", procedure: "create_shard", long: true,
			flags: []cli.Flag{
				&cli.StringFlag{Name: "profile", Usage: "`NAME` of their profile, the default one unless said"},
				&cli.IntFlag{Name: "count", Usage: "`NUMBER` of shards, one unless said"},
			},
			more: func(c *cli.Context) ([]sqlArgument, error) {
				return []sqlArgument{{"profile", flagText(c, "profile")}, {"count", flagInt(c, "count")}}, nil
			},
		}.command(),
		procedureCommand{name: "rename", usage: "give a shard another name", procedure: "rename_shard", args: []string{"SHARD", "NAME"}}.command(),
		procedureCommand{
			name: "drop", usage: "remove a shard that the data topology does not refer to, with its data", procedure: "drop_shard",
			args: []string{"SHARD"}, long: true,
		}.command())
}

func replicaCommand() *cli.Command {
	return groupCommand("replica", "list and change replicas", "",
		append([]*cli.Command{queryCommand("ls", "list replicas, with their lag", replicasQuery)}, replicaCommands()...)...)
}
