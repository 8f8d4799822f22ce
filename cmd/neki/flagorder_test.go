package main

import (
	"io"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

func TestFlagsFirst(t *testing.T) {
	app := newApp(io.Discard, io.Discard)
	for given, want := range map[string]string{
		"neki":                          "neki",
		"neki replica add sh1 --cell x": "neki replica add --cell x sh1",
		"neki replica add sh1 --cell=x --no-wait":        "neki replica add --cell=x --no-wait sh1",
		"neki replica add --cell x sh1":                  "neki replica add --cell x sh1",
		"neki fence sh1-b --reason slow --json":          "neki fence --reason slow --json sh1-b",
		"neki fence --no-wait sh1-b":                     "neki fence --no-wait sh1-b",
		"neki fence -- sh1-b --reason":                   "neki fence -- sh1-b --reason",
		"neki fence sh1-b --nosuch":                      "neki fence --nosuch sh1-b",
		"neki topology set - --uri u":                    "neki topology set --uri u -",
		"neki backup restore /srv/x --time 2026":         "neki backup restore --time 2026 /srv/x",
		"neki nosuch --x y":                              "neki --x nosuch y",
		"neki wal-push socket file --x":                  "neki wal-push socket file --x",
		"neki operations wait --uri u 1 --json":          "neki operations wait --uri u --json 1",
		"neki profile alter default work_mem=1 --uri u":  "neki profile alter --uri u default work_mem=1",
		"neki maintenance sh1 off --uri postgres://x/y?": "neki maintenance --uri postgres://x/y? sh1 off",
	} {
		if got := strings.Join(flagsFirst(app, strings.Fields(given)), " "); got != want {
			t.Errorf("%s: %s, want %s", given, got, want)
		}
	}
}

// What lists has both names.
func TestListsHaveBothNames(t *testing.T) {
	found := 0
	var visit func(path string, commands []*cli.Command)
	visit = func(path string, commands []*cli.Command) {
		for _, c := range commands {
			visit(path+" "+c.Name, c.Subcommands)
			if c.HasName("ls") || c.HasName("list") {
				found++
				if !c.HasName("ls") || !c.HasName("list") {
					t.Errorf("%s %s has only one of the names ls and list", path, c.Name)
				}
			}
		}
	}
	visit("neki", newApp(io.Discard, io.Discard).Commands)
	if found < 5 {
		t.Errorf("found %d lists", found)
	}
}
