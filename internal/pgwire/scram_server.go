package pgwire

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"strconv"
	"strings"

	"neki/internal/pgerr"
)

// scramServer is the server's side of one exchange; it does no I/O.
type scramServer struct {
	verifier *Verifier
	doomed   bool   // the verifier is made up: whatever the proof, the answer is no
	endpoint []byte // channel binding offered; nil: -PLUS was not offered
	nonce    string // our part

	gs2         string // the client's channel binding header
	plus        bool
	clientFirst string // without the header
	serverFirst string
	fullNonce   string
}

// mechanisms are what to offer, best first.
func (s *scramServer) mechanisms() []string {
	if s.endpoint != nil {
		return []string{mechanismPlus, mechanismPlain}
	}
	return []string{mechanismPlain}
}

// first takes the client's first message and gives the challenge.
func (s *scramServer) first(mechanism string, message []byte) (string, error) {
	switch {
	case mechanism == mechanismPlus && s.endpoint != nil:
		s.plus = true
	case mechanism != mechanismPlain:
		return "", pgerr.Fatal(pgerr.ProtocolViolation, "client selected an invalid SASL authentication mechanism")
	}
	text, err := scramText(message)
	if err != nil {
		return "", err
	}
	if text, err = s.header(text); err != nil {
		return "", err
	}
	s.clientFirst = text
	clientNonce, err := parseClientFirst(text)
	if err != nil {
		return "", err
	}
	s.fullNonce = clientNonce + s.nonce
	s.serverFirst = "r=" + s.fullNonce + ",s=" + base64.StdEncoding.EncodeToString(s.verifier.Salt) +
		",i=" + strconv.Itoa(s.verifier.Iterations)
	return s.serverFirst, nil
}

// scramText refuses what no SCRAM message is.
func scramText(message []byte) (string, error) {
	switch {
	case len(message) == 0:
		return "", errSCRAM("The message is empty.")
	case bytes.IndexByte(message, 0) >= 0:
		return "", errSCRAM("Message length does not match input length.")
	}
	return string(message), nil
}

// header takes the gs2 header off the client's first message and checks that it fits what was offered and chosen.
func (s *scramServer) header(text string) (rest string, err error) {
	flag, after, ok := strings.Cut(text, ",")
	if !ok {
		return "", errSCRAM("Comma expected, but found end of message.")
	}
	if err := s.bindingFlag(flag); err != nil {
		return "", err
	}
	authzid, rest, ok := strings.Cut(after, ",")
	switch {
	case !ok:
		return "", errSCRAM("Comma expected, but found end of message.")
	case strings.HasPrefix(authzid, "a="):
		return "", pgerr.Fatal(pgerr.FeatureNotSupported, "client uses authorization identity, but it is not supported")
	case authzid != "":
		return "", errSCRAM("Unexpected attribute in client-first-message.")
	}
	s.gs2 = flag + ",,"
	return rest, nil
}

func (s *scramServer) bindingFlag(flag string) error {
	name, bound := strings.CutPrefix(flag, "p=")
	switch {
	case bound && !s.plus:
		return errSCRAM("The client selected SCRAM-SHA-256 without channel binding, " +
			"but the SCRAM message includes channel binding data.")
	case bound && name != bindingType:
		return pgerr.Fatal(pgerr.ProtocolViolation, "unsupported SCRAM channel-binding type %q", name)
	case bound:
		return nil
	case flag != "n" && flag != "y":
		return errSCRAM("Unexpected channel-binding flag.")
	case s.plus:
		return errSCRAM("The client selected SCRAM-SHA-256-PLUS, " +
			"but the SCRAM message does not include channel binding data.")
	case flag == "y" && s.endpoint != nil:
		return pgerr.Fatal(pgerr.InvalidAuthorizationSpec, "SCRAM channel binding negotiation error").
			WithDetail("The client supports SCRAM channel binding but thinks the server does not.  " +
				"However, this server does support channel binding.")
	}
	return nil
}

// parseClientFirst checks the bare first message and gives the client's nonce. The user name in it is ignored, as in
// Postgres: the startup packet's counts.
func parseClientFirst(text string) (nonce string, err error) {
	if strings.HasPrefix(text, "m=") {
		return "", pgerr.Fatal(pgerr.FeatureNotSupported, "client requires an unsupported SCRAM extension")
	}
	a := attributes{rest: text}
	if _, err = a.next('n'); err != nil {
		return "", err
	}
	if nonce, err = a.next('r'); err != nil {
		return "", err
	}
	if !isPrintable(nonce) {
		return "", pgerr.Fatal(pgerr.ProtocolViolation, "non-printable characters in SCRAM nonce")
	}
	return nonce, a.skipExtensions(0)
}

// final takes the client's proof. ok is false for a wrong password. On success it gives the last message and the keys.
func (s *scramServer) final(message []byte) (serverFinal string, keys *Keys, ok bool, err error) {
	text, err := scramText(message)
	if err != nil {
		return "", nil, false, err
	}
	signed, proof, err := s.parseFinal(text)
	if err != nil {
		return "", nil, false, err
	}
	auth := s.clientFirst + "," + s.serverFirst + "," + signed
	clientKey := xor(proof, mac(s.verifier.StoredKey[:], auth))
	stored := sha256.Sum256(clientKey[:])
	if subtle.ConstantTimeCompare(stored[:], s.verifier.StoredKey[:]) != 1 || s.doomed {
		return "", nil, false, nil
	}
	signature := mac(s.verifier.ServerKey[:], auth)
	keys = &Keys{ClientKey: clientKey, StoredKey: s.verifier.StoredKey, ServerKey: s.verifier.ServerKey}
	return "v=" + base64.StdEncoding.EncodeToString(signature[:]), keys, true, nil
}

// parseFinal checks channel binding and nonce, and gives the part of the message that the proof covers, and the proof.
func (s *scramServer) parseFinal(text string) (signed string, proof Key, err error) {
	a := attributes{rest: text}
	binding, err := a.next('c')
	if err != nil {
		return "", proof, err
	}
	if err = s.checkBinding(binding); err != nil {
		return "", proof, err
	}
	nonce, err := a.next('r')
	if err != nil {
		return "", proof, err
	}
	if subtle.ConstantTimeCompare([]byte(nonce), []byte(s.fullNonce)) != 1 {
		return "", proof, pgerr.Fatal(pgerr.ProtocolViolation, "invalid SCRAM response").
			WithDetail("Nonce does not match.")
	}
	if err = a.skipExtensions('p'); err != nil {
		return "", proof, err
	}
	signed = text[:len(text)-len(a.rest)-1]
	value, err := a.next('p')
	if err != nil {
		return "", proof, err
	}
	if !a.done || !decodeKey(&proof, value) {
		return "", proof, errSCRAM("Malformed proof in client-final-message.")
	}
	return signed, proof, nil
}

func (s *scramServer) checkBinding(value string) error {
	want := []byte(s.gs2)
	if s.plus {
		want = append(want, s.endpoint...)
	}
	if value == base64.StdEncoding.EncodeToString(want) {
		return nil
	}
	if s.plus {
		return pgerr.Fatal(pgerr.InvalidAuthorizationSpec, "SCRAM channel binding check failed")
	}
	return pgerr.Fatal(pgerr.ProtocolViolation, "unexpected SCRAM channel-binding attribute in client-final-message")
}
