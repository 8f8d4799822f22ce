package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"neki/catalog"
	"neki/cluster/admin"
	"neki/cluster/agent"
	"neki/cluster/pgproc"
	"neki/internal/debughttp"
	"neki/internal/pgerr"
	"neki/pooler"
	"neki/settings"
)

func configFlags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "config", Usage: "the `FILE` neki.yaml of this process"},
		&cli.StringFlag{Name: "id", Usage: "`NAME` of this process in the cluster, instead of the file's"},
		&cli.StringFlag{Name: "http", Usage: "`HOST:PORT` of metrics and health, instead of the file's"},
		&cli.StringFlag{Name: "debug", Usage: "`HOST:PORT` of profiles, instead of the file's"},
	}, more...)
}

func gatewayCommand() *cli.Command {
	return &cli.Command{
		Name: "gateway", Usage: "run a gateway, which clients connect to",
		Description: "Gateways keep no state: run as many as you like. SIGTERM lets clients finish what they do,\nand another gateway may be started on the same port before;\nSIGHUP reads the parameters of the file again.",
		Flags: configFlags(
			&cli.StringFlag{Name: "listen", Usage: "`HOST:PORT` for clients, instead of the file's"},
		),
		Action: func(c *cli.Context) error { return withConfig(c, runGateway) },
	}
}

func agentCommand() *cli.Command {
	return &cli.Command{
		Name: "agent", Usage: "run an agent, beside one Postgres instance",
		Description: "Given an empty directory, the admin provisions the instance as primary or as replica of its shard.\n" +
			"Postgres outlives the agent, and the next one takes it over, unless --stop-postgres is given.",
		Flags: configFlags(
			&cli.BoolFlag{Name: "stop-postgres", Usage: "stop Postgres when the agent is stopped"},
		),
		Action: func(c *cli.Context) error { return withConfig(c, runAgent) },
	}
}

func adminCommand() *cli.Command {
	return &cli.Command{
		Name: "admin", Usage: "run an admin, which watches the cluster and makes it whole",
		Description: "Run two or three; one of them leads. Clients don't need them.",
		Flags: configFlags(
			&cli.StringFlag{Name: "superuser", Usage: "`NAME` of a superuser to make in each shard that has none of that name"},
			&cli.StringFlag{Name: "superuser-password-file", Usage: "`FILE` with the password of --superuser"},
		),
		Action: func(c *cli.Context) error { return withConfig(c, runAdmin) },
	}
}

// process is what the commands with a neki.yaml share.
type process struct {
	flags *cli.Context
	path  string
	cfg   settings.Config
	log   *slog.Logger
	rpc   rpc
	store catalog.Store
	http  net.Listener // nil: none
	debug net.Listener
}

// withConfig reads the configuration, opens what every part needs, and runs the part.
func withConfig(c *cli.Context, run func(context.Context, *process) error) (err error) {
	if err := noArguments(c); err != nil {
		return err
	}
	p := &process{flags: c, path: c.String("config")}
	if p.path == "" {
		return usagef("--config is missing; `neki %s --help` lists the flags", c.Command.Name)
	}
	if p.cfg, err = loadConfig(p.path); err != nil {
		return err
	}
	for name, field := range map[string]*string{"id": &p.cfg.ID, "http": &p.cfg.HTTP, "debug": &p.cfg.Debug} {
		if c.IsSet(name) {
			*field = c.String(name)
		}
	}
	if p.cfg.ID == "" {
		p.cfg.ID = hostID(c.Command.Name)
	}
	if len(p.cfg.Etcd.Endpoints) == 0 {
		return require(p.path, "etcd.endpoints", "")
	}
	p.log = newLog(c.App.ErrWriter, p.cfg.LogLevel)
	if p.rpc, err = newRPC(p.path, p.cfg.RPC, p.log); err != nil {
		return err
	}
	defer p.rpc.client.CloseIdleConnections()
	store, err := openStore(p.cfg.Etcd, p.log)
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // the process ends
	p.store = store
	shared := c.Command.Name == "gateway" // one that starts beside another may have the same addresses
	if p.http, err = listenTCP(p.cfg.HTTP, shared); err != nil {
		return err
	}
	if p.debug, err = listenTCP(p.cfg.Debug, shared); err != nil {
		return err
	}
	return run(c.Context, p)
}

