package sqlparse

import pg_query "github.com/pganalyze/pg_query_go/v5"

// Aliases of the tree's enumerations, under the names they have in pg_query.
type (
	SetOperation       = pg_query.SetOperation
	JoinType           = pg_query.JoinType
	BoolExprType       = pg_query.BoolExprType
	A_Expr_Kind        = pg_query.A_Expr_Kind
	SortByDir          = pg_query.SortByDir
	SortByNulls        = pg_query.SortByNulls
	LimitOption        = pg_query.LimitOption
	NullTestType       = pg_query.NullTestType
	BoolTestType       = pg_query.BoolTestType
	SubLinkType        = pg_query.SubLinkType
	SQLValueFunctionOp = pg_query.SQLValueFunctionOp
	CoercionForm       = pg_query.CoercionForm
	LockClauseStrength = pg_query.LockClauseStrength
	LockWaitPolicy     = pg_query.LockWaitPolicy
	OnConflictAction   = pg_query.OnConflictAction
	OverridingKind     = pg_query.OverridingKind
	MinMaxOp           = pg_query.MinMaxOp
	CTEMaterialize     = pg_query.CTEMaterialize
	GroupingSetKind    = pg_query.GroupingSetKind
	CmdType            = pg_query.CmdType
	ObjectType         = pg_query.ObjectType
	ConstrType         = pg_query.ConstrType
	AlterTableType     = pg_query.AlterTableType
	DropBehavior       = pg_query.DropBehavior
	RoleStmtType       = pg_query.RoleStmtType
	RoleSpecType       = pg_query.RoleSpecType
	OnCommitAction     = pg_query.OnCommitAction
)

const (
	SetOperation_SETOP_NONE      = pg_query.SetOperation_SETOP_NONE
	SetOperation_SETOP_UNION     = pg_query.SetOperation_SETOP_UNION
	SetOperation_SETOP_INTERSECT = pg_query.SetOperation_SETOP_INTERSECT
	SetOperation_SETOP_EXCEPT    = pg_query.SetOperation_SETOP_EXCEPT
)

const (
	JoinType_JOIN_INNER        = pg_query.JoinType_JOIN_INNER
	JoinType_JOIN_LEFT         = pg_query.JoinType_JOIN_LEFT
	JoinType_JOIN_FULL         = pg_query.JoinType_JOIN_FULL
	JoinType_JOIN_RIGHT        = pg_query.JoinType_JOIN_RIGHT
	JoinType_JOIN_SEMI         = pg_query.JoinType_JOIN_SEMI
	JoinType_JOIN_ANTI         = pg_query.JoinType_JOIN_ANTI
	JoinType_JOIN_RIGHT_ANTI   = pg_query.JoinType_JOIN_RIGHT_ANTI
	JoinType_JOIN_UNIQUE_OUTER = pg_query.JoinType_JOIN_UNIQUE_OUTER
	JoinType_JOIN_UNIQUE_INNER = pg_query.JoinType_JOIN_UNIQUE_INNER
)

const (
	BoolExprType_AND_EXPR = pg_query.BoolExprType_AND_EXPR
	BoolExprType_OR_EXPR  = pg_query.BoolExprType_OR_EXPR
	BoolExprType_NOT_EXPR = pg_query.BoolExprType_NOT_EXPR
)

