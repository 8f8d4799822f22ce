package main

import (
	"encoding/json"
	"strings"

	"github.com/urfave/cli/v2"
)

const profilesQuery = `SELECT profile, replicas, rdonly, is_default, array_to_string(shards, ',') AS shards, parameters FROM neki.profiles ORDER BY profile`

func profileCommand() *cli.Command {
	return groupCommand("profile", "list and change profiles: instances and Postgres parameters of shards",
		"Parameters are NAME=VALUE; NAME= takes one back to its default:\n\n"+
			"    neki profile create --replicas 2 big work_mem=64MB\n"+
			"    neki profile alter big max_connections=300 work_mem=\n"+
			"    neki profile assign sh2 big",
		queryCommand("ls", "list profiles", profilesQuery),
		procedureCommand{
			name: "create", usage: "make a profile", procedure: "create_profile", args: []string{"PROFILE", "[NAME=VALUE...]"},
			flags: []cli.Flag{
				&cli.IntFlag{Name: "replicas", Usage: "`NUMBER` of replicas of each shard, 2 unless said"},
				&cli.IntFlag{Name: "rdonly", Usage: "`NUMBER` of rdonly instances of each shard, none unless said"},
			},
			more: func(c *cli.Context) ([]sqlArgument, error) {
				parameters, err := parameterWords(c)
				return []sqlArgument{{"replicas", flagInt(c, "replicas")}, {"rdonly", flagInt(c, "rdonly")}, {"parameters", parameters}}, err
			},
		}.command(),
		procedureCommand{
			name: "alter", usage: "change Postgres parameters of a profile, on all its instances", procedure: "alter_profile",
			args: []string{"PROFILE", "[NAME=VALUE...]"}, long: true,
			more: func(c *cli.Context) ([]sqlArgument, error) {
				parameters, err := parameterWords(c)
				return []sqlArgument{{"parameters", parameters}}, err
			},
		}.command(),
		procedureCommand{name: "drop", usage: "remove a profile that no shard has", procedure: "drop_profile", args: []string{"PROFILE"}}.command(),
		procedureCommand{name: "assign", usage: "give a shard another profile", procedure: "assign_profile", args: []string{"SHARD", "PROFILE"}, long: true}.command(),
	)
}

// parameterWords makes an object of the words after the profile; nil when there are none.
func parameterWords(c *cli.Context) (any, error) {
	object := map[string]*string{}
	for _, word := range c.Args().Tail() {
		name, value, ok := strings.Cut(word, "=")
		switch {
		case !ok || name == "":
			return nil, usagef("%q is not NAME=VALUE", word)
		case value == "":
			object[name] = nil
		default:
			object[name] = &value
		}
	}
	if len(object) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(object)
	return string(text), err
}
