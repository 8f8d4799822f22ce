// Package testpg gives tests real PostgreSQL servers: one by Start, or a primary with streaming replicas by Cluster.
//
// A server is a copy of a template that initdb makes once per machine and version, so it is up in about a fifth of a
// second. It listens on a free TCP port of 127.0.0.1 (SCRAM; the superuser is postgres with Password) and on a Unix
// socket (trust), doesn't flush to disk, and is killed and removed when its test ends. Directories of test processes
// that were killed are swept by the next Start. Tests are skipped only where there are no server binaries.
//
// A Server's methods are safe for concurrent use, but those that fail the test (Conn, Exec, Query...) must be called
// on the test's own goroutine; Connect returns its error instead.
package testpg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/cluster/pgproc"
)

// Superuser and Password let in over TCP.
const (
	Superuser = pgproc.Superuser
	Password  = "secret"
)

// patience bounds everything that a helper waits for.
const patience = 30 * time.Second

// Option changes how servers are started.
type Option func(*options)

type options struct {
	settings pgproc.Settings
	hba      []pgproc.HBARule
}

// Setting sets a parameter of postgresql.conf.
func Setting(name, value string) Option {
	return func(o *options) { o.settings[name] = value }
}

// HBA replaces the TCP rules of pg_hba.conf (the superuser always gets in over the socket).
func HBA(rules ...string) Option {
	return func(o *options) {
		o.hba = nil
		for _, r := range rules {
			o.hba = append(o.hba, pgproc.HBARule(r))
		}
	}
}

func collect(opts []Option) *options {
	o := &options{
		settings: pgproc.DevSettings().With(pgproc.Settings{
			"fsync": "off", "synchronous_standby_names": "", "shared_buffers": "16MB", "wal_keep_size": "1GB",
			"max_slot_wal_keep_size": "-1", "autovacuum_naptime": "1min", "max_connections": "60",
		}),
		hba: []pgproc.HBARule{
			"host replication " + Superuser + " 127.0.0.1/32 scram-sha-256", "host all all 127.0.0.1/32 scram-sha-256",
		},
	}
	for _, f := range opts {
		f(o)
	}
	return o
}

// Server is one running server.
type Server struct {
	Name string // "primary", "replica1", ...; replicas report it as application_name

	tb       testing.TB
	instance *pgproc.Instance
	hba      []pgproc.HBARule

	mu       sync.Mutex
	settings pgproc.Settings
	upstream string // primary_conninfo while replication is on; "" on a primary
}

// Group is a primary and its replicas.
type Group struct {
	Primary  *Server
	Replicas []*Server
}

// Start starts one primary.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	return Cluster(tb, 0, opts...).Primary
}

// Cluster starts a primary and replicas that stream from it through physical slots, asynchronously unless a Setting
// says otherwise. It returns when all stream.
func Cluster(tb testing.TB, replicas int, opts ...Option) *Group {
	tb.Helper()
	tpl := template(tb)
	o := collect(opts)
	g := &Group{Primary: launch(tb, tpl, "primary", o, nil)}
	for i := range replicas {
		name := "replica" + strconv.Itoa(i+1)
		g.Primary.Exec("SELECT pg_create_physical_replication_slot($1, true)", name)
		g.Replicas = append(g.Replicas, launch(tb, tpl, name, o, g.Primary))
	}
	for _, r := range g.Replicas {
		r.waitStreaming()
	}
	return g
}

// WaitCaughtUp waits until every replica has replayed all that the primary has written so far.
func (g *Group) WaitCaughtUp() {
	g.Primary.tb.Helper()
	lsn := g.Primary.Text("SELECT pg_current_wal_lsn()")
	for _, r := range g.Replicas {
		r.Eventually("replay up to "+lsn, "SELECT pg_last_wal_replay_lsn() >= '"+lsn+"'::pg_lsn")
	}
}

// launch copies the template and starts a server from it. A replica can be made so, too: the template was shut down
// cleanly and the primary still has all WAL since then.
func launch(tb testing.TB, tpl *base, name string, o *options, primary *Server) *Server {
	tb.Helper()
	s := &Server{Name: name, tb: tb, settings: maps.Clone(o.settings), hba: o.hba}
	s.settings["cluster_name"] = name
	if primary != nil {
		s.upstream = primary.replicationDSN(name)
		s.settings["primary_slot_name"] = name
	}
	var err error
	for range 5 { // another process may take the port between our look and the server's
		if err = s.try(tpl); err == nil {
			return s
		}
		if !strings.Contains(err.Error()+s.instance.LogTail(20), "Address already in use") {
			break
		}
	}
	tb.Fatalf("testpg: start %s: %v\n%s", name, err, s.instance.LogTail(20))
	return nil
}

