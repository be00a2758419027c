#!/usr/bin/env bash
# What takes longer than `make test`: every test under AddressSanitizer and UndefinedBehaviorSanitizer, every test with clang,
# fuzzing of the readers, killed runs, and a real-size probe.
# FUZZ_SECONDS: per fuzz target, 30 unless set.
set -euo pipefail
cd "$(dirname "$0")/.."
fuzz_seconds=${FUZZ_SECONDS:-30}

echo "== sanitizers (clang, ASan + UBSan)"
scripts/build.sh sanitize
# A build directory whose compiler has changed loses its options: cmake configures it again without them.
if ! nm build/sanitize/src/draftprobe | grep __asan_init >/dev/null; then
  echo "build/sanitize has no sanitizer in it; delete it and run again" >&2
  exit 1
fi
ASAN_OPTIONS=detect_leaks=1 ctest --test-dir build/sanitize --output-on-failure -j 2

echo "== clang, optimised"
scripts/build.sh clang
ctest --test-dir build/clang --output-on-failure -j 2

echo "== fuzzing, ${fuzz_seconds} s a target"
found=0
for target in build/sanitize/src/*_fuzz; do
  [ -x "$target" ] || continue
  found=$((found + 1))
  name=$(basename "$target")
  mkdir -p "build/fuzz/$name"
  "$target" "build/fuzz/$name" -max_total_time="$fuzz_seconds" -timeout=10 -rss_limit_mb=4096 \
    -artifact_prefix="build/fuzz/$name-" >"build/fuzz/$name.log" 2>&1 ||
    { tail -n 40 "build/fuzz/$name.log" >&2; echo "fuzzing found a problem: $name" >&2; exit 1; }
  echo "$name: $(grep -E '^Done' "build/fuzz/$name.log" || tail -n 1 "build/fuzz/$name.log")"
done
[ "$found" -ge 5 ] || { echo "only $found fuzz targets were built; expected at least 5" >&2; exit 1; }

echo "== killed runs"
scripts/kill_test.sh build/release

echo "== real size: a 0.8B-shaped target and its draft, random weights"
scripts/real_size.sh build/release

echo "== real length: 8256 tokens, both arms, 16 cycles"
build/release/src/draftprobe bench probe --target models/mini-dense-mlx4 --draft models/mini-dense-draft \
  --prompt models/prompts/long.cc.txt --prefix-tokens 8000 --cycles 16 --repeats 1
