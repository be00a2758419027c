#!/usr/bin/env bash
# Formatting, whitespace, Python lint, tree size and architecture. Exit 1 when something has to be mended.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0
fail() { echo "lint: $1" >&2; failed=1; }

mapfile -t cpp < <(git ls-files '*.h' '*.cc')
# Other major versions format some lines differently; only the one that .clang-format was written for is the judge.
major=$(clang-format --version 2>/dev/null | grep -oE 'version [0-9]+' | grep -oE '[0-9]+')
if [ "$major" != 14 ]; then
  echo "lint: clang-format is version ${major:-none}, formatting is judged by version 14 only; not checked" >&2
elif [ ${#cpp[@]} -gt 0 ]; then
  clang-format --dry-run -Werror "${cpp[@]}" 2>/tmp/draftprobe-format.$$ || {
    grep -E 'error:' /tmp/draftprobe-format.$$ | cut -d: -f1 | sort | uniq -c >&2
    fail "formatting differs from .clang-format; run 'make format'"
  }
  rm -f /tmp/draftprobe-format.$$
fi

mapfile -t text < <(git ls-files '*.h' '*.cc' '*.py' '*.sh' '*.md' '*.txt' '*.cmake' 'Makefile' '.ci/run' '*.json' \
  ':!:models/**/*.json' ':!:tests/golden/**')
if grep -nE '[[:space:]]+$' -- "${text[@]}" /dev/null | head -n 20 >&2 && grep -qE '[[:space:]]+$' -- "${text[@]}"; then
  fail "trailing whitespace in the lines above"
fi
for file in "${text[@]}"; do
  [ -s "$file" ] && [ -n "$(tail -c 1 "$file")" ] && fail "$file: no newline at the end"
done

# Ruff is not a Debian 12 package; it lives in a private environment below build/, pinned.
ruff=build/lint-venv/bin/ruff
command -v ruff >/dev/null 2>&1 && ruff=$(command -v ruff)
if [ ! -x "$ruff" ]; then
  python3 -m venv build/lint-venv >/dev/null 2>&1 && build/lint-venv/bin/pip install -q ruff==0.17.6 >/dev/null 2>&1 || true
fi
if [ -x "$ruff" ]; then
  "$ruff" check --quiet . >&2 || fail "ruff found problems in Python scripts"
elif [ "${CI:-}" = true ]; then
  fail "ruff could not be installed (python3 -m venv, pip install ruff)"
else
  echo "lint: ruff is not here and could not be installed; Python scripts were not linted" >&2
fi

total=$(git ls-files -z | xargs -0 -r stat -c '%s' | awk '{s += $1} END {print int(s / 1048576)}')
[ "$total" -lt 56 ] || fail "the tracked tree holds $total MiB; the limit is 56"

python3 scripts/check_arch.py . || fail "architecture: an include goes against the arrows of src/README.md"
[ $failed -eq 0 ] && echo "lint: ok (${#cpp[@]} C++ files, tree $total MiB)"
exit $failed
