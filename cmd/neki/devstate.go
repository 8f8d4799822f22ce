package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"neki/catalog"
	"neki/cluster/pgproc"
	"neki/internal/pgerr"
)

// devState is what `neki dev` remembers between starts, in <data>/dev.json. All else is in etcd and beside each Postgres.
type devState struct {
	Password string    `json:"password"`       // of devSuperuser
	Gateway  int       `json:"gateway"`        // port for a second gateway, see gateway.yaml
	Cell     string    `json:"cell,omitempty"` // of the gateway
	Nodes    []devNode `json:"nodes"`
}

type devNode struct {
	ID    string       `json:"id"`
	Shard string       `json:"shard"`
	Role  catalog.Role `json:"role"` // replica or rdonly: a shard's first instance may be its primary
	Cell  string       `json:"cell,omitempty"`
	Port  int          `json:"port"`
	// Added: by SQL, in the cell and with the profile that it has, whatever the flags say.
	Added   bool   `json:"added,omitempty"`
	Profile string `json:"profile,omitempty"`
}

// Files of the data directory.
const (
	stateFile = "dev.json"
	tokenFile = "rpc.token"
	envFile   = "dev.env"
	yamlFile  = "gateway.yaml"
	logFile   = "neki.log"
	lockFile  = "lock"
)

// shardName is the uid of the i-th shard, from 0.
func shardName(i int) string { return "sh" + strconv.Itoa(i+1) }

// nodeName is the id of the i-th instance of a shard.
func nodeName(shard string, i int) string { return shard + "-" + string(rune('a'+i)) }

// loadState reads the state and makes it fit the flags: a shard or replica that is not there yet is added, none is ever
// left out.
func loadState(o *devOptions) (devState, error) {
	path := filepath.Join(o.data, stateFile)
	var s devState
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.Password = rand.Text()
	case err != nil:
		return s, err
	default:
		if err := json.Unmarshal(text, &s); err != nil {
			return s, pgerr.New(pgerr.ConfigFileError, "%s: %w", path, err)
		}
	}
	if err := s.fit(o); err != nil {
		return s, err
	}
	if err := s.choosePorts(o.data); err != nil {
		return s, err
	}
	return s, s.save(path)
}

func (s *devState) save(path string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return pgproc.ReplaceFile(path, append(text, '\n'), 0o600, pgproc.Account{})
}

// shards lists the uids in the order in which they were made.
func (s *devState) shards() []string {
	var list []string
	for _, n := range s.Nodes {
		if !slices.Contains(list, n.Shard) {
			list = append(list, n.Shard)
		}
	}
	return list
}

func (s *devState) count(shard string, role catalog.Role) int {
	n := 0
	for _, node := range s.Nodes {
		if node.Shard == shard && node.Role == role {
			n++
		}
	}
	return n
}

// fit adds nodes until there are as many as the flags ask for.
func (s *devState) fit(o *devOptions) error {
	if have := s.shards(); len(have) > 0 {
		for _, f := range []struct {
			name  string
			value *int
			have  int
		}{
			{"shards", &o.shards, len(have)},
			{"replicas", &o.replicas, s.count(have[0], catalog.RoleReplica) - 1},
			{"rdonly", &o.rdonly, s.count(have[0], catalog.RoleRdonly)},
		} {
			switch {
			case !o.given[f.name]:
				*f.value = f.have
			case *f.value < f.have:
				return pgerr.New(pgerr.InvalidParameterValue, "--%s %d: %s holds %d", f.name, *f.value, o.data, f.have).
					WithHint("Instances can't be taken away so. Use another --data, or remove %s for a new cluster.", o.data)
			}
		}
	}
	var nodes []devNode
	have := s.shards()
	for _, shard := range have {
		nodes = append(nodes, s.fitShard(shard, o)...)
	}
	for i := 0; len(have) < o.shards; i++ {
		if shard := shardName(i); !slices.Contains(have, shard) {
			have, nodes = append(have, shard), append(nodes, s.fitShard(shard, o)...)
		}
	}
	s.Nodes = nodes
	if len(o.cells) > 0 {
		s.Cell = o.cells[0]
	}
	for i := range s.Nodes {
		if len(o.cells) > 0 && !s.Nodes[i].Added {
			// The gateway is in the first cell, with a replica of each shard rather than the first instance, its primary.
			s.Nodes[i].Cell = o.cells[(s.place(i)+len(o.cells)-1)%len(o.cells)]
		}
	}
	return nil
}

