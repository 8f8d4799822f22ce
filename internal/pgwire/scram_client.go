package pgwire

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"strconv"
	"strings"

	"neki/internal/pgerr"
)

// scramClient is the client's side of one exchange; it does no I/O. It logs in by keys, or by a password.
type scramClient struct {
	keys          *Keys
	password      string
	maxIterations int
	endpoint      []byte // the server certificate's channel binding; nil = none
	nonce         string

	mechanism   string
	gs2         string
	clientFirst string
	auth        string // the text that proof and signature cover
}

// first chooses a mechanism and gives the first message.
func (c *scramClient) first(offered []string) (string, error) {
	plain, plus := false, false
	for _, m := range offered {
		plain = plain || m == mechanismPlain
		plus = plus || m == mechanismPlus
	}
	switch {
	case plus && c.endpoint != nil:
		c.mechanism, c.gs2 = mechanismPlus, "p="+bindingType+",,"
	case plain && c.endpoint != nil:
		c.mechanism, c.gs2 = mechanismPlain, "y,,"
	case plain:
		c.mechanism, c.gs2 = mechanismPlain, "n,,"
	default:
		return "", pgerr.Fatal(pgerr.FeatureNotSupported, "server offers no supported SASL mechanism, only %q", offered)
	}
	c.clientFirst = "n=,r=" + c.nonce
	return c.gs2 + c.clientFirst, nil
}

// final answers the server's challenge.
func (c *scramClient) final(message []byte) (string, error) {
	text, err := scramText(message)
	if err != nil {
		return "", err
	}
	nonce, salt, iterations, err := c.parseChallenge(text)
	if err != nil {
		return "", err
	}
	if c.keys == nil {
		c.keys = deriveKeys(c.password, salt, iterations)
	}
	binding := []byte(c.gs2)
	if c.mechanism == mechanismPlus {
		binding = append(binding, c.endpoint...)
	}
	signed := "c=" + base64.StdEncoding.EncodeToString(binding) + ",r=" + nonce
	c.auth = c.clientFirst + "," + text + "," + signed
	stored := sha256.Sum256(c.keys.ClientKey[:])
	proof := xor(c.keys.ClientKey, mac(stored[:], c.auth))
	return signed + ",p=" + base64.StdEncoding.EncodeToString(proof[:]), nil
}

func (c *scramClient) parseChallenge(text string) (nonce string, salt []byte, iterations int, err error) {
	a := attributes{rest: text}
	if nonce, err = a.next('r'); err != nil {
		return "", nil, 0, err
	}
	if !strings.HasPrefix(nonce, c.nonce) || len(nonce) == len(c.nonce) || !isPrintable(nonce) {
		return "", nil, 0, errSCRAM("The server's nonce does not begin with ours.")
	}
	saltText, err := a.next('s')
	if err != nil {
		return "", nil, 0, err
	}
	if salt, err = decodeBase64(saltText); err != nil || len(salt) == 0 {
		return "", nil, 0, errSCRAM("The salt is not base64.")
	}
	rounds, err := a.next('i')
	if err != nil {
		return "", nil, 0, err
	}
	if iterations, err = strconv.Atoi(rounds); err != nil || iterations < 1 || !a.done {
		return "", nil, 0, errSCRAM("The iteration count is not a positive number at the message's end.")
	}
	if iterations > c.maxIterations {
		return "", nil, 0, pgerr.Fatal(pgerr.ProgramLimitExceeded,
			"server asks for %d SCRAM iterations, more than the limit of %d", iterations, c.maxIterations)
	}
	return nonce, salt, iterations, nil
}

// verify checks the server's signature: that it knows the role's ServerKey, and so is the server we mean.
func (c *scramClient) verify(message []byte) error {
	text, err := scramText(message)
	if err != nil {
		return err
	}
	if reason, failed := strings.CutPrefix(text, "e="); failed {
		return pgerr.Fatal(pgerr.InvalidPassword, "error received from server in SCRAM exchange: %s", reason)
	}
	a := attributes{rest: text}
	value, err := a.next('v')
	if err != nil {
		return err
	}
	var signature Key
	if !a.done || !decodeKey(&signature, value) {
		return errSCRAM("Malformed server signature.")
	}
	want := mac(c.keys.ServerKey[:], c.auth)
	if subtle.ConstantTimeCompare(signature[:], want[:]) != 1 {
		return pgerr.Fatal(pgerr.InvalidAuthorizationSpec, "incorrect server signature in SCRAM exchange").
			WithDetail("The server has another verifier for this role than the one that these keys belong to.")
	}
	return nil
}
