package plan

import "neki/sqlparse"

// runsOf names the prepared statement that st runs, "" when it runs none.
func runsOf(st *sqlparse.Statement) string {
	switch st.Kind {
	case sqlparse.KindExecute:
		return st.Prepared.Name
	case sqlparse.KindExplain:
		if st.Explain.Query != nil {
			return runsOf(st.Explain.Query)
		}
	case sqlparse.KindDDL:
		if n := len(st.Tree.GetStmts()); n == 1 {
			return st.Tree.Stmts[0].GetStmt().GetCreateTableAsStmt().GetQuery().GetExecuteStmt().GetName()
		}
	}
	return ""
}

// showsPrepared reports whether a query lists the prepared statements of its connection.
func showsPrepared(st *sqlparse.Statement) bool {
	for _, r := range st.Relations {
		if r.Name == "pg_prepared_statements" && (r.Schema == "" || r.Schema == systemSchema) {
			return true
		}
	}
	for _, f := range st.Functions {
		if f.Name == "pg_prepared_statement" && (f.Schema == "" || f.Schema == systemSchema) {
			return true
		}
	}
	return false
}

// judgeExecute judges by the arguments: what the statement does is known when the session knows which one it is.
func (m maker) judgeExecute(p *Plan, st *sqlparse.Statement) {
	p.Why = "depends on the statement prepared"
	const always = sqlparse.EffectWrites | sqlparse.EffectOpaque // of any EXECUTE
	if st.Effects&^always != 0 {
		p.Why = "has an argument with effects"
		return
	}
	for _, f := range st.Functions {
		if why := m.unprovenCall(f); why != "" {
			p.Why = why
			return
		}
	}
	p.quietArgs = true
}

// Running gives the plan of a statement that runs a prepared statement (see Runs): inner is that statement's plan.
func (p *Plan) Running(inner *Plan) *Plan {
	out := &Plan{
		Query: p.Query, Fingerprint: p.Fingerprint, Kind: p.Kind, Tag: p.Tag, Route: p.Route, Verdict: p.Verdict,
		Why: p.Why, Effects: p.Effects, Pins: p.Pins, Tables: p.Tables, ByText: p.ByText, Prepared: p.Prepared,
		Explain: p.Explain, Runs: p.Runs, ShowsPrepared: p.ShowsPrepared, ChangesDefaults: p.ChangesDefaults,
		ChangesFunctions: p.ChangesFunctions, refused: p.refused, shardRefused: p.shardRefused, quietArgs: p.quietArgs,
		version: p.version,
	}
	switch {
	case p.Kind == sqlparse.KindExecute:
		out.Route, out.Tables = inner.Route, inner.Tables
		out.runsLike(p, inner, "")
	case p.Explain != nil:
		explain := *p.Explain
		explain.Inner = explain.Inner.Running(inner)
		out.Explain = &explain
		if explain.Neki || !explain.Analyze {
			return out // nothing runs, or the session sees to it
		}
		out.Route = inner.Route
		out.runsLike(explain.Inner, inner, "EXPLAIN ANALYZE ")
	}
	out.Pins |= inner.Pins
	out.SetConfigs = inner.SetConfigs
	out.ShowsPrepared = out.ShowsPrepared || inner.ShowsPrepared
	out.ChangesFunctions = out.ChangesFunctions || inner.ChangesFunctions
	return out
}

// runsLike takes over what inner is judged to do, with the arguments of the EXECUTE execute.
func (p *Plan) runsLike(execute, inner *Plan, prefix string) {
	if p.shardRefused == "" {
		p.shardRefused = inner.shardRefused
	}
	switch {
	case inner.Verdict == Write:
		p.write(prefix+inner.refused, inner.Why)
	case !execute.quietArgs:
		p.Verdict, p.Why = Unproven, execute.Why
	default:
		p.Verdict, p.Why = inner.Verdict, inner.Why
		p.disproved.Store(inner.disproved.Load())
	}
}
