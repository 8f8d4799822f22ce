package sqlparse

// setMode decides at a statement's first words what becomes of its literals.
func (s *Shaper) setMode(w word) {
	switch s.mode {
	case modeStart:
		switch {
		case isQueryWord(w):
			s.mode = modeLift
		case w == wordExplain:
			s.mode = modeExplain
		default:
			s.mode = modeKeep
		}
	case modeExplain:
		switch {
		case isQueryWord(w):
			s.mode = modeLift
		case w == wordAnalyze || w == wordVerbose || len(s.levels) > 0:
		default:
			s.mode = modeKeep
		}
	default:
	}
}

func isQueryWord(w word) bool {
	switch w {
	case wordSelect, wordInsert, wordUpdate, wordDelete, wordMerge, wordWith, wordValues, wordTable:
		return true
	}
	return false
}

// setClause follows the clauses of a query. A word behind AS is a label. Only words that can't be a column's name may
// end a part whose literals stay; staying in it too long does no harm.
func (s *Shaper) setClause(w word) {
	if w == wordNone || w == wordDistinct || s.word == wordAs {
		return
	}
	distincts := w == wordOn && s.word == wordDistinct
	switch w {
	case wordSelect, wordHaving, wordReturning:
		s.clause = clauseTarget
	case wordBy:
		if s.word == wordOrder || s.word == wordGroup {
			s.clause = clauseOrder
		}
	case wordLimit, wordOffset, wordFetch:
		s.clause = clauseLimit
	case wordUnion, wordExcept, wordIntersect:
		s.clause = clauseOther
	case wordFrom, wordWhere:
		if s.clause == clauseTarget && s.word != wordDistinct { // IS DISTINCT FROM
			s.clause = clauseOther
		}
	default:
	}
	s.distincts = distincts
}

// setType follows a type's name behind :: or AS.
func (s *Shaper) setType(w word) {
	switch {
	case w == wordAs:
		s.typ = typeNext
	case s.typ == typeNext:
		s.typ = typeName
		if w == wordMaterialized || w == wordNot {
			s.typ = typeNone // WITH x AS NOT MATERIALIZED (
		}
	case s.typ == typeName:
		switch w {
		case wordTypeFill, wordTypmod, wordWith, wordTo:
		default:
			s.typ = typeNone
		}
	}
}

// beginsExpression reports whether an expression may follow the word, so that a literal behind it is a whole one.
// Behind any other name it is taken for a constant that the name gives its type: date '2020-01-01'.
func beginsExpression(w word) bool {
	switch w {
	case wordSelect, wordDistinct, wordAll, wordWhere, wordAnd, wordOr, wordNot, wordIn, wordLike, wordIlike, wordTo,
		wordBetween, wordOn, wordHaving, wordWhen, wordThen, wordElse, wordCase, wordFrom, wordFor, wordBy,
		wordReturning, wordEscape, wordUsing, wordValues, wordLimit, wordOffset, wordUnion, wordExists, wordAny,
		wordIs, wordJoin, wordExcept, wordIntersect, wordAs, wordInto, wordSet:
		return true
	}
	return false
}
