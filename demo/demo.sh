#!/usr/bin/env bash
# The demonstration: real work on an instance of four daemons and, step by step, the same on the local
# disk. A step gets its check mark if both ended with the same checksum, which each step computes from
# what it reads back. At the end the instance is stopped and nothing of it may be left.
#
# FOREBAY_BIN names the program (default: the release build). DEMO_PLAIN=1 uses a directory of /dev/shm
# in place of an instance, to test this script. DEMO_SOURCE names a tarball to unpack and build in place
# of the one that cargo fetches (the crate libz-sys, which carries zlib's sources). DEMO_REPORT names the
# page with the report of what ran (default: demo-report.html beside the builds).
set -euo pipefail

here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
forebay=${FOREBAY_BIN:-${CARGO_TARGET_DIR:-$here/../target}/release/forebay}
name=demo-$$
scratch=$(mktemp -d "${DEMO_DISK:-/var/tmp}/forebay-demo-XXXXXX")
export MATERIAL=$scratch/material PYTHON=python3
# All that runs in the instance is one job, and its report is the demonstration's alone.
export FOREBAY_JOB=demo XDG_STATE_HOME=$scratch/state XDG_DATA_HOME=$scratch/data
page=${DEMO_REPORT:-${CARGO_TARGET_DIR:-$here/../target}/demo-report.html}
mkdir "$MATERIAL" "$scratch/disk" "$scratch/logs"
plain=
running=no

finish() {
    if [ "$running" = yes ]; then "$forebay" stop --name "$name" >/dev/null 2>&1 || true; fi
    rm -rf "$scratch" ${plain:+"$plain"}
}
trap finish EXIT
trap 'exit 130' INT TERM

say() { printf '%s\n' "$*"; }

# The tarball of a crate with C sources, by cargo, which builds this project too.
fetch_source() {
    if [ -n "${DEMO_SOURCE:-}" ]; then
        cp "$DEMO_SOURCE" "$MATERIAL/source.tar.gz"
        return
    fi
    local version=1.1.31 package=$scratch/package crate
    mkdir -p "$package/src"
    : >"$package/src/lib.rs"
    printf '[package]\nname = "source"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\nlibz-sys = "=%s"\n[workspace]\n' \
        "$version" >"$package/Cargo.toml"
    (cd "$package" && cargo fetch --quiet)
    for crate in "${CARGO_HOME:-$HOME/.cargo}"/registry/cache/*/"libz-sys-$version.crate"; do
        cp "$crate" "$MATERIAL/source.tar.gz"
    done
}

# A bare repository with one commit for each file of zlib.
make_history() {
    local work=$scratch/work file
    git init -q --bare -b main "$MATERIAL/history.git"
    mkdir "$work"
    tar -xzf "$MATERIAL/source.tar.gz" -C "$work" --strip-components=1
    local git=(env "HOME=$MATERIAL" GIT_CONFIG_NOSYSTEM=1 git -C "$work")
    "${git[@]}" init -q -b main .
    for file in "$work"/src/zlib/*.[ch]; do
        "${git[@]}" add "$file"
        "${git[@]}" commit -q -m "add ${file##*/}"
    done
    "${git[@]}" add -A
    "${git[@]}" commit -q -m "add the rest"
    "${git[@]}" push -q "$MATERIAL/history.git" main
    rm -rf "$work"
}

prepare() {
    local program
    for program in gcc make git sqlite3 mpicc mpirun tar; do
        command -v "$program" >/dev/null || { say "demo: $program is not installed; see make install-deps"; exit 2; }
    done
    for program in /usr/bin/python3 python3; do
        if "$program" -c 'import h5py, numpy' 2>/dev/null; then PYTHON=$program; break; fi
    done
    "$PYTHON" -c 'import h5py, numpy' || { say "demo: python3 without h5py and numpy; see make install-deps"; exit 2; }
    printf '[user]\n\tname = Demo\n\temail = demo@example.org\n[init]\n\tdefaultBranch = main\n' >"$MATERIAL/.gitconfig"
    fetch_source
    make_history
    mpicc -O2 -o "$MATERIAL/checkpoint" "$here/checkpoint.c"
    mpicc -O2 -o "$MATERIAL/checkpoints" "$here/checkpoints.c"
}

