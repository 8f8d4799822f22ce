#!/usr/bin/env bash
# What psql itself does with a database: variables, PREPARE, \gexec, \gdesc, COPY, rows in portions, notifications.
set -euo pipefail
mode=${1:-postgres}
sql() { psql -X -qAt -v ON_ERROR_STOP=1 "$@"; }
expect() { [ "$1" = "$2" ] || { printf 'got  %s\nwant %s\n' "$1" "$2" >&2; exit 1; }; }

sql -c 'DROP TABLE IF EXISTS drv_psql' -c 'CREATE TABLE drv_psql (id int PRIMARY KEY, v text)' 2>/dev/null
seq 100 2099 | sed 's/$/,copied/' | sql -c '\copy drv_psql FROM STDIN (FORMAT csv)'
expect "$(sql -c '\copy (SELECT id FROM drv_psql ORDER BY id) TO STDOUT' | md5sum)" "$(seq 100 2099 | md5sum)"
expect "$(sql -v FETCH_COUNT=100 -c 'SELECT id FROM drv_psql ORDER BY id' | md5sum)" "$(seq 100 2099 | md5sum)"

expect "$(sql 2>/dev/null <<'SQL' | sed 's/PID [0-9]*/PID N/'
\set ON_ERROR_ROLLBACK on
PREPARE by_id (int) AS SELECT v FROM drv_psql WHERE id = $1;
BEGIN;
DELETE FROM drv_psql WHERE id > 101;
\set ON_ERROR_STOP off
INSERT INTO drv_psql VALUES (100, 'twice');
\set ON_ERROR_STOP on
\echo :LAST_ERROR_SQLSTATE
INSERT INTO drv_psql VALUES (1, 'one');
COMMIT;
BEGIN;
EXECUTE by_id (1);
COMMIT;
EXECUTE by_id (100);
SELECT format('SELECT %s + 1', i) FROM generate_series(1, 3) i \gexec
SELECT id, v FROM drv_psql \gdesc
SELECT count(*) AS rows FROM drv_psql \gset
\echo :rows
LISTEN drv_psql;
NOTIFY drv_psql, 'hello';
SELECT 'after' \g | cut -c1-5
SET statement_timeout = 50;
\set ON_ERROR_STOP off
SELECT pg_sleep(10);
\echo :LAST_ERROR_SQLSTATE
SQL
)" "$(cat <<'TEXT'
23505
one
copied
2
3
4
id|integer
v|text
3
Asynchronous notification "drv_psql" with payload "hello" received from server process with PID N.
after
57014
TEXT
)"

if [ "$mode" = neki ]; then
  export PGOPTIONS='-c __neki.target=replica -c __neki.replica_consistency=bounded:30s'
  expect "$(sql -c 'SELECT pg_is_in_recovery(), count(*) FROM drv_psql' -c 'SELECT pg_is_in_recovery()')" "$(printf 't|3\nt')"
  expect "$(sql -c "INSERT INTO drv_psql VALUES (9, 'refused')" -v VERBOSITY=sqlstate 2>&1 | head -1)" 'ERROR:  25006'
  unset PGOPTIONS
fi
sql -c 'DROP TABLE drv_psql'
