package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"neki/regress/plainpg"
)

// database is a PostgreSQL, or what looks like one, and how to log in.
type database struct {
	host, user, password, name string
	port                       int
	tls                        string // sslmode; "" = disable
	rootCert                   string
}

func (d database) config() (*pgconn.Config, error) {
	mode := d.tls
	if mode == "" {
		mode = "disable"
	}
	return pgconn.ParseConfig(fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s sslmode=%s sslrootcert='%s' connect_timeout=10",
		d.host, d.port, d.user, d.password, d.name, mode, d.rootCert))
}

func (d database) connect(ctx context.Context) (*pgconn.PgConn, error) {
	config, err := d.config()
	if err != nil {
		return nil, err
	}
	return pgconn.ConnectConfig(ctx, config)
}

func (d database) exec(ctx context.Context, sql string) error {
	conn, err := d.connect(ctx)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql).ReadAll()
	return errors.Join(err, conn.Close(ctx))
}

// row gives the first row of a query, as text.
func (d database) row(ctx context.Context, sql string) ([]string, error) {
	conn, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	result := conn.ExecParams(ctx, sql, nil, nil, nil, nil).Read()
	if err := errors.Join(result.Err, conn.Close(ctx)); err != nil {
		return nil, err
	}
	if len(result.Rows) == 0 {
		return nil, fmt.Errorf("no row: %s", sql)
	}
	var values []string
	for _, v := range result.Rows[0] {
		values = append(values, string(v))
	}
	return values, nil
}

// target is a proxy that is measured, in the ways it lets clients in. A nil way does not exist there.
type target struct {
	name     string
	main     database // for transactions, memory and the large result
	pid      int
	idleCPU  float64 // CPU seconds per second that the process uses when no client does anything
	trust    *entrance
	scram    *entrance
	tls      *entrance
	prepared bool // named statements work in transaction mode
}

// at gives the way in of clients that send statements.
func (t *target) at(tls bool) *entrance {
	if tls {
		return t.tls
	}
	return &entrance{t.main, t.pid}
}

// entrance is one way into a target; PgBouncer needs a process for each.
type entrance struct {
	database database
	pid      int
}

// bed is everything that runs during a benchmark.
type bed struct {
	dir       string
	direct    database // Postgres itself
	bin       string
	bouncer   *target
	candidate *target
	versions  string
	plain     *plainpg.Server
	children  []*child
}

func (b *bed) stop() error {
	var errs []error
	for i := len(b.children) - 1; i >= 0; i-- {
		errs = append(errs, b.children[i].stop())
	}
	if b.plain != nil {
		errs = append(errs, b.plain.Stop())
	}
	if b.dir != "" {
		errs = append(errs, os.RemoveAll(b.dir))
	}
	return errors.Join(errs...)
}

func (b *bed) start(ctx context.Context, o options) error {
	var err error
	if b.bin, err = plainpg.Bin(); err != nil {
		return err
	}
	if err := b.makeDir(); err != nil {
		return err
	}
	if o.candidate == "pgbouncer" {
		err = b.startPlain(ctx)
	} else {
		err = b.startNeki(ctx, o)
	}
	if err != nil {
		return err
	}
	if err := b.fill(ctx, o); err != nil {
		return err
	}
	if b.bouncer, err = b.startBouncer(ctx, "PgBouncer", o.pool); err != nil {
		return err
	}
	if o.candidate == "pgbouncer" {
		if b.candidate, err = b.startBouncer(ctx, "PgBouncer again", o.pool); err != nil {
			return err
		}
	}
	if b.candidate.idleCPU, err = idleCPU(ctx, b.candidate.pid); err != nil {
		return err
	}
	b.versions, err = b.describe(ctx)
	return err
}

// makeDir makes the directory of the bed, which Postgres and PgBouncer use as another user.
func (b *bed) makeDir() (err error) {
	if b.dir, err = os.MkdirTemp("", "neki-bench-"); err != nil {
		return err
	}
	return os.Chmod(b.dir, 0o777)
}

