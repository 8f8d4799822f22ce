package main

import (
	"net"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/settings"
)

// devOptions are the flags of `neki dev`.
type devOptions struct {
	data         string // absolute
	shards       int
	replicas     int
	rdonly       int
	given        map[string]bool // which of the flags above were on the command line
	cells        []string
	listen       string
	http         string
	debug        string
	postgresBin  string
	postgresUser string
	logLevel     string
	backup       settings.Backup
	parameters   map[string]string
}

// Bounds that keep a slip of the finger from filling the machine.
const (
	mostShards   = 64
	mostReplicas = 15
)

func devCommand() *cli.Command {
	return &cli.Command{
		Name: "dev", Usage: "run a whole cluster on this machine",
		Description: `Embedded etcd, real Postgres instances with an agent beside each, an admin and a gateway, all in this process.
When it is ready it prints how to connect and writes <data>/dev.env:

    . neki-data/dev.env && psql

Ctrl-C stops all in order; the next start in the same directory goes on where it was. Remove the directory for a
new cluster.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "data", Value: "./neki-data", Usage: "`DIR` of everything that is kept"},
			&cli.IntFlag{Name: "shards", Value: 2, Usage: "`NUMBER` of shards; more than the directory holds are added"},
			&cli.IntFlag{Name: "replicas", Value: 2, Usage: "`NUMBER` of replicas of each shard"},
			&cli.IntFlag{Name: "rdonly", Value: 0, Usage: "`NUMBER` of rdonly replicas of each shard, for reports"},
			&cli.StringFlag{Name: "cells", Usage: "`A,B,C`: cells that instances are spread over; the gateway is in the first"},
			&cli.StringFlag{Name: "listen", Value: "127.0.0.1:6432", Usage: "`HOST:PORT` of the gateway"},
			&cli.StringFlag{Name: "http", Value: "127.0.0.1:8432", Usage: "`HOST:PORT` of metrics and health; empty for none"},
			&cli.StringFlag{Name: "debug", Usage: "`HOST:PORT` of profiles (pprof)"},
			&cli.StringFlag{Name: "backup", Usage: "`DIR` of backups and archived WAL, \"none\" for neither (default: <data>/backup)"},
			&cli.StringFlag{Name: "backup-interval", Value: "12h", Usage: "`INTERVAL` from one backup to the next; 0 for none by schedule"},
			&cli.StringFlag{Name: "backup-engine", Value: "native", Usage: "native, or pgbackrest where that `PROGRAM` is installed"},
			&cli.IntFlag{Name: "backup-incremental", Usage: "`NUMBER` of incremental backups that may follow a full one; PostgreSQL 17 and newer"},
			&cli.StringFlag{Name: "postgres-bin", EnvVars: []string{"NEKI_POSTGRES_BIN"}, Usage: "`DIR` of the server binaries; found by itself when not given"},
			&cli.StringFlag{Name: "postgres-user", Usage: "`USER` that Postgres runs as when neki runs as root (default: postgres)"},
			&cli.StringSliceFlag{Name: "set", Usage: "`NAME=VALUE` of a parameter, for example replication-lag-tolerable-min=1s; may be repeated"},
			&cli.StringFlag{Name: "log-level", Value: "info", Usage: "`LEVEL` of <data>/neki.log: debug, info, warn or error"},
		},
		Action: func(c *cli.Context) error {
			o, err := devOptionsOf(c)
			if err != nil {
				return err
			}
			return runDev(c.Context, o, c.App.Writer, c.App.ErrWriter)
		},
	}
}

func devOptionsOf(c *cli.Context) (devOptions, error) {
	o := devOptions{
		shards: c.Int("shards"), replicas: c.Int("replicas"), rdonly: c.Int("rdonly"), listen: c.String("listen"),
		http: c.String("http"), debug: c.String("debug"), postgresBin: c.String("postgres-bin"),
		postgresUser: c.String("postgres-user"), logLevel: c.String("log-level"), given: map[string]bool{},
	}
	if err := noArguments(c); err != nil {
		return o, err
	}
	for _, n := range []string{"shards", "replicas", "rdonly"} {
		o.given[n] = c.IsSet(n)
	}
	var err error
	if o.data, err = filepath.Abs(c.String("data")); err != nil {
		return o, err
	}
	if o.backup, err = devBackup(c, o.data); err != nil {
		return o, err
	}
	if o.cells, err = parseCells(c.String("cells")); err != nil {
		return o, err
	}
	if o.parameters, err = parseParameters(c.StringSlice("set")); err != nil {
		return o, err
	}
	return o, o.check()
}

// devBackup says where and when `neki dev` keeps backups.
func devBackup(c *cli.Context, data string) (settings.Backup, error) {
	b := settings.Backup{Directory: filepath.Join(data, "backup"), Interval: c.String("backup-interval"), Incremental: c.Int("backup-incremental")}
	switch dir := c.String("backup"); dir {
	case "":
	case "none":
		b.Directory = ""
	default:
		var err error
		if b.Directory, err = filepath.Abs(dir); err != nil {
			return b, err
		}
	}
	switch engine := c.String("backup-engine"); {
	case engine == "pgbackrest" && b.Directory != "":
		b.PgBackRest.Options = map[string]string{"repo1-path": b.Directory}
		b.Directory = ""
	case engine != "native" && engine != "pgbackrest":
		return b, usagef("--backup-engine %q is none: native or pgbackrest", engine)
	}
	if _, _, err := b.Times(); err != nil {
		return b, usagef("--backup-interval %q is no interval", b.Interval)
	}
	if b.Incremental < 0 {
		return b, usagef("--backup-incremental %d is less than 0", b.Incremental)
	}
	return b, nil
}

func (o *devOptions) check() error {
	for _, f := range []struct {
		name               string
		value, least, most int
	}{{"shards", o.shards, 1, mostShards}, {"replicas", o.replicas, 0, mostReplicas}, {"rdonly", o.rdonly, 0, mostReplicas}} {
		if f.value < f.least || f.value > f.most {
			return usagef("--%s %d is not between %d and %d", f.name, f.value, f.least, f.most)
		}
	}
	for _, f := range []struct {
		name, value string
		optional    bool
	}{{"listen", o.listen, false}, {"http", o.http, true}, {"debug", o.debug, true}} {
		if f.optional && f.value == "" {
			continue
		}
		if _, port, err := net.SplitHostPort(f.value); err != nil || port == "" {
			return usagef("--%s %q is not host:port", f.name, f.value)
		}
	}
	switch o.logLevel {
	case "debug", "info", "warn", "error":
	default:
		return usagef("--log-level %q is not one of debug, info, warn, error", o.logLevel)
	}
	return nil
}

func parseCells(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	cells := strings.Split(text, ",")
	for _, cell := range cells {
		if !catalog.ValidName(cell) {
			return nil, usagef("--cells: %q is not a name of letters, digits, underscores, hyphens and dots", cell)
		}
	}
	return cells, nil
}

// parseParameters reads --set and checks names and values.
func parseParameters(texts []string) (map[string]string, error) {
	values := map[string]string{}
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, usagef("--set %q is not NAME=VALUE", text)
		}
		values[name] = value
	}
	var pairs []settings.Pair
	for name, value := range values {
		pairs = append(pairs, settings.Pair{Name: name, Value: value})
	}
	if _, err := settings.DefaultParameters().SetAll(pairs); err != nil {
		e := pgerr.From(err)
		if e.Hint != "" {
			return nil, usagef("--set: %s (%s)", e.Message, e.Hint)
		}
		return nil, usagef("--set: %s", e.Message)
	}
	return values, nil
}
