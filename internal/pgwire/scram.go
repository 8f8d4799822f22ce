package pgwire

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
)

// deriveKeys runs PBKDF2 over a clear password: the only slow step of SCRAM, which a client usually takes.
func deriveKeys(password string, salt []byte, iterations int) *Keys {
	salted, err := pbkdf2.Key(sha256.New, saslPrep(password), salt, iterations, keyLen)
	if err != nil {
		panic(err) // only for a key length or, in FIPS mode, parameters that we don't let through
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
