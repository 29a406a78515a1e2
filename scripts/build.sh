#!/usr/bin/env bash
# Configures and builds everything with a preset of CMakePresets.json.
# Usage: scripts/build.sh [--preset NAME] [-DVARIABLE=VALUE]... [TARGET]...      (preset: release, into build/)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=release
definitions=()
targets=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --preset)
      preset=${2:?--preset needs a name}
      shift
      ;;
    -D*) definitions+=("$1") ;;
    -h | --help)
      sed -n '2,3s/^# //p' "$0"
      exit 0
      ;;
    -*)
      echo "build: unknown option $1" >&2
      exit 2
      ;;
    *) targets+=("$1") ;;
  esac
  shift
done

# A job per processor this process may use (nproc would listen to OMP_NUM_THREADS), and 1.5 GiB of free memory for each.
processors=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
memory_jobs=$(awk '/^MemAvailable:/ { print int($2 / 1572864) }' /proc/meminfo)
jobs=$processors
if [[ -n $memory_jobs && $memory_jobs -lt $jobs ]]; then
  jobs=$((memory_jobs > 0 ? memory_jobs : 1))
fi

cmake --preset "$preset" --log-level=WARNING "${definitions[@]}"
cmake --build --preset "$preset" --parallel "$jobs" ${targets[0]:+--target "${targets[@]}"}
