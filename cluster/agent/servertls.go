package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"neki/cluster/pgproc"
)

// ServerTLS is the certificate that the instance's server shows, in files of PEM. With an authority everybody who comes by the
// network must speak TLS, and the instances that this one follows must show a certificate of that authority.
type ServerTLS struct{ Cert, Key, CA string }

// renewEvery is how often the files are looked at: they are renewed while the server runs.
const renewEvery = time.Minute

// Names of the copies that the server reads: it insists on who owns a key, and the account may not be able to read the files.
const (
	serverCert = "server.crt"
	serverKey  = "server.key"
	serverCA   = "ca.crt"
)

func (a *Agent) tlsFile(name string) string { return filepath.Join(a.pg.SocketDir(), name) }

// copyCertificates brings the server's copies in line with the files, and reports whether they had changed.
func (a *Agent) copyCertificates() (changed bool, err error) {
	t := a.cfg.ServerTLS
	if t.Cert == "" {
		return false, nil
	}
	for name, from := range map[string]string{serverCert: t.Cert, serverKey: t.Key, serverCA: t.CA} {
		if from == "" {
			continue
		}
		text, err := os.ReadFile(from)
		if err != nil {
			return changed, fmt.Errorf("the server's certificate: %w", err)
		}
		if old, err := os.ReadFile(a.tlsFile(name)); err == nil && bytes.Equal(old, text) {
			continue
		}
		if err := pgproc.ReplaceFile(a.tlsFile(name), text, 0o600, a.cfg.Account); err != nil {
			return changed, err
		}
		changed = true
	}
	return changed, nil
}

// renewCertificates has the server read files that were renewed, until ctx ends.
func (a *Agent) renewCertificates(ctx context.Context) error {
	if a.cfg.ServerTLS.Cert == "" {
		return nil
	}
	return every(ctx, renewEvery, func(time.Time) {
		changed, err := a.copyCertificates()
		if changed && a.pg.Running() != 0 {
			err = errors.Join(err, a.pg.Reload())
		}
		if err != nil {
			a.log.Warn("certificates not renewed", "error", err)
		}
	})
}

// tlsSettings switches the server's TLS on.
func (a *Agent) tlsSettings() pgproc.Settings {
	if a.cfg.ServerTLS.Cert == "" {
		return nil
	}
	return pgproc.Settings{"ssl": "on", "ssl_cert_file": a.tlsFile(serverCert), "ssl_key_file": a.tlsFile(serverKey), "ssl_min_protocol_version": "TLSv1.2"}
}

// sslMode is how this instance comes to others, as a part of a connection string.
func (a *Agent) sslMode() string {
	if a.cfg.ServerTLS.CA == "" {
		return "sslmode=prefer"
	}
	return "sslmode=verify-ca sslrootcert=" + quoteConninfo(a.tlsFile(serverCA))
}

// onlyTLS lets those who come by the network in by TLS alone, if that is asked for.
func (a *Agent) onlyTLS(rules []pgproc.HBARule) []pgproc.HBARule {
	if a.cfg.ServerTLS.CA == "" {
		return rules
	}
	for i, r := range rules {
		if rest, ok := strings.CutPrefix(string(r), "host "); ok && !strings.HasSuffix(rest, " reject") {
			rules[i] = pgproc.HBARule("hostssl " + rest)
		}
	}
	return rules
}
