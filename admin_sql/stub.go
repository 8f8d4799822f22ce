package adminsql

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// StubVersionQuery gives the version of the stub objects a database holds: one row, or none, whose value is NULL when
// a schema neki is there that StubSQL did not make. The admin compares it with StubVersion to skip StubSQL.
const StubVersionQuery = `SELECT pg_catalog.substring(pg_catalog.obj_description(oid, 'pg_namespace'),
	'stub version ([0-9a-f]+)') FROM pg_catalog.pg_namespace WHERE nspname = 'neki'`

// StubVersion identifies the text of StubSQL.
func StubVersion() string { return stubVersion(New(Inputs{}).stubObjects()) }

// StubSQL is a script, for a superuser, that puts the stub objects of schema neki into a database: views, functions
// and procedures of the same names, columns and comments, which raise 0A000 when they are reached without a gateway,
// and the roles neki_viewer and neki_operator. Everybody may see them, the gateway checks the real rights.
//
// They are members of the extension plpgsql, because pg_dump then emits nothing for them and no file has to be
// installed. The script is one transaction, to be sent as one simple query, and may be run again: it takes out what an
// earlier version put in. After an error the connection is in a failed transaction: roll back or close it.
func StubSQL() string {
	objects := New(Inputs{}).stubObjects()
	var b strings.Builder
	b.WriteString(stubPrologue)
	b.WriteString(objects)
	fmt.Fprintf(&b, "COMMENT ON SCHEMA neki IS 'Virtual schema of the neki gateway (stub version %s)';\nCOMMIT;\n",
		stubVersion(objects))
	return b.String()
}

func stubVersion(objects string) string {
	sum := sha256.Sum256([]byte(stubPrologue + objects))
	return hex.EncodeToString(sum[:8])
}

// stubPrologue settles the session so that nothing a user has set changes what follows (event triggers, search_path,
// read-only defaults), makes the roles and takes out old objects. CASCADE is not used: a view of a user's that stands
// on a stub makes the script fail rather than vanish. Every object gets its rights before it becomes a member of the
// extension: ADD records them as initial ones, and pg_dump emits what differs from those.
const stubPrologue = `BEGIN READ WRITE;
SET LOCAL session_replication_role = replica;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = warning;
SET LOCAL standard_conforming_strings = on;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';
SELECT pg_catalog.set_config('event_triggers', 'off', true)
  WHERE pg_catalog.current_setting('server_version_num')::int4 >= 170000;
CREATE EXTENSION IF NOT EXISTS plpgsql;
DO $neki$
DECLARE
  wanted text;
BEGIN
  FOREACH wanted IN ARRAY ARRAY['neki_viewer', 'neki_operator'] LOOP
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
      BEGIN
        EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', wanted);
      EXCEPTION WHEN duplicate_object OR unique_violation THEN
        NULL; -- made meanwhile from another database
      END;
    END IF;
  END LOOP;
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_auth_members m
                 WHERE m.roleid = 'neki_viewer'::regrole AND m.member = 'neki_operator'::regrole) THEN
    GRANT neki_viewer TO neki_operator;
  END IF;
END $neki$;
DO $neki$
DECLARE
  old record;
BEGIN
  FOR old IN
    SELECT i.type, i.identity
    FROM pg_catalog.pg_depend d
      JOIN pg_catalog.pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
      CROSS JOIN LATERAL pg_catalog.pg_identify_object(d.classid, d.objid, d.objsubid) i
    WHERE d.deptype = 'e' AND e.extname = 'plpgsql' AND i.schema IN ('neki', '__neki')
      AND i.type IN ('view', 'procedure', 'function', 'type')
    ORDER BY (i.type = 'type'), (i.identity ~ '\.\_?gateway\_(only|rows)\('), i.identity -- what others need comes last
  LOOP
    EXECUTE pg_catalog.format('ALTER EXTENSION plpgsql DROP %s %s', old.type, old.identity);
    EXECUTE pg_catalog.format('DROP %s %s', old.type, old.identity);
  END LOOP;
END $neki$;
CREATE SCHEMA IF NOT EXISTS neki;
CREATE SCHEMA IF NOT EXISTS __neki;
DO $neki$
DECLARE
  ours text;
BEGIN
  FOREACH ours IN ARRAY ARRAY['neki', '__neki'] LOOP
    IF EXISTS (SELECT FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
        WHERE d.classid = 'pg_namespace'::regclass AND d.objid = ours::regnamespace
          AND d.deptype = 'e' AND e.extname = 'plpgsql') THEN
      EXECUTE pg_catalog.format('ALTER EXTENSION plpgsql DROP SCHEMA %I', ours);
    END IF;
    EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA %I TO PUBLIC', ours);
    EXECUTE pg_catalog.format('ALTER EXTENSION plpgsql ADD SCHEMA %I', ours);
  END LOOP;
END $neki$;
COMMENT ON SCHEMA __neki IS 'Function forms of the neki gateway, and what the stubs of schema neki need';
CREATE FUNCTION __neki.gateway_only() RETURNS bool LANGUAGE plpgsql STABLE AS $neki$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '0A000',
    MESSAGE = 'the neki schema is answered by a gateway, not by a shard',
    HINT = 'Connect through a gateway.';
END $neki$;
COMMENT ON FUNCTION __neki.gateway_only() IS 'Raises the error of all stubs of the gateway''s objects';
GRANT EXECUTE ON FUNCTION __neki.gateway_only() TO PUBLIC;
ALTER EXTENSION plpgsql ADD FUNCTION __neki.gateway_only();
CREATE FUNCTION __neki.gateway_rows() RETURNS SETOF text LANGUAGE plpgsql VOLATILE ROWS 1 AS $neki$
BEGIN
  PERFORM __neki.gateway_only();
END $neki$;
COMMENT ON FUNCTION __neki.gateway_rows() IS 'Raises the error of the stub views of schema neki';
GRANT EXECUTE ON FUNCTION __neki.gateway_rows() TO PUBLIC;
ALTER EXTENSION plpgsql ADD FUNCTION __neki.gateway_rows();
`

