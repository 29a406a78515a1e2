#!/usr/bin/env bash
# Installs what building and testing Strata needs on Debian or Ubuntu, and nothing that is there already.
# Usage: scripts/setup.sh [--list]      --list prints the packages and changes nothing
set -euo pipefail

packages=(
  cmake ninja-build ccache g++ pkg-config git
  libfmt-dev libhwloc-dev liburing-dev libaio-dev libhwy-dev libdnnl-dev
  nlohmann-json3-dev libcli11-dev libxxhash-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)

if [[ ${1:-} == --list ]]; then
  printf '%s\n' "${packages[@]}"
  exit 0
elif [[ $# -gt 0 ]]; then
  echo "usage: scripts/setup.sh [--list]" >&2
  exit 2
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  {
    echo "setup: this is not Debian or Ubuntu (no apt-get), so nothing was installed."
    echo "  Strata needs what these Debian packages hold; install them by your system's means, then build with scripts/build.sh:"
    echo "  ${packages[*]}"
  } >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null || true)
  grep -qx installed <<<"$status" || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: missing packages need root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
fail() {
  {
    tail -n 20 "$log"
    echo "setup: $1"
    echo "  missing: ${missing[*]}"
    echo "  try: look at the lines above; without a network, install the packages from a local mirror and run this again"
  } >&2
  exit 1
}

echo "setup: installing ${missing[*]}" >&2
"${as_root[@]}" apt-get update -qq >"$log" 2>&1 || fail "apt-get update failed (no network?)"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
  >"$log" 2>&1 || fail "apt-get install failed"
