package machines

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// initSocket is where systemctl asks the machine's init.
const initSocket = "/run/init.sock"

// bootMachine makes the process the first of a machine whose disk is the directory root, and runs what is enabled. It is in
// its namespaces already.
func bootMachine(name, root string) error {
	if err := mountAll(root); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return err
	}
	if err := unix.Chroot(root); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	m := &manager{units: map[string]*unit{}}
	signals := make(chan os.Signal, 16)
	go m.reap(signals)
	notifyChild(signals)
	l, err := net.Listen("unix", initSocket)
	if err != nil {
		return err
	}
	// The harness brings the network up, and then says "boot".
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go m.serve(c)
	}
}

func mountAll(root string) error {
	in := func(path string) string { return filepath.Join(root, path) }
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	binds := [][2]string{{"/usr", "/usr"}, {in("disk/bin"), "/usr/local/bin"}, {in("disk/sbin"), "/usr/local/sbin"}}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if st, err := os.Lstat("/" + dir); err == nil && st.IsDir() {
			binds = append(binds, [2]string{"/" + dir, "/" + dir})
		}
	}
	binds = append(binds, [2]string{filepath.Dir(root), "/machines"}, [2]string{filepath.Join(filepath.Dir(root), "backup"), "/mnt/neki-backup"})
	for _, b := range binds {
		if err := os.MkdirAll(in(b[1]), 0o755); err != nil {
			return err
		}
		if err := unix.Mount(b[0], in(b[1]), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s: %w", b[1], err)
		}
	}
	for _, fs := range []struct{ kind, at, options string }{
		{"proc", "/proc", ""}, {"tmpfs", "/tmp", "mode=1777"}, {"tmpfs", "/run", "mode=755"}, {"tmpfs", "/dev", "mode=755"},
	} {
		if err := os.MkdirAll(in(fs.at), 0o755); err != nil {
			return err
		}
		if err := unix.Mount(fs.kind, in(fs.at), fs.kind, 0, fs.options); err != nil {
			return fmt.Errorf("mount %s: %w", fs.at, err)
		}
	}
	return makeDevices(in("/dev"))
}

func makeDevices(dev string) error {
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		path := filepath.Join(dev, name)
		if err := os.WriteFile(path, nil, 0o666); err != nil {
			return err
		}
		if err := unix.Mount("/dev/"+name, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", name, err)
		}
	}
	for link, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(to, filepath.Join(dev, link)); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(dev, "shm"), 0o1777); err != nil {
		return err
	}
	return unix.Mount("tmpfs", filepath.Join(dev, "shm"), "tmpfs", 0, "mode=1777")
}

// manager starts units and keeps them running.
type manager struct {
	mu    sync.Mutex // also held while a process starts, so that its end is not seen before its start
	units map[string]*unit
}

// unit is a service as far as the units of this project go.
type unit struct {
	name    string
	service map[string]string // of [Service], the last value of each
	env     []string
	wanted  bool
	pid     int
	ended   chan struct{} // closed when the process of pid has ended
}

// load reads a unit's file anew.
func (m *manager) load(name string) (*unit, error) {
	name = strings.TrimSuffix(name, ".service")
	file, instance := name, ""
	if template, i, ok := strings.Cut(name, "@"); ok {
		file, instance = template+"@", i
	}
	text, err := os.ReadFile(filepath.Join("/etc/systemd/system", file+".service"))
	if err != nil {
		return nil, err
	}
	u := m.units[name]
	if u == nil {
		u = &unit{name: name}
		m.units[name] = u
	}
	u.service, u.env = map[string]string{}, []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	section := ""
	for line := range strings.Lines(strings.ReplaceAll(string(text), "%i", instance)) {
		line = strings.TrimSpace(line)
		key, value, ok := strings.Cut(line, "=")
		switch {
		case strings.HasPrefix(line, "["):
			section = line
		case !ok || section != "[Service]" || strings.HasPrefix(line, "#"):
		case key == "Environment":
			u.env = append(u.env, value)
		default:
			u.service[key] = value
		}
	}
	if file := u.service["EnvironmentFile"]; file != "" {
		return u, u.readEnvironment(file)
	}
	return u, nil
}

func (u *unit) readEnvironment(file string) error {
	text, err := os.ReadFile(strings.TrimPrefix(file, "-"))
	if err != nil && !strings.HasPrefix(file, "-") {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); strings.Contains(line, "=") && !strings.HasPrefix(line, "#") {
			u.env = append(u.env, line)
		}
	}
	return nil
}

