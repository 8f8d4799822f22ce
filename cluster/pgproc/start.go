package pgproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"neki/internal/pgerr"
)

// pollEvery is how often files of the server are looked at while something is awaited.
const pollEvery = 10 * time.Millisecond

// ErrNotRunning says that there is no postmaster.
var ErrNotRunning = errors.New("the server is not running")

// Adopt takes over the postmaster that an earlier supervisor left running, if there is one.
func (p *Instance) Adopt() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.adoptLocked()
}

func (p *Instance) adoptLocked() (bool, error) {
	if pr := p.process.Load(); pr != nil && pr.alive() {
		return true, nil
	}
	dir, err := filepath.EvalSymlinks(p.DataDir())
	if err != nil {
		if os.IsNotExist(err) {
			return false, nil
		}
		return false, err
	}
	f, err := readPIDFile(dir)
	if err != nil || !isPostmasterOf(f.pid, dir) {
		return false, nil // no file, or one that a crash left
	}
	pr, err := watch(f.pid)
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			return false, nil
		}
		return false, err
	}
	if !isPostmasterOf(f.pid, dir) { // it may have ended before the pidfd was open
		pr.close()
		return false, nil
	}
	p.setProcess(pr)
	return true, nil
}

// setProcess makes pr the one under watch and joins the watcher of the one before.
func (p *Instance) setProcess(pr *process) {
	if old := p.process.Swap(pr); old != nil {
		old.close()
	}
}

// Start starts the server unless it runs, and returns once it takes connections. A server that is starting when ctx
// ends goes on starting; the error then says what it is doing.
func (p *Instance) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	running, err := p.adoptLocked()
	if err != nil {
		return err
	}
	if !running {
		if err := p.spawn(); err != nil {
			return err
		}
	}
	return p.waitReady(ctx)
}

func (p *Instance) spawn() error {
	if !p.HasData() {
		return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "%s holds no database cluster", p.DataDir())
	}
	if err := p.Prepare(); err != nil {
		return err
	}
	if err := p.killLeftovers(); err != nil {
		return err
	}
	logFile, err := os.OpenFile(p.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close() //nolint:errcheck // the server has its own descriptor
	// The places are given on the command line, where no ALTER SYSTEM of a client can change them.
	cmd := p.command(context.Background(), "postgres", "-D", p.DataDir(), "-p", fmt.Sprint(p.cfg.Port),
		"-h", p.cfg.Host, "-k", p.socketDir)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	pr, err := watch(cmd.Process.Pid)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return err
	}
	_ = cmd.Process.Release() // the pidfd has it from here
	p.setProcess(pr)
	return nil
}

// waitReady follows the status line of postmaster.pid, as pg_ctl does.
func (p *Instance) waitReady(ctx context.Context) error {
	pr := p.process.Load()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	status := "starting"
	for {
		f, err := readPIDFile(p.DataDir())
		if err == nil && f.pid == pr.pid {
			if status = f.status; status == "ready" {
				return nil
			}
		}
		select {
		case <-pr.exited:
			return pgerr.New(pgerr.SystemError, "the server ended while starting (%s)", pr.exit.Status).
				WithDetail("%s", p.LogTail(8))
		case <-ctx.Done():
			return pgerr.New(pgerr.CannotConnectNow, "the server is not ready yet (%s): %w", status, context.Cause(ctx)).
				WithDetail("%s", p.LogTail(4))
		case <-tick.C:
		}
	}
}

// Ready reports whether the postmaster runs and says that it takes connections.
func (p *Instance) Ready() bool {
	pr := p.process.Load()
	if pr == nil || !pr.alive() {
		return false
	}
	f, err := readPIDFile(p.DataDir())
	return err == nil && f.pid == pr.pid && f.status == "ready"
}

// Running gives the postmaster's process id, or 0.
func (p *Instance) Running() int {
	if pr := p.process.Load(); pr != nil && pr.alive() {
		return pr.pid
	}
	return 0
}

// Moved reports whether the running server, started by an earlier supervisor, listens elsewhere than Config says.
func (p *Instance) Moved() bool {
	if p.Running() == 0 {
		return false
	}
	f, err := readPIDFile(p.DataDir())
	return err == nil && f.port != "" && (f.port != strconv.Itoa(p.cfg.Port) || f.socketDir != p.socketDir)
}

