package adminsql

import (
	"slices"

	"neki/internal/pgerr"
)

// Session is what a neki statement must know of the client session that runs it. Its methods answer from memory: they
// are called with every Postgres stopped.
type Session interface {
	User() string              // current_user
	IsSuperuser() bool         // of User
	MemberOf(role string) bool // User is role, or is its member directly or by other roles
	Setting(name string) (value, source string)
}

// mayView reports whether the session may read every row of every relation.
func mayView(sess Session) bool {
	return sess.IsSuperuser() || sess.MemberOf(ViewerRole) || sess.MemberOf(OperatorRole)
}

func mayOperate(sess Session) bool { return sess.IsSuperuser() || sess.MemberOf(OperatorRole) }

// checkRead refuses a relation to a session without the right.
func (r *Relation) checkRead(sess Session) error {
	if r.Open || mayOperate(sess) || !r.Operator && mayView(sess) {
		return nil
	}
	kind := "relation"
	if r.Function {
		kind = "function"
	}
	needed := ViewerRole
	if r.Operator {
		needed = OperatorRole
	}
	return pgerr.New(pgerr.InsufficientPrivilege, "permission denied for %s %s", kind, r.FullName()).
		WithHint("Role \"%s\" must be a member of %s.", sess.User(), needed)
}

func (p *Procedure) givesRow() bool {
	return slices.ContainsFunc(p.Args, func(a Argument) bool { return a.InOut })
}

func (p *Procedure) checkCall(sess Session) error {
	if mayOperate(sess) {
		return nil
	}
	return pgerr.New(pgerr.InsufficientPrivilege, "permission denied for procedure neki.%s", p.Name).
		WithHint("Role \"%s\" must be a member of %s.", sess.User(), OperatorRole)
}
