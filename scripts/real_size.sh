#!/usr/bin/env bash
# A probe at real size: a target of Qwen3.5-0.8B's shape in MLX 4 bits and a DFlash2 draft in BF16 that fits it, both with
# random weights, so acceptance means nothing here. What is checked: the run ends, every arm is SAME, and memory stays
# below REAL_SIZE_MAX_GB (24 unless set). Usage: scripts/real_size.sh [build directory]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
max_gb=${REAL_SIZE_MAX_GB:-24}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

"$build/tests/make_checkpoint" target "$directory/target"
"$build/tests/make_checkpoint" draft "$directory/draft"
"$build/tests/make_checkpoint" ids "$directory/ids.json" 512
echo "checkpoints: $(du -sm "$directory/target" | cut -f1) MB target, $(du -sm "$directory/draft" | cut -f1) MB draft"

begun=$SECONDS
"$build/src/draftprobe" probe --target "$directory/target" --draft "$directory/draft" --prompt-ids "$directory/ids.json" \
  --prefix-tokens 480 --cycles 4 --controls repeat --no-digest-cache --out "$directory/out" >"$directory/report.txt" &
probe=$!
# The kernel's own high-water mark, read while the process lives; it only grows.
peak_kb=0
while read -r kb < <(awk '/^VmHWM/ {print $2}' "/proc/$probe/status" 2>/dev/null) && [ -n "$kb" ]; do
  peak_kb=$kb
  sleep 0.2
done
status=0
wait "$probe" || status=$?
seconds=$((SECONDS - begun))
cat "$directory/report.txt"
echo "real size: exit $status, $seconds s, peak memory $((peak_kb / 1024)) MB"
[ "$status" -eq 0 ] || { echo "the probe at real size ended with $status, expected 0 (SAME)" >&2; exit 1; }
[ "$peak_kb" -gt 0 ] || { echo "peak memory was not seen" >&2; exit 1; }
[ "$peak_kb" -lt $((max_gb * 1024 * 1024)) ] || { echo "peak memory is above $max_gb GB" >&2; exit 1; }
