package agent

import (
	"context"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
)

// Global is a role, a database, or a schema or extension of a database, as another shard is to have it. What is there already is
// brought to the same; nothing is taken away.
type Global struct {
	Kind     string   `json:"kind"` // role, database, schema or extension
	Name     string   `json:"name"`
	Database string   `json:"database,omitempty"` // that a schema or extension is in
	Create   string   `json:"create"`             // when it is missing
	Then     []string `json:"then,omitempty"`     // in any case; may be run again
}

// GlobalsOrder has a new shard's primary make what the other shards have.
type GlobalsOrder struct {
	Order
	Globals []Global `json:"globals"`
}

// Roles of the cluster's own have their passwords from the admin. Each query gives kind, name, what makes it, and what is done in
// any case.
const (
	rolesQuery = `
SELECT 'role', rolname::text, format('CREATE ROLE %I', rolname), array_remove(ARRAY[
	format('ALTER ROLE %I WITH %s %s %s %s %s %s %s CONNECTION LIMIT %s%s%s', rolname,
		CASE WHEN rolsuper THEN 'SUPERUSER' ELSE 'NOSUPERUSER' END, CASE WHEN rolinherit THEN 'INHERIT' ELSE 'NOINHERIT' END,
		CASE WHEN rolcreaterole THEN 'CREATEROLE' ELSE 'NOCREATEROLE' END, CASE WHEN rolcreatedb THEN 'CREATEDB' ELSE 'NOCREATEDB' END,
		CASE WHEN rolcanlogin THEN 'LOGIN' ELSE 'NOLOGIN' END, CASE WHEN rolreplication THEN 'REPLICATION' ELSE 'NOREPLICATION' END,
		CASE WHEN rolbypassrls THEN 'BYPASSRLS' ELSE 'NOBYPASSRLS' END, rolconnlimit,
		' PASSWORD ' || quote_literal(rolpassword), ' VALID UNTIL ' || quote_literal(rolvaliduntil)),
	'COMMENT ON ROLE ' || quote_ident(rolname) || ' IS ' || quote_literal(shobj_description(oid, 'pg_authid'))], NULL)
FROM pg_authid WHERE rolname !~ '^pg_' AND rolname <> ALL ($1::text[]) ORDER BY rolname`

	// The grants belong to the member; all roles are there by then.
	grantsQuery = `
SELECT 'role', m.rolname::text, format('CREATE ROLE %I', m.rolname), array_agg(format('GRANT %I TO %I%s', g.rolname, m.rolname, CASE
	WHEN to_jsonb(a) ? 'inherit_option' THEN format(' WITH ADMIN %s, INHERIT %s, SET %s', a.admin_option::text, to_jsonb(a)->>'inherit_option', to_jsonb(a)->>'set_option')
	WHEN a.admin_option THEN ' WITH ADMIN OPTION' ELSE '' END) ORDER BY g.rolname)
FROM pg_auth_members a JOIN pg_authid g ON g.oid = a.roleid JOIN pg_authid m ON m.oid = a.member
WHERE m.rolname !~ '^pg_' GROUP BY m.rolname ORDER BY m.rolname`

	// Of databases that have template1's locale that is the template: it holds what each database is to have.
	databasesQuery = `
SELECT 'database', d.datname::text, format('CREATE DATABASE %I%s ENCODING %L LC_COLLATE %L LC_CTYPE %L%s', d.datname,
	CASE WHEN (d.encoding, d.datcollate, d.datctype, d.datlocprovider, coalesce(to_jsonb(d)->>'daticulocale', to_jsonb(d)->>'datlocale', '')) =
		(t.encoding, t.datcollate, t.datctype, t.datlocprovider, coalesce(to_jsonb(t)->>'daticulocale', to_jsonb(t)->>'datlocale', ''))
		THEN '' ELSE ' TEMPLATE template0' END,
	pg_encoding_to_char(d.encoding), d.datcollate, d.datctype,
	CASE d.datlocprovider WHEN 'i' THEN format(' LOCALE_PROVIDER icu ICU_LOCALE %L', coalesce(to_jsonb(d)->>'daticulocale', to_jsonb(d)->>'datlocale'))
		WHEN 'b' THEN format(' LOCALE_PROVIDER builtin BUILTIN_LOCALE %L', to_jsonb(d)->>'datlocale') ELSE '' END),
	array_remove(ARRAY[
		format('ALTER DATABASE %I OWNER TO %I', d.datname, pg_get_userbyid(d.datdba)),
		format('ALTER DATABASE %I WITH CONNECTION LIMIT %s IS_TEMPLATE %s', d.datname, d.datconnlimit, d.datistemplate::text),
		'COMMENT ON DATABASE ' || quote_ident(d.datname) || ' IS ' || quote_literal(shobj_description(d.oid, 'pg_database')),
		CASE WHEN d.datacl IS NOT NULL THEN format('REVOKE ALL ON DATABASE %I FROM PUBLIC', d.datname) END]
	|| ARRAY(SELECT format('GRANT %s ON DATABASE %I TO %s%s', privilege_type, d.datname,
			CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END, CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
		FROM aclexplode(d.datacl) ORDER BY 1), NULL)
FROM pg_database d, pg_database t WHERE t.datname = 'template1' AND d.datname NOT IN ('template0', 'template1') AND d.datallowconn AND d.datconnlimit <> -2
ORDER BY d.datname`

	// A value of a list is kept as it was quoted; of others it is a text.
	settingsQuery = `
SELECT CASE WHEN r.oid IS NULL THEN 'database' ELSE 'role' END, coalesce(r.rolname, d.datname)::text, '', array_agg(format('ALTER %s SET %s TO %s',
	CASE WHEN r.oid IS NULL THEN format('DATABASE %I', d.datname) WHEN d.oid IS NULL THEN format('ROLE %I', r.rolname)
		ELSE format('ROLE %I IN DATABASE %I', r.rolname, d.datname) END,
	split_part(c, '=', 1), CASE WHEN split_part(c, '=', 1) IN ('search_path', 'temp_tablespaces', 'local_preload_libraries', 'session_preload_libraries')
		THEN coalesce(nullif(substr(c, strpos(c, '=') + 1), ''), '''''') ELSE quote_literal(substr(c, strpos(c, '=') + 1)) END) ORDER BY c)
FROM pg_db_role_setting s LEFT JOIN pg_authid r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase, unnest(s.setconfig) AS c
WHERE (s.setrole = 0 OR r.oid IS NOT NULL) AND (s.setdatabase = 0 OR d.datallowconn) AND coalesce(r.rolname <> ALL ($1::text[]), true)
GROUP BY 1, 2 ORDER BY 1, 2`

	insideQuery = `
SELECT 'schema', nspname::text, format('CREATE SCHEMA %I', nspname), ARRAY[format('ALTER SCHEMA %I OWNER TO %I', nspname, pg_get_userbyid(nspowner))]
	|| ARRAY(SELECT format('GRANT %s ON SCHEMA %I TO %s%s', privilege_type, nspname,
			CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END, CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
		FROM aclexplode(nspacl) ORDER BY 1)
FROM pg_namespace n WHERE nspname !~ '^(pg_|neki$|__neki$)' AND nspname <> 'information_schema'
	AND NOT EXISTS (SELECT FROM pg_depend p WHERE p.classid = 'pg_namespace'::regclass AND p.objid = n.oid AND p.deptype = 'e')
UNION ALL
SELECT 'extension', extname::text, format('CREATE EXTENSION %I WITH SCHEMA %I CASCADE', extname, n.nspname), '{}'
FROM pg_extension e JOIN pg_namespace n ON n.oid = extnamespace WHERE extname <> 'plpgsql' ORDER BY 1 DESC, 2`
)

