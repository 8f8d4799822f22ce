package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// flagsFirst brings a command's flags before its words, where the library wants them: `neki replica add sh1 --cell x` means the
// same as `neki replica add --cell x sh1`. What comes after "--" stays words.
func flagsFirst(app *cli.App, args []string) []string {
	if len(args) == 0 {
		return args
	}
	head, rest := args[:1:1], args[1:]
	commands, flags := app.Commands, app.Flags
	for len(rest) > 0 {
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(rest[0]) })
		if i < 0 {
			break
		}
		if commands[i].Hidden { // called by Postgres, with names of files
			return args
		}
		head, rest = append(head, rest[0]), rest[1:]
		commands, flags = commands[i].Subcommands, commands[i].Flags
	}
	var first, words []string
	for len(rest) > 0 {
		arg := rest[0]
		rest = rest[1:]
		switch {
		case arg == "--":
			return slices.Concat(head, first, []string{"--"}, words, rest)
		case !strings.HasPrefix(arg, "-") || arg == "-":
			words = append(words, arg)
			continue
		}
		first = append(first, arg)
		if takesValue(flags, arg) && len(rest) > 0 {
			first, rest = append(first, rest[0]), rest[1:]
		}
	}
	return slices.Concat(head, first, words)
}

// takesValue tells whether the word after a flag is its value.
func takesValue(flags []cli.Flag, arg string) bool {
	name := strings.TrimLeft(arg, "-")
	for _, f := range flags {
		if !slices.Contains(f.Names(), name) {
			continue
		}
		_, onOff := f.(*cli.BoolFlag)
		return !onOff
	}
	return false // it is unknown, or has its value after "="
}