// idleCPU measures what a process uses while no client does anything: `neki dev` watches its Postgres meanwhile.
func idleCPU(ctx context.Context, pid int) (float64, error) {
	const watch = 5 * time.Second
	before, err := cpuOf(pid)
	if err != nil {
		return 0, err
	}
	select {
	case <-time.After(watch):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	after, err := cpuOf(pid)
	return (after - before).Seconds() / watch.Seconds(), err
}

func (b *bed) startPlain(ctx context.Context) error {
	server, err := plainpg.Start(ctx, []string{"max_connections = 200", "shared_buffers = '256MB'"}, nil)
	if err != nil {
		return err
	}
	b.plain = server
	b.direct = database{host: "127.0.0.1", port: server.Port, user: plainpg.Superuser, password: plainpg.Password, name: "postgres"}
	return nil
}

// startNeki starts a cluster of one shard; its primary is the Postgres that PgBouncer serves too.
func (b *bed) startNeki(ctx context.Context, o options) error {
	d, err := b.launchDev(ctx, o, "--shards", "1", "--replicas", "2")
	if err != nil {
		return err
	}
	if o.config == "" {
		o.config = filepath.Join(b.dir, "neki", "gateway.yaml")
	}
	gateway, err := b.startGateway(ctx, o, &d)
	if err != nil {
		return err
	}
	plain, secure := d, d
	plain.tls = "disable"
	secure.tls, secure.rootCert = "require", "" // as PgBouncer's: the clients' checks are not what is measured
	b.candidate = &target{
		name: "neki", main: plain, pid: gateway.pid(), prepared: true,
		scram: &entrance{plain, gateway.pid()}, tls: &entrance{secure, gateway.pid()},
	}
	if b.candidate.trust, err = b.startTrusting(ctx, o, plain); err != nil {
		return err
	}
	if err := setPool(ctx, plain, o.pool); err != nil {
		return err
	}
	b.direct, err = primaryOf(ctx, plain)
	return err
}

// startTrusting starts one more gateway, which asks clients for nothing and logs in to Postgres by a file of passwords.
func (b *bed) startTrusting(ctx context.Context, o options, d database) (*entrance, error) {
	text, err := os.ReadFile(o.config)
	if err != nil {
		return nil, err
	}
	port, err := plainpg.FreePort()
	if err != nil {
		return nil, err
	}
	passwords, config := filepath.Join(b.dir, "passwords"), filepath.Join(b.dir, "trust.yaml")
	var lines strings.Builder
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "listen:"):
			line = fmt.Sprintf("listen: [\"127.0.0.1:%d\"]\n", port)
		case strings.HasPrefix(line, "id:"):
			line = "id: trusting\n"
		}
		lines.WriteString(line)
	}
	lines.WriteString("\nauth:\n  rules: [host all all 127.0.0.1/32 trust]\n  passwords-file: " + passwords + "\n")
	if err := errors.Join(
		os.WriteFile(passwords, fmt.Appendf(nil, "%q %q\n", d.user, d.password), 0o600),
		os.WriteFile(config, []byte(lines.String()), 0o644)); err != nil {
		return nil, err
	}
	o.config = config
	gateway, err := b.startGateway(ctx, o, &d)
	if err != nil {
		return nil, err
	}
	return &entrance{d, gateway.pid()}, nil
}

// launchDev starts `neki dev` in the bed's directory and gives the way in.
func (b *bed) launchDev(ctx context.Context, o options, args ...string) (d database, err error) {
	listen, err := plainpg.FreePort()
	if err != nil {
		return d, err
	}
	http, err := plainpg.FreePort()
	if err != nil {
		return d, err
	}
	data := filepath.Join(b.dir, "neki")
	dev, err := launch(b.dir, false, o.neki, append([]string{
		"dev", "--data", data,
		"--listen", "127.0.0.1:" + strconv.Itoa(listen), "--http", "127.0.0.1:" + strconv.Itoa(http),
	}, args...)...)
	if err != nil {
		return d, err
	}
	b.children = append(b.children, dev)
	err = dev.await(ctx, 2*time.Minute, func() (err error) {
		d, err = readDevEnv(filepath.Join(data, "dev.env"))
		return err
	})
	return d, err
}

