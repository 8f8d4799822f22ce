// Package plainpg runs one plain PostgreSQL in a directory of its own: what the suites' expected output is held
// against, and what the benchmark puts behind PgBouncer and the gateway.
//
// A Server is a child process without goroutines of ours; its owner calls Stop, which also removes the directory.
// Not safe for concurrent use. As root it runs under the user postgres, because Postgres refuses to be root.
//
// Manual: https://www.postgresql.org/docs/current/app-initdb.html and
// https://www.postgresql.org/docs/current/server-start.html
package plainpg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Superuser and Password are those of every Server.
const (
	Superuser = "postgres"
	Password  = "plain"
)

// ErrNoBinaries says that there is no PostgreSQL server on this machine.
var ErrNoBinaries = errors.New("no PostgreSQL server binaries found in $NEKI_POSTGRES_BIN or /usr/lib/postgresql")

// Server is a running PostgreSQL on 127.0.0.1.
type Server struct {
	Bin  string // directory of the server binaries
	Dir  string // holds data/, the log and the Unix socket
	Port int
}

// Bin finds the directory of the newest server binaries.
func Bin() (string, error) {
	if bin := os.Getenv("NEKI_POSTGRES_BIN"); bin != "" {
		return bin, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		return "", ErrNoBinaries
	}
	major := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		return n
	}
	sort.Slice(found, func(i, j int) bool { return major(found[i]) > major(found[j]) })
	return filepath.Dir(found[0]), nil
}

// FreePort gives a TCP port of the loopback that nobody listens on.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Start makes a cluster and starts it. Each setting is a line of postgresql.conf, each rule one of pg_hba.conf that
// goes before the rule for all others (scram-sha-256 on the loopback).
func Start(ctx context.Context, settings, rules []string) (*Server, error) {
	bin, err := Bin()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "plainpg-")
	if err != nil {
		return nil, err
	}
	s := &Server{Bin: bin, Dir: dir}
	if err := s.start(ctx, settings, rules); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, settings, rules []string) error {
	password := filepath.Join(s.Dir, "password")
	if err := os.WriteFile(password, []byte(Password+"\n"), 0o644); err != nil {
		return err
	}
	if id, err := credential(); err != nil {
		return err
	} else if id != nil {
		if err := os.Chown(s.Dir, int(id.Uid), int(id.Gid)); err != nil {
			return err
		}
	}
	if err := s.Run(ctx, "initdb", "--pgdata", s.data(), "--username", Superuser, "--pwfile", password,
		"--auth-local", "trust", "--auth-host", "scram-sha-256", "--encoding", "UTF8", "--locale", "C.UTF-8",
		"--no-sync"); err != nil {
		return err
	}
	port, err := FreePort()
	if err != nil {
		return err
	}
	s.Port = port
	conf := append([]string{
		"listen_addresses = '127.0.0.1'", "port = " + strconv.Itoa(port),
		"unix_socket_directories = '" + s.Dir + "'", "fsync = off",
	}, settings...)
	if err := appendLines(filepath.Join(s.data(), "postgresql.conf"), conf); err != nil {
		return err
	}
	hba := append(rules, "local all all trust", "host all all 127.0.0.1/32 scram-sha-256")
	if err := os.WriteFile(filepath.Join(s.data(), "pg_hba.conf"), []byte(strings.Join(hba, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	return s.Run(ctx, "pg_ctl", "--pgdata", s.data(), "--log", filepath.Join(s.Dir, "log"), "--wait", "--timeout", "60", "start")
}

// Stop ends the server at once and removes its directory.
func (s *Server) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if _, statErr := os.Stat(filepath.Join(s.data(), "postmaster.pid")); statErr == nil {
		err = s.Run(ctx, "pg_ctl", "--pgdata", s.data(), "--mode", "immediate", "--wait", "stop")
	}
	return errors.Join(err, os.RemoveAll(s.Dir))
}

// Config connects to it as the superuser.
func (s *Server) Config(database string) (*pgconn.Config, error) {
	return pgconn.ParseConfig(fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=%s dbname=%s sslmode=disable",
		s.Port, Superuser, Password, database))
}

// Exec runs SQL in a database.
func (s *Server) Exec(ctx context.Context, database, sql string) error {
	config, err := s.Config(database)
	if err != nil {
		return err
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql).ReadAll()
	return errors.Join(err, conn.Close(ctx))
}

// Run runs one of Postgres's programs as the server's user.
func (s *Server) Run(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(s.Bin, program), args...)
	cmd.Dir = s.Dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	id, err := credential()
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: id}
	out, err := os.CreateTemp("", "plainpg-out-") // a pipe would stay open in the server that pg_ctl starts
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(out.Name())
		return fmt.Errorf("%s: %w: %s", program, err, text)
	}
	return nil
}

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

// credential is the user postgres when this process is root, nil otherwise.
func credential() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("finding a user that may run Postgres: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func appendLines(path string, lines []string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strings.Join(lines, "\n") + "\n")
	return errors.Join(err, f.Close())
}
