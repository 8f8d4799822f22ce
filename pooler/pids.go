package pooler

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/internal/pgwire"
	"neki/sqlparse"
)

// backends answers functions about server processes for a session. Pids of the gateway's sessions are told from those of
// servers by their size: they are above any of a kernel's. With a server's, the function runs there, as the client.
type backends Session

// Cancel is pg_cancel_backend.
func (b *backends) Cancel(pid int32) (bool, error) {
	c := (*Session)(b)
	if !isVirtualPID(pid) {
		return c.askServer(fmt.Sprintf("SELECT pg_catalog.pg_cancel_backend(%d)", pid))
	}
	target, err := c.signalTarget(pid, "query is being canceled", "cancel superuser query")
	if target == nil || err != nil {
		return false, err
	}
	target.cancel()
	return true, nil
}

// Terminate is pg_terminate_backend.
func (b *backends) Terminate(pid int32, wait time.Duration) (bool, error) {
	c := (*Session)(b)
	if !isVirtualPID(pid) {
		return c.askServer(fmt.Sprintf("SELECT pg_catalog.pg_terminate_backend(%d, %d)", pid, wait.Milliseconds()))
	}
	target, err := c.signalTarget(pid, "process is being terminated", "terminate superuser process")
	if target == nil || err != nil {
		return false, err
	}
	target.kill(pgerr.Fatal(pgerr.AdminShutdown, "terminating connection due to administrator command"))
	if wait == 0 {
		return true, nil
	}
	for deadline := time.Now().Add(wait); c.srv.sessions.find(uint32(pid)) == target; {
		left := time.Until(deadline)
		if left <= 0 {
			c.notice(warning("backend with PID %d did not terminate within %d milliseconds", pid, wait.Milliseconds()))
			return false, nil
		}
		if err := c.pause(nil, min(left, terminatePoll)); err != nil {
			return false, err
		}
	}
	return true, nil
}

// terminatePoll is how often it is looked whether a session has ended.
const terminatePoll = 10 * time.Millisecond

// Blocked is pg_isolation_test_session_is_blocked.
func (b *backends) Blocked(pid int32, by []int32) (bool, error) {
	c := (*Session)(b)
	self := c.serverPID(pid)
	if self == 0 {
		return false, nil
	}
	list := make([]string, 0, len(by))
	for _, one := range by {
		if other := c.serverPID(one); other != 0 {
			list = append(list, strconv.Itoa(int(other)))
		}
	}
	return c.askServer(fmt.Sprintf("SELECT pg_catalog.pg_isolation_test_session_is_blocked(%d, '{%s}')", self, strings.Join(list, ",")))
}

// Blocking is pg_blocking_pids. The sessions of this gateway that block are given by their own pids.
func (b *backends) Blocking(pid int32) ([]int32, error) {
	c := (*Session)(b)
	self := c.serverPID(pid)
	if self == 0 {
		return nil, nil
	}
	rows, err := c.onServer(fmt.Sprintf("SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids(%d))", self))
	if err != nil {
		return nil, err
	}
	owners := make(map[uint32]uint32)
	if isVirtualPID(pid) {
		c.srv.sessions.each(func(s *Session) { owners[s.heldPID()] = s.pid })
	}
	var pids []int32
	for _, row := range rows {
		n, err := strconv.Atoi(row[0])
		if err != nil {
			return nil, err
		}
		if owner, ok := owners[uint32(n)]; ok {
			n = int(owner)
		}
		pids = append(pids, int32(n))
	}
	return pids, nil
}

func isVirtualPID(pid int32) bool {
	_, _, ok := pgwire.SplitPID(uint32(pid))
	return ok && pid > 0
}

// serverPID gives the process that works for a session now, 0 when there is none; a server's own pid stays as it is.
func (c *Session) serverPID(pid int32) uint32 {
	if !isVirtualPID(pid) {
		return uint32(pid)
	}
	if s := c.srv.sessions.find(uint32(pid)); s != nil {
		return s.heldPID()
	}
	return 0
}

// heldPID gives the server process that runs the session's statement or keeps its transaction, 0 when there is none.
func (c *Session) heldPID() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active != nil {
		return c.active.PID()
	}
	return c.public.held
}

// signalTarget gives the session to cancel or end, if the client's role may do that; nil when there is none, of which the
// client was warned.
func (c *Session) signalTarget(pid int32, what, superuser string) (*Session, error) {
	target := c.srv.sessions.find(uint32(pid))
	if target == nil {
		if !c.srv.keys.Owns(uint32(pid)) {
			return nil, pgerr.New(pgerr.FeatureNotSupported, "session %d is another gateway's", pid).
				WithHint("neki.sessions shows which; use neki.cancel_query or neki.kill_session.")
		}
		c.notice(warning("PID %d is not a PostgreSQL server process", pid))
		return nil, nil
	}
	rows, err := c.onServer(fmt.Sprintf(`SELECT s, s OR pg_catalog.pg_has_role(%s, 'USAGE') OR pg_catalog.pg_has_role('pg_signal_backend', 'USAGE')
		FROM (SELECT rolsuper AS s FROM pg_catalog.pg_roles WHERE rolname = current_user) AS r`, sqlparse.QuoteLiteral(target.user)))
	switch {
	case err != nil:
		return nil, err
	case len(rows) != 1:
		return nil, pgerr.New(pgerr.InternalError, "the client's role was not found")
	case target.role.super && rows[0][0] != "t":
		return nil, pgerr.New(pgerr.InsufficientPrivilege, "must be a superuser to %s", superuser)
	case rows[0][1] != "t":
		return nil, pgerr.New(pgerr.InsufficientPrivilege,
			"must be a member of the role whose %s or member of pg_signal_backend", what)
	}
	return target, nil
}

func warning(format string, args ...any) *pgerr.Error {
	n := pgerr.Notice(format, args...)
	n.Code = "01000"
	return n.WithSeverity(pgerr.SeverityWarning)
}

// askServer gives the single boolean of a query.
func (c *Session) askServer(sql string) (bool, error) {
	rows, err := c.onServer(sql)
	return len(rows) == 1 && rows[0][0] == "t", err
}

// onServer runs a query of the gateway's own on the primary, as the client, in its transaction if one is open.
func (c *Session) onServer(sql string) ([][]string, error) {
	sc, err := c.connection(catalog.RolePrimary, "", c.srv.cfg.Cluster.Snapshot(), 0)
	if err != nil {
		return nil, err
	}
	defer c.endActive()
	rows, err := sc.Exec(sql, c.lend().answers)
	c.status = sc.Status()
	return rows, err
}
