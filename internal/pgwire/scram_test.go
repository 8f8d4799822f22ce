package pgwire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"neki/internal/pgerr"
)

// pencil is the role of RFC 7677's example.
func pencil() *Verifier {
	salt, _ := base64.StdEncoding.DecodeString("W22ZaJ0SNY7soEsUEjb6gQ==")
	return newVerifier("pencil", salt, 4096)
}

const (
	clientNonce = "rOprNGfwEbeRWgbNEkqO"
	serverNonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
	clientFirst = "n,,n=user,r=" + clientNonce
	proofOfRFC  = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
	finalStart  = "c=biws,r=" + clientNonce + serverNonce
)

func TestServerAgainstRFC7677(t *testing.T) {
	s := scramServer{verifier: pencil(), nonce: serverNonce}
	challenge, err := s.first(mechanismPlain, []byte(clientFirst))
	want := "r=" + clientNonce + serverNonce + ",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
	if err != nil || challenge != want {
		t.Fatalf("challenge %q, %v", challenge, err)
	}
	final, keys, ok, err := s.final([]byte(finalStart + ",p=" + proofOfRFC))
	if err != nil || !ok || final != "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=" {
		t.Fatalf("final %q, %v, %v", final, ok, err)
	}
	if *keys != *deriveKeys("pencil", s.verifier.Salt, 4096) {
		t.Error("the keys recovered are not those of the password")
	}
}

func TestServerFirst(t *testing.T) {
	endpoint := []byte("hash of a certificate")
	const bare = "n=,r=abc"
	for name, c := range map[string]struct {
		endpoint  []byte
		mechanism string
		message   string
		code      string
	}{
		"n":                               {nil, mechanismPlain, "n,," + bare, ""},
		"y, no binding offered":           {nil, mechanismPlain, "y,," + bare, ""},
		"n, binding offered":              {endpoint, mechanismPlain, "n,," + bare, ""},
		"p":                               {endpoint, mechanismPlus, "p=tls-server-end-point,," + bare, ""},
		"optional extensions":             {nil, mechanismPlain, "n,," + bare + ",x=1,y=", ""},
		"y, binding offered: a downgrade": {endpoint, mechanismPlain, "y,," + bare, pgerr.InvalidAuthorizationSpec},
		"n with PLUS":                     {endpoint, mechanismPlus, "n,," + bare, pgerr.ProtocolViolation},
		"y with PLUS":                     {endpoint, mechanismPlus, "y,," + bare, pgerr.ProtocolViolation},
		"p without PLUS":                  {endpoint, mechanismPlain, "p=tls-server-end-point,," + bare, pgerr.ProtocolViolation},
		"p of another type":               {endpoint, mechanismPlus, "p=tls-unique,," + bare, pgerr.ProtocolViolation},
		"PLUS not offered":                {nil, mechanismPlus, "p=tls-server-end-point,," + bare, pgerr.ProtocolViolation},
		"B12 unknown mechanism":           {nil, "SCRAM-SHA-1", "n,," + bare, pgerr.ProtocolViolation},
		"no mechanism":                    {nil, "", "n,," + bare, pgerr.ProtocolViolation},
		"empty":                           {nil, mechanismPlain, "", pgerr.ProtocolViolation},
		"NUL":                             {nil, mechanismPlain, "n,,n=,r=a\x00b", pgerr.ProtocolViolation},
		"unknown flag":                    {nil, mechanismPlain, "z,," + bare, pgerr.ProtocolViolation},
		"flag alone":                      {nil, mechanismPlain, "n", pgerr.ProtocolViolation},
		"header cut":                      {nil, mechanismPlain, "n,", pgerr.ProtocolViolation},
		"authzid":                         {nil, mechanismPlain, "n,a=x," + bare, pgerr.FeatureNotSupported},
		"rubbish for authzid":             {nil, mechanismPlain, "n,x," + bare, pgerr.ProtocolViolation},
		"mandatory extension":             {nil, mechanismPlain, "n,,m=x," + bare, pgerr.FeatureNotSupported},
		"no user":                         {nil, mechanismPlain, "n,,r=abc", pgerr.ProtocolViolation},
		"B12 no nonce":                    {nil, mechanismPlain, "n,,n=", pgerr.ProtocolViolation},
		"B12 other than nonce":            {nil, mechanismPlain, "n,,n=,s=abc", pgerr.ProtocolViolation},
		"empty nonce":                     {nil, mechanismPlain, "n,,n=,r=", pgerr.ProtocolViolation},
		"nonce with a blank":              {nil, mechanismPlain, "n,,n=,r=a b", pgerr.ProtocolViolation},
		"nonce not ASCII":                 {nil, mechanismPlain, "n,,n=,r=é", pgerr.ProtocolViolation},
		"rubbish behind":                  {nil, mechanismPlain, "n,," + bare + ",x", pgerr.ProtocolViolation},
		"comma behind":                    {nil, mechanismPlain, "n,," + bare + ",", pgerr.ProtocolViolation},
	} {
		t.Run(name, func(t *testing.T) {
			s := scramServer{verifier: pencil(), endpoint: c.endpoint, nonce: serverNonce}
			challenge, err := s.first(c.mechanism, []byte(c.message))
			if pgerr.Code(err) != c.code || (err == nil) != (challenge != "") {
				t.Errorf("challenge %q, error %v, want SQLSTATE %q", challenge, err, c.code)
			}
		})
	}
}

