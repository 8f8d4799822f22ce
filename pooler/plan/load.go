package plan

// FunctionsQuery reads pg_proc in the form of Function, overloads that are alike to the planner folded into one row.
// Functions of uuid-ossp and pgcrypto are VOLATILE only because they give random values.
const FunctionsQuery = `SELECT n.nspname::pg_catalog.text, p.proname::pg_catalog.text,
 (p.pronargs - p.pronargdefaults - CASE WHEN p.provariadic <> 0 THEN 1 ELSE 0 END)::pg_catalog.int4,
 (CASE WHEN p.provariadic <> 0 THEN -1 ELSE p.pronargs END)::pg_catalog.int4,
 p.provolatile = 'v' AND coalesce(p.probin, '') NOT IN ('$libdir/uuid-ossp', '$libdir/pgcrypto')
 FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
 GROUP BY 1, 2, 3, 4, 5`

// RelationsQuery reads the relations that have one of the names $1 (text[]), those of the virtual schema, of which
// FuncCatalog.Relation is asked.
const RelationsQuery = `SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text
 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname::pg_catalog.text = ANY ($1::pg_catalog.text[]) AND c.relkind NOT IN ('i', 'I', 't')
 AND n.nspname NOT IN ('neki', '__neki')`
