package main

import "github.com/urfave/cli/v2"

// replicaCommands change replicas.
func replicaCommands() []*cli.Command {
	role := &cli.StringFlag{Name: "role", Usage: "`ROLE`: replica, which can lead, or rdonly", DefaultText: "replica"}
	list := []procedureCommand{
		{
			name: "add", usage: "give a shard, or each shard of a profile, one replica more", args: []string{"[SHARD]"}, procedure: "add_replica", long: true,
			flags: []cli.Flag{
				&cli.StringFlag{Name: "profile", Usage: "each shard of `PROFILE` gets one, instead of SHARD"},
				&cli.StringFlag{Name: "cell", Usage: "`CELL` for it", DefaultText: "the one with the fewest"}, role,
			},
			more: func(c *cli.Context) ([]sqlArgument, error) {
				return []sqlArgument{{"profile", flagText(c, "profile")}, {"cell", flagText(c, "cell")}, {"role", flagText(c, "role")}}, nil
			},
		},
		{name: "remove", usage: "take a replica out of its shard", args: []string{"NODE"}, procedure: "remove_replica", long: true},
		{
			name: "set", usage: "set how many replicas each shard of a profile has, its primary aside", args: []string{"PROFILE", "COUNT"},
			procedure: "set_replicas", long: true, flags: []cli.Flag{role},
			more: func(c *cli.Context) ([]sqlArgument, error) {
				return []sqlArgument{{"role", flagText(c, "role")}}, nil
			},
		},
		{name: "restore", usage: "make a replica's data anew, from the last backup", args: []string{"NODE"}, procedure: "restore_replica", long: true},
	}
	commands := make([]*cli.Command, len(list))
	for i, p := range list {
		commands[i] = p.command()
	}
	return commands
}
