package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	adminsql "neki/admin_sql"
	"neki/catalog/etcdstore"
	"neki/cluster/agent"
	"neki/cluster/pgproc"
	"neki/internal/certs"
	"neki/internal/pgerr"
	"neki/settings"
)

// loadConfig reads neki.yaml.
func loadConfig(path string) (settings.Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return settings.Config{}, pgerr.New(pgerr.ConfigFileError, "can't read the configuration: %w", err).
			WithHint("docs/neki.example.yaml shows every key.")
	}
	defer f.Close() //nolint:errcheck // opened for reading
	cfg, err := settings.LoadConfig(f)
	if err != nil {
		return settings.Config{}, pgerr.New(pgerr.ConfigFileError, "%s: %s", path, strings.TrimPrefix(err.Error(), "neki.yaml: "))
	}
	return cfg, nil
}

// require refuses a configuration without a value that the command can't do without.
func require(path string, values ...string) error {
	for i := 0; i < len(values); i += 2 {
		if values[i+1] == "" {
			return pgerr.New(pgerr.ConfigFileError, "%s: %s is missing", path, values[i]).
				WithHint("docs/neki.example.yaml shows every key.")
		}
	}
	return nil
}

// newLog writes text to w from a level on; the level is one of settings' words.
func newLog(w io.Writer, level string) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: logLevel(level)}))
}

func logLevel(word string) slog.Level {
	switch word {
	case "debug":
		return slog.LevelDebug
	case "warn":
		return slog.LevelWarn
	case "error":
		return slog.LevelError
	}
	return slog.LevelInfo
}

// openStore opens the catalog on etcd. It does not wait for etcd.
func openStore(cfg settings.Etcd, log *slog.Logger) (*etcdstore.Store, error) {
	t, err := clientTLS(cfg.TLS, log)
	if err != nil {
		return nil, fmt.Errorf("etcd.tls: %w", err)
	}
	return etcdstore.Open(etcdstore.Config{Endpoints: cfg.Endpoints, TLS: t})
}

// clientTLS is for connections to servers that must prove their name by the authority, with a certificate of our own
// when there is one; nil when nothing is configured.
func clientTLS(t settings.TLS, log *slog.Logger) (*tls.Config, error) {
	switch {
	case t == (settings.TLS{}):
		return nil, nil //nolint:nilnil // no TLS is no error
	case t.Cert != "":
		r, err := certs.NewReloader(certs.Files{Cert: t.Cert, Key: t.Key, CA: t.CA}, log)
		if err != nil {
			return nil, err
		}
		return r.ClientConfig(""), nil
	}
	text, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate", t.CA)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, nil
}

// backendTLS is for connections to instances: their certificates must be of the authority, whatever name is in them
// (libpq's verify-ca), for one configuration serves all instances.
func backendTLS(t settings.TLS, log *slog.Logger) (*tls.Config, error) {
	cfg, err := clientTLS(t, log)
	if cfg == nil || err != nil {
		return nil, err
	}
	roots := cfg.RootCAs
	cfg.InsecureSkipVerify = true // VerifyConnection does it
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		chain := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
		for _, c := range state.PeerCertificates[1:] {
			chain.Intermediates.AddCert(c)
		}
		_, err := state.PeerCertificates[0].Verify(chain)
		return err
	}
	return cfg, nil
}

// clientsTLS is for the gateway's clients, who may give certificates when there is an authority to check them by; nil
// when there is no certificate.
func clientsTLS(t settings.TLS, log *slog.Logger) (*tls.Config, error) {
	if t.Cert == "" {
		return nil, nil //nolint:nilnil // no TLS is no error
	}
	r, err := certs.NewReloader(certs.Files{Cert: t.Cert, Key: t.Key, CA: t.CA}, log)
	if err != nil {
		return nil, err
	}
	auth := tls.NoClientCert
	if t.CA != "" {
		auth = tls.VerifyClientCertIfGiven
	}
	return r.ServerConfig(auth), nil
}

// rpc is how the parts of a cluster speak to each other by HTTP.
type rpc struct {
	server *tls.Config // nil: plain, guarded by token
	client *http.Client
	token  string
}

// newRPC reads certificates or the token.
func newRPC(path string, cfg settings.RPC, log *slog.Logger) (rpc, error) {
	if cfg.TLS.Cert == "" && cfg.TokenFile == "" {
		return rpc{}, pgerr.New(pgerr.ConfigFileError, "%s: rpc needs tls (cert, key, ca) or token-file", path).
			WithHint("Agents, admins and gateways speak to each other over mutual TLS, or on one machine with a shared token.")
	}
	if cfg.TokenFile != "" {
		text, err := os.ReadFile(cfg.TokenFile)
		if err != nil {
			return rpc{}, pgerr.New(pgerr.ConfigFileError, "%s: rpc.token-file: %w", path, err)
		}
		return rpc{client: newHTTPClient(nil), token: strings.TrimSpace(string(text))}, nil
	}
	r, err := certs.NewReloader(certs.Files{Cert: cfg.TLS.Cert, Key: cfg.TLS.Key, CA: cfg.TLS.CA}, log)
	if err != nil {
		return rpc{}, pgerr.New(pgerr.ConfigFileError, "%s: rpc.tls: %w", path, err)
	}
	return rpc{server: r.ServerConfig(tls.RequireAndVerifyClientCert), client: newHTTPClient(r.ClientConfig(""))}, nil
}

// newHTTPClient calls agents. It has no time limit of its own: health is a stream.
func newHTTPClient(t *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: t, MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 5 * time.Second,
	}}
}

// hostID makes an id from the machine's name for a part that was given none.
func hostID(prefix string) string {
	name, err := os.Hostname()
	if err != nil {
		name = "host"
	}
	name, _, _ = strings.Cut(name, ".")
	return prefix + "-" + name
}

// versionOf gives the major version of the first of the instances that has data, 0 when none has.
func versionOf(nodes []string) (data string, major int) {
	for _, node := range nodes {
		data = filepath.Join(node, "data")
		text, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
		if err != nil {
			continue
		}
		if major, err = strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			return data, major
		}
	}
	return "", 0
}

// stubSchema is what the admin has put into each database, so that catalogues show the neki schema.
func stubSchema() *agent.StubSchema {
	return &agent.StubSchema{SQL: adminsql.StubSQL(), Version: adminsql.StubVersion(), VersionQuery: adminsql.StubVersionQuery}
}

// findPostgres finds server binaries with all that an agent needs, of the version that the instances in the directories
// nodes have, if they are there already.
func findPostgres(ctx context.Context, dir string, nodes ...string) (pgproc.Installation, error) {
	data, major := versionOf(nodes)
	found, err := pgproc.FindInstallation(ctx, dir, major)
	if major != 0 && errors.Is(err, pgproc.ErrNoBinaries) {
		e := pgerr.From(err)
		err = pgerr.New(pgerr.SystemError, "the data in %s is of PostgreSQL %d, and no server binaries of that version were found", data, major).
			WithDetail("%s", e.Detail).
			WithHint("Install PostgreSQL %d, or give the directory of its server programs with --postgres-bin or postgres-bin. "+
				"neki does not upgrade data to another major version.", major)
	}
	if err == nil {
		err = found.CheckTools()
	}
	if ctx.Err() != nil { // it runs programs, whose end says nothing then
		err = ctx.Err()
	}
	return found, err
}
