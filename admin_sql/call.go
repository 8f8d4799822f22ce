package adminsql

import (
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// matchArguments brings the arguments of a call into the order they are declared in, defaults filled in, each cast to
// its type. The rules are those of Postgres; see https://www.postgresql.org/docs/current/sql-syntax-calling-funcs.html
func (p *Procedure) matchArguments(given []sqlparse.CallArg) ([]*sqlparse.Node, error) {
	declared := p.Args
	nodes := make([]*sqlparse.Node, len(declared))
	named := false
	for i, g := range given {
		at := i
		switch {
		case g.Name != "":
			named = true
			if at = declaredAt(declared, g.Name); at < 0 {
				return nil, p.noSuchArgument(g.Name)
			}
		case named:
			return nil, pgerr.New(pgerr.SyntaxError, "positional argument cannot follow named argument")
		case i >= len(declared):
			return nil, p.wrongCall("%d arguments are given, at most %d are taken.", len(given), len(declared))
		}
		if nodes[at] != nil {
			return nil, pgerr.New(pgerr.SyntaxError, "argument name \"%s\" used more than once", declared[at].Name)
		}
		nodes[at] = castTo(expression(g), declared[at].Type)
	}
	for i, d := range declared {
		switch {
		case nodes[i] != nil:
		case d.Default == nil && d.Null:
			nodes[i] = castTo(nullConstant(), d.Type)
		case d.Default == nil:
			return nil, p.wrongCall("Argument \"%s\" is missing.", d.Name)
		default:
			nodes[i] = castTo(constant(*d.Default), d.Type)
		}
	}
	return nodes, nil
}

func declaredAt(declared []Argument, name string) int {
	for i := range declared {
		if declared[i].Name == name {
			return i
		}
	}
	return -1
}

func (p *Procedure) noSuchArgument(given string) error {
	names := make([]string, len(p.Args))
	for i := range p.Args {
		names[i] = p.Args[i].Name
	}
	err := p.wrongCall("There is no argument \"%s\".", given)
	if near := pgerr.Nearest(given, names); near != "" {
		return err.WithHint("Perhaps you meant the argument \"%s\".", near)
	}
	return err
}

// wrongCall is 42883: no procedure of that name takes these arguments.
func (p *Procedure) wrongCall(detail string, args ...any) *pgerr.Error {
	return pgerr.New(pgerr.UndefinedFunction, "procedure neki.%s does not take these arguments", p.Name).
		WithDetail(detail, args...).
		WithHint("It is declared as neki.%s(%s).", p.Name, signature(p.Args))
}

// expression gives an argument's value without its name.
func expression(a sqlparse.CallArg) *sqlparse.Node {
	if named := a.Node.GetNamedArgExpr(); named != nil {
		return named.GetArg()
	}
	return a.Node
}

// refuseSubquery is what Postgres does: the arguments of a CALL are computed before it begins.
func refuseSubquery(stmt *sqlparse.Statement) error {
	var refused error
	sqlparse.Walk(stmt.Tree, func(n any) bool {
		if s, ok := n.(*sqlparse.SubLink); ok && refused == nil {
			refused = pgerr.New(pgerr.FeatureNotSupported, "cannot use subquery in CALL argument").
				WithPosition(charPosition(stmt.Text, s.GetLocation()))
		}
		return refused == nil
	})
	return refused
}

// goValue turns a value into the Go value that bodies and rows get.
func goValue(oid uint32, d datum.Datum) (any, error) {
	if d.IsNull() {
		return nil, nil
	}
	switch oid {
	case pgtype.Int4OID:
		return int32(d.Int()), nil
	case pgtype.Int8OID:
		return d.Int(), nil
	case pgtype.BoolOID:
		return d.Bool(), nil
	case pgtype.TextOID, pgtype.JSONBOID:
		return d.Text(), nil
	case pgtype.IntervalOID:
		return duration(d.Interval()), nil
	case pgtype.TimestamptzOID:
		const unixOf2000 = 946684800 * 1_000_000
		return time.UnixMicro(d.Int() + unixOf2000).UTC(), nil // infinity is out of any range
	}
	return nil, pgerr.New(pgerr.InternalError, "no argument of type %s is known", TypeName(oid))
}

// duration is an interval's length; one that is too long for a Duration is as long as that can be.
func duration(iv datum.Interval) time.Duration {
	micros := iv.Epoch()
	if most := int64(math.MaxInt64 / 1000); !micros.IsInt64() || micros.Int64() > most || micros.Int64() < -most {
		return time.Duration(math.MaxInt64) * time.Duration(micros.Sign())
	}
	return time.Duration(micros.Int64()) * time.Microsecond
}

func goValues(declared []Argument, row []datum.Datum) ([]any, error) {
	values := make([]any, len(row))
	for i, d := range row {
		v, err := goValue(declared[i].Type, d)
		if err != nil {
			return nil, err
		}
		values[i] = v
	}
	return values, nil
}
