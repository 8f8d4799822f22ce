package pgproc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Exit tells how a postmaster ended.
type Exit struct {
	PID    int
	Known  bool   // false for an adopted postmaster, whose status another process collects
	Status string // "exit status 1", "signal: killed"
}

// process is one postmaster under watch.
type process struct {
	pid    int
	pidfd  *os.File
	exited chan struct{} // closed when the postmaster has ended
	joined chan struct{} // closed when the watching goroutine has returned
	exit   Exit          // valid once exited is closed

	closeOnce sync.Once
}

// watch opens a pidfd for the postmaster and starts the goroutine that waits for its end. The caller has made sure
// that pid is the postmaster.
func watch(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	pr := &process{
		pid: pid, pidfd: os.NewFile(uintptr(fd), "pidfd"),
		exited: make(chan struct{}), joined: make(chan struct{}),
	}
	go pr.wait()
	return pr, nil
}

// wait parks in the runtime's poller until the pidfd is readable, which is at the exit, or until close.
func (pr *process) wait() {
	defer close(pr.joined)
	raw, err := pr.pidfd.SyscallConn()
	if err != nil {
		return
	}
	gone := false
	_ = raw.Read(func(fd uintptr) bool { // an error means closed
		gone = readable(fd)
		return gone
	})
	if gone {
		pr.exit = reap(pr.pid)
		close(pr.exited)
	}
}

func readable(fd uintptr) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// reap collects the status if the process is our child, so that no zombie keeps postmaster.pid looking alive.
func reap(pid int) Exit {
	var ws unix.WaitStatus
	for {
		got, err := unix.Wait4(pid, &ws, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil || got != pid:
			return Exit{PID: pid, Status: "unknown"}
		case ws.Signaled():
			return Exit{PID: pid, Known: true, Status: "signal: " + ws.Signal().String()}
		}
		return Exit{PID: pid, Known: true, Status: "exit status " + strconv.Itoa(ws.ExitStatus())}
	}
}

func (pr *process) alive() bool {
	select {
	case <-pr.exited:
		return false
	default:
		return true
	}
}

// signal sends through the pidfd, so that it can't reach a process that got the same number later.
func (pr *process) signal(sig unix.Signal) error {
	raw, err := pr.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return err
	}
	if errors.Is(sent, unix.ESRCH) {
		return nil
	}
	return sent
}

// close ends the watch; the postmaster lives on.
func (pr *process) close() {
	pr.closeOnce.Do(func() { _ = pr.pidfd.Close() })
	<-pr.joined
}

// pidFile is what postmaster.pid says.
type pidFile struct {
	pid       int
	port      string
	socketDir string
	status    string // starting, ready, standby, stopping
}

func readPIDFile(dataDir string) (pidFile, error) {
	b, err := os.ReadFile(filepath.Join(dataDir, "postmaster.pid"))
	if err != nil {
		return pidFile{}, err
	}
	lines := strings.Split(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 0 {
		return pidFile{}, fmt.Errorf("postmaster.pid begins with %q", lines[0])
	}
	f := pidFile{pid: pid}
	if len(lines) > 7 {
		f.port, f.socketDir, f.status = lines[3], lines[4], strings.TrimSpace(lines[7])
	}
	return f, nil
}

// isPostmasterOf reports whether a living process is the postmaster of the data directory. Postgres changes into its
// data directory, and its children rewrite their command line to "postgres: ...", so the three facts together name
// the postmaster, whatever number a stale pid file holds. (Start times would say no more and depend on the clock.)
func isPostmasterOf(pid int, dataDir string) bool {
	if !worksIn(pid, dataDir) {
		return false
	}
	cmdline, err := os.ReadFile(procPath(pid, "cmdline"))
	return err == nil && !bytes.HasPrefix(cmdline, []byte("postgres: "))
}

// worksIn reports whether the process is a living postgres whose working directory is dataDir. A zombie has none.
func worksIn(pid int, dataDir string) bool { return runsIn(pid, dataDir, servers) }

// servers and fills tell by their names which programs run in a data directory, and which fill a new one (initdb runs
// a postgres, too). Whatever else works there, a shell perhaps, is left alone.
func servers(program string) bool { return strings.HasPrefix(program, "postgres") }

func fills(program string) bool {
	return servers(program) || program == "initdb" || program == "pg_basebackup" || program == "pg_combinebackup" || program == "cp"
}

func runsIn(pid int, dir string, which func(program string) bool) bool {
	cwd, err := os.Readlink(procPath(pid, "cwd"))
	if err != nil || strings.TrimSuffix(cwd, " (deleted)") != dir {
		return false
	}
	exe, err := os.Readlink(procPath(pid, "exe"))
	return err == nil && which(filepath.Base(strings.TrimSuffix(exe, " (deleted)")))
}

func procPath(pid int, name string) string {
	return "/proc/" + strconv.Itoa(pid) + "/" + name
}

// processesIn lists the living processes of some programs in a directory.
func processesIn(dir string, which func(program string) bool) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && runsIn(pid, dir, which) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// killTimeout bounds how long SIGKILLed processes may take to vanish; longer means one hangs in the kernel.
const killTimeout = 20 * time.Second

// killAll kills the processes of some programs in a directory until none is left. Each Postgres child has a process
// group of its own, so there is no group to kill.
func killAll(dir string, which func(program string) bool) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		if os.IsNotExist(err) {
			return nil
		}
		return err
	}
	deadline := time.NewTimer(killTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		pids, err := processesIn(dir, which)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := killIn(pid, dir, which); err != nil {
				return err
			}
		}
		select {
		case <-deadline.C:
			return fmt.Errorf("processes %v of %s don't die", pids, dir)
		case <-tick.C:
		}
	}
}

// killIn kills one of them; the pidfd is opened before the second look, so the number can't have passed to another.
func killIn(pid int, dir string, which func(program string) bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // gone
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	if !runsIn(pid, dir, which) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	return nil
}