# on_instance COMMAND...: runs it so that it sees the instance.
on_instance() {
    if [ -n "$plain" ]; then "$@"; else "$forebay" run --name "$name" -- "$@"; fi
}

start() {
    if [ -n "${DEMO_PLAIN:-}" ]; then
        plain=$(mktemp -d /dev/shm/demo-XXXXXX)
        target=$plain/demo
    else
        "$forebay" start --local 4 --name "$name"
        running=yes
        target=/forebay/demo
    fi
    on_instance mkdir "$target"
}

# timed LOG COMMAND...: its seconds in $seconds and the last line of its output in $sum.
timed() {
    local log=$1 begin=${EPOCHREALTIME/[.,]/} micros status=0
    shift
    "$@" >"$log" 2>"$log.err" </dev/null || status=$?
    micros=$((${EPOCHREALTIME/[.,]/} - begin))
    seconds=$(printf '%d.%02d' $((micros / 1000000)) $((micros / 10000 % 100)))
    sum=$(tail -n 1 "$log")
    [ $status -eq 0 ] && [ -n "$sum" ] || sum="status $status: $(tail -n 1 "$log.err")"
    return $status
}

failed=0
# compare WHAT WORDS: the commands in the arrays on_disk and on_forebay.
compare() {
    local what=$1 words=$2 disk_seconds disk_sum mark=✓ both=yes
    timed "$scratch/logs/$what.disk" "${on_disk[@]}" || both=no
    disk_seconds=$seconds disk_sum=$sum
    timed "$scratch/logs/$what.forebay" "${on_forebay[@]}" || both=no
    if [ $both = no ] || [ "$sum" != "$disk_sum" ]; then
        mark=✗
        failed=$((failed + 1))
    fi
    printf '%s  %-58s %8s %8s\n' "$mark" "$words" "$seconds" "$disk_seconds"
    [ $mark = ✓ ] || printf '     forebay: %s\n     disk:    %s\n' "$sum" "$disk_sum"
}

step() {
    on_disk=(bash "$here/steps.sh" "$1" "$scratch/disk")
    on_forebay=(on_instance bash "$here/steps.sh" "$1" "$target")
    compare "$@"
}

# Programs that cannot be preloaded, on a mount of the instance, together with preloaded ones.
mount_step() {
    local message
    if [ -n "$plain" ] || ! command -v busybox >/dev/null; then return; fi
    mkdir "$scratch/mount"
    gcc -O2 -static -o "$MATERIAL/count-static" "$here/count.c"
    gcc -O2 -o "$MATERIAL/count" "$here/count.c"
    if ! message=$("$forebay" mount --name "$name" "$scratch/mount" 2>&1); then
        say "-  $1: not run: $message"
        return
    fi
    on_disk=("$here/mixed.sh" "$scratch/disk" "$scratch/disk" env)
    on_forebay=("$here/mixed.sh" "$scratch/mount/demo" "$target" "$forebay" run --name "$name" --)
    compare mount "$1"
    "$forebay" umount "$scratch/mount" >/dev/null
}

# A separate instance over a backing directory: its input is staged in, 192 MiB are written through 96 MiB
# of memory and an SSD, all written-back data is evicted and read again, and when the instance has drained and
# stopped, the backing directory must have everything.
backing_step() {
    local backing=$scratch/backing words
    if [ -n "$plain" ]; then return; fi
    mkdir "$backing" "$scratch/disk/tiers"
    head -c 5000000 /dev/urandom | tee "$backing/input" >"$scratch/disk/tiers/input"
    words=(start --local 2 --name "$name-tiers" --memory 96MiB --ssd 256MiB --backing "$backing")
    on_disk=(bash "$here/steps.sh" tiers "$scratch/disk/tiers")
    on_forebay=(bash -c 'forebay=$1 name=$2 backing=$3 steps=$4; shift 4
        "$forebay" "$@" >&2
        trap "\"$forebay\" stop --name $name --discard >&2" EXIT
        "$forebay" stage in --name "$name" --wait "$backing/input" >&2
        seen=$("$forebay" run --name "$name" -- bash "$steps" tiers /forebay | tail -n 1)
        "$forebay" flush --name "$name" >&2
        "$forebay" evict --name "$name" /forebay >&2
        again=$("$forebay" run --name "$name" -- bash "$steps" sums /forebay | tail -n 1)
        "$forebay" stop --name "$name" >&2
        trap - EXIT
        there=$(bash "$steps" sums "$backing")
        [ "$seen" = "$there" ] && [ "$again" = "$there" ] && echo "$there"' tiers
        "$forebay" "$name-tiers" "$backing" "$here/steps.sh" "${words[@]}")
    compare tiers "$1"
}

