#!/usr/bin/env bash
# Installs what neki's tasks need from the system, on Debian and Ubuntu; where all is there it does nothing.
#   scripts/setup.sh postgres      server binaries of PostgreSQL 15 or newer      (make run)
#   scripts/setup.sh test          pg_regress, psql and the drivers of regress/   (make test)
#   scripts/setup.sh bench         pgbench and PgBouncer                          (make bench)
set -euo pipefail
cd "$(dirname "$0")/.."

oldest=15
drivers=.cache/drivers

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

major() { "$1" --version 2>/dev/null | sed -n 's/.* \([0-9][0-9]*\).*/\1/p'; }

# server_bin prints the directory of the newest server binaries that are new enough.
server_bin() {
  local candidate best="" best_major=0 version
  for candidate in ${NEKI_POSTGRES_BIN:+"$NEKI_POSTGRES_BIN/postgres"} "$(command -v postgres || true)" /usr/lib/postgresql/*/bin/postgres; do
    [ -x "$candidate" ] || continue
    version=$(major "$candidate")
    if [ "${version:-0}" -ge "$oldest" ] && [ "$version" -gt "$best_major" ]; then
      best=$(dirname "$(readlink -f "$candidate")") best_major=$version # PATH may hold a link to it alone
    fi
  done
  [ -n "$best" ] && echo "$best"
}

# pg_regress_bin prints the path of pg_regress, which Debian keeps outside PATH.
pg_regress_bin() {
  local found
  for found in ${NEKI_PG_REGRESS:+"$NEKI_PG_REGRESS"} /usr/lib/postgresql/*/lib/pgxs/src/test/regress/pg_regress; do
    [ -x "$found" ] && { echo "$found"; return 0; }
  done
  return 1
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
    die "root rights are needed for: $*"
  fi
}

updated=""
update() {
  [ -z "$updated" ] || return 0
  say "reading the package lists"
  as_root apt-get update -qq
  updated=yes
}

# candidate prints the version of a package that apt would install, nothing when it knows none.
candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([^(].*\)$/\1/p'; }

install() {
  command -v apt-get >/dev/null || die "this is not Debian or Ubuntu; please install yourself: $*"
  local package
  for package in "$@"; do
    [ -n "$(candidate "$package")" ] || update
  done
  say "installing $*"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
    { updated="" && update && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
}

# without_main_cluster runs an installation without Debian's habit of creating and starting a cluster of its own.
without_main_cluster() {
  local conf=/etc/postgresql-common/createcluster.conf line='create_main_cluster = false # neki setup'
  install postgresql-common
  as_root sh -c "printf '%s\n' '$line' >>$conf"
  trap "as_root sed -i '/# neki setup\$/d' $conf" EXIT
  "$@"
  as_root sed -i '/# neki setup$/d' "$conf"
  trap - EXIT
}

need_postgres() {
  server_bin >/dev/null && return
  command -v apt-get >/dev/null || die "no PostgreSQL $oldest or newer found (looked at \$NEKI_POSTGRES_BIN, PATH and
/usr/lib/postgresql/*/bin), and this is not Debian or Ubuntu: please install its server package, or name its
directory in NEKI_POSTGRES_BIN"
  [ -n "$(candidate postgresql)" ] || update
  local version
  version=$(candidate postgresql | sed 's/[^0-9].*//')
  [ "${version:-0}" -ge "$oldest" ] || die "this release has only PostgreSQL ${version:-none}; neki needs $oldest or newer
(the PostgreSQL project's own apt repository has it), or name its directory in NEKI_POSTGRES_BIN"
  without_main_cluster install "postgresql-$version" postgresql-contrib
  server_bin >/dev/null || die "postgresql-$version was installed, but no server binaries were found"
}

need_regress() {
  pg_regress_bin >/dev/null && return
  local version
  version=$(major "$(server_bin)/postgres")
  install "postgresql-client-$version" # holds pg_regress on Debian 12
  pg_regress_bin >/dev/null || install "postgresql-server-dev-$version" # holds it elsewhere
  pg_regress_bin >/dev/null || die "pg_regress was not found under /usr/lib/postgresql/*/lib/pgxs; name it in NEKI_PG_REGRESS"
}

# missing prints those of the packages that are not installed.
missing() {
  local package
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
  done
}

need_drivers() {
  local packages=()
  mapfile -t packages < <(missing python3 python3-psycopg python3-psycopg2 python3-asyncpg python3-sqlalchemy \
    ruby-pg libdbd-pg-perl php-cli php-pgsql odbc-postgresql unixodbc python3-pyodbc libpostgresql-jdbc-java)
  command -v javac >/dev/null || packages+=(default-jdk-headless)
  command -v node >/dev/null || packages+=(nodejs)
  command -v npm >/dev/null || packages+=(npm)
  [ -x "$(server_bin)/pgbench" ] && [ -x "$(server_bin)/pg_dump" ] || packages+=("postgresql-client-$(major "$(server_bin)/postgres")" postgresql-contrib)
  [ ${#packages[@]} -eq 0 ] || install "${packages[@]}"
  if ! cmp -s regress/drivers/node/package-lock.json "$drivers/node/package-lock.json" || [ ! -d "$drivers/node/node_modules/pg" ]; then
    say "installing node drivers into $drivers/node"
    rm -rf "$drivers/node"
    mkdir -p "$drivers/node"
    cp regress/drivers/node/package.json "$drivers/node/"
    (cp regress/drivers/node/package-lock.json "$drivers/node/" && cd "$drivers/node" && npm ci --silent --no-audit --no-fund) ||
      { rm -f "$drivers/node/package-lock.json"; die "npm could not install the node drivers"; }
  fi
}

need_bench() {
  [ -x "$(server_bin)/pgbench" ] || command -v pgbench >/dev/null || install "postgresql-client-$(major "$(server_bin)/postgres")" postgresql-contrib
  command -v openssl >/dev/null || install openssl
  if ! command -v pgbouncer >/dev/null && [ ! -x /usr/sbin/pgbouncer ]; then
    install pgbouncer
    # The package starts a service of its own; the benchmark starts the process it measures.
    as_root service pgbouncer stop >/dev/null 2>&1 || true
  fi
}

[ $# -gt 0 ] || set -- postgres
for part in "$@"; do
  case $part in
    postgres) need_postgres ;;
    test)
      need_regress
      need_drivers
      ;;
    bench) need_bench ;;
    *) die "unknown part $part: postgres, test or bench" ;;
  esac
done
