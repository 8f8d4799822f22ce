package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/catalog"
	"neki/cluster/pgproc"
)

// Times of waiting for the cluster.
const (
	replicaPatience = 60 * time.Second // for replicas, once the primaries serve
	clientTry       = 5 * time.Second
	clientRetry     = 100 * time.Millisecond
)

// await waits for a signal of a part, or its failure.
func (d *dev) await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case err := <-d.parts.failed:
		return err
	case err := <-d.etcd.Failed():
		return fmt.Errorf("etcd: %w", err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitShards waits until every shard has a primary and every instance serves. A replica that does not come is told of,
// and the cluster is used without it.
func (d *dev) awaitShards(ctx context.Context) error {
	if err := d.await(ctx, d.live.Ready()); err != nil {
		return err
	}
	var patience <-chan time.Time
	for {
		changed := d.live.Changed()
		primaries, replicas := d.missing(d.live.Snapshot())
		if len(primaries)+len(replicas) == 0 {
			return nil
		}
		if len(primaries) == 0 && patience == nil {
			patience = time.After(replicaPatience)
		}
		select {
		case <-changed:
		case <-patience:
			d.out.step("going on without %s", strings.Join(replicas, ", "))
			return nil
		case err := <-d.parts.failed:
			return err
		case err := <-d.etcd.Failed():
			return fmt.Errorf("etcd: %w", err)
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("still missing: %s", strings.Join(append(primaries, replicas...), ", ")), ctx.Err())
		}
	}
}

// missing tells what does not serve yet: primaries, and other instances, each with its state.
func (d *dev) missing(snap *catalog.Snapshot) (primaries, others []string) {
	for _, uid := range d.state.shards() {
		s := snap.Shard(uid)
		if s == nil || !s.Ready || s.Primary == "" {
			primaries = append(primaries, "shard "+uid)
		}
	}
	for _, n := range d.state.Nodes {
		doc, h := snap.Node(n.ID), snap.Health(n.ID)
		if doc != nil && doc.Desired != "" && doc.Desired != catalog.DesiredRun {
			continue // an operator took it out
		}
		s := snap.Shard(n.Shard)
		leads := s != nil && s.Primary == n.ID
		state := "unknown"
		if h != nil {
			state = strings.TrimSuffix(h.State.String()+": "+h.Reason, ": ")
			if !h.Stale && h.State == catalog.StateServing && leads == (h.Role == catalog.RolePrimary) {
				if h.LagKnown { // or the settings of a first read may refuse it
					continue
				}
				state += ", lag unknown: " + h.LagReason
			}
		}
		text := fmt.Sprintf("instance %s (%s)", n.ID, state)
		if leads {
			primaries = append(primaries, text)
		} else {
			others = append(others, text)
		}
	}
	return primaries, others
}

// awaitClient logs in as a user would, until that works.
func (d *dev) awaitClient(ctx context.Context) error {
	last := errors.New("not tried")
	for {
		try, cancel := context.WithTimeout(ctx, clientTry)
		err := d.tryClient(try)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case err := <-d.parts.failed:
			return err
		case <-ctx.Done():
			return fmt.Errorf("log in through the gateway: %w", errors.Join(last, ctx.Err()))
		case <-time.After(clientRetry):
		}
	}
}

func (d *dev) tryClient(ctx context.Context) error {
	cfg, err := pgx.ParseConfig(d.uri("verify-full"))
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the query has answered
	var one int
	return conn.QueryRow(ctx, "SELECT 1").Scan(&one)
}

// clientPort is the port that clients connect to.
func (d *dev) clientPort() int { return d.listener.Addr().(*net.TCPAddr).Port }

// uri is a connection string with everything in it.
func (d *dev) uri(sslmode string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(devSuperuser, d.state.Password),
		Host: net.JoinHostPort(d.clientHost(), strconv.Itoa(d.clientPort())), Path: "/" + devDatabase,
	}
	u.RawQuery = "sslmode=" + sslmode + "&sslrootcert=" + url.QueryEscape(d.tls.CA)
	return u.String()
}

// announce writes the files that say how to connect, and prints it.
func (d *dev) announce() error {
	if err := d.writeGatewayConfig(); err != nil {
		return err
	}
	path := filepath.Join(d.o.data, envFile)
	if err := pgproc.ReplaceFile(path, []byte(d.environment()), 0o600, pgproc.Account{}); err != nil {
		return err
	}
	d.undo.push(func() error { return removeFile(path) })
	d.out.print(d.welcome())
	return nil
}

