package plan

import (
	"cmp"

	"neki/sqlparse"
)

// writeEffects are the effects of what a hot standby refuses, or must not be asked (protocol.md, "What counts as a
// write").
const writeEffects = sqlparse.EffectWrites | sqlparse.EffectLocks | sqlparse.EffectTempObject |
	sqlparse.EffectAdvisoryLock | sqlparse.EffectAdvisoryUnlock | sqlparse.EffectNotify | sqlparse.EffectSequence |
	sqlparse.EffectListen

// judge fills in Route.Kind, Verdict and Why for a statement that goes to a shard or that the session handles.
func (m maker) judge(p *Plan, st *sqlparse.Statement) {
	switch st.Kind {
	case sqlparse.KindEmpty:
		p.neutral(RouteLocal, "nothing to do")
	case sqlparse.KindBegin, sqlparse.KindCommit, sqlparse.KindRollback, sqlparse.KindSavepoint,
		sqlparse.KindRollbackTo, sqlparse.KindRelease:
		p.neutral(RouteControl, "transaction control")
	case sqlparse.KindDiscard, sqlparse.KindDeallocate, sqlparse.KindUnlisten, sqlparse.KindFetch,
		sqlparse.KindCloseCursor:
		p.neutral(RouteControl, "state of the session")
	case sqlparse.KindPrepareTransaction, sqlparse.KindCommitPrepared, sqlparse.KindRollbackPrepared:
		p.Route.Kind = RouteControl
		p.write(st.Tag, "")
	case sqlparse.KindSet, sqlparse.KindReset, sqlparse.KindShow:
		m.judgeSetting(p, st)
	case sqlparse.KindPrepare:
		p.neutral(RouteOne, "prepares only")
	case sqlparse.KindExecute:
		m.judgeExecute(p, st)
	case sqlparse.KindLock:
		if st.Effects.Any(sqlparse.EffectWrites) {
			p.write(st.Tag, "")
		} else {
			p.neutral(RouteOne, "a lock that standbys take too")
		}
	case sqlparse.KindListen, sqlparse.KindNotify, sqlparse.KindCall, sqlparse.KindDo,
		sqlparse.KindDDL, sqlparse.KindVacuum:
		p.write(st.Tag, "")
	case sqlparse.KindCopy:
		m.judgeCopy(p, st)
	case sqlparse.KindExplain:
		m.judgeExplain(p, st)
	case sqlparse.KindLoad, sqlparse.KindOther:
		p.Why = st.Tag
	default:
		m.judgeQuery(p, st)
	}
}

func (p *Plan) neutral(kind RouteKind, why string) {
	p.Route.Kind, p.Verdict, p.Why, p.shardRefused = kind, Neutral, why, ""
}

// write makes p a write. what is named when a read-only session is refused; why may be "" when that says it all.
func (p *Plan) write(what, why string) {
	p.Verdict, p.Why, p.refused = Write, why, what
}

func (m maker) judgeSetting(p *Plan, st *sqlparse.Statement) {
	name := st.Show
	if st.Set != nil {
		name = st.Set.Name
	}
	if ownSetting(name) {
		p.neutral(RouteLocal, "setting of the gateway")
		return
	}
	p.neutral(RouteAny, "setting")
}

// judgeQuery judges SELECT, VALUES, the DML statements and DECLARE CURSOR.
func (m maker) judgeQuery(p *Plan, st *sqlparse.Statement) {
	if what, why := writeOf(st); what != "" {
		p.write(what, why)
		return
	}
	if st.Effects.Any(sqlparse.EffectSessionState | sqlparse.EffectSetSeed) {
		p.Why = "changes the state of the session"
		return
	}
	if st.Effects.Any(sqlparse.EffectOpaque | sqlparse.EffectLargeObject | sqlparse.EffectHoldCursor) {
		p.Why = "leaves state behind"
		return
	}
	for _, f := range st.Functions {
		if why := m.unprovenCall(f); why != "" {
			p.Why = why
			return
		}
	}
	p.Verdict, p.Why = Read, ""
}

