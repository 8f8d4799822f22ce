-- What a session keeps from statement to statement. Every line must be as plain Postgres answers it.
CREATE TABLE state (id int PRIMARY KEY, v text);
INSERT INTO state VALUES (1, 'one'), (2, 'two');

-- Parameters.
SET work_mem = '5MB';
SHOW work_mem;
SET search_path = pg_catalog;
SHOW search_path;
SELECT count(*) FROM state;
RESET search_path;
SELECT count(*) FROM state;
SET TIME ZONE 'America/New_York';
SHOW TimeZone;
SELECT timestamptz '2024-07-01 12:00:00+00';
SET TIME ZONE INTERVAL '+02:30' HOUR TO MINUTE;
SHOW TimeZone;
SELECT timestamptz '2024-07-01 12:00:00+00';
SET TIME ZONE LOCAL;
SET DateStyle = 'German';
SELECT date '2024-07-01';
RESET DateStyle;
SET IntervalStyle TO 'iso_8601';
SELECT interval '1 day 2 hours';
RESET IntervalStyle;
SET extra_float_digits = 0;
SELECT 0.1::float8 + 0.2::float8;
RESET extra_float_digits;
SET bytea_output = 'escape';
SELECT '\x410042'::bytea;
RESET bytea_output;
SET NAMES 'LATIN1';
SHOW client_encoding;
SET NAMES 'UTF8';
SHOW client_encoding;
SET my.own = 'value with ''quotes'' and \ backslash';
SHOW my.own;
SELECT current_setting('my.own'), current_setting('my.none', true) IS NULL;
SELECT set_config('my.own', 'by function', false), set_config('my.other', 'too', false);
SHOW my.own;
SHOW my.other;
SELECT set_config('work_mem', (4 + 4) || 'MB', false);
SHOW work_mem;
SET work_mem = 'nonsense';
SET no_such_parameter = 1;
SHOW work_mem;
SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ;
SHOW transaction_isolation;
SHOW default_transaction_isolation;
RESET default_transaction_isolation;
SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY;
INSERT INTO state VALUES (3, 'refused');
SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE;

-- Transactions and settings.
BEGIN;
SET work_mem = '9MB';
SHOW work_mem;
ROLLBACK;
SHOW work_mem;
BEGIN;
SET work_mem = '9MB';
COMMIT;
SHOW work_mem;
BEGIN;
SET LOCAL work_mem = '10MB';
SHOW work_mem;
COMMIT;
SHOW work_mem;
SET LOCAL work_mem = '10MB';
SHOW work_mem;
BEGIN;
SET work_mem = '11MB';
SAVEPOINT a;
SET work_mem = '12MB';
SET LOCAL my.own = 'local';
SHOW work_mem;
SHOW my.own;
ROLLBACK TO a;
SHOW work_mem;
SHOW my.own;
RELEASE a;
COMMIT;
SHOW work_mem;
BEGIN;
SET work_mem = '13MB';
SELECT 1 / 0;
COMMIT;
SHOW work_mem;
SELECT set_config('work_mem', '14MB', true);
SHOW work_mem;
BEGIN;
SELECT set_config('work_mem', '14MB', true);
SHOW work_mem;
END;
SHOW work_mem;
SET work_mem = '15MB' \; SELECT 1 / 0 \; SET work_mem = '16MB';
SHOW work_mem;

-- RESET ALL, DISCARD ALL.
RESET ALL;
SHOW work_mem;
SELECT current_setting('my.own', true);
SET work_mem = '5MB';
PREPARE q AS SELECT 1;
CREATE TEMP TABLE scratch (id int);
DISCARD ALL;
SHOW work_mem;
EXECUTE q;
SELECT * FROM scratch;
BEGIN;
DISCARD ALL;
ROLLBACK;

