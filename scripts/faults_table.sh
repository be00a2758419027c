#!/usr/bin/env bash
# Rewrites the tables of docs/faults.md from a run of the scenarios. Usage: scripts/faults_table.sh BUILD_DIR
set -euo pipefail
build=$(cd "${1:-build/release}" && pwd)
DRAFTPROBE_WRITE_FAULTS=1 "$build/tests/scenario/scenario_test" --gtest_filter='Scenarios.TheTableOfFaultsIsWhatTheRunSays:FaultForms.TheTableIsWhatTheRunSays'
