package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"neki/catalog"
	"neki/catalog/etcdstore"
	"neki/catalog/etcdstore/embedded"
	"neki/cluster/admin"
	"neki/cluster/agent"
	"neki/cluster/pgproc"
	"neki/internal/certs"
	"neki/settings"
)

// Names of the one cluster of a data directory and of its parts.
const (
	devCluster   = "dev"
	devGateway   = "gw1"
	devAdmin     = "adm1"
	devProfile   = "default"
	devSuperuser = "admin" // instances let the bootstrap superuser "postgres" in by their own Unix socket only
	devDatabase  = "postgres"
)

// devLimit bounds a start: what takes longer will not come.
const devLimit = 5 * time.Minute

// dev is a running `neki dev`.
type dev struct {
	o     devOptions
	out   *progress
	log   *slog.Logger
	state devState
	parts *parts
	undo  stack

	account      pgproc.Account
	installation pgproc.Installation
	token        string
	tls          certs.Files
	listener     net.Listener
	http, debug  net.Listener // nil: none
	etcd         *embedded.Server
	store        catalog.Store
	live         *catalog.Live
	client       *http.Client // to agents and gateways
	archive      agent.Archive

	instances sync.Mutex       // guards state.Nodes, once the admin is up, and
	running   map[string]*part // the agents, by node
}

// runDev runs a cluster until ctx ends or a part fails.
func runDev(ctx context.Context, o devOptions, stdout, stderr io.Writer) error {
	if !signal.Ignored(syscall.SIGHUP) { // the terminal is closed
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP)
		defer stop()
	}
	d := &dev{o: o, out: newProgress(stdout), parts: newParts()}
	err := d.run(ctx, stderr)
	stopping := time.Now()
	if len(d.undo.undo) > 1 {
		d.out.step("stopping")
	}
	if undoErr := d.undo.unwind(); err == nil {
		err = undoErr
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil
	}
	if err == nil {
		d.out.step("stopped in %.1fs; `neki dev` goes on from here", time.Since(stopping).Seconds())
	}
	return err
}

func (d *dev) run(ctx context.Context, stderr io.Writer) error {
	limited, cancel := context.WithTimeout(ctx, devLimit)
	defer cancel()
	if err := d.start(limited, stderr); err != nil {
		if ctx.Err() == nil && limited.Err() != nil {
			return fmt.Errorf("not ready within %s: %w; %s tells more", devLimit, err, filepath.Join(d.o.data, logFile))
		}
		return err
	}
	if err := d.announce(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-d.parts.failed:
		return err
	case err := <-d.etcd.Failed():
		return fmt.Errorf("etcd: %w", err)
	}
}

