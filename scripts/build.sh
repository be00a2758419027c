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
# Quiet, and so silent for minutes when much is to be built.
if ! ninja -C "build/$preset" -n "$@" | grep -q '^ninja: no work to do'; then
  echo "building (first time: several minutes on 2 cores)" >&2
fi
ninja -C "build/$preset" --quiet "$@"
