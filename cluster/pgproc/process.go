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
	pid    int
	status string // starting, ready, standby, stopping
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
		f.status = strings.TrimSpace(lines[7])
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
func worksIn(pid int, dataDir string) bool {
	cwd, err := os.Readlink(procPath(pid, "cwd"))
	if err != nil || cwd != dataDir {
		return false
	}
	exe, err := os.Readlink(procPath(pid, "exe"))
	return err == nil && strings.HasPrefix(filepath.Base(exe), "postgres")
}

func procPath(pid int, name string) string {
	return "/proc/" + strconv.Itoa(pid) + "/" + name
}

// processesIn lists the living postgres processes of a data directory.
func processesIn(dataDir string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && worksIn(pid, dataDir) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// killIn kills one process of a data directory; the pidfd is opened before the second look, so the number can't have
// passed to another process.
func killIn(pid int, dataDir string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // gone
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	if !worksIn(pid, dataDir) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	return nil
}