func (s *Server) try(tpl *base) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	dir, err := newDir()
	if err != nil {
		return err
	}
	s.instance, err = pgproc.New(pgproc.Config{Installation: tpl.installation, Account: tpl.account, Dir: dir, Port: port})
	if err != nil {
		return err
	}
	in := s.instance
	s.tb.Cleanup(func() {
		_ = in.Kill()
		in.Close()
		_ = os.RemoveAll(dir)
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := in.CopyData(ctx, tpl.dataDir); err != nil {
		return err
	}
	hba := append([]pgproc.HBARule{"local all all trust", "local replication all trust"}, s.hba...)
	if _, err := in.WriteHBA(hba); err != nil {
		return err
	}
	if err := s.writeSettings(); err != nil {
		return err
	}
	if s.upstream != "" {
		if err := in.SetStandby(true); err != nil {
			return err
		}
	}
	return in.Start(ctx)
}

func (s *Server) writeSettings() error {
	settings := maps.Clone(s.settings)
	if _, set := settings["primary_conninfo"]; !set {
		settings["primary_conninfo"] = s.upstream
	}
	_, err := s.instance.WriteSettings(settings)
	return err
}

// Host and Port are where it listens.
func (s *Server) Host() string { return s.instance.Host() }

// Port is the TCP port.
func (s *Server) Port() int { return s.instance.Port() }

// Address is host:port.
func (s *Server) Address() string { return s.instance.Address() }

// SocketDir is the directory of the Unix socket.
func (s *Server) SocketDir() string { return s.instance.SocketDir() }

// BinDir is where psql and pgbench of the same version may be.
func (s *Server) BinDir() string { return s.instance.Installation().BinDir }

// Major is the server's major version.
func (s *Server) Major() int { return s.instance.Installation().Major }

// PID is the postmaster's process id, 0 when it is not running.
func (s *Server) PID() int { return s.instance.Running() }

// DSN is a URL for the superuser over TCP, to database postgres.
func (s *Server) DSN() string { return s.DSNFor(Superuser, Password, "postgres") }

// DSNFor is a URL for any role and database over TCP.
func (s *Server) DSNFor(user, password, database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(user, password), Host: s.Address(), Path: "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// SocketDSN is a key/value connection string for the superuser over the Unix socket.
func (s *Server) SocketDSN() string { return s.instance.LocalDSN("postgres") }

func (s *Server) replicationDSN(application string) string {
	return fmt.Sprintf("host=%s port=%d user=%s password=%s application_name=%s connect_timeout=2 sslmode=disable",
		s.Host(), s.Port(), Superuser, Password, application)
}

// Connect opens a superuser connection, which the caller closes.
func (s *Server) Connect(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, s.DSN()) }

// Conn opens a superuser connection that is closed when the test ends.
func (s *Server) Conn(ctx context.Context) *pgx.Conn {
	s.tb.Helper()
	c, err := s.Connect(ctx)
	if err != nil {
		s.tb.Fatalf("testpg: connect to %s: %v", s.Name, err)
	}
	s.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx) // the server may be gone
	})
	return c
}

// Exec runs one statement over the socket.
func (s *Server) Exec(sql string, args ...any) {
	s.tb.Helper()
	if err := s.once(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql, args...)
		return err
	}); err != nil {
		s.tb.Fatalf("testpg: %s: %s: %v", s.Name, sql, err)
	}
}

// Text runs a query over the socket and gives the one value as text, "" for NULL.
func (s *Server) Text(sql string, args ...any) string {
	s.tb.Helper()
	v, err := s.text(sql, args...)
	if err != nil {
		s.tb.Fatalf("testpg: %s: %s: %v", s.Name, sql, err)
	}
	return v
}

func (s *Server) text(sql string, args ...any) (string, error) {
	var v *string
	err := s.once(func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT ("+sql+")::text", args...).Scan(&v)
	})
	if err != nil || v == nil {
		return "", err
	}
	return *v, nil
}

// once opens a connection over the socket for one call.
func (s *Server) once(do func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, s.SocketDSN())
	if err != nil {
		return err
	}
	defer c.Close(ctx) //nolint:errcheck // the statement's error counts
	return do(ctx, c)
}