// start starts the unit's process. The caller holds mu.
func (m *manager) start(u *unit) error {
	u.wanted = true
	if u.pid != 0 {
		return nil
	}
	cred, err := u.credential()
	if err != nil {
		return err
	}
	args := strings.Fields(u.service["ExecStart"])
	if len(args) == 0 {
		return fmt.Errorf("%s has no ExecStart", u.name)
	}
	log, err := os.OpenFile("/var/log/"+u.name+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	null, err := os.Open("/dev/null")
	if err != nil {
		return err
	}
	defer null.Close()
	pid, err := syscall.ForkExec(args[0], args, &syscall.ProcAttr{
		Dir: "/", Env: u.env, Files: []uintptr{null.Fd(), log.Fd(), log.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true, Credential: cred},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", u.name, err)
	}
	u.pid, u.ended = pid, make(chan struct{})
	return nil
}

// credential is that of the unit's User, with its groups and SupplementaryGroups.
func (u *unit) credential() (*syscall.Credential, error) {
	account, err := user.Lookup(cmp.Or(u.service["User"], "root"))
	if err != nil {
		return nil, err
	}
	names := strings.Fields(u.service["SupplementaryGroups"])
	ids, err := account.GroupIds()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		g, err := user.LookupGroup(name)
		if err != nil {
			return nil, err
		}
		ids = append(ids, g.Gid)
	}
	number := func(s string) uint32 {
		n, _ := strconv.ParseUint(s, 10, 32) // user's own numbers
		return uint32(n)
	}
	c := &syscall.Credential{Uid: number(account.Uid), Gid: number(account.Gid)}
	for _, id := range ids {
		c.Groups = append(c.Groups, number(id))
	}
	return c, nil
}

// stop ends the unit's process, as KillMode=process does.
func (m *manager) stop(u *unit) {
	m.mu.Lock()
	u.wanted = false
	pid, ended := u.pid, u.ended
	m.mu.Unlock()
	if pid == 0 {
		return
	}
	seconds, err := strconv.Atoi(u.service["TimeoutStopSec"])
	if err != nil {
		seconds = 90
	}
	_ = syscall.Kill(pid, syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(time.Duration(seconds) * time.Second):
		_ = syscall.Kill(pid, syscall.SIGKILL)
		<-ended
	}
}

// reap takes in every child that ends: units, which are started again, and orphans.
func (m *manager) reap(signals <-chan os.Signal) {
	for range signals {
		m.mu.Lock()
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if pid <= 0 || err != nil && !errors.Is(err, syscall.EINTR) {
				break
			}
			for _, u := range m.units {
				if u.pid == pid {
					u.pid = 0
					close(u.ended)
					time.AfterFunc(time.Second, func() { m.restart(u) })
				}
			}
		}
		m.mu.Unlock()
	}
}

func (m *manager) restart(u *unit) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u.wanted && u.service["Restart"] != "" {
		_ = m.start(u) // its log stays as it was
	}
}

// serve answers one systemctl.
func (m *manager) serve(c net.Conn) {
	defer c.Close()
	var args []string
	if json.NewDecoder(bufio.NewReader(c)).Decode(&args) != nil {
		return
	}
	text := "ok"
	if err := m.control(args); err != nil {
		text = err.Error()
	}
	_ = json.NewEncoder(c).Encode(text)
}

const wants = "/etc/systemd/system/multi-user.target.wants"

func (m *manager) control(args []string) error {
	now := slices.Contains(args, "--now")
	args = slices.DeleteFunc(args, func(a string) bool { return strings.HasPrefix(a, "--") })
	if len(args) == 0 {
		return errors.New("no command")
	}
	verb, names := args[0], m.expand(args[1:])
	switch verb {
	case "boot":
		enabled, _ := filepath.Glob(wants + "/*")
		return m.each(enabled, func(name string) error { return m.startNamed(filepath.Base(name)) })
	case "daemon-reload":
		return nil
	case "enable":
		return m.each(names, func(name string) error { return m.enable(name, now) })
	case "disable":
		return m.each(names, func(name string) error {
			_ = os.Remove(filepath.Join(wants, name)) // it may not be enabled
			return m.stopNamed(name)
		})
	case "start":
		return m.each(names, m.startNamed)
	case "stop":
		return m.each(names, m.stopNamed)
	case "restart", "try-restart":
		return m.each(names, func(name string) error { return m.restartNamed(name, verb == "restart") })
	}
	return fmt.Errorf("unknown command %q", verb)
}

func (m *manager) each(names []string, do func(string) error) error {
	for _, name := range names {
		if err := do(name); err != nil {
			return err
		}
	}
	return nil
}

// expand gives the loaded units that patterns match.
func (m *manager) expand(patterns []string) (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range patterns {
		if !strings.Contains(p, "*") {
			names = append(names, p)
			continue
		}
		for name := range m.units {
			if ok, err := filepath.Match(p, name); ok && err == nil {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func (m *manager) enable(name string, now bool) error {
	if err := os.MkdirAll(wants, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(wants, name), nil, 0o644); err != nil {
		return err
	}
	if now {
		return m.startNamed(name)
	}
	return nil
}

func (m *manager) startNamed(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	u, err := m.load(name)
	if err != nil {
		return err
	}
	return m.start(u)
}

func (m *manager) stopNamed(name string) error {
	m.mu.Lock()
	u := m.units[strings.TrimSuffix(name, ".service")]
	m.mu.Unlock()
	if u != nil {
		m.stop(u)
	}
	return nil
}

func (m *manager) restartNamed(name string, always bool) error {
	m.mu.Lock()
	u := m.units[name]
	runs := u != nil && u.pid != 0
	m.mu.Unlock()
	if !runs && !always {
		return nil
	}
	if err := m.stopNamed(name); err != nil {
		return err
	}
	return m.startNamed(name)
}

// systemctl asks the machine's init.
func systemctl(args []string) error {
	c, err := net.Dial("unix", initSocket)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := json.NewEncoder(c).Encode(args); err != nil {
		return err
	}
	var text string
	if err := json.NewDecoder(c).Decode(&text); err != nil {
		return err
	}
	if text != "ok" {
		return errors.New(text)
	}
	return nil
}