// tuneRuntime fits the Go runtime to a gateway, unless GOMAXPROCS or GOGC say otherwise. It spends nine tenths of its time
// in system calls, and on a small machine more threads only wake each other: a processor is left to the kernel and to
// Postgres. And a statement allocates nothing, so the heap is what sessions hold, and need not be let double.
func tuneRuntime() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)-1))
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gatewayGCPercent)
	}
}

const gatewayGCPercent = 50

// runGateway is `neki gateway`.
func runGateway(ctx context.Context, p *process) error {
	tuneRuntime()
	if p.flags.IsSet("listen") {
		p.cfg.Listen = []settings.Listener{{Address: p.flags.String("listen")}}
	}
	if p.cfg.SocketDir != "" {
		p.cfg.Listen = append(p.cfg.Listen, settings.Listener{Address: p.cfg.SocketDir})
	}
	if len(p.cfg.Listen) == 0 {
		return require(p.path, "listen", "")
	}
	auth, err := loadAuth(p.path, p.cfg, p.log)
	if err != nil {
		return err
	}
	listeners, err := listenClients(p.cfg.Listen)
	if err != nil {
		return err
	}
	t, err := clientsTLS(p.cfg.TLS, p.log)
	if err != nil {
		return pgerr.New(pgerr.ConfigFileError, "%s: tls: %w", p.path, err)
	}
	backend, err := backendTLS(p.cfg.Backend, p.log)
	if err != nil {
		return pgerr.New(pgerr.ConfigFileError, "%s: backend: %w", p.path, err)
	}
	others, err := listenPeers(p.cfg.RPC.Listen, &p.rpc)
	if err != nil {
		return err
	}
	live := catalog.NewLive(p.store, p.cfg.Cluster, p.log)
	g, err := newGateway(gatewayConfig{
		Cluster: p.cfg.Cluster, ID: p.cfg.ID, Cell: p.cfg.Cell, Listeners: listeners.all, HTTP: p.http, Debug: p.debug,
		TLS: t, BackendTLS: backend, Auth: auth, Parameters: p.cfg.Parameters, Store: p.store, Live: live,
		RPC: p.rpc, RPCListener: others, RPCURL: p.cfg.RPC.URL,
		Log: p.log,
		Reload: func() (map[string]string, pooler.Auth, error) {
			cfg, err := loadConfig(p.path)
			if err != nil {
				return nil, pooler.Auth{}, err
			}
			auth, err := loadAuth(p.path, cfg, p.log)
			return cfg.Parameters, auth, err
		},
	})
	if err != nil {
		return err
	}
	feed := &agent.Feed{Live: live, HTTP: p.rpc.client, Token: p.rpc.token, Log: p.log}
	all := newParts()
	around := []*part{all.start("catalog", live.Run), all.start("health", feed.Run)}
	serving := all.start("gateway", g.Run)
	around = append(around, all.start("handover", func(ctx context.Context) error { return listeners.offer(ctx, p.log) }))
	around = append(around, all.start("reload", func(ctx context.Context) error { return reloadOnHangup(ctx, g) }))
	return runUntil(ctx, all, func() error { return stopEach(serving.stop, func() error { return stopAll(around) }) })
}