// environment is dev.env.
func (d *dev) environment() string {
	var b strings.Builder
	b.WriteString("# Written by neki dev while it runs. Use it so: . " + shellQuote(filepath.Join(d.o.data, envFile)) + " && psql\n")
	http := ""
	if d.http != nil {
		http = "http://" + d.http.Addr().String()
	}
	for _, v := range [][2]string{
		{"PGHOST", d.clientHost()},
		{"PGPORT", strconv.Itoa(d.clientPort())},
		{"PGUSER", devSuperuser},
		{"PGPASSWORD", d.state.Password},
		{"PGDATABASE", devDatabase},
		{"PGSSLMODE", "verify-full"},
		{"PGSSLROOTCERT", d.tls.CA},
		{"NEKI_HTTP", http},
	} {
		fmt.Fprintf(&b, "export %s=%s\n", v[0], shellQuote(v[1]))
	}
	return b.String()
}

// shellQuote makes a word that a shell takes as it is.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// shown is a path as the user would type it: relative where that is shorter.
func shown(path string) string {
	if wd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(wd, path); err == nil && !strings.HasPrefix(rel, "..") {
			path = rel
		}
	}
	if strings.Trim(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./") != "" {
		return shellQuote(path)
	}
	return path
}

// welcome tells how to connect.
func (d *dev) welcome() string {
	env := shown(filepath.Join(d.o.data, envFile))
	if !strings.ContainsAny(env, "/") {
		env = "./" + env // the dot command looks in PATH otherwise
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nneki is ready after %.1f s: %s\n", d.out.elapsed().Seconds(), d.summary())
	for _, l := range [][2]string{
		{"the primary", ". " + env + " && psql"},
		{"a replica", ". " + env + " && PGOPTIONS='-c __neki.target=REPLICA' psql"},
		{"by hand, with TLS", fmt.Sprintf("PGPASSWORD=%s psql 'host=%s port=%d user=%s dbname=%s sslmode=verify-full sslrootcert=%s'",
			d.state.Password, d.clientHost(), d.clientPort(), devSuperuser, devDatabase, shown(d.tls.CA))},
		{"as a URI", d.uri("verify-full")},
		{"the cluster", ". " + env + " && psql -c 'SELECT * FROM neki.replicas'"},
		{"a second gateway", "neki gateway --config " + shown(filepath.Join(d.o.data, yamlFile))},
	} {
		fmt.Fprintf(&b, "  %-18s %s\n", l[0], l[1])
	}
	if d.http != nil {
		fmt.Fprintf(&b, "  %-18s http://%s/\n", "metrics, health", d.http.Addr())
	}
	if d.debug != nil {
		fmt.Fprintf(&b, "  %-18s http://%s/debug/pprof/\n", "profiles", d.debug.Addr())
	}
	b.WriteString("Ctrl-C stops it.\n")
	return b.String()
}

func (d *dev) summary() string {
	text := fmt.Sprintf("%s, each a primary and %s", plural(d.o.shards, "shard"), plural(d.o.replicas, "replica"))
	if d.o.rdonly > 0 {
		text += fmt.Sprintf(" and %d rdonly", d.o.rdonly)
	}
	return text
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// writeGatewayConfig writes a neki.yaml for a gateway of its own process.
func (d *dev) writeGatewayConfig() error {
	var b strings.Builder
	b.WriteString("# Written by neki dev at each start: a second gateway of this cluster, as a process of its own.\n")
	b.WriteString("#   neki gateway --config " + filepath.Join(d.o.data, yamlFile) + "\n")
	quoted := strconv.Quote // a YAML string in double quotes takes the same escapes
	fmt.Fprintf(&b, "cluster: %s\nid: gw2\n", devCluster)
	if cell := d.gatewayCell(); cell != "" {
		fmt.Fprintf(&b, "cell: %s\n", quoted(cell))
	}
	fmt.Fprintf(&b, "listen: [\"127.0.0.1:%d\"]\n", d.state.Gateway)
	fmt.Fprintf(&b, "log-level: warn\n")
	fmt.Fprintf(&b, "tls: {cert: %s, key: %s}\n", quoted(d.tls.Cert), quoted(d.tls.Key))
	fmt.Fprintf(&b, "rpc: {token-file: %s}\n", quoted(filepath.Join(d.o.data, tokenFile)))
	endpoints := make([]string, len(d.etcd.Endpoints()))
	for i, e := range d.etcd.Endpoints() {
		endpoints[i] = quoted(e)
	}
	fmt.Fprintf(&b, "etcd: {endpoints: [%s]}\n", strings.Join(endpoints, ", "))
	if len(d.o.parameters) > 0 {
		b.WriteString("parameters:\n")
		for name, value := range d.o.parameters {
			fmt.Fprintf(&b, "  %s: %s\n", name, quoted(value))
		}
	}
	return pgproc.ReplaceFile(filepath.Join(d.o.data, yamlFile), []byte(b.String()), 0o600, pgproc.Account{})
}
