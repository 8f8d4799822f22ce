package regress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/regress/plainpg"
)

const (
	startDeadline = 2 * time.Minute
	stopDeadline  = time.Minute
)

// devCluster is a running `neki dev`: its environment as dev.env gives it, and how to end it.
type devCluster struct {
	env map[string]string
	cmd *exec.Cmd // nil when somebody else runs it
	dir string

	data string   // its data directory; default dir/data
	args []string // of neki dev; default those of theCluster

	profiles string // URL of its pprof pages; "" when somebody else runs it
}

var theCluster = sync.OnceValues(startCluster) // all tests of the package share one

// started is set when theCluster started a process that TestMain must end.
var started *devCluster

func TestMain(m *testing.M) {
	code := m.Run()
	if started != nil {
		if err := started.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the cluster:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// cluster gives the shared cluster, started by the first test that asks.
func cluster(t *testing.T) *devCluster {
	t.Helper()
	if os.Getenv("NEKI_BIN") == "" && os.Getenv("NEKI_DEV_ENV") == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("neither NEKI_BIN nor NEKI_DEV_ENV is set: make regress sets them")
		}
		t.Skip("needs NEKI_BIN or NEKI_DEV_ENV: run make regress")
	}
	c, err := theCluster()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func startCluster() (*devCluster, error) {
	if path := os.Getenv("NEKI_DEV_ENV"); path != "" {
		env, err := readEnv(path)
		return &devCluster{env: env}, err
	}
	c, err := launch()
	started = c
	return c, err
}

// launch starts a cluster of its own in a new directory.
func launch(args ...string) (*devCluster, error) {
	bin, err := nekiProgram()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "neki-regress-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // Postgres runs as another user below it
		return nil, err
	}
	c := &devCluster{dir: dir, args: args}
	if err := c.start(bin); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

func nekiProgram() (string, error) {
	bin := os.Getenv("NEKI_BIN")
	if filepath.IsAbs(bin) {
		return bin, nil
	}
	return filepath.Abs(filepath.Join("..", bin))
}

func (c *devCluster) start(bin string) error {
	listen, err := plainpg.FreePort()
	if err != nil {
		return err
	}
	http, err := plainpg.FreePort()
	if err != nil {
		return err
	}
	debug, err := plainpg.FreePort()
	if err != nil {
		return err
	}
	c.profiles = "http://127.0.0.1:" + strconv.Itoa(debug) + "/debug/pprof"
	log, err := os.Create(filepath.Join(c.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	if c.data == "" {
		c.data = filepath.Join(c.dir, "data")
	}
	args := c.args
	if args == nil {
		args = []string{"--shards", "2", "--replicas", "2", "--rdonly", "1", "--cells", "az-a,az-b,az-c"}
	}
	c.cmd = exec.Command(bin, append([]string{
		"dev", "--data", c.data, "--listen", "127.0.0.1:" + strconv.Itoa(listen), "--http", "127.0.0.1:" + strconv.Itoa(http),
		"--debug", "127.0.0.1:" + strconv.Itoa(debug),
	}, args...)...)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	if err := c.cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.cmd.Wait() }()
	deadline := time.After(startDeadline)
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for {
		select {
		case err := <-ended:
			c.cmd = nil
			return fmt.Errorf("neki dev ended: %w\n%s", err, c.logTail())
		case <-deadline:
			return fmt.Errorf("neki dev was not ready within %s\n%s", startDeadline, c.logTail())
		case <-poll.C:
			if env, err := readEnv(filepath.Join(c.data, "dev.env")); err == nil {
				c.env = env
				return nil
			}
		}
	}
}

// stop ends neki in order, and whatever Postgres it should have left.
func (c *devCluster) stop() error {
	var errs []error
	if c.cmd != nil {
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
		if !gone(c.cmd.Process.Pid, stopDeadline) {
			errs = append(errs, fmt.Errorf("neki dev did not stop within %s\n%s", stopDeadline, c.logTail()))
			_ = c.cmd.Process.Kill()
			gone(c.cmd.Process.Pid, 5*time.Second)
		}
	}
	for _, left := range killPostmasters(c.dir) {
		errs = append(errs, fmt.Errorf("a Postgres was left running in %s", left))
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// gone waits until a child was reaped (by the goroutine of start) or the time is over.
func gone(pid int, wait time.Duration) bool {
	for end := time.Now().Add(wait); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if syscall.Kill(pid, 0) != nil {
			return true
		}
	}
	return false
}

// killPostmasters ends every postmaster whose data directory is below dir and tells which they were.
func killPostmasters(dir string) []string {
	var found []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "postmaster.pid" {
			return nil
		}
		text, _ := os.ReadFile(path)
		first, _, _ := strings.Cut(string(text), "\n")
		pid, err := strconv.Atoi(first)
		if err != nil {
			return nil
		}
		if cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); cwd == filepath.Dir(path) {
			found = append(found, cwd)
			_ = syscall.Kill(pid, syscall.SIGQUIT)
			gone(pid, 5*time.Second)
		}
		return nil
	})
	return found
}

func (c *devCluster) logTail() string {
	text, _ := os.ReadFile(filepath.Join(c.dir, "log"))
	if len(text) > 8000 {
		text = text[len(text)-8000:]
	}
	return string(text)
}

// readEnv reads a dev.env: lines of NAME=value, perhaps with export before and quotes around the value.
func readEnv(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	env := map[string]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimPrefix(strings.TrimSpace(lines.Text()), "export ")
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			env[name] = strings.Trim(value, `'"`)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	for _, name := range []string{"PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSSLMODE", "PGSSLROOTCERT", "NEKI_HTTP"} {
		if env[name] == "" {
			return nil, fmt.Errorf("%s has no %s", path, name)
		}
	}
	return env, nil
}

// environ is this process's environment with that of the cluster, and with more.
func (c *devCluster) environ(more ...string) []string {
	env := os.Environ()
	for name, value := range c.env {
		env = append(env, name+"="+value)
	}
	return append(env, more...)
}

// connect opens a connection through the gateway; each extra is a key=value of a connection string.
func (c *devCluster) connect(ctx context.Context, extra ...string) (*pgx.Conn, error) {
	text := fmt.Sprintf("host=%s port=%s user=%s password='%s' dbname=%s sslmode=%s sslrootcert='%s' %s",
		c.env["PGHOST"], c.env["PGPORT"], c.env["PGUSER"], c.env["PGPASSWORD"], c.env["PGDATABASE"],
		c.env["PGSSLMODE"], c.env["PGSSLROOTCERT"], strings.Join(extra, " "))
	return pgx.Connect(ctx, text)
}

// mustConnect is connect for a test, with a deadline for the whole test and the close at its end.
func (c *devCluster) mustConnect(t *testing.T, extra ...string) *pgx.Conn {
	t.Helper()
	conn, err := c.connect(t.Context(), extra...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}
