package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rogpeppe/go-internal/testscript"

	"neki/catalog/etcdstore/embedded"
	"neki/cluster/pgproc"
	"neki/internal/certs"
	"neki/internal/pgerr"
	"neki/internal/pgwire"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"neki": main}) }

// scriptLimit bounds each wait of a script.
const scriptLimit = 90 * time.Second

func TestScript(t *testing.T) {
	// Postgres runs as another user when the test runs as root, who must reach the scripts' directories; and the paths
	// of sockets must be short.
	root, err := os.MkdirTemp("/tmp", "neki-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, dir := range postmasters(root) {
			t.Errorf("a Postgres was left running in %s", dir)
			kill(dir)
		}
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", WorkdirRoot: root, RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"freeport": freePort, "ready": ready, "eventually": eventually, "servers": servers, "etcd": startEtcd,
			"terminate": terminate, "stopetcd": stopEtcd, "cancelvia": cancelVia,
			"certificates": certificates, "reconnect": reconnect,
		},
		Condition: func(name string) (bool, error) {
			_, err := pgproc.FindInstallation(t.Context(), "", 0)
			return name == "postgres" && err == nil && !testing.Short(), nil
		},
		Setup: func(env *testscript.Env) error {
			example, err := filepath.Abs("../../docs/neki.example.yaml")
			env.Setenv("EXAMPLE", example)
			env.Values[etcdValue{}] = new(*embedded.Server)
			env.Values[clientsValue{}] = &clients{}
			return err
		},
	})
}

// freePort sets variables to free ports: freeport NAME...
func freePort(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		ts.Check(err)
		defer l.Close() //nolint:errcheck // only the number was wanted
		ts.Setenv(name, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
}

// ready waits for a dev.env and takes its variables into the script's environment: ready FILE
func ready(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	await(ts, "no "+path, func() bool { _, err := os.Stat(path); return err == nil })
	f, err := os.Open(path)
	ts.Check(err)
	defer f.Close() //nolint:errcheck // opened for reading
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(strings.TrimPrefix(lines.Text(), "export "), "="); ok && !strings.HasPrefix(name, "#") {
			ts.Setenv(name, strings.Trim(value, "'"))
		}
	}
}

// eventually runs a command until its output matches: eventually PATTERN COMMAND ARGUMENT...
func eventually(ts *testscript.TestScript, _ bool, args []string) {
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	await(ts, "no "+args[0]+" of "+strings.Join(args[1:], " "), func() bool {
		err := ts.Exec(args[1], args[2:]...)
		return err == nil && pattern.MatchString(ts.ReadFile("stdout"))
	})
}

func await(ts *testscript.TestScript, what string, done func() bool) {
	for end := time.Now().Add(scriptLimit); !done(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			ts.Fatalf("within %s: %s", scriptLimit, what)
		}
	}
}

// servers checks how many Postgres servers run below a directory: servers DIR NUMBER
func servers(ts *testscript.TestScript, _ bool, args []string) {
	if found := postmasters(ts.MkAbs(args[0])); strconv.Itoa(len(found)) != args[1] {
		ts.Fatalf("%d servers run, not %s: %v", len(found), args[1], found)
	}
}

// terminate sends SIGTERM to the process whose id a file holds: terminate FILE
func terminate(ts *testscript.TestScript, _ bool, args []string) {
	pid, err := strconv.Atoi(strings.TrimSpace(ts.ReadFile(args[0])))
	ts.Check(err)
	ts.Check(syscall.Kill(pid, syscall.SIGTERM))
}

// etcdValue is the key of a script's etcd.
type etcdValue struct{}

// startEtcd runs an etcd for the script, until stopetcd or its end, and sets a variable to its endpoint: etcd NAME
func startEtcd(ts *testscript.TestScript, _ bool, args []string) {
	s, err := embedded.Start(context.Background(), ts.MkAbs("etcd"), slog.New(slog.DiscardHandler))
	ts.Check(err)
	ts.Defer(s.Close)
	*ts.Value(etcdValue{}).(**embedded.Server) = s
	ts.Setenv(args[0], s.Endpoints()[0])
}

// stopEtcd ends the script's etcd: stopetcd
func stopEtcd(ts *testscript.TestScript, _ bool, _ []string) {
	(*ts.Value(etcdValue{}).(**embedded.Server)).Close()
}

