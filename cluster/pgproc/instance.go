package pgproc

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Superuser is the bootstrap superuser's name in every data directory that Init makes.
const Superuser = "postgres"

// SettingsFile is the configuration file, within the data directory, that belongs to neki and is included last.
const SettingsFile = "neki.conf"

// maxSocketPath is the longest path of a Unix socket that Linux takes.
const maxSocketPath = 107

// Config says where a server lives and what runs it.
type Config struct {
	Installation Installation
	Account      Account
	Dir          string // holds the rest: data, run, log; made when missing
	Host         string // listen_addresses; "" means 127.0.0.1
	Port         int
	LogMaxBytes  int64        // the log file is rotated beyond this; 0 means 16 MiB
	Log          *slog.Logger // nil discards
}

// Instance is one server at a fixed place. The zero value is not usable; see New.
type Instance struct {
	cfg       Config
	log       *slog.Logger
	socketDir string

	mu      sync.Mutex // held by operations that start, stop or rewrite
	process atomic.Pointer[process]
}

// New describes a server; it touches nothing yet.
func New(cfg Config) (*Instance, error) {
	abs, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, err
	}
	cfg.Dir = abs
	if cfg.Host == "" {
		cfg.Host = "127.0.0.1"
	}
	if cfg.LogMaxBytes == 0 {
		cfg.LogMaxBytes = 16 << 20
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Instance{cfg: cfg, log: log, socketDir: socketDirFor(abs, cfg.Port)}, nil
}

// socketDirFor is dir/run, or a short name under the temporary directory when the socket's path would be too long.
func socketDirFor(dir string, port int) string {
	run := filepath.Join(dir, "run")
	if len(filepath.Join(run, ".s.PGSQL."+strconv.Itoa(port))) <= maxSocketPath {
		return run
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(dir)) // a hash never fails
	return filepath.Join(os.TempDir(), fmt.Sprintf("neki-%016x", h.Sum64()))
}

// DataDir is PGDATA.
func (p *Instance) DataDir() string { return filepath.Join(p.cfg.Dir, "data") }

// SocketDir is the directory of the Unix socket; only the server's account (and root) can enter it.
func (p *Instance) SocketDir() string { return p.socketDir }

// LogFile is where the server's standard error goes.
func (p *Instance) LogFile() string { return filepath.Join(p.cfg.Dir, "postgres.log") }

// Dir is the directory that holds data, sockets and log.
func (p *Instance) Dir() string { return p.cfg.Dir }

// Port is the TCP port (and the number in the socket's name).
func (p *Instance) Port() int { return p.cfg.Port }

// Host is the first address that it listens on.
func (p *Instance) Host() string {
	host, _, _ := strings.Cut(p.cfg.Host, ",")
	return strings.TrimSpace(host)
}

// Address is host:port for TCP clients.
func (p *Instance) Address() string { return net.JoinHostPort(p.Host(), strconv.Itoa(p.cfg.Port)) }

// Installation gives the binaries in use.
func (p *Instance) Installation() Installation { return p.cfg.Installation }

// Account gives the operating-system user of the server.
func (p *Instance) Account() Account { return p.cfg.Account }

// LocalDSN is a key/value connection string over the Unix socket as the bootstrap superuser, who is trusted there.
func (p *Instance) LocalDSN(database string) string {
	return fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable",
		quoteConninfo(p.socketDir), p.cfg.Port, Superuser, quoteConninfo(database))
}

// HasData reports whether the data directory holds a database cluster.
func (p *Instance) HasData() bool {
	_, err := os.Stat(filepath.Join(p.DataDir(), "PG_VERSION"))
	return err == nil
}

// Prepare makes the directories around the data directory.
func (p *Instance) Prepare() error {
	if err := os.MkdirAll(p.cfg.Dir, 0o755); err != nil {
		return err
	}
	if err := p.cfg.Account.CheckReach(p.DataDir()); err != nil {
		return err
	}
	return p.cfg.Account.MakeDir(p.socketDir, 0o700)
}

// command prepares a server program to run under the account, killed at the end of ctx. Messages are in English, so
// that they can be shown and searched alike everywhere.
func (p *Instance) command(ctx context.Context, tool string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.cfg.Installation.Tool(tool), args...)
	cmd.SysProcAttr = p.cfg.Account.sysProcAttr()
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + p.cfg.Installation.BinDir + ":/usr/local/bin:/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run runs a server program to its end; an error carries the end of its output.
func (p *Instance) run(ctx context.Context, tool string, args ...string) (string, error) {
	return runCommand(ctx, p.command(ctx, tool, args...))
}

// runIn is run in a working directory, by which a program that outlived its supervisor is found again.
func (p *Instance) runIn(ctx context.Context, dir, tool string, args ...string) (string, error) {
	cmd := p.command(ctx, tool, args...)
	cmd.Dir = dir
	return runCommand(ctx, cmd)
}

func runCommand(ctx context.Context, cmd *exec.Cmd) (string, error) {
	out, err := cmd.CombinedOutput()
	if err == nil {
		return string(out), nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return string(out), fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, tail(string(out), 600))
}

// tail gives the end of s, cut at a line where it can be.
func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) <= n {
		return s
	}
	s = s[len(s)-n:]
	if _, rest, ok := strings.Cut(s, "\n"); ok {
		s = rest
	}
	return "..." + s
}

// quoteConninfo quotes a value of a libpq connection string.
func quoteConninfo(v string) string {
	if v != "" && !strings.ContainsAny(v, ` '\`+"\t\n") {
		return v
	}
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(v) + "'"
}