// fitShard gives a shard's nodes with those that are missing; what SQL has added and removed stays so unless the flags ask
// for a number.
func (s *devState) fitShard(shard string, o *devOptions) []devNode {
	var nodes []devNode
	for _, n := range s.Nodes {
		if n.Shard == shard {
			nodes = append(nodes, n)
		}
	}
	existing := len(nodes) > 0
	for _, want := range []struct {
		role  catalog.Role
		count int
		flag  string
	}{{catalog.RoleReplica, 1 + o.replicas, "replicas"}, {catalog.RoleRdonly, o.rdonly, "rdonly"}} {
		if existing && !o.given[want.flag] {
			continue
		}
		for range want.count - s.count(shard, want.role) {
			nodes = append(nodes, devNode{ID: unusedName(shard, nodes), Shard: shard, Role: want.role})
		}
	}
	return nodes
}

// unusedName gives the first id that no node of the shard has.
func unusedName(shard string, nodes []devNode) string {
	for i := 0; ; i++ {
		name := nodeName(shard, i)
		if !slices.ContainsFunc(nodes, func(n devNode) bool { return n.ID == name }) {
			return name
		}
	}
}

// place is the position of node i within its shard.
func (s *devState) place(i int) int {
	at := 0
	for j := range i {
		if s.Nodes[j].Shard == s.Nodes[i].Shard {
			at++
		}
	}
	return at
}

// choosePorts finds free ports for nodes that have none, and for those whose port another process has taken since.
func (s *devState) choosePorts(data string) error {
	var held []net.Listener // so that no port is found twice
	defer func() {
		for _, l := range held {
			_ = l.Close() // only the number was wanted
		}
	}()
	ports := make([]*int, 0, len(s.Nodes)+1)
	for i := range s.Nodes {
		if s.Nodes[i].Port != 0 && postmasterPort(nodeDir(data, s.Nodes[i].ID)) == s.Nodes[i].Port {
			continue // left running by an earlier start
		}
		ports = append(ports, &s.Nodes[i].Port)
	}
	ports = append(ports, &s.Gateway)
	for _, port := range ports {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(*port)))
		if errors.Is(err, syscall.EADDRINUSE) {
			l, err = net.Listen("tcp", "127.0.0.1:0")
		}
		if err != nil {
			return fmt.Errorf("find a free port: %w", err)
		}
		held = append(held, l)
		*port = l.Addr().(*net.TCPAddr).Port
	}
	return nil
}

func unusedPort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close() //nolint:errcheck // only the number was wanted
	return l.Addr().(*net.TCPAddr).Port, nil
}

func nodeDir(data, node string) string { return filepath.Join(data, "nodes", node) }

// postmasterPort gives the port of the postmaster that runs in a node's directory, 0 when there is none.
func postmasterPort(dir string) int {
	text, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		return 0
	}
	lines := strings.Split(string(text), "\n")
	const portLine = 3
	if len(lines) <= portLine {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || syscall.Kill(pid, 0) != nil {
		return 0
	}
	port, _ := strconv.Atoi(strings.TrimSpace(lines[portLine])) // 0 when it isn't a number
	return port
}

// lockData makes the data directory this process's own.
func lockData(dir string) (unlock func() error, err error) {
	if err := makeOpenDir(dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(f.Name()) // a hint only
		_ = f.Close()
		return nil, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "another neki dev (pid %s) runs in %s",
			strings.TrimSpace(string(holder)), dir).
			WithHint("Connect to it: . %s && psql. Or choose another directory with --data.", filepath.Join(dir, envFile))
	}
	if err := f.Truncate(0); err != nil {
		_ = f.Close()
		return nil, err
	}
	_, err = fmt.Fprintln(f, os.Getpid())
	return f.Close, err
}

// makeOpenDir makes a directory unless it is there; a new one may be entered by all, whatever the umask: Postgres runs
// as another user when this process is root. What is secret in it has closed modes of its own.
func makeOpenDir(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}

// ensureToken gives the secret that agents, admin and gateways share, made once.
func ensureToken(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(text)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	token := rand.Text()
	return token, pgproc.ReplaceFile(path, []byte(token+"\n"), 0o600, pgproc.Account{})
}
