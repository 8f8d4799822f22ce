package pgproc

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"neki/internal/pgerr"
)

// DefaultAccount is the operating-system user under which Postgres runs when neki itself runs as root.
const DefaultAccount = "postgres"

// Account is the operating-system user that a server runs as. Postgres refuses to run as root.
type Account struct {
	Name     string
	UID, GID uint32
	groups   []uint32
	switched bool // this process is root and must change to the account
}

// LookupAccount resolves the user for the servers. As root it is name (DefaultAccount when empty); otherwise it is
// the present user, and any other name is an error.
func LookupAccount(name string) (Account, error) {
	if os.Geteuid() != 0 {
		return presentAccount(name)
	}
	if name == "" {
		name = DefaultAccount
	}
	u, err := user.Lookup(name)
	if err != nil {
		return Account{}, pgerr.New(pgerr.SystemError, "operating-system user %q for PostgreSQL: %w", name, err).
			WithHint("PostgreSQL does not run as root. Create the user (useradd --system %s) or name another with --postgres-user.", name)
	}
	a, err := accountOf(u)
	if err != nil {
		return Account{}, err
	}
	if a.UID == 0 {
		return Account{}, pgerr.New(pgerr.InvalidParameterValue, "PostgreSQL can't run as %q, which is root", name).
			WithHint("Name an unprivileged user with --postgres-user.")
	}
	a.switched = true
	return a, nil
}

func presentAccount(name string) (Account, error) {
	u, err := user.Current()
	if err != nil {
		return Account{}, fmt.Errorf("present operating-system user: %w", err)
	}
	if name != "" && name != u.Username {
		return Account{}, pgerr.New(pgerr.InsufficientPrivilege, "can't run PostgreSQL as %q: this process runs as %q", name, u.Username).
			WithHint("Only root can run PostgreSQL under another user.")
	}
	return accountOf(u)
}

func accountOf(u *user.User) (Account, error) {
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return Account{}, fmt.Errorf("user %s: uid %q: %w", u.Username, u.Uid, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return Account{}, fmt.Errorf("user %s: gid %q: %w", u.Username, u.Gid, err)
	}
	a := Account{Name: u.Username, UID: uint32(uid), GID: uint32(gid)}
	ids, err := u.GroupIds()
	if err != nil {
		return a, nil // the primary group is enough to run
	}
	for _, id := range ids {
		if g, err := strconv.ParseUint(id, 10, 32); err == nil {
			a.groups = append(a.groups, uint32(g))
		}
	}
	return a, nil
}

// sysProcAttr makes a child run under the account, in a session of its own: signals of a terminal (Ctrl-C) are for
// the supervisor, which stops its servers in order.
func (a Account) sysProcAttr() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if a.switched {
		attr.Credential = &syscall.Credential{Uid: a.UID, Gid: a.GID, Groups: a.groups}
	}
	return attr
}

// Command is a program that runs under the account, in an environment of its own.
func (a Account) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr, cmd.Dir = a.sysProcAttr(), "/"
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	return cmd
}

// Own gives a file or directory to the account.
func (a Account) Own(path string) error {
	if !a.switched {
		return nil
	}
	return os.Lchown(path, int(a.UID), int(a.GID))
}

// MakeDir makes a directory (and its parents, open to search) with the given mode that belongs to the account.
func (a Account) MakeDir(path string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(path, mode); err != nil {
		if !os.IsExist(err) {
			return err
		}
		if err := a.checkOwnDir(path); err != nil {
			return err
		}
	}
	if err := os.Chmod(path, mode); err != nil {
		return err
	}
	return a.Own(path)
}

// checkOwnDir refuses a path that somebody else made: it may lie in a directory where anybody may write.
func (a Account) checkOwnDir(path string) error {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return err
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR || st.Uid != a.UID && st.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("%s is not a directory of user %s", path, a.Name)
	}
	return nil
}

// CheckReach reports the first directory on the way to path that the account can't search: a data directory under
// root's home would fail in every server program with a message that doesn't say why.
func (a Account) CheckReach(path string) error {
	if !a.switched {
		return nil
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	for dir := filepath.Dir(abs); ; dir = filepath.Dir(dir) {
		var st syscall.Stat_t
		if err := syscall.Stat(dir, &st); err == nil && !a.maySearch(&st) {
			return pgerr.New(pgerr.InsufficientPrivilege, "user %q can't enter %s, so PostgreSQL can't reach %s", a.Name, dir, abs).
				WithHint("Choose another place with --data, or chmod o+x %s.", dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// maySearch reports whether the account may search the directory.
func (a Account) maySearch(st *syscall.Stat_t) bool {
	switch {
	case st.Uid == a.UID:
		return st.Mode&0o100 != 0
	case st.Gid == a.GID:
		return st.Mode&0o010 != 0
	}
	for _, g := range a.groups {
		if st.Gid == g {
			return st.Mode&0o010 != 0
		}
	}
	return st.Mode&0o001 != 0
}