// stubObjects writes the statements that make every relation, function and procedure.
func (s *Schema) stubObjects() string {
	var b strings.Builder
	for _, r := range s.relations {
		if r.Function {
			r.writeStubFunction(&b)
		} else {
			r.writeStubView(&b)
		}
	}
	for _, p := range s.procedures {
		p.writeStub(&b)
	}
	return b.String()
}

// writeStubView makes a view over a function that raises when the first row is asked for: EXPLAIN and LIMIT 0 don't.
// The columns are taken from the function's, because the planner would reason about constants: a join on a NULL is
// empty, and the function not called.
func (r *Relation) writeStubView(b *strings.Builder) {
	name := SchemaName + "." + quoteIdent(r.Name)
	columns := make([]string, len(r.Columns))
	for i, c := range r.Columns {
		columns[i] = fmt.Sprintf("stub::%s AS %s", TypeName(c.Type), quoteIdent(c.Name))
	}
	fmt.Fprintf(b, "CREATE VIEW %s AS SELECT %s FROM __neki.gateway_rows() AS stub;\n", name, strings.Join(columns, ", "))
	fmt.Fprintf(b, "COMMENT ON VIEW %s IS %s;\n", name, quoteLiteral(r.Comment))
	for _, c := range r.Columns {
		fmt.Fprintf(b, "COMMENT ON COLUMN %s.%s IS %s;\n", name, quoteIdent(c.Name), quoteLiteral(c.Comment))
	}
	fmt.Fprintf(b, "GRANT SELECT ON %s TO PUBLIC;\n", name)
	fmt.Fprintf(b, "ALTER EXTENSION plpgsql ADD VIEW %s;\n", name)
}

// writeStubFunction makes a function that returns a composite type, which is of the same name and in schema __neki: the
// columns of RETURNS TABLE would make psql's \df too wide to read.
func (r *Relation) writeStubFunction(b *strings.Builder) {
	columns := make([]string, len(r.Columns))
	for i, c := range r.Columns {
		columns[i] = quoteIdent(c.Name) + " " + TypeName(c.Type)
	}
	if r.Scalar {
		writeStubRoutine(b, "FUNCTION", r.Schema, r.Name, r.Args, " RETURNS "+TypeName(r.Columns[0].Type)+" LANGUAGE plpgsql STABLE", r.Comment)
		return
	}
	row := MetaSchemaName + "." + quoteIdent(r.Name)
	fmt.Fprintf(b, "CREATE TYPE %s AS (%s);\n", row, strings.Join(columns, ", "))
	fmt.Fprintf(b, "COMMENT ON TYPE %s IS %s;\n", row, quoteLiteral("Rows of "+r.FullName()))
	for _, c := range r.Columns {
		fmt.Fprintf(b, "COMMENT ON COLUMN %s.%s IS %s;\n", row, quoteIdent(c.Name), quoteLiteral(c.Comment))
	}
	fmt.Fprintf(b, "ALTER EXTENSION plpgsql ADD TYPE %s;\n", row)
	writeStubRoutine(b, "FUNCTION", r.Schema, r.Name, r.Args, " RETURNS SETOF "+row+" LANGUAGE plpgsql STABLE", r.Comment)
}

func (p *Procedure) writeStub(b *strings.Builder) {
	writeStubRoutine(b, "PROCEDURE", SchemaName, p.Name, p.Args, " LANGUAGE plpgsql", p.Comment)
}

func writeStubRoutine(b *strings.Builder, kind, schema, name string, args []Argument, clauses, comment string) {
	declared, types := make([]string, len(args)), make([]string, len(args))
	for i, a := range args {
		declared[i], types[i] = a.mode()+quoteIdent(a.Name)+" "+TypeName(a.Type), TypeName(a.Type)
		declared[i] += defaultClause(a)
	}
	object := fmt.Sprintf("%s %s.%s(%s)", kind, schema, quoteIdent(name), strings.Join(types, ", "))
	fmt.Fprintf(b, "CREATE %s %s.%s(%s)%s AS $neki$BEGIN PERFORM __neki.gateway_only(); END$neki$;\n",
		kind, schema, quoteIdent(name), strings.Join(declared, ", "), clauses)
	fmt.Fprintf(b, "COMMENT ON %s IS %s;\n", object, quoteLiteral(comment))
	fmt.Fprintf(b, "GRANT EXECUTE ON %s TO PUBLIC;\n", object)
	fmt.Fprintf(b, "ALTER EXTENSION plpgsql ADD %s;\n", object)
}

// quoteIdent always quotes: the names are fixed, and some are key words (user, default, position).
func quoteIdent(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// quoteLiteral needs standard_conforming_strings, which the script sets.
func quoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
