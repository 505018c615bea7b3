#!/usr/bin/env bash
# Installs what building and testing need on Debian or Ubuntu, and only what is missing.
set -euo pipefail

packages=(gcc libc6-dev make)
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
