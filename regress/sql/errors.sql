-- Errors and notices reach the client with every field. Every line must be as plain Postgres answers it.
CREATE TABLE err (id int PRIMARY KEY, v text NOT NULL, n int CHECK (n > 0), u int UNIQUE);
INSERT INTO err VALUES (1, 'one', 1, 1);

-- Positions.
SELEKT 1;
SELECT 1 FORM err;
SELECT
  id,
  nothing
FROM err;
SELECT * FROM nowhere;
SELECT * FROM no_schema.err;
SELECT no_function(1);
SELECT v + 1 FROM err;
SELECT 'ein Täßchen', nothing FROM err;
/* a comment */ SELECT /* another */ nothing FROM err -- and one more
;
SELECT 'unterminated;
';
SELECT "unterminated;
";
SELECT $$unterminated
$$;
SELECT 1);
INSERT INTO err (id, nothing) VALUES (2, 'x');
SELECT count(*) FROM err GROUP BY v HAVING nothing > 1;
SELECT e.id FROM err;
SELECT x.id FROM err AS e;
SELECT id FROM err a JOIN err b ON a.id = b.id;
SELECT 1 \; SELECT nothing FROM err;

-- Constraints.
INSERT INTO err VALUES (1, 'two', 1, 2);
INSERT INTO err VALUES (2, 'two', 1, 1);
INSERT INTO err VALUES (2, NULL, 1, 2);
INSERT INTO err VALUES (2, 'two', 0, 2);
INSERT INTO err VALUES (2);
CREATE TABLE err_child (id int REFERENCES err);
INSERT INTO err_child VALUES (9);
INSERT INTO err_child VALUES (1);
DELETE FROM err WHERE id = 1;
DROP TABLE err;
CREATE DOMAIN err_positive AS int CHECK (VALUE > 0);
SELECT (-1)::err_positive;

-- Values.
SELECT 1 / 0;
SELECT 'x'::int;
SELECT 99999999999::int;
SELECT '2024-02-30'::date;
SELECT 'maybe'::bool;
SELECT '{1,2'::int[];
SELECT '{"a":}'::json;
SELECT CAST(300 AS "char"), 70000::int2;
SELECT sqrt(-1);
SELECT ln(0);
SELECT (SELECT id FROM (VALUES (1), (2)) t(id));
SELECT substring('x' FROM 1 FOR -1);
SELECT E'\xff';
SELECT chr(0);
SELECT '\x0g'::bytea;
SELECT U&'\00zz';

-- Limits and rights.
SET statement_timeout = '50ms';
SELECT pg_sleep(5);
RESET statement_timeout;
CREATE ROLE regress_err_nobody;
SET ROLE regress_err_nobody;
SELECT * FROM err;
\set VERBOSITY terse
CREATE ROLE regress_err_other;
\set VERBOSITY default
RESET ROLE;
DROP ROLE regress_err_nobody;
CREATE TABLE err (id int);
CREATE TABLE IF NOT EXISTS err (id int);
DROP TABLE IF EXISTS err_none;
DROP TABLE err_none;

-- Messages of one's own, with all fields, and their order.
DO $$
BEGIN
  RAISE NOTICE 'first %', 1;
  RAISE WARNING 'second';
  RAISE INFO 'third';
  RAISE EXCEPTION 'the message' USING ERRCODE = 'NK999', DETAIL = 'the detail', HINT = 'the hint',
    COLUMN = 'c', CONSTRAINT = 'k', DATATYPE = 'd', TABLE = 't', SCHEMA = 's';
END $$;
\echo :LAST_ERROR_SQLSTATE :LAST_ERROR_MESSAGE
CREATE FUNCTION err_deep(int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE r int;
BEGIN
  IF $1 = 0 THEN RETURN 1 / $1; END IF;
  SELECT err_deep($1 - 1) INTO r;
  RETURN r;
END $$;
SELECT err_deep(2);
SELECT 1 AS before_the_error UNION ALL SELECT err_deep(0);
CREATE FUNCTION err_sql() RETURNS int LANGUAGE sql AS 'SELECT nothing';
CREATE FUNCTION err_notices(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1..n LOOP RAISE NOTICE 'notice %', i; END LOOP;
  RETURN n;
END $$;
SELECT err_notices(3);
SET client_min_messages = error;
SELECT err_notices(3);
RESET client_min_messages;
\set VERBOSITY terse
SELECT err_notices(1);
SELECT nothing FROM err;
\set VERBOSITY sqlstate
SELECT nothing FROM err;
INSERT INTO err VALUES (1, 'two', 1, 2);
SELECT * FROM nowhere;
\set VERBOSITY default

-- Rows before an error are sent.
SELECT 10 / (3 - i) AS q FROM generate_series(1, 4) i;
\set FETCH_COUNT 1
SELECT 10 / (3 - i) AS q FROM generate_series(1, 4) i;
\unset FETCH_COUNT

-- Prepared statements with errors.
PREPARE bad AS SELECT nothing FROM err;
PREPARE good(int) AS SELECT 1 / $1;
EXECUTE good(0);
EXECUTE good(1);
EXECUTE bad;
DEALLOCATE good;

-- Text that is nearly nothing.
;
;;
-- only a comment
/* only a comment */;
SELECT;
SELECT FROM err;

-- After all that the session is well.
SELECT 'well' AS session;
DROP FUNCTION err_deep(int), err_notices(int);
DROP DOMAIN err_positive;
DROP TABLE err_child, err;