func TestServerFinal(t *testing.T) {
	flip := "A" + proofOfRFC[1:]
	for name, c := range map[string]struct {
		message string
		code    string
		refused bool // no error, but a wrong password
	}{
		"right":                   {message: finalStart + ",p=" + proofOfRFC},
		"wrong proof":             {message: finalStart + ",p=" + flip, refused: true},
		"extension not signed":    {message: finalStart + ",x=1,p=" + proofOfRFC, refused: true},
		"B12 wrong nonce":         {message: "c=biws,r=" + clientNonce + "x,p=" + proofOfRFC, code: pgerr.ProtocolViolation},
		"B12 client's nonce only": {message: "c=biws,r=" + clientNonce + ",p=" + proofOfRFC, code: pgerr.ProtocolViolation},
		"header of y":             {message: "c=eSws,r=" + clientNonce + serverNonce + ",p=" + proofOfRFC, code: pgerr.ProtocolViolation},
		"no binding":              {message: "r=" + clientNonce + serverNonce + ",p=" + proofOfRFC, code: pgerr.ProtocolViolation},
		"no proof":                {message: finalStart, code: pgerr.ProtocolViolation},
		"empty proof":             {message: finalStart + ",p=", code: pgerr.ProtocolViolation},
		"short proof":             {message: finalStart + ",p=AAAA", code: pgerr.ProtocolViolation},
		"proof not base64":        {message: finalStart + ",p=" + strings.Repeat("!", 44), code: pgerr.ProtocolViolation},
		"long proof":              {message: finalStart + ",p=" + strings.Repeat("A", 400), code: pgerr.ProtocolViolation},
		"text behind the proof":   {message: finalStart + ",p=" + proofOfRFC + ",x=1", code: pgerr.ProtocolViolation},
		"empty":                   {code: pgerr.ProtocolViolation},
		"NUL":                     {message: finalStart + ",p=" + proofOfRFC + "\x00", code: pgerr.ProtocolViolation},
	} {
		t.Run(name, func(t *testing.T) {
			s := scramServer{verifier: pencil(), nonce: serverNonce}
			if _, err := s.first(mechanismPlain, []byte(clientFirst)); err != nil {
				t.Fatal(err)
			}
			final, keys, ok, err := s.final([]byte(c.message))
			good := c.code == "" && !c.refused
			if pgerr.Code(err) != c.code || ok != good || (keys != nil) != good || (final != "") != good {
				t.Errorf("got %q, %v, %v, %v", final, keys, ok, err)
			}
		})
	}
}

func TestServerDoomed(t *testing.T) {
	s := scramServer{verifier: pencil(), doomed: true, nonce: serverNonce}
	if _, err := s.first(mechanismPlain, []byte(clientFirst)); err != nil {
		t.Fatal(err)
	}
	if _, keys, ok, err := s.final([]byte(finalStart + ",p=" + proofOfRFC)); ok || keys != nil || err != nil {
		t.Errorf("a made-up verifier was proved: %v, %v", ok, err)
	}
}

