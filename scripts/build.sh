#!/usr/bin/env bash
# Configures and builds one preset of CMakePresets.json. Usage: scripts/build.sh release|clang|sanitize [ninja targets]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
log="build/$preset-configure.log"
mkdir -p build
if ! cmake --preset "$preset" >"$log" 2>&1; then
  cat "$log" >&2
  exit 2
fi
# Ninja is quiet, and a build from nothing takes minutes: one line says that it goes on. A dry run cannot tell whether
# there is work, since it always begins with CMake.
(
  sleep 3 >/dev/null 2>&1
  echo "building (first time: several minutes on 2 cores)" >&2
) &
note=$!
trap 'kill "$note" 2>/dev/null || true' EXIT
ninja -C "build/$preset" --quiet "$@"
