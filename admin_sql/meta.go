package adminsql

import (
	"context"
	"encoding/json"
	"strings"

	"neki/catalog"
	"neki/internal/pgerr"
)

// The function forms under __neki that the commercial system documents.

func (s *Schema) metaFunctions() []*Relation {
	activity := s.sessions()
	fs := []*Relation{
		{
			Name: "list_shards", Comment: "Shards of the cluster",
			Columns: []Column{{"uid", text, "as __neki.shard takes it"}, {"name", text, "changeable name"}},
			rows: ignoreArgs(func(context.Context) ([][]any, error) {
				snap, err := s.snapshot()
				if err != nil {
					return nil, err
				}
				return collect(snap.Shards, func(sh catalog.Shard) []any {
					return []any{sh.UID, orNull(sh.Name)}
				}), nil
			}),
		},
		{
			Name: "stat_get_activity", Comment: "Clients of the gateways, as neki.sessions",
			Columns: activity.Columns, Open: true, rows: activity.rows,
		},
		{
			Name: "list_metafuncs", Comment: "Functions and procedures of this gateway", Open: true,
			Columns: []Column{
				{"name", text, "with its schema"},
				{"arguments", text, "names, types and defaults"},
				{"purpose", text, "what it is for"},
			},
			rows: ignoreArgs(func(context.Context) ([][]any, error) { return s.metafuncRows(), nil }),
		},
		s.sidecarStatuses(),
	}
	fs = append(fs, s.topologyFunctions()...)
	for _, f := range fs {
		f.Schema, f.Function = MetaSchemaName, true
	}
	return fs
}

// sidecarStatuses shows the agents, which are what stands beside each Postgres here.
func (s *Schema) sidecarStatuses() *Relation {
	return &Relation{
		Name: "list_sidecar_statuses", Comment: "The agent beside each instance and its last report",
		Columns: []Column{
			{"shard", text, "uid of the shard"},
			{"node", text, "id of the instance"},
			{"role", text, "primary, replica or rdonly"},
			{"state", text, "as in neki.nodes"},
			{"reason", text, "what the agent says about it"},
			{"url", text, "where the agent listens"},
			{"last_seen", timestamptz, "when its last report came"},
		},
		rows: ignoreArgs(func(context.Context) ([][]any, error) {
			snap, err := s.snapshot()
			if err != nil {
				return nil, err
			}
			return collect(snap.Nodes, func(n catalog.Node) []any {
				var reason, seen any
				h := snap.Health(n.ID)
				if h != nil {
					reason, seen = orNull(h.Reason), timeOrNull(h.ReceivedAt)
				}
				return []any{
					n.Shard, n.ID, roleOf(snap, &n).String(), nodeState(&n, h), reason, orNull(n.AgentURL), seen,
				}
			}), nil
		}),
	}
}

func (s *Schema) metafuncRows() [][]any {
	var rows [][]any
	for _, r := range s.relations {
		if r.Function {
			rows = append(rows, []any{r.FullName(), signature(r.Args), orNull(r.Comment)})
		}
	}
	for _, p := range s.procedures {
		rows = append(rows, []any{SchemaName + "." + p.Name, signature(p.Args), orNull(p.Comment)})
	}
	return rows
}

// signature writes arguments as pg_get_function_arguments does.
func signature(args []Argument) string {
	parts := make([]string, len(args))
	for i, a := range args {
		parts[i] = a.mode() + a.SQLName() + " " + TypeName(a.Type)
		parts[i] += defaultClause(a)
	}
	return strings.Join(parts, ", ")
}

// SQLName gives the name as it must be written in a call: quoted where it is a reserved word.
func (a *Argument) SQLName() string {
	switch a.Name {
	case "on", "group", "into":
		return quoteIdent(a.Name)
	}
	return a.Name
}

func (a *Argument) mode() string {
	if a.InOut {
		return "INOUT "
	}
	return ""
}

func defaultClause(a Argument) string {
	switch {
	case a.Default != nil:
		return " DEFAULT " + quoteLiteral(*a.Default)
	case a.Null:
		return " DEFAULT NULL"
	}
	return ""
}

// unknownFunction is 42883 with the nearest name.
func (s *Schema) unknownFunction(schema, name string, position int32) *pgerr.Error {
	err := pgerr.New(pgerr.UndefinedFunction, "function %s.%s does not exist", schema, name).WithPosition(position)
	if _, ok := s.Procedure(name); ok && schema == SchemaName {
		return err.WithHint("neki.%s is a procedure: use CALL neki.%s(...).", name, name)
	}
	var names []string
	for _, r := range s.relations {
		if r.Function {
			names = append(names, r.FullName())
		}
	}
	if near := pgerr.Nearest(schema+"."+name, names); near != "" {
		return err.WithHint("Perhaps you meant the function \"%s\".", near)
	}
	return err.WithHint("SELECT name, arguments, purpose FROM __neki.list_metafuncs() lists the functions.")
}

// jsonString quotes as Postgres does: no escapes for HTML's sake.
func jsonString(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil { // of a string it can't fail: what is not UTF-8 is replaced
		return `""`
	}
	return strings.TrimSuffix(b.String(), "\n")
}
