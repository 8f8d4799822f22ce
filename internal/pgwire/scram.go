package pgwire

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"

	"neki/internal/pgerr"
)

const (
	mechanismPlain = "SCRAM-SHA-256"
	mechanismPlus  = "SCRAM-SHA-256-PLUS"
	bindingType    = "tls-server-end-point"

	// maxIterations bounds the rounds of PBKDF2 that a peer can make us run: under a second.
	maxIterations = 1_000_000
)

// deriveKeys runs PBKDF2 over a clear password: the only slow step of SCRAM, which a client usually takes.
func deriveKeys(password string, salt []byte, iterations int) *Keys {
	salted, err := pbkdf2.Key(sha256.New, saslPrep(password), salt, iterations, keyLen)
	if err != nil {
		panic(err) // only for a bad key length or hash, and both are fixed
	}
	k := &Keys{ClientKey: mac(salted, "Client Key"), ServerKey: mac(salted, "Server Key")}
	k.StoredKey = sha256.Sum256(k.ClientKey[:])
	return k
}

func mac(key []byte, text string) (sum Key) {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	h.Sum(sum[:0])
	return sum
}

// xor combines a client key with a client signature: each gives the other out of a proof.
func xor(a, b Key) (out Key) {
	for i := range a {
		out[i] = a[i] ^ b[i]
	}
	return out
}

// newNonce has as many bytes as Postgres's.
func newNonce() string {
	var b [18]byte
	rand.Read(b[:]) //nolint:errcheck // never fails: the process ends instead
	return base64.StdEncoding.EncodeToString(b[:])
}

// attributes reads the comma-separated x=value list of a SCRAM message.
type attributes struct {
	rest string
	done bool // the last attribute was read
}

// next takes the attribute that must come now.
func (a *attributes) next(name byte) (string, error) {
	if a.done || len(a.rest) < 2 || a.rest[0] != name || a.rest[1] != '=' {
		return "", errSCRAM("Attribute %q was expected.", string(name))
	}
	return a.take(), nil
}

// take gives the value of the attribute at hand, whatever its name.
func (a *attributes) take() string {
	value := a.rest[2:]
	for i := range len(value) {
		if value[i] == ',' {
			a.rest = value[i+1:]
			return value[:i]
		}
	}
	a.rest, a.done = "", true
	return value
}

// skipExtensions passes over optional extensions: all attributes but those named before. With until set, it stops at
// that attribute.
func (a *attributes) skipExtensions(until byte) error {
	for !a.done {
		if len(a.rest) < 2 || a.rest[1] != '=' || !isLetter(a.rest[0]) {
			return errSCRAM("An attribute was expected.")
		}
		if a.rest[0] == until {
			return nil
		}
		a.take()
	}
	if until != 0 {
		return errSCRAM("Attribute %q was expected.", string(until))
	}
	return nil
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// isPrintable tells whether s may be a nonce: not empty, visible ASCII. A comma can't be in it here any more.
func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return false
		}
	}
	return s != ""
}

func errSCRAM(detail string, args ...any) error {
	return pgerr.Fatal(pgerr.ProtocolViolation, "malformed SCRAM message").WithDetail(detail, args...)
}
