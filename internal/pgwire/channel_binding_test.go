package pgwire

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"
)

func TestEndpointBinding(t *testing.T) {
	raw := []byte("a certificate")
	h256, h384, h512 := sha256.Sum256(raw), sha512.Sum384(raw), sha512.Sum512(raw)
	for algorithm, want := range map[x509.SignatureAlgorithm][]byte{
		x509.MD5WithRSA:       h256[:], // RFC 5929: never weaker than SHA-256
		x509.SHA1WithRSA:      h256[:],
		x509.ECDSAWithSHA1:    h256[:],
		x509.SHA256WithRSA:    h256[:],
		x509.ECDSAWithSHA256:  h256[:],
		x509.SHA384WithRSA:    h384[:],
		x509.ECDSAWithSHA384:  h384[:],
		x509.SHA512WithRSAPSS: h512[:],
		x509.ECDSAWithSHA512:  h512[:],
		x509.PureEd25519:      nil,
	} {
		if got := endpointBinding(&x509.Certificate{Raw: raw, SignatureAlgorithm: algorithm}); !bytes.Equal(got, want) {
			t.Errorf("%v: got %x, want %x", algorithm, got, want)
		}
	}
	if got := (&servedCertificate{}).endpoint(); got != nil {
		t.Errorf("binding %x without a certificate", got)
	}
	broken := servedCertificate{cert: &tls.Certificate{Certificate: [][]byte{raw}}}
	if got := broken.endpoint(); got != nil {
		t.Errorf("binding %x of rubbish", got)
	}
}

// TestServedCertificate looks whether the binding is of the certificate that the client saw, whichever way the server
// chooses it.
func TestServedCertificate(t *testing.T) {
	first, client := testTLS(t)
	second, _ := testTLS(t)
	one, two := first.Certificates[0], second.Certificates[0]
	client = client.Clone()
	client.InsecureSkipVerify = true // the certificates are of two authorities
	give := func(c *tls.Certificate) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c, nil }
	}
	for name, c := range map[string]struct {
		server *tls.Config
		want   tls.Certificate
	}{
		"a list":              {&tls.Config{Certificates: []tls.Certificate{two, one}}, two},
		"a function":          {&tls.Config{GetCertificate: give(&two)}, two},
		"a list and function": {&tls.Config{Certificates: []tls.Certificate{one}, GetCertificate: give(&two)}, two},
		"nothing, then list":  {&tls.Config{Certificates: []tls.Certificate{one}, GetCertificate: give(nil)}, one},
		"a configuration": {&tls.Config{Certificates: []tls.Certificate{one}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return &tls.Config{Certificates: []tls.Certificate{two}}, nil
		}}, two},
		"no configuration": {&tls.Config{Certificates: []tls.Certificate{one}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return nil, nil
		}}, one},
	} {
		t.Run(name, func(t *testing.T) {
			server, conn := loopback(t)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			seen := make(chan []byte, 1)
			go func() {
				defer close(seen)
				secure, err := requestTLSFrom(ctx, conn, client)
				if err != nil {
					t.Error(err)
					return
				}
				seen <- secure.ConnectionState().PeerCertificates[0].Raw
				secure.Write(packet(Protocol30, params()))
			}()
			s, err := Accept(ctx, server, StartupConfig{TLS: c.server})
			if err != nil {
				t.Fatal(err)
			}
			raw := <-seen
			want := sha256.Sum256(c.want.Certificate[0])
			if !bytes.Equal(raw, c.want.Certificate[0]) || !bytes.Equal(s.endpoint, want[:]) {
				t.Error("the binding is of another certificate than the client saw")
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		o := open(t, StartupConfig{TLS: &tls.Config{}}, upgrade(t, client, false, "", nil))
		if o.err == nil {
			t.Error("a handshake without a certificate succeeded")
		}
	})
}