// ownRoles are made by the admin on every shard, with passwords of their own.
var ownRoles = []string{RoleReplication, RoleGateway}

// readGlobals lists what a new shard is to have as this one has it.
func (a *Agent) readGlobals(ctx context.Context) ([]Global, error) {
	if a.pg.IsStandby() || !a.pg.Ready() {
		return nil, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s is not a primary that serves", a.cfg.Node)
	}
	conn, err := a.connect(ctx, "postgres", orderSQLLimit)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx) //nolint:errcheck // the queries' errors count
	var all []Global
	for _, q := range []struct {
		sql  string
		args []any
	}{{rolesQuery, []any{ownRoles}}, {grantsQuery, nil}, {databasesQuery, nil}, {settingsQuery, []any{ownRoles}}} {
		found, err := globalsOf(ctx, conn, "", q.sql, q.args...)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	rows, err := conn.Query(ctx, "SELECT datname::text FROM pg_database WHERE datallowconn AND datname <> 'template1' AND datconnlimit <> -2 ORDER BY 1")
	if err != nil {
		return nil, err
	}
	databases, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	for _, d := range databases {
		inside, err := a.insideOf(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("database %s: %w", d, err)
		}
		all = append(all, inside...)
	}
	return all, nil
}

func globalsOf(ctx context.Context, conn *pgx.Conn, database, sql string, args ...any) ([]Global, error) {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Global, error) {
		g := Global{Database: database}
		return g, row.Scan(&g.Kind, &g.Name, &g.Create, &g.Then)
	})
}

