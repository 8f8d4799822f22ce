package plan

import (
	"slices"
	"strings"

	"neki/internal/pgerr"
	"neki/settings"
	"neki/sqlparse"
)

// The schemas that the gateway answers itself.
const (
	virtualSchema = "neki"
	metaSchema    = "__neki" // function forms of the commercial system
)

const currentSetting = "current_setting"

// The stable numbers of this package's NK013 messages. They never change their meaning.
const (
	joinWithShard      = 101
	settingInQuery     = 102
	copyOfVirtual      = 103
	cursorOverVirtual  = 104
	storeVirtualResult = 105
)

func notImplemented(number int, what string) *pgerr.Error {
	return pgerr.New(pgerr.NotImplemented, "not implemented: [%d] %s", number, what)
}

func ownSetting(name string) bool { return settings.IsNeki(name) }

// virtualPlan plans statements that name the virtual schema, or that call functions which only the gateway can answer.
// handled is false when p is an ordinary statement.
func (m maker) virtualPlan(p *Plan, st *sqlparse.Statement) (handled bool, err error) {
	name, others := m.virtualNames(st)
	if name == "" {
		return m.gatewayFunctions(p, st)
	}
	query := st // whose rows are the answer
	switch st.Kind {
	case sqlparse.KindSelect:
		err = virtualSelect(st, name, others)
	case sqlparse.KindCall:
	case sqlparse.KindExplain, sqlparse.KindPrepare: // their inner statement decides
		return false, m.virtualExplain(st, name)
	case sqlparse.KindInsert, sqlparse.KindUpdate, sqlparse.KindDelete, sqlparse.KindMerge, sqlparse.KindLock:
		err = m.virtualWrite(st, name)
	case sqlparse.KindCopy:
		query, p.CopyOut, err = virtualCopy(st, name, others)
	case sqlparse.KindDeclare:
		err = notImplemented(cursorOverVirtual, "a cursor over a relation of the schema neki").
			WithHint("Select from %s without a cursor.", name)
	default:
		if st.Tag == "CREATE TABLE AS" || st.Tag == "SELECT INTO" {
			return false, storesResult(name)
		}
		err = pgerr.New(pgerr.FeatureNotSupported, "cannot execute %s on %s", st.Tag, name).
			WithDetail("The schema neki belongs to the gateway and can't be changed or referred to by objects of the database.")
	}
	if err != nil {
		return false, err
	}
	p.Statement, p.Call = query, st.Call
	p.Verdict, p.Why, p.shardRefused = Neutral, "answered by the gateway", ""
	p.Route, p.Pins, p.ChangesFunctions = Route{Kind: RouteVirtual}, 0, false
	return true, nil
}

// virtualNames gives the first name of the statement that belongs to the virtual schema, as written, and the first
// relation that does not.
func (m maker) virtualNames(st *sqlparse.Statement) (name, others string) {
	for _, r := range st.Relations {
		switch {
		case !m.virtualRelation(r):
			others = firstOf(others, r.String())
		default:
			name = firstOf(name, r.String())
		}
	}
	for _, f := range st.Functions {
		if f.Schema == virtualSchema || f.Schema == metaSchema || f.Schema == "" && m.unqualifiedFunction(f.Name) {
			name = firstOf(name, f.String())
		}
	}
	if c := st.Call; c != nil && m.virtualProcedure(c) {
		name = firstOf(name, "procedure "+c.Name)
	}
	if st.Kind == sqlparse.KindDDL && name == "" && namesSchema(st.Text) {
		name = "schema " + virtualSchema
	}
	return name, others
}

func firstOf(have, next string) string {
	if have != "" {
		return have
	}
	return next
}

func (m maker) virtualRelation(r sqlparse.RelRef) bool {
	if r.Schema != "" {
		return r.Schema == virtualSchema || r.Schema == metaSchema
	}
	return m.onPath(r.Name, m.virtual != nil && m.virtual.HasRelation(r.Name), true)
}

func (m maker) unqualifiedFunction(name string) bool {
	return m.onPath(name, m.virtual != nil && m.virtual.HasFunction(name), false)
}

func (m maker) virtualProcedure(c *sqlparse.CallStmt) bool {
	if c.Schema != "" {
		return c.Schema == virtualSchema || c.Schema == metaSchema
	}
	return m.onPath(c.Name, m.virtual != nil && m.virtual.HasProcedure(c.Name), false)
}

// onPath reports whether an unqualified name that the virtual schema has means the virtual one: neki is in search_path
// and no schema before it has a relation of that name. Where that is not known, a schema before neki is taken to have
// it, except pg_catalog, whose names the virtual schema does not use.
func (m maker) onPath(name string, has, relation bool) bool {
	if !has {
		return false
	}
	for _, schema := range m.env.searchPath {
		switch {
		case schema == virtualSchema:
			return true
		case schema == systemSchema || !relation:
			continue
		case m.env.funcs == nil:
			return false
		}
		if exists, known := m.env.funcs.Relation(schema, name); exists || !known {
			return false
		}
	}
	return false
}

