package sqlparse

import (
	"fmt"
	"slices"
	"strings"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// classify makes the Statement of a tree that holds exactly one. span is where its tokens lie in text.
func classify(text string, span Span, tree *ParseResult) (*Statement, error) {
	node := unwrap(tree.Stmts[0].Stmt)
	s := &Statement{Text: text, Tree: tree, Tag: tagOf(node)}
	c := collector{into: s, write: !isQueryNode(node)}
	c.note(node)
	var err error
	if p := setParameter(node); p != nil {
		return nil, errSyntax(fmt.Sprintf(`syntax error at or near "$%d"`, p.Number)).
			WithPosition(position(text, int(p.Location)))
	}
	if !s.classifyQuery(node) && !s.classifySession(node, span) {
		err = s.classifyNested(node, span)
	}
	s.settle()
	return s, err
}

// isQueryNode reports whether relations named right below the node are read, not changed.
func isQueryNode(node any) bool {
	switch n := node.(type) {
	case *SelectStmt, *InsertStmt, *UpdateStmt, *DeleteStmt, *MergeStmt, *DeclareCursorStmt, *PrepareStmt,
		*pg_query.ExplainStmt:
		return true
	case *pg_query.CopyStmt:
		return !n.IsFrom
	}
	return false
}

// setParameter gives a parameter used as the value of a SET, which only the grammar linked in allows, not Postgres's.
func setParameter(node any) *ParamRef {
	if set, ok := node.(*pg_query.VariableSetStmt); ok {
		for _, a := range set.Args {
			if p := a.GetParamRef(); p != nil {
				return p
			}
		}
	}
	return nil
}

// settle adds the effects that follow from others.
func (s *Statement) settle() {
	if s.Effects.Any(EffectLocks | EffectListen | EffectNotify | EffectTempObject) {
		s.Effects |= EffectWrites
	}
	if s.Kind == KindSet || s.Kind == KindReset {
		s.Effects &^= EffectWrites
	}
	tx := s.Tx
	if s.Set != nil && s.Set.Special == SpecialTransaction {
		tx = s.Set.Tx
	}
	if tx != nil && (tx.ReadOnly != nil && !*tx.ReadOnly || tx.Isolation == "serializable") {
		s.Effects |= EffectWrites // modes that a standby refuses
	}
	for _, r := range s.Relations {
		// A rule of this view turns an UPDATE into a call of set_config.
		if r.Write && r.Name == "pg_settings" && (r.Schema == "" || r.Schema == "pg_catalog") {
			s.Effects |= EffectSessionState | EffectOpaque
		}
	}
	if slices.ContainsFunc(s.Functions, mayBeSet) {
		for i := range s.SetConfigs {
			s.SetConfigs[i].Certain = false
		}
	}
	for _, c := range s.SetConfigs {
		if c.Name == "search_path" && (!c.Constant || namesTempSchema(c.Value)) {
			s.Effects |= EffectTempObject | EffectWrites
		}
	}
}

// mayBeSet reports whether a function might return a set, which gives the select list no row at all if it is empty.
func mayBeSet(f FuncRef) bool {
	return f.Name != "set_config" && f.Name != "current_setting"
}

// classifyQuery handles queries and changes of rows; the collector has found their effects.
func (s *Statement) classifyQuery(node any) bool {
	switch node.(type) {
	case *SelectStmt:
		s.Kind = KindSelect
	case *InsertStmt:
		s.Kind = KindInsert
	case *UpdateStmt:
		s.Kind = KindUpdate
	case *DeleteStmt:
		s.Kind = KindDelete
	case *MergeStmt:
		s.Kind = KindMerge
	default:
		return false
	}
	return true
}

// classifySession handles the statements about the session and its transaction, which hold no query.
func (s *Statement) classifySession(node any, span Span) bool {
	switch n := node.(type) {
	case *pg_query.VariableSetStmt:
		s.Kind, s.Set = KindSet, newSetStmt(n)
		if n.Kind == pg_query.VariableSetKind_VAR_RESET || n.Kind == pg_query.VariableSetKind_VAR_RESET_ALL {
			s.Kind = KindReset
		}
		s.Effects |= s.Set.effects()
	case *pg_query.VariableShowStmt:
		s.Kind, s.Show = KindShow, strings.ToLower(n.Name)
	case *pg_query.TransactionStmt:
		s.classifyTransaction(n)
	case *pg_query.DiscardStmt:
		s.Kind, s.Discard = KindDiscard, &DiscardStmt{Target: discardTargets[n.Target]}
		if s.Discard.Target == DiscardAll {
			s.Effects |= EffectSessionState | EffectPrepared | EffectAdvisoryUnlock
		}
	case *pg_query.ListenStmt:
		s.Kind, s.Channel = KindListen, &ChannelStmt{Name: n.Conditionname}
		s.Effects |= EffectListen
	case *pg_query.UnlistenStmt:
		s.Kind, s.Channel = KindUnlisten, &ChannelStmt{Name: n.Conditionname, All: n.Conditionname == ""}
	case *pg_query.NotifyStmt:
		s.Kind, s.Channel = KindNotify, &ChannelStmt{Name: n.Conditionname, Payload: n.Payload}
		s.Effects |= EffectNotify
	case *pg_query.LoadStmt:
		s.Kind = KindLoad
		s.Effects |= EffectLoadLibrary
	case *pg_query.FetchStmt:
		s.Kind, s.Cursor = KindFetch, &CursorStmt{
			Name: n.Portalname, Move: n.Ismove, Moves: fetchMoves[n.Direction], Count: n.HowMany,
		}
	case *pg_query.ClosePortalStmt:
		s.Kind, s.Cursor = KindCloseCursor, &CursorStmt{Name: n.Portalname, All: n.Portalname == ""}
	case *pg_query.DeallocateStmt:
		s.Kind, s.Prepared = KindDeallocate, &PreparedStmt{Name: n.Name, All: n.Name == ""}
		s.Effects |= EffectPrepared
	case *pg_query.ConstraintsSetStmt:
		s.Kind = KindOther
	default:
		return s.classifyAction(node, span)
	}
	return true
}

var fetchMoves = map[pg_query.FetchDirection]FetchMoves{
	pg_query.FetchDirection_FETCH_FORWARD: FetchForward, pg_query.FetchDirection_FETCH_BACKWARD: FetchBackward,
	pg_query.FetchDirection_FETCH_ABSOLUTE: FetchAbsolute, pg_query.FetchDirection_FETCH_RELATIVE: FetchRelative,
}

var discardTargets = map[pg_query.DiscardMode]DiscardTarget{
	pg_query.DiscardMode_DISCARD_ALL:       DiscardAll,
	pg_query.DiscardMode_DISCARD_PLANS:     DiscardPlans,
	pg_query.DiscardMode_DISCARD_SEQUENCES: DiscardSequences,
	pg_query.DiscardMode_DISCARD_TEMP:      DiscardTemp,
}

// strongestStandbyLock is ROW EXCLUSIVE, the strongest table lock that a standby takes.
// https://www.postgresql.org/docs/current/hot-standby.html
const strongestStandbyLock = 3

// classifyAction handles the statements that act without being queries: they are writes, but for weak locks.
func (s *Statement) classifyAction(node any, span Span) bool {
	switch n := node.(type) {
	case *pg_query.LockStmt:
		s.Kind = KindLock
		if n.Mode <= strongestStandbyLock {
			return true
		}
	case *pg_query.DoStmt:
		s.Kind = KindDo
		s.Effects |= EffectOpaque
	case *pg_query.CallStmt:
		s.Kind, s.Call = KindCall, newCallStmt(n)
		s.Effects |= EffectOpaque
	case *pg_query.ExecuteStmt:
		s.Kind, s.Prepared = KindExecute, newExecute(n, s.Text, span)
		s.Effects |= EffectOpaque
	case *pg_query.VacuumStmt:
		s.Kind = KindVacuum
	case *pg_query.CheckPointStmt:
		s.Kind = KindOther
	case *pg_query.ExplainStmt, *pg_query.PrepareStmt, *pg_query.DeclareCursorStmt, *pg_query.CopyStmt:
		return false
	default:
		s.Kind = KindDDL
	}
	s.Effects |= EffectWrites
	return true
}

// classifyTransaction handles BEGIN, COMMIT and their kin.
func (s *Statement) classifyTransaction(n *pg_query.TransactionStmt) {
	s.Kind = txKinds[n.Kind]
	tx := newTxModes(n.Options)
	tx.Savepoint, tx.GID, tx.Chain = n.SavepointName, n.Gid, n.Chain
	s.Tx = tx
	if s.Kind >= KindPrepareTransaction && s.Kind <= KindRollbackPrepared {
		s.Effects |= EffectWrites
	}
}

var txKinds = map[pg_query.TransactionStmtKind]Kind{
	pg_query.TransactionStmtKind_TRANS_STMT_BEGIN:             KindBegin,
	pg_query.TransactionStmtKind_TRANS_STMT_START:             KindBegin,
	pg_query.TransactionStmtKind_TRANS_STMT_COMMIT:            KindCommit,
	pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK:          KindRollback,
	pg_query.TransactionStmtKind_TRANS_STMT_SAVEPOINT:         KindSavepoint,
	pg_query.TransactionStmtKind_TRANS_STMT_RELEASE:           KindRelease,
	pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK_TO:       KindRollbackTo,
	pg_query.TransactionStmtKind_TRANS_STMT_PREPARE:           KindPrepareTransaction,
	pg_query.TransactionStmtKind_TRANS_STMT_COMMIT_PREPARED:   KindCommitPrepared,
	pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK_PREPARED: KindRollbackPrepared,
}

// classifyNested handles the statements that hold another one, whose text is parsed by itself so that plan and
// positions are those of the inner text.
func (s *Statement) classifyNested(node any, span Span) (err error) {
	switch n := node.(type) {
	case *pg_query.ExplainStmt:
		s.Kind = KindExplain
		s.Explain, err = newExplain(n, s.Text, span)
		if err == nil && !s.Explain.Analyze {
			// Nothing runs: whatever it is, it is only planned.
			s.Effects, s.SetConfigs = 0, nil
		}
	case *pg_query.PrepareStmt:
		s.Kind = KindPrepare
		s.Prepared, err = newPrepare(n, s.Text, span)
		// What it does happens at EXECUTE. Only whether that will write is told here.
		s.Effects = s.Effects&(EffectWrites|EffectLocks) | EffectPrepared
		s.SetConfigs = nil
	case *pg_query.DeclareCursorStmt:
		s.Kind = KindDeclare
		s.Cursor, err = newDeclare(n, s.Text, span)
		s.Effects |= EffectCursor
		if s.Cursor != nil && s.Cursor.Hold {
			s.Effects |= EffectHoldCursor
		}
	case *pg_query.CopyStmt:
		s.Kind = KindCopy
		s.Copy, err = newCopy(n, s.Text, span)
		if n.IsFrom {
			s.Effects |= EffectWrites
		}
	}
	return err
}

// ReadOnly reports whether the statement is proven to read only, so that a hot standby may run it: no write, no lock,
// nothing that may hide one, and no call for which volatile reports that it may have an effect. volatile is the
// caller's knowledge of pg_proc and of what is volatile and yet harmless. A nil volatile knows nothing: then any call is
// an effect.
func (s *Statement) ReadOnly(volatile func(FuncRef) bool) bool {
	if s.Effects.Any(EffectWrites | EffectLocks | EffectOpaque) {
		return false
	}
	if s.Kind == KindExplain && !s.Explain.Analyze {
		return true
	}
	for _, f := range s.Functions {
		if volatile == nil || volatile(f) {
			return false
		}
	}
	return true
}