// Exited gives a channel that is closed when the postmaster under watch has ended; nil when there is none.
func (p *Instance) Exited() <-chan struct{} {
	if pr := p.process.Load(); pr != nil {
		return pr.exited
	}
	return nil
}

// LastExit tells how the last postmaster ended; ok is false while it runs or when there was none.
func (p *Instance) LastExit() (e Exit, ok bool) {
	pr := p.process.Load()
	if pr == nil || pr.alive() {
		return Exit{}, false
	}
	return pr.exit, true
}

// StopMode is how a server is asked to stop.
type StopMode uint8

// The stop modes of pg_ctl. A smart stop waits for clients; a fast one rolls their transactions back and writes a
// checkpoint; an immediate one leaves crash recovery to the next start.
const (
	StopFast StopMode = iota
	StopSmart
	StopImmediate
)

func (m StopMode) signal() unix.Signal {
	switch m {
	case StopSmart:
		return unix.SIGTERM
	case StopImmediate:
		return unix.SIGQUIT
	default:
		return unix.SIGINT
	}
}

// Stop stops the server and waits until all its processes are gone. When ctx ends first the server is still stopping.
func (p *Instance) Stop(ctx context.Context, mode StopMode) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if running, err := p.adoptLocked(); err != nil || !running {
		return err
	}
	pr := p.process.Load()
	if err := pr.signal(mode.signal()); err != nil {
		return err
	}
	select {
	case <-pr.exited:
		return p.killLeftovers()
	case <-ctx.Done():
		return fmt.Errorf("the server is still stopping: %w", context.Cause(ctx))
	}
}

// Kill kills the postmaster and every process of the data directory, and returns once none is left: only then can
// nothing of it acknowledge a commit any more.
func (p *Instance) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.adoptLocked(); err != nil {
		return err
	}
	if pr := p.process.Load(); pr != nil && pr.alive() {
		if err := pr.signal(unix.SIGKILL); err != nil {
			return err
		}
		<-pr.exited
	}
	return p.killLeftovers()
}

// Reload makes the server read its configuration again.
func (p *Instance) Reload() error {
	pr := p.process.Load()
	if pr == nil || !pr.alive() {
		return ErrNotRunning
	}
	return pr.signal(unix.SIGHUP)
}

// Promote ends recovery and waits until the server is a primary. It needs no connection.
func (p *Instance) Promote(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	pr := p.process.Load()
	if pr == nil || !pr.alive() {
		return ErrNotRunning
	}
	if state, err := p.state(); err != nil || state == stateInProduction {
		return err
	}
	if err := p.writeOwned(filepath.Join(p.DataDir(), "promote"), nil); err != nil {
		return err
	}
	if err := pr.signal(unix.SIGUSR1); err != nil {
		return err
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if state, err := p.state(); err != nil || state == stateInProduction {
			return err
		}
		select {
		case <-pr.exited:
			return fmt.Errorf("the server ended while it was promoted (%s)", pr.exit.Status)
		case <-ctx.Done():
			return fmt.Errorf("promotion goes on: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// Close ends the watch over the postmaster, which goes on running for the next supervisor to adopt.
func (p *Instance) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setProcess(nil)
}

// killLeftovers removes what a dead postmaster left: its children, which would keep shared memory in use, and its
// lock files, which would stop a new one should their numbers now belong to other processes.
func (p *Instance) killLeftovers() error {
	if err := killAll(p.DataDir(), servers); err != nil {
		return err
	}
	locks := []string{filepath.Join(p.DataDir(), "postmaster.pid")}
	sockets, _ := filepath.Glob(filepath.Join(p.socketDir, ".s.PGSQL.*")) // the pattern is well formed
	for _, path := range append(locks, sockets...) {
		if err := os.Remove(path); err != nil && !errors.Is(err, syscall.ENOENT) {
			return err
		}
	}
	return nil
}

// LogTail gives the last lines of the server's log.
func (p *Instance) LogTail(lines int) string {
	f, err := os.Open(p.LogFile())
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // opened for reading
	buf := make([]byte, 8<<10)
	size, err := f.Seek(0, 2)
	if err != nil {
		return ""
	}
	n, _ := f.ReadAt(buf, max(0, size-int64(len(buf)))) // the end of the file is no error here
	all := strings.Split(strings.TrimSpace(string(buf[:n])), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
