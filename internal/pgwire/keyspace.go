package pgwire

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
)

// The virtual pid of a session: eight bits of gateway index over 23 bits of session slot. As the index is at least 1,
// virtual pids are 2^23 to 2^31-1: positive as an int4, and above any real pid of Linux (2^22).
const (
	MaxGateway  = 255
	MaxSession  = 1<<sessionBits - 1
	sessionBits = 23
)

// KeySpace makes and checks the pids and cancel keys of one gateway. A key is a MAC over gateway, session slot and the
// slot's generation, so a slot that is used again has another key and nothing needs to be stored but the generation.
// It is immutable and safe for concurrent use.
type KeySpace struct {
	gateway uint32
	secret  [32]byte
}

// NewKeySpace makes the key space of the gateway with the given index, 1 to MaxGateway. Its secret is new: keys of an
// earlier process with the same index don't fit.
func NewKeySpace(gateway int) (*KeySpace, error) {
	if gateway < 1 || gateway > MaxGateway {
		return nil, fmt.Errorf("gateway index %d is not in 1..%d", gateway, MaxGateway)
	}
	k := &KeySpace{gateway: uint32(gateway)}
	rand.Read(k.secret[:]) //nolint:errcheck // never fails: the process ends instead
	return k, nil
}

// PID gives the virtual pid of a session slot, 0 to MaxSession.
func (k *KeySpace) PID(session uint32) uint32 {
	return k.gateway<<sessionBits | session&MaxSession
}

// SplitPID takes a virtual pid apart. ok is false for a number that is no virtual pid.
func SplitPID(pid uint32) (gateway int, session uint32, ok bool) {
	gateway = int(pid >> sessionBits)
	return gateway, pid & MaxSession, gateway >= 1 && gateway <= MaxGateway
}

// Owns reports whether pid is one of this gateway's; a cancel for another pid belongs to the gateway it names.
func (k *KeySpace) Owns(pid uint32) bool {
	gateway, _, ok := SplitPID(pid)
	return ok && uint32(gateway) == k.gateway
}

// AppendKey appends the cancel key of a session: 4 bytes under protocol 3.0, 32 from 3.2 on.
func (k *KeySpace) AppendKey(dst []byte, session uint32, generation uint64, version uint32) []byte {
	key := k.mac(session, generation)
	if version >= Protocol32 {
		return append(dst, key[:]...)
	}
	return append(dst, key[:4]...)
}

// Check reports whether key is the one that was given to the session slot of pid in this generation and under this
// protocol version. It takes the same time for any key of the right length.
func (k *KeySpace) Check(pid uint32, key []byte, generation uint64, version uint32) bool {
	var buf [32]byte
	_, session, _ := SplitPID(pid)
	want := k.AppendKey(buf[:0], session, generation, version)
	return k.Owns(pid) && subtle.ConstantTimeCompare(want, key) == 1
}

func (k *KeySpace) mac(session uint32, generation uint64) (sum [32]byte) {
	var in [16]byte
	binary.BigEndian.PutUint32(in[:], k.gateway)
	binary.BigEndian.PutUint32(in[4:], session)
	binary.BigEndian.PutUint64(in[8:], generation)
	h := hmac.New(sha256.New, k.secret[:])
	h.Write(in[:])
	h.Sum(sum[:0])
	return sum
}
