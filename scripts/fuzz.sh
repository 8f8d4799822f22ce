#!/usr/bin/env bash
# Runs every fuzz test of the module, or of the packages given, for the time given (default 60s): two at a time with one
# worker each, so that two cores are busy. The inputs that it finds are kept in Go's build cache, and go on from there next
# time. Prints the whole output of one that fails, and the last line of the others.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-60s}
shift || true

fuzz_one() { # directory, function, time
  local log status=0
  log=$(mktemp)
  go test -run '^$' -fuzz "^$2\$" -fuzztime "$3" -parallel 1 "$1" >"$log" 2>&1 || status=$?
  # The tool fails when its time runs out at the wrong moment: then it has found nothing, and says just this.
  if [ "$status" != 0 ] && grep -q 'context deadline exceeded' "$log" && ! grep -q 'Failing input\|panic:' "$log"; then
    status=0
  fi
  if [ "$status" = 0 ]; then
    echo "ok   $1 $2 ($3): $(grep -o 'execs: [0-9]*' "$log" | tail -n1 || true)"
  else
    echo "FAIL $1 $2 ($3)"
    cat "$log"
  fi
  rm -f "$log"
  return "$status"
}
export -f fuzz_one

for dir in $(grep -rl --include='*_test.go' '^func Fuzz' "${@:-.}" | xargs -n1 dirname | sort -u); do
  for fuzz in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | sed 's/^func //' | sort -u); do
    # It needs servers, and finds corners that no client has: TestRandomSequences has a part of them every time.
    if [ "$fuzz" = FuzzSequences ] && [ -z "${NEKI_FUZZ_SEQUENCES:-}" ]; then
      echo "skip $dir $fuzz: set NEKI_FUZZ_SEQUENCES=1 to run it" >&2
      continue
    fi
    echo "$dir $fuzz $time"
  done
done | xargs -P 2 -L 1 bash -c 'fuzz_one "$@"' _