-- Prepared statements.
PREPARE one(int) AS SELECT v FROM state WHERE id = $1;
PREPARE one(int) AS SELECT 1;
EXECUTE one(1);
EXECUTE one(2);
EXECUTE one('2');
EXECUTE one;
EXECUTE one(1, 2);
PREPARE typeless AS SELECT $1 || 'x', $2 + 1;
EXECUTE typeless('a', 2);
SELECT name, statement, parameter_types FROM pg_prepared_statements ORDER BY name;
BEGIN;
PREPARE in_tx AS SELECT 'in transaction';
ROLLBACK;
EXECUTE in_tx;
CREATE TABLE state_from AS EXECUTE one(1);
SELECT * FROM state_from;
DROP TABLE state_from;
EXPLAIN (COSTS OFF) EXECUTE one(1);
DEALLOCATE one;
EXECUTE one(1);
DEALLOCATE one;
DEALLOCATE PREPARE in_tx;
DEALLOCATE ALL;
SELECT count(*) FROM pg_prepared_statements;
-- The result type may change under a statement prepared in SQL: Postgres says so.
PREPARE all_columns AS SELECT * FROM state ORDER BY id;
EXECUTE all_columns;
ALTER TABLE state ADD COLUMN extra int;
EXECUTE all_columns;
ALTER TABLE state DROP COLUMN extra;
DEALLOCATE all_columns;

-- Temporary objects.
CREATE TEMP TABLE scratch (id int) ON COMMIT PRESERVE ROWS;
INSERT INTO scratch SELECT generate_series(1, 3);
SELECT count(*) FROM scratch;
BEGIN;
CREATE TEMP TABLE brief (id int) ON COMMIT DROP;
INSERT INTO brief VALUES (1);
SELECT count(*) FROM brief;
COMMIT;
SELECT count(*) FROM brief;
CREATE TEMP VIEW scratch_view AS SELECT max(id) FROM scratch;
SELECT * FROM scratch_view;
CREATE TEMP SEQUENCE scratch_seq;
SELECT nextval('scratch_seq'), currval('scratch_seq');
SELECT currval('scratch_seq'), lastval();
DISCARD TEMP;
SELECT count(*) FROM scratch;
CREATE FUNCTION pg_temp.twice(int) RETURNS int LANGUAGE sql AS 'SELECT $1 * 2';
SELECT pg_temp.twice(21);
DISCARD SEQUENCES;
SELECT lastval();

-- Cursors that outlive their transaction.
BEGIN;
DECLARE held CURSOR WITH HOLD FOR SELECT id FROM state ORDER BY id;
DECLARE gone CURSOR FOR SELECT id FROM state ORDER BY id;
COMMIT;
FETCH 1 FROM held;
FETCH 1 FROM held;
FETCH 1 FROM gone;
MOVE BACKWARD ALL IN held;
FETCH ALL FROM held;
SELECT name, is_holdable FROM pg_cursors;
CLOSE held;
CLOSE held;

-- Advisory locks of the session.
SELECT pg_advisory_lock(42);
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 42 AND pid = pg_backend_pid();
SELECT pg_advisory_unlock(42);
SELECT pg_advisory_unlock(42);
SELECT pg_try_advisory_lock(43), pg_try_advisory_lock_shared(44);
SELECT pg_advisory_unlock_all();
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();

-- Roles.
CREATE ROLE regress_state_reader;
GRANT SELECT ON state TO regress_state_reader;
SET ROLE regress_state_reader;
SELECT current_user;
SELECT count(*) FROM state;
DELETE FROM state;
BEGIN;
RESET ROLE;
SELECT current_user = session_user AS myself;
ROLLBACK;
SELECT current_user;
RESET ROLE;
SELECT current_user = session_user AS myself;
BEGIN;
SET LOCAL ROLE regress_state_reader;
SELECT current_user;
COMMIT;
SELECT current_user = session_user AS myself;
SET ROLE NONE;
SET SESSION AUTHORIZATION regress_state_reader;
SELECT session_user, current_user;
RESET SESSION AUTHORIZATION;
SELECT current_user = session_user AS myself;
SET ROLE no_such_role;
DROP OWNED BY regress_state_reader;
DROP ROLE regress_state_reader;

-- Random numbers from a seed.
SELECT setseed(0.5);
SELECT random() AS first \gset
SELECT setseed(0.5);
SELECT random() = :first AS same;

-- The pid stays.
SELECT pg_backend_pid() AS pid \gset
SELECT pg_backend_pid() = :pid AS same;

-- A new connection knows nothing of all this.
SET work_mem = '6MB';
SET my.own = 'left behind';
PREPARE left_behind AS SELECT 1;
CREATE TEMP TABLE left_behind (id int);
SELECT pg_advisory_lock(45);
\c -
SHOW work_mem;
SELECT current_setting('my.own', true) IS NULL AS unknown;
EXECUTE left_behind;
SELECT * FROM left_behind;
SELECT count(*) FROM pg_prepared_statements;
DROP TABLE state;
