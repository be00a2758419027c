#!/usr/bin/env bash
# The fast suite on a finished release build: lint, every test, and the numerics golden bits with clang. Under 10 minutes on 2
# cores, the build included.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/lint.sh
scripts/check_production.sh build/release
scripts/check_kernels.sh build/release
ctest --test-dir build/release --output-on-failure -j 2
scripts/build.sh clang numerics_test
scripts/check_kernels.sh build/clang
build/clang/src/numerics_test --gtest_brief=1
