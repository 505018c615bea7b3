#!/usr/bin/env bash
# Installs the missing packages that the build needs on Debian or Ubuntu, and those of the sections of
# packages.txt that the arguments name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

packages=(gcc libc6-dev make)
rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' ../Cargo.toml)
for section in "$@"; do
    mapfile -t -O "${#packages[@]}" packages < <(
        awk -v s="[$section]" '/^\[/{on=($0==s);next} on && NF && !/^#/' packages.txt)
done

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)

# The version of the release's Python, such as 3.11.
python_version() {
    local version
    version=$(dpkg-query -W -f '${Version}' python3 2>/dev/null) || version=
    if [ -z "$version" ]; then
        "${as_root[@]}" apt-get update -qq >&2
        version=$(apt-cache madison python3 | awk 'NR == 1 { print $3 }')
    fi
    cut -d. -f1,2 <<<"$version"
}

if [[ " ${packages[*]} " == *"{python}"* ]]; then
    packages=("${packages[@]//\{python\}/$(python_version)}")
fi

missing=()
optional=()
for package in "${packages[@]}"; do
    name=${package#\?}
    if ! dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'install ok installed'; then
        case $package in
        \?*) optional+=("$name") ;;
        *) missing+=("$name") ;;
        esac
    fi
done
command -v cargo >/dev/null || missing+=(rustup)

if [ "${#missing[@]}" -gt 0 ] || [ "${#optional[@]}" -gt 0 ]; then
    "${as_root[@]}" apt-get update -qq
    for package in "${optional[@]}"; do
        if apt-cache madison "$package" | grep -q .; then
            missing+=("$package")
        else
            echo "install-deps: no package $package in this release: its tests are skipped" >&2
        fi
    done
    if [[ " ${missing[*]} " == *" rustup "* ]] && ! apt-cache madison rustup | grep -q .; then
        echo "install-deps: no cargo on PATH and no package rustup in this release (Debian 13 and" \
            "Ubuntu 24.04 have one): install Rust $rust or later, then run make again" >&2
        exit 1
    fi
    [ "${#missing[@]}" -eq 0 ] ||
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"
fi

if ! cargo --version >/dev/null 2>&1; then
    rustup default stable
fi
