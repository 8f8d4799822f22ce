package machines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

	"neki/internal/testpg"
)

// Roles of the test binary.
const (
	roleVar     = "NEKI_MACHINE"
	inNamespace = "NEKI_MACHINES_NET" // set once it runs in a network of its own
)

func TestMain(m *testing.M) {
	var err error
	switch role := os.Getenv(roleVar); role {
	case "":
		if os.Geteuid() == 0 && os.Getenv(inNamespace) == "" {
			err = ownNetwork()
			break
		}
		os.Exit(m.Run())
	case "init":
		err = bootMachine(os.Args[1], os.Args[2])
	case "systemctl":
		err = systemctl(os.Args[1:])
	case "etcd":
		err = runEtcd()
	default:
		err = fmt.Errorf("unknown role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, filepath.Base(os.Args[0])+":", err)
		os.Exit(1)
	}
}

// ownNetwork runs the tests again in a network namespace, which ends with them.
func ownNetwork() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return syscall.Exec(self, os.Args, append(os.Environ(), inNamespace+"=none"))
	}
	return syscall.Exec(unshare, append([]string{"unshare", "--net", "--", self}, os.Args[1:]...), append(os.Environ(), inNamespace+"=own"))
}

func notifyChild(c chan<- os.Signal) { signal.Notify(c, syscall.SIGCHLD) }

// machine is one of the three. Its disk outlives its processes.
type machine struct {
	name, address string
	root          string
	cmd           *exec.Cmd // nil while it is off
	exited        chan struct{}
}

// site is the machines with what joins them.
type site struct {
	t        testing.TB
	dir      string
	machines []*machine
	do       chan func() // run by one thread that lives as long as the test: machines die with who started them
}

const (
	bridge  = "br0"
	network = "192.0.2."
)

// newSite prepares machines that are off.
func newSite(t *testing.T, names ...string) *site {
	t.Helper()
	if os.Geteuid() != 0 || os.Getenv(inNamespace) != "own" {
		t.Skip("needs root, and namespaces (unshare) for the machines")
	}
	for _, tool := range []string{"ip", "nsenter", "useradd", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the program %s", tool)
		}
	}
	if inst, _ := testpg.Installation(t); !strings.HasPrefix(inst.BinDir, "/usr/") {
		t.Skipf("needs a Postgres below /usr, not in %s", inst.BinDir)
	}
	dir, err := os.MkdirTemp(diskPlace(), "neki-machines-")
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, dir: dir, do: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range s.do {
			f()
		}
	}()
	t.Cleanup(s.end)
	s.must(os.Chmod(dir, 0o755))
	s.must(os.Mkdir(filepath.Join(dir, "backup"), 0o777))
	s.must(os.Chmod(filepath.Join(dir, "backup"), 0o777))
	s.copySelf()
	s.run("ip", "link", "set", "lo", "up")
	s.run("ip", "link", "add", bridge, "type", "bridge")
	s.run("ip", "addr", "add", network+"1/24", "dev", bridge)
	s.run("ip", "link", "set", bridge, "up")
	for i, name := range names {
		m := &machine{name: name, address: network + strconv.Itoa(11+i), root: filepath.Join(dir, name)}
		s.machines = append(s.machines, m)
		s.must(s.format(m))
	}
	return s
}

