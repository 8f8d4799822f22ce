package hba

import (
	"net/netip"
	"strings"
	"testing"
)

const file = `
# TYPE  DATABASE  USER  ADDRESS  METHOD
local   all       all            scram-sha-256
host    all       intruder  all  reject
hostssl "all"     all       10.0.0.0/8  md5          # a database that is called all
hostssl sameuser,shop, "odd ""name""" alice,+staff 10.0.0.0/8 cert map=people
hostnossl all     bob       192.168.1.0 255.255.255.0 password
host    replication all     ::1/128     trust
hostssl samerole  /^app_\d+$ all        scram-sha-256 \
  clientcert=verify-ca
host    all       carol     samehost    trust
`

func TestFind(t *testing.T) {
	rules, problems := Parse(file)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	groups, sameRole := rules.Groups()
	if strings.Join(groups, ",") != "staff" || !sameRole {
		t.Errorf("groups %v, %v", groups, sameRole)
	}
	for _, tc := range []struct {
		name   string
		client Client
		addr   string
		method string // "" = no rule
		line   int
	}{
		{"socket", Client{Local: true, User: "x", Database: "y"}, "", "scram-sha-256", 3},
		{"rejected before all others", Client{TLS: true, User: "intruder", Database: "all"}, "10.1.1.1", "reject", 4},
		{"quoted all is a name", Client{TLS: true, User: "x", Database: "all"}, "10.1.1.1", "md5", 5},
		{"and only that", Client{TLS: true, User: "x", Database: "y"}, "10.1.1.1", "", 0},
		{"sameuser", Client{TLS: true, User: "alice", Database: "alice"}, "10.1.1.1", "cert", 6},
		{"mapped address", Client{TLS: true, User: "alice", Database: "shop"}, "::ffff:10.1.1.1", "cert", 6},
		{"without TLS", Client{User: "alice", Database: "shop"}, "10.1.1.1", "", 0},
		{"member", Client{TLS: true, User: "dora", Database: `odd "name"`}, "10.1.1.1", "cert", 6},
		{"mask", Client{User: "bob", Database: "y"}, "192.168.1.77", "password", 7},
		{"outside the mask", Client{User: "bob", Database: "y"}, "192.168.2.77", "", 0},
		{"all is not replication", Client{Replication: true, User: "bob"}, "192.168.1.77", "", 0},
		{"replication", Client{Replication: true, User: "bob"}, "::1", "trust", 8},
		{"replication is no database", Client{User: "x", Database: "replication"}, "::1", "", 0},
		{"expression, samerole", Client{TLS: true, User: "app_12", Database: "apps"}, "1.2.3.4", "scram-sha-256", 9},
		{"not of samerole", Client{TLS: true, User: "app_12", Database: "other"}, "1.2.3.4", "", 0},
		{"samehost", Client{User: "carol", Database: "y"}, "127.0.0.1", "trust", 11},
	} {
		c := tc.client
		c.MemberOf = func(role string) bool {
			return role == c.User || role == "staff" && c.User == "dora" || role == "apps" && c.User == "app_12"
		}
		if tc.addr != "" {
			c.Addr = netip.MustParseAddr(tc.addr)
		}
		r := rules.Find(&c)
		switch {
		case r == nil && tc.method == "":
		case r == nil || r.Method.String() != tc.method || r.Line != tc.line:
			t.Errorf("%s: %+v", tc.name, r)
		}
	}
	if r := rules[3]; r.Cert != CertFull || r.Map != "people" {
		t.Errorf("cert: %+v", r)
	}
	if r := rules[6]; r.Cert != CertCA {
		t.Errorf("clientcert: %+v", r)
	}
}

