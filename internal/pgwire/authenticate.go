package pgwire

import (
	"context"
	"crypto/md5" //nolint:gosec // the protocol's own, used only where configured
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"

	"neki/internal/pgerr"
)

// Method is how a client proves who it is. What needs no exchange (trust, a client certificate) is the caller's.
type Method uint8

const (
	MethodSCRAM    Method = iota // SCRAM-SHA-256, and -PLUS over TLS
	MethodMD5                    // an MD5 challenge for an md5 secret, else SCRAM: as Postgres reads "md5" in pg_hba.conf
	MethodPassword               // the password in clear, against either kind of secret
)

// Largest answers of a client, as in Postgres.
const (
	maxSASLMessage  = 1024
	maxPasswordBody = 65535
)

// Authenticator runs authentication exchanges with clients. It is immutable and safe for concurrent use.
type Authenticator struct {
	mock       Key // keys the salts shown to unknown users: stable for a name, unknown outside
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
// It sends neither the last message of the exchange (see Startup.Pending) and AuthenticationOk, which the caller can put
// into one write with what follows, nor the failure: that is the caller's to Refuse, after what delay it likes. The
// failure is 28P01 for a wrong password.
func (a *Authenticator) Authenticate(ctx context.Context, s *Startup, method Method, secret string) (*Keys, error) {
	release := bind(ctx, s.Raw)
	defer release()
	switch {
	case method == MethodPassword:
		return a.clear(s, secret)
	case method == MethodMD5 && IsMD5(secret):
		return nil, challengeMD5(s, secret)
	}
	return a.scram(s, secret)
}

// verifier gives the verifier to test against; doomed says that it is made up.
func (a *Authenticator) verifier(user, secret string) (v *Verifier, doomed bool) {
	if v, err := ParseVerifier(secret); err == nil {
		return v, false
	}
	salt := mac(a.mock[:], user)
	return &Verifier{Iterations: a.iterations, Salt: salt[:saltLen]}, true
}

func (a *Authenticator) scram(s *Startup, secret string) (*Keys, error) {
	x := scramServer{endpoint: s.endpoint, nonce: newNonce()}
	x.verifier, x.doomed = a.verifier(s.User, secret)
	if err := writeMessages(s.Conn, &pgproto3.AuthenticationSASL{AuthMechanisms: x.mechanisms()}); err != nil {
		return nil, err
	}
	body, err := readAnswer(s, maxSASLMessage, "SASL")
	if err != nil {
		return nil, err
	}
	mechanism, message, err := parseSASLInitial(body)
	if err != nil {
		return nil, err
	}
	if message == nil { // the client waits to be asked for what it could have sent at once
		if err := writeMessages(s.Conn, &pgproto3.AuthenticationSASLContinue{}); err != nil {
			return nil, err
		}
		if message, err = readAnswer(s, maxSASLMessage, "SASL"); err != nil {
			return nil, err
		}
	}
	challenge, err := x.first(mechanism, message)
	if err != nil {
		return nil, err
	}
	if err = writeMessages(s.Conn, &pgproto3.AuthenticationSASLContinue{Data: []byte(challenge)}); err != nil {
		return nil, err
	}
	if body, err = readAnswer(s, maxSASLMessage, "SASL"); err != nil {
		return nil, err
	}
	final, keys, ok, err := x.final(body)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, errPassword(s.User)
	}
	s.pending, err = (&pgproto3.AuthenticationSASLFinal{Data: []byte(final)}).Encode(nil)
	return keys, err
}

// readAnswer reads a password message, the only one a client may send while it is asked who it is.
func readAnswer(s *Startup, limit uint32, what string) ([]byte, error) {
	kind, body, err := readMessage(s.Conn, limit)
	if err != nil {
		return nil, err
	}
	if kind != 'p' {
		return nil, pgerr.Fatal(pgerr.ProtocolViolation, "expected %s response, got message type %d", what, kind)
	}
	return body, nil
}

