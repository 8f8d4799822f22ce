#!/usr/bin/env bash
# Runs a suite of others through a gateway, from a copy that you have fetched, and shows what does not pass.
#   . neki-data/dev.env && scripts/suites.sh pgx FOLDER [go test flags]     tests of jackc/pgx
#   . neki-data/dev.env && scripts/suites.sh node FOLDER                    integration files of brianc/node-postgres;
#                                         NODE_PATH: where its dependencies are installed
#   . neki-data/dev.env && scripts/suites.sh core FOLDER PORT [flags]       src/test/regress of PostgreSQL, compared
#                                                                           with the instance on PORT
# The PG* variables say where; with those of a plain Postgres it shows what the suite does there. It makes databases
# pgx_test, node_test and regression.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

die() { echo "suites: $*" >&2; exit 1; }
sql() { psql -X -qAt -d "$1" -c "$2"; }
fresh() { sql postgres "DROP DATABASE IF EXISTS $1 WITH (FORCE)"; sql postgres "CREATE DATABASE $1 TEMPLATE template0"; }

pgx() {
  fresh pgx_test
  for need in 'CREATE EXTENSION hstore' 'CREATE EXTENSION ltree' 'CREATE DOMAIN uint64 AS numeric(20,0)'; do sql pgx_test "$need"; done
  local conn="host=$PGHOST port=$PGPORT user=$PGUSER password='$PGPASSWORD' dbname=pgx_test sslmode=disable"
  cd "$1"
  env -u PGHOST -u PGPORT -u PGUSER -u PGPASSWORD -u PGDATABASE -u PGSSLMODE -u PGSSLROOTCERT \
    PGX_TEST_DATABASE="$conn" PGX_TEST_PGBOUNCER_CONN_STRING="$conn" go test -p 1 -count=1 -timeout 30m "${@:2}" ./...
}

node_postgres() {
  fresh node_test
  export NODE_PATH=${NODE_PATH:-$root/.cache/drivers/node/node_modules} PGDATABASE=node_test PGSSLMODE=disable
  unset PGSSLROOTCERT
  cd "$1/packages/pg"
  local file failed=() passed=0
  while read -r file; do
    if timeout 60 node "$file" >/tmp/suites-node.$$ 2>&1; then passed=$((passed + 1)); else
      failed+=("$file")
      tail -n 5 /tmp/suites-node.$$
    fi
  done < <(find test/integration -name '*-tests.js' | sort)
  rm -f /tmp/suites-node.$$
  printf 'failed: %s\n' "${failed[@]}"
  echo "$passed files passed, ${#failed[@]} failed"
  [ ${#failed[@]} -eq 0 ]
}

core() {
  [ $# -ge 2 ] || die "core needs the folder and the port of an instance"
  PGDATABASE=regression go run ./regress/differential -core -dir "$1" -schedule "$1/parallel_schedule" -libdir "$1" \
    -out "${OUT:-.cache/core}" -fresh postgres -direct "PGPORT=$2 PGSSLMODE=prefer" "${@:3}"
}

[ $# -ge 2 ] || die "which suite (pgx, node or core), and where is it?"
[ -n "${PGPORT:-}" ] || die "PG* variables say which server; see the head of this script"
case $1 in
  pgx | core) "$@" ;;
  node) node_postgres "${@:2}" ;;
  *) die "unknown suite $1" ;;
esac
