#!/usr/bin/env bash
# The probe on the bundled trained pair with a real source file as prompt: once healthy (expected SAME), once with one injected
# fault (expected CHANGED). Leaves captures and reports in demo-out/. Exit 0 when both came out as expected.
set -uo pipefail
cd "$(dirname "$0")/.."

draftprobe=build/release/src/draftprobe
out=demo-out
fault=context-shift=32
args=(--target models/mini-dense-mlx4 --draft models/mini-dense-draft --prompt models/prompts/draft_forward.cc.txt
  --prefix-tokens 2560 --cycles 16)
rm -rf "$out" && mkdir -p "$out"

echo "== healthy restore: the prefix goes through a snapshot into a lane that another request used before"
"$draftprobe" probe "${args[@]}" --out "$out/healthy" --report "$out/report.html"
healthy=$?
echo
echo "== the same probe with an injected fault: restored draft context rows land 32 positions too high"
"$draftprobe" probe "${args[@]}" --inject "$fault" --out "$out/fault" --report "$out/fault-report.html"
broken=$?

if [ $healthy -ne 0 ] || [ $broken -ne 1 ]; then
  echo "demo: expected exit 0 (SAME) and 1 (CHANGED), got $healthy and $broken; files are in $out" >&2
  exit 2
fi
echo
echo "demo: SAME without the fault, CHANGED with it. Captures and reports:"
echo "  $out/healthy/{control,treated}  $out/report.html"
echo "  $out/fault/{control,treated}    $out/fault-report.html"
