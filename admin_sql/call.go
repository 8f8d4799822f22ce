package adminsql

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// argument is one argument of a call as written: an expression, and its name when it was given by name.
type argument struct {
	name string
	node *sqlparse.Node
}

// matchArguments brings the arguments of a call into the order they are declared in, defaults filled in, each cast to
// its type. kind and name are for the messages, which are Postgres's.
func matchArguments(kind, name string, declared []Argument, given []argument) ([]*sqlparse.Node, error) {
	nodes := make([]*sqlparse.Node, len(declared))
	named := false
	for i, g := range given {
		at := i
		switch {
		case g.name != "":
			named = true
			if at = declaredAt(declared, g.name); at < 0 {
				return nil, noSuchArgument(kind, name, declared, g.name)
			}
		case named:
			return nil, pgerr.New(pgerr.SyntaxError, "positional argument cannot follow named argument")
		case i >= len(declared):
			return nil, wrongCall(kind, name, declared, "%d arguments given, at most %d taken", len(given), len(declared))
		}
		if nodes[at] != nil {
			return nil, pgerr.New(pgerr.SyntaxError, "argument name \"%s\" used more than once", declared[at].Name)
		}
		nodes[at] = castTo(g.node, declared[at].Type)
	}
	for i, d := range declared {
		switch {
		case nodes[i] != nil:
		case d.Default == nil:
			return nil, wrongCall(kind, name, declared, "argument \"%s\" is missing", d.Name)
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

func noSuchArgument(kind, name string, declared []Argument, given string) error {
	names := make([]string, len(declared))
	for i := range declared {
		names[i] = declared[i].Name
	}
	err := wrongCall(kind, name, declared, "there is no argument \"%s\"", given)
	if near := pgerr.Nearest(given, names); near != "" {
		return err.WithHint("Perhaps you meant the argument \"%s\".", near)
	}
	return err
}

// wrongCall is 42883: no procedure of that name takes these arguments.
func wrongCall(kind, name string, declared []Argument, detail string, args ...any) *pgerr.Error {
	return pgerr.New(pgerr.UndefinedFunction, "%s %s does not take these arguments", kind, name).
		WithDetail("%s.", capital(fmt.Sprintf(detail, args...))).
		WithHint("It is declared as %s(%s).", name, signature(declared))
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

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
	case pgtype.TextOID:
		return d.Text(), nil
	}
	return nil, pgerr.New(pgerr.InternalError, "no argument of type %s is known", TypeName(oid))
}
