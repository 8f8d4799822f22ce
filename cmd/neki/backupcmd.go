package main

import "github.com/urfave/cli/v2"

const backupsQuery = `SELECT id, shard, kind, state, started_at, finished_at, size_bytes, stored_bytes, expires_at, protected, error
	FROM neki.backups ORDER BY id DESC, shard`

// backupCommand takes, lists, keeps and removes backups, and restores from them.
func backupCommand() *cli.Command {
	list := []procedureCommand{
		{
			name: "take", usage: "take a base backup of every shard, or of one", args: []string{"[SHARD]"}, procedure: "backup", long: true,
			flags: []cli.Flag{
				&cli.StringFlag{Name: "retention", Usage: "`INTERVAL` that it is kept, for example '30 days'", DefaultText: "as long as scheduled ones"},
				&cli.BoolFlag{Name: "protect", Usage: "keep it until `neki backup unprotect`"},
			},
			more: func(c *cli.Context) ([]sqlArgument, error) {
				return []sqlArgument{{"retention", flagText(c, "retention")}, {"protected", c.Bool("protect")}}, nil
			},
		},
		{name: "delete", usage: "remove a backup, and the WAL that no other one needs", args: []string{"ID"}, procedure: "delete_backup", long: true},
		{name: "protect", usage: "keep a backup beyond its time", args: []string{"ID"}, procedure: "protect_backup", long: true},
		{
			name: "unprotect", usage: "let a backup go when its time is over", args: []string{"ID"}, procedure: "protect_backup", long: true,
			more: func(*cli.Context) ([]sqlArgument, error) { return []sqlArgument{{"on", false}}, nil },
		},
		{
			name: "restore", usage: "make a new cluster's data, as all shards were at a point in time", args: []string{"INTO"}, procedure: "restore_cluster",
			long: true, flags: []cli.Flag{&cli.StringFlag{Name: "time", Usage: "`TIME` of the last commit that counts", DefaultText: "now"}},
			more: func(c *cli.Context) ([]sqlArgument, error) {
				return []sqlArgument{{"target_time", flagText(c, "time")}}, nil
			},
		},
	}
	commands := []*cli.Command{queryCommand("ls", "list backups, newest first", backupsQuery)}
	for _, p := range list {
		commands = append(commands, p.command())
	}
	return groupCommand("backup", "take, keep and restore backups", "", commands...)
}
