package pooler

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strconv"
	"time"

	admin "neki/admin_sql"
	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/pooler/plan"
	"neki/settings"
	"neki/sqlparse"
)

// Virtual is the neki schema: the statements that name its relations and procedures are answered here, from memory,
// with every Postgres stopped.
type Virtual interface {
	plan.VirtualSchema
	// RelationNames lists the names that tables of users could have too.
	RelationNames() []string
	// Prepare makes a statement ready to run: its columns and the types of its parameters are known then.
	Prepare(sess admin.Session, st *sqlparse.Statement, searchPath []string, paramOIDs []uint32) (admin.Prepared, error)
}

// formats are a client's result format codes.
type formats []int16

// virtualBudget bounds the memory of one statement over the neki schema.
const virtualBudget = 64 << 20

// virtualLimit bounds the time of one; a CALL may wait for an action to end, such as the restore of a replica.
const (
	virtualLimit = time.Minute
	callLimit    = 48 * time.Hour
)

const callTag = "CALL"

// virtual answers a statement over the neki schema of the simple protocol; run is that of an EXECUTE.
func (c *Session) virtual(dst []byte, p *plan.Plan, run *preparedRun) ([]byte, error) {
	if run == nil {
		prepared, err := c.prepareVirtual(p, nil)
		if err != nil {
			return dst, err
		}
		run = &preparedRun{prepared: prepared}
	}
	if p.CopyOut != nil {
		return c.copyVirtual(dst, run.prepared, run.params, p.CopyOut)
	}
	columns := run.prepared.Columns()
	if columns != nil {
		dst = appendRowDescription(dst, virtualColumns(columns), nil)
	}
	if err := c.setConfigs(p); err != nil {
		return dst, err
	}
	rows, tag, err := c.runVirtual(nil, run.prepared, run.params, dataRows(columns, nil))
	if err != nil {
		return dst, err
	}
	for _, r := range rows {
		dst = append(dst, r...)
	}
	return appendComplete(dst, tag), nil
}

func (c *Session) prepareVirtual(p *plan.Plan, oids []uint32) (admin.Prepared, error) {
	if c.srv.cfg.Virtual == nil {
		return nil, pgerr.New(pgerr.UndefinedTable, "this gateway has no neki schema")
	}
	return c.srv.cfg.Virtual.Prepare((*virtualSession)(c), p.Statement, c.planEnv().SearchPath(), oids)
}

func virtualColumns(in []exec.Column) []column {
	out := make([]column, len(in))
	for i, k := range in {
		out[i] = column{name: k.Name, oid: k.Type.OID, size: datum.Size(k.Type.OID), mod: k.Type.Typmod}
	}
	return out
}

// encoder makes the message of a row.
type encoder func(row []datum.Datum, session *datum.Session) ([]byte, error)

// dataRows makes DataRow messages.
func dataRows(columns []exec.Column, f formats) encoder {
	return func(row []datum.Datum, session *datum.Session) ([]byte, error) {
		return encodeRow(row, columns, f, session)
	}
}

// runVirtual runs a prepared statement and gives a message for each row, and the command tag.
func (c *Session) runVirtual(rows [][]byte, prepared admin.Prepared, params []datum.Datum, encode encoder) ([][]byte, string, error) {
	limit := virtualLimit
	if prepared.Tag() == callTag {
		limit = callLimit
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit) //nolint:forbidigo // bounded here and by cancel
	defer cancel()
	stop := c.cancelOnInterrupt(cancel)
	defer stop()
	env := c.virtualEnv(params)
	node, err := prepared.Run(ctx, env, func(n *pgerr.Error) {
		if !c.notice(n) {
			cancel() // the client is gone
		}
	})
	if err != nil {
		return nil, "", c.virtualError(ctx, err)
	}
	if node == nil {
		return rows, prepared.Tag(), nil
	}
	defer func() { _ = node.Close() }()
	session := &datum.Session{Zone: env.Zone, Now: env.Now}
	for {
		b, err := node.Next(ctx)
		if errors.Is(err, io.EOF) {
			if prepared.Tag() == callTag {
				return rows, callTag, nil
			}
			return rows, prepared.Tag() + " " + strconv.Itoa(len(rows)), nil
		}
		if err != nil {
			return nil, "", c.virtualError(ctx, err)
		}
		for i := range b.Len() {
			row, err := encode(b.Row(i), session)
			if err != nil {
				return nil, "", err
			}
			rows = append(rows, row)
		}
	}
}

// virtualError tells a cancelled statement from a failed one.
func (c *Session) virtualError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errCanceled
	}
	return err
}