const (
	A_Expr_Kind_AEXPR_OP              = pg_query.A_Expr_Kind_AEXPR_OP
	A_Expr_Kind_AEXPR_OP_ANY          = pg_query.A_Expr_Kind_AEXPR_OP_ANY
	A_Expr_Kind_AEXPR_OP_ALL          = pg_query.A_Expr_Kind_AEXPR_OP_ALL
	A_Expr_Kind_AEXPR_DISTINCT        = pg_query.A_Expr_Kind_AEXPR_DISTINCT
	A_Expr_Kind_AEXPR_NOT_DISTINCT    = pg_query.A_Expr_Kind_AEXPR_NOT_DISTINCT
	A_Expr_Kind_AEXPR_NULLIF          = pg_query.A_Expr_Kind_AEXPR_NULLIF
	A_Expr_Kind_AEXPR_IN              = pg_query.A_Expr_Kind_AEXPR_IN
	A_Expr_Kind_AEXPR_LIKE            = pg_query.A_Expr_Kind_AEXPR_LIKE
	A_Expr_Kind_AEXPR_ILIKE           = pg_query.A_Expr_Kind_AEXPR_ILIKE
	A_Expr_Kind_AEXPR_SIMILAR         = pg_query.A_Expr_Kind_AEXPR_SIMILAR
	A_Expr_Kind_AEXPR_BETWEEN         = pg_query.A_Expr_Kind_AEXPR_BETWEEN
	A_Expr_Kind_AEXPR_NOT_BETWEEN     = pg_query.A_Expr_Kind_AEXPR_NOT_BETWEEN
	A_Expr_Kind_AEXPR_BETWEEN_SYM     = pg_query.A_Expr_Kind_AEXPR_BETWEEN_SYM
	A_Expr_Kind_AEXPR_NOT_BETWEEN_SYM = pg_query.A_Expr_Kind_AEXPR_NOT_BETWEEN_SYM
)

const (
	SortByDir_SORTBY_DEFAULT = pg_query.SortByDir_SORTBY_DEFAULT
	SortByDir_SORTBY_ASC     = pg_query.SortByDir_SORTBY_ASC
	SortByDir_SORTBY_DESC    = pg_query.SortByDir_SORTBY_DESC
	SortByDir_SORTBY_USING   = pg_query.SortByDir_SORTBY_USING
)

const (
	SortByNulls_SORTBY_NULLS_DEFAULT = pg_query.SortByNulls_SORTBY_NULLS_DEFAULT
	SortByNulls_SORTBY_NULLS_FIRST   = pg_query.SortByNulls_SORTBY_NULLS_FIRST
	SortByNulls_SORTBY_NULLS_LAST    = pg_query.SortByNulls_SORTBY_NULLS_LAST
)

const (
	LimitOption_LIMIT_OPTION_DEFAULT   = pg_query.LimitOption_LIMIT_OPTION_DEFAULT
	LimitOption_LIMIT_OPTION_COUNT     = pg_query.LimitOption_LIMIT_OPTION_COUNT
	LimitOption_LIMIT_OPTION_WITH_TIES = pg_query.LimitOption_LIMIT_OPTION_WITH_TIES
)

const (
	NullTestType_IS_NULL     = pg_query.NullTestType_IS_NULL
	NullTestType_IS_NOT_NULL = pg_query.NullTestType_IS_NOT_NULL
)

const (
	BoolTestType_IS_TRUE        = pg_query.BoolTestType_IS_TRUE
	BoolTestType_IS_NOT_TRUE    = pg_query.BoolTestType_IS_NOT_TRUE
	BoolTestType_IS_FALSE       = pg_query.BoolTestType_IS_FALSE
	BoolTestType_IS_NOT_FALSE   = pg_query.BoolTestType_IS_NOT_FALSE
	BoolTestType_IS_UNKNOWN     = pg_query.BoolTestType_IS_UNKNOWN
	BoolTestType_IS_NOT_UNKNOWN = pg_query.BoolTestType_IS_NOT_UNKNOWN
)

const (
	SubLinkType_EXISTS_SUBLINK     = pg_query.SubLinkType_EXISTS_SUBLINK
	SubLinkType_ALL_SUBLINK        = pg_query.SubLinkType_ALL_SUBLINK
	SubLinkType_ANY_SUBLINK        = pg_query.SubLinkType_ANY_SUBLINK
	SubLinkType_ROWCOMPARE_SUBLINK = pg_query.SubLinkType_ROWCOMPARE_SUBLINK
	SubLinkType_EXPR_SUBLINK       = pg_query.SubLinkType_EXPR_SUBLINK
	SubLinkType_MULTIEXPR_SUBLINK  = pg_query.SubLinkType_MULTIEXPR_SUBLINK
	SubLinkType_ARRAY_SUBLINK      = pg_query.SubLinkType_ARRAY_SUBLINK
	SubLinkType_CTE_SUBLINK        = pg_query.SubLinkType_CTE_SUBLINK
)

