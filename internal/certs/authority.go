// Package certs makes and loads the TLS certificates that neki's parts use towards each other and towards clients.
//
// Authority is a small certification authority in a directory. Ensure is idempotent: a certificate that is still good
// for what is asked stays as it is, so it may be called at every start and from time to time. Several processes may use
// one directory: a file lock keeps them apart, and files appear whole.
//
// Reloader serves certificates from files and follows their changes, without a goroutine: at a handshake, at most once
// a second, it looks whether the files are others. What can't be loaded is logged and leaves the last good ones in use.
//
// An Authority and a Reloader are safe for concurrent use.
//
// Manual: https://www.postgresql.org/docs/current/ssl-tcp.html
package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 365 * 24 * time.Hour
	renewBefore   = leafLife / 3
	clockSkew     = time.Hour // certificates are valid from a little before now
)

// Files names a certificate, its key and the authority that peers are checked against. PEM all.
type Files struct{ Cert, Key, CA string }

// Authority signs certificates.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
	now  func() time.Time
}

// OpenAuthority loads ca.crt and ca.key from dir, and makes both when neither exists.
func OpenAuthority(dir string) (*Authority, error) {
	return openAuthority(dir, time.Now)
}

func openAuthority(dir string, now func() time.Time) (*Authority, error) {
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	a := &Authority{dir: dir, now: now}
	certFile, keyFile := a.CAFile(), filepath.Join(dir, "ca.key")
	if missing(certFile) && missing(keyFile) {
		if err := a.create(certFile, keyFile); err != nil {
			return nil, fmt.Errorf("create certification authority: %w", err)
		}
	}
	if a.cert, a.key, err = loadPair(certFile, keyFile); err != nil {
		return nil, fmt.Errorf("load certification authority: %w", err)
	}
	if !a.cert.IsCA {
		return nil, fmt.Errorf("%s is not a certification authority", certFile)
	}
	return a, nil
}

// CAFile is the authority's own certificate: what peers trust.
func (a *Authority) CAFile() string { return filepath.Join(a.dir, "ca.crt") }

func (a *Authority) create(certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "neki authority"},
		NotBefore:             a.now().Add(-clockSkew),
		NotAfter:              a.now().Add(authorityLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	return sign(template, template, key.Public(), key, key, certFile, keyFile)
}

// Request says what a certificate is for.
type Request struct {
	Name           string   // of the files: <Name>.crt and <Name>.key
	CommonName     string   // Name when empty
	Hosts          []string // host names and addresses that a server is reached by
	Server, Client bool     // which sides of a connection it may be used for
}

// Ensure makes sure that dir has a certificate that fits r, signed by this authority and valid for some time.
func (a *Authority) Ensure(dir string, r Request) (Files, error) {
	if r.CommonName == "" {
		r.CommonName = r.Name
	}
	if r.Name == "" || filepath.Base(r.Name) != r.Name || r.Name == "ca" || !r.Server && !r.Client {
		return Files{}, fmt.Errorf("certificate request %q is not usable", r.Name)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return Files{}, err
	}
	defer unlock()
	files := Files{Cert: filepath.Join(dir, r.Name+".crt"), Key: filepath.Join(dir, r.Name+".key"), CA: a.CAFile()}
	if a.fits(files, r) {
		return files, nil
	}
	if err := a.issue(files, r); err != nil {
		return Files{}, fmt.Errorf("issue certificate %q: %w", r.Name, err)
	}
	return files, nil
}

// fits reports whether the certificate there is one that issue would make again.
func (a *Authority) fits(files Files, r Request) bool {
	cert, _, err := loadPair(files.Cert, files.Key)
	if err != nil || cert.Subject.CommonName != r.CommonName || a.now().Add(renewBefore).After(cert.NotAfter) {
		return false
	}
	for _, host := range r.Hosts {
		if cert.VerifyHostname(host) != nil {
			return false
		}
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	for _, usage := range r.usages() {
		opts := x509.VerifyOptions{Roots: roots, CurrentTime: a.now(), KeyUsages: []x509.ExtKeyUsage{usage}}
		if _, err := cert.Verify(opts); err != nil {
			return false
		}
	}
	return true
}

func (r Request) usages() (usages []x509.ExtKeyUsage) {
	if r.Server {
		usages = append(usages, x509.ExtKeyUsageServerAuth)
	}
	if r.Client {
		usages = append(usages, x509.ExtKeyUsageClientAuth)
	}
	return usages
}

func (a *Authority) issue(files Files, r Request) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: r.CommonName},
		NotBefore:   a.now().Add(-clockSkew),
		NotAfter:    a.now().Add(leafLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: r.usages(),
	}
	for _, host := range r.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return sign(template, a.cert, key.Public(), key, a.key, files.Cert, files.Key)
}

// sign writes a new certificate and its key. The key comes first: a reader that sees the new key beside the old
// certificate finds that they don't match and waits.
func sign(template, parent *x509.Certificate, public crypto.PublicKey, key, signer crypto.Signer, certFile, keyFile string) error {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writeWhole(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600); err != nil {
		return err
	}
	return writeWhole(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

func missing(file string) bool {
	_, err := os.Lstat(file)
	return errors.Is(err, fs.ErrNotExist)
}