// start brings up one part after the other; each pushes how it is stopped.
func (d *dev) start(ctx context.Context, stderr io.Writer) error {
	for _, step := range []func(context.Context) error{
		d.prepare,
		func(context.Context) error { return d.openLog(stderr) },
		d.openListeners,
		d.startCatalog,
		d.startAgents,
		d.startAdmin,
		d.awaitShards,
		d.startGateway,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// prepare finds Postgres and makes the directory, what is remembered in it, and the certificates.
func (d *dev) prepare(ctx context.Context) error {
	var err error
	made, _ := filepath.Glob(filepath.Join(d.o.data, "nodes", "*")) // the pattern is well formed
	if d.installation, err = findPostgres(ctx, d.o.postgresBin, made...); err != nil {
		return err
	}
	if d.account, err = pgproc.LookupAccount(d.o.postgresUser); err != nil {
		return err
	}
	nodes := filepath.Join(d.o.data, "nodes")
	if err := d.account.CheckReach(nodes); err != nil { // before anything is made
		return err
	}
	unlock, err := lockData(d.o.data)
	if err != nil {
		return err
	}
	d.undo.push(unlock)
	if err := removeFile(filepath.Join(d.o.data, envFile)); err != nil { // left by a kill -9
		return err
	}
	if d.state, err = loadState(&d.o); err != nil {
		return err
	}
	if d.token, err = ensureToken(filepath.Join(d.o.data, tokenFile)); err != nil {
		return err
	}
	if err := makeOpenDir(nodes); err != nil {
		return err
	}
	if err := d.account.CheckReach(filepath.Join(nodes, "any")); err != nil { // parents made under a strict umask
		return err
	}
	if err := d.ensureCertificates(); err != nil {
		return err
	}
	d.out.step("PostgreSQL %s in %s, data in %s", d.installation.Version, d.installation.BinDir, d.o.data)
	return nil
}

func (d *dev) ensureCertificates() error {
	dir := filepath.Join(d.o.data, "tls")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	authority, err := certs.OpenAuthority(dir)
	if err != nil {
		return err
	}
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	if name, err := os.Hostname(); err == nil && name != "localhost" {
		hosts = append(hosts, name)
	}
	if host := d.clientHost(); host != "localhost" && host != "127.0.0.1" && host != "::1" {
		hosts = append(hosts, host)
	}
	d.tls, err = authority.Ensure(dir, certs.Request{Name: "gateway", CommonName: "neki gateway", Hosts: hosts, Server: true})
	return err
}

// clientHost is the host by which clients on this machine reach the gateway.
func (d *dev) clientHost() string {
	host, _, _ := net.SplitHostPort(d.o.listen) // checked with the flags
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return "127.0.0.1"
	}
	return host
}

// openLog sends everything to the log file, errors also to the terminal.
func (d *dev) openLog(stderr io.Writer) error {
	path := filepath.Join(d.o.data, logFile)
	const most = 16 << 20
	if st, err := os.Stat(path); err == nil && st.Size() > most {
		if err := os.Rename(path, path+".1"); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	d.undo.push(f.Close)
	d.log = slog.New(slog.NewMultiHandler(newLog(f, d.o.logLevel).Handler(), newLog(stderr, "error").Handler()))
	return nil
}

// openListeners takes the addresses before anything long begins: one that is in use must not cost a start.
func (d *dev) openListeners(context.Context) error {
	for _, open := range []struct {
		address string
		into    *net.Listener
	}{{d.o.listen, &d.listener}, {d.o.http, &d.http}, {d.o.debug, &d.debug}} {
		l, err := listenTCP(open.address, false)
		if err != nil {
			return err
		}
		if *open.into = l; l != nil {
			d.undo.push(func() error {
				_ = l.Close() // the gateway has closed it, unless the start failed
				return nil
			})
		}
	}
	return nil
}

// startCatalog starts etcd and this process's view of the catalog.
func (d *dev) startCatalog(ctx context.Context) error {
	var err error
	if d.etcd, err = embedded.Start(ctx, filepath.Join(d.o.data, "etcd"), d.log); err != nil {
		return err
	}
	d.undo.push(func() error { d.etcd.Close(); return nil })
	store, err := etcdstore.Open(etcdstore.Config{Endpoints: d.etcd.Endpoints()})
	if err != nil {
		return err
	}
	d.store = store
	d.undo.push(store.Close)
	// The admin of an earlier process, if it was killed, leads until its lease runs out. There is no other one here.
	if _, err := store.Delete(ctx, catalog.LeaderKey(devCluster), catalog.Always()); err != nil {
		return err
	}
	if err := d.restoreTopology(ctx); err != nil {
		return err
	}
	d.live = catalog.NewLive(store, devCluster, d.log)
	d.client = newHTTPClient(nil)
	feed := &agent.Feed{Live: d.live, HTTP: d.client, Token: d.token, Log: d.log}
	around := []*part{d.parts.start("catalog", d.live.Run), d.parts.start("health", feed.Run)}
	d.undo.push(func() error {
		defer d.client.CloseIdleConnections()
		return stopAll(around)
	})
	d.out.step("etcd is up")
	return nil
}

// startAgents starts an agent for each instance. They are stopped with their servers: replicas first, so that a
// primary's last record reaches none too late.
func (d *dev) startAgents(context.Context) error {
	var err error
	if d.archive, err = openArchive(d.o.backup, d.account, d.o.data); err != nil {
		return err
	}
	d.instances.Lock()
	defer d.instances.Unlock()
	d.running = map[string]*part{}
	d.undo.push(d.stopAgents)
	for _, n := range d.state.Nodes {
		if err := d.startAgent(n); err != nil {
			return err
		}
	}
	return nil
}

func (d *dev) stopAgents() error {
	d.instances.Lock()
	defer d.instances.Unlock()
	var replicas, primaries []*part
	snap := d.live.Snapshot()
	for id, p := range d.running {
		leads := false
		if snap != nil {
			for i := range snap.Shards {
				leads = leads || snap.Shards[i].Primary == id
			}
		}
		if leads {
			primaries = append(primaries, p)
		} else {
			replicas = append(replicas, p)
		}
	}
	return stopEach(func() error { return stopAll(replicas) }, func() error { return stopAll(primaries) })
}

func (d *dev) startAdmin(context.Context) error {
	values, err := settingsOf(d.o.parameters)
	if err != nil {
		return err
	}
	durability := "sync"
	if d.o.replicas == 0 {
		durability = "none"
	}
	var shards []admin.ShardSpec
	for i, uid := range d.state.shards() {
		shards = append(shards, admin.ShardSpec{UID: uid, Profile: devProfile, Durability: durability, Authoritative: i == 0})
	}
	policy, err := backupPolicy(d.o.backup)
	if err != nil {
		return err
	}
	a, err := admin.New(admin.Config{
		Cluster: devCluster, ID: devAdmin, Backups: policy, ReplaceAfter: replaceAfter(values), Restored: d.restored, Store: d.store, Live: d.live, Token: d.token, Listen: "127.0.0.1:0",
		Profiles: []catalog.Profile{{Name: devProfile, Replicas: d.o.replicas, Rdonly: d.o.rdonly, Default: true}},
		Shards:   shards, Superuser: admin.Login{Name: devSuperuser, Password: d.state.Password}, Stubs: stubSchema(), Provider: d,
		Poll: values.DiscoveryPoll, RecoveryPoll: values.RecoveryPoll, AcceptableLag: values.AcceptableLag, SwitchoverTimeout: values.SwitchoverTimeout,
		Log: d.log, Progress: func(step string) { d.out.step("%s", step) },
	})
	if err != nil {
		return err
	}
	d.undo.push(d.parts.start("admin", a.Run).stop)
	return nil
}

func settingsOf(parameters map[string]string) (settings.Parameters, error) {
	return merge(parameters, nil, "")
}

func (d *dev) startGateway(ctx context.Context) error {
	t, err := clientsTLS(settings.TLS{Cert: d.tls.Cert, Key: d.tls.Key}, d.log)
	if err != nil {
		return err
	}
	r := rpc{client: d.client, token: d.token}
	others, err := listenPeers("", &r)
	if err != nil {
		return err
	}
	g, err := newGateway(gatewayConfig{
		RPC: r, RPCListener: others, Cluster: devCluster, ID: devGateway, Cell: d.gatewayCell(), Listeners: []net.Listener{d.listener}, HTTP: d.http,
		Debug: d.debug, TLS: t, Parameters: atOnce(d.o.parameters), Store: d.store, Live: d.live, Log: d.log,
	})
	if err != nil {
		return err
	}
	d.undo.push(d.parts.start("gateway", g.Run).stop)
	if err := d.await(ctx, g.ready); err != nil {
		return err
	}
	if err := d.awaitClient(ctx); err != nil {
		return err
	}
	d.out.step("gateway %s listens on %s", devGateway, d.o.listen)
	return nil
}

func (d *dev) gatewayCell() string { return d.state.Cell }

// progress prints a line for each step, with the time since the start.
type progress struct {
	mu    sync.Mutex
	w     io.Writer
	began time.Time
}

func newProgress(w io.Writer) *progress { return &progress{w: w, began: time.Now()} }

func (p *progress) step(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "%6.1fs  %s\n", time.Since(p.began).Seconds(), fmt.Sprintf(format, args...))
}

func (p *progress) elapsed() time.Duration { return time.Since(p.began) }

func (p *progress) print(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = io.WriteString(p.w, text) // nobody may be reading
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// atOnce has the gateway of `neki dev` not wait for clients when it ends, unless the flags say so.
func atOnce(parameters map[string]string) map[string]string {
	all := map[string]string{"drain-wait": "0"}
	maps.Copy(all, parameters)
	return all
}