const (
	SQLValueFunctionOp_SVFOP_CURRENT_DATE        = pg_query.SQLValueFunctionOp_SVFOP_CURRENT_DATE
	SQLValueFunctionOp_SVFOP_CURRENT_TIME        = pg_query.SQLValueFunctionOp_SVFOP_CURRENT_TIME
	SQLValueFunctionOp_SVFOP_CURRENT_TIME_N      = pg_query.SQLValueFunctionOp_SVFOP_CURRENT_TIME_N
	SQLValueFunctionOp_SVFOP_CURRENT_TIMESTAMP   = pg_query.SQLValueFunctionOp_SVFOP_CURRENT_TIMESTAMP
	SQLValueFunctionOp_SVFOP_CURRENT_TIMESTAMP_N = pg_query.SQLValueFunctionOp_SVFOP_CURRENT_TIMESTAMP_N
	SQLValueFunctionOp_SVFOP_LOCALTIME           = pg_query.SQLValueFunctionOp_SVFOP_LOCALTIME
	SQLValueFunctionOp_SVFOP_LOCALTIME_N         = pg_query.SQLValueFunctionOp_SVFOP_LOCALTIME_N
	SQLValueFunctionOp_SVFOP_LOCALTIMESTAMP      = pg_query.SQLValueFunctionOp_SVFOP_LOCALTIMESTAMP
	SQLValueFunctionOp_SVFOP_LOCALTIMESTAMP_N    = pg_query.SQLValueFunctionOp_SVFOP_LOCALTIMESTAMP_N
	SQLValueFunctionOp_SVFOP_CURRENT_ROLE        = pg_query.SQLValueFunctionOp_SVFOP_CURRENT_ROLE
	SQLValueFunctionOp_SVFOP_CURRENT_USER        = pg_query.SQLValueFunctionOp_SVFOP_CURRENT_USER
	SQLValueFunctionOp_SVFOP_USER                = pg_query.SQLValueFunctionOp_SVFOP_USER
	SQLValueFunctionOp_SVFOP_SESSION_USER        = pg_query.SQLValueFunctionOp_SVFOP_SESSION_USER
	SQLValueFunctionOp_SVFOP_CURRENT_CATALOG     = pg_query.SQLValueFunctionOp_SVFOP_CURRENT_CATALOG
	SQLValueFunctionOp_SVFOP_CURRENT_SCHEMA      = pg_query.SQLValueFunctionOp_SVFOP_CURRENT_SCHEMA
)

const (
	CoercionForm_COERCE_EXPLICIT_CALL = pg_query.CoercionForm_COERCE_EXPLICIT_CALL
	CoercionForm_COERCE_EXPLICIT_CAST = pg_query.CoercionForm_COERCE_EXPLICIT_CAST
	CoercionForm_COERCE_IMPLICIT_CAST = pg_query.CoercionForm_COERCE_IMPLICIT_CAST
	CoercionForm_COERCE_SQL_SYNTAX    = pg_query.CoercionForm_COERCE_SQL_SYNTAX
)

const (
	LockClauseStrength_LCS_NONE           = pg_query.LockClauseStrength_LCS_NONE
	LockClauseStrength_LCS_FORKEYSHARE    = pg_query.LockClauseStrength_LCS_FORKEYSHARE
	LockClauseStrength_LCS_FORSHARE       = pg_query.LockClauseStrength_LCS_FORSHARE
	LockClauseStrength_LCS_FORNOKEYUPDATE = pg_query.LockClauseStrength_LCS_FORNOKEYUPDATE
	LockClauseStrength_LCS_FORUPDATE      = pg_query.LockClauseStrength_LCS_FORUPDATE
)

const (
	LockWaitPolicy_LockWaitBlock = pg_query.LockWaitPolicy_LockWaitBlock
	LockWaitPolicy_LockWaitSkip  = pg_query.LockWaitPolicy_LockWaitSkip
	LockWaitPolicy_LockWaitError = pg_query.LockWaitPolicy_LockWaitError
)

