#!/usr/bin/env bash
# The fast suite on a finished release build: lint, then every test. Under 10 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/lint.sh
ctest --test-dir build/release --output-on-failure -j 2 -LE slow
