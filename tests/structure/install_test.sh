#!/usr/bin/env bash
# Installs a build into an empty prefix and builds and runs a small program against it with find_package(Strata).
# Usage: install_test.sh CMAKE BUILD_DIRECTORY SOURCE_DIRECTORY CXX_COMPILER
set -euo pipefail
cmake=$1 build=$2 source=$3 compiler=$4

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
"$cmake" --install "$build" --prefix "$prefix" >"$work/install.log" 2>&1 || {
  tail -n 20 "$work/install.log"
  echo "FAILED: the install step (is everything built?)"
  exit 1
}

mkdir "$work/user"
cat >"$work/user/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES CXX)
find_package(Strata 0.1 REQUIRED)
add_executable(user main.cpp)
target_link_libraries(user PRIVATE strata::cpu_adam)
get_target_property(include_directories strata::core INTERFACE_INCLUDE_DIRECTORIES)
message(STATUS "headers: ${include_directories}")
END
cat >"$work/user/main.cpp" <<'END'
#include <cstdio>
#include "core/topology.hpp"
#include "cpu_adam/adam.hpp"
int main() {
  float p[3] = {1, 2, 3}, m[3] = {}, v[3] = {}, g[3] = {1, 1, 1};
  strata::AdamTile tile;
  tile.parameter = p, tile.momentum = m, tile.variance = v, tile.gradient = g, tile.elements = 3;
  tile.step = strata::AdamStep::make({}, 1, 0.5, 1.0);
  strata::AdamUpdater(1).update(tile);
  std::printf("%d %.3f %.3f %.3f\n", strata::usable_processor_count() > 0, p[0], p[1], p[2]);
}
END
"$cmake" -S "$work/user" -B "$work/user/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$compiler" \
  -DCMAKE_BUILD_TYPE=Release >"$work/configure.log" 2>&1 || { cat "$work/configure.log"; echo "FAILED: find_package(Strata)"; exit 1; }
grep -qF "headers: $prefix/include/strata" "$work/configure.log" || {
  cat "$work/configure.log"
  echo "FAILED: the package points to headers outside its prefix"
  exit 1
}
"$cmake" --build "$work/user/build" >"$work/build.log" 2>&1 || { cat "$work/build.log"; echo "FAILED: building the user"; exit 1; }
output=$("$work/user/build/user")
[[ $output == "1 0.500 1.500 2.500" ]] || { echo "FAILED: the user printed '$output'"; exit 1; }

if grep -rnF -e "$source/" -e "$build/" "$prefix/lib" --include='*.cmake'; then
  echo "FAILED: the package names folders of the build"
  exit 1
fi
if [[ -e $build/strata ]]; then
  "$prefix/bin/strata" --help >/dev/null || { echo "FAILED: the installed program does not start"; exit 1; }
fi
echo "installed, found, built and run: $output"
