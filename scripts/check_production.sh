#!/usr/bin/env bash
# The production engine has no injection and no observer in it:
#   1. its sources preprocess byte-identically with and without src/instrument and everything that needs it;
#   2. its libraries hold no symbol of the observer, while the instrumented library does (so the search can find one);
#   3. `generate`, which links it, names the production engine only.
# Usage: scripts/check_production.sh BUILD_DIR
set -euo pipefail
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "production check: $1" >&2; exit 1; }

mkdir -p "$work/without/src"
for folder in base formats numerics model state budget decode; do cp -r "src/$folder" "$work/without/src/$folder"; done
count=0
while IFS= read -r source; do
  # Relative paths in both trees (assert prints them); -P: without line markers.
  g++ -std=c++20 -E -P -Isrc "$source" | sha256sum >"$work/a"
  (cd "$work/without" && g++ -std=c++20 -E -P -Isrc "$source") | sha256sum >"$work/b"
  cmp -s "$work/a" "$work/b" || fail "$source preprocesses differently without src/instrument"
  count=$((count + 1))
done < <(find src/decode src/state src/model -name '*.cc' ! -name '*_test.cc' ! -name '*_fuzz.cc' | sort)
[ "$count" -ge 10 ] || fail "only $count production sources were found; expected at least 10"

# No early exit of grep below: with pipefail a closed pipe would count as "nothing found".
symbols() { nm -C "$@" 2>/dev/null; }
libraries=("$build"/src/libdp_{base,formats,numerics,model,state,budget,decode}.a)
for library in "${libraries[@]}"; do [ -f "$library" ] || fail "$library is missing; build first"; done
pattern='draftprobe::instrument|SinkObserver|CycleSink'
if symbols "${libraries[@]}" | grep -E "$pattern" >&2; then fail "a production library holds the symbols above"; fi
symbols "$build/src/libdp_instrument.a" | grep -E "$pattern" >/dev/null || fail "the search finds nothing in the instrumented library either"

generate=$(find "$build/src" -name 'generate_command.cc.o' | head -n 1)
[ -n "$generate" ] || fail "generate_command.cc.o was not found in $build"
if symbols "$generate" | grep -E "$pattern" >&2; then fail "generate names the instrumented engine"; fi
symbols "$generate" | grep 'Engine<draftprobe::decode::NoObserver>' >/dev/null || fail "generate does not name the production engine"
echo "production check: ok ($count sources, ${#libraries[@]} libraries)"
