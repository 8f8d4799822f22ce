#!/usr/bin/env bash
# Runs every fuzz test of the module, one after the other, for the time given (default 60s). The inputs that it finds are
# kept in Go's build cache, and go on from there next time.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-60s}
for file in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do
  for fuzz in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$file"/*_test.go | sed 's/^func //' | sort -u); do
    echo "== $file $fuzz ($time)"
    go test -run '^$' -fuzz "^$fuzz\$" -fuzztime "$time" "$file"
  done
done