const (
	OnConflictAction_ONCONFLICT_NONE    = pg_query.OnConflictAction_ONCONFLICT_NONE
	OnConflictAction_ONCONFLICT_NOTHING = pg_query.OnConflictAction_ONCONFLICT_NOTHING
	OnConflictAction_ONCONFLICT_UPDATE  = pg_query.OnConflictAction_ONCONFLICT_UPDATE
)

const (
	OverridingKind_OVERRIDING_NOT_SET      = pg_query.OverridingKind_OVERRIDING_NOT_SET
	OverridingKind_OVERRIDING_USER_VALUE   = pg_query.OverridingKind_OVERRIDING_USER_VALUE
	OverridingKind_OVERRIDING_SYSTEM_VALUE = pg_query.OverridingKind_OVERRIDING_SYSTEM_VALUE
)

const (
	MinMaxOp_IS_GREATEST = pg_query.MinMaxOp_IS_GREATEST
	MinMaxOp_IS_LEAST    = pg_query.MinMaxOp_IS_LEAST
)

const (
	CTEMaterialize_CTEMaterializeDefault = pg_query.CTEMaterialize_CTEMaterializeDefault
	CTEMaterialize_CTEMaterializeAlways  = pg_query.CTEMaterialize_CTEMaterializeAlways
	CTEMaterialize_CTEMaterializeNever   = pg_query.CTEMaterialize_CTEMaterializeNever
)

const (
	GroupingSetKind_GROUPING_SET_EMPTY  = pg_query.GroupingSetKind_GROUPING_SET_EMPTY
	GroupingSetKind_GROUPING_SET_SIMPLE = pg_query.GroupingSetKind_GROUPING_SET_SIMPLE
	GroupingSetKind_GROUPING_SET_ROLLUP = pg_query.GroupingSetKind_GROUPING_SET_ROLLUP
	GroupingSetKind_GROUPING_SET_CUBE   = pg_query.GroupingSetKind_GROUPING_SET_CUBE
	GroupingSetKind_GROUPING_SET_SETS   = pg_query.GroupingSetKind_GROUPING_SET_SETS
)

const (
	CmdType_CMD_UNKNOWN = pg_query.CmdType_CMD_UNKNOWN
	CmdType_CMD_SELECT  = pg_query.CmdType_CMD_SELECT
	CmdType_CMD_UPDATE  = pg_query.CmdType_CMD_UPDATE
	CmdType_CMD_INSERT  = pg_query.CmdType_CMD_INSERT
	CmdType_CMD_DELETE  = pg_query.CmdType_CMD_DELETE
	CmdType_CMD_MERGE   = pg_query.CmdType_CMD_MERGE
	CmdType_CMD_UTILITY = pg_query.CmdType_CMD_UTILITY
	CmdType_CMD_NOTHING = pg_query.CmdType_CMD_NOTHING
)

