#!/usr/bin/env bash
# pgbench in every query mode, with kept connections and new ones, and its books balanced at the end.
set -euo pipefail
mode=${1:-postgres}
trap 'rm -f "$script"' EXIT
script=$(mktemp)
sql() { psql -X -qAt -v ON_ERROR_STOP=1 "$@"; }
# A thread for each client: pgbench connects and prepares without looking at its other clients, who may hold the pool.
bench() { pgbench -n "$@" >/dev/null 2>"$script.err" || { cat "$script.err" >&2; exit 1; }; rm -f "$script.err"; }

sql -c 'DROP SCHEMA IF EXISTS drv_pgbench CASCADE' -c 'CREATE SCHEMA drv_pgbench' 2>/dev/null
export PGOPTIONS='-c search_path=drv_pgbench'
pgbench -q -i -s 1 -I dtGvp >/dev/null 2>&1
for m in simple extended prepared; do
  bench -M $m -c 6 -j 6 -t 25
  bench -M $m -c 4 -j 4 -t 3 -C
done
cat >"$script" <<'SQL'
\set id random(1, 1000)
BEGIN;
SAVEPOINT s;
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :id;
ROLLBACK TO s;
SELECT 1 / count(*) FROM pgbench_accounts WHERE aid = :id;
COMMIT;
SQL
bench -M prepared -c 6 -j 6 -t 20 -f "$script"
books=$(sql -c "SELECT count(*), (SELECT sum(abalance) FROM pgbench_accounts) = sum(delta), (SELECT sum(tbalance) FROM pgbench_tellers) = sum(delta),
  (SELECT sum(bbalance) FROM pgbench_branches) = sum(delta) FROM pgbench_history")
[ "$books" = '486|t|t|t' ] || { echo "the books: $books" >&2; exit 1; }

if [ "$mode" = neki ]; then
  cat >"$script" <<'SQL'
\set id random(1, 1000)
SELECT 1 / (pg_is_in_recovery() AND count(*) = 1)::int FROM pgbench_accounts WHERE aid = :id;
SQL
  export PGOPTIONS='-c search_path=drv_pgbench -c __neki.target=replica -c __neki.replica_consistency=bounded:30s'
  for m in simple extended prepared; do
    bench -M $m -c 6 -j 6 -t 25 -f "$script"
  done
fi
unset PGOPTIONS
sql -c 'DROP SCHEMA drv_pgbench CASCADE' 2>/dev/null
