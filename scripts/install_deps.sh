#!/usr/bin/env bash
# Installs the Debian packages that are missing. Exit 2 with the one line to run when this user may not install.
# Package names are the same on Debian 12 and Ubuntu 24.04.
# Usage: scripts/install_deps.sh build|test   (test: what build needs, and what linting and the clang builds need)
set -euo pipefail
what=${1:-test}

packages=(
  build-essential cmake ninja-build pkg-config
  libgtest-dev libgmock-dev nlohmann-json3-dev libfmt-dev libssl-dev libxxhash-dev libzstd-dev libpcre2-dev
  libutf8proc-dev
)
[ "$what" = build ] || packages+=(clang clang-format git procps python3 python3-venv)

if ! command -v dpkg-query >/dev/null 2>&1; then
  echo "draftprobe: this is not a Debian-like system; install the equivalents of: ${packages[*]}" >&2
  exit 2
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
# The sanitizer runtime of clang is a package of its own, named by clang's version.
if [ "$what" != build ] && command -v clang++ >/dev/null 2>&1; then
  major=$(clang++ -dumpversion | cut -d. -f1)
  status=$(dpkg-query -W -f='${Status}' "libclang-rt-${major}-dev" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("libclang-rt-${major}-dev")
fi
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ]; then
  run=(env DEBIAN_FRONTEND=noninteractive)
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
  run=(sudo -n env DEBIAN_FRONTEND=noninteractive)
else
  {
    echo "draftprobe: missing packages, and this user may not install them. Run this line, then try again:"
    echo "  sudo apt-get update && sudo apt-get install -y ${missing[*]}"
  } >&2
  exit 2
fi

echo "draftprobe: installing ${missing[*]}" >&2
"${run[@]}" apt-get update -qq >&2
"${run[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
# clang may just have arrived: its runtime is known only now.
exec "$0" "$what"
