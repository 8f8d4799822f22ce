package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"

	"neki/internal/pgerr"
)

func versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "print the version",
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			return printVersion(c)
		},
	}
}

func printVersion(c *cli.Context) error {
	_, err := fmt.Fprintf(c.App.Writer, "neki %s (%s %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// helpCommand is `neki help [COMMAND]`, the same as --help there.
func helpCommand() *cli.Command {
	return &cli.Command{
		Name: "help", Usage: "show the commands, or the flags of one", ArgsUsage: "[COMMAND]",
		Action: func(c *cli.Context) error {
			switch name := c.Args().First(); {
			case c.NArg() == 0:
				return cli.ShowAppHelp(c)
			case c.NArg() > 1:
				return usagef("neki help takes one command, not %d", c.NArg())
			case c.App.Command(name) == nil:
				return unknownCommand(c.App, name)
			default:
				return cli.ShowCommandHelp(c, name)
			}
		},
	}
}

// unknownCommand names the nearest command, if one is near.
func unknownCommand(app *cli.App, given string) error {
	names := make([]string, 0, len(app.Commands))
	for _, command := range app.Commands {
		names = append(names, command.Name)
	}
	if near := pgerr.Nearest(given, names); near != "" {
		return usagef("unknown command %q; perhaps you meant %q; `neki help` lists the commands", given, near)
	}
	return usagef("unknown command %q; `neki help` lists the commands", given)
}

// version is the module's, or of a build in a checkout its commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	commit, changed := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			commit = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+"
		}
	}
	if commit == "" {
		return "devel"
	}
	return "devel-" + commit + changed
}
