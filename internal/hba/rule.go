package hba

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Type says which connections a rule is for.
type Type uint8

// The types. Host fits with TLS and without.
const (
	Local Type = iota
	Host
	HostSSL
	HostNoSSL
)

var typeNames = [...]string{"local", "host", "hostssl", "hostnossl"}

func (t Type) String() string { return typeNames[t] }

// Method says how a client proves who it is.
type Method uint8

// The methods.
const (
	Reject Method = iota
	Trust
	SCRAM
	MD5
	Password
	Cert
)

var methodNames = [...]string{"reject", "trust", "scram-sha-256", "md5", "password", "cert"}

func (m Method) String() string { return methodNames[m] }

// CertCheck says what a hostssl rule asks of a client's certificate, beside its method.
type CertCheck uint8

// The checks: none, that it is of the authority, and that it is the role's.
const (
	CertAny CertCheck = iota
	CertCA
	CertFull
)

// Rule is one line.
type Rule struct {
	Type      Type
	Databases []Name
	Users     []Name
	Any       bool           // every address
	Networks  []netip.Prefix // else these
	Method    Method
	Map       string // of user names, for certificates; "" = the names are equal
	Cert      CertCheck
	Text      string // as it was written
	Line      int    // of its file; 0 = none
}

// Name is an item of the lists of databases and users.
type Name struct {
	Kind  NameKind
	Text  string
	match *regexp.Regexp
}

// NameKind is what an item stands for.
type NameKind uint8

// The kinds: a name as it is, every name, the user's own, a role that the user is a member of, the role of the
// database's name that the user is a member of, connections for replication, and a regular expression.
const (
	Exactly NameKind = iota
	All
	SameUser
	Group
	SameRole
	Replication
	Matching
)

// Rules are what a gateway goes by: the first that fits counts.
type Rules []Rule

// Default lets everybody in by the password that the instances have for the role.
func Default() Rules {
	everyone := []Name{{Kind: All}}
	r := Rule{Databases: everyone, Users: everyone, Any: true, Method: SCRAM}
	local, host := r, r
	local.Type, local.Text = Local, "local all all scram-sha-256"
	host.Type, host.Text = Host, "host all all all scram-sha-256"
	return Rules{local, host}
}

// Parse reads a file in the form of pg_hba.conf.
func Parse(text string) (rules Rules, problems []error) {
	lines(text, func(number int, line string) {
		r, err := ParseRule(line)
		switch {
		case errors.Is(err, errBlank):
		case err != nil:
			problems = append(problems, &LineError{number, err})
		default:
			r.Line = number
			rules = append(rules, r)
		}
	})
	return rules, problems
}

var errBlank = errors.New("there is no rule")

// ParseRule reads one line.
func ParseRule(line string) (Rule, error) {
	list, err := fields(line)
	if err != nil {
		return Rule{}, err
	}
	if len(list) == 0 {
		return Rule{}, errBlank
	}
	r := Rule{Text: strings.TrimSpace(line)}
	if r.Type, err = parseType(list[0]); err != nil {
		return Rule{}, err
	}
	if len(list) < 3 {
		return Rule{}, errors.New("a database, a user and a method must follow the type")
	}
	if r.Databases, err = parseNames(list[1], databaseKeywords); err != nil {
		return Rule{}, fmt.Errorf("database: %w", err)
	}
	if r.Users, err = parseNames(list[2], userKeywords); err != nil {
		return Rule{}, fmt.Errorf("user: %w", err)
	}
	rest := list[3:]
	if r.Type != Local {
		if rest, err = r.parseAddress(rest); err != nil {
			return Rule{}, err
		}
	}
	if len(rest) == 0 {
		return Rule{}, errors.New("the method is missing")
	}
	if err := r.parseMethod(rest[0]); err != nil {
		return Rule{}, err
	}
	return r, r.parseOptions(rest[1:])
}

func parseType(f field) (Type, error) {
	i := slices.Index(typeNames[:], f[0].text)
	if i < 0 || len(f) > 1 {
		return 0, fmt.Errorf("type %q is not one of %s", f[0].text, strings.Join(typeNames[:], ", "))
	}
	return Type(i), nil
}

