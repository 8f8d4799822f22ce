package pgwire

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"

	"neki/internal/pgerr"
)

const (
	keyLen = sha256.Size

	// DefaultIterations is scram_iterations of Postgres.
	DefaultIterations = 4096
	saltLen           = 16
	verifierPrefix    = "SCRAM-SHA-256$"
	redacted          = "redacted"
)

// Key is a SCRAM-SHA-256 key. It prints as "redacted".
type Key [keyLen]byte

// Format prints "redacted", whatever the verb.
func (Key) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) } //nolint:errcheck // fmt keeps the error

// LogValue keeps a key out of logs.
func (Key) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText keeps a key out of JSON and other dumps.
func (Key) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Keys are what a role's SCRAM exchange yields: with them one can log in as the role wherever the same verifier is
// stored. ClientKey is as good as the password: keep it in memory only, and only as long as the verifier is unchanged.
type Keys struct{ ClientKey, StoredKey, ServerKey Key }

// Verifier is a role's SCRAM secret as Postgres stores it in pg_authid.rolpassword.
type Verifier struct {
	Iterations           int
	Salt                 []byte
	StoredKey, ServerKey Key
}

// ParseVerifier reads SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey> and takes nothing that Postgres would
// not: what does not parse here is hashed as a clear password there, with another salt on each shard.
func ParseVerifier(text string) (*Verifier, error) {
	rest, ok := strings.CutPrefix(text, verifierPrefix)
	head, keys, ok2 := strings.Cut(rest, "$")
	iterations, salt, ok3 := strings.Cut(head, ":")
	stored, server, ok4 := strings.Cut(keys, ":")
	if !ok || !ok2 || !ok3 || !ok4 {
		return nil, errVerifier("its form is not SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>")
	}
	n, err := strconv.ParseUint(iterations, 10, 31)
	if err != nil || n == 0 || iterations[0] == '0' || iterations[0] == '+' {
		return nil, errVerifier("its iteration count is not a positive number")
	}
	v := &Verifier{Iterations: int(n)}
	if v.Salt, err = decodeBase64(salt); err != nil || len(v.Salt) == 0 {
		return nil, errVerifier("its salt is not base64")
	}
	if !decodeKey(&v.StoredKey, stored) || !decodeKey(&v.ServerKey, server) {
		return nil, errVerifier("a key of it is not 32 bytes in base64")
	}
	return v, nil
}

func errVerifier(why string) error {
	return pgerr.New(pgerr.InvalidParameterValue, "invalid SCRAM-SHA-256 verifier").WithDetail("The text was refused: %s.", why)
}

// NewVerifier makes a verifier for a clear password with a new salt.
func NewVerifier(password string, iterations int) *Verifier {
	salt := make([]byte, saltLen)
	rand.Read(salt) //nolint:errcheck // never fails: the process ends instead
	return newVerifier(password, salt, iterations)
}

func newVerifier(password string, salt []byte, iterations int) *Verifier {
	keys := deriveKeys(password, salt, iterations)
	return &Verifier{Iterations: iterations, Salt: salt, StoredKey: keys.StoredKey, ServerKey: keys.ServerKey}
}

// Text gives the form Postgres stores.
func (v *Verifier) Text() string {
	return verifierPrefix + strconv.Itoa(v.Iterations) + ":" + base64.StdEncoding.EncodeToString(v.Salt) + "$" +
		base64.StdEncoding.EncodeToString(v.StoredKey[:]) + ":" + base64.StdEncoding.EncodeToString(v.ServerKey[:])
}

// Format prints "redacted", whatever the verb.
func (v Verifier) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) } //nolint:errcheck // fmt keeps the error

// LogValue keeps a verifier out of logs.
func (v Verifier) LogValue() slog.Value { return slog.StringValue(redacted) }

// Check reports whether password is the verifier's, and gives the keys if so.
func (v *Verifier) Check(password string) (*Keys, bool) {
	keys := deriveKeys(password, v.Salt, v.Iterations)
	if subtle.ConstantTimeCompare(keys.StoredKey[:], v.StoredKey[:]) != 1 {
		return nil, false
	}
	return keys, true
}

// decodeBase64 is strict: no line breaks, no stray bits, padding required.
func decodeBase64(s string) ([]byte, error) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, base64.CorruptInputError(0)
	}
	return base64.StdEncoding.Strict().DecodeString(s)
}

func decodeKey(dst *Key, s string) bool {
	b, err := decodeBase64(s)
	return err == nil && copy(dst[:], b) == keyLen && len(b) == keyLen
}