// startGateway starts `neki gateway` apart from the cluster's own process, so that only the gateway is measured.
func (b *bed) startGateway(ctx context.Context, o options, d *database) (*child, error) {
	gateway, err := launch(b.dir, false, o.neki, "gateway", "--config", o.config)
	if err != nil {
		return nil, err
	}
	b.children = append(b.children, gateway)
	text, err := os.ReadFile(o.config)
	if err != nil {
		return nil, err
	}
	if d.port, err = listenPort(string(text)); err != nil {
		return nil, err
	}
	return gateway, gateway.await(ctx, time.Minute, func() error { return d.exec(ctx, "SELECT 1") })
}

// listenPort finds the port of `listen: [host:port]` in a neki.yaml.
func listenPort(config string) (int, error) {
	for line := range strings.Lines(config) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "listen:"); ok {
			value = strings.Trim(value, " []\"'\n")
			return strconv.Atoi(value[strings.LastIndex(value, ":")+1:])
		}
	}
	return 0, errors.New("the gateway's config has no line `listen: [host:port]`")
}

func setPool(ctx context.Context, d database, pool int) error {
	return d.exec(ctx, fmt.Sprintf("CALL neki.set_parameter(scope => 'gateway', name => 'pool-capacity', value => '%d')", pool))
}

// primaryOf asks neki where the shard's primary listens.
func primaryOf(ctx context.Context, d database) (database, error) {
	row, err := d.row(ctx, "SELECT n.host, n.port FROM neki.nodes n JOIN neki.shards s ON s.primary_node = n.node")
	if err != nil {
		return d, err
	}
	direct := d
	direct.host = row[0]
	direct.port, err = strconv.Atoi(row[1])
	return direct, err
}

// readDevEnv reads the dev.env that `neki dev` writes when it is ready.
func readDevEnv(path string) (database, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return database{}, err
	}
	env := map[string]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "export ")
		if name, value, ok := strings.Cut(line, "="); ok {
			env[name] = strings.Trim(value, `'"`)
		}
	}
	port, err := strconv.Atoi(env["PGPORT"])
	return database{
		host: env["PGHOST"], port: port, user: env["PGUSER"], password: env["PGPASSWORD"], name: env["PGDATABASE"],
		rootCert: env["PGSSLROOTCERT"],
	}, err
}

// fill makes what the runs read: pgbench's tables and a table of 100 MB.
func (b *bed) fill(ctx context.Context, o options) error {
	cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "pgbench"), "-i", "-q", "-s", strconv.Itoa(o.scale),
		"-h", b.direct.host, "-p", strconv.Itoa(b.direct.port), "-U", b.direct.user, b.direct.name)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+b.direct.password)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pgbench -i: %w: %s", err, out)
	}
	return errors.Join(
		b.direct.exec(ctx, fmt.Sprintf("CREATE TABLE bench_large AS SELECT repeat(chr(97 + i %% 26), 1000) AS v FROM generate_series(1, %d) i", largeRows)),
		b.direct.exec(ctx, "VACUUM ANALYZE bench_large"))
}

func (b *bed) describe(ctx context.Context) (string, error) {
	version, err := b.direct.row(ctx, "SHOW server_version")
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, bouncerPath(), "--version").Output()
	if err != nil {
		return "", err
	}
	bouncer, _, _ := strings.Cut(string(out), "\n")
	return fmt.Sprintf("PostgreSQL %s, %s", version[0], bouncer), nil
}

func bouncerPath() string {
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return path
	}
	return "/usr/sbin/pgbouncer"
}