// unprovenCall says why a call is not proven harmless; "" = it is.
func (m maker) unprovenCall(f sqlparse.FuncRef) string {
	if m.env.funcs == nil {
		return "calls function " + f.String() + ", and no functions are known"
	}
	volatile, known := m.env.funcs.Volatile(f.Schema, f.Name, f.NArgs, m.env.searchPath)
	switch {
	case !known:
		return "calls unknown function " + f.String()
	case volatile:
		return "calls volatile function " + f.String()
	}
	return ""
}

// writeOf names what makes the statement a write: as the error of a read-only session says it, and the reason where that
// is not the command itself. "" = nothing known.
func writeOf(st *sqlparse.Statement) (what, why string) {
	switch {
	case !st.Effects.Any(writeEffects):
		return "", ""
	case st.Kind != sqlparse.KindSelect && st.Kind != sqlparse.KindDeclare:
		return st.Tag, ""
	case st.Effects.Any(sqlparse.EffectLocks):
		return lockOf(st), "locks rows"
	}
	for _, r := range st.Relations {
		if r.Write {
			return st.Tag, "changes " + r.String()
		}
	}
	for _, f := range st.Functions {
		if (f.Schema == "" || f.Schema == systemSchema) && contains(writers, f.Name) {
			return f.Name + "()", "calls " + f.Name
		}
	}
	return st.Tag, "calls a function that writes"
}

// lockOf names the first locking clause of a query as Postgres does.
func lockOf(st *sqlparse.Statement) string {
	var name string
	sqlparse.Walk(st.Tree, func(node any) bool {
		if l, ok := node.(*sqlparse.LockingClause); ok && name == "" {
			name = lockNames[l.Strength]
		}
		return name == ""
	})
	return "SELECT " + cmp.Or(name, "FOR UPDATE")
}

var lockNames = map[sqlparse.LockClauseStrength]string{
	sqlparse.LockClauseStrength_LCS_FORKEYSHARE:    "FOR KEY SHARE",
	sqlparse.LockClauseStrength_LCS_FORSHARE:       "FOR SHARE",
	sqlparse.LockClauseStrength_LCS_FORNOKEYUPDATE: "FOR NO KEY UPDATE",
	sqlparse.LockClauseStrength_LCS_FORUPDATE:      "FOR UPDATE",
}

// writers lists functions of pg_catalog whose calls count as writes; it only names them in messages, the parser's
// effects decide.
var writers = []string{ // sorted
	"currval", "lastval", "lo_creat", "lo_create", "lo_from_bytea", "lo_import", "lo_put", "lo_truncate",
	"lo_truncate64", "lo_unlink", "lowrite", "nextval", "pg_advisory_lock", "pg_advisory_lock_shared",
	"pg_advisory_unlock", "pg_advisory_unlock_all", "pg_advisory_unlock_shared", "pg_advisory_xact_lock",
	"pg_advisory_xact_lock_shared", "pg_current_xact_id", "pg_notify", "pg_try_advisory_lock",
	"pg_try_advisory_lock_shared", "pg_try_advisory_xact_lock", "pg_try_advisory_xact_lock_shared", "setval",
	"txid_current",
}

func (m maker) judgeCopy(p *Plan, st *sqlparse.Statement) {
	switch c := st.Copy; {
	case c.From:
		p.write("COPY FROM", "")
	case !c.Client:
		p.Why = "COPY to a file or program of the server"
	case c.Query != nil:
		m.judgeQuery(p, c.Query)
		if p.Verdict == Write {
			p.write("COPY of "+p.refused, p.Why)
		}
	default:
		p.Verdict = Read
	}
}

// judgeExplain: without ANALYZE nothing is executed. (A stable function may be called by the planner, no volatile one.)
func (m maker) judgeExplain(p *Plan, st *sqlparse.Statement) {
	if !st.Explain.Analyze || st.Explain.Query == nil {
		p.Verdict, p.Pins = Read, 0
		return
	}
	m.judge(p, st.Explain.Query)
	if p.Verdict == Write {
		p.write("EXPLAIN ANALYZE "+p.refused, p.Why)
	}
}