// cancelOnInterrupt makes a cancel request of the client end the statement that runs under cancel.
func (c *Session) cancelOnInterrupt(cancel context.CancelFunc) (stop func()) {
	interrupted := c.interruptChan()
	done := make(chan struct{})
	joined := make(chan struct{})
	go func() { // joined by stop
		defer close(joined)
		select {
		case <-interrupted:
			cancel()
		case <-done:
		}
	}()
	return func() {
		close(done)
		<-joined
		c.mu.Lock()
		c.interrupt = nil
		c.mu.Unlock()
	}
}

// notice sends a NOTICE at once: progress of a procedure. false: the client is gone.
func (c *Session) notice(n *pgerr.Error) bool {
	_, err := c.conn.Write(encodeError(nil, n))
	return err == nil
}

func (c *Session) virtualEnv(params []datum.Datum) *exec.Env {
	now := time.Now()
	env := &exec.Env{
		Params: params, Now: now, Statement: now, Zone: time.UTC, Budget: exec.NewBudget(virtualBudget),
		User: c.planUser(), SessionUser: c.user, Database: c.db.name, Schema: "public",
		Version: c.srv.cfg.Version, PID: int32(c.pid), Backends: (*backends)(c), Caller: (*virtualSession)(c),
		Vars: func(name string) (string, bool) {
			value, source := (*virtualSession)(c).Setting(name)
			return value, source != ""
		},
		VarNames: settings.Names,
	}
	if zone, ok := c.shownParameter("TimeZone"); ok {
		if z, err := datum.ParseZone(zone); err == nil {
			env.Zone = z
		}
	}
	return env
}

// shownParameter gives what the client was last told of a reported parameter.
func (c *Session) shownParameter(name string) (string, bool) {
	if c.shown == nil {
		return "", false
	}
	return c.shown.Get(name)
}

func encodeRow(row []datum.Datum, columns []exec.Column, f formats, session *datum.Session) ([]byte, error) {
	dst := []byte{'D', 0, 0, 0, 0}
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(row)))
	for i, v := range row {
		at := len(dst)
		if v.IsNull() {
			dst = append(dst, 0xff, 0xff, 0xff, 0xff)
			continue
		}
		dst = append(dst, 0, 0, 0, 0)
		var err error
		if formatOf(f, i) == 1 {
			dst, err = datum.AppendBinary(dst, columns[i].Type.OID, v, session)
		} else {
			dst, err = datum.AppendText(dst, columns[i].Type.OID, v, session)
		}
		if err != nil {
			return nil, err
		}
		binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	}
	return endMessage(dst, 0), nil
}

// virtualSession is a Session as the neki schema sees it.
type virtualSession Session

// User gives current_user.
func (v *virtualSession) User() string { return (*Session)(v).planUser() }

// IsSuperuser reports whether current_user has all rights.
func (v *virtualSession) IsSuperuser() bool { return (*Session)(v).currentRole().super }

// MemberOf reports whether current_user is a member of one of neki's roles.
func (v *virtualSession) MemberOf(name string) bool {
	return (*Session)(v).currentRole().memberOf(name)
}

// currentRole gives current_user as remembered. Only a role not known, or from before a change of roles, is asked for.
func (c *Session) currentRole() *role {
	user := c.planUser()
	ctx, cancel := context.WithTimeout(context.Background(), rightsLimit) //nolint:forbidigo // bounded here
	defer cancel()
	r, err := c.srv.roles.remembered(ctx, user, c.db.name)
	switch {
	case err == nil:
		return r
	case user == c.user:
		return c.role
	}
	return &role{name: user} // nobody answers, so it has no rights
}

// rightsLimit bounds the wait for a role's rights: the neki schema must answer when no Postgres does.
const rightsLimit = time.Second

// Setting gives a session setting with its source: default, startup or session. The source is "" for one not known.
func (v *virtualSession) Setting(name string) (value, source string) {
	c := (*Session)(v)
	value, err := c.vars.Neki().Get(name)
	if err != nil {
		if value, ok := c.vars.GUC(name); ok {
			return value, "session"
		}
		return "", ""
	}
	base, _ := c.defaults.Neki().Get(name)
	builtin, _ := c.srv.interner.Empty().Neki().Get(name)
	switch {
	case value != base:
		return value, "session"
	case base != builtin:
		return value, "client"
	}
	return value, "default"
}

// planUser gives current_user.
func (c *Session) planUser() string {
	c.planEnv()
	return c.envUser
}
