-- Transactions, cursors, COPY, large results and errors in every place.
BEGIN;
;
SELECT 1/0;
SELECT 1;
;
COMMIT;
SELECT 1 \; SELECT 2 \; SELECT 1/0 \; SELECT 3;
BEGIN \; SELECT 4 \; COMMIT \; SELECT 5;
DROP TABLE IF EXISTS diff_flow;
CREATE TABLE diff_flow (k int PRIMARY KEY, v text CHECK (v <> 'bad'));
COPY diff_flow FROM STDIN;
1	one
2	\N
3	a\tb
\.
COPY diff_flow FROM STDIN;
4	four
x	broken
5	five
\.
COPY diff_flow FROM STDIN (FORMAT csv, HEADER);
k,v
6,"quoted, ""so"""
\.
COPY diff_flow TO STDOUT (FORMAT csv, HEADER);
INSERT INTO diff_flow VALUES (1, 'twice') ON CONFLICT (k) DO UPDATE SET v = excluded.v RETURNING *;
INSERT INTO diff_flow VALUES (9, 'bad');
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT * FROM diff_flow ORDER BY k;
FETCH 2 FROM c;
MOVE ABSOLUTE 0 IN c;
FETCH ALL FROM c;
UPDATE diff_flow SET v = 'by cursor' WHERE CURRENT OF c;
COMMIT;
FETCH 1 FROM c;
\set FETCH_COUNT 3
SELECT i, repeat('x', 10) FROM generate_series(1, 10) i;
\unset FETCH_COUNT
\set AUTOCOMMIT off
INSERT INTO diff_flow VALUES (10, 'ten');
ROLLBACK;
\set AUTOCOMMIT on
SELECT count(*), max(length(v)) FROM diff_flow;
\set ON_ERROR_ROLLBACK on
BEGIN;
SELECT nonsense;
INSERT INTO diff_flow VALUES (11, 'eleven');
COMMIT;
\unset ON_ERROR_ROLLBACK
SELECT * FROM diff_flow WHERE k = 11;
\lo_import /dev/null
SELECT lo_unlink(:LASTOID);
SELECT 'SELECT ' || i FROM generate_series(1, 3) i \gexec
SELECT 1 AS a, 'x'::text AS b \gdesc
DO $$ BEGIN RAISE NOTICE 'a notice'; RAISE WARNING 'a warning' USING HINT = 'a hint', ERRCODE = '01ABC'; END $$;
DO $$ BEGIN RAISE EXCEPTION 'an error' USING DETAIL = 'a detail', TABLE = 'diff_flow', ERRCODE = 'UV123'; END $$;
\errverbose
DROP TABLE diff_flow;