// exchange runs both sides against each other.
func exchange(c *scramClient, s *scramServer) (keys *Keys, err error) {
	first, err := c.first(s.mechanisms())
	if err != nil {
		return nil, fmt.Errorf("client first: %w", err)
	}
	challenge, err := s.first(c.mechanism, []byte(first))
	if err != nil {
		return nil, fmt.Errorf("server first: %w", err)
	}
	proof, err := c.final([]byte(challenge))
	if err != nil {
		return nil, fmt.Errorf("client final: %w", err)
	}
	final, keys, ok, err := s.final([]byte(proof))
	if err != nil || !ok {
		return nil, fmt.Errorf("server final: ok %v: %w", ok, err)
	}
	return keys, c.verify([]byte(final))
}

func TestBothSides(t *testing.T) {
	endpoint, other := []byte("hash 1"), []byte("hash 2")
	keys := deriveKeys("pencil", pencil().Salt, 4096)
	stranger := deriveKeys("pencil", []byte("another salt"), 4096)
	halfKnown := *pencil()
	halfKnown.ServerKey = stranger.ServerKey
	for name, c := range map[string]struct {
		client    scramClient
		server    scramServer
		mechanism string
		fails     string
	}{
		"password":              {scramClient{password: "pencil"}, scramServer{}, mechanismPlain, ""},
		"keys":                  {scramClient{keys: keys}, scramServer{}, mechanismPlain, ""},
		"keys, TLS":             {scramClient{keys: keys, endpoint: endpoint}, scramServer{endpoint: endpoint}, mechanismPlus, ""},
		"only we have binding":  {scramClient{keys: keys, endpoint: endpoint}, scramServer{}, mechanismPlain, ""},
		"only they have it":     {scramClient{keys: keys}, scramServer{endpoint: endpoint}, mechanismPlain, ""},
		"wrong password":        {scramClient{password: "Pencil"}, scramServer{}, mechanismPlain, "server final"},
		"keys of another salt":  {scramClient{keys: stranger}, scramServer{}, mechanismPlain, "server final"},
		"man in the middle":     {scramClient{keys: keys, endpoint: other}, scramServer{endpoint: endpoint}, mechanismPlus, "server final"},
		"server without secret": {scramClient{keys: keys}, scramServer{verifier: &halfKnown}, mechanismPlain, "incorrect server signature"},
	} {
		t.Run(name, func(t *testing.T) {
			c.client.nonce, c.client.maxIterations, c.server.nonce = newNonce(), 4096, newNonce()
			if c.server.verifier == nil {
				c.server.verifier = pencil()
			}
			got, err := exchange(&c.client, &c.server)
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("error %v, want %q", err, c.fails)
				}
				return
			}
			if err != nil || *got != *keys || c.client.mechanism != c.mechanism {
				t.Errorf("error %v, mechanism %s", err, c.client.mechanism)
			}
		})
	}
}

