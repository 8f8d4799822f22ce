package hba

import (
	"net/netip"
	"slices"
)

// Client is what a rule is found by.
type Client struct {
	Local       bool
	TLS         bool
	Addr        netip.Addr
	User        string
	Database    string
	Replication bool // a physical replication connection: only rules that say so are for it
	// MemberOf reports whether the user is a member of a role, itself included.
	MemberOf func(role string) bool
}

// Find gives the first rule that fits, nil when none does.
func (r Rules) Find(c *Client) *Rule {
	c.Addr = c.Addr.Unmap()
	for i := range r {
		if r[i].fits(c) {
			return &r[i]
		}
	}
	return nil
}

func (r *Rule) fits(c *Client) bool {
	return r.fitsType(c) && r.fitsAddress(c) && r.fitsDatabase(c) && r.fitsUser(c)
}

func (r *Rule) fitsType(c *Client) bool {
	switch r.Type {
	case Local:
		return c.Local
	case HostSSL:
		return !c.Local && c.TLS
	case HostNoSSL:
		return !c.Local && !c.TLS
	}
	return !c.Local
}

func (r *Rule) fitsAddress(c *Client) bool {
	if r.Type == Local || r.Any {
		return true
	}
	return slices.ContainsFunc(r.Networks, func(p netip.Prefix) bool { return p.Contains(c.Addr) })
}

func (r *Rule) fitsDatabase(c *Client) bool {
	for i := range r.Databases {
		n := &r.Databases[i]
		if c.Replication != (n.Kind == Replication) {
			continue // physical replication is to no database, and all does not stand for it
		}
		switch n.Kind {
		case All, Replication:
			return true
		case SameUser:
			if c.Database == c.User {
				return true
			}
		case SameRole:
			if c.MemberOf(c.Database) {
				return true
			}
		default:
			if n.is(c.Database) {
				return true
			}
		}
	}
	return false
}

func (r *Rule) fitsUser(c *Client) bool {
	for i := range r.Users {
		switch n := &r.Users[i]; n.Kind {
		case All:
			return true
		case Group:
			if c.MemberOf(n.Text) {
				return true
			}
		default:
			if n.is(c.User) {
				return true
			}
		}
	}
	return false
}

func (n *Name) is(name string) bool {
	if n.Kind == Matching {
		return n.match.MatchString(name)
	}
	return n.Text == name
}

// Groups gives the roles whose members some rule is about, and reports whether any rule asks for membership in the role
// of the database's name.
func (r Rules) Groups() (roles []string, sameRole bool) {
	for i := range r {
		for _, n := range r[i].Users {
			if n.Kind == Group && !slices.Contains(roles, n.Text) {
				roles = append(roles, n.Text)
			}
		}
		for _, n := range r[i].Databases {
			sameRole = sameRole || n.Kind == SameRole
		}
	}
	return roles, sameRole
}
