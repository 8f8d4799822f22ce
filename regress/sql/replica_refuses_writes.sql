-- Under replica and rdonly everything that writes fails with 25006, and nothing of it reaches a primary.
CREATE TABLE refused (id int PRIMARY KEY, v text);
INSERT INTO refused VALUES (1, 'before');
CREATE SEQUENCE refused_seq;
CREATE PROCEDURE refused_proc() LANGUAGE sql AS 'INSERT INTO refused VALUES (50, ''by procedure'')';
CREATE FUNCTION refused_func() RETURNS int LANGUAGE sql VOLATILE AS 'INSERT INTO refused VALUES (51, ''by function'') RETURNING id';
SET __neki.replica_consistency = 'session';
SET __neki.replica_wait = '10s';
SET __neki.target = 'replica';

-- The message is Postgres's own.
INSERT INTO refused VALUES (2, 'x');
\set VERBOSITY sqlstate
UPDATE refused SET v = 'x';
DELETE FROM refused;
MERGE INTO refused r USING (VALUES (1)) s(id) ON r.id = s.id WHEN MATCHED THEN DELETE;
TRUNCATE refused;
WITH w AS (DELETE FROM refused RETURNING *) SELECT * FROM w;
WITH w AS (INSERT INTO refused VALUES (3, 'x') RETURNING id) SELECT count(*) FROM w;
SELECT * FROM refused FOR UPDATE;
SELECT * FROM refused FOR NO KEY UPDATE;
SELECT * FROM refused FOR SHARE;
SELECT * FROM refused FOR KEY SHARE;
SELECT * FROM (SELECT * FROM refused FOR UPDATE) s;
SELECT nextval('refused_seq');
SELECT pg_catalog.nextval('refused_seq'::regclass);
SELECT setval('refused_seq', 10);
SELECT 1 WHERE 0 < nextval('refused_seq');
SELECT refused_func();
CALL refused_proc();
DO $$BEGIN INSERT INTO refused VALUES (4, 'x'); END$$;
CREATE TABLE refused_2 (id int);
CREATE TABLE refused_3 AS SELECT 1 AS id;
SELECT 1 AS id INTO refused_4;
CREATE TEMP TABLE refused_5 (id int);
CREATE INDEX ON refused (v);
CREATE VIEW refused_6 AS SELECT 1;
CREATE ROLE regress_refused;
ALTER TABLE refused ADD COLUMN w int;
DROP TABLE refused;
COMMENT ON TABLE refused IS 'x';
GRANT SELECT ON refused TO PUBLIC;
REFRESH MATERIALIZED VIEW refused_mv;
COPY refused FROM STDIN;
\.
BEGIN;
LOCK TABLE refused IN ACCESS EXCLUSIVE MODE;
ROLLBACK;
VACUUM refused;
ANALYZE refused;
REINDEX TABLE refused;
CLUSTER refused;
NOTIFY refused;
LISTEN refused;
EXPLAIN ANALYZE INSERT INTO refused VALUES (5, 'x');
SELECT pg_current_xact_id();
SELECT pg_notify('refused', 'x');
SELECT lo_create(0);

-- Through prepared statements.
PREPARE refused_insert AS INSERT INTO refused VALUES (6, 'x');
EXECUTE refused_insert;
DEALLOCATE ALL;

-- Not even in part: the write comes second, or first.
SELECT 'read' AS r \; INSERT INTO refused VALUES (7, 'x');
INSERT INTO refused VALUES (8, 'x') \; SELECT 'read' AS r;

-- In a transaction the block fails as any block does.
BEGIN;
SELECT count(*) FROM refused;
INSERT INTO refused VALUES (9, 'x');
SELECT 1;
COMMIT;
SELECT count(*) FROM refused;

-- rdonly the same.
SET __neki.target = 'rdonly';
INSERT INTO refused VALUES (10, 'x');
SELECT nextval('refused_seq');
SELECT * FROM refused FOR UPDATE;
CREATE TABLE refused_7 (id int);

-- The primary shows that nothing arrived.
SET __neki.target = 'primary';
\set VERBOSITY default
SELECT * FROM refused ORDER BY id;
SELECT last_value, is_called FROM refused_seq;
SELECT relname FROM pg_class WHERE relname LIKE 'refused%' AND relkind IN ('r', 'v') ORDER BY 1;
SELECT count(*) FROM pg_roles WHERE rolname = 'regress_refused';
DROP FUNCTION refused_func();
DROP PROCEDURE refused_proc();
DROP SEQUENCE refused_seq;
DROP TABLE refused;
