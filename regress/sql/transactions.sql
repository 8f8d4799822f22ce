-- Transaction blocks. Every line must be as plain Postgres answers it.
CREATE TABLE tx (id int PRIMARY KEY, v text);

-- Commit and roll back.
BEGIN;
INSERT INTO tx VALUES (1, 'kept');
COMMIT;
START TRANSACTION;
INSERT INTO tx VALUES (2, 'gone');
ROLLBACK;
BEGIN WORK;
INSERT INTO tx VALUES (3, 'kept');
END;
BEGIN TRANSACTION;
INSERT INTO tx VALUES (4, 'gone');
ABORT;
SELECT * FROM tx ORDER BY id;

-- Warnings, not errors.
COMMIT;
ROLLBACK;
BEGIN;
BEGIN;
COMMIT;
SAVEPOINT outside;
SET LOCAL work_mem = '4MB';
SET TRANSACTION READ ONLY;
LOCK TABLE tx;

-- A failed block takes nothing but its end.
BEGIN;
INSERT INTO tx VALUES (5, 'gone');
INSERT INTO tx VALUES (1, 'twice');
SELECT 1;
INSERT INTO tx VALUES (6, 'gone');
SHOW work_mem;
SET work_mem = '4MB';
SAVEPOINT no;
PREPARE p AS SELECT 1;
COMMIT;
SELECT count(*) FROM tx;

-- Savepoints.
BEGIN;
INSERT INTO tx VALUES (10, 'kept');
SAVEPOINT a;
INSERT INTO tx VALUES (11, 'gone');
SAVEPOINT b;
INSERT INTO tx VALUES (12, 'gone');
ROLLBACK TO SAVEPOINT a;
INSERT INTO tx VALUES (13, 'kept');
SAVEPOINT a;
SELECT 1 / 0;
ROLLBACK TO a;
RELEASE SAVEPOINT a;
RELEASE a;
ROLLBACK TO nowhere;
ROLLBACK TO b;
ROLLBACK;
BEGIN;
SAVEPOINT x;
INSERT INTO tx VALUES (14, 'kept');
RELEASE x;
RELEASE x;
COMMIT;
SELECT * FROM tx ORDER BY id;
BEGIN;
SAVEPOINT s;
INSERT INTO tx VALUES (1, 'twice');
ROLLBACK TO s;
INSERT INTO tx VALUES (15, 'after an error');
COMMIT;
SELECT * FROM tx WHERE id = 15;

-- Chains.
BEGIN ISOLATION LEVEL REPEATABLE READ;
INSERT INTO tx VALUES (20, 'kept');
COMMIT AND CHAIN;
SHOW transaction_isolation;
INSERT INTO tx VALUES (21, 'gone');
ROLLBACK AND CHAIN;
SHOW transaction_isolation;
INSERT INTO tx VALUES (22, 'kept');
COMMIT AND NO CHAIN;
SHOW transaction_isolation;
COMMIT AND CHAIN;
SELECT id FROM tx WHERE id BETWEEN 20 AND 29 ORDER BY id;

-- Modes.
BEGIN READ ONLY;
INSERT INTO tx VALUES (30, 'refused');
ROLLBACK;
BEGIN;
SET TRANSACTION READ ONLY;
SHOW transaction_read_only;
SELECT count(*) FROM tx;
SET TRANSACTION READ WRITE;
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE;
SHOW transaction_isolation;
SHOW transaction_deferrable;
COMMIT;
BEGIN;
SELECT 1;
SET TRANSACTION ISOLATION LEVEL SERIALIZABLE;
ROLLBACK;
SET default_transaction_read_only = on;
INSERT INTO tx VALUES (31, 'refused');
BEGIN READ WRITE;
INSERT INTO tx VALUES (31, 'kept');
COMMIT;
RESET default_transaction_read_only;

