package settings

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"neki/internal/hba"
)

// Listener is where a gateway takes clients: a string host:port, or the directory of a Unix socket, or a mapping.
type Listener struct {
	Address string   `yaml:"address"`    // host:port, or an absolute directory
	Proxy   []string `yaml:"proxy-from"` // ranges whose connections begin with a PROXY protocol header
	Mode    string   `yaml:"mode"`       // of the Unix socket, octal; default 0777
}

// UnmarshalYAML takes the short form too.
func (l *Listener) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		return n.Decode(&l.Address)
	}
	type plain Listener // without this method
	return n.Decode((*plain)(l))
}

// Directory reports whether the listener is a Unix socket.
func (l Listener) Directory() bool { return filepath.IsAbs(l.Address) }

// Networks gives the ranges of proxies. The configuration was checked.
func (l Listener) Networks() []netip.Prefix {
	list := make([]netip.Prefix, 0, len(l.Proxy))
	for _, text := range l.Proxy {
		if p, err := netip.ParsePrefix(text); err == nil {
			list = append(list, p.Masked())
		}
	}
	return list
}

// SocketMode gives the permissions of the Unix socket. As in Postgres, whoever may enter the directory may connect
// unless the configuration says otherwise.
func (l Listener) SocketMode() uint32 {
	if mode, err := strconv.ParseUint(l.Mode, 8, 9); err == nil {
		return uint32(mode)
	}
	return 0o777
}

// Auth says how clients of a gateway authenticate, and how the gateway logs in to instances for those who show no
// password.
type Auth struct {
	Rules   []AuthRule `yaml:"rules"`    // first match counts; none = all by scram-sha-256
	HBAFile string     `yaml:"hba-file"` // rules in the form of pg_hba.conf instead
	Maps    []string   `yaml:"maps"`     // lines of pg_ident.conf
	// PasswordsFile has the passwords of roles, for the login to instances when the client shows none: lines of
	// "role" "password", as PgBouncer's.
	PasswordsFile string `yaml:"passwords-file"`
	// TrustedByInstances says that the instances let the certificate backend.cert in as any role.
	TrustedByInstances bool `yaml:"trusted-by-instances"`
}

// AuthRule is a line of pg_hba.conf, or a mapping of its fields.
type AuthRule string

// ruleFields are the keys of the long form.
type ruleFields struct {
	Type     string `yaml:"type"`     // local, host, hostssl or hostnossl
	Database string `yaml:"database"` // names separated by commas, or all
	User     string `yaml:"user"`     // names separated by commas, or all
	Address  string `yaml:"address"`  // CIDR, or all
	Method   string `yaml:"method"`   // scram-sha-256, md5, password, cert, trust or reject
	Options  string `yaml:"options"`  // as in pg_hba.conf
}

// UnmarshalYAML takes both forms.
func (r *AuthRule) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		return n.Decode((*string)(r))
	}
	var f ruleFields
	if err := n.Decode(&f); err != nil {
		return err
	}
	*r = AuthRule(f.line())
	return nil
}

// line writes the fields as pg_hba.conf would have them.
func (f ruleFields) line() string {
	words := []string{f.Type, listOr(f.Database), listOr(f.User)}
	if f.Type != hba.Local.String() {
		words = append(words, listOr(f.Address))
	}
	return strings.TrimSpace(strings.Join(append(words, f.Method, f.Options), " "))
}

// listOr closes the gaps in a list of names; none means all.
func listOr(names string) string {
	list := strings.Split(names, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	if len(list) == 1 && list[0] == "" {
		return "all"
	}
	return strings.Join(list, ",")
}

func (k *checker) listeners(list []Listener) {
	for i, l := range list {
		path := fmt.Sprintf("listen.%d", i)
		if !l.Directory() {
			k.address(path, l.Address)
			if l.Mode != "" {
				k.fail(path+".mode", "only a Unix socket has one")
			}
		} else if len(l.Proxy) > 0 {
			k.fail(path+".proxy-from", "not used with a Unix socket")
		}
		if _, err := strconv.ParseUint(l.Mode, 8, 9); err != nil && l.Mode != "" {
			k.fail(path+".mode", "%q is not permissions such as 0770", l.Mode)
		}
		for j, text := range l.Proxy {
			if _, err := netip.ParsePrefix(text); err != nil {
				k.fail(fmt.Sprintf("%s.proxy-from.%d", path, j), "%q is not an address range such as 10.0.0.0/8", text)
			}
		}
	}
}

func (k *checker) auth(c *Config) {
	for i, line := range c.Auth.Rules {
		if _, err := hba.ParseRule(string(line)); err != nil {
			k.fail(fmt.Sprintf("auth.rules.%d", i), "%v", err)
		}
	}
	for i, line := range c.Auth.Maps {
		if _, problems := hba.ParseMaps(line); len(problems) > 0 {
			k.fail(fmt.Sprintf("auth.maps.%d", i), "%v", problems[0])
		}
	}
	if c.Auth.HBAFile != "" && len(c.Auth.Rules) > 0 {
		k.fail("auth.hba-file", "not used with auth.rules")
	}
	if c.Auth.TrustedByInstances && c.Backend.Cert == "" {
		k.fail("auth.trusted-by-instances", "needs backend.cert and backend.key: the certificate is what they trust")
	}
}