// Eventually waits until a query that gives one boolean gives true; what is for the failure's text.
func (s *Server) Eventually(what, sql string) {
	s.tb.Helper()
	deadline := time.Now().Add(patience)
	var last string
	var err error
	for time.Now().Before(deadline) {
		if last, err = s.text(sql); err == nil && last == "true" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.tb.Fatalf("testpg: %s: no %s within %v: got %q, %v\n%s", s.Name, what, patience, last, err, s.instance.LogTail(10))
}

func (s *Server) waitStreaming() {
	s.tb.Helper()
	s.Eventually("streaming", "SELECT count(*) = 1 FROM pg_stat_wal_receiver WHERE status = 'streaming'")
}

// Set changes a parameter and waits until new sessions of the server have read it.
func (s *Server) Set(name, value string) {
	s.tb.Helper()
	before := s.Text("SELECT extract(epoch FROM pg_conf_load_time())")
	if err := s.change(func() { s.settings[name] = value }); err != nil {
		s.tb.Fatalf("testpg: %s: set %s: %v", s.Name, name, err)
	}
	s.Eventually("reload", "SELECT extract(epoch FROM pg_conf_load_time()) > "+before)
}

func (s *Server) change(how func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	how()
	if err := s.writeSettings(); err != nil {
		return err
	}
	return s.instance.Reload()
}

// PauseReplay lets a replica receive without replaying.
func (s *Server) PauseReplay() {
	s.tb.Helper()
	s.Exec("SELECT pg_wal_replay_pause()")
	s.Eventually("pause of replay", "SELECT pg_get_wal_replay_pause_state() = 'paused'")
}

// ResumeReplay undoes PauseReplay.
func (s *Server) ResumeReplay() {
	s.tb.Helper()
	s.Exec("SELECT pg_wal_replay_resume()")
}

// StopWALReceiver cuts a replica from its primary.
func (s *Server) StopWALReceiver() {
	s.tb.Helper()
	if err := s.change(func() { s.settings["primary_conninfo"] = "" }); err != nil {
		s.tb.Fatalf("testpg: %s: cut: %v", s.Name, err)
	}
	s.Eventually("end of the walreceiver", "SELECT count(*) = 0 FROM pg_stat_wal_receiver")
}

// StartWALReceiver undoes StopWALReceiver and waits until the replica streams.
func (s *Server) StartWALReceiver() {
	s.tb.Helper()
	if err := s.change(func() { delete(s.settings, "primary_conninfo") }); err != nil {
		s.tb.Fatalf("testpg: %s: reconnect: %v", s.Name, err)
	}
	s.waitStreaming()
}

// Stop stops the server (fast); Restart starts it again at the same place.
func (s *Server) Stop() {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.instance.Stop(ctx, pgproc.StopFast); err != nil {
		s.tb.Fatalf("testpg: stop %s: %v", s.Name, err)
	}
}

// Kill kills all of the server's processes.
func (s *Server) Kill() {
	s.tb.Helper()
	if err := s.instance.Kill(); err != nil {
		s.tb.Fatalf("testpg: kill %s: %v", s.Name, err)
	}
}

// Restart starts a stopped or killed server again, and stops a running one first.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.instance.Start(ctx); err != nil {
		s.tb.Fatalf("testpg: restart %s: %v", s.Name, err)
	}
}

// Promote makes a replica a primary.
func (s *Server) Promote() {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.instance.Promote(ctx); err != nil {
		s.tb.Fatalf("testpg: promote %s: %v", s.Name, err)
	}
}

// Log is the end of the server's log.
func (s *Server) Log(lines int) string { return s.instance.LogTail(lines) }

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close() //nolint:errcheck // only its number was wanted
	return l.Addr().(*net.TCPAddr).Port, nil
}

const dirPrefix = "nekitest-"

// newDir makes a short directory (a socket's path has 107 bytes at most) that the servers' account can enter, named
// after this process so that a later one can tell that it was abandoned.
func newDir() (string, error) {
	dir, err := os.MkdirTemp("", dirPrefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

// sweep removes the servers and directories of test processes that are gone.
func sweep(inst pgproc.Installation, account pgproc.Account) {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*")) // the pattern is well formed
	for _, dir := range dirs {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), dirPrefix), "-")
		if _, err := strconv.Atoi(owner); err != nil {
			continue
		}
		if _, err := os.Stat("/proc/" + owner); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		p, err := pgproc.New(pgproc.Config{Installation: inst, Account: account, Dir: dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			continue
		}
		_ = p.Kill()
		p.Close()
		_ = os.RemoveAll(dir)
	}
}
