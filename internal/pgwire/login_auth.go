package pgwire

import (
	"crypto/tls"
	"encoding/binary"
	"net"

	"github.com/jackc/pgx/v5/pgproto3"

	"neki/internal/pgerr"
)

// authentication answers one authentication request of the server.
func (l *loginState) authentication(body []byte) error {
	if len(body) < 4 {
		return pgerr.Fatal(pgerr.ProtocolViolation, "invalid authentication request from server")
	}
	code, data := binary.BigEndian.Uint32(body), body[4:]
	switch code {
	case pgproto3.AuthTypeOk:
		return l.authenticationOk()
	case pgproto3.AuthTypeCleartextPassword:
		return l.sendCleartext()
	case pgproto3.AuthTypeMD5Password:
		return l.sendMD5(data)
	case pgproto3.AuthTypeSASL:
		return l.beginSASL(data)
	case pgproto3.AuthTypeSASLContinue:
		return l.continueSASL(data)
	case pgproto3.AuthTypeSASLFinal:
		return l.endSASL(data)
	}
	return pgerr.Fatal(pgerr.FeatureNotSupported, "server asks for authentication method %d, which is not supported", code)
}

// authenticationOk ends the exchange. A server may let us in without any, but not break off a SCRAM exchange: then it
// has not shown that it knows the role.
func (l *loginState) authenticationOk() error {
	if l.challenged && !l.verified {
		return pgerr.Fatal(pgerr.ProtocolViolation, "server ended the SCRAM exchange without its signature")
	}
	l.authenticated = true
	return nil
}

// password gives the clear password for a method that needs it.
func (l *loginState) password(method string) (string, error) {
	if l.login.Keys != nil || l.login.Password == "" {
		return "", pgerr.Fatal(pgerr.InvalidPassword,
			"server asks for %s authentication, but there is no password for user \"%s\"", method, l.login.User).
			WithHint("SCRAM keys only serve scram-sha-256; the role's secret on this server may be of another kind.")
	}
	if l.challenged {
		return "", pgerr.Fatal(pgerr.ProtocolViolation, "server asks for %s authentication after SASL", method)
	}
	return l.login.Password, nil
}

func (l *loginState) sendCleartext() error {
	password, err := l.password("password")
	if err != nil {
		return err
	}
	_, unix := l.greeting.Conn.(*net.UnixConn)
	if !l.login.AllowCleartext || !l.greeting.TLS && !unix {
		return pgerr.Fatal(pgerr.FeatureNotSupported, "server asks for the password in clear, which is not allowed")
	}
	return writeMessages(l.greeting.Conn, &pgproto3.PasswordMessage{Password: password})
}

func (l *loginState) sendMD5(data []byte) error {
	secret := l.login.MD5
	if secret == "" || l.challenged {
		password, err := l.password("md5")
		if err != nil {
			return err
		}
		secret = md5Secret(password, l.login.User)
	}
	if len(data) != 4 {
		return pgerr.Fatal(pgerr.ProtocolViolation, "invalid MD5 authentication request from server")
	}
	answer := md5Answer(secret, [4]byte(data))
	return writeMessages(l.greeting.Conn, &pgproto3.PasswordMessage{Password: answer})
}

func (l *loginState) beginSASL(data []byte) error {
	if l.challenged {
		return pgerr.Fatal(pgerr.ProtocolViolation, "server began the SASL exchange twice")
	}
	if l.login.Keys == nil && l.login.Password == "" {
		_, err := l.password("SASL")
		return err
	}
	offered, err := parseMechanisms(data)
	if err != nil {
		return err
	}
	l.challenged = true
	l.scram = &scramClient{
		keys: l.login.Keys, password: l.login.Password, nonce: newNonce(),
		maxIterations: l.login.MaxIterations, endpoint: l.serverEndpoint(),
	}
	if l.scram.maxIterations <= 0 {
		l.scram.maxIterations = maxIterations
	}
	first, err := l.scram.first(offered)
	if err != nil {
		return err
	}
	m := pgproto3.SASLInitialResponse{AuthMechanism: l.scram.mechanism, Data: []byte(first)}
	return writeMessages(l.greeting.Conn, &m)
}

func parseMechanisms(data []byte) (names []string, err error) {
	for {
		name, rest, ok := cutString(data)
		switch {
		case !ok:
			return nil, pgerr.Fatal(pgerr.ProtocolViolation, "invalid list of SASL mechanisms from server")
		case name == "":
			return names, nil
		}
		names, data = append(names, name), rest
	}
}

// serverEndpoint gives the channel binding of the server's certificate.
func (l *loginState) serverEndpoint() []byte {
	conn, ok := l.greeting.Conn.(*tls.Conn)
	if !ok {
		return nil
	}
	certificates := conn.ConnectionState().PeerCertificates
	if len(certificates) == 0 {
		return nil
	}
	return endpointBinding(certificates[0])
}

func (l *loginState) continueSASL(data []byte) error {
	if !l.challenged || l.answered {
		return pgerr.Fatal(pgerr.ProtocolViolation, "unexpected SASL challenge from server")
	}
	final, err := l.scram.final(data)
	if err != nil {
		return err
	}
	l.answered = true
	return writeMessages(l.greeting.Conn, &pgproto3.SASLResponse{Data: []byte(final)})
}

func (l *loginState) endSASL(data []byte) error {
	if !l.answered || l.verified {
		return pgerr.Fatal(pgerr.ProtocolViolation, "unexpected SASL outcome from server")
	}
	if err := l.scram.verify(data); err != nil {
		return err
	}
	l.verified = true
	return nil
}
