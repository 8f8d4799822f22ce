package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockTick is USER_HZ, in which Linux shows CPU times to user space on every architecture that Go knows.
const clockTick = 10 * time.Millisecond

// cpuOf is the CPU a process has used, user and system, in all its threads.
func cpuOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, after, ok := strings.Cut(string(text), ") ") // the name may hold blanks
	fields := strings.Fields(after)
	if !ok || len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: unexpected form", pid)
	}
	var ticks int64
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// memoryOf is the memory a process holds, in bytes.
func memoryOf(pid int) (int64, error) { return statusKB(pid, "VmRSS:") }

// statusKB gives a line of a process's status that is a number of kB, in bytes.
func statusKB(pid int, name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			kb, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no %s", pid, name)
}

// child is a process of ours, with its log in a file.
type child struct {
	cmd  *exec.Cmd
	log  string
	done chan error
}

// launch starts a program in a directory; as root it runs as the user postgres if unprivileged is asked for.
func launch(dir string, unprivileged bool, program string, args ...string) (*child, error) {
	cmd := exec.Command(program, args...)
	// Each in a session of its own, as services run: Linux shares the cores out by session before it does by process, and
	// a proxy in the session of its clients is preempted by its own writes twice as often.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if unprivileged && os.Getuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			return nil, err
		}
		uid, _ := strconv.ParseUint(u.Uid, 10, 32) // the system's own numbers
		gid, _ := strconv.ParseUint(u.Gid, 10, 32)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	log, err := os.CreateTemp(dir, "log-")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, log: log.Name(), done: make(chan error, 1)}
	go func() { c.done <- cmd.Wait() }() // ends with the process, which stop waits for
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// stop asks the process to end, and ends it when it doesn't.
func (c *child) stop() error {
	if c == nil {
		return nil
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
		return nil
	case <-time.After(30 * time.Second):
	}
	_ = c.cmd.Process.Kill()
	<-c.done
	return fmt.Errorf("%s did not stop", c.cmd.Path)
}

// await polls until ready holds, the process has ended, or the time is over.
func (c *child) await(ctx context.Context, limit time.Duration, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err, c.logText())
		case ended := <-c.done:
			c.done <- ended // for stop
			return errors.Join(fmt.Errorf("%s ended", c.cmd.Path), ended, c.logText())
		case <-poll.C:
		}
	}
}

func (c *child) logText() error {
	text, err := os.ReadFile(c.log)
	if err != nil {
		return err
	}
	return errors.New(string(text[max(0, len(text)-4000):]))
}
