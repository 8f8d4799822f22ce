// Package embedded runs an etcd of one member in this process, for `neki dev` and for tests.
//
// It listens on a Unix socket in its own directory, which only its user may enter, and nowhere else; where the path is
// too long for a socket it takes a free port of the loopback instead. Every write is on disk when it is acknowledged.
// A restart in the same directory goes on where it was.
//
// All goroutines are etcd's and are joined by Server.Close.
//
// Manual: https://etcd.io/docs/latest/op-guide/configuration/
package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	quota        = 512 << 20 // bytes of the backend file; a catalog has some 100 kB
	retention    = "1000"    // revisions kept, beyond which watches list again
	maxSocket    = 100       // longest path of a Unix socket that every system takes
	snapshots    = 10_000    // entries between snapshots: bounds the log to replay at a start
	memberName   = "neki"
	peerURL      = "http://127.0.0.1:2380" // a name only: a single member has no peers and listens for none
	socketFile   = "client.sock"
	compactModes = "revision"
)

// Server is a running etcd.
type Server struct {
	etcd      *embed.Etcd
	lock      *os.File
	endpoints []string
	close     sync.Once
	closing   atomic.Bool // errors are those of its own end then
}

// Start runs etcd with its data in dir, which is made if needed, and returns once it serves. ctx bounds that wait
// only.
func Start(ctx context.Context, dir string, log *slog.Logger) (*Server, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	s := &Server{lock: lock}
	if err := s.start(ctx, dir, log); err != nil {
		s.Close()
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	return s, nil
}

// lockDir keeps a second server out: etcd's own lock is waited for, and only after the socket was taken over.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another process has %s in use: %w", dir, err)
	}
	return f, nil
}

func (s *Server) start(ctx context.Context, dir string, log *slog.Logger) error {
	client, err := clientURL(dir)
	if err != nil {
		return err
	}
	s.endpoints = []string{client.String()}
	s.etcd, err = embed.StartEtcd(config(dir, client, &logCore{log: log, closing: &s.closing}))
	if err != nil {
		return err
	}
	select {
	case <-s.etcd.Server.ReadyNotify():
		return nil
	case err := <-s.etcd.Err():
		return err
	case <-s.etcd.Server.StopNotify():
		return errors.New("stopped while starting")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func clientURL(dir string) (url.URL, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return url.URL{}, err
	}
	socket := filepath.Join(dir, socketFile)
	if len(socket) <= maxSocket {
		return url.URL{Scheme: "unix", Path: socket}, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return url.URL{}, err
	}
	defer l.Close()
	return url.URL{Scheme: "http", Host: l.Addr().String()}, nil
}

func config(dir string, client url.URL, log *logCore) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dir, "data")
	cfg.Name = memberName
	peer, _ := url.Parse(peerURL) // a constant
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, []url.URL{*peer}
	cfg.InitialCluster = memberName + "=" + peerURL
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = compactModes, retention
	cfg.QuotaBackendBytes = quota
	cfg.SnapshotCount = snapshots
	cfg.EnableGRPCGateway = false
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(log))
	return cfg
}

// Endpoints gives what clients connect to.
func (s *Server) Endpoints() []string { return s.endpoints }

// Failed gives the error for which the server has ended by itself, if it has.
func (s *Server) Failed() <-chan error { return s.etcd.Err() }

// Close stops the server and waits for it. The data stays.
func (s *Server) Close() {
	s.close.Do(func() {
		s.closing.Store(true)
		if s.etcd != nil {
			s.etcd.Close()
		}
		s.lock.Close()
	})
}

// logCore sends etcd's errors to slog, and its warnings, which are mostly about slow disks, for debugging.
type logCore struct {
	log     *slog.Logger
	closing *atomic.Bool
	fields  []zapcore.Field
}

func (c *logCore) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

func (c *logCore) With(fields []zapcore.Field) zapcore.Core {
	return &logCore{c.log, c.closing, append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

func (c *logCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c *logCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, list := range [][]zapcore.Field{c.fields, fields} {
		for _, f := range list {
			f.AddTo(values)
		}
	}
	level := slog.LevelDebug
	if e.Level >= zapcore.ErrorLevel && !c.closing.Load() {
		level = slog.LevelError
	}
	attributes := []any{slog.String("component", "etcd")}
	for name, v := range values.Fields {
		attributes = append(attributes, slog.Any(name, v))
	}
	c.log.Log(context.Background(), level, e.Message, attributes...)
	return nil
}

func (c *logCore) Sync() error { return nil }
