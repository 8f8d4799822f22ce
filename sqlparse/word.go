package sqlparse

// word is a keyword, or a name, that means something to the lexer's users. All other identifiers are wordNone.
type word uint8

const (
	wordNone word = iota
	wordAll
	wordAnalyze
	wordAnd
	wordAny
	wordAs
	wordAt
	wordAtomic
	wordBegin
	wordBetween
	wordBy
	wordCase
	wordCollate
	wordCreate
	wordCursor
	wordDelete
	wordDistinct
	wordElse
	wordEnd
	wordEscape
	wordExcept
	wordExists
	wordExplain
	wordFetch
	wordFor
	wordFrom
	wordFunction
	wordGatewayFunction // a function whose arguments decide the plan
	wordGroup
	wordHaving
	wordIlike
	wordIn
	wordInsert
	wordIntersect
	wordInto
	wordIs
	wordIsNull
	wordJoin
	wordLike
	wordLimit
	wordMaterialized
	wordMerge
	wordKeepAll // named anywhere, it makes all literals stay: a schema that the gateway serves itself, pg_settings
	wordNot
	wordNotNull
	wordOffset
	wordOn
	wordOperator
	wordOr
	wordOrder
	wordProcedure
	wordReplace
	wordReturning
	wordSelect
	wordSet
	wordSimilar
	wordTable
	wordThen
	wordTo
	wordTypeFill // goes on with a type's name: WITHOUT TIME ZONE, VARYING ...
	wordTypmod   // a type or a function with a constant modifier: numeric(10,2), current_timestamp(3)
	wordUnion
	wordUpdate
	wordUsing
	wordValues
	wordVerbose
	wordWhen
	wordWhere
	wordWith
)

// lookupWord finds the word of a name in lower case.
func lookupWord(b []byte) word {
	if len(b) < 2 || len(b) > len("pg_isolation_test_session_is_blocked") {
		return wordNone
	}
	switch string(b) {
	case "all":
		return wordAll
	case "analyze", "analyse":
		return wordAnalyze
	case "and":
		return wordAnd
	case "any", "some":
		return wordAny
	case "as":
		return wordAs
	case "at":
		return wordAt
	case "atomic":
		return wordAtomic
	case "begin":
		return wordBegin
	case "between":
		return wordBetween
	case "by":
		return wordBy
	case "case":
		return wordCase
	case "collate":
		return wordCollate
	case "create":
		return wordCreate
	case "cursor":
		return wordCursor
	case "delete":
		return wordDelete
	case "distinct":
		return wordDistinct
	case "else":
		return wordElse
	case "end":
		return wordEnd
	case "escape":
		return wordEscape
	case "except":
		return wordExcept
	case "exists":
		return wordExists
	case "explain":
		return wordExplain
	case "fetch":
		return wordFetch
	case "for":
		return wordFor
	case "from":
		return wordFrom
	case "function":
		return wordFunction
	case "group":
		return wordGroup
	case "having":
		return wordHaving
	case "ilike":
		return wordIlike
	case "in":
		return wordIn
	case "insert":
		return wordInsert
	case "intersect":
		return wordIntersect
	case "into":
		return wordInto
	case "is":
		return wordIs
	case "isnull":
		return wordIsNull
	case "join":
		return wordJoin
	case "like":
		return wordLike
	case "limit":
		return wordLimit
	case "materialized":
		return wordMaterialized
	case "merge":
		return wordMerge
	case "neki", "__neki", "pg_settings":
		return wordKeepAll
	case "not":
		return wordNot
	case "notnull":
		return wordNotNull
	case "offset":
		return wordOffset
	case "on":
		return wordOn
	case "operator":
		return wordOperator
	case "or":
		return wordOr
	case "order":
		return wordOrder
	case "procedure":
		return wordProcedure
	case "replace":
		return wordReplace
	case "returning":
		return wordReturning
	case "select":
		return wordSelect
	case "set":
		return wordSet
	case "similar":
		return wordSimilar
	case "table":
		return wordTable
	case "then":
		return wordThen
	case "to":
		return wordTo
	case "union":
		return wordUnion
	case "update":
		return wordUpdate
	case "using":
		return wordUsing
	case "values":
		return wordValues
	case "verbose":
		return wordVerbose
	case "when":
		return wordWhen
	case "where":
		return wordWhere
	case "with":
		return wordWith
	case "precision", "varying", "without", "time", "zone", "year", "month", "day", "hour", "minute":
		return wordTypeFill
	case "numeric", "decimal", "dec", "varchar", "char", "character", "nchar", "bpchar", "bit", "varbit", "float",
		"timestamp", "timestamptz", "timetz", "interval", "second", "current_time", "current_timestamp", "localtime",
		"localtimestamp":
		return wordTypmod
	case "set_config", "current_setting", "nextval", "currval", "setval", "setseed", "pg_notify",
		"pg_cancel_backend", "pg_terminate_backend", "pg_blocking_pids", "pg_safe_snapshot_blocking_pids",
		"pg_isolation_test_session_is_blocked", "pg_log_backend_memory_contexts", "pg_stat_get_activity":
		return wordGatewayFunction
	}
	return wordNone
}

// wordOf finds the word of an unquoted identifier in any case.
func wordOf(name string) word {
	var fold [len("pg_isolation_test_session_is_blocked")]byte
	if len(name) > len(fold) {
		return wordNone
	}
	return lookupWord(appendLower(fold[:0], name))
}

// appendLower appends s with ASCII letters in lower case, which is how Postgres folds names in a multi-byte encoding.
func appendLower(dst []byte, s string) []byte {
	for i := range len(s) {
		c := s[i]
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return dst
}