func virtualSelect(st *sqlparse.Statement, name, others string) error {
	switch {
	case st.Effects.Any(sqlparse.EffectLocks):
		return pgerr.New(pgerr.WrongObjectType, "cannot lock rows in %s", name)
	case st.Effects.Any(writeEffects) && others != "":
		return storesResult(name)
	case others != "":
		return notImplemented(joinWithShard, "a join of the schema neki with a table of the shards").
			WithDetail("%s belongs to the gateway, %s to a shard.", name, others).
			WithHint("Select from each by itself.")
	}
	return nil
}

func (m maker) virtualWrite(st *sqlparse.Statement, name string) error {
	for _, r := range st.Relations {
		if r.Write && m.virtualRelation(r) {
			return cantChange(r.String())
		}
	}
	return storesResult(name)
}

// storesResult refuses to put rows of the virtual schema into a table.
func storesResult(name string) *pgerr.Error {
	return notImplemented(storeVirtualResult, "storing rows of the schema neki in a table").
		WithDetail("The rows of %s are at the gateway, the table is at a shard.", name).
		WithHint("Write them to a file with COPY (SELECT ...) TO STDOUT, or \\copy in psql, and COPY that into the table.")
}

func cantChange(name string) *pgerr.Error {
	return pgerr.New(pgerr.WrongObjectType, "cannot change %s", name).
		WithDetail("The relations of the schema neki are made by the gateway.").
		WithHint("\\df neki.* lists the procedures that act on the cluster.")
}

// virtualExplain refuses a plain EXPLAIN: there is no Postgres plan to show.
func (m maker) virtualExplain(st *sqlparse.Statement, name string) error {
	if st.Explain == nil || nekiExplain(st.Explain) {
		return nil
	}
	return pgerr.New(pgerr.ExplainNeedsGateway, "EXPLAIN can't show the plan of %s, which the gateway answers", name).
		WithHint("Use EXPLAIN (NEKI_PLAN).")
}

// gatewayFunctions plans a SELECT without FROM whose functions only the gateway can answer: the client's own pid, what
// is done with pids, and settings of the gateway by current_setting and set_config.
func (m maker) gatewayFunctions(p *Plan, st *sqlparse.Statement) (handled bool, err error) {
	own, foreign := 0, len(st.Relations)
	settingNamed := false
	for _, f := range st.Functions {
		if f.Schema != "" && f.Schema != systemSchema {
			foreign++
			continue
		}
		switch {
		case f.Name == "pg_backend_pid" && f.NArgs == 0, aboutBackends(f.Name):
			own++
		case (f.Name == currentSetting || f.Name == "set_config") && namesSetting(st.Text):
			own++
			settingNamed = true
		default:
			foreign++
		}
	}
	for _, c := range st.SetConfigs {
		if !ownSetting(c.Name) {
			foreign++
		}
	}
	switch {
	case own == 0 || !settingNamed && foreign > 0:
		return false, nil
	case st.Kind == sqlparse.KindExplain || st.Kind == sqlparse.KindPrepare:
		return false, nil
	case foreign > 0 || st.Kind != sqlparse.KindSelect:
		return false, notImplemented(settingInQuery, "a setting of the gateway inside a query of the shards").
			WithHint("Use SHOW or SET, or SELECT current_setting('__neki...') by itself.")
	}
	p.Statement = st
	p.Verdict, p.Why, p.shardRefused = Neutral, "answered by the gateway", ""
	p.Route = Route{Kind: RouteVirtual}
	return true, nil
}

// aboutBackends reports whether a function takes pids, which may be those that the gateway gives its clients.
func aboutBackends(name string) bool {
	switch name {
	case "pg_cancel_backend", "pg_terminate_backend", "pg_blocking_pids", "pg_isolation_test_session_is_blocked":
		return true
	}
	return false
}

// namesSetting reports whether a text may name a setting of the gateway.
func namesSetting(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, settings.Prefix) || strings.Contains(text, strings.TrimLeft(settings.Prefix, "_")) &&
		slices.ContainsFunc(settings.Names(), func(name string) bool { return strings.Contains(text, strings.TrimLeft(name, "_")) })
}

// namesSchema reports whether the text of a DDL statement names the virtual schema: as "neki." or after SCHEMA. It may
// see it in a string too; no object of a database has reason to speak of it.
func namesSchema(text string) bool {
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return r == ' ' || r == '\t' || r == '\n' || r == '\r' || r == ',' || r == ';' || r == '(' || r == ')'
	})
	for i, w := range words {
		w = strings.ReplaceAll(w, `"`, "")
		if strings.HasPrefix(w, virtualSchema+".") || strings.HasPrefix(w, metaSchema+".") {
			return true
		}
		if (w == virtualSchema || w == metaSchema) && i > 0 && (words[i-1] == "schema" || words[i-1] == "exists") {
			return true
		}
	}
	return false
}
