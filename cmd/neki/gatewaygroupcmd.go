package main

import "github.com/urfave/cli/v2"

const gatewayGroupsQuery = `SELECT "group", cell, array_to_string(gateways, ',') AS gateways, parameters FROM neki.gateway_groups ORDER BY "group"`

func gatewayGroupCommand() *cli.Command {
	cell := &cli.StringFlag{Name: "cell", Usage: "`CELL` of its gateways"}
	change := func(c *cli.Context) ([]sqlArgument, error) {
		parameters, err := parameterWords(c)
		return []sqlArgument{{"cell", flagText(c, "cell")}, {"parameters", parameters}}, err
	}
	return groupCommand("gateway-group", "list and change groups of gateways: their cell and parameters",
		"Parameters are NAME=VALUE; NAME= takes one back to what all gateways have:\n\n"+
			"    neki gateway-group create --cell az-a reports pool-capacity=5\n"+
			"    neki gateway-group assign gw3 reports\n"+
			"    neki gateway-group alter reports pool-capacity=10",
		queryCommand("ls", "list groups of gateways", gatewayGroupsQuery),
		procedureCommand{
			name: "create", usage: "make a group", procedure: "create_gateway_group", args: []string{"GATEWAY_GROUP", "[NAME=VALUE...]"},
			flags: []cli.Flag{cell}, more: change,
		}.command(),
		procedureCommand{
			name: "alter", usage: "change a group's cell and parameters, on all its gateways", procedure: "alter_gateway_group",
			args: []string{"GATEWAY_GROUP", "[NAME=VALUE...]"}, flags: []cli.Flag{cell}, more: change,
		}.command(),
		procedureCommand{name: "drop", usage: "remove a group that no gateway is in", procedure: "drop_gateway_group", args: []string{"GATEWAY_GROUP"}}.command(),
		procedureCommand{name: "assign", usage: "put a gateway into a group, or into none", procedure: "assign_gateway", args: []string{"GATEWAY", "[GATEWAY_GROUP]"}}.command(),
	)
}
