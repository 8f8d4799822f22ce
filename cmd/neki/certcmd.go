package main

import (
	"fmt"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"neki/internal/certs"
)

// certCommand makes the certificates of a cluster's machines, for those who have no authority of their own.
func certCommand() *cli.Command {
	return &cli.Command{
		Name: "cert", Usage: "make a certificate for a machine of the cluster", ArgsUsage: "NAME HOST...",
		Description: `Makes <dir>/NAME.crt and NAME.key, good for a year, for the host names and addresses by which others reach the
machine, and at first the authority that signs them, ca.crt and ca.key. Agents, admins, gateways and etcd use the
certificate as servers and as clients; each machine needs ca.crt, too. Keep ca.key to yourself: who has it can join.
Called again it keeps what is still good for eight months. The parts read changed files by themselves.`,
		Flags: []cli.Flag{&cli.StringFlag{Name: "dir", Value: "neki-ca", Usage: "`DIR` of the authority and the certificates"}},
		Action: func(c *cli.Context) error {
			if c.NArg() < 2 {
				return usagef("neki cert takes NAME HOST...: the machine's name, then the host names and addresses that it has")
			}
			return makeCert(c, c.Args().First(), c.Args().Tail())
		},
	}
}

func makeCert(c *cli.Context, name string, hosts []string) error {
	dir, err := filepath.Abs(c.String("dir"))
	if err != nil {
		return err
	}
	if name != filepath.Base(name) || name == "ca" || name == "." || name == ".." {
		return usagef("%q can't be the name of a certificate's files", name)
	}
	authority, err := certs.OpenAuthority(dir)
	if err != nil {
		return err
	}
	files, err := authority.Ensure(dir, certs.Request{Name: name, Hosts: hosts, Server: true, Client: true})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s\n%s\n%s\n", files.Cert, files.Key, files.CA)
	return err
}