const (
	ObjectType_OBJECT_ACCESS_METHOD         = pg_query.ObjectType_OBJECT_ACCESS_METHOD
	ObjectType_OBJECT_AGGREGATE             = pg_query.ObjectType_OBJECT_AGGREGATE
	ObjectType_OBJECT_AMOP                  = pg_query.ObjectType_OBJECT_AMOP
	ObjectType_OBJECT_AMPROC                = pg_query.ObjectType_OBJECT_AMPROC
	ObjectType_OBJECT_ATTRIBUTE             = pg_query.ObjectType_OBJECT_ATTRIBUTE
	ObjectType_OBJECT_CAST                  = pg_query.ObjectType_OBJECT_CAST
	ObjectType_OBJECT_COLUMN                = pg_query.ObjectType_OBJECT_COLUMN
	ObjectType_OBJECT_COLLATION             = pg_query.ObjectType_OBJECT_COLLATION
	ObjectType_OBJECT_CONVERSION            = pg_query.ObjectType_OBJECT_CONVERSION
	ObjectType_OBJECT_DATABASE              = pg_query.ObjectType_OBJECT_DATABASE
	ObjectType_OBJECT_DEFAULT               = pg_query.ObjectType_OBJECT_DEFAULT
	ObjectType_OBJECT_DEFACL                = pg_query.ObjectType_OBJECT_DEFACL
	ObjectType_OBJECT_DOMAIN                = pg_query.ObjectType_OBJECT_DOMAIN
	ObjectType_OBJECT_DOMCONSTRAINT         = pg_query.ObjectType_OBJECT_DOMCONSTRAINT
	ObjectType_OBJECT_EVENT_TRIGGER         = pg_query.ObjectType_OBJECT_EVENT_TRIGGER
	ObjectType_OBJECT_EXTENSION             = pg_query.ObjectType_OBJECT_EXTENSION
	ObjectType_OBJECT_FDW                   = pg_query.ObjectType_OBJECT_FDW
	ObjectType_OBJECT_FOREIGN_SERVER        = pg_query.ObjectType_OBJECT_FOREIGN_SERVER
	ObjectType_OBJECT_FOREIGN_TABLE         = pg_query.ObjectType_OBJECT_FOREIGN_TABLE
	ObjectType_OBJECT_FUNCTION              = pg_query.ObjectType_OBJECT_FUNCTION
	ObjectType_OBJECT_INDEX                 = pg_query.ObjectType_OBJECT_INDEX
	ObjectType_OBJECT_LANGUAGE              = pg_query.ObjectType_OBJECT_LANGUAGE
	ObjectType_OBJECT_LARGEOBJECT           = pg_query.ObjectType_OBJECT_LARGEOBJECT
	ObjectType_OBJECT_MATVIEW               = pg_query.ObjectType_OBJECT_MATVIEW
	ObjectType_OBJECT_OPCLASS               = pg_query.ObjectType_OBJECT_OPCLASS
	ObjectType_OBJECT_OPERATOR              = pg_query.ObjectType_OBJECT_OPERATOR
	ObjectType_OBJECT_OPFAMILY              = pg_query.ObjectType_OBJECT_OPFAMILY
	ObjectType_OBJECT_PARAMETER_ACL         = pg_query.ObjectType_OBJECT_PARAMETER_ACL
	ObjectType_OBJECT_POLICY                = pg_query.ObjectType_OBJECT_POLICY
	ObjectType_OBJECT_PROCEDURE             = pg_query.ObjectType_OBJECT_PROCEDURE
	ObjectType_OBJECT_PUBLICATION           = pg_query.ObjectType_OBJECT_PUBLICATION
	ObjectType_OBJECT_PUBLICATION_NAMESPACE = pg_query.ObjectType_OBJECT_PUBLICATION_NAMESPACE
	ObjectType_OBJECT_PUBLICATION_REL       = pg_query.ObjectType_OBJECT_PUBLICATION_REL
	ObjectType_OBJECT_ROLE                  = pg_query.ObjectType_OBJECT_ROLE
	ObjectType_OBJECT_ROUTINE               = pg_query.ObjectType_OBJECT_ROUTINE
	ObjectType_OBJECT_RULE                  = pg_query.ObjectType_OBJECT_RULE
	ObjectType_OBJECT_SCHEMA                = pg_query.ObjectType_OBJECT_SCHEMA
	ObjectType_OBJECT_SEQUENCE              = pg_query.ObjectType_OBJECT_SEQUENCE
	ObjectType_OBJECT_SUBSCRIPTION          = pg_query.ObjectType_OBJECT_SUBSCRIPTION
	ObjectType_OBJECT_STATISTIC_EXT         = pg_query.ObjectType_OBJECT_STATISTIC_EXT
	ObjectType_OBJECT_TABCONSTRAINT         = pg_query.ObjectType_OBJECT_TABCONSTRAINT
	ObjectType_OBJECT_TABLE                 = pg_query.ObjectType_OBJECT_TABLE
	ObjectType_OBJECT_TABLESPACE            = pg_query.ObjectType_OBJECT_TABLESPACE
	ObjectType_OBJECT_TRANSFORM             = pg_query.ObjectType_OBJECT_TRANSFORM
	ObjectType_OBJECT_TRIGGER               = pg_query.ObjectType_OBJECT_TRIGGER
	ObjectType_OBJECT_TSCONFIGURATION       = pg_query.ObjectType_OBJECT_TSCONFIGURATION
	ObjectType_OBJECT_TSDICTIONARY          = pg_query.ObjectType_OBJECT_TSDICTIONARY
	ObjectType_OBJECT_TSPARSER              = pg_query.ObjectType_OBJECT_TSPARSER
	ObjectType_OBJECT_TSTEMPLATE            = pg_query.ObjectType_OBJECT_TSTEMPLATE
	ObjectType_OBJECT_TYPE                  = pg_query.ObjectType_OBJECT_TYPE
	ObjectType_OBJECT_USER_MAPPING          = pg_query.ObjectType_OBJECT_USER_MAPPING
	ObjectType_OBJECT_VIEW                  = pg_query.ObjectType_OBJECT_VIEW
)

