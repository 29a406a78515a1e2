#!/usr/bin/env bash
# The arithmetic by which scripts/demo.sh fits into three minutes.
# Usage: demo_size_test.sh SOURCE_DIRECTORY
set -euo pipefail
# shellcheck source=scripts/demo_size.sh
source "$1/scripts/demo_size.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
expect() {
  local wanted=$1
  shift
  local got
  got=$("$@") || got="exit status $?"
  if [[ $got != "$wanted" ]]; then
    echo "FAILED: $* gives '$got', not '$wanted'"
    failures=$((failures + 1))
  fi
}

# The slowest step counts, the first only where it is the only one; other keys with the word in their name do not.
echo '{"step":1,"seconds":9.5,"busy_seconds":{"compute":70.1}}' >"$work/one.jsonl"
{
  cat "$work/one.jsonl"
  echo '{"step":2,"seconds":0.25,"busy_seconds":{"compute":80.5},"tokens_per_second":99}'
  echo '{"step":3,"seconds":1e-1,"busy_seconds":{"compute":80.5}}'
} >"$work/three.jsonl"
: >"$work/none.jsonl"
expect 9.500 demo_step_seconds "$work/one.jsonl"
expect 0.250 demo_step_seconds "$work/three.jsonl"
expect "exit status 1" demo_step_seconds "$work/none.jsonl"

expect 100 demo_steps 165 0.5
expect 100 demo_steps 165 0
expect 33 demo_steps 160 4.8
expect 4 demo_steps 10 4.8
expect 4 demo_steps 5 1000

expect "full 5" demo_choose 0.02
expect "full 5" demo_choose 0
expect "full 2" demo_choose 0.24
expect "small 5" demo_choose 2.4
expect "small 2" demo_choose 6

# Whatever the machine, what the sizes promise fits: the steps that run twice, and the fewest that lower the loss, in seconds.
for small in 0.01 0.05 0.1 0.15 0.2 0.25 0.3 0.4 0.8 1.5 3 6 10; do
  read -r size proof <<<"$(demo_choose "$small")"
  awk -v small=$small -v size="$size" -v proof="$proof" -v ratio="$demo_small_steps_per_step" -v limit="$demo_limit" -v least="$demo_fewest_steps" 'BEGIN {
    step = size == "full" ? small * ratio : small
    exit !(2 * small + (2 * proof + least) * step <= limit)
  }' || {
    echo "FAILED: a machine that takes $small s for a small step does $size with $proof steps twice, which is too much"
    failures=$((failures + 1))
  }
done

[[ $failures -eq 0 ]] || exit 1
echo "all sizes are right"