# An instance over four nodes with two copies of all data, of which one dies (node_death.py).
death_step() {
    if [ -n "$plain" ]; then return; fi
    if ! ip netns add "$name" 2>/dev/null; then
        say "-  $1: not run: it needs root, and ip for network namespaces"
        return
    fi
    ip netns del "$name"
    on_disk=(bash "$here/steps.sh" checkpoints "$scratch/disk")
    on_forebay=("$PYTHON" "$here/node_death.py" "$(dirname "$forebay")" "$name-nodes" "$MATERIAL/checkpoints")
    compare death "$1"
}

# The report of what ran in the instance: the path of its page, and the first three lines of its advice.
show_report() {
    mkdir -p "$(dirname "$page")" &&
        "$forebay" report "$FOREBAY_JOB" --now --name "$name" --html "$page" >/dev/null &&
        "$forebay" report "$FOREBAY_JOB" --json >"$scratch/report.json" &&
        say "   the report of what ran is $(realpath "$page"); the first of its advice:" &&
        "$PYTHON" - "$scratch/report.json" <<'END'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    findings = json.load(file)["findings"]
for one in findings[:3]:
    saves = one["saves_seconds"]
    parts = [one["evidence"], one["change"]]
    print("   - " + ": ".join(part for part in parts if part) + (f" (saves about {saves:.1f} s)" if saves else ""))
sys.exit(len(findings) < 3)
END
}

# Prints everything with the instance's name: processes, sockets, shared memory, files. A search without a
# result is no failure of this script; the caller checks the output.
leftovers() {
    grep -lzF -- "$name" /proc/[0-9]*/cmdline 2>/dev/null | while read -r line; do
        { tr '\0' ' ' <"$line"; } 2>/dev/null | grep forebayd || true
    done
    grep -F -- "$name" /proc/net/unix || true
    find /dev/shm /tmp /var/tmp "${TMPDIR:-/tmp}" "${XDG_RUNTIME_DIR:-/tmp}" "${HOME:-/tmp}/.cache" -maxdepth 3 -name "*$name*" 2>/dev/null || true
}

prepare
start
say "   what ran                                                    seconds on"
say "                                                               forebay     disk"
step checkpoint "MPI, 4 ranks: a checkpoint file each and one shared, 64 MiB"
step unpack "tar: unpack the sources of libz-sys and zlib"
step build "gcc, make -j2: zlib, static and shared; pack and unpack"
step repository "git: clone, six commits, a branch, a merge, gc, fsck"
step database "sqlite3: 53 transactions, roll back, integrity check"
step arrays "python: h5py and numpy, 20 appends, a mapping, read back"
mount_step "a mount: static busybox unpacks, gcc builds, both count"

backing_step "tiers: stage in, 192 MiB through 96 MiB, evict, drain"
death_step "MPI on 3 nodes, 2 copies: a node dies in a checkpoint"

say "   ✓: the same result on both. 'disk' is a local directory: its bytes stay in the page cache of this idle"
say "   machine, and nothing is faster for one program with small files. Forebay is for what a node's page"
say "   cache cannot do: checkpoints of many ranks and nodes, and input from a slow or shared file system;"
say "   docs/benchmarks/README.md has those figures."

if [ -n "$plain" ]; then
    rm -rf "$plain"
else
    if ! show_report; then
        say "✗  no report, or less than three lines of advice"
        failed=$((failed + 1))
    fi
    "$forebay" stop --name "$name"
    running=no
    left=$(leftovers)
    if [ -n "$left" ]; then
        printf '✗  left behind:\n%s\n' "$left"
        failed=$((failed + 1))
    else
        say "✓  stopped: no process, socket, shared memory or file is left"
    fi
fi
[ $failed -eq 0 ] || { say "$failed failed"; exit 1; }
