#!/usr/bin/env bash
# Tries `make run` on a bare Debian that has Go, a C compiler and make, and no Postgres: a fresh system in a directory, made by
# debootstrap, in which the last commit is built and run from source. Needs root. Nothing of the machine is changed but the
# directory; Go's caches are this machine's, so that the C parser need not be compiled anew.
#   scripts/bare.sh DIR          DIR is kept for the next time; remove it yourself
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'bare: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

[ $# -eq 1 ] || die "which directory?"
[ "$(id -u)" -eq 0 ] || die "needs root"
command -v debootstrap >/dev/null || die "needs debootstrap"
root=$(realpath -m "$1")
release=${RELEASE:-bookworm}

if [ ! -x "$root/usr/bin/gcc" ]; then
  say "making a bare $release in $root"
  debootstrap --variant=minbase --include=ca-certificates,gcc,libc6-dev,make "$release" "$root" >"$root.log" 2>&1 || die "debootstrap failed: see $root.log"
fi
[ ! -e "$root"/usr/lib/postgresql ] || say "Postgres is there from the last time"
rm -rf "$root/src"
modcache=$(go env GOMODCACHE) cache=$(go env GOCACHE) goroot=$(go env GOROOT)
mkdir -p "$root/src/neki" "$root/usr/local/go" "$root/$modcache" "$root/$cache" # at the same places: what is cached depends on them
git archive HEAD | tar -x -C "$root/src/neki"
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp scripts/bare-inside.sh "$root/src/inside.sh"
export root modcache cache goroot
# Mounts and processes end with the shell that has them.
unshare --mount --pid --ipc --uts --fork --kill-child=KILL -- bash -euc '
  mount --make-rprivate /
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  mount --bind "$goroot" "$root/usr/local/go"
  mount --bind "$modcache" "$root/$modcache"
  mount --bind "$cache" "$root/$cache"
  exec chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    GOMODCACHE="$modcache" GOCACHE="$cache" GOFLAGS="-buildvcs=false" GOTOOLCHAIN=local bash /src/inside.sh'
