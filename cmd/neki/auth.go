package main

import (
	"bufio"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"

	"neki/internal/hba"
	"neki/internal/pgerr"
	"neki/pooler"
	"neki/settings"
)

// loadAuth makes the rules of authentication of the configuration at path, and refuses those that can't work.
func loadAuth(path string, cfg settings.Config, log *slog.Logger) (pooler.Auth, error) {
	fail := func(format string, args ...any) (pooler.Auth, error) {
		return pooler.Auth{}, pgerr.New(pgerr.ConfigFileError, "%s: auth: %w", path, fmt.Errorf(format, args...)).
			WithHint("docs/authentication.md explains the rules.")
	}
	auth := pooler.Auth{Trusted: cfg.Auth.TrustedByInstances}
	var err error
	if auth.Rules, err = loadRules(cfg.Auth); err != nil {
		return fail("%w", err)
	}
	maps, problems := hba.ParseMaps(strings.Join(cfg.Auth.Maps, "\n"))
	if len(problems) > 0 {
		return fail("maps: %w", problems[0])
	}
	auth.Maps = maps
	if cfg.Auth.PasswordsFile != "" {
		if auth.Passwords, err = loadPasswords(cfg.Auth.PasswordsFile, log); err != nil {
			return fail("passwords-file: %w", err)
		}
	}
	for i := range auth.Rules {
		if err := checkRule(&auth.Rules[i], &auth, cfg); err != nil {
			return fail("rule %q: %w", auth.Rules[i].Text, err)
		}
	}
	return auth, nil
}

func loadRules(cfg settings.Auth) (hba.Rules, error) {
	if cfg.HBAFile == "" {
		rules := make(hba.Rules, 0, len(cfg.Rules))
		for _, line := range cfg.Rules {
			r, err := hba.ParseRule(string(line))
			if err != nil {
				return nil, err
			}
			rules = append(rules, r)
		}
		return rules, nil
	}
	text, err := os.ReadFile(cfg.HBAFile)
	if err != nil {
		return nil, err
	}
	rules, problems := hba.Parse(string(text))
	if len(problems) > 0 {
		return nil, fmt.Errorf("%s: %w", cfg.HBAFile, problems[0])
	}
	if len(rules) == 0 { // as in Postgres: nobody could connect
		return nil, fmt.Errorf("%s holds no rule", cfg.HBAFile)
	}
	return rules, nil
}

// checkRule refuses a rule that can't let anybody in, or that would give passwords away.
func checkRule(r *hba.Rule, a *pooler.Auth, cfg settings.Config) error {
	if r.Map != "" && a.Maps[r.Map] == nil {
		return fmt.Errorf("auth.maps has no map %q", r.Map)
	}
	if r.Type == hba.HostSSL && cfg.TLS.Cert == "" {
		return fmt.Errorf("tls.cert is missing, so there is no TLS")
	}
	if r.Cert != hba.CertAny && cfg.TLS.CA == "" {
		return fmt.Errorf("tls.ca is missing, by which clients' certificates are checked")
	}
	switch r.Method {
	case hba.Password:
		if r.Type != hba.HostSSL && r.Type != hba.Local && !loopback(r) {
			return fmt.Errorf("passwords would cross the network in clear; use hostssl, or scram-sha-256")
		}
	case hba.Trust, hba.Cert:
		return checkPasswordless(r, a)
	}
	return nil
}

func loopback(r *hba.Rule) bool {
	return !r.Any && !slices.ContainsFunc(r.Networks, func(p netip.Prefix) bool { return !p.Addr().IsLoopback() || p.Bits() < 8 })
}

// checkPasswordless demands another way to log in to the instances for clients that show no password.
func checkPasswordless(r *hba.Rule, a *pooler.Auth) error {
	if a.Trusted {
		return nil
	}
	if len(a.Passwords) == 0 {
		return fmt.Errorf("clients show no password by method %s, and the gateway has no other way to log in to the instances: "+
			"set auth.passwords-file, or auth.trusted-by-instances with backend.cert", r.Method)
	}
	for _, u := range r.Users {
		if _, ok := a.Passwords[u.Text]; u.Kind == hba.Exactly && !ok {
			return fmt.Errorf("auth.passwords-file has no password of role %q, and clients show none by method %s", u.Text, r.Method)
		}
	}
	return nil
}

// loadPasswords reads lines of "role" "password", as PgBouncer has them. A file that others may read is refused.
func loadPasswords(path string, log *slog.Logger) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("%s can be read by everybody; chmod it to 0640 or less", path)
	}
	passwords := map[string]string{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == ';' || line[0] == '#' {
			continue
		}
		role, rest, ok := cutQuoted(line)
		password, rest, ok2 := cutQuoted(strings.TrimSpace(rest))
		if !ok || !ok2 || role == "" || password == "" || strings.TrimSpace(rest) != "" {
			return nil, fmt.Errorf(`%s, line %d: not "role" "password"`, path, n)
		}
		if strings.HasPrefix(password, "SCRAM-SHA-256$") {
			return nil, fmt.Errorf("%s, line %d: nobody can log in with a SCRAM verifier; write the password", path, n)
		}
		passwords[role] = password
	}
	log.Debug("passwords read", "file", path, "roles", len(passwords))
	return passwords, lines.Err()
}

// cutQuoted takes a quoted string off s, in which a doubled quotation mark stands for one.
func cutQuoted(s string) (text, rest string, ok bool) {
	var b strings.Builder
	for i := 1; i < len(s) && s[0] == '"'; i++ {
		switch {
		case s[i] != '"':
			b.WriteByte(s[i])
		case i+1 < len(s) && s[i+1] == '"':
			b.WriteByte('"')
			i++
		default:
			return b.String(), s[i+1:], true
		}
	}
	return "", "", false
}
