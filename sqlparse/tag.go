package sqlparse

import (
	"reflect"
	"strings"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// tagOf gives the command tag of a statement, as Postgres's CreateCommandTag does for a parse tree.
func tagOf(node any) string {
	if tag, ok := tagByType(node); ok {
		return tag
	}
	switch n := node.(type) {
	case *pg_query.TransactionStmt:
		return txTags[n.Kind]
	case *pg_query.FetchStmt:
		if n.Ismove {
			return "MOVE"
		}
		return "FETCH"
	case *pg_query.VariableSetStmt:
		if n.Kind == pg_query.VariableSetKind_VAR_RESET || n.Kind == pg_query.VariableSetKind_VAR_RESET_ALL {
			return "RESET"
		}
		return "SET"
	case *pg_query.DiscardStmt:
		return [...]string{"DISCARD ALL", "DISCARD PLANS", "DISCARD SEQUENCES", "DISCARD TEMP"}[discardTargets[n.Target]]
	case *pg_query.DeallocateStmt:
		return allTag("DEALLOCATE", n.Name == "")
	case *pg_query.ClosePortalStmt:
		return allTag("CLOSE CURSOR", n.Portalname == "")
	case *VacuumStmt:
		if n.IsVacuumcmd {
			return "VACUUM"
		}
		return "ANALYZE"
	}
	return tagOfDDL(node)
}

func allTag(tag string, all bool) string {
	if all {
		return tag + " ALL"
	}
	return tag
}

var txTags = map[pg_query.TransactionStmtKind]string{
	pg_query.TransactionStmtKind_TRANS_STMT_BEGIN:             "BEGIN",
	pg_query.TransactionStmtKind_TRANS_STMT_START:             "START TRANSACTION",
	pg_query.TransactionStmtKind_TRANS_STMT_COMMIT:            "COMMIT",
	pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK:          "ROLLBACK",
	pg_query.TransactionStmtKind_TRANS_STMT_SAVEPOINT:         "SAVEPOINT",
	pg_query.TransactionStmtKind_TRANS_STMT_RELEASE:           "RELEASE",
	pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK_TO:       "ROLLBACK",
	pg_query.TransactionStmtKind_TRANS_STMT_PREPARE:           "PREPARE TRANSACTION",
	pg_query.TransactionStmtKind_TRANS_STMT_COMMIT_PREPARED:   "COMMIT PREPARED",
	pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK_PREPARED: "ROLLBACK PREPARED",
}

// tagOfDDL gives the tags that depend on the kind of object.
func tagOfDDL(node any) string {
	switch n := node.(type) {
	case *DropStmt:
		return "DROP " + objectTag(n.RemoveType)
	case *pg_query.DefineStmt:
		return "CREATE " + objectTag(n.Kind)
	case *RenameStmt:
		if n.RenameType == ObjectType_OBJECT_COLUMN || n.RenameType == ObjectType_OBJECT_TABCONSTRAINT {
			return "ALTER " + objectTag(n.RelationType)
		}
		return "ALTER " + objectTag(n.RenameType)
	case *pg_query.AlterObjectDependsStmt:
		return "ALTER " + objectTag(n.ObjectType)
	case *AlterObjectSchemaStmt:
		return "ALTER " + objectTag(n.ObjectType)
	case *AlterOwnerStmt:
		return "ALTER " + objectTag(n.ObjectType)
	case *pg_query.AlterTableMoveAllStmt:
		return "ALTER " + objectTag(n.Objtype)
	case *AlterTableStmt:
		return "ALTER " + objectTag(n.Objtype)
	case *pg_query.AlterFunctionStmt:
		return "ALTER " + objectTag(n.Objtype)
	case *CreateFunctionStmt:
		if n.IsProcedure {
			return "CREATE PROCEDURE"
		}
		return "CREATE FUNCTION"
	case *CreateTableAsStmt:
		return tagOfTableAs(n)
	case *GrantStmt:
		if n.IsGrant {
			return "GRANT"
		}
		return "REVOKE"
	case *GrantRoleStmt:
		if n.IsGrant {
			return "GRANT ROLE"
		}
		return "REVOKE ROLE"
	}
	return spacedName(node)
}

func tagOfTableAs(n *CreateTableAsStmt) string {
	switch {
	case n.Objtype == ObjectType_OBJECT_MATVIEW:
		return "CREATE MATERIALIZED VIEW"
	case n.IsSelectInto:
		return "SELECT INTO"
	}
	return "CREATE TABLE AS"
}

// objectTag gives the words for a kind of object in a tag.
func objectTag(t ObjectType) string {
	switch t {
	case ObjectType_OBJECT_MATVIEW:
		return "MATERIALIZED VIEW"
	case ObjectType_OBJECT_FDW:
		return "FOREIGN DATA WRAPPER"
	case ObjectType_OBJECT_FOREIGN_SERVER:
		return "SERVER"
	case ObjectType_OBJECT_OPCLASS:
		return "OPERATOR CLASS"
	case ObjectType_OBJECT_OPFAMILY:
		return "OPERATOR FAMILY"
	case ObjectType_OBJECT_TSCONFIGURATION:
		return "TEXT SEARCH CONFIGURATION"
	case ObjectType_OBJECT_TSDICTIONARY:
		return "TEXT SEARCH DICTIONARY"
	case ObjectType_OBJECT_TSPARSER:
		return "TEXT SEARCH PARSER"
	case ObjectType_OBJECT_TSTEMPLATE:
		return "TEXT SEARCH TEMPLATE"
	case ObjectType_OBJECT_LARGEOBJECT:
		return "LARGE OBJECT"
	case ObjectType_OBJECT_STATISTIC_EXT:
		return "STATISTICS"
	case ObjectType_OBJECT_DOMCONSTRAINT:
		return "DOMAIN"
	case ObjectType_OBJECT_ATTRIBUTE:
		return "TYPE"
	case ObjectType_OBJECT_TABCONSTRAINT, ObjectType_OBJECT_COLUMN:
		return "TABLE"
	}
	return strings.ReplaceAll(strings.TrimPrefix(t.String(), "OBJECT_"), "_", " ")
}

// spacedName makes a tag of a node type's name: CreateExtensionStmt gives CREATE EXTENSION.
func spacedName(node any) string {
	name := strings.TrimSuffix(reflect.TypeOf(node).Elem().Name(), "Stmt")
	var b strings.Builder
	for i, c := range name {
		if i > 0 && c >= 'A' && c <= 'Z' {
			b.WriteByte(' ')
		}
		b.WriteRune(c)
	}
	return strings.ToUpper(b.String())
}

// tagByType gives the tags that only depend on the node's type and aren't made of its name.
func tagByType(node any) (string, bool) {
	switch n := node.(type) {
	case *pg_query.VariableShowStmt:
		return "SHOW", true
	case *DeclareCursorStmt:
		return "DECLARE CURSOR", true
	case *ConstraintsSetStmt:
		return "SET CONSTRAINTS", true
	case *LockStmt:
		return "LOCK TABLE", true
	case *TruncateStmt:
		return "TRUNCATE TABLE", true
	case *pg_query.SecLabelStmt:
		return "SECURITY LABEL", true
	case *CreateStmt:
		return "CREATE TABLE", true
	case *pg_query.CreateTableSpaceStmt:
		return "CREATE TABLESPACE", true
	case *pg_query.DropTableSpaceStmt:
		return "DROP TABLESPACE", true
	case *pg_query.AlterTableSpaceOptionsStmt:
		return "ALTER TABLESPACE", true
	case *pg_query.AlterExtensionContentsStmt:
		return "ALTER EXTENSION", true
	case *pg_query.CreateFdwStmt:
		return "CREATE FOREIGN DATA WRAPPER", true
	case *pg_query.AlterFdwStmt:
		return "ALTER FOREIGN DATA WRAPPER", true
	case *pg_query.CreateForeignServerStmt:
		return "CREATE SERVER", true
	case *pg_query.AlterForeignServerStmt:
		return "ALTER SERVER", true
	case *pg_query.CreateAmStmt:
		return "CREATE ACCESS METHOD", true
	case *CreateTrigStmt:
		return "CREATE TRIGGER", true
	case *pg_query.CreateEventTrigStmt:
		return "CREATE EVENT TRIGGER", true
	case *pg_query.AlterEventTrigStmt:
		return "ALTER EVENT TRIGGER", true
	case *pg_query.CreatePLangStmt:
		return "CREATE LANGUAGE", true
	case *AlterRoleSetStmt:
		return "ALTER ROLE", true
	case *CreateSeqStmt:
		return "CREATE SEQUENCE", true
	case *AlterSeqStmt:
		return "ALTER SEQUENCE", true
	case *pg_query.CreateOpClassStmt:
		return "CREATE OPERATOR CLASS", true
	case *pg_query.CreateOpFamilyStmt:
		return "CREATE OPERATOR FAMILY", true
	case *pg_query.AlterOpFamilyStmt:
		return "ALTER OPERATOR FAMILY", true
	case *IndexStmt:
		return "CREATE INDEX", true
	case *CreateStatsStmt:
		return "CREATE STATISTICS", true
	case *pg_query.AlterStatsStmt:
		return "ALTER STATISTICS", true
	case *pg_query.CompositeTypeStmt, *CreateEnumStmt, *pg_query.CreateRangeStmt:
		return "CREATE TYPE", true
	case *pg_query.AlterEnumStmt:
		return "ALTER TYPE", true
	case *ViewStmt:
		return "CREATE VIEW", true
	case *RuleStmt:
		return "CREATE RULE", true
	case *CreatedbStmt:
		return "CREATE DATABASE", true
	case *DropdbStmt:
		return "DROP DATABASE", true
	case *pg_query.AlterDatabaseRefreshCollStmt, *AlterDatabaseSetStmt:
		return "ALTER DATABASE", true
	case *RefreshMatViewStmt:
		return "REFRESH MATERIALIZED VIEW", true
	case *pg_query.CheckPointStmt:
		return "CHECKPOINT", true
	case *pg_query.AlterTSDictionaryStmt:
		return "ALTER TEXT SEARCH DICTIONARY", true
	case *pg_query.AlterTSConfigurationStmt:
		return "ALTER TEXT SEARCH CONFIGURATION", true
	case *SelectStmt:
		if n.IntoClause != nil {
			return "SELECT INTO", true
		}
		return "SELECT", true
	}
	return "", false
}
