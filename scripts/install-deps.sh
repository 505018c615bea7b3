#!/usr/bin/env bash
# Installs what building needs on Debian or Ubuntu, and the sections of packages.txt that the arguments
# name; only what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

packages=(gcc libc6-dev make)
rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' ../Cargo.toml)
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
    if [[ " ${missing[*]} " == *" rustup "* ]] && ! apt-cache madison rustup | grep -q .; then
        echo "install-deps: no cargo on PATH and no package of rustup in this release (Debian 13 and" \
            "Ubuntu 24.04 have one): install Rust $rust or later, then run make again" >&2
        exit 1
    fi
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"
fi

if ! cargo --version >/dev/null 2>&1; then
    rustup default stable
fi