func TestDefault(t *testing.T) {
	for _, c := range []Client{{Local: true}, {TLS: true, Addr: netip.MustParseAddr("::1")}} {
		if r := Default().Find(&c); r == nil || r.Method != SCRAM {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}

func TestProblems(t *testing.T) {
	for line, want := range map[string]string{
		"guess all all all trust":                       `type "guess" is not one of local, host, hostssl, hostnossl`,
		"host all":                                      "a database, a user and a method must follow",
		"host all all":                                  "the address is missing",
		"host all all all":                              "the method is missing",
		"local all all":                                 "the method is missing",
		"host all all db.example.com trust":             "host names are not supported",
		"host all all 10.0.0.0 trust":                   `mask "trust" does not fit`,
		"host all all 10.0.0.0/33 trust":                "is not an address range",
		"host all all all ldap":                         `method "ldap" is not one of reject, trust`,
		"local all all peer":                            `method "peer" is not one of`,
		"host all all all cert":                         "method cert is for hostssl rules only",
		"host all all all md5 clientcert=verify-ca":     `option "clientcert=verify-ca" is not supported`,
		"hostssl all all all md5 clientcert=guess":      `option "clientcert=guess" is not supported`,
		`host "all all all md5`:                         "a quotation mark is not closed",
		"host @names all all md5":                       "files of names are not supported",
		"host all /( all md5":                           "invalid regular expression",
		"host all " + strings.Repeat("u,", 40<<10) + "": "longer than",
	} {
		_, err := ParseRule(line)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v", line, err)
		}
	}
	_, problems := Parse("local all all trust\nhost all\n")
	if len(problems) != 1 || !strings.HasPrefix(problems[0].Error(), "line 2: ") {
		t.Error(problems)
	}
}

func TestMaps(t *testing.T) {
	maps, problems := ParseMaps(`
people  alice@example.com       alice   # the usual
people  /^(.*)@staff\.com$      \1
people  "/slash"                root
people  boss                    all
people  worker                  +staff
others  alice@example.com       root
`)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	staff := func(role string) bool { return role == "staff" }
	for _, tc := range []struct {
		name, system, role string
		want               bool
	}{
		{"", "alice", "alice", true},
		{"", "alice", "bob", false},
		{"people", "alice@example.com", "alice", true},
		{"people", "alice@example.com", "root", false},
		{"people", "bob@staff.com", "bob", true},
		{"people", "bob@staff.com", "alice", false},
		{"people", "bob@staffxcom", "bob", false},
		{"people", "/slash", "root", true},
		{"people", "boss", "anybody", true},
		{"people", "worker", "anybody", true},
		{"others", "alice@example.com", "root", true},
		{"missing", "alice", "alice", false},
	} {
		if got := maps.Allows(tc.name, tc.system, tc.role, staff); got != tc.want {
			t.Errorf("%s: %s as %s: %v", tc.name, tc.system, tc.role, got)
		}
	}
	for text, want := range map[string]string{
		"a b":         "a line has the map's name",
		"a b c,d":     "commas are not allowed",
		`a b \1`:      "there is none",
		"a /( c":      "invalid regular expression",
		`a "b c`:      "a quotation mark is not closed",
		"ok a b\nx y": "line 2: ",
	} {
		if _, problems := ParseMaps(text); len(problems) != 1 || !strings.Contains(problems[0].Error(), want) {
			t.Errorf("%q: %v", text, problems)
		}
	}
}

// FuzzRules reads any file. A rule that is taken is found again in its own text, and finding never panics.
func FuzzRules(f *testing.F) {
	f.Add(file)
	f.Add("host all all 0.0.0.0 0.0.0.0 trust\nhost \"\" /x ::/0 md5 map=\"a\"")
	f.Add("a /^(x)$ \\1\n\\\n\"")
	f.Fuzz(func(t *testing.T, text string) {
		rules, _ := Parse(text)
		for i := range rules {
			again, err := ParseRule(rules[i].Text)
			if err != nil || again.Method != rules[i].Method || len(again.Users) != len(rules[i].Users) {
				t.Errorf("%q is read as %+v, then %+v, %v", rules[i].Text, rules[i], again, err)
			}
		}
		c := Client{User: "u", Database: "d", Addr: netip.MustParseAddr("10.0.0.1"), MemberOf: func(string) bool { return false }}
		if r := rules.Find(&c); r != nil && !r.fits(&c) {
			t.Errorf("%+v does not fit", r)
		}
		maps, _ := ParseMaps(text)
		for name := range maps {
			maps.Allows(name, "x", "u", c.MemberOf)
		}
	})
}