var (
	databaseKeywords = map[string]NameKind{
		"all": All, "sameuser": SameUser, "samerole": SameRole, "samegroup": SameRole, "replication": Replication,
	}
	userKeywords = map[string]NameKind{"all": All}
)

func parseNames(f field, keywords map[string]NameKind) ([]Name, error) {
	names := make([]Name, 0, len(f))
	for _, t := range f {
		n := Name{Text: t.text}
		kind, keyword := keywords[t.text]
		switch {
		case t.quoted:
		case keyword:
			n.Kind = kind
		case strings.HasPrefix(t.text, "@"):
			return nil, fmt.Errorf("%s: files of names are not supported; write the names", t.text)
		case strings.HasPrefix(t.text, "/"):
			re, err := compile(t.text)
			if err != nil {
				return nil, err
			}
			n.Kind, n.match = Matching, re
		case strings.HasPrefix(t.text, "+") && len(t.text) > 1:
			n.Kind, n.Text = Group, t.text[1:]
		}
		names = append(names, n)
	}
	return names, nil
}

// parseAddress reads all, samehost, samenet, a range, or an address and its mask.
func (r *Rule) parseAddress(rest []field) ([]field, error) {
	if len(rest) == 0 {
		return nil, errors.New("the address is missing")
	}
	if len(rest[0]) != 1 {
		return nil, errors.New("address: one rule has one address range")
	}
	var err error
	t := rest[0][0]
	switch {
	case t.is("all"):
		r.Any = true
	case t.is("samehost"):
		r.Networks, err = own(true)
	case t.is("samenet"):
		r.Networks, err = own(false)
	case strings.Contains(t.text, "/"):
		var p netip.Prefix
		if p, err = netip.ParsePrefix(t.text); err == nil {
			r.Networks = []netip.Prefix{p.Masked()}
		}
	default:
		return r.parseMask(t.text, rest[1:])
	}
	if err != nil {
		return nil, fmt.Errorf("address %q is not an address range such as 10.0.0.0/8, or all: %w", t.text, err)
	}
	return rest[1:], nil
}

func (r *Rule) parseMask(address string, rest []field) ([]field, error) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return nil, fmt.Errorf("address %q is not an address range such as 10.0.0.0/8, or all; host names are not supported", address)
	}
	if len(rest) == 0 || len(rest[0]) != 1 {
		return nil, fmt.Errorf("address %q has neither a prefix length nor a mask", address)
	}
	mask, err := netip.ParseAddr(rest[0][0].text)
	ones, bits := net.IPMask(mask.AsSlice()).Size()
	if err != nil || bits != ip.BitLen() {
		return nil, fmt.Errorf("mask %q does not fit address %q", rest[0][0].text, address)
	}
	p, err := ip.Prefix(ones)
	r.Networks = []netip.Prefix{p}
	return rest[1:], err
}

// own gives the machine's addresses, or the networks they are in.
func own(host bool) ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var list []netip.Prefix
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		if host {
			p = netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
		}
		list = append(list, p.Masked())
	}
	return list, nil
}

func (r *Rule) parseMethod(f field) error {
	name := f[0].text
	i := slices.Index(methodNames[:], name)
	switch {
	case i < 0 || len(f) > 1:
		return fmt.Errorf("method %q is not one of %s", name, strings.Join(methodNames[:], ", "))
	case Method(i) == Cert && r.Type != HostSSL:
		return fmt.Errorf("method cert is for hostssl rules only, not for %s", r.Type)
	case Method(i) == Cert:
		r.Cert = CertFull
	}
	r.Method = Method(i)
	return nil
}

func (r *Rule) parseOptions(rest []field) error {
	for _, f := range rest {
		for _, t := range f {
			name, value, _ := strings.Cut(t.text, "=")
			switch {
			case name == "map" && value != "" && r.Type == HostSSL:
				r.Map = value
			case name == "clientcert" && r.Type == HostSSL && (value == "verify-ca" || value == "verify-full"):
				r.Cert = max(r.Cert, map[string]CertCheck{"verify-ca": CertCA, "verify-full": CertFull}[value])
			case name == "clientname" && value == "CN":
			default:
				return fmt.Errorf("option %q is not supported in a rule of type %s and method %s", t.text, r.Type, r.Method)
			}
		}
	}
	return nil
}
