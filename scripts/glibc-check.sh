#!/usr/bin/env bash
# Runs the tests of the preload library and the program cases inside a Debian with a newer C library
# than this machine's (2.41 and later end cancellable calls in one function of their own).
#
#   glibc-check.sh [PATTERN...]      only the cases of tests/programs that match
#
# SUITE (default trixie) is the Debian suite; its packages come from the mirror that apt uses on this machine.
# debootstrap creates the root once, under target/glibc/SUITE; that and chroot need root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

suite=${SUITE:-trixie}
target=${CARGO_TARGET_DIR:-$PWD/target}
root=$target/glibc/$suite
packages=(acl attr autoconf binutils bzip2 cmake cpio ed file fio g++ gcc git libc6-dev m4 make ninja-build
    patch perl procps python3 rsync sqlite3 strace unzip vim xz-utils zip zstd)

[ "$(id -u)" -eq 0 ] || { echo "glibc-check: debootstrap and chroot need root: run it with sudo" >&2; exit 1; }

if [ ! -e "$root/ready" ]; then
    command -v debootstrap >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq debootstrap
    mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' \
        'Created-By: Packages' | sort -u | head -n 1)}
    [ -n "$mirror" ] || { echo "glibc-check: apt has no Debian mirror configured: set MIRROR" >&2; exit 1; }
    rm -rf "$root"
    mkdir -p "$root"
    include=$(IFS=,; echo "${packages[*]}")
    echo "creating a root of $suite"
    debootstrap --variant=minbase --include="$include" "$suite" "$root" "$mirror" >"$root.log" 2>&1 ||
        { tail -n 5 "$root.log" >&2; exit 1; }
    touch "$root/ready"
fi

mounted=()
clean() {
    local at
    for at in "${mounted[@]}"; do umount "$at"; done
}
trap clean EXIT
bind() {
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    mounted=("$root$2" "${mounted[@]}")
}
mount -t proc proc "$root/proc" && mounted=("$root/proc")
bind /dev /dev
bind /dev/shm /dev/shm
# The same paths inside and outside: tests contain the path of their build.
bind "$PWD" "$PWD"
[ "$target" = "$PWD/target" ] || bind "$target" "$target"

in_root() { chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"; }
in_root ldd --version | head -n 1

# Built here, because the root has no Rust. The tests come second: their library has counters.
cargo build --quiet --workspace
mapfile -t tests < <(cargo test -p preload --no-run --message-format=json 2>/dev/null |
    sed -n '/"kind":\["bin"\]/d; s/.*"test":true},.*"executable":"\([^"]*\)".*/\1/p')
[ "${#tests[@]}" -gt 0 ] || { echo "glibc-check: the tests do not build" >&2; exit 1; }
for program in "${tests[@]}"; do
    echo "== ${program##*/}"
    (cd crates/preload && in_root "$program" --quiet)
done

patterns=()
for pattern in "$@"; do patterns+=(--only "$pattern"); done
in_root FOREBAY_BIN="$target/debug/forebay" bash "$PWD/tests/programs/run.sh" "${patterns[@]}" --in-forebay
