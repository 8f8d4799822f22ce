package certs

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// lookEvery is how often, at most, the files are looked at.
const lookEvery = time.Second

// Reloader serves a certificate from files and follows their changes.
type Reloader struct {
	files Files
	log   *slog.Logger
	every time.Duration

	mu     sync.Mutex
	looked time.Time
	state  loaded
}

// loaded is what the files held. It is not changed once made.
type loaded struct {
	cert  *tls.Certificate
	roots *x509.CertPool // empty without a CA file
	stamp [3]fileStamp
}

// fileStamp tells one content of a file from another, without reading it.
type fileStamp struct {
	size     int64
	modified time.Time
}

// NewReloader loads files; CA may be empty.
func NewReloader(files Files, log *slog.Logger) (*Reloader, error) {
	r := &Reloader{files: files, log: log, every: lookEvery}
	state, err := r.load()
	if err != nil {
		return nil, err
	}
	r.state, r.looked = state, time.Now()
	return r, nil
}

func (r *Reloader) load() (loaded, error) {
	stamp, err := r.look() // before the content: a change in between is seen next time
	if err != nil {
		return loaded{}, err
	}
	cert, err := tls.LoadX509KeyPair(r.files.Cert, r.files.Key)
	if err != nil {
		return loaded{}, fmt.Errorf("load certificate %s: %w", r.files.Cert, err)
	}
	state := loaded{cert: &cert, roots: x509.NewCertPool(), stamp: stamp}
	if r.files.CA == "" { // nobody is trusted: a nil pool would be the system's authorities
		return state, nil
	}
	text, err := os.ReadFile(r.files.CA)
	if err != nil {
		return loaded{}, err
	}
	if !state.roots.AppendCertsFromPEM(text) {
		return loaded{}, fmt.Errorf("%s holds no certificate", r.files.CA)
	}
	return state, nil
}

func (r *Reloader) look() (stamp [3]fileStamp, err error) {
	for i, name := range []string{r.files.Cert, r.files.Key, r.files.CA} {
		if name == "" {
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return stamp, err
		}
		stamp[i] = fileStamp{info.Size(), info.ModTime()}
	}
	return stamp, nil
}

// current gives what the files hold, or what they held when they were last good.
func (r *Reloader) current() loaded {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.looked) < r.every {
		return r.state
	}
	r.looked = time.Now()
	stamp, err := r.look()
	if err == nil && stamp == r.state.stamp {
		return r.state
	}
	var state loaded
	if err == nil {
		state, err = r.load()
	}
	if err != nil {
		r.log.Warn("certificate files can't be loaded; the last good ones stay in use", "error", err)
		return r.state
	}
	r.log.Info("certificate loaded", "file", r.files.Cert)
	r.state = state
	return state
}

// ServerConfig is for a server. It asks clients for certificates as auth says and checks them against the CA file.
func (r *Reloader) ServerConfig(auth tls.ClientAuthType) *tls.Config {
	now := func() *tls.Config {
		state := r.current()
		return &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*state.cert},
			ClientAuth: auth, ClientCAs: state.roots,
		}
	}
	cfg := now()
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return now(), nil }
	return cfg
}

// ClientConfig is for one connection to a server that must prove to be serverName by the CA file (verify-full). Ask for
// it anew for each connection, so that it is of the files as they are.
func (r *Reloader) ClientConfig(serverName string) *tls.Config {
	state := r.current()
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: serverName, RootCAs: state.roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return r.current().cert, nil
		},
	}
}

// GetCertificate fits tls.Config.GetCertificate.
func (r *Reloader) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return r.current().cert, nil
}
