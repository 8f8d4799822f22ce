#!/usr/bin/env bash
# pg_dump and pg_restore of a schema that has some of everything: what is restored dumps to the same text.
set -euo pipefail
cd "$(dirname "$0")"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
sql() { psql -X -qAt -v ON_ERROR_STOP=1 "$@"; }
dump() { pg_dump --schema drv_shop --no-owner "$@"; }
# same compares two dumps but for the key that newer versions put into each.
same() { diff <(grep -v "^.\(un\)\?restrict " "$1") <(grep -v "^.\(un\)\?restrict " "$2") >&2; }

sql -c 'DROP SCHEMA IF EXISTS drv_shop CASCADE' 2>/dev/null
sql -f schema.sql
dump -f "$dir/before.sql"
for format in custom directory tar; do
  dump -F $format -f "$dir/dump.$format"
  sql -c 'DROP SCHEMA drv_shop CASCADE' 2>/dev/null
  jobs=1
  [ $format = tar ] || jobs=2
  pg_restore --exit-on-error --no-owner -j $jobs -d "$PGDATABASE" "$dir/dump.$format"
  dump -f "$dir/after.sql"
  same "$dir/before.sql" "$dir/after.sql"
done
sql -c 'DROP SCHEMA drv_shop CASCADE' 2>/dev/null
sql -f "$dir/before.sql" >/dev/null
dump -f "$dir/after.sql"
same "$dir/before.sql" "$dir/after.sql"

if [ "${1:-}" = neki ]; then # a dump of a standby is the same
  PGOPTIONS='-c __neki.target=replica -c __neki.replica_consistency=bounded:30s' dump -f "$dir/replica.sql"
  same "$dir/before.sql" "$dir/replica.sql"
fi
sql -c 'DROP SCHEMA drv_shop CASCADE' 2>/dev/null
