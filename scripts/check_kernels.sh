#!/usr/bin/env bash
# The kernel objects of one instruction set must not lend code to another: an inline function compiled with AVX and chosen by the
# linker for everyone would run on a CPU without AVX. So they hold no weak code symbol, and the portable one no AVX instruction.
# Usage: scripts/check_kernels.sh BUILD_DIR
set -euo pipefail
fail() { echo "kernel check: $1" >&2; exit 1; }
count=0
while IFS= read -r object; do
  count=$((count + 1))
  weak=$(nm -C "$object" | awk '$2 == "W"' || true)
  [ -z "$weak" ] || fail "$object holds weak code symbols: $weak"
  case "$object" in
    *kernels_portable*)
      # zmm and ymm registers exist in AVX code only.
      registers=$(objdump -d --no-show-raw-insn "$object" | grep -cE '%[yz]mm[0-9]' || true)
      [ "$registers" -eq 0 ] || fail "$object uses AVX registers in $registers instructions"
      ;;
    *kernels_avx512*)
      registers=$(objdump -d --no-show-raw-insn "$object" | grep -cE '%zmm[0-9]' || true)
      [ "$registers" -gt 0 ] || fail "$object uses no AVX-512 register: the search or the flags are wrong"
      ;;
  esac
done < <(find "$1/src" -name 'kernels_*.cc.o' | grep '/cpu/' | sort)
[ "$count" -eq 3 ] || fail "found $count kernel objects in $1, expected 3"
echo "kernel check: ok ($count objects)"
