#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test; ends with the test runner's own summary and exit status.
# Usage: scripts/test.sh [--no-setup] [--preset NAME] [-DVARIABLE=VALUE]... [-- CTEST_ARGUMENT...]
# For example: scripts/test.sh --preset tsan -- -L race
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

setup=1
preset=release
build_arguments=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --no-setup) setup=0 ;;
    --preset)
      preset=${2:?--preset needs a name}
      shift
      ;;
    -D*) build_arguments+=("$1") ;;
    -h | --help)
      sed -n '2,4s/^# //p' "$0"
      exit 0
      ;;
    --)
      shift
      break
      ;;
    *)
      echo "test: unknown argument $1 (arguments for ctest come after --)" >&2
      exit 2
      ;;
  esac
  shift
done

if [[ $setup -eq 1 ]]; then
  scripts/setup.sh
fi
scripts/build.sh --preset "$preset" "${build_arguments[@]}"
# Two tests at a time: each may use several threads and check deadlines of its own.
exec ctest --preset "$preset" --output-on-failure --parallel 2 "$@"
