#!/usr/bin/env bash
# Runs every fuzz test of the module, one after the other, for the time given (default 20s).
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-20s}
for pkg in $(go list ./...); do
  for fuzz in $(go test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
    echo "== $pkg $fuzz ($time)"
    go test -run '^$' -fuzz "^$fuzz\$" -fuzztime "$time" "$pkg"
  done
done
