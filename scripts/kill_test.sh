#!/usr/bin/env bash
# Kills a probe with SIGKILL at many moments: afterwards its output directory is absent or complete, never in between.
# Usage: scripts/kill_test.sh BUILD_DIR
set -uo pipefail
draftprobe=$(cd "$1" && pwd)/src/draftprobe
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() {
  "$draftprobe" probe --target models/mini-dense-mlx4 --draft models/mini-dense-draft \
    --prompt models/prompts/draft_forward.cc.txt --prefix-tokens 2560 --cycles 4 --out "$work/out" >/dev/null 2>&1
}
start=$(date +%s%N)
run || { echo "kill test: an undisturbed run failed with exit $?" >&2; exit 1; }
whole_ms=$((($(date +%s%N) - start) / 1000000))
rm -rf "$work/out"

killed=0
complete=0
rounds=24
for round in $(seq 1 $rounds); do
  run &
  pid=$!
  # From the very start to a little past the end of an undisturbed run.
  sleep "$(awk -v ms="$whole_ms" -v r="$round" -v n="$rounds" 'BEGIN {printf "%.3f", ms / 1000 * 1.1 * r / n}')"
  # The background job is a subshell: its child is the program.
  pkill -KILL -P "$pid" 2>/dev/null && killed=$((killed + 1))
  wait "$pid" 2>/dev/null
  if [ -e "$work/out" ]; then
    for arm in control treated; do
      (cd "$work/out/$arm" && sha256sum -c --quiet SHA256SUMS) ||
        { echo "kill test: round $round left an incomplete capture in $arm" >&2; exit 1; }
    done
    [ -s "$work/out/report.json" ] || { echo "kill test: round $round left no report.json" >&2; exit 1; }
    complete=$((complete + 1))
    rm -rf "$work/out"
  fi
  find "$work" -mindepth 1 -maxdepth 1 -name '.*' -exec rm -rf {} +
done
# The same for the file of a snapshot, while the arm goes through a file or another process.
capture() {
  "$draftprobe" capture --target models/mini-dense-mlx4 --draft models/mini-dense-draft \
    --prompt models/prompts/draft_forward.cc.txt --prefix-tokens 2560 --cycles 2 --arm restored --tier "$1" \
    --save-snapshot "$work/state.snapshot" --out "$work/out" >/dev/null 2>&1
}
snapshots=0
snapshot_kills=0
for tier in disk process; do
  start=$(date +%s%N)
  capture $tier || { echo "kill test: an undisturbed capture with tier $tier failed with exit $?" >&2; exit 1; }
  whole_ms=$((($(date +%s%N) - start) / 1000000))
  rm -rf "$work/out" "$work/state.snapshot"
  for round in $(seq 1 $rounds); do
    capture $tier &
    pid=$!
    sleep "$(awk -v ms="$whole_ms" -v r="$round" -v n="$rounds" 'BEGIN {printf "%.3f", ms / 1000 * 1.05 * r / n}')"
    pkill -KILL -P "$pid" 2>/dev/null && snapshot_kills=$((snapshot_kills + 1))
    wait "$pid" 2>/dev/null
    # A second process may still be ending.
    sleep 0.05
    if [ -e "$work/state.snapshot" ]; then
      "$draftprobe" inspect "$work/state.snapshot" >/dev/null ||
        { echo "kill test: tier $tier, round $round left a damaged snapshot" >&2; exit 1; }
      snapshots=$((snapshots + 1))
    fi
    if [ -e "$work/out" ]; then
      (cd "$work/out" && sha256sum -c --quiet SHA256SUMS) ||
        { echo "kill test: tier $tier, round $round left an incomplete capture" >&2; exit 1; }
    fi
    find "$work" -mindepth 1 -maxdepth 1 -exec rm -rf {} +
  done
done
[ "$snapshot_kills" -ge 10 ] && [ "$snapshots" -ge 1 ] ||
  { echo "kill test: $snapshot_kills kills and $snapshots snapshots; nothing shown" >&2; exit 1; }

# A polite signal leaves nothing at all, hidden names included.
"$draftprobe" probe --target models/mini-dense-mlx4 --draft models/mini-dense-draft \
  --prompt models/prompts/draft_forward.cc.txt --prefix-tokens 2560 --cycles 400 --out "$work/out" >/dev/null 2>&1 &
pid=$!
sleep 0.5
kill -TERM $pid
wait $pid
status=$?
[ $status -eq 143 ] || { echo "kill test: SIGTERM gave exit $status, expected 143" >&2; exit 1; }
left=$(find "$work" -mindepth 1 -maxdepth 1)
[ -z "$left" ] || { echo "kill test: SIGTERM left $left" >&2; exit 1; }

[ "$killed" -ge 5 ] || { echo "kill test: only $killed of $rounds runs were killed in time; nothing shown" >&2; exit 1; }
echo "kill test: $rounds rounds, $killed killed, $complete complete, none in between;" \
  "snapshots: $snapshot_kills killed, $snapshots complete files, none damaged"
