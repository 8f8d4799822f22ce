package pgwire

import (
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
)

// servedCertificate remembers which certificate a handshake used; crypto/tls does not tell the server.
type servedCertificate struct{ cert *tls.Certificate }

// keyExchanges are those of Postgres's ssl_groups. The post-quantum hybrids that crypto/tls would add take a quarter of a
// login's CPU, and libpq of most systems knows none.
var keyExchanges = []tls.CurveID{tls.X25519, tls.CurveP256}

// watch gives a copy of cfg for one handshake. Tickets are off, as in Postgres, so the certificate is always chosen.
func (s *servedCertificate) watch(cfg *tls.Config) *tls.Config {
	c := cfg.Clone()
	c.SessionTicketsDisabled = true
	c.DynamicRecordSizingDisabled = true // small records first help browsers; an answer wants one write
	c.NextProtos = []string{alpnProtocol}
	if c.CurvePreferences == nil {
		c.CurvePreferences = keyExchanges
	}
	if choose := cfg.GetConfigForClient; choose != nil {
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(hello)
			if err != nil || chosen == nil {
				return nil, err
			}
			inner := chosen.Clone()
			inner.GetConfigForClient = nil
			return s.watch(inner), nil
		}
	}
	certificates, get := cfg.Certificates, cfg.GetCertificate
	c.Certificates = nil // so that GetCertificate is asked in every case
	c.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := chooseCertificate(hello, certificates, get)
		s.cert = cert
		return cert, err
	}
	return c
}

// chooseCertificate chooses as crypto/tls would have.
func chooseCertificate(
	hello *tls.ClientHelloInfo, certificates []tls.Certificate,
	get func(*tls.ClientHelloInfo) (*tls.Certificate, error),
) (*tls.Certificate, error) {
	if get != nil && (len(certificates) == 0 || hello.ServerName != "") {
		if cert, err := get(hello); cert != nil || err != nil {
			return cert, err
		}
	}
	for i := range certificates {
		if hello.SupportsCertificate(&certificates[i]) == nil {
			return &certificates[i], nil
		}
	}
	if len(certificates) == 0 {
		return nil, nil // crypto/tls reports that there is none
	}
	return &certificates[0], nil
}

// endpoint gives the tls-server-end-point binding, nil when the certificate has none.
func (s *servedCertificate) endpoint() []byte {
	if s.cert == nil {
		return nil
	}
	leaf := s.cert.Leaf
	if leaf == nil {
		var err error
		if leaf, err = x509.ParseCertificate(s.cert.Certificate[0]); err != nil {
			return nil
		}
	}
	return endpointBinding(leaf)
}

// endpointBinding is the hash of a certificate by the hash of its own signature, MD5 and SHA-1 replaced by SHA-256
// (RFC 5929). Signatures without a hash of their own (Ed25519) have no such binding.
func endpointBinding(cert *x509.Certificate) []byte {
	switch cert.SignatureAlgorithm {
	case x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.ECDSAWithSHA1,
		x509.SHA256WithRSA, x509.SHA256WithRSAPSS, x509.DSAWithSHA256, x509.ECDSAWithSHA256:
		h := sha256.Sum256(cert.Raw)
		return h[:]
	case x509.SHA384WithRSA, x509.SHA384WithRSAPSS, x509.ECDSAWithSHA384:
		h := sha512.Sum384(cert.Raw)
		return h[:]
	case x509.SHA512WithRSA, x509.SHA512WithRSAPSS, x509.ECDSAWithSHA512:
		h := sha512.Sum512(cert.Raw)
		return h[:]
	}
	return nil
}