// startBouncer starts a PgBouncer for each way of logging in.
func (b *bed) startBouncer(ctx context.Context, name string, pool int) (*target, error) {
	verifier, err := b.verifier(ctx)
	if err != nil {
		return nil, err
	}
	t := &target{name: name}
	certificate, err := b.certificate(ctx)
	if err != nil {
		return nil, err
	}
	ways := []struct {
		into           **entrance
		auth, password string
		more           []string
	}{
		{&t.trust, "trust", b.direct.password, nil},
		{&t.scram, "scram-sha-256", verifier, nil},
		{&t.tls, "scram-sha-256", verifier, certificate},
	}
	for i, way := range ways {
		dir := filepath.Join(b.dir, fmt.Sprint(strings.ReplaceAll(name, " ", "-"), i))
		e, err := b.bouncerProcess(ctx, dir, pool, way.auth, way.password, way.more)
		if err != nil {
			return nil, err
		}
		if way.more != nil {
			e.database.tls = "require"
		}
		*way.into = e
	}
	t.main, t.pid = t.trust.database, t.trust.pid
	return t, nil
}

func (b *bed) bouncerProcess(ctx context.Context, dir string, pool int, auth, password string, more []string) (*entrance, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	port, err := plainpg.FreePort()
	if err != nil {
		return nil, err
	}
	users, ini := filepath.Join(dir, "users.txt"), filepath.Join(dir, "pgbouncer.ini")
	conf := append([]string{
		"[databases]",
		fmt.Sprintf("%s = host=%s port=%d", b.direct.name, b.direct.host, b.direct.port),
		"[pgbouncer]", "listen_addr = 127.0.0.1", "listen_port = " + strconv.Itoa(port), "unix_socket_dir =",
		"auth_type = " + auth, "auth_file = " + users, "pool_mode = transaction",
		"default_pool_size = " + strconv.Itoa(pool), "max_client_conn = 20000", "log_connections = 0", "log_disconnections = 0",
		"ignore_startup_parameters = extra_float_digits",
	}, more...)
	err = errors.Join(
		os.WriteFile(users, []byte(fmt.Sprintf("%q %q\n", b.direct.user, password)), 0o644),
		os.WriteFile(ini, []byte(strings.Join(conf, "\n")+"\n"), 0o644))
	if err != nil {
		return nil, err
	}
	process, err := launch(dir, true, bouncerPath(), ini)
	if err != nil {
		return nil, err
	}
	b.children = append(b.children, process)
	e := &entrance{database: b.direct, pid: process.pid()}
	e.database.host, e.database.port, e.database.tls, e.database.rootCert = "127.0.0.1", port, "", ""
	if more != nil {
		e.database.tls = "require"
	}
	return e, process.await(ctx, 10*time.Second, func() error { return e.database.exec(ctx, "SELECT 1") })
}

// verifier is the role's SCRAM verifier, so that PgBouncer need not derive it anew at every login.
func (b *bed) verifier(ctx context.Context) (string, error) {
	row, err := b.direct.row(ctx, "SELECT rolpassword FROM pg_authid WHERE rolname = current_user")
	if err != nil {
		return "", err
	}
	return row[0], nil
}

// certificate makes a self-signed one and gives PgBouncer's lines for it.
func (b *bed) certificate(ctx context.Context) ([]string, error) {
	key, cert := filepath.Join(b.dir, "bench.key"), filepath.Join(b.dir, "bench.crt")
	if _, err := os.Stat(key); err != nil {
		out, err := exec.CommandContext(ctx, "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
			"-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", cert).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("openssl: %w: %s", err, bytes.TrimSpace(out))
		}
		if err := os.Chmod(key, 0o644); err != nil { // read by another user; it guards nothing
			return nil, err
		}
	}
	return []string{"client_tls_sslmode = require", "client_tls_key_file = " + key, "client_tls_cert_file = " + cert}, nil
}