// reloadOnHangup reads the configuration file again at each SIGHUP.
func reloadOnHangup(ctx context.Context, g *gateway) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	defer signal.Stop(signals)
	for {
		select {
		case <-signals:
			if err := g.reload(ctx); err != nil {
				g.log.Warn("configuration not reloaded; what was in force stays", "error", err)
			} else {
				g.log.Info("configuration reloaded")
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// runAgent is `neki agent`.
func runAgent(ctx context.Context, p *process) error {
	a := p.cfg.Agent
	if err := require(p.path, "agent.data", a.Data, "agent.shard", a.Shard); err != nil {
		return err
	}
	if a.Port == 0 {
		return require(p.path, "agent.port", "")
	}
	installation, err := findPostgres(ctx, a.PostgresBin, a.Data)
	if err != nil {
		return err
	}
	account, err := pgproc.LookupAccount(a.PostgresUser)
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(a.Data)
	if err != nil {
		return err
	}
	if err := account.CheckReach(filepath.Join(dir, "data")); err != nil {
		return err
	}
	role := catalog.RoleReplica
	if a.Role == catalog.RoleRdonly.String() {
		role = catalog.RoleRdonly
	}
	archive, err := openArchive(p.cfg.Backup, account, dir)
	if err != nil {
		return err
	}
	one, err := agent.New(agent.Config{
		ServerTLS: agent.ServerTLS(a.TLS), Archive: archive, Cluster: p.cfg.Cluster, Node: p.cfg.ID, Shard: a.Shard, Role: role, Cell: p.cfg.Cell, Dir: dir, Host: a.Host,
		Port: a.Port, Installation: installation, Account: account, Listen: p.cfg.RPC.Listen, URL: p.cfg.RPC.URL,
		TLS: p.rpc.server, Token: p.rpc.token, Store: p.store, StopPostgres: p.flags.Bool("stop-postgres"),
		Version: version(), Log: p.log, Progress: func(step string) { p.log.Info("progress", "step", step) },
	})
	if err != nil {
		return err
	}
	return p.runPart(ctx, "agent "+p.cfg.ID, one.Run)
}

// runAdmin is `neki admin`.
func runAdmin(ctx context.Context, p *process) error {
	superuser, err := superuserOf(p.flags)
	if err != nil {
		return err
	}
	values, err := p.cfg.Values()
	if err != nil {
		return err
	}
	policy, err := backupPolicy(p.cfg.Backup)
	if err != nil {
		return err
	}
	one, err := admin.New(admin.Config{
		Backups: policy, ReplaceAfter: replaceAfter(values), Cluster: p.cfg.Cluster, ID: p.cfg.ID, Store: p.store, HTTP: p.rpc.client, Token: p.rpc.token,
		Listen: p.cfg.RPC.Listen, URL: p.cfg.RPC.URL, TLS: p.rpc.server, Superuser: superuser, Stubs: stubSchema(),
		Poll: values.DiscoveryPoll, RecoveryPoll: values.RecoveryPoll, AcceptableLag: values.AcceptableLag, SwitchoverTimeout: values.SwitchoverTimeout,
		Log: p.log, Progress: func(step string) { p.log.Info("progress", "step", step) },
	})
	if err != nil {
		return err
	}
	return p.runPart(ctx, "admin "+p.cfg.ID, one.Run)
}

func superuserOf(c *cli.Context) (admin.Login, error) {
	name, file := c.String("superuser"), c.String("superuser-password-file")
	if (name == "") != (file == "") {
		return admin.Login{}, usagef("--superuser and --superuser-password-file belong together")
	}
	if name == "" {
		return admin.Login{}, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return admin.Login{}, fmt.Errorf("password of the superuser: %w", err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return admin.Login{}, usagef("%s holds no password", file)
	}
	return admin.Login{Name: name, Password: password}, nil
}

// runPart runs an agent or an admin with the process's HTTP pages.
func (p *process) runPart(ctx context.Context, title string, run func(context.Context) error) error {
	all := newParts()
	list := []*part{all.start(title, run)}
	if p.http != nil {
		h := debughttp.Handler(debughttp.Config{Title: "neki " + title, Metrics: debughttp.NewRegistry(), Log: p.log})
		list = append(list, all.start("http", func(ctx context.Context) error { return debughttp.Serve(ctx, p.http, h, p.log) }))
	}
	if p.debug != nil {
		list = append(list, all.start("debug", func(ctx context.Context) error {
			return debughttp.Serve(ctx, p.debug, debughttp.Profiles(), p.log)
		}))
	}
	return runUntil(ctx, all, func() error { return stopAll(list) })
}
