// Package pgerr holds the one error type that neki shows to a Postgres client.
//
// An Error carries every field of an ErrorResponse or NoticeResponse, so that an error from a shard reaches the
// client unchanged and an error of our own looks like one of Postgres's. SQLSTATEs are Postgres's where one fits;
// those that only a sharded gateway can raise are in class NK (classes I to Z are free in the SQL standard).
//
// An Error is a value made once and not changed after it was returned: the With methods copy. It is safe for
// concurrent use.
//
// Manual: https://www.postgresql.org/docs/current/protocol-error-fields.html and
// https://www.postgresql.org/docs/current/errcodes-appendix.html
package pgerr

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Severities, as sent in the V (never translated) field.
const (
	SeverityError   = "ERROR"
	SeverityFatal   = "FATAL"
	SeverityPanic   = "PANIC"
	SeverityWarning = "WARNING"
	SeverityNotice  = "NOTICE"
)

// Error is an error or notice with the fields of the wire protocol. Empty fields are not sent.
type Error struct {
	Severity         string // one of the Severity constants
	Code             string // SQLSTATE, five characters
	Message          string
	Detail           string
	Hint             string
	Position         int32 // 1-based, in characters of the statement's text; 0 = none
	InternalPosition int32
	InternalQuery    string
	Where            string
	Schema           string
	Table            string
	Column           string
	DataType         string
	Constraint       string
	File             string
	Line             int32
	Routine          string

	cause error
}

// New makes an ERROR with the given SQLSTATE and formatted message. A %w verb keeps its operand as the cause.
func New(code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Severity: SeverityError, Code: code, Message: err.Error(), cause: errors.Unwrap(err)}
}

// Fatal makes a FATAL: the connection ends after it.
func Fatal(code, format string, args ...any) *Error {
	e := New(code, format, args...)
	e.Severity = SeverityFatal
	return e
}

// Notice makes a NOTICE with SQLSTATE 00000.
func Notice(format string, args ...any) *Error {
	e := New(SuccessfulCompletion, format, args...)
	e.Severity = SeverityNotice
	return e
}

// WithDetail returns a copy with the DETAIL line set.
func (e *Error) WithDetail(format string, args ...any) *Error {
	c := *e
	c.Detail = fmt.Sprintf(format, args...)
	return &c
}

// WithHint returns a copy with the HINT line set.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// WithPosition returns a copy that points at the 1-based character pos of the statement.
func (e *Error) WithPosition(pos int32) *Error {
	c := *e
	c.Position = pos
	return &c
}

// WithSeverity returns a copy with another severity.
func (e *Error) WithSeverity(severity string) *Error {
	c := *e
	c.Severity = severity
	return &c
}

// Error gives the text as psql prints it, with the SQLSTATE.
func (e *Error) Error() string {
	return e.Severity + ": " + e.Message + " (SQLSTATE " + e.Code + ")"
}

// SQLState gives the SQLSTATE; it makes Error interchangeable with pgconn.PgError for callers that ask by interface.
func (e *Error) SQLState() string { return e.Code }

// Unwrap gives the cause, if any.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is an *Error with the same SQLSTATE.
func (e *Error) Is(target error) bool {
	var t *Error
	return errors.As(target, &t) && t.Code == e.Code
}

// From turns any error into an *Error: an *Error in the chain as it is, a Postgres error field by field, a cancelled
// context as 57014, a passed deadline as 57014 too, all else as XX000. It returns nil for nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return fromPgconn(pg, err)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return New(QueryCanceled, "canceling statement due to user request: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return New(QueryCanceled, "canceling statement due to timeout: %w", err)
	}
	return New(InternalError, "%w", err)
}

// Code gives the SQLSTATE of err, "" when it has none.
func Code(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}

func fromPgconn(pg *pgconn.PgError, cause error) *Error {
	return &Error{
		Severity: pg.SeverityUnlocalized, Code: pg.Code, Message: pg.Message, Detail: pg.Detail, Hint: pg.Hint,
		Position: pg.Position, InternalPosition: pg.InternalPosition, InternalQuery: pg.InternalQuery,
		Where: pg.Where, Schema: pg.SchemaName, Table: pg.TableName, Column: pg.ColumnName,
		DataType: pg.DataTypeName, Constraint: pg.ConstraintName, File: pg.File, Line: pg.Line,
		Routine: pg.Routine, cause: cause,
	}
}

// FromResponse copies a decoded ErrorResponse. A server that sends no SQLSTATE (CVE-2026-6666) yields XX000.
func FromResponse(r *pgproto3.ErrorResponse) *Error {
	e := &Error{
		Severity: r.SeverityUnlocalized, Code: r.Code, Message: r.Message, Detail: r.Detail, Hint: r.Hint,
		Position: r.Position, InternalPosition: r.InternalPosition, InternalQuery: r.InternalQuery,
		Where: r.Where, Schema: r.SchemaName, Table: r.TableName, Column: r.ColumnName,
		DataType: r.DataTypeName, Constraint: r.ConstraintName, File: r.File, Line: r.Line, Routine: r.Routine,
	}
	if e.Severity == "" {
		e.Severity = r.Severity
	}
	if e.Severity == "" {
		e.Severity = SeverityError
	}
	if e.Code == "" {
		e.Code = InternalError
	}
	return e
}

// Response gives the wire form. A severity below ERROR must be sent as a notice: see NoticeResponse.
func (e *Error) Response() *pgproto3.ErrorResponse {
	return &pgproto3.ErrorResponse{
		Severity: e.Severity, SeverityUnlocalized: e.Severity, Code: e.Code, Message: e.Message,
		Detail: e.Detail, Hint: e.Hint, Position: e.Position, InternalPosition: e.InternalPosition,
		InternalQuery: e.InternalQuery, Where: e.Where, SchemaName: e.Schema, TableName: e.Table,
		ColumnName: e.Column, DataTypeName: e.DataType, ConstraintName: e.Constraint, File: e.File,
		Line: e.Line, Routine: e.Routine,
	}
}

// NoticeResponse gives the wire form of a warning or notice.
func (e *Error) NoticeResponse() *pgproto3.NoticeResponse {
	return (*pgproto3.NoticeResponse)(e.Response())
}