// diskPlace is where the machines' disks lie: in memory when there is enough.
func diskPlace() string {
	const enough = 6 << 30
	var st unix.Statfs_t
	if unix.Statfs("/dev/shm", &st) == nil && st.Bavail*uint64(st.Bsize) > enough {
		return "/dev/shm"
	}
	return os.TempDir()
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) run(args ...string) {
	s.t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// copySelf puts the test binary where machines find it.
func (s *site) copySelf() {
	self, err := os.Executable()
	s.must(err)
	s.copyFile(self, filepath.Join(s.dir, "machine"), 0o755)
}

func (s *site) copyFile(from, to string, mode os.FileMode) {
	s.t.Helper()
	text, err := os.ReadFile(from)
	s.must(err)
	s.must(os.MkdirAll(filepath.Dir(to), 0o755))
	s.must(os.WriteFile(to, text, mode))
	s.must(os.Chmod(to, mode))
}

// etcdUnit is what Debian's package has, as far as it matters here.
const etcdUnit = `[Service]
User=etcd
EnvironmentFile=-/etc/default/etcd
ExecStart=%s
Restart=on-abnormal
`

// format makes a machine's disk: a bare system, what is played of it, and the directory from which neki is installed.
func (s *site) format(m *machine) error {
	in := func(path string) string { return filepath.Join(m.root, path) }
	for _, dir := range []string{"etc/systemd/system", "etc/default", "root", "var/log", "var/lib", "var/tmp", "disk/bin", "disk/sbin"} {
		if err := os.MkdirAll(in(dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if to, err := os.Readlink("/" + dir); err == nil {
			if err := os.Symlink(to, in(dir)); err != nil {
				return err
			}
		}
	}
	for _, file := range []string{"passwd", "group", "shadow", "gshadow", "nsswitch.conf", "login.defs", "ld.so.cache", "localtime"} {
		if text, err := os.ReadFile("/etc/" + file); err == nil {
			if err := os.WriteFile(in("etc/"+file), text, modeOf(file)); err != nil {
				return err
			}
		}
	}
	etcd := os.Getenv("NEKI_ETCD")
	if etcd == "" {
		etcd = "/usr/local/bin/etcd"
	}
	files := map[string]string{
		"etc/hosts":           "127.0.0.1 localhost\n192.0.2.11 m1\n192.0.2.12 m2\n192.0.2.13 m3\n",
		"disk/sbin/etcdunit":  fmt.Sprintf(etcdUnit, etcd),
		"disk/sbin/systemctl": "#!/bin/sh\nNEKI_MACHINE=systemctl exec /machines/machine \"$@\"\n",
		"disk/bin/etcd":       "#!/bin/sh\nNEKI_MACHINE=etcd exec /machines/machine\n",
		"disk/sbin/apt-get": "#!/bin/sh\nset -e\ncp /usr/local/sbin/etcdunit /etc/systemd/system/etcd.service\n" +
			"id etcd >/dev/null 2>&1 || useradd --system etcd\nmkdir -p /var/lib/etcd && chown etcd:etcd /var/lib/etcd\n",
		"disk/sbin/scp": "#!/bin/sh\nexec cp \"$1\" \"/machines/${2%%:*}${2#*:}\"\n",
	}
	for path, text := range files {
		if err := os.WriteFile(in(path), []byte(text), 0o755); err != nil {
			return err
		}
	}
	s.copyFile(s.program(), in("root/install/neki"), 0o755)
	units, err := filepath.Glob("../../contrib/systemd/*.service")
	for _, u := range units {
		s.copyFile(u, in("root/install/contrib/systemd/"+filepath.Base(u)), 0o644)
	}
	return err
}

func (s *site) program() string {
	bin := os.Getenv("NEKI_BIN")
	if bin == "" {
		s.t.Skip("needs NEKI_BIN: run make regress")
	}
	if !filepath.IsAbs(bin) {
		bin = filepath.Join("..", "..", bin)
	}
	return bin
}

// on switches a machine on: it has a network, and starts what is enabled.
func (s *site) on(m *machine) {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, m.name+".console"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	s.must(err)
	defer log.Close()
	cmd := exec.Command(filepath.Join(s.dir, "machine"), m.name, m.root)
	cmd.Env = []string{roleVar + "=init", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig:  syscall.SIGKILL,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	started := make(chan error)
	s.do <- func() { started <- cmd.Start() }
	s.must(<-started)
	m.cmd, m.exited = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait() // killed
		close(m.exited)
	}()
	pid := strconv.Itoa(cmd.Process.Pid)
	s.run("ip", "link", "add", "v"+m.name, "type", "veth", "peer", "name", "eth0", "netns", pid)
	s.run("ip", "link", "set", "v"+m.name, "master", bridge, "up")
	enter := []string{"nsenter", "-t", pid, "-n", "ip"}
	s.run(append(enter, "link", "set", "lo", "up")...)
	s.run(append(enter, "addr", "add", m.address+"/24", "dev", "eth0")...)
	s.run(append(enter, "link", "set", "eth0", "up")...)
	s.await(30*time.Second, m.name+" that has booted", func() error {
		_, err := s.sh(m, "systemctl boot")
		return err
	})
}

// off is a power cut: the others hear nothing of the machine any more, and all that runs there is gone.
func (s *site) off(m *machine) {
	s.t.Helper()
	s.run("ip", "link", "set", "v"+m.name, "down")
	s.must(m.cmd.Process.Kill())
	<-m.exited
	m.cmd = nil
	_ = exec.Command("ip", "link", "del", "v"+m.name).Run() // it goes with the namespace, sooner or later
	s.await(10*time.Second, "network without "+m.name, func() error {
		if exec.Command("ip", "link", "show", "v"+m.name).Run() == nil {
			return errors.New("its link is still there")
		}
		return nil
	})
}

// shLimit bounds a script: commands of the guide wait for the cluster.
const shLimit = 3 * time.Minute

// sh runs a script on a machine, as root in a shell, in the directory from which neki is installed.
func (s *site) sh(m *machine, script string, env ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), shLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", "-t", strconv.Itoa(m.cmd.Process.Pid), "-m", "-u", "-i", "-n", "-p", "-r", "--wd=/proc/"+
		strconv.Itoa(m.cmd.Process.Pid)+"/root/root/install", "/bin/bash", "-euo", "pipefail", "-c", script)
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"}, env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	return out.String(), err
}

// await polls until there is no error.
func (s *site) await(limit time.Duration, what string, done func() error) {
	s.t.Helper()
	var err error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err = done(); err == nil {
			return
		}
	}
	s.t.Fatalf("no %s within %v: %v", what, limit, err)
}

// end switches all off and removes the disks; the logs of a failed test are shown first.
func (s *site) end() {
	if s.t.Failed() {
		s.showLogs()
	}
	for _, m := range s.machines {
		if m.cmd != nil {
			_ = m.cmd.Process.Kill()
			<-m.exited
		}
	}
	close(s.do)
	if os.Getenv("NEKI_MACHINES_KEEP") != "" {
		s.t.Log("kept:", s.dir)
		return
	}
	var err error
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = os.RemoveAll(s.dir); err == nil { // mounts go with the last process
			return
		}
	}
	s.t.Error(err)
}

func (s *site) showLogs() {
	logs, _ := filepath.Glob(filepath.Join(s.dir, "m?", "var/log/*.log"))
	consoles, _ := filepath.Glob(filepath.Join(s.dir, "*.console"))
	for _, path := range append(logs, consoles...) {
		text, _ := os.ReadFile(path)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		s.t.Logf("%s:\n%s", strings.TrimPrefix(path, s.dir), strings.Join(lines[max(0, len(lines)-12):], "\n"))
	}
}

func modeOf(file string) os.FileMode {
	if strings.HasSuffix(file, "shadow") {
		return 0o600
	}
	return 0o644
}