const (
	ConstrType_CONSTR_NULL                = pg_query.ConstrType_CONSTR_NULL
	ConstrType_CONSTR_NOTNULL             = pg_query.ConstrType_CONSTR_NOTNULL
	ConstrType_CONSTR_DEFAULT             = pg_query.ConstrType_CONSTR_DEFAULT
	ConstrType_CONSTR_IDENTITY            = pg_query.ConstrType_CONSTR_IDENTITY
	ConstrType_CONSTR_GENERATED           = pg_query.ConstrType_CONSTR_GENERATED
	ConstrType_CONSTR_CHECK               = pg_query.ConstrType_CONSTR_CHECK
	ConstrType_CONSTR_PRIMARY             = pg_query.ConstrType_CONSTR_PRIMARY
	ConstrType_CONSTR_UNIQUE              = pg_query.ConstrType_CONSTR_UNIQUE
	ConstrType_CONSTR_EXCLUSION           = pg_query.ConstrType_CONSTR_EXCLUSION
	ConstrType_CONSTR_FOREIGN             = pg_query.ConstrType_CONSTR_FOREIGN
	ConstrType_CONSTR_ATTR_DEFERRABLE     = pg_query.ConstrType_CONSTR_ATTR_DEFERRABLE
	ConstrType_CONSTR_ATTR_NOT_DEFERRABLE = pg_query.ConstrType_CONSTR_ATTR_NOT_DEFERRABLE
	ConstrType_CONSTR_ATTR_DEFERRED       = pg_query.ConstrType_CONSTR_ATTR_DEFERRED
	ConstrType_CONSTR_ATTR_IMMEDIATE      = pg_query.ConstrType_CONSTR_ATTR_IMMEDIATE
)

const (
	DropBehavior_DROP_RESTRICT = pg_query.DropBehavior_DROP_RESTRICT
	DropBehavior_DROP_CASCADE  = pg_query.DropBehavior_DROP_CASCADE
)

const (
	RoleStmtType_ROLESTMT_ROLE  = pg_query.RoleStmtType_ROLESTMT_ROLE
	RoleStmtType_ROLESTMT_USER  = pg_query.RoleStmtType_ROLESTMT_USER
	RoleStmtType_ROLESTMT_GROUP = pg_query.RoleStmtType_ROLESTMT_GROUP
)

const (
	RoleSpecType_ROLESPEC_CSTRING      = pg_query.RoleSpecType_ROLESPEC_CSTRING
	RoleSpecType_ROLESPEC_CURRENT_ROLE = pg_query.RoleSpecType_ROLESPEC_CURRENT_ROLE
	RoleSpecType_ROLESPEC_CURRENT_USER = pg_query.RoleSpecType_ROLESPEC_CURRENT_USER
	RoleSpecType_ROLESPEC_SESSION_USER = pg_query.RoleSpecType_ROLESPEC_SESSION_USER
	RoleSpecType_ROLESPEC_PUBLIC       = pg_query.RoleSpecType_ROLESPEC_PUBLIC
)

const (
	OnCommitAction_ONCOMMIT_NOOP          = pg_query.OnCommitAction_ONCOMMIT_NOOP
	OnCommitAction_ONCOMMIT_PRESERVE_ROWS = pg_query.OnCommitAction_ONCOMMIT_PRESERVE_ROWS
	OnCommitAction_ONCOMMIT_DELETE_ROWS   = pg_query.OnCommitAction_ONCOMMIT_DELETE_ROWS
	OnCommitAction_ONCOMMIT_DROP          = pg_query.OnCommitAction_ONCOMMIT_DROP
)