// certificates makes an authority, ca.crt, and rpc.crt and rpc.key for this machine: certificates DIR
func certificates(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o755))
	authority, err := certs.OpenAuthority(dir)
	ts.Check(err)
	_, err = authority.Ensure(dir, certs.Request{Name: "rpc", Hosts: []string{"127.0.0.1"}, Server: true, Client: true})
	ts.Check(err)
}

// clientsValue is the key of a script's clients.
type clientsValue struct{}

// clients connect, ask and leave, again and again.
type clients struct {
	stop   context.CancelFunc
	joined sync.WaitGroup
	mu     sync.Mutex
	served int
	failed error // the first failure
}

// reconnect starts clients of the environment's gateway, or stops them and fails if one of them ever failed:
// reconnect start|stop
func reconnect(ts *testscript.TestScript, _ bool, args []string) {
	c := ts.Value(clientsValue{}).(*clients)
	if args[0] == "stop" {
		state := func() (int, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.served, c.failed
		}
		before, _ := state()
		await(ts, "the clients are not served any more", func() bool { n, err := state(); return n >= before+20 || err != nil })
		c.stop()
		c.joined.Wait()
		if c.failed != nil {
			ts.Fatalf("%d clients were served; one failed: %v", c.served, c.failed)
		}
		return
	}
	dsn := fmt.Sprintf("host=%s port=%s user=%s password=%s dbname=%s sslmode=disable",
		ts.Getenv("PGHOST"), ts.Getenv("PGPORT"), ts.Getenv("PGUSER"), ts.Getenv("PGPASSWORD"), ts.Getenv("PGDATABASE"))
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	ts.Defer(stop)
	for range 4 {
		c.joined.Go(func() {
			for ctx.Err() == nil {
				c.note(visit(dsn))
			}
		})
	}
}

func (c *clients) note(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.served++; c.failed == nil {
		c.failed = err
	}
}

func visit(dsn string) error {
	ctx, stop := context.WithTimeout(context.Background(), scriptLimit)
	defer stop()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // the statements' errors count
	for range 3 {
		if _, err := conn.Exec(ctx, "SELECT 1"); err != nil {
			return err
		}
	}
	return nil
}

// cancelLimit bounds the delivery of one cancel request.
const cancelLimit = 10 * time.Second

// cancelVia runs a statement on the gateway of the environment and cancels it by another one: cancelvia HOST:PORT
func cancelVia(ts *testscript.TestScript, _ bool, args []string) {
	ctx, stop := context.WithTimeout(context.Background(), 2*scriptLimit) // when it ends, pgx itself cancels
	defer stop()
	conn, err := pgx.Connect(ctx, fmt.Sprintf("host=%s port=%s user=%s password=%s dbname=%s sslmode=disable",
		ts.Getenv("PGHOST"), ts.Getenv("PGPORT"), ts.Getenv("PGUSER"), ts.Getenv("PGPASSWORD"), ts.Getenv("PGDATABASE")))
	ts.Check(err)
	defer conn.Close(ctx) //nolint:errcheck // the statement's error counts
	pid, secret := conn.PgConn().PID(), conn.PgConn().SecretKey()
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, "SELECT pg_sleep(600)")
		ended <- err
	}()
	await(ts, "no cancel by "+args[0], func() bool { // a request that comes before the statement has no effect
		limited, stop := context.WithTimeout(ctx, cancelLimit)
		defer stop()
		ts.Check(pgwire.SendCancel(limited, (&net.Dialer{}).DialContext, args[0], pid, secret, nil))
		select {
		case err = <-ended:
			return true
		default:
			return false
		}
	})
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != pgerr.QueryCanceled {
		ts.Fatalf("canceled by %s: %v", args[0], err)
	}
}

// postmasters lists the data directories below root in which a postmaster runs.
func postmasters(root string) (found []string) {
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "postmaster.pid" && postmasterPort(filepath.Dir(filepath.Dir(path))) != 0 {
			found = append(found, filepath.Dir(path))
		}
		return nil
	})
	return found
}

// kill ends the processes that work in a data directory.
func kill(dir string) {
	text, _ := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	first, _, _ := strings.Cut(string(text), "\n")
	if pid, err := strconv.Atoi(first); err == nil {
		_ = syscall.Kill(pid, syscall.SIGQUIT) // it may have ended
	}
}
