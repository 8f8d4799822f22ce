#!/usr/bin/env bash
# The part of bare.sh that runs in the bare system: what README.md says under "Start", and what a user does next.
set -euo pipefail
cd /src/neki

say() { printf 'bare: %s\n' "$*" >&2; }

# users prints the user of each process of a program; a bare system has no ps.
users() {
  local dir
  for dir in /proc/[0-9]*; do
    if [ "$(cat "$dir/comm" 2>/dev/null)" = "$1" ]; then stat -c %U "$dir"; fi
  done
}

make run DEV="--listen 127.0.0.1:16432 --http 127.0.0.1:18432" &
run=$!
for _ in $(seq 1200); do # twenty minutes: packages, and the C parser where it is not in the cache
  [ -e neki-data/dev.env ] && break
  kill -0 $run 2>/dev/null || { say "make run has ended"; wait $run; }
  sleep 1
done
. neki-data/dev.env
psql -X -v ON_ERROR_STOP=1 <<SQL
CREATE TABLE greetings (id int PRIMARY KEY, text text);
INSERT INTO greetings VALUES (1, 'hello');
SET __neki.replica_consistency = 'session';
SET __neki.target = 'replica';
SELECT text, pg_is_in_recovery() FROM greetings;
SQL
PGOPTIONS='-c __neki.target=REPLICA' psql -X -qAt -c 'SELECT pg_is_in_recovery()' | grep -qx t
[ "$(psql -X -qAt -c "SELECT count(*) FROM neki.replicas WHERE eligible")" = 4 ]
[ "$(users postgres | sort -u)" = postgres ] || { say "Postgres runs as: $(users postgres | sort -u)"; exit 1; }
for dir in /proc/[0-9]*; do
  if [ "$(cat "$dir/comm" 2>/dev/null)" = neki ]; then kill -INT "${dir#/proc/}"; fi
done
wait $run
[ -z "$(users postgres)" ] || { say "a Postgres was left"; exit 1; }
say "make run works here, and ends"