// parseSASLInitial takes a SASLInitialResponse apart. message is nil when it has no data, of which a length of -1 tells;
// any other length must be that of what follows.
func parseSASLInitial(body []byte) (mechanism string, message []byte, err error) {
	mechanism, rest, ok := cutString(body)
	if !ok {
		return "", nil, pgerr.Fatal(pgerr.ProtocolViolation, "invalid string in message")
	}
	if len(rest) < 4 {
		return "", nil, pgerr.Fatal(pgerr.ProtocolViolation, "insufficient data left in message")
	}
	size := binary.BigEndian.Uint32(rest)
	message = rest[4:]
	switch {
	case size == 1<<32-1 && len(message) == 0:
		return mechanism, nil, nil
	case size == 1<<32-1:
		return "", nil, pgerr.Fatal(pgerr.ProtocolViolation, "invalid message format")
	case uint64(size) > uint64(len(message)):
		return "", nil, pgerr.Fatal(pgerr.ProtocolViolation, "insufficient data left in message")
	case uint64(size) < uint64(len(message)):
		return "", nil, pgerr.Fatal(pgerr.ProtocolViolation, "invalid message format")
	}
	return mechanism, message, nil
}

// clear asks for the password itself. An unknown user costs the same work.
func (a *Authenticator) clear(s *Startup, secret string) (*Keys, error) {
	if err := writeMessages(s.Conn, &pgproto3.AuthenticationCleartextPassword{}); err != nil {
		return nil, err
	}
	password, err := readPassword(s)
	if err != nil {
		return nil, err
	}
	if IsMD5(secret) {
		if subtle.ConstantTimeCompare([]byte(secret), []byte(md5Secret(password, s.User))) != 1 {
			return nil, errPassword(s.User)
		}
		return nil, nil
	}
	verifier, doomed := a.verifier(s.User, secret)
	if verifier.Iterations > maxIterations {
		return nil, errPassword(s.User)
	}
	keys, ok := verifier.Check(password)
	if !ok || doomed {
		return nil, errPassword(s.User)
	}
	return keys, nil
}

func readPassword(s *Startup) (string, error) {
	body, err := readAnswer(s, maxPasswordBody, "password")
	if err != nil {
		return "", err
	}
	password, rest, ok := cutString(body)
	switch {
	case !ok || len(rest) != 0:
		return "", pgerr.Fatal(pgerr.ProtocolViolation, "invalid password packet size")
	case password == "":
		return "", pgerr.Fatal(pgerr.InvalidPassword, "empty password returned by client")
	}
	return password, nil
}

func challengeMD5(s *Startup, secret string) error {
	var salt [4]byte
	rand.Read(salt[:]) //nolint:errcheck // never fails: the process ends instead
	if err := writeMessages(s.Conn, &pgproto3.AuthenticationMD5Password{Salt: salt}); err != nil {
		return err
	}
	answer, err := readPassword(s)
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare([]byte(answer), []byte(md5Answer(secret, salt))) != 1 {
		return errPassword(s.User)
	}
	return nil
}

func errPassword(user string) error {
	return pgerr.Fatal(pgerr.InvalidPassword, "password authentication failed for user \"%s\"", user)
}

// IsMD5 tells an md5 secret: "md5" and 32 lower-case hexadecimal digits. It is all one needs to log in where the same
// secret is stored and md5 is asked for.
func IsMD5(secret string) bool {
	digits, ok := strings.CutPrefix(secret, "md5")
	return ok && len(digits) == 2*md5.Size && strings.Trim(digits, "0123456789abcdef") == ""
}

func md5Secret(password, user string) string { return md5Text(password + user) }

// md5Answer is what a client that knows the secret answers to a challenge.
func md5Answer(secret string, salt [4]byte) string {
	return md5Text(strings.TrimPrefix(secret, "md5") + string(salt[:]))
}

func md5Text(text string) string {
	sum := md5.Sum([]byte(text)) //nolint:gosec // as above
	return "md5" + hex.EncodeToString(sum[:])
}
