#!/usr/bin/env bash
# Installs what neki's tasks need from the system, on Debian and Ubuntu; where all is there it does nothing.
#   scripts/setup.sh postgres      server binaries of PostgreSQL 15 or newer      (make run)
#   scripts/setup.sh test          pg_regress, psql and the drivers of regress/   (make test)
#   scripts/setup.sh newer         PostgreSQL 17 in .cache, for tests of what the installed one can't do; none where it can't be had
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

# need_newer unpacks the server of a later Debian release into .cache, with the libraries that it was built for, and points its
# programs to those. What can't be had is left out: the tests that need it are skipped and say so.
newer=17 newer_release=trixie
need_newer() {
  local installed dir stamp
  installed=$(major "$(server_bin)/postgres")
  [ "${installed:-0}" -lt "$newer" ] || return 0
  dir=$PWD/.cache/postgresql-$newer stamp=$PWD/.cache/postgresql-$newer/.made-for
  [ "$(cat "$stamp" 2>/dev/null)" = "$dir" ] && return 0
  if ! command -v apt-get >/dev/null || [ "$(dpkg --print-architecture)" != amd64 ] || [ ! -r "$debian_keys" ]; then
    say "no PostgreSQL $newer for tests: it is taken from Debian's packages for amd64"
    return 0
  fi
  command -v patchelf >/dev/null || install patchelf
  say "fetching PostgreSQL $newer into $dir"
  rm -rf "$dir"
  mkdir -p .cache
  if ! unpack_newer "$dir" >"$dir.log" 2>&1; then
    say "no PostgreSQL $newer for tests: $(tail -1 "$dir.log")"
    rm -rf "$dir"
    return 0
  fi
  rm -f "$dir.log"
  echo "$dir" >"$stamp"
}

debian_keys=/usr/share/keyrings/debian-archive-keyring.gpg
newer_packages=(postgresql-$newer postgresql-client-$newer libc6 libgcc-s1 libstdc++6 libaudit1 libcap-ng0 libpam0g libcap2
  libsystemd0 zlib1g libzstd1 libssl3t64 libicu76 libsasl2-2 libldap2 liblzma5 libxml2 liblz4-1 libpq5 libkrb5support0
  libk5crypto3 libkeyutils1 libkrb5-3 libgssapi-krb5-2 libcom-err2 libreadline8t64 libtinfo6 libnuma1)

unpack_newer() {
  local dir=$1 apt=$1/apt lib=$1/usr/lib/x86_64-linux-gnu mirror archive program
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) # where this machine has its own from
  [ -n "$mirror" ] || { echo "apt knows no archive of Debian"; return 1; }
  mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$dir/debs" || return 1
  : >"$apt/status"
  echo "deb [signed-by=$debian_keys] $mirror $newer_release main" >"$apt/sources.list"
  cat >"$apt/apt.conf" <<END
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt";
APT::Sandbox::User "";
END
  export APT_CONFIG=$apt/apt.conf
  apt-get update -qq && (cd "$dir/debs" && apt-get download -qq "${newer_packages[@]}") || { unset APT_CONFIG; return 1; }
  unset APT_CONFIG
  for archive in "$dir"/debs/*.deb; do dpkg-deb -x "$archive" "$dir" || return 1; done
  for program in "$dir"/usr/lib/postgresql/$newer/bin/*; do
    [ "$(head -c 4 "$program" | tail -c 3)" = ELF ] || continue # some are scripts
    patchelf --force-rpath --set-rpath "$lib" --set-interpreter "$lib/ld-linux-x86-64.so.2" "$program" || return 1
  done
  for program in "$dir"/usr/lib/postgresql/$newer/lib/*.so; do patchelf --force-rpath --set-rpath "$lib" "$program" || return 1; done
  rm -rf "$apt" "$dir/debs" "$dir/usr/share/doc" "$dir/usr/share/man" "$dir/usr/lib/postgresql/$newer/lib/bitcode"
  "$dir/usr/lib/postgresql/$newer/bin/postgres" --version
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
      command -v pgbackrest >/dev/null || install pgbackrest
      need_newer
      ;;
    newer) need_newer ;;
    bench) need_bench ;;
    *) die "unknown part $part: postgres, test, newer or bench" ;;
  esac
done
