package chaos

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"neki/catalog/etcdstore/embedded"
)

// etcdDir is the variable that makes the test binary an etcd.
const etcdDir = "NEKI_CHAOS_ETCD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(etcdDir); dir != "" {
		os.Exit(runEtcd(dir))
	}
	code := m.Run()
	if err := endShared(); err != nil {
		fmt.Fprintln(os.Stderr, "ending the cluster:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// runEtcd is the etcd's process. It ends with a signal, or when nobody holds the other end of its standard input.
func runEtcd(dir string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s, err := embedded.Start(ctx, dir, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer s.Close()
	select {
	case <-ctx.Done():
		return 0
	case err := <-s.Failed():
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
}

// program is a process that can be started again.
type program struct {
	name string
	args []string
	env  []string
	log  string

	cmd    *exec.Cmd
	exited chan struct{}
}

// starter starts processes by one thread that lives as long as the test binary: they are killed with the thread that
// started them.
type starter struct{ do chan func() }

func newStarter() *starter {
	s := &starter{do: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range s.do {
			f()
		}
	}()
	return s
}

func (s *starter) start(p *program) error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	result := make(chan error)
	s.do <- func() { result <- cmd.Start() }
	if err := <-result; err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	p.cmd, p.exited = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait() // killed, mostly
		close(p.exited)
	}()
	return nil
}

func (p *program) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

func (p *program) signal(s syscall.Signal) error {
	if !p.running() {
		return nil
	}
	return p.cmd.Process.Signal(s)
}

// end ends the process by a signal, and by SIGKILL when that takes too long.
func (p *program) end(s syscall.Signal) error {
	if !p.running() {
		return nil
	}
	if err := p.signal(s); err != nil {
		return err
	}
	select {
	case <-p.exited:
	case <-time.After(20 * time.Second):
		_ = p.signal(syscall.SIGKILL)
		<-p.exited
		return fmt.Errorf("%s did not end with %v", p.name, s)
	}
	return nil
}

// tail is the end of the log.
func (p *program) tail(lines int) string { return tailOf(p.log, lines) }

func tailOf(path string, lines int) string {
	text, _ := os.ReadFile(path)
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// postmasterOf reads a data directory's postmaster.pid; 0 when there is none that runs.
func postmasterOf(data string) int {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil || workingDir(pid) != data {
		return 0
	}
	return pid
}

func workingDir(pid int) string {
	dir, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	return dir
}

// serversIn gives every process that works in a data directory.
func serversIn(data string) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && workingDir(pid) == data {
			pids = append(pids, pid)
		}
	}
	return pids
}

// signalAll signals processes; one that has ended meanwhile is no error.
func signalAll(pids []int, s unix.Signal) {
	for _, pid := range pids {
		_ = unix.Kill(pid, s)
	}
}

// sweep removes what test binaries left that were killed.
func sweep(root string) {
	old, _ := filepath.Glob(filepath.Join(root, dirPrefix+"*"))
	for _, dir := range old {
		parts := strings.Split(filepath.Base(dir), "-")
		if pid, err := strconv.Atoi(parts[2]); err != nil || unix.Kill(pid, 0) == nil {
			continue
		}
		datas, _ := filepath.Glob(filepath.Join(dir, "nodes", "*", "data"))
		for _, data := range datas {
			signalAll(serversIn(data), unix.SIGKILL)
		}
		_ = os.RemoveAll(dir)
	}
}

const dirPrefix = "neki-chaos-"
