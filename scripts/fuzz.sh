#!/usr/bin/env bash
# Runs every fuzz test of the module, or of the packages given, one after the other, for the time given (default 60s). The
# inputs that it finds are kept in Go's build cache, and go on from there next time.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-60s}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
shift || true
for dir in $(grep -rl --include='*_test.go' '^func Fuzz' "${@:-.}" | xargs -n1 dirname | sort -u); do
  for fuzz in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | sed 's/^func //' | sort -u); do
    # It needs servers, and finds corners that no client has: TestRandomSequences has a part of them every time.
    if [ "$fuzz" = FuzzSequences ] && [ -z "${NEKI_FUZZ_SEQUENCES:-}" ]; then
      echo "== $dir $fuzz: set NEKI_FUZZ_SEQUENCES=1 to run it"
      continue
    fi
    echo "== $dir $fuzz ($time)"
    go test -run '^$' -fuzz "^$fuzz\$" -fuzztime "$time" "$dir" 2>&1 | tee "$log" && continue
    # The tool fails when its time runs out at the wrong moment: then it has found nothing, and says just this.
    if grep -q 'context deadline exceeded' "$log" && ! grep -q 'Failing input\|panic:' "$log"; then
      continue
    fi
    exit 1
  done
done