func TestClientFirst(t *testing.T) {
	for name, c := range map[string]struct {
		offered []string
		want    string
	}{
		"plain":                              {[]string{"X", mechanismPlain}, "n,,n=,r=abc"},
		"PLUS without a certificate of ours": {[]string{mechanismPlus, mechanismPlain}, "n,,n=,r=abc"},
		"none":                               {nil, ""},
		"unknown":                            {[]string{"SCRAM-SHA-512", "GSSAPI"}, ""},
		"PLUS only":                          {[]string{mechanismPlus}, ""},
	} {
		client := scramClient{nonce: "abc"}
		got, err := client.first(c.offered)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

func TestClientChallenge(t *testing.T) {
	for name, c := range map[string]struct {
		message, code string
	}{
		"good":                     {"r=abcdef,s=c2FsdA==,i=1", ""},
		"at the cap":               {"r=abcdef,s=c2FsdA==,i=5000", ""},
		"B12 iterations over it":   {"r=abcdef,s=c2FsdA==,i=1000000000", pgerr.ProgramLimitExceeded},
		"B12 iterations 0":         {"r=abcdef,s=c2FsdA==,i=0", pgerr.ProtocolViolation},
		"iterations negative":      {"r=abcdef,s=c2FsdA==,i=-1", pgerr.ProtocolViolation},
		"iterations no number":     {"r=abcdef,s=c2FsdA==,i=1x", pgerr.ProtocolViolation},
		"iterations past 64 bits":  {"r=abcdef,s=c2FsdA==,i=99999999999999999999", pgerr.ProtocolViolation},
		"no iterations":            {"r=abcdef,s=c2FsdA==", pgerr.ProtocolViolation},
		"B12 nonce not ours":       {"r=xbcdef,s=c2FsdA==,i=1", pgerr.ProtocolViolation},
		"B12 nonce only ours":      {"r=abc,s=c2FsdA==,i=1", pgerr.ProtocolViolation},
		"B12 no nonce":             {"s=c2FsdA==,i=1", pgerr.ProtocolViolation},
		"nonce not printable":      {"r=abc\x01,s=c2FsdA==,i=1", pgerr.ProtocolViolation},
		"salt not base64":          {"r=abcdef,s=c2Fsd,i=1", pgerr.ProtocolViolation},
		"salt empty":               {"r=abcdef,s=,i=1", pgerr.ProtocolViolation},
		"mandatory extension":      {"m=x,r=abcdef,s=c2FsdA==,i=1", pgerr.ProtocolViolation},
		"something behind":         {"r=abcdef,s=c2FsdA==,i=1,x=1", pgerr.ProtocolViolation},
		"empty":                    {"", pgerr.ProtocolViolation},
		"an attribute and no more": {"r", pgerr.ProtocolViolation},
	} {
		client := scramClient{password: "x", nonce: "abc", maxIterations: 5000}
		if _, err := client.first([]string{mechanismPlain}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.final([]byte(c.message)); pgerr.Code(err) != c.code {
			t.Errorf("%s: error %v, want SQLSTATE %q", name, err, c.code)
		}
	}
}

func TestClientVerify(t *testing.T) {
	keys := deriveKeys("x", []byte("salt"), 1)
	right := mac(keys.ServerKey[:], "auth")
	text := base64.StdEncoding.EncodeToString(right[:])
	for message, code := range map[string]string{
		"v=" + text:          "",
		"v=" + text + ",x=1": pgerr.ProtocolViolation,
		"v=AAAA":             pgerr.ProtocolViolation,
		"v=":                 pgerr.ProtocolViolation,
		"":                   pgerr.ProtocolViolation,
		"v=" + base64.StdEncoding.EncodeToString(make([]byte, 32)): pgerr.InvalidAuthorizationSpec,
		"e=invalid-proof": pgerr.InvalidPassword,
	} {
		client := scramClient{keys: keys, auth: "auth"}
		err := client.verify([]byte(message))
		if pgerr.Code(err) != code {
			t.Errorf("%q: error %v, want SQLSTATE %q", message, err, code)
		}
		if err != nil && pgerr.From(err).Severity != pgerr.SeverityFatal {
			t.Errorf("%q: not FATAL", message)
		}
	}
}

func TestParseVerifier(t *testing.T) {
	const (
		stored = "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
		server = "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
		good   = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$" + stored + ":" + server
	)
	v, err := ParseVerifier(good)
	if err != nil || v.Text() != good || v.Iterations != 4096 || len(v.Salt) != 16 {
		t.Fatalf("got %v, %v", v, err)
	}
	keys, ok := v.Check("pencil")
	if !ok || keys.StoredKey != v.StoredKey || keys.ServerKey != v.ServerKey {
		t.Error("the password does not fit")
	}
	if _, ok := v.Check("pencil "); ok {
		t.Error("another password fits")
	}
	for name, text := range map[string]string{
		"empty":             "",
		"clear password":    "pencil",
		"md5":               "md5" + strings.Repeat("a", 32),
		"other mechanism":   strings.Replace(good, "256", "512", 1),
		"lower case":        strings.ToLower(good),
		"the trap":          "SCRAM-SHA-256$4096:zzz",
		"no keys":           "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$",
		"one key":           "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$" + stored,
		"short key":         strings.Replace(good, stored, "AAAA", 1),
		"long key":          strings.Replace(good, stored, base64.StdEncoding.EncodeToString(make([]byte, 33)), 1),
		"key not base64":    strings.Replace(good, stored, strings.Repeat("!", 44), 1),
		"stray bits in key": strings.Replace(good, "qY=:", "qZ=:", 1),
		"line break in key": strings.Replace(good, "WG5d", "WG\n5d", 1),
		"no salt":           strings.Replace(good, "W22ZaJ0SNY7soEsUEjb6gQ==", "", 1),
		"salt not base64":   strings.Replace(good, "gQ==", "gQ=", 1),
		"iterations 0":      strings.Replace(good, "4096", "0", 1),
		"iterations -1":     strings.Replace(good, "4096", "-1", 1),
		"iterations +1":     strings.Replace(good, "4096", "+1", 1),
		"iterations 2^31":   strings.Replace(good, "4096", "2147483648", 1),
		"leading blank":     " " + good,
		"text behind":       good + ":x",
		"dollar behind":     good + "$",
		"line break behind": good + "\n",
	} {
		if v, err := ParseVerifier(text); err == nil || v != nil || pgerr.Code(err) != pgerr.InvalidParameterValue {
			t.Errorf("%s: got %v, %v", name, v, err)
		}
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	keys := deriveKeys("pencil", []byte("salt"), 1)
	verifier := pencil()
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "keys", keys, "verifier", verifier, "key", keys.ClientKey)
	asJSON, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	out := log.String() + string(asJSON)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		out += fmt.Sprintf(verb+verb+verb+verb, keys, *keys, keys.ClientKey, *verifier)
	}
	for _, key := range []Key{keys.ClientKey, keys.StoredKey, keys.ServerKey, verifier.StoredKey} {
		for _, verb := range []string{"%x", "%X", "%d", "%#v", "%q"} {
			form := strings.Trim(fmt.Sprintf(verb, key[:4]), "[]{}\"byt")
			if strings.Contains(out, form) {
				t.Errorf("a key is in the output as %s", form)
			}
		}
		if strings.Contains(out, base64.StdEncoding.EncodeToString(key[:])) {
			t.Error("a key is in the output in base64")
		}
	}
}

func TestSASLPrep(t *testing.T) {
	for in, want := range map[string]string{
		"pencil":         "pencil",
		"":               "",
		"a\x01b":         "a\x01b",        // ASCII is not looked into
		"I\u00adX":       "IX",            // soft hyphen: nothing
		"a\u00a0b":       "a b",           // no-break space
		"a\u200bb":       "a b",           // in two tables: Postgres takes the space
		"e\u0301":        "\u00e9",        // composed
		"\u00aa\u2168":   "aIX",           // compatibility forms
		"\u00ad":         "\u00ad",        // would be nothing: raw
		"\u0627\u0031":   "\u0627\u0031",  // breaks the rule for right-to-left text: raw
		"a\u0007\u00e9":  "a\u0007\u00e9", // prohibited: raw
		"\xff\xfe":       "\xff\xfe",      // no UTF-8: raw
		"p\u00e4ssw\xc3": "p\u00e4ssw\xc3",
	} {
		if got := saslPrep(in); got != want {
			t.Errorf("saslPrep(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestMockVerifier(t *testing.T) {
	a, b := NewAuthenticator(nil, 0), NewAuthenticator(nil, 10_000)
	shared1, shared2 := NewAuthenticator([]byte("s"), 0), NewAuthenticator([]byte("s"), 0)
	salt := func(a *Authenticator, user, secret string) string {
		v, doomed := a.verifier(user, secret)
		if !doomed || v.Iterations != a.iterations || len(v.Salt) != saltLen {
			t.Errorf("user %s: %+v, %v", user, v, doomed)
		}
		return string(v.Salt)
	}
	again := salt(a, "x", "")
	switch {
	case salt(a, "x", "") != again, again != salt(a, "x", "md5"+strings.Repeat("0", 32)):
		t.Error("the salt of one name changes")
	case salt(a, "x", "") == salt(a, "y", ""), salt(a, "x", "") == salt(b, "x", ""):
		t.Error("different names or processes have the same salt")
	case salt(shared1, "x", "") != salt(shared2, "x", ""):
		t.Error("a shared secret does not give shared salts")
	}
	if v, doomed := a.verifier("x", pencil().Text()); doomed || v.Text() != pencil().Text() {
		t.Error("a real verifier was not used")
	}
}