-- Several statements in one message are one transaction.
INSERT INTO tx VALUES (40, 'gone') \; SELECT 1 / 0;
SELECT count(*) FROM tx WHERE id = 40;
INSERT INTO tx VALUES (41, 'kept') \; SELECT id FROM tx WHERE id = 41;
INSERT INTO tx VALUES (42, 'kept') \; COMMIT \; SELECT 1 / 0;
SELECT count(*) FROM tx WHERE id = 42;
BEGIN \; INSERT INTO tx VALUES (43, 'kept') \; COMMIT \; INSERT INTO tx VALUES (44, 'gone') \; SELECT 1 / 0;
SELECT id FROM tx WHERE id IN (43, 44);
INSERT INTO tx VALUES (45, 'kept') \; BEGIN \; INSERT INTO tx VALUES (46, 'kept');
COMMIT;
SELECT id FROM tx WHERE id IN (45, 46) ORDER BY id;
INSERT INTO tx VALUES (47, 'gone') \; ROLLBACK;
SELECT count(*) FROM tx WHERE id = 47;
SELECT 1 \; SAVEPOINT implicit;
SELECT 1 AS one \; \; SELECT 2 AS two \; ;
SELECT 1 \; SELECT 2 FROM nowhere \; SELECT 3;
SELECT 1 \; SELEKT 2 \; SELECT 3;
SET LOCAL work_mem = '8MB' \; SHOW work_mem;
SHOW work_mem;
VACUUM tx \; SELECT 1;

-- What may not stand in a block.
BEGIN;
VACUUM tx;
ROLLBACK;
BEGIN;
CREATE DATABASE regress_never;
ROLLBACK;

-- Cursors live as long as their block.
DECLARE outside CURSOR FOR SELECT 1;
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT id FROM tx WHERE id < 20 ORDER BY id;
FETCH FIRST FROM c;
FETCH 2 FROM c;
FETCH LAST FROM c;
FETCH PRIOR FROM c;
FETCH ABSOLUTE 2 FROM c;
FETCH RELATIVE -1 FROM c;
MOVE 3 IN c;
UPDATE tx SET v = 'by cursor' WHERE id = 1;
CLOSE c;
FETCH c;
ROLLBACK;
BEGIN;
DECLARE u CURSOR FOR SELECT * FROM tx WHERE id = 1 FOR UPDATE;
FETCH u;
UPDATE tx SET v = 'at the cursor' WHERE CURRENT OF u RETURNING *;
COMMIT;

-- Deferred constraints speak at commit.
CREATE TABLE tx_child (id int REFERENCES tx DEFERRABLE INITIALLY DEFERRED);
BEGIN;
INSERT INTO tx_child VALUES (999);
SELECT count(*) FROM tx_child;
COMMIT;
SELECT count(*) FROM tx_child;
BEGIN;
SET CONSTRAINTS ALL IMMEDIATE;
INSERT INTO tx_child VALUES (999);
ROLLBACK;

-- Procedures that commit.
CREATE PROCEDURE tx_loop(n int) LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1..n LOOP
    INSERT INTO tx VALUES (100 + i, 'loop');
    IF i % 2 = 0 THEN COMMIT; ELSE ROLLBACK; END IF;
  END LOOP;
END $$;
CALL tx_loop(4);
SELECT id FROM tx WHERE id > 100 ORDER BY id;
BEGIN;
CALL tx_loop(1);
ROLLBACK;

-- COPY inside a block.
BEGIN;
COPY tx FROM STDIN;
200	copied
201	copied
\.
COPY (SELECT * FROM tx WHERE id >= 200 ORDER BY id) TO STDOUT;
ROLLBACK;
COPY tx FROM STDIN (DELIMITER '|', NULL '');
202|other, delimiter
203|
\.
SELECT id, v, v IS NULL AS is_null FROM tx WHERE id >= 200 ORDER BY id;
COPY tx FROM STDIN;
204	good
205	bad	too many
\.
SELECT count(*) FROM tx WHERE id >= 204;
SELECT 'after a failed COPY' AS still_here;

-- Locks are released at the end.
BEGIN;
LOCK TABLE tx IN SHARE MODE;
SELECT mode FROM pg_locks WHERE relation = 'tx'::regclass AND pid = pg_backend_pid() AND mode = 'ShareLock';
COMMIT;
BEGIN;
SELECT pg_advisory_xact_lock(77);
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 77;
COMMIT;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 77;

DROP PROCEDURE tx_loop(int);
DROP TABLE tx_child, tx;
