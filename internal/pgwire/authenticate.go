package pgwire

import (
	"context"
	"crypto/rand"

	"neki/internal/pgerr"
)

// Method is how a client proves who it is. What needs no exchange (trust, a client certificate) is the caller's.
type Method uint8

const (
	MethodSCRAM    Method = iota // SCRAM-SHA-256, and -PLUS over TLS
	MethodMD5                    // an MD5 challenge for an md5 secret, else SCRAM: as Postgres reads "md5" in pg_hba.conf
	MethodPassword               // the password in clear, against either kind of secret
)

// Authenticator runs authentication exchanges with clients. It is immutable and safe for concurrent use.
type Authenticator struct {
	mock       [32]byte // keys the salts shown to unknown users: stable for a name, unknown outside
	iterations int
}

// NewAuthenticator makes one. Gateways that share mockSecret show an unknown user the same salt; nil takes a random
// one. iterations is what an unknown user is shown; 0 is DefaultIterations.
func NewAuthenticator(mockSecret []byte, iterations int) *Authenticator {
	a := &Authenticator{iterations: iterations}
	if iterations <= 0 {
		a.iterations = DefaultIterations
	}
	if mockSecret == nil {
		rand.Read(a.mock[:]) //nolint:errcheck // never fails: the process ends instead
	} else {
		a.mock = mac(mockSecret, "neki mock authentication")
	}
	return a
}

// Authenticate proves the client of s against secret, which is its pg_authid.rolpassword, "" for an unknown user or
// one without a password: they get the same exchange as a wrong password. The keys are nil after an MD5 challenge and
// after a clear password checked against an md5 secret.
//
// It sends neither AuthenticationOk, which the caller can put into one write with what follows, nor the failure: that
// is the caller's to Refuse, after what delay it likes. The failure is 28P01 for a wrong password.
func (a *Authenticator) Authenticate(ctx context.Context, s *Startup, method Method, secret string) (*Keys, error) {
	release := bind(ctx, s.Raw)
	defer release()
	switch method {
	case MethodSCRAM, MethodMD5, MethodPassword:
	}
	return nil, pgerr.Fatal(pgerr.InternalError, "not built yet")
}
