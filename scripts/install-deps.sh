#!/usr/bin/env bash
# Installs what building needs on Debian or Ubuntu, and the sections of packages.txt that the arguments
# name; only what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

packages=(gcc libc6-dev make)
for section in "$@"; do
    mapfile -t -O "${#packages[@]}" packages < <(
        awk -v s="[$section]" '/^\[/{on=($0==s);next} on && NF && !/^#/' packages.txt)
done

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
        missing+=("$package")
done
command -v cargo >/dev/null || missing+=(rustup)

if [ "${#missing[@]}" -gt 0 ]; then
    as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get update -qq
    DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq "${missing[@]}"
fi

if ! cargo --version >/dev/null 2>&1; then
    rustup default stable
fi
