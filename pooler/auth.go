package pooler

import (
	"context"
	"net"
	"slices"
	"time"

	"neki/internal/hba"
	"neki/internal/pgerr"
	"neki/internal/pgwire"
	"neki/pooler/backend"
)

// Auth says how clients authenticate, and how the gateway logs in to instances for those who show no password.
type Auth struct {
	Rules     hba.Rules         // none: hba.Default
	Maps      hba.Maps          // that rules name
	Passwords map[string]string // by role: for the login to instances
	Trusted   bool              // the instances let the certificate of Config.BackendTLS in as any role
}

// SetAuth puts other rules in force, for logins from now on.
func (s *Server) SetAuth(a Auth) {
	if len(a.Rules) == 0 {
		a.Rules = hba.Default()
	}
	s.rules.Store(&a)
	if s.roles != nil {
		s.roles.invalidate() // memberships are looked up for the groups of the rules
	}
}

// groupsOfRules gives the roles whose members the rules are about, for a client of the database.
func (s *Server) groupsOfRules(database string) []string {
	groups, sameRole := s.rules.Load().Rules.Groups()
	if sameRole {
		groups = append(groups, database)
	}
	return groups
}

// authenticate proves the client by the first rule that fits it, and gives what the gateway logs in to instances with.
func (s *Server) authenticate(ctx context.Context, st *pgwire.Startup, r *role) (backend.Credential, error) {
	auth := s.rules.Load()
	rule := auth.Rules.Find(clientOf(st, r))
	if rule == nil {
		return backend.Credential{}, refusal("no pg_hba.conf entry for", st)
	}
	if err := auth.checkCertificate(rule, st, r); err != nil {
		return backend.Credential{}, err
	}
	secret := ""
	if r.exists && !r.expired() { // else the client gets the same exchange, and fails
		secret = r.verifier
	}
	var keys *pgwire.Keys
	var err error
	switch rule.Method {
	case hba.Trust, hba.Cert:
		err = checkWithoutPassword(r)
	case hba.SCRAM:
		keys, err = s.auth.Authenticate(ctx, st, pgwire.MethodSCRAM, secret)
	case hba.MD5:
		keys, err = s.auth.Authenticate(ctx, st, pgwire.MethodMD5, secret)
	case hba.Password:
		keys, err = s.auth.Authenticate(ctx, st, pgwire.MethodPassword, secret)
	default:
		err = refusal("pg_hba.conf rejects connection for", st)
	}
	if err != nil {
		return backend.Credential{}, err
	}
	return auth.credential(r, keys)
}

func clientOf(st *pgwire.Startup, r *role) *hba.Client {
	c := &hba.Client{User: st.User, Database: st.Database, TLS: st.TLS, MemberOf: func(name string) bool {
		return r.exists && (name == r.name || slices.Contains(r.groups, name))
	}}
	if tcp, ok := st.Peer.(*net.TCPAddr); ok {
		c.Addr = tcp.AddrPort().Addr()
	} else {
		c.Local = true
	}
	return c
}

// refusal is Postgres's text for a client that no rule, or one that rejects, is for.
func refusal(why string, st *pgwire.Startup) *pgerr.Error {
	host, encryption := "[local]", "no encryption"
	if tcp, ok := st.Peer.(*net.TCPAddr); ok {
		host = tcp.AddrPort().Addr().Unmap().String()
	}
	if st.TLS {
		encryption = "SSL encryption"
	}
	return pgerr.Fatal(pgerr.InvalidAuthorizationSpec, "%s host \"%s\", user \"%s\", database \"%s\", %s",
		why, host, st.User, st.Database, encryption)
}

// checkCertificate makes the checks of the client's certificate that a rule asks for.
func (a *Auth) checkCertificate(rule *hba.Rule, st *pgwire.Startup, r *role) error {
	if rule.Cert == hba.CertAny {
		return nil
	}
	name, ok := st.CertificateName()
	if !ok {
		return pgerr.Fatal(pgerr.InvalidAuthorizationSpec, "connection requires a valid client certificate")
	}
	if rule.Cert == hba.CertCA || a.Maps.Allows(rule.Map, name, st.User, func(group string) bool {
		return r.exists && slices.Contains(r.groups, group)
	}) {
		return nil
	}
	return pgerr.Fatal(pgerr.InvalidAuthorizationSpec, "certificate authentication failed for user \"%s\"", st.User)
}

// checkWithoutPassword stands for the checks that a password exchange makes. Postgres's VALID UNTIL is about passwords,
// but here another way of proving oneself would get the gateway's help to log in to the instances.
func checkWithoutPassword(r *role) error {
	switch {
	case !r.exists:
		return pgerr.Fatal(pgerr.InvalidAuthorizationSpec, "role \"%s\" does not exist", r.name)
	case r.expired():
		return pgerr.Fatal(pgerr.InvalidAuthorizationSpec, "role \"%s\" is not permitted to log in", r.name).
			WithDetail("The role's VALID UNTIL has passed.")
	}
	return nil
}

// expired reports whether the role's VALID UNTIL has passed.
func (r *role) expired() bool { return r.until != nil && r.until.Before(time.Now()) }

// credential is what to log in to instances with for a client who has proved to be r; keys are those of its exchange.
func (a *Auth) credential(r *role, keys *pgwire.Keys) (backend.Credential, error) {
	password, listed := a.Passwords[r.name]
	switch {
	case keys != nil:
		return backend.Credential{Keys: keys}, nil
	case pgwire.IsMD5(password):
		return backend.Credential{MD5: password}, nil
	case listed:
		return backend.Credential{Password: password}, nil
	case pgwire.IsMD5(r.verifier):
		return backend.Credential{MD5: r.verifier}, nil
	case a.Trusted:
		return backend.Credential{}, nil
	}
	return backend.Credential{}, pgerr.Fatal(pgerr.InvalidAuthorizationSpec,
		"the gateway has no way to log in to the instances as role \"%s\"", r.name).
		WithDetail("The client showed no password, and auth.passwords-file of the gateway has none for the role.").
		WithHint("Add the role to that file, or let the client authenticate by scram-sha-256.")
}

// checkRole makes the checks that Postgres makes after authentication.
func checkRole(r *role, database string) error {
	switch {
	case !r.canLogin:
		return pgerr.Fatal(pgerr.InvalidAuthorizationSpec, "role \"%s\" is not permitted to log in", r.name)
	case !r.database:
		return pgerr.Fatal(pgerr.InvalidCatalogName, "database \"%s\" does not exist", database)
	case !r.open:
		return pgerr.Fatal(pgerr.ObjectNotInPrerequisiteState,
			"database \"%s\" is not currently accepting connections", database)
	}
	return nil
}