func (a *Agent) insideOf(ctx context.Context, database string) ([]Global, error) {
	conn, err := a.connect(ctx, database, orderSQLLimit)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx) //nolint:errcheck // the query's error counts
	return globalsOf(ctx, conn, database, insideQuery)
}

// existsQuery tells whether there is one of a name.
var existsQuery = map[string]string{
	"role":      "SELECT EXISTS (SELECT FROM pg_authid WHERE rolname = $1)",
	"database":  "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)",
	"schema":    "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)",
	"extension": "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = $1)",
}

// makeGlobals makes what is missing, and brings the rest to the same.
func (r *runner) makeGlobals(ctx context.Context, o GlobalsOrder) (Result, error) {
	if _, err := r.primary(ctx); err != nil {
		return Result{}, err
	}
	var done Result
	var conn *pgx.Conn
	at := ""
	defer func() {
		if conn != nil {
			_ = conn.Close(ctx)
		}
	}()
	for _, g := range o.Globals {
		if database := g.Database; conn == nil || database != at {
			if conn != nil {
				_ = conn.Close(ctx)
			}
			name := database
			if name == "" {
				name = "postgres"
			}
			var err error
			if conn, err = r.a.connect(ctx, name, orderSQLLimit); err != nil {
				return done, err
			}
			at = database
		}
		made, err := makeGlobal(ctx, conn, g)
		if err != nil {
			return done, fmt.Errorf("%s %s: %w", g.Kind, g.Name, err)
		}
		if made {
			done.Done = append(done.Done, g.Kind+" "+g.Name)
		}
	}
	return done, nil
}

func makeGlobal(ctx context.Context, conn *pgx.Conn, g Global) (made bool, err error) {
	query, known := existsQuery[g.Kind]
	if !known {
		return false, pgerr.New(pgerr.InvalidParameterValue, "there is no such kind")
	}
	var there bool
	if err := conn.QueryRow(ctx, query, g.Name).Scan(&there); err != nil {
		return false, err
	}
	if !there {
		if _, err := conn.Exec(ctx, g.Create); err != nil {
			return false, err
		}
	}
	for _, sql := range g.Then {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return false, fmt.Errorf("%s: %w", withoutPassword(sql), err)
		}
	}
	return !there, nil
}

// withoutPassword gives the beginning of a statement, to be shown.
func withoutPassword(sql string) string {
	const most = 60
	return sql[:min(len(sql), most)]
}

// giveGlobals serves GET /v1/globals.
func (a *Agent) giveGlobals(w http.ResponseWriter, req *http.Request) {
	ctx, cancel := context.WithTimeout(req.Context(), reloadTimeout)
	defer cancel()
	globals, err := a.readGlobals(ctx)
	if err != nil {
		writeJSON(w, http.StatusConflict, problemOf(err))
		return
	}
	writeJSON(w, http.StatusOK, globals)
}

// Globals lists the roles and databases of a primary's shard, as another shard is to have them.
func (c *Client) Globals(ctx context.Context) ([]Global, error) {
	var list []Global
	return list, c.call(ctx, http.MethodGet, "globals", nil, &list)
}

// MakeGlobals has a primary make the roles and databases of another shard.
func (c *Client) MakeGlobals(ctx context.Context, o GlobalsOrder) (Result, error) {
	return c.order(ctx, "globals", o)
}
